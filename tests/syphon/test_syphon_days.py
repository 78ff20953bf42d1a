"""What a syphon keeps, and how much it asks for, when it runs for days."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest

from sbclient import clock
from sbclient.amqp import EncodedMessage
from sbclient.broker.faults import Operation
from sbclient.client.client import ServiceBusClient
from sbclient.errors import InvalidOperationError, MessagingEntityDisabledError, ServiceBusConnectionError
from sbclient.message import AmqpMessageBodyType, ServiceBusMessage
from sbclient.options import PairedNamespaceOptions
from sbclient.syphon import destination, destination_table
from sbclient.syphon.syphon import Syphon
from sbclient.testing import Fault, FaultKind, MemoryPair
from tests.benchmarks.counted import CountedTransport
from tests.client.scene import BACKLOG, QUEUE, dead_letters, make_queue, options, taken, texts

pytestmark = pytest.mark.slow  # simulates days

HOUR_S = 3600.0
DAY_S = 24 * HOUR_S
FORGOTTEN_S = 601.0
ONE = options(backlog_queue_count=1)
ORDERED = options(backlog_queue_count=1, ordering="session")
MARK = b"a body to look for"
"""In every message here; what bears it is looked for among all objects."""


class Running:
    """A syphon that runs, and what it asks for.

    Attributes:
        syphon: for a look inside.
        primary, secondary: its connections.
    """

    def __init__(self, pair: MemoryPair, chosen: PairedNamespaceOptions) -> None:
        self._pair = pair
        self.primary, self.secondary = CountedTransport(pair.primary), CountedTransport(pair.secondary)
        self.client = ServiceBusClient(
            transport=self.primary, secondary_transport=self.secondary, options=chosen, random=pair.random
        )
        self.syphon: Syphon

    @property
    def asked(self) -> int:
        """Requests so far."""
        return self.primary.asked.total() + self.secondary.asked.total()

    async def asked_in(self, span_s: float) -> int:
        """Requests of a span from now on."""
        before = self.asked
        await clock.sleep(span_s)
        return self.asked - before

    @property
    def destinations(self) -> list[str]:
        """The paths that the plain part knows."""
        return [one.path for one in self.syphon._destinations._known.values()]


@asynccontextmanager
async def running(pair: MemoryPair, chosen: PairedNamespaceOptions = ONE) -> AsyncIterator[Running]:
    run = Running(pair, chosen)
    async with run.client:
        run.syphon = Syphon(run.client.pair)
        task = asyncio.ensure_future(run.syphon.run())
        try:
            yield run
        finally:
            task.cancel()
            await asyncio.wait([task])
        assert task.cancelled()


async def divert(pair: MemoryPair, chosen: PairedNamespaceOptions, *paths: str, **attributes: Any) -> None:
    """A message for each path, from a client of its own."""
    async with pair.client(chosen) as client:
        for path in paths:
            client.pair.force_failover(path)
            async with client.get_queue_sender(path) as sender:
                await sender.send_messages(ServiceBusMessage(MARK, **attributes))


# -- destinations are forgotten ----------------------------------------------------------------------------------------


async def test_an_entity_for_which_nothing_waits_is_forgotten_with_its_link_and_its_task(pair: MemoryPair) -> None:
    names = [f"queue{number}" for number in range(50)]
    for name in names:
        await make_queue(pair, name)
    async with running(pair) as run:
        await clock.sleep(1.0)
        tasks = len(asyncio.all_tasks())
        await divert(pair, ONE, *names)
        await clock.sleep(1.0)
        assert (run.destinations, run.primary.senders) == (names, 50)
        await clock.sleep(FORGOTTEN_S)
        assert (run.destinations, run.primary.senders, len(asyncio.all_tasks())) == ([], 0, tasks)
        assert run.syphon.report().drained == 50


async def test_an_entity_that_is_needed_now_and_then_is_kept(pair: MemoryPair) -> None:
    async with running(pair) as run:
        for _ in range(20):
            await divert(pair, ONE, QUEUE)
            await clock.sleep(590.0)
            assert run.destinations == [QUEUE]
    assert len(await taken(pair)) == 20


@pytest.mark.parametrize("early_s", [0.002, 0.0, -0.002])
async def test_message_that_arrives_while_its_entity_is_evicted_is_drained(pair: MemoryPair, early_s: float) -> None:
    async with running(pair):
        for _ in range(5):
            await divert(pair, ONE, QUEUE)
            await clock.sleep(600.0 - early_s)
        await clock.sleep(1.0)
        assert len(await taken(pair)) == 5


async def test_rejecting_entity_is_kept_with_its_back_off_while_messages_wait(pair: MemoryPair) -> None:
    pair.primary.inject(Fault(FaultKind.ERROR, error=MessagingEntityDisabledError))
    async with running(pair) as run:
        await divert(pair, ONE, QUEUE)
        await clock.sleep(HOUR_S)
        (kept,) = run.syphon._destinations._known.values()
        before = run.primary.asked[Operation.SEND]
        await clock.sleep(HOUR_S)
        assert [*run.syphon._destinations._known.values()] == [kept]
        assert kept.refusal is not None
        assert 50 <= run.primary.asked[Operation.SEND] - before <= 70
        pair.primary.heal()
        await clock.sleep(70.0)
        assert len(await taken(pair)) == 1


async def test_missing_entity_is_evicted_after_its_messages_are_given_up(pair: MemoryPair) -> None:
    async with running(pair) as run:
        idle = await run.asked_in(DAY_S)
        await divert(pair, ONE, "missing")
        await clock.sleep(DAY_S - 60.0)
        assert run.destinations == ["missing"]
        await clock.sleep(130.0)
        assert run.destinations == ["missing"]
        assert [one.dead_letter_reason for one in await dead_letters(pair, BACKLOG[:1])] == ["DestinationNotFound"]
        await clock.sleep(FORGOTTEN_S + 60.0)
        assert (run.destinations, run.syphon.status().refusing) == ([], {})
        assert await run.asked_in(DAY_S) <= idle


async def test_requests_of_an_idle_syphon_are_the_documented_ones(pair: MemoryPair) -> None:
    async with running(pair, options()) as run:
        await clock.sleep(DAY_S)
        run.secondary.asked.clear()
        run.primary.asked.clear()
        await clock.sleep(DAY_S)
        assert run.primary.asked == {}
        assert run.secondary.asked == {Operation.RECEIVE: 960, Operation.PEEK: 900}


async def test_an_outage_each_day_does_not_keep_the_messages_of_a_missing_entity_for_ever(pair: MemoryPair) -> None:
    async with running(pair):
        await divert(pair, ONE, "missing")
        await clock.sleep(12 * HOUR_S)
        pair.primary.inject(Fault(FaultKind.ERROR, error=ServiceBusConnectionError, until_at=clock.now() + 2 * HOUR_S))
        await clock.sleep(13.9 * HOUR_S)  # 24 h have passed, but not 24 h in which it is known to be missing
        assert await dead_letters(pair, BACKLOG[:1]) == []
        await clock.sleep(0.3 * HOUR_S)
        assert len(await dead_letters(pair, BACKLOG[:1])) == 1


async def test_evicted_entity_stays_in_the_status(pair: MemoryPair) -> None:
    await make_queue(pair, "other")
    async with running(pair) as run:
        fault = pair.primary.inject(Fault(FaultKind.ERROR, entity_path="other", error=MessagingEntityDisabledError))
        await divert(pair, ONE, "other")
        await clock.sleep(10.0)
        assert run.syphon.status().is_stalled
        await divert(pair, ONE, QUEUE)
        await clock.sleep(HOUR_S)
        status = run.syphon.status()
        assert (run.destinations, list(status.refusing), status.is_stalled) == (["other"], ["other"], False)
        assert status.accepted is not None
        assert status.accepted[0] == QUEUE
        pair.primary.heal(fault)
        await clock.sleep(HOUR_S)
        pair.primary.inject(Fault(FaultKind.DOWN))
        await divert(pair, ONE, "other")
        await clock.sleep(10.0)
        assert run.syphon.status().is_stalled  # what accepted something did so before


async def test_entity_is_not_evicted_while_its_message_is_being_deferred(
    pair: MemoryPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(destination_table, "DESTINATIONS_KEPT", 1)
    await make_queue(pair, "other")
    chosen = options(backlog_queue_count=2, missing_entity_grace=10)
    async with running(pair, chosen) as run:
        await divert(pair, ONE, "missing")
        await clock.sleep(30.0)
        assert run.syphon.report().dead_lettered == {"DestinationNotFound": 1}
        pair.secondary.inject(Fault(FaultKind.SLOW, latency_s=5.0, operations=[Operation.SETTLE]))
        await divert(pair, ONE, "missing")
        async with pair.unpaired_client(secondary=True) as client, client.get_queue_sender(BACKLOG[1]) as sender:
            await sender.send_messages(ServiceBusMessage(MARK, application_properties={"x-ms-path": "other"}))
        await clock.sleep(1.0)
        assert run.destinations == ["missing"]
        pair.secondary.heal()
        await make_queue(pair, "missing")
        await clock.sleep(1800.0)
        assert (len(await taken(pair, "missing")), len(await taken(pair, "other"))) == (1, 1)


async def test_more_messages_of_a_missing_entity_than_are_known_are_given_up_after_one_grace(
    pair: MemoryPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(destination, "PARKED_KNOWN", 3)
    async with running(pair) as run:
        await divert(pair, ONE, *["missing"] * 20)
        await clock.sleep(DAY_S - HOUR_S)
        assert run.syphon.report().dead_lettered == {}
        await clock.sleep(2 * HOUR_S)
        assert run.syphon.report().dead_lettered == {"DestinationNotFound": 20}


# -- no message is kept alive ------------------------------------------------------------------------------------------


@contextmanager
def only_counted_references() -> Iterator[None]:
    """Without the collector of cycles, which may come late in a process that does little."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def alive() -> list[Any]:
    """Messages of these tests that something refers to."""
    found = [one for one in gc.get_objects() if isinstance(one, ServiceBusMessage | EncodedMessage)]
    return [one for one in found if one.body_type is AmqpMessageBodyType.DATA and bytes(one) == MARK]


@pytest.mark.parametrize("chosen", [ONE, ORDERED], ids=["plain", "sessions"])
@pytest.mark.parametrize(
    "fault",
    [
        {"kind": FaultKind.SLOW, "latency_s": 0.0},
        {"kind": FaultKind.ERROR, "error": MessagingEntityDisabledError, "count": 3},
        {"kind": FaultKind.BUSY, "operations": [Operation.SEND], "count": 2},
        {"kind": FaultKind.SLOW, "latency_s": 15.0, "operations": [Operation.SEND], "count": 4},
    ],
    ids=["well", "refusing", "busy", "slow"],
)
async def test_idle_workers_retain_no_message(
    pair: MemoryPair, chosen: PairedNamespaceOptions, fault: dict[str, Any]
) -> None:
    session_id = "one" if chosen is ORDERED else None
    async with running(pair, chosen) as run:
        await clock.sleep(1.0)
        with only_counted_references():
            pair.primary.inject(Fault(**fault))
            for _ in range(5):
                await divert(pair, chosen, QUEUE, session_id=session_id)
            await clock.sleep(120.0)
            assert run.syphon.report().drained == 5
            assert len(await taken(pair)) == 5
            assert alive() == []


async def test_deferred_message_is_not_retained(pair: MemoryPair) -> None:
    pair.primary.inject(Fault(FaultKind.ERROR, error=MessagingEntityDisabledError))
    async with running(pair) as run:
        await clock.sleep(1.0)
        with only_counted_references():
            await divert(pair, ONE, QUEUE, QUEUE)
            await clock.sleep(90.0)
            assert run.syphon.report().parked == 2
            assert [type(one) for one in alive()] == [EncodedMessage] * 2  # those that the broker keeps


# -- what a refusing entity costs --------------------------------------------------------------------------------------


async def test_a_session_whose_entity_refuses_is_tried_once_a_minute_and_costs_little_else(pair: MemoryPair) -> None:
    pair.primary.inject(Fault(FaultKind.ERROR, error=MessagingEntityDisabledError))
    async with running(pair, ORDERED) as run:
        await divert(pair, ORDERED, QUEUE, session_id="one")
        await clock.sleep(HOUR_S)
        tries = run.primary.asked[Operation.SEND]
        assert await run.asked_in(HOUR_S) <= 60 * 6
        assert 58 <= run.primary.asked[Operation.SEND] - tries <= 62


async def test_many_sessions_of_a_rejecting_entity_cost_as_much_as_one(pair: MemoryPair) -> None:
    pair.primary.inject(Fault(FaultKind.ERROR, error=MessagingEntityDisabledError))
    async with running(pair, ORDERED) as run:
        for number in range(100):
            await divert(pair, ORDERED, QUEUE, session_id=str(number))
        await clock.sleep(HOUR_S)
        assert await run.asked_in(HOUR_S) <= 60 * 6
        pair.primary.heal()
        await clock.sleep(120.0)
        assert len(await taken(pair)) == 100


async def test_a_session_behind_many_whose_entity_refuses_is_drained_within_a_minute(pair: MemoryPair) -> None:
    await make_queue(pair, "other")
    pair.primary.inject(Fault(FaultKind.ERROR, entity_path=QUEUE, error=MessagingEntityDisabledError))
    async with running(pair, ORDERED) as run:
        for number in range(300):
            await divert(pair, ORDERED, QUEUE, session_id=str(number))
        await clock.sleep(2 * HOUR_S)
        for number in range(10):
            await divert(pair, ORDERED, "other", session_id=str(number))
        await clock.sleep(62.0)
        assert run.syphon.report().drained == 10
        assert len(await taken(pair, "other")) == 10


async def test_where_sessions_cannot_be_listed_others_still_are_drained_and_little_is_asked(
    pair: MemoryPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refused(self: CountedTransport, *args: Any, **kwargs: Any) -> Any:
        self.asked[Operation.SESSION] += 1
        raise InvalidOperationError("sessions are not listed here")

    monkeypatch.setattr(CountedTransport, "list_sessions", refused)
    await make_queue(pair, "other")
    pair.primary.inject(Fault(FaultKind.ERROR, entity_path=QUEUE, error=MessagingEntityDisabledError))
    async with running(pair, ORDERED) as run:
        await divert(pair, ORDERED, QUEUE, session_id="one")
        await clock.sleep(HOUR_S)
        await divert(pair, ORDERED, "other", session_id="one")
        assert await run.asked_in(HOUR_S) <= 60 * 12
        assert run.syphon.report().drained == 1


async def test_while_everything_refuses_a_queue_is_looked_through_once_a_minute(pair: MemoryPair) -> None:
    names = [f"queue{number}" for number in range(40)]
    async with running(pair) as run:
        await divert(pair, ONE, *names)
        await clock.sleep(HOUR_S)
        peeks = run.secondary.asked[Operation.PEEK]
        await clock.sleep(HOUR_S)
        assert run.secondary.asked[Operation.PEEK] - peeks <= 60 * 2 + 4 * 2  # two pages, and each long poll


async def test_parked_messages_that_are_not_remembered_are_scanned_for_ever_more_rarely(
    pair: MemoryPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(destination, "PARKED_KNOWN", 3)
    await make_queue(pair, "other")
    pair.primary.inject(Fault(FaultKind.ERROR, entity_path=QUEUE, error=MessagingEntityDisabledError))
    async with running(pair) as run:
        await divert(pair, ONE, *[QUEUE] * 20)
        await clock.sleep(HOUR_S)
        await divert(pair, ONE, "other")  # so that not everything refuses
        await clock.sleep(HOUR_S / 2)
        peeks = run.secondary.asked[Operation.PEEK]
        await clock.sleep(4 * HOUR_S)
        assert run.secondary.asked[Operation.PEEK] - peeks <= 4 * 12 * 2 + 4
        pair.primary.heal()
        await clock.sleep(20 * 61.0)
        assert texts(await taken(pair)) == [MARK.decode()] * 20
