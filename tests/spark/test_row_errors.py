from __future__ import annotations

from contextlib import nullcontext
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from sbclient import clock
from sbclient.broker.faults import Operation
from sbclient.errors import InvalidOperationError
from sbclient.testing import Fault, FaultKind
from sbclient_spark.options import Destination
from sbclient_spark.write.encoded_rows import BadRow
from sbclient_spark.write.row_errors import WriteFailedError
from tests.client.scene import make_queue
from tests.client.test_doubt import CUT, FAULTS, FINE, Script
from tests.spark.writing import PAIRED, Scene, bodies, rows, written


@pytest.fixture
async def scene() -> Scene:
    return await Scene.made()


async def test_a_lasting_outage_fails_the_task_and_says_what_was_sent(scene: Scene) -> None:
    async with scene.writer() as writer:
        await writer.offer(rows(100))
        await clock.sleep(1)
        scene.pair.primary.inject(Fault(FaultKind.DOWN))
        await writer.offer(rows(100, first=100))
        with pytest.raises(WriteFailedError) as caught:
            await writer.finish()
    text = str(caught.value)
    assert "partition 3" in text
    assert "sent 100 rows" in text
    assert "'orders'" in text
    assert scene.report.sent == 100
    assert scene.report.in_doubt > 0


async def test_with_both_namespaces_down_the_task_fails_and_counts_nothing_as_sent(scene: Scene) -> None:
    async with scene.writer(pairing=PAIRED) as writer:
        scene.pair.primary.inject(Fault(FaultKind.DOWN))
        scene.pair.secondary.inject(Fault(FaultKind.DOWN))
        await writer.offer(rows(100))
        with pytest.raises(WriteFailedError):
            await writer.finish()
    assert (scene.report.sent, scene.report.in_doubt) == (0, 100)


async def test_rows_stay_in_doubt_after_a_later_rejection(scene: Scene) -> None:
    scene.pair.primary.inject(Fault(FaultKind.LOSE_ACKNOWLEDGEMENT, operations=[Operation.SEND]))
    async with scene.writer(maxRetries="1", retryBackoff="30 s", sendTimeout="20 s") as writer:
        await writer.offer(rows(10))
        await clock.sleep(25)
        scene.pair.primary.heal()
        scene.pair.primary.inject(Fault(FaultKind.BUSY))
        with pytest.raises(WriteFailedError) as caught:
            await writer.finish()
    scene.pair.primary.heal()
    assert "ServerBusy" in str(caught.value)
    assert "may have been sent" in str(caught.value)
    assert scene.report.in_doubt == 10
    assert set(await scene.arrived()) == set(bodies(10))


@pytest.mark.parametrize("count", [1, 2, 3, 5])
@pytest.mark.parametrize("on_row_error", ["fail", "skip", "deadletter"])
async def test_every_row_of_a_transfer_in_doubt_stays_so_when_its_repetition_is_rejected(
    scene: Scene, tmp_path: Path, count: int, on_row_error: str
) -> None:
    scene.pair.primary.inject(Fault(FaultKind.LOSE_ACKNOWLEDGEMENT, operations=[Operation.SEND]))
    records: dict[str, Any] = {"badRecordsPath": str(tmp_path)} if on_row_error == "deadletter" else {}
    async with scene.writer(
        directory=tmp_path, onRowError=on_row_error, retryBackoff="30 s", sendTimeout="20 s", **records
    ) as writer:
        await writer.offer(rows(count))
        await clock.sleep(25)
        scene.pair.primary.heal()
        scene.pair.primary.inject(Fault(FaultKind.ERROR, error=InvalidOperationError))
        with pytest.raises(WriteFailedError) if on_row_error == "fail" else nullcontext():
            await writer.finish()
    assert scene.report.in_doubt == count
    assert scene.report.row_errors == (0 if on_row_error == "fail" else count)
    if records:
        assert all(line["in_doubt"] for line in written(scene))


async def test_a_bad_record_says_that_its_row_is_in_doubt(scene: Scene, tmp_path: Path) -> None:
    scene.pair.primary.inject(Fault(FaultKind.LOSE_ACKNOWLEDGEMENT, operations=[Operation.SEND]))
    async with scene.writer(
        directory=tmp_path, onSendError="badRecords", badRecordsPath=str(tmp_path), maxRetries="0"
    ) as writer:
        await writer.offer(rows(10))
        await writer.finish()
    assert (scene.report.row_errors, scene.report.in_doubt) == (10, 10)
    assert all(line["in_doubt"] for line in written(scene))


@pytest.mark.parametrize("first", ["lost", CUT, "busy", "invalid"])
async def test_a_row_without_doubt_was_not_sent_whatever_its_attempts_met(first: str, tmp_path: Path) -> None:
    for number, (then, last) in enumerate(product([*FAULTS, FINE], repeat=2)):
        scene, folder = await Scene.made(), tmp_path / f"{number}"
        folder.mkdir()
        async with scene.writer(
            directory=folder, onSendError="badRecords", onRowError="skip", badRecordsPath=str(folder), maxRetries="1"
        ) as writer:
            script = Script(scene.pair.primary, Operation.SEND, [first, then, last])
            script.is_on = True
            await writer.offer(rows(3))
            await writer.finish()
            script.is_on = False
        scene.pair.primary.heal()
        lines = written(scene) if scene.report.row_errors else []
        doubtful = {line["row"] for line in lines if line.get("in_doubt")}
        refused = {line["row"] for line in lines} - doubtful
        arrived = {int(body) for body in await scene.arrived()}
        assert not refused & arrived, script.met
        assert scene.report.in_doubt == len(doubtful), script.met
        assert scene.report.sent + scene.report.row_errors == 3
        assert arrived | doubtful | refused == {0, 1, 2}


async def test_a_wrong_name_fails_at_once(scene: Scene) -> None:
    async with scene.writer(entity="ordres") as writer:
        began_at = clock.monotonic()
        await writer.offer(rows(10, destination=Destination("ordres")))
        with pytest.raises(WriteFailedError) as caught:
            await writer.finish()
        assert clock.monotonic() - began_at < 1
    assert "ordres" in str(caught.value)


async def test_one_bad_row_in_a_transfer_is_found(scene: Scene) -> None:
    many = rows(321) + rows(1, first=321, size=300_000, message_id="large") + rows(178, first=322)
    async with scene.writer() as writer:
        await writer.offer(many)
        with pytest.raises(WriteFailedError) as caught:
            await writer.finish()
    assert "row 321" in str(caught.value)
    assert "'large'" in str(caught.value)
    assert "   " not in str(caught.value)


async def test_rows_that_cannot_be_sent_are_counted_and_written_to_bad_records(scene: Scene, tmp_path: Path) -> None:
    await make_queue(scene.pair, "sessions", requires_session=True)
    there = Destination("sessions")
    mixed = rows(100, destination=there, session_id=lambda position: None if position % 10 == 3 else "s")
    async with scene.writer(
        entity="sessions", directory=tmp_path / "bad", onRowError="deadletter", badRecordsPath=str(tmp_path)
    ) as writer:
        writer.refuse(BadRow(1000, "the body is null", {"body": None}))
        await writer.offer(mixed)
        await writer.finish()
    assert (scene.report.sent, scene.report.row_errors, scene.report.in_doubt) == (90, 11, 0)
    lines = written(scene)
    assert not any("in_doubt" in line for line in lines)
    assert sorted(line["row"] for line in lines) == [*range(3, 100, 10), 1000]
    assert all(line["reason"] for line in lines)
    assert {line["record"].get("body") for line in lines} >= {"3", "93"}


async def test_too_many_bad_rows_fail_the_task(scene: Scene) -> None:
    async with scene.writer(onRowError="skip", maxRowErrors="2") as writer:
        writer.refuse(BadRow(0, "null", {}))
        writer.refuse(BadRow(1, "null", {}))
        with pytest.raises(WriteFailedError):
            writer.refuse(BadRow(2, "null", {}))
        await writer.abandon()


async def test_rows_that_failed_all_retries_are_written_to_bad_records_if_configured(
    scene: Scene, tmp_path: Path
) -> None:
    scene.pair.primary.inject(Fault(FaultKind.DOWN))
    async with scene.writer(
        directory=tmp_path, onSendError="badRecords", badRecordsPath=str(tmp_path), maxRetries="0"
    ) as writer:
        await writer.offer(rows(50))
        await writer.finish()
    assert (scene.report.sent, scene.report.row_errors) == (0, 50)
    assert len(written(scene)) == 50


async def test_a_wrong_name_is_never_a_bad_record(scene: Scene, tmp_path: Path) -> None:
    async with scene.writer(
        entity="ordres", directory=tmp_path, onSendError="badRecords", badRecordsPath=str(tmp_path)
    ) as writer:
        await writer.offer(rows(5, destination=Destination("ordres")))
        with pytest.raises(WriteFailedError):
            await writer.finish()


async def test_a_row_that_names_a_missing_queue_is_a_row_error(scene: Scene) -> None:
    async with scene.writer(entity=None, onRowError="skip") as writer:
        await writer.offer(rows(5) + rows(2, first=5, destination=Destination("nowhere")))
        await writer.finish()
    assert (scene.report.sent, scene.report.row_errors) == (5, 2)
