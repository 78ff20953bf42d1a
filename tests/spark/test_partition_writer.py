from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from sbclient import ServiceBusClient, ServiceBusMessage, ServiceBusReceivedMessage
from sbclient.broker.faults import Operation
from sbclient.client.sender import ServiceBusSender
from sbclient.options import PairedNamespaceOptions
from sbclient.testing import Fault, FaultKind, MemoryPair, VirtualClock, memory_pair
from sbclient_spark.bad_records import BadRecords
from sbclient_spark.encoded_rows import EncodedRows, encoded_row
from sbclient_spark.partition_writer import PartitionWriter, WriteFailedError
from sbclient_spark.reports import TaskReport
from sbclient_spark.rows import BadRow, Destination
from sbclient_spark.write_options import WriteOptions, write_options
from tests.client.scene import make_queue, options, taken

ORDERS = Destination("orders")
PAIRED = options(failover_interval=60)


@dataclass
class Scene:
    """A pair in virtual time, and writers for it."""

    pair: MemoryPair
    clock: VirtualClock
    report: TaskReport = field(default_factory=lambda: TaskReport(partition=3))

    @asynccontextmanager
    async def writer(
        self,
        *,
        pairing: PairedNamespaceOptions | None = None,
        mixes_keys: bool = True,
        directory: Path | None = None,
        entity: str | None = "orders",
        **changes: str,
    ) -> AsyncIterator[PartitionWriter]:
        chosen = self.options(paired=pairing is not None, entity=entity, **changes)
        if pairing is not None and chosen.ordering == "session":
            pairing = replace(pairing, ordering="session")
        client: ServiceBusClient = self.pair.client(pairing) if pairing else self.pair.unpaired_client()
        senders: dict[Destination, ServiceBusSender] = {}

        def sender_for(destination: Destination) -> ServiceBusSender:
            if destination not in senders:
                senders[destination] = client.get_queue_sender(destination.path)
            return senders[destination]

        async def is_mixing(destination: Destination) -> bool:
            return mixes_keys

        bad_records = BadRecords(str(directory) if directory else None, "part-3")
        async with client:
            yield PartitionWriter(
                client,
                sender_for,
                chosen,
                mixes_keys=is_mixing,
                clock=self.clock,
                report=self.report,
                bad_records=bad_records,
            )
        bad_records.close()

    @staticmethod
    def options(*, paired: bool, entity: str | None, **changes: str) -> WriteOptions:
        given = {"connectionString": "memory://contoso", **changes}
        if paired:
            given["secondaryConnectionString"] = "memory://contoso-backup"
        if entity is not None:
            given["queue"] = entity
        return write_options(given)

    async def arrived(self, name: str = "orders", *, secondary: bool = False) -> list[str]:
        return [str(message) for message in await self.messages(name, secondary=secondary)]

    async def messages(self, name: str = "orders", *, secondary: bool = False) -> list[ServiceBusReceivedMessage]:
        return await taken(self.pair, name, secondary=secondary)


@pytest.fixture
async def scene(clock: VirtualClock) -> Scene:
    pair = memory_pair(clock=clock, seed=1)
    await make_queue(pair)
    return Scene(pair, clock)


def rows(
    count: int, *, first: int = 0, destination: Destination = ORDERS, size: int = 0, **attributes: Any
) -> list[EncodedRows]:
    """Rows whose body is their position, padded to a size; an attribute may be a function of the position."""
    found = []
    for position in range(first, first + count):
        chosen = {name: value(position) if callable(value) else value for name, value in attributes.items()}
        body = str(position).ljust(size)
        message = ServiceBusMessage(body, message_id=chosen.pop("message_id", f"id {position}"), **chosen)
        found.append(encoded_row(position, message))
    return [EncodedRows.of(destination, found)]


def bodies(count: int) -> list[str]:
    return [str(position) for position in range(count)]


def by_session(messages: Sequence[ServiceBusReceivedMessage]) -> dict[str | None, list[int]]:
    found: dict[str | None, list[int]] = {}
    for message in messages:
        found.setdefault(message.session_id, []).append(int(str(message)))
    return found


def written(scene: Scene) -> list[dict[str, Any]]:
    """The bad records of a task."""
    assert scene.report.bad_records is not None
    return [json.loads(line) for line in Path(scene.report.bad_records).read_text().splitlines()]


# -- the way out -------------------------------------------------------------------------------------------------


async def test_every_row_is_acknowledged_when_finish_returns(scene: Scene) -> None:
    async with scene.writer() as writer:
        for start in range(0, 3000, 1000):
            await writer.offer(rows(1000, first=start))
        await writer.finish()
        assert (scene.report.sent, scene.report.row_errors) == (3000, 0)
        assert sorted(await scene.arrived(), key=int) == bodies(3000)
    assert scene.report.batches < 40
    assert scene.report.bytes > 3000 * 10


async def test_no_rows_are_no_transfers(scene: Scene) -> None:
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


async def test_a_transfer_to_a_partitioned_queue_holds_one_key(scene: Scene) -> None:
    await make_queue(scene.pair, "parts", enable_partitioning=True)
    there = Destination("parts")
    async with scene.writer(mixes_keys=False, entity="parts") as writer:
        await writer.offer(rows(200, destination=there, partition_key=lambda position: f"k{position % 5}"))
        await writer.offer(rows(50, first=200, destination=there))
        await writer.finish()
    assert (scene.report.sent, scene.report.row_errors) == (250, 0)
    assert scene.report.batches <= 5 + 4


async def test_where_no_batch_is_allowed_rows_go_one_by_one(scene: Scene) -> None:
    await make_queue(scene.pair, "parts", enable_partitioning=True, requires_duplicate_detection=True)
    async with scene.writer(mixes_keys=False, entity="parts") as writer:
        await writer.offer(rows(100, destination=Destination("parts")))
        await writer.finish()
    assert (scene.report.sent, scene.report.row_errors, scene.report.batches) == (100, 0, 100)
    assert len(await scene.arrived("parts")) == 100


async def test_a_row_says_where_it_goes(scene: Scene) -> None:
    await make_queue(scene.pair, "other")
    async with scene.writer(entity=None) as writer:
        await writer.offer(rows(5) + rows(3, first=5, destination=Destination("other")))
        await writer.finish()
    assert (len(await scene.arrived()), len(await scene.arrived("other"))) == (5, 3)


async def test_transfers_are_as_large_as_asked(scene: Scene) -> None:
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
            await scene.clock.sleep(0.05)
        await writer.finish()
    assert scene.report.batches == 1


async def test_lanes_send_side_by_side(scene: Scene) -> None:
    scene.pair.primary.inject(Fault(FaultKind.SLOW, latency_s=1.0, operations=[Operation.SEND]))
    async with scene.writer(maxInFlightBatches="4", maxBatchMessages="100") as writer:
        began_at = scene.clock.monotonic()
        await writer.offer(rows(400))
        await writer.finish()
        assert scene.clock.monotonic() - began_at < 1.9
    assert scene.report.p50_ms == pytest.approx(1000, abs=100)


async def test_what_waits_is_bounded(scene: Scene) -> None:
    scene.pair.primary.inject(Fault(FaultKind.HANG))
    async with scene.writer(maxBatchMessages="10", maxInFlightBatches="2") as writer:
        await writer.offer(rows(40))
        with pytest.raises(TimeoutError):
            async with scene.clock.timeout(5):
                await writer.offer(rows(100, first=40))
        scene.pair.primary.heal()
        await writer.finish()
    assert scene.report.sent == 140


async def test_a_rate_is_kept(scene: Scene) -> None:
    async with scene.writer(maxMessagesPerSecond="50") as writer:
        began_at = scene.clock.monotonic()
        await writer.offer(rows(500))
        await writer.finish()
        assert 8.5 < scene.clock.monotonic() - began_at < 10.5
    assert scene.report.paced_ms > 0


# -- what goes wrong for a while ---------------------------------------------------------------------------------


async def test_a_short_outage_is_waited_out(scene: Scene) -> None:
    scene.pair.primary.inject(Fault(FaultKind.DOWN, until_at=scene.clock.now() + 10))
    async with scene.writer() as writer:
        await writer.offer(rows(100))
        await writer.finish()
    assert sorted(await scene.arrived(), key=int) == bodies(100)
    assert scene.report.retried > 0


async def test_a_busy_service_is_waited_for_inside_the_task(scene: Scene) -> None:
    scene.pair.primary.inject(Fault(FaultKind.BUSY, until_at=scene.clock.now() + 150))
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


async def test_an_outage_in_the_middle_loses_nothing_and_the_syphon_brings_the_rest(scene: Scene) -> None:
    await make_queue(scene.pair, "unique", requires_duplicate_detection=True)
    there = Destination("unique")
    async with scene.writer(pairing=PAIRED, entity="unique") as writer:
        await writer.offer(rows(300, destination=there))
        scene.pair.primary.inject(Fault(FaultKind.DOWN))
        await writer.offer(rows(300, first=300, destination=there))
        await scene.clock.sleep(200)
        scene.pair.primary.heal()
        await scene.clock.sleep(200)
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
        await scene.clock.sleep(200)
        scene.pair.primary.heal()
        await scene.clock.sleep(200)
        await writer.offer(some(120))
        await writer.finish()
    async with scene.pair.client(replace(PAIRED, ordering="session")) as client:
        await client.run_syphon(until="empty")
    found = by_session(await scene.messages("sessions"))
    assert {session: len(sequence) for session, sequence in found.items()} == {f"s{index}": 30 for index in range(6)}
    assert all(sequence == sorted(sequence) for sequence in found.values())


# -- what goes wrong for good ------------------------------------------------------------------------------------


async def test_a_lasting_outage_fails_the_task_and_says_what_was_sent(scene: Scene) -> None:
    async with scene.writer() as writer:
        await writer.offer(rows(100))
        await scene.clock.sleep(1)
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


async def test_with_both_namespaces_down_the_task_fails_and_claims_nothing(scene: Scene) -> None:
    async with scene.writer(pairing=PAIRED) as writer:
        scene.pair.primary.inject(Fault(FaultKind.DOWN))
        scene.pair.secondary.inject(Fault(FaultKind.DOWN))
        await writer.offer(rows(100))
        with pytest.raises(WriteFailedError):
            await writer.finish()
    assert (scene.report.sent, scene.report.in_doubt) == (0, 100)


async def test_a_refusal_does_not_settle_what_an_earlier_try_left_in_doubt(scene: Scene) -> None:
    scene.pair.primary.inject(Fault(FaultKind.LOSE_ACKNOWLEDGEMENT, operations=[Operation.SEND]))
    async with scene.writer(maxRetries="1", retryBackoff="30 s", sendTimeout="20 s") as writer:
        await writer.offer(rows(10))
        await scene.clock.sleep(25)
        scene.pair.primary.heal()
        scene.pair.primary.inject(Fault(FaultKind.BUSY))
        with pytest.raises(WriteFailedError) as caught:
            await writer.finish()
    scene.pair.primary.heal()
    assert "ServerBusy" in str(caught.value)
    assert "may have been sent" in str(caught.value)
    assert scene.report.in_doubt == 10
    assert set(await scene.arrived()) == set(bodies(10))


async def test_the_doubt_about_a_bad_record_is_told_too(scene: Scene, tmp_path: Path) -> None:
    scene.pair.primary.inject(Fault(FaultKind.LOSE_ACKNOWLEDGEMENT, operations=[Operation.SEND]))
    async with scene.writer(
        directory=tmp_path, onSendError="badRecords", badRecordsPath=str(tmp_path), maxRetries="0"
    ) as writer:
        await writer.offer(rows(10))
        await writer.finish()
    assert (scene.report.row_errors, scene.report.in_doubt) == (10, 10)
    assert all(line["in_doubt"] for line in written(scene))


async def test_a_wrong_name_fails_at_once(scene: Scene) -> None:
    async with scene.writer(entity="ordres") as writer:
        began_at = scene.clock.monotonic()
        await writer.offer(rows(10, destination=Destination("ordres")))
        with pytest.raises(WriteFailedError) as caught:
            await writer.finish()
        assert scene.clock.monotonic() - began_at < 1
    assert "ordres" in str(caught.value)


async def test_a_failed_task_takes_no_more_rows(scene: Scene) -> None:
    async with scene.writer(entity="ordres") as writer:
        await writer.offer(rows(10, destination=Destination("ordres")))
        await scene.clock.sleep(1)
        with pytest.raises(WriteFailedError):
            await writer.offer(rows(10, first=10, destination=Destination("ordres")))
        await writer.abandon()


async def test_a_deadline_ends_the_task(scene: Scene) -> None:
    scene.pair.primary.inject(Fault(FaultKind.BUSY))
    async with scene.writer(taskDeadline="45 s", maxRetries="1000") as writer:
        began_at = scene.clock.monotonic()
        await writer.offer(rows(10))
        with pytest.raises(WriteFailedError):
            await writer.finish()
        assert 30 < scene.clock.monotonic() - began_at < 60
    assert scene.report.in_doubt == 0, "a busy service has taken nothing"


async def test_one_bad_row_in_a_transfer_is_found(scene: Scene) -> None:
    many = rows(321) + rows(1, first=321, size=300_000, message_id="large") + rows(178, first=322)
    async with scene.writer() as writer:
        await writer.offer(many)
        with pytest.raises(WriteFailedError) as caught:
            await writer.finish()
    assert "row 321" in str(caught.value)
    assert "'large'" in str(caught.value)
    assert "   " not in str(caught.value)


async def test_rows_that_cannot_be_sent_are_left_out_counted_and_written_down(scene: Scene, tmp_path: Path) -> None:
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


async def test_what_the_service_does_not_take_is_written_down_if_asked(scene: Scene, tmp_path: Path) -> None:
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


async def test_a_row_that_names_a_missing_queue_is_its_own_fault(scene: Scene) -> None:
    async with scene.writer(entity=None, onRowError="skip") as writer:
        await writer.offer(rows(5) + rows(2, first=5, destination=Destination("nowhere")))
        await writer.finish()
    assert (scene.report.sent, scene.report.row_errors) == (5, 2)


async def test_abandoning_waits_for_what_is_under_way_and_sends_nothing_more(scene: Scene) -> None:
    scene.pair.primary.inject(Fault(FaultKind.SLOW, latency_s=5.0, operations=[Operation.SEND]))
    async with scene.writer(maxBatchMessages="10", maxInFlightBatches="1") as writer:
        await writer.offer(rows(15))
        await asyncio.sleep(0)
        await scene.clock.sleep(0.1)
        await writer.abandon()
    assert (scene.report.sent, len(await scene.arrived())) == (10, 10)
