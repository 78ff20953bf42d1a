"""Diversions: sealing, the choice of a backlog queue, and queues that fail."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from sbclient import clock
from sbclient.amqp.types import TimeSpan
from sbclient.broker.faults import Operation
from sbclient.client.client import ServiceBusClient
from sbclient.client.sender import ServiceBusSender
from sbclient.errors import (
    BacklogUnavailableError,
    InvalidOperationError,
    MessageSizeExceededError,
    MessagingEntityDisabledError,
    OperationTimeoutError,
    ServiceBusAuthenticationError,
    ServiceBusAuthorizationError,
    ServiceBusConnectionError,
    ServiceBusError,
    ServiceBusServerBusyError,
)
from sbclient.message import ServiceBusMessage
from sbclient.pairing.diversion import reserve_s
from sbclient.rules.failover import FailoverState
from sbclient.testing import Fault, FaultKind, MemoryPair
from sbclient.transport.base import Check, SenderLink
from sbclient.transport.memory.sender import MemorySender
from sbclient.transport.memory.transport import MemoryTransport
from tests.client.scene import AT_ONCE, BACKLOG, QUEUE, SESSION_BACKLOG, diverted, options, taken, texts, waiting


def backlog_down(pair: MemoryPair, *queues: str, kind: FaultKind = FaultKind.DOWN) -> None:
    for queue in queues:
        pair.secondary.inject(Fault(kind, entity_path=queue))


@pytest.mark.parametrize(
    ("timeout_s", "kept_s"),
    [
        (60, 15),
        (30, 7.5),
        (20, 2.5),
        (16, 0.5),
        (15.6, 0.3),
        (15, 3.75),
        (10, 2.5),
        (8, 2),
        (7.9, 1.975),
        (4, 1),
        (1, 0.25),
    ],
)
def test_a_part_of_the_timeout_is_reserved_for_the_diversion(timeout_s: float, kept_s: float) -> None:
    assert reserve_s(timeout_s) == pytest.approx(kept_s)


@pytest.mark.parametrize("is_paired", [True, False])
@pytest.mark.parametrize("timeout_s", [16, 17, 20, 25, 30, 60])
async def test_from_16_s_on_a_send_reaches_another_fragment(
    pair: MemoryPair, timeout_s: float, is_paired: bool
) -> None:
    async with pair.client() if is_paired else pair.unpaired_client() as client:
        await client.administration.create_queue("wide", enable_partitioning=True)
        async with client.get_queue_sender("wide") as sender:
            await sender.send_messages(ServiceBusMessage("opens the link"))
            pair.primary.inject(Fault(FaultKind.HANG, entity_path="wide", fragments=list(range(15))))
            for number in range(10):
                await sender.send_messages(ServiceBusMessage(f"{number}"), timeout=timeout_s)
    assert await diverted(pair) == []


async def test_a_send_of_16_s_that_waits_for_an_earlier_one_reaches_another_fragment(pair: MemoryPair) -> None:
    async with pair.client() as client:
        await client.administration.create_queue("wide", enable_partitioning=True)
        async with client.get_queue_sender("wide") as sender:
            await sender.send_messages(ServiceBusMessage("opens the link"))
            for turn in range(10):
                pair.primary.inject(Fault(FaultKind.SLOW, operations=[Operation.SEND], latency_s=0.1, count=1))
                earlier = asyncio.ensure_future(sender.send_messages(ServiceBusMessage(f"{turn} slow")))
                await clock.sleep(0)
                hang = pair.primary.inject(Fault(FaultKind.HANG, entity_path="wide", fragments=list(range(15))))
                await sender.send_messages(ServiceBusMessage(f"{turn} waits"), timeout=16)
                await earlier
                pair.primary.heal(hang)
    assert await diverted(pair) == []


# -- the rewrite -------------------------------------------------------------------------------------------------------


async def test_sealing_stores_four_properties_and_keeps_all_others(pair: MemoryPair, client: ServiceBusClient) -> None:
    due = datetime.fromtimestamp(clock.now(), UTC) + timedelta(hours=1)
    client.pair.force_failover(QUEUE)
    async with client.get_queue_sender(QUEUE) as sender:
        await sender.send_messages(
            ServiceBusMessage(
                "body",
                message_id="id",
                session_id="s",
                partition_key="s",
                time_to_live=timedelta(hours=3),
                scheduled_enqueue_time_utc=due,
                correlation_id="c",
                content_type="t",
                subject="u",
                to="v",
                reply_to="w",
                reply_to_session_id="x",
                application_properties={"n": 1},
            )
        )
    (sealed,) = await diverted(pair)
    assert sealed.application_properties == {
        "n": 1,
        "x-ms-path": QUEUE,
        "x-ms-sessionid": "s",
        "x-ms-timetolive": TimeSpan(hours=3),
        "x-ms-scheduledenqueuetimeutc": due,
    }
    assert (sealed.session_id, sealed.time_to_live) == (None, None)
    assert sealed.message_id == "id"
    assert sealed.partition_key == "s"
    await client.run_syphon(until="empty")
    await clock.sleep(3600.0)
    (home,) = await taken(pair)
    assert home.application_properties == {"n": 1}
    assert (home.message_id, home.session_id, home.partition_key) == ("id", "s", "s")
    assert (home.correlation_id, home.content_type, home.subject) == ("c", "t", "u")
    assert (home.to, home.reply_to, home.reply_to_session_id) == ("v", "w", "x")


@pytest.mark.deviation("pairing.user-properties")
async def test_application_properties_with_reserved_names_are_restored(
    pair: MemoryPair, client: ServiceBusClient
) -> None:
    mine = {
        "x-ms-path": "mine",
        "x-ms-sessionid": 5,
        "x-ms-timetolive": "forever",
        "x-ms-user-x": "y",
        "x-ms-user-x-ms-path": "z",
    }
    client.pair.force_failover(QUEUE)
    async with client.get_queue_sender(QUEUE) as sender:
        await sender.send_messages(ServiceBusMessage("a", application_properties=mine, session_id="s"))
    await client.run_syphon(until="empty")
    (home,) = await taken(pair)
    assert home.application_properties == mine
    assert home.session_id == "s"


# -- the choice --------------------------------------------------------------------------------------------------------


async def test_a_sender_keeps_its_queue_and_senders_use_all_queues(pair: MemoryPair, client: ServiceBusClient) -> None:
    client.pair.force_failover(QUEUE)
    for number in range(200):
        async with client.get_queue_sender(QUEUE) as sender:
            for _ in range(3):
                await sender.send_messages(ServiceBusMessage(str(number)))
    found = await waiting(pair)
    assert set(found) == set(BACKLOG)
    assert all(10 <= len(set(texts(messages))) <= 40 for messages in found.values())
    for messages in found.values():
        assert set(Counter(texts(messages)).values()) == {3}


async def test_a_failed_queue_is_quarantined_for_every_sender(pair: MemoryPair, client: ServiceBusClient) -> None:
    client.pair.force_failover(QUEUE)
    backlog_down(pair, *BACKLOG[:9])
    async with client.get_queue_sender(QUEUE) as sender:
        for number in range(5):
            await sender.send_messages(ServiceBusMessage(str(number)))
    quarantined = client.pair.status().quarantined
    assert quarantined
    assert set(quarantined) <= set(BACKLOG[:9])
    before = pair.secondary.namespace.operation_count
    async with client.get_queue_sender(QUEUE) as another:
        await another.send_messages(ServiceBusMessage("5"))
    assert pair.secondary.namespace.operation_count - before >= 1
    assert texts((await waiting(pair, BACKLOG[9:]))[BACKLOG[9]]) == list("012345")


@pytest.mark.parametrize("kind", [FaultKind.DOWN, FaultKind.HANG])
async def test_a_failed_queue_costs_one_attempt_and_no_message(pair: MemoryPair, kind: FaultKind) -> None:
    async with pair.client(AT_ONCE) as client:
        client.pair.force_failover(QUEUE)
        for queue in BACKLOG:
            fault = pair.secondary.inject(Fault(kind, entity_path=queue))
            began_at = clock.monotonic()
            async with client.get_queue_sender(QUEUE) as sender:
                await sender.send_messages(ServiceBusMessage("a"))
            assert clock.monotonic() - began_at <= 60.0
            pair.secondary.heal(fault)
    assert len(await diverted(pair)) == 10


async def test_a_failed_queue_is_used_again_after_its_quarantine(pair: MemoryPair, client: ServiceBusClient) -> None:
    client.pair.force_failover(QUEUE)
    async with client.get_queue_sender(QUEUE) as sender:
        await sender.send_messages(ServiceBusMessage("first"))
        (own,) = await waiting(pair)
        fault = pair.secondary.inject(Fault(FaultKind.DOWN, entity_path=own))
        await sender.send_messages(ServiceBusMessage("second"))
        assert client.pair.status().quarantined == (own,)
        pair.secondary.heal(fault)
        await clock.sleep(29.0)
        assert client.pair.status().quarantined == (own,)
        await clock.sleep(2.0)
        assert client.pair.status().quarantined == ()


@pytest.mark.parametrize(
    ("error", "is_quarantined"),
    [
        (MessagingEntityDisabledError, True),
        (ServiceBusConnectionError, True),
        (ServiceBusAuthorizationError, True),
        (ServiceBusAuthenticationError, True),
        (OperationTimeoutError, True),
        (ServiceBusServerBusyError, False),  # once
    ],
)
async def test_every_failure_withdraws_a_queue(
    pair: MemoryPair, client: ServiceBusClient, error: type[ServiceBusError], is_quarantined: bool
) -> None:
    client.pair.force_failover(QUEUE)
    pair.secondary.inject(Fault(FaultKind.ERROR, error=error, operations=[Operation.SEND], count=1))
    async with client.get_queue_sender(QUEUE) as sender:
        await sender.send_messages(ServiceBusMessage("a"))
    assert len(await diverted(pair)) == 1
    assert bool(client.pair.status().quarantined) is is_quarantined


@pytest.mark.parametrize("kind", [FaultKind.DOWN, FaultKind.BUSY])
async def test_one_event_says_that_a_queue_is_withdrawn_and_one_that_it_is_back(
    pair: MemoryPair, kind: FaultKind
) -> None:
    async with pair.client(options(backlog_queue_count=1)) as client:
        client.pair.force_failover(QUEUE)
        client.pair.force_failover("other")
        pair.secondary.inject(Fault(kind, BACKLOG[0]))
        for path in (QUEUE, "other") * 3:
            async with client.get_queue_sender(path) as sender:
                with pytest.raises(BacklogUnavailableError):
                    await sender.send_messages(ServiceBusMessage("a"), timeout=5)
            assert client.pair.status().quarantined == (BACKLOG[0],)
            await clock.sleep(20.0)
        pair.secondary.heal()
        async with client.get_queue_sender(QUEUE) as sender:
            for _ in range(3):
                await sender.send_messages(ServiceBusMessage("b"))
        names = [event.name for event in client.pair.events()]
    assert [name for name in names if name.startswith("backlog.")] == ["backlog.quarantined", "backlog.usable"]


async def test_an_invalid_message_raises_and_quarantines_no_queue(pair: MemoryPair, client: ServiceBusClient) -> None:
    client.pair.force_failover(QUEUE)
    pair.secondary.inject(Fault(FaultKind.ERROR, error=InvalidOperationError, operations=[Operation.SEND]))
    async with client.get_queue_sender(QUEUE) as sender:
        with pytest.raises(InvalidOperationError):
            await sender.send_messages(ServiceBusMessage("a"))
    assert client.pair.status().quarantined == ()


async def test_send_raises_every_cause_when_all_queues_are_down(pair: MemoryPair, client: ServiceBusClient) -> None:
    client.pair.force_failover(QUEUE)
    backlog_down(pair, *BACKLOG)
    async with client.get_queue_sender(QUEUE) as sender:
        with pytest.raises(BacklogUnavailableError) as caught:
            await sender.send_messages(ServiceBusMessage("a"))
        assert sorted(caught.value.causes) == BACKLOG
        assert client.pair.status().quarantined == tuple(BACKLOG)
        pair.secondary.heal()
        await sender.send_messages(ServiceBusMessage("b"))  # the queue that is due soonest is tried
    assert texts(await diverted(pair)) == ["b"]
    assert "backlog.usable" in [event.name for event in client.pair.events()]


async def test_send_ends_within_the_timeout_when_all_queues_hang(pair: MemoryPair, client: ServiceBusClient) -> None:
    client.pair.force_failover(QUEUE)
    pair.secondary.inject(Fault(FaultKind.HANG))
    async with client.get_queue_sender(QUEUE) as sender:
        with pytest.raises(BacklogUnavailableError) as caught:
            await sender.send_messages(ServiceBusMessage("a"), timeout=30.0)
    assert clock.monotonic() == pytest.approx(30.0)
    assert len(caught.value.causes) >= 4


async def test_a_queue_that_is_busy_for_2_s_is_withdrawn_for_every_sender(
    pair: MemoryPair, client: ServiceBusClient
) -> None:
    client.pair.force_failover(QUEUE)
    async with client.get_queue_sender(QUEUE) as sender, client.get_queue_sender(QUEUE) as other:
        await sender.send_messages(ServiceBusMessage("first"))
        (first,) = await waiting(pair)
        pair.secondary.inject(Fault(FaultKind.BUSY, first))
        await sender.send_messages(ServiceBusMessage("a"))
        assert clock.monotonic() == 2.0
        assert client.pair.status().quarantined == (first,)
        for _ in range(20):
            await other.send_messages(ServiceBusMessage("b"))
        assert clock.monotonic() == 2.0
    pair.secondary.heal()
    assert texts((await waiting(pair))[first]) == ["first"]


async def test_a_secondary_that_stays_busy_is_the_cause(pair: MemoryPair, client: ServiceBusClient) -> None:
    client.pair.force_failover(QUEUE)
    pair.secondary.inject(Fault(FaultKind.BUSY, operations=[Operation.SEND]))
    async with client.get_queue_sender(QUEUE) as sender:
        with pytest.raises(BacklogUnavailableError) as caught:
            await sender.send_messages(ServiceBusMessage("a"))
    assert {type(cause) for cause in caught.value.causes.values()} == {ServiceBusServerBusyError}
    assert client.pair.status().quarantined == tuple(BACKLOG)


async def test_a_list_is_diverted_to_one_queue(pair: MemoryPair, client: ServiceBusClient) -> None:
    client.pair.force_failover(QUEUE)
    async with client.get_queue_sender(QUEUE) as sender:
        await sender.send_messages([ServiceBusMessage(str(number), session_id=str(number)) for number in range(50)])
    (messages,) = (await waiting(pair)).values()
    assert len(messages) == 50


async def test_a_lost_acknowledgement_of_the_backlog_is_a_duplicate_with_the_same_id(
    pair: MemoryPair, client: ServiceBusClient
) -> None:
    client.pair.force_failover(QUEUE)
    pair.secondary.inject(Fault(FaultKind.LOSE_ACKNOWLEDGEMENT, operations=[Operation.SEND], count=1))
    async with client.get_queue_sender(QUEUE) as sender:
        await sender.send_messages(ServiceBusMessage("a"))
    left = await diverted(pair)
    assert len(left) == 2
    assert len({message.message_id for message in left}) == 1


# -- ordering="session" ------------------------------------------------------------------------------------------------


async def test_every_client_uses_the_same_queue_for_a_session(pair: MemoryPair) -> None:
    for seed in range(3):
        async with pair.client(options(ordering="session")) as client, client.get_queue_sender(QUEUE) as sender:
            client.pair.force_failover(QUEUE)
            for session in ("a", "b", "c"):
                await sender.send_messages(ServiceBusMessage(f"{session}{seed}", session_id=session))
    async with pair.unpaired_client(secondary=True) as client:
        found: dict[str, set[str]] = {}
        for queue in SESSION_BACKLOG:
            for message in await taken(pair, queue, secondary=True):
                found.setdefault(str(message)[0], set()).add(f"{queue} {message.session_id}")
    assert sorted(found) == ["a", "b", "c"]
    assert all(len(places) == 1 for places in found.values())


async def test_a_session_is_not_diverted_to_another_queue_when_its_own_fails(pair: MemoryPair) -> None:
    async with pair.client(options(ordering="session")) as client, client.get_queue_sender(QUEUE) as sender:
        client.pair.force_failover(QUEUE)
        backlog_down(pair, *SESSION_BACKLOG)
        with pytest.raises(BacklogUnavailableError) as caught:
            await sender.send_messages(ServiceBusMessage("a", session_id="s"))
        assert len(caught.value.causes) == 1
    assert await diverted(pair) == []


async def test_the_only_queue_of_a_session_has_all_the_time_that_is_left(pair: MemoryPair) -> None:
    async with pair.client(options(ordering="session")) as client, client.get_queue_sender(QUEUE) as sender:
        client.pair.force_failover(QUEUE)
        await sender.send_messages(ServiceBusMessage("1", session_id="a"))
        pair.secondary.inject(Fault(FaultKind.SLOW, operations=[Operation.SEND], latency_s=40.0))
        await sender.send_messages(ServiceBusMessage("2", session_id="a"), timeout=50)
        with pytest.raises(BacklogUnavailableError):
            await sender.send_messages(ServiceBusMessage("3", session_id="a"), timeout=39)
    assert clock.monotonic() == 79.0


async def test_messages_without_session_or_with_schedule_use_plain_queues(pair: MemoryPair) -> None:
    due = datetime.fromtimestamp(clock.now() + 60, UTC)
    async with pair.client(options(ordering="session")) as client, client.get_queue_sender(QUEUE) as sender:
        client.pair.force_failover(QUEUE)
        await sender.send_messages(ServiceBusMessage("a"))
        await sender.send_messages(ServiceBusMessage("b", session_id="s", scheduled_enqueue_time_utc=due))
    assert sorted(texts(await diverted(pair))) == ["a", "b"]


@pytest.mark.parametrize("is_failed_over", [False, True])
async def test_a_list_of_several_sessions_is_rejected(pair: MemoryPair, is_failed_over: bool) -> None:
    async with pair.client(options(ordering="session")) as client, client.get_queue_sender(QUEUE) as sender:
        if is_failed_over:
            client.pair.force_failover(QUEUE)
        with pytest.raises(InvalidOperationError):
            await sender.send_messages([ServiceBusMessage("a", session_id="s"), ServiceBusMessage("b", session_id="t")])
        with pytest.raises(InvalidOperationError):
            await sender.send_messages([ServiceBusMessage("a", session_id="s"), ServiceBusMessage("b")])
        await sender.send_messages([ServiceBusMessage("a", session_id="s"), ServiceBusMessage("b", session_id="s")])
        await client.run_syphon(until="empty")
    assert texts(await taken(pair)) == ["a", "b"]


async def test_different_keys_are_diverted_concurrently(pair: MemoryPair, client: ServiceBusClient) -> None:
    client.pair.force_failover(QUEUE)
    pair.secondary.inject(Fault(FaultKind.SLOW, latency_s=1.0, operations=[Operation.SEND]))
    async with client.get_queue_sender(QUEUE) as sender:
        sends = (sender.send_messages(ServiceBusMessage("a", session_id=str(number))) for number in range(50))
        await asyncio.gather(*sends)
    assert clock.monotonic() == 1.0


async def test_quarantined_queues_are_tried_when_all_others_fail(pair: MemoryPair) -> None:
    async with pair.client(options(backlog_queue_count=2)) as client, client.get_queue_sender(QUEUE) as sender:
        client.pair.force_failover(QUEUE)
        await sender.send_messages(ServiceBusMessage("a"))
        first = next(iter(await waiting(pair)))
        pair.secondary.inject(Fault(FaultKind.DOWN, first))
        await sender.send_messages(ServiceBusMessage("b"))
        pair.secondary.heal()
        second = next(queue for queue in BACKLOG[:2] if queue != first)
        pair.secondary.inject(Fault(FaultKind.DOWN, second))
        await sender.send_messages(ServiceBusMessage("c"))
        pair.secondary.heal()
        held = await waiting(pair)
    assert texts(held[first]) == ["a", "c"]
    assert texts(held[second]) == ["b"]


async def test_a_busy_queue_in_quarantine_is_tried_again_after_10_s(pair: MemoryPair) -> None:
    async with pair.client(options(backlog_queue_count=2)) as client, client.get_queue_sender(QUEUE) as sender:
        client.pair.force_failover(QUEUE)
        backlog_down(pair, *BACKLOG[:2])
        with pytest.raises(BacklogUnavailableError):
            await sender.send_messages(ServiceBusMessage("a"))
        assert set(client.pair.status().quarantined) == set(BACKLOG[:2])
        pair.secondary.heal()
        began_at = clock.monotonic()
        pair.secondary.inject(Fault(FaultKind.BUSY, operations=[Operation.SEND], count=2))
        await sender.send_messages(ServiceBusMessage("b"))
        assert clock.monotonic() - began_at == 20.0
        assert texts(await diverted(pair)) == ["b"]


async def test_senders_share_the_link_to_a_backlog_queue_until_it_fails(
    pair: MemoryPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = Counter[str]()
    open_sender = MemoryTransport.open_sender

    def counted(transport: MemoryTransport, path: str, check: Check | None = None) -> SenderLink:
        opened[path] += 1
        return open_sender(transport, path, check)

    async with pair.client(options(backlog_queue_count=1)) as client:
        client.pair.force_failover(QUEUE)
        client.pair.force_failover("other")
        monkeypatch.setattr(MemoryTransport, "open_sender", counted)
        for cycle in (1, 2):
            for path in (QUEUE, "other", QUEUE):
                async with client.get_queue_sender(path) as sender:
                    await sender.send_messages(ServiceBusMessage("x"))
            assert opened[BACKLOG[0]] == cycle
            fault = pair.secondary.inject(Fault(FaultKind.DOWN, BACKLOG[0]))
            async with client.get_queue_sender(QUEUE) as sender:
                with pytest.raises(BacklogUnavailableError):
                    await sender.send_messages(ServiceBusMessage("lost link"), timeout=5)
            pair.secondary.heal(fault)
    assert len(await diverted(pair)) == 6


async def test_a_failed_link_closes_after_its_last_transfer(pair: MemoryPair, monkeypatch: pytest.MonkeyPatch) -> None:
    closed_in_use: list[int] = []
    in_use = Counter[MemorySender]()
    send, close = MemorySender.send, MemorySender.close

    def sending(link: MemorySender, *args: Any, **kwargs: Any) -> asyncio.Future[None]:
        return asyncio.ensure_future(later(link, *args, **kwargs))

    async def later(link: MemorySender, *args: Any, **kwargs: Any) -> None:
        in_use[link] += 1
        try:
            await clock.sleep(in_use[link])  # one after the other
            await send(link, *args, **kwargs)
        finally:
            in_use[link] -= 1

    async def closing(link: MemorySender) -> None:
        closed_in_use.append(in_use[link])
        await close(link)

    monkeypatch.setattr(MemorySender, "send", sending)
    monkeypatch.setattr(MemorySender, "close", closing)
    async with pair.client(options(backlog_queue_count=2)) as client, client.get_queue_sender(QUEUE) as sender:
        client.pair.force_failover(QUEUE)
        await sender.send_messages(ServiceBusMessage("which queue"))
        first = next(iter(await waiting(pair)))
        pair.secondary.inject(Fault(FaultKind.DOWN, first))
        messages = [ServiceBusMessage(f"{number}", partition_key=f"{number}") for number in range(20)]
        await asyncio.gather(*(sender.send_messages(message) for message in messages))
        pair.secondary.heal()
        held = await waiting(pair)
    assert sum(map(len, held.values())) == 21
    assert set(closed_in_use) == {0}


# -- the first attempt on an attached link ---------------------------------------------------------------------------


@pytest.fixture
async def attached(
    client: ServiceBusClient, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[ServiceBusSender, list[str]]]:
    """A sender that has diverted a message, so that its link is attached; and the paths of sends that a task made."""
    client.pair.force_failover(QUEUE)
    by_task: list[str] = []
    send = MemorySender.send

    def counted(link: MemorySender, *args: Any, **kwargs: Any) -> asyncio.Future[None]:
        task = asyncio.current_task()
        if task is not None and task.get_name() == f"send to {QUEUE}":
            by_task.append(link._path)
        return send(link, *args, **kwargs)

    async with client.get_queue_sender(QUEUE) as sender:
        await sender.send_messages(ServiceBusMessage("first"))
        monkeypatch.setattr(MemorySender, "send", counted)
        yield sender, by_task


async def test_a_diverted_send_needs_no_task_once_the_link_is_attached(
    pair: MemoryPair, client: ServiceBusClient, attached: tuple[ServiceBusSender, list[str]]
) -> None:
    sender, by_task = attached
    messages = [ServiceBusMessage(f"{number}", session_id=f"{number % 3}") for number in range(9)]
    await asyncio.gather(*map(sender.send_messages, messages))
    await sender.send_messages([ServiceBusMessage("a"), ServiceBusMessage("b")])
    assert by_task == []
    found = await waiting(pair)
    assert len(found) == 1
    assert sorted(texts(*found.values())) == sorted(["first", "a", "b", *(str(message) for message in messages)])
    assert client.pair.status().entities[QUEUE].diverted == 12
    assert (await client.run_syphon(until="empty")).drained == 12


@pytest.mark.parametrize("fault", [FaultKind.DOWN, FaultKind.HANG, FaultKind.LOSE_ACKNOWLEDGEMENT, FaultKind.ERROR])
async def test_a_transfer_that_fails_on_an_attached_link_goes_to_another_queue(
    pair: MemoryPair, client: ServiceBusClient, attached: tuple[ServiceBusSender, list[str]], fault: FaultKind
) -> None:
    sender, by_task = attached
    (first,) = await waiting(pair)
    backlog_down(pair, first, kind=fault)
    await sender.send_messages(ServiceBusMessage("x", message_id="x"))
    pair.secondary.heal()
    found = await waiting(pair)
    assert len(by_task) == 1
    assert first not in by_task
    assert texts(found.pop(by_task[0])) == ["x"]
    assert len(found.pop(first)) == 1 + (fault is FaultKind.LOSE_ACKNOWLEDGEMENT)
    status = client.pair.status()
    assert status.quarantined == (first,)
    assert status.entities[QUEUE].diverted == 2


async def test_a_backlog_queue_that_is_missing_is_replaced_by_another(
    pair: MemoryPair, client: ServiceBusClient, attached: tuple[ServiceBusSender, list[str]]
) -> None:
    sender, by_task = attached
    (first,) = await waiting(pair)
    async with pair.unpaired_client(secondary=True) as secondary:
        await secondary.administration.delete_queue(first)
    await sender.send_messages(ServiceBusMessage("x"))
    assert texts(await diverted(pair)) == ["x"]
    assert len(by_task) == 1
    assert client.pair.status().quarantined == (first,)


async def test_a_doubt_of_the_first_attempt_remains_when_all_other_queues_refuse(
    pair: MemoryPair, attached: tuple[ServiceBusSender, list[str]]
) -> None:
    sender, _ = attached
    (first,) = await waiting(pair)
    backlog_down(pair, first, kind=FaultKind.LOSE_ACKNOWLEDGEMENT)
    backlog_down(pair, *(queue for queue in BACKLOG if queue != first))
    with pytest.raises(BacklogUnavailableError) as caught:
        await sender.send_messages(ServiceBusMessage("x"))
    assert caught.value.is_in_doubt
    assert set(caught.value.causes) == set(BACKLOG)


async def test_a_busy_queue_gets_the_transfer_again_after_2_s(
    pair: MemoryPair, attached: tuple[ServiceBusSender, list[str]]
) -> None:
    sender, by_task = attached
    (first,) = await waiting(pair)
    pair.secondary.inject(Fault(FaultKind.BUSY, first, count=1))
    began_at = clock.monotonic()
    await sender.send_messages(ServiceBusMessage("x"))
    assert clock.monotonic() - began_at == pytest.approx(2, abs=0.1)
    assert by_task == [first]
    assert len(await diverted(pair)) == 2


async def test_a_diverted_transfer_that_fails_after_the_recovery_says_nothing_about_the_primary(
    pair: MemoryPair, client: ServiceBusClient, attached: tuple[ServiceBusSender, list[str]]
) -> None:
    sender, by_task = attached
    (first,) = await waiting(pair)
    backlog_down(pair, first, kind=FaultKind.HANG)
    send = asyncio.create_task(sender.send_messages(ServiceBusMessage("a", session_id="s")))
    await asyncio.sleep(1)
    client.pair.mark_healthy(QUEUE)
    after = asyncio.create_task(sender.send_messages(ServiceBusMessage("b", session_id="s")))
    await asyncio.gather(send, after)
    assert client.pair.status().entities[QUEUE].state is FailoverState.HEALTHY
    assert by_task[0] not in (QUEUE, first)
    assert texts(await taken(pair)) == ["b"]
    pair.secondary.heal()
    assert sorted(texts(await diverted(pair))) == ["a", "first"]


async def test_properties_with_reserved_names_count_for_the_size_in_the_backlog(pair: MemoryPair) -> None:
    async with pair.client(options(reserve_backlog_headroom=False)) as client:
        client.pair.force_failover(QUEUE)
        async with client.get_queue_sender(QUEUE) as sender:
            await sender.send_messages(ServiceBusMessage("first"))
            limits = client.pair.state.backlog.limits
            assert limits is not None
            reserved = {f"x-ms-user-{number:03}": 0 for number in range(100)}
            body = b"x" * (limits.max_message_size_bytes - 2000)
            with pytest.raises(MessageSizeExceededError):
                await sender.send_messages(ServiceBusMessage(body, application_properties=reserved))
    assert texts(await diverted(pair)) == ["first"]


@pytest.mark.parametrize("steps", range(8))
async def test_a_cancelled_caller_leaves_the_link_to_the_backlog_usable(
    pair: MemoryPair, attached: tuple[ServiceBusSender, list[str]], steps: int
) -> None:
    sender, by_task = attached
    send = asyncio.create_task(sender.send_messages(ServiceBusMessage("x")))
    for _ in range(steps):
        await asyncio.sleep(0)
    send.cancel()
    await asyncio.wait([send])
    await sender.send_messages(ServiceBusMessage("y"))
    assert by_task == []
    found = texts(await diverted(pair))
    assert found.count("x") <= 1
    assert [text for text in found if text != "x"] == ["first", "y"]


async def test_closing_a_sender_and_the_client_ends_a_diverted_transfer(
    pair: MemoryPair, client: ServiceBusClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[str] = []
    close = MemorySender.close

    async def closing(link: MemorySender) -> None:
        closed.append(link._path)
        await close(link)

    client.pair.force_failover(QUEUE)
    sender = client.get_queue_sender(QUEUE)
    await sender.send_messages(ServiceBusMessage("first"))
    (first,) = await waiting(pair)
    backlog_down(pair, first, kind=FaultKind.HANG)
    send = asyncio.create_task(sender.send_messages(ServiceBusMessage("x")))
    await asyncio.sleep(1)
    await sender.close()
    with pytest.raises(ServiceBusConnectionError) as caught:
        await send
    assert caught.value.is_in_doubt
    monkeypatch.setattr(MemorySender, "close", closing)
    await client.close()
    assert closed.count(first) == 1
