from __future__ import annotations

import asyncio
import itertools
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest

from sbclient import clock
from sbclient.broker.faults import Operation
from sbclient.errors import MessageSizeExceededError
from sbclient.testing import Fault, FaultKind
from sbclient_spark.options import Destination
from sbclient_spark.write.encoded_rows import EncodedRows
from sbclient_spark.write.partition_writer import PartitionWriter
from sbclient_spark.write.reports import TaskReport
from sbclient_spark.write.row_errors import BadRecords, WriteFailedError
from tests.client.scene import make_queue
from tests.spark.writing import PAIRED, Scene, bodies, by_session, rows, written


@pytest.fixture
async def scene() -> Scene:
    return await Scene.made()


# -- sending ------------------------------------------------------------------------------------------------------


async def test_every_row_is_acknowledged_when_finish_returns(scene: Scene) -> None:
    async with scene.writer() as writer:
        for start in range(0, 3000, 1000):
            await writer.offer(rows(1000, first=start))
        await writer.finish()
        assert (scene.report.sent, scene.report.row_errors) == (3000, 0)
        assert sorted(await scene.arrived(), key=int) == bodies(3000)
    assert scene.report.batches < 40
    assert scene.report.bytes > 3000 * 10


async def test_a_task_without_rows_sends_no_transfer(scene: Scene) -> None:
    async with scene.writer() as writer:
        await writer.offer([])
        await writer.finish()
    assert (scene.report.sent, scene.report.batches) == (0, 0)


@pytest.mark.parametrize("mixes_keys", [True, False])
async def test_rows_of_one_session_arrive_in_order(scene: Scene, mixes_keys: bool) -> None:
    await make_queue(scene.pair, "sessions", requires_session=True)
    there = Destination("sessions")
    async with scene.writer(mixes_keys=mixes_keys, maxBatchMessages="7", entity="sessions") as writer:
        for start in range(0, 600, 100):
            await writer.offer(
                rows(100, first=start, destination=there, session_id=lambda position: f"s{position % 13}")
            )
        await writer.finish()
    found = by_session(await scene.messages("sessions"))
    assert len(found) == 13
    assert all(sequence == sorted(sequence) for sequence in found.values())
    assert sum(map(len, found.values())) == 600


async def test_a_transfer_to_a_partitioned_queue_has_one_key(scene: Scene) -> None:
    await make_queue(scene.pair, "parts", enable_partitioning=True)
    there = Destination("parts")
    async with scene.writer(mixes_keys=False, entity="parts") as writer:
        await writer.offer(rows(200, destination=there, partition_key=lambda position: f"k{position % 5}"))
        await writer.offer(rows(50, first=200, destination=there))
        await writer.finish()
    assert (scene.report.sent, scene.report.row_errors) == (250, 0)
    assert scene.report.batches <= 5 + 4


async def test_rows_are_sent_singly_if_the_entity_accepts_no_batches(scene: Scene) -> None:
    await make_queue(scene.pair, "parts", enable_partitioning=True, requires_duplicate_detection=True)
    async with scene.writer(mixes_keys=False, entity="parts") as writer:
        await writer.offer(rows(100, destination=Destination("parts")))
        await writer.finish()
    assert (scene.report.sent, scene.report.row_errors, scene.report.batches) == (100, 0, 100)
    assert len(await scene.arrived("parts")) == 100


async def test_rows_are_sent_to_the_queue_that_they_name(scene: Scene) -> None:
    await make_queue(scene.pair, "other")
    async with scene.writer(entity=None) as writer:
        await writer.offer(rows(5) + rows(3, first=5, destination=Destination("other")))
        await writer.finish()
    assert (len(await scene.arrived()), len(await scene.arrived("other"))) == (5, 3)


async def test_transfers_have_the_configured_size(scene: Scene) -> None:
    async with scene.writer(maxBatchMessages="10", maxInFlightBatches="1") as writer:
        await writer.offer(rows(100))
        await writer.finish()
    assert scene.report.batches == 10
    scene.report = TaskReport()
    async with scene.writer(maxBatchBytes="1000", maxInFlightBatches="1") as writer:
        await writer.offer(rows(100))
        await writer.finish()
    assert scene.report.batches >= 5
    assert scene.report.bytes / scene.report.batches < 1000


async def test_a_transfer_that_is_not_full_waits_for_more(scene: Scene) -> None:
    async with scene.writer(lingerMs="500", maxInFlightBatches="1") as writer:
        for position in range(5):
            await writer.offer(rows(1, first=position))
            await clock.sleep(0.05)
        await writer.finish()
    assert scene.report.batches == 1


async def test_lanes_send_concurrently(scene: Scene) -> None:
    scene.pair.primary.inject(Fault(FaultKind.SLOW, latency_s=1.0, operations=[Operation.SEND]))
    async with scene.writer(maxInFlightBatches="4", maxBatchMessages="100") as writer:
        began_at = clock.monotonic()
        await writer.offer(rows(400))
        await writer.finish()
        assert clock.monotonic() - began_at < 1.9
    assert scene.report.p50_ms == pytest.approx(1000, abs=100)


async def test_the_number_of_waiting_rows_is_limited(scene: Scene) -> None:
    scene.pair.primary.inject(Fault(FaultKind.HANG))
    async with scene.writer(maxBatchMessages="10", maxInFlightBatches="2") as writer:
        await writer.offer(rows(40))
        with pytest.raises(TimeoutError):
            async with clock.timeout(5):
                await writer.offer(rows(100, first=40))
        scene.pair.primary.heal()
        await writer.finish()
    assert scene.report.sent == 140


@pytest.mark.parametrize("of_bytes", [False, True])
async def test_the_rate_limits_are_kept(scene: Scene, of_bytes: bool) -> None:
    size_bytes = sum(part.size_bytes for part in rows(500))
    limit: dict[str, Any] = {"maxBytesPerSecond": size_bytes // 10} if of_bytes else {"maxMessagesPerSecond": 50}
    async with scene.writer(**limit) as writer:
        began_at = clock.monotonic()
        await writer.offer(rows(500))
        await writer.finish()
        assert 7.0 < clock.monotonic() - began_at < 10.5
    assert scene.report.paced_ms > 0


async def test_queues_that_share_a_lane_take_turns(scene: Scene) -> None:
    await make_queue(scene.pair, "other")
    scene.pair.primary.inject(Fault(FaultKind.SLOW, latency_s=1.0, operations=[Operation.SEND]))
    async with scene.writer(entity=None, maxBatchMessages="10", maxInFlightBatches="1") as writer:
        await writer.offer(rows(40) + rows(20, destination=Destination("other")))
        await writer.finish()
    ends = [(await scene.messages(name))[-1].enqueued_time_utc for name in ("other", "orders")]
    assert ends[0] < ends[1]


# -- what goes wrong for a while ---------------------------------------------------------------------------------


async def test_a_short_outage_is_retried_until_it_is_over(scene: Scene) -> None:
    scene.pair.primary.inject(Fault(FaultKind.DOWN, until_at=clock.now() + 10))
    async with scene.writer() as writer:
        await writer.offer(rows(100))
        await writer.finish()
    assert sorted(await scene.arrived(), key=int) == bodies(100)
    assert scene.report.retried > 0


async def test_a_busy_service_is_waited_for_inside_the_task(scene: Scene) -> None:
    scene.pair.primary.inject(Fault(FaultKind.BUSY, until_at=clock.now() + 150))
    async with scene.writer() as writer:
        await writer.offer(rows(100))
        await writer.finish()
    assert scene.report.sent == 100
    assert scene.report.throttled > 0


async def test_a_lost_acknowledgement_is_no_second_message_where_duplicates_are_detected(scene: Scene) -> None:
    await make_queue(scene.pair, "unique", requires_duplicate_detection=True)
    scene.pair.primary.inject(Fault(FaultKind.LOSE_ACKNOWLEDGEMENT, count=3, operations=[Operation.SEND]))
    async with scene.writer(entity="unique") as writer:
        await writer.offer(rows(400, destination=Destination("unique")))
        await writer.finish()
    assert sorted(await scene.arrived("unique"), key=int) == bodies(400)


async def test_during_an_outage_rows_wait_for_the_failover_and_go_to_the_backlog(scene: Scene) -> None:
    scene.pair.primary.inject(Fault(FaultKind.DOWN))
    async with scene.writer(pairing=PAIRED, maxRetries="0") as writer:
        await writer.offer(rows(300))
        await writer.finish()
        assert (scene.report.sent, scene.report.diverted, scene.report.failovers) == (300, 300, 1)
    scene.pair.primary.heal()
    assert await scene.arrived() == []


async def test_a_task_counts_only_what_it_has_diverted_itself(scene: Scene) -> None:
    scene.pair.primary.inject(Fault(FaultKind.DOWN))
    async with scene.writer(pairing=PAIRED, maxRetries="0") as writer:
        await writer.offer(rows(300))
        await writer.finish()
        second = TaskReport(partition=4)
        later = PartitionWriter(
            writer._client,
            writer._sender_for,
            writer._options,
            mixes_keys=writer._mixes_keys,
            report=second,
            bad_records=BadRecords(None, "part-4"),
        )
        await later.offer(rows(20, first=300))
        await later.finish()
        assert (second.sent, second.diverted, second.failovers) == (20, 20, 0)


async def test_an_outage_in_the_middle_loses_nothing_and_the_syphon_delivers_the_rest(scene: Scene) -> None:
    await make_queue(scene.pair, "unique", requires_duplicate_detection=True)
    there = Destination("unique")
    async with scene.writer(pairing=PAIRED, entity="unique") as writer:
        await writer.offer(rows(300, destination=there))
        scene.pair.primary.inject(Fault(FaultKind.DOWN))
        await writer.offer(rows(300, first=300, destination=there))
        await clock.sleep(200)
        scene.pair.primary.heal()
        await clock.sleep(200)
        await writer.offer(rows(300, first=600, destination=there))
        await writer.finish()
    assert scene.report.sent == 900
    assert 0 < scene.report.diverted <= 600
    async with scene.pair.client() as client:
        await client.run_syphon(until="empty")
    assert sorted(await scene.arrived("unique"), key=int) == bodies(900)


async def test_session_order_is_kept_through_an_outage(scene: Scene) -> None:
    await make_queue(scene.pair, "sessions", requires_session=True, requires_duplicate_detection=True)
    there = Destination("sessions")

    def some(first: int) -> list[EncodedRows]:
        return rows(60, first=first, destination=there, session_id=lambda position: f"s{position % 6}")

    async with scene.writer(pairing=PAIRED, entity="sessions", ordering="session") as writer:
        await writer.offer(some(0))
        scene.pair.primary.inject(Fault(FaultKind.DOWN))
        await writer.offer(some(60))
        await clock.sleep(200)
        scene.pair.primary.heal()
        await clock.sleep(200)
        await writer.offer(some(120))
        await writer.finish()
    async with scene.pair.client(replace(PAIRED, ordering="session")) as client:
        await client.run_syphon(until="empty")
    found = by_session(await scene.messages("sessions"))
    assert {session: len(sequence) for session, sequence in found.items()} == {f"s{index}": 30 for index in range(6)}
    assert all(sequence == sorted(sequence) for sequence in found.values())


# -- the end of a task ------------------------------------------------------------------------------------------


async def test_a_failed_task_takes_no_more_rows(scene: Scene) -> None:
    async with scene.writer(entity="ordres") as writer:
        await writer.offer(rows(10, destination=Destination("ordres")))
        await clock.sleep(1)
        with pytest.raises(WriteFailedError):
            await writer.offer(rows(10, first=10, destination=Destination("ordres")))
        await writer.abandon()


async def test_a_deadline_ends_the_task(scene: Scene) -> None:
    scene.pair.primary.inject(Fault(FaultKind.BUSY))
    async with scene.writer(taskDeadline="45 s", maxRetries="1000") as writer:
        began_at = clock.monotonic()
        await writer.offer(rows(10))
        with pytest.raises(WriteFailedError):
            await writer.finish()
        assert 30 < clock.monotonic() - began_at < 60
    assert scene.report.in_doubt == 0, "a busy service has taken nothing"


async def test_abandoning_waits_for_transfers_in_flight_and_sends_no_more(scene: Scene) -> None:
    scene.pair.primary.inject(Fault(FaultKind.SLOW, latency_s=5.0, operations=[Operation.SEND]))
    async with scene.writer(maxBatchMessages="10", maxInFlightBatches="1") as writer:
        await writer.offer(rows(15))
        await asyncio.sleep(0)
        await clock.sleep(0.1)
        await writer.abandon()
    assert (scene.report.sent, len(await scene.arrived())) == (10, 10)


FAULTS: Final[tuple[dict[str, Any], ...]] = (
    {"kind": FaultKind.LOSE_ACKNOWLEDGEMENT, "count": 1},
    {"kind": FaultKind.BUSY, "count": 1},
    {"kind": FaultKind.HANG, "count": 1},
    {"kind": FaultKind.SLOW, "count": 2, "latency_s": 3.0},
    {"kind": FaultKind.ERROR, "count": 1, "error": MessageSizeExceededError},
)


@pytest.mark.parametrize("refusals", [1, 2, 3, 4, 20])
async def test_rows_that_may_be_stored_are_in_doubt_however_small_their_transfers_become(
    tmp_path: Path, refusals: int
) -> None:
    scene = await Scene.made()
    sends = [Operation.SEND]
    scene.pair.primary.inject(Fault(FaultKind.LOSE_ACKNOWLEDGEMENT, count=1, operations=sends))
    async with scene.writer(directory=tmp_path, onRowError="skip", sendTimeout="20") as writer:
        await writer.offer(rows(4))
        finishing = asyncio.create_task(writer.finish())
        await clock.sleep(1.0)
        refusal = Fault(FaultKind.ERROR, error=MessageSizeExceededError, count=refusals, operations=sends)
        scene.pair.primary.inject(refusal)
        await finishing
    assert {str(message) for message in await scene.messages()} == set(bodies(4))
    assert scene.report.in_doubt == scene.report.row_errors
    assert scene.report.row_errors or refusals < 3


async def test_after_any_failures_each_row_is_counted_once_and_no_row_waits(tmp_path: Path) -> None:
    for seed in range(8):
        random, scene = Random(seed), await Scene.made()
        for name in ("a", "b"):
            await make_queue(scene.pair, name, requires_session=True)
        offered = 0
        changes: dict[str, Any] = {
            "onRowError": "skip",
            "maxBatchMessages": "6",
            "maxInFlightBatches": "2",
            "sendTimeout": "20",
        }
        async with scene.writer(
            entity=None, mixes_keys=seed % 2 == 0, directory=tmp_path / str(seed), **changes
        ) as writer:
            for _ in range(10):
                name, count = random.choice("ab"), random.randint(1, 20)
                for fault in random.sample(FAULTS, random.randrange(3)):
                    scene.pair.primary.inject(Fault(entity_path=name, operations=[Operation.SEND], **fault))
                there, sessions = Destination(name), random.randint(1, 3)
                await writer.offer(
                    rows(count, first=offered, destination=there, session_id=lambda at: f"s{at % sessions}")  # noqa: B023
                )
                offered += count
            await writer.finish()
        report, state = scene.report, vars(writer)
        assert report.sent + report.row_errors == offered
        assert report.in_doubt <= report.row_errors
        refused = {line["position"] for line in written(scene)} if report.row_errors else set()
        assert len(refused) == report.row_errors
        arrived = {name: by_session(await scene.messages(name)) for name in "ab"}
        firsts = [list(dict.fromkeys(sequence)) for found in arrived.values() for sequence in found.values()]
        assert sorted({*itertools.chain(*firsts)} | refused) == list(range(offered))
        assert all(sequence == sorted(sequence) for sequence in firsts)
        assert (state["_waiting_rows"], state["_waiting_bytes"]) == (0, 0)
        assert [(lane.rows, lane.groups, lane.is_running) for lane in state["_lanes"]] == [(0, {}, False)] * 2
