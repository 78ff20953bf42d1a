"""One backlog queue alone: its counts for the metrics while it is scanned, and messages that come or go twice."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from random import Random
from typing import Any

import pytest

from sbclient import clock
from sbclient.client.client import ServiceBusClient
from sbclient.errors import ServiceBusError
from sbclient.message import ServiceBusMessage, ServiceBusReceivedMessage
from sbclient.options import SyphonLimits
from sbclient.rules.sequence_number import partition_of
from sbclient.syphon.budget import SyphonBudget
from sbclient.syphon.destination_table import Destinations
from sbclient.syphon.queue_source import QueueSource
from sbclient.syphon.session_source import SessionSource
from sbclient.syphon.source import InFlight, Source
from sbclient.syphon.status import PollRecord, Progress
from sbclient.telemetry import metrics
from sbclient.testing import Fault, FaultKind, MemoryPair, Operation
from tests.client.scene import BACKLOG, QUEUE, make_queue, options, taken, texts

PAGE_S = 5.03  # no page comes while a message is on its way


class Recorder(Destinations):
    """Remembers every parked message that a scan finds, and sends none."""

    def __init__(self, client: ServiceBusClient, budget: SyphonBudget) -> None:
        super().__init__(client.pair.state, budget.rates, Progress(), [], on_failure=lambda _: None)
        self.parked: list[int] = []

    def remember_parked(self, source: Source, path: str, number: int) -> bool:
        self.parked.append(number)
        return True

    def can_forward(self, message: ServiceBusReceivedMessage) -> bool:
        return True


def source_alone(client: ServiceBusClient, max_messages: int = 1000) -> tuple[QueueSource, Recorder]:
    state, limits = client.pair.state, SyphonLimits(max_messages_in_flight=max_messages, max_bytes_in_flight=10**9)
    budget = SyphonBudget(limits, queues=1, pollers=1, long_poll_s=None)
    recorder = Recorder(client, budget)
    return QueueSource(state, BACKLOG[0], recorder, Progress(), budget, until="empty"), recorder


async def divert(client: ServiceBusClient, *bodies: str) -> None:
    client.pair.force_failover(QUEUE)
    async with client.get_queue_sender(QUEUE) as sender:
        await sender.send_messages([ServiceBusMessage(body) for body in bodies])


async def all_of(source: QueueSource) -> list[InFlight]:
    """Receive all that waits."""
    found: list[InFlight] = []
    while more := await source.receive(max_message_count=100, max_wait_time_s=1.0):
        found += more
    return found


def depths(source: QueueSource) -> dict[object, float]:
    return {
        attributes[metrics.STATE]: value
        for instrument, value, attributes in source.measured()
        if instrument is metrics.BACKLOG_DEPTH
    }


@pytest.mark.parametrize("is_partitioned", [False, True])
async def test_what_comes_and_goes_is_counted_once_whatever_scans_run(
    pair: MemoryPair, monkeypatch: pytest.MonkeyPatch, is_partitioned: bool
) -> None:
    """Messages are received, parked, received again and completed at each moment of scans that overlap or fail."""
    await make_queue(pair, BACKLOG[0], secondary=True, enable_partitioning=is_partitioned)
    async with pair.client(options(backlog_queue_count=1)) as client:
        client.pair.force_failover(QUEUE)
        sender = client.get_queue_sender(QUEUE)
        for number in range(250):
            await sender.send_messages(ServiceBusMessage(str(number)))
        source, _ = source_alone(client)
        random, waiting, parked = Random(1), 250, set[int]()
        await source.scan()
        peek = source._link.peek

        async def slow_peek(**asked: Any) -> list[ServiceBusReceivedMessage]:
            await clock.sleep(PAGE_S)
            return await peek(**asked)

        monkeypatch.setattr(source._link, "peek", slow_peek)
        tasks: list[asyncio.Task[Any]] = [asyncio.ensure_future(source.keep_locks())]
        for _ in range(200):
            if random.random() < 0.4:
                if not waiting:
                    await sender.send_messages(ServiceBusMessage("late"))
                    waiting = 1
                waiting -= len(await source.receive(max_message_count=random.randrange(1, 20), max_wait_time_s=1.0))
            for one in random.sample([*source.in_flight.values()], len(source.in_flight) // 3):
                parked.add(number := one.message.sequence_number)
                assert await one.park() == number
            for number in random.sample([*parked], len(parked) // 4):
                (again,) = await source.receive_parked([number])
                parked.remove(number)
                if random.random() < 0.1:
                    await again.complete()
            if random.random() < 0.15:
                tasks.append(asyncio.ensure_future(source.scan()))
            elif len(tasks) > 1 and random.random() < 0.1:
                random.choice(tasks[1:]).cancel()
            await clock.sleep(random.choice([0.0, 1.0, PAGE_S]))
            assert depths(source) == {"waiting": len(source.in_flight) + waiting, "parked": len(parked)}
        tasks[0].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert depths(source) == {"waiting": len(source.in_flight) + waiting, "parked": len(parked)}
        await source.close()


async def test_a_message_that_comes_again_after_its_lock_has_ended_takes_one_place(pair: MemoryPair) -> None:
    async with pair.client(options(backlog_queue_count=1)) as client:
        await divert(client, *"abc")
        source, _ = source_alone(client, max_messages=5)
        for _ in range(4):
            in_flight = await source.receive(max_message_count=5, max_wait_time_s=1.0)
            assert texts([one.message for one in in_flight]) == ["a", "b", "c"]
            assert source.room == 2
            await clock.sleep(61.0)  # nothing renews the locks
        for one in in_flight:
            await one.complete()
        assert source.room == 5
        await source.close()


async def test_an_earlier_delivery_of_a_copy_that_was_accepted_is_not_sent(pair: MemoryPair) -> None:
    async with pair.client(options(backlog_queue_count=1)) as client:
        await divert(client, "a")
        source, _ = source_alone(client)
        deliveries = []
        for _ in range(2):
            deliveries += await source.receive(max_message_count=1, max_wait_time_s=1.0)
            await clock.sleep(61.0)
        sent, waiting = deliveries
        sent.accept()  # its send was answered only now, when the copy had been delivered again
        assert await source.receive(max_message_count=1, max_wait_time_s=1.0) == []  # it completes the third delivery
        assert waiting.is_lost
        await source.close()


async def test_a_copy_that_another_drain_of_the_client_has_completed_as_accepted_is_not_sent(pair: MemoryPair) -> None:
    async with pair.client(options(backlog_queue_count=1)) as client:
        await divert(client, "a")
        (source, _), (other, _) = source_alone(client), source_alone(client)
        (sent,) = await source.receive(max_message_count=1, max_wait_time_s=1.0)
        await clock.sleep(61.0)
        (waiting,) = await other.receive(max_message_count=1, max_wait_time_s=1.0)
        await clock.sleep(61.0)
        sent.accept()
        assert await source.receive(max_message_count=1, max_wait_time_s=1.0) == []
        assert waiting.is_accepted
        for each in (source, other):
            await each.close()


async def test_parked_messages_are_received_though_some_of_them_are_gone_or_locked(pair: MemoryPair) -> None:
    async with pair.client(options(backlog_queue_count=1)) as client:
        await divert(client, *"abcde")
        (source, _), (other, _) = source_alone(client), source_alone(client)
        in_flight = await source.receive(max_message_count=5, max_wait_time_s=1.0)
        numbers = [one.message.sequence_number for one in in_flight]
        for one in in_flight:
            assert await one.park() is not None
        (gone,) = await other.receive_parked(numbers[1:2])
        await gone.complete()
        await other.receive_parked(numbers[3:4])
        assert texts([one.message for one in await source.receive_parked(numbers)]) == ["a", "c", "e"]
        await clock.sleep(61.0)
        assert texts([one.message for one in await source.receive_parked(numbers)]) == ["a", "c", "d", "e"]
        for link in (source, other):
            await link.close()


@pytest.mark.parametrize("down", ["none", "some", "all"])
async def test_parked_messages_of_partitions_that_do_not_answer_are_found_later(
    pair: MemoryPair, down: str, caplog: pytest.LogCaptureFixture
) -> None:
    await make_queue(pair, BACKLOG[0], secondary=True, enable_partitioning=True)
    async with pair.client(options(backlog_queue_count=1)) as client:
        client.pair.force_failover(QUEUE)
        async with client.get_queue_sender(QUEUE) as sender:
            for number in range(40):
                await sender.send_messages(ServiceBusMessage(str(number), partition_key=str(number)))
        source, _ = source_alone(client)
        numbers = [one.message.sequence_number for one in await all_of(source)]
        for one in list(source.in_flight.values()):
            assert await one.park() is not None
        fragments = sorted({partition_of(number) for number in numbers})
        chosen = {"none": [], "some": fragments[:2], "all": fragments}[down]
        for _ in range(2):  # the second trouble is reported as the first
            before = len(caplog.records)
            for _ in range(3):
                source.scan_needed.clear()
                if chosen:
                    pair.secondary.inject(Fault(FaultKind.DOWN, BACKLOG[0], fragments=chosen))
                if down == "all":
                    with pytest.raises(ServiceBusError):
                        await source.receive_parked(numbers)
                else:
                    found = [one.message.sequence_number for one in await source.receive_parked(numbers)]
                    assert sorted(found) == sorted(one for one in numbers if partition_of(one) not in chosen)
                    assert source.scan_needed.is_set() is bool(chosen)
                pair.secondary.heal()
                for one in list(source.in_flight.values()):
                    assert await one.park() is not None
            names = [vars(record).get("event_name") for record in caplog.records[before:]]
            assert names.count("syphon.parked_not_received") == bool(chosen)
            assert len(await source.receive_parked(numbers)) == 40
            for one in list(source.in_flight.values()):
                assert await one.park() is not None
        await source.close()


@pytest.mark.parametrize(("answer_s", "ahead_s", "is_taken"), [(0, 0, True), (61, 0, False), (0, 600, True)])
async def test_a_parked_message_is_taken_unless_its_lock_ended_before_the_answer(
    pair: MemoryPair, monkeypatch: pytest.MonkeyPatch, answer_s: int, ahead_s: int, is_taken: bool
) -> None:
    """A clock that is ahead proves nothing about a lock."""
    async with pair.client(options(backlog_queue_count=1)) as client:
        await divert(client, "a")
        source, _ = source_alone(client)
        (one,) = await source.receive(max_message_count=1, max_wait_time_s=1.0)
        number = one.message.sequence_number
        assert await one.park() == number
        receive = source._link.receive_deferred

        async def slow(*args: Any, **kwargs: Any) -> list[ServiceBusReceivedMessage]:
            found = await receive(*args, **kwargs)
            for each in found:
                assert each.locked_until_utc is not None
                each.locked_until_utc -= timedelta(seconds=ahead_s)
            await clock.sleep(answer_s)
            return list(found)

        monkeypatch.setattr(source._link, "receive_deferred", slow)
        source.scan_needed.clear()
        assert len(await source.receive_parked([number])) == is_taken
        assert source.scan_needed.is_set() is not is_taken
        await source.close()


async def test_a_source_that_closes_completes_what_the_primary_has_and_releases_the_rest(pair: MemoryPair) -> None:
    async with pair.client(options(backlog_queue_count=1)) as client:
        await divert(client, *"abc")
        source, _ = source_alone(client)
        in_flight = await source.receive(max_message_count=3, max_wait_time_s=1.0)
        in_flight[1].accept()
        await source.close()
        assert (source.in_flight, source.room) == ({}, 1000)
    assert texts(await taken(pair, BACKLOG[0], secondary=True)) == ["a", "c"]  # also for a process that begins now


@pytest.mark.parametrize("place", range(4))
async def test_messages_behind_one_that_cannot_be_dead_lettered_are_not_in_flight(pair: MemoryPair, place: int) -> None:
    """Those of a session keep their order; those of a plain queue go on."""
    async with pair.client(options(ordering="session", backlog_queue_count=1)) as client:
        client.pair.force_failover(QUEUE)
        queue, native = client.pair.state.entity(QUEUE).backlog_session("s")
        async with (
            client.get_queue_sender(QUEUE) as sender,
            pair.unpaired_client(secondary=True) as stranger,
            stranger.get_queue_sender(queue) as other,
        ):
            for number in range(4):
                if number == place:
                    await other.send_messages(ServiceBusMessage("malformed", session_id=native))
                else:
                    await sender.send_messages(ServiceBusMessage(str(number), session_id="s"))
        budget = SyphonBudget(SyphonLimits(), queues=1, pollers=1, long_poll_s=None)
        source = SessionSource(client.pair.state, queue, Recorder(client, budget), Progress(), budget, until="empty")
        for fails in (True, True, False):
            link = client.pair.state.secondary.open_receiver(queue, session=native)
            await link.open(timeout_s=1.0)
            messages = await link.receive(max_message_count=4, max_wait_time_s=1.0)
            if fails:
                pair.secondary.inject(Fault(FaultKind.ERROR, queue, operations=[Operation.SETTLE]))
                with pytest.raises(ServiceBusError):
                    await source.take(link, messages)
                pair.secondary.heal()
                window = source._window
                assert (source.in_flight, window.count, window.size_bytes) == ({}, 0, 0)
                assert not source.has_messages.is_set()
            else:
                assert len(await source.take(link, messages)) == 3
            await link.close()


async def test_an_answer_to_any_poll_ends_an_error_and_the_next_error_begins_anew() -> None:
    record = PollRecord("q")
    with record.polling():  # goes on during all that follows, as the poll of another worker does
        for _ in range(2):
            began_at = clock.monotonic()
            for _ in range(2):
                with pytest.raises(ServiceBusError), record.polling():
                    raise ServiceBusError("away")
                record.failed(ServiceBusError("away"))
                await clock.sleep(5.0)
            error = record.status(in_flight=0).error
            assert error is not None
            assert error.since_at == began_at
            with record.polling():
                pass
            status = record.status(in_flight=0)
            assert (status.error, status.answered_at) == (None, clock.monotonic())
            assert status.polled_at is not None
    assert record.status(in_flight=0).polled_at is None
