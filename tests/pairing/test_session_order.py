"""Order inside a session across failover and recovery, with `ordering="session"`."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from random import Random
from typing import Any

import pytest

from sbclient import clock
from sbclient.broker.faults import Operation
from sbclient.client.sender import ServiceBusSender
from sbclient.errors import (
    BacklogUnavailableError,
    ServiceBusConnectionError,
    ServiceBusError,
    TransactionNotSupportedError,
)
from sbclient.message import ServiceBusMessage
from sbclient.pairing.session_order import ACCEPTED_SINGLY
from sbclient.rules import known_sessions
from sbclient.rules.backlog import native_session_id_of, session_backlog_queue_of
from sbclient.rules.failover import FailoverState
from sbclient.testing import Fault, FaultKind, MemoryPair
from sbclient.transport.memory.transport import MemoryTransport
from tests.client.scene import BACKLOG, QUEUE, SESSION_BACKLOG, encoded, make_queue, options, taken, texts

ORDERED = options(ordering="session", failover_interval=0, ping_primary_interval=5)


def home_of(session: str) -> tuple[str, str]:
    """The backlog queue of a session, and its session there."""
    native = native_session_id_of(QUEUE, session)
    return session_backlog_queue_of(SESSION_BACKLOG, native), native


def of(session: str, number: int) -> ServiceBusMessage:
    return ServiceBusMessage(f"{session}{number}", session_id=session)


@pytest.mark.deviation("pairing.ordering")
async def test_order_is_kept_across_failover_and_recovery(pair: MemoryPair) -> None:
    await make_queue(pair, "visits", requires_session=True)
    async with pair.client(ORDERED) as client, client.get_queue_sender("visits") as sender:
        for number in range(30):
            if number == 10:
                client.pair.force_failover("visits")
            if number == 20:
                client.pair.mark_healthy("visits")
            for session in "abc":
                await sender.send_messages(of(session, number))
        report = await client.run_syphon(until="empty")
    assert report.drained >= 30
    received = texts(await taken(pair, "visits"))
    for session in "abc":
        assert [text for text in received if text[0] == session] == [f"{session}{number}" for number in range(30)]


@pytest.mark.deviation("pairing.ordering")
async def test_the_default_does_not_keep_order(pair: MemoryPair) -> None:
    async with pair.client() as client, client.get_queue_sender(QUEUE) as sender:
        client.pair.force_failover(QUEUE)
        await sender.send_messages(of("a", 1))
        client.pair.mark_healthy(QUEUE)
        await sender.send_messages(of("a", 2))
        await client.run_syphon(until="empty")
    assert texts(await taken(pair)) == ["a2", "a1"]


async def test_a_session_is_diverted_until_its_backlog_is_drained(
    pair: MemoryPair,
) -> None:
    async with pair.client(ORDERED) as client, client.get_queue_sender(QUEUE) as sender:
        client.pair.force_failover(QUEUE)
        await sender.send_messages(of("a", 1))
        client.pair.mark_healthy(QUEUE)
        await sender.send_messages(of("a", 2))
        await sender.send_messages(of("b", 1))
        assert texts(await taken(pair)) == ["b1"]
        await client.run_syphon(until="empty")
        await sender.send_messages(of("a", 3))
    assert texts(await taken(pair)) == ["a1", "a2", "a3"]


async def test_a_new_client_sends_behind_the_backlog_of_another(pair: MemoryPair) -> None:
    async with pair.client(ORDERED) as client, client.get_queue_sender(QUEUE) as sender:
        client.pair.force_failover(QUEUE)
        await sender.send_messages(of("a", 1))
    async with pair.client(ORDERED) as client, client.get_queue_sender(QUEUE) as sender:
        await sender.send_messages(of("a", 2))
        assert await taken(pair) == []
        await client.run_syphon(until="empty")
    assert texts(await taken(pair)) == ["a1", "a2"]


async def test_a_session_locked_by_a_syphon_is_diverted(pair: MemoryPair) -> None:
    async with pair.client(ORDERED) as client, client.get_queue_sender(QUEUE) as sender:
        queue, native = home_of("a")
        async with (
            pair.unpaired_client(secondary=True) as other,
            other.get_queue_receiver(queue, session_id=native) as holder,
        ):
            assert holder.session is not None
            await sender.send_messages(of("a", 1))
        assert texts(await taken(pair, queue, secondary=True)) == ["a1"]


async def test_a_session_is_checked_once_per_failover(pair: MemoryPair) -> None:
    async with pair.client(ORDERED) as client, client.get_queue_sender(QUEUE) as sender:
        await sender.send_messages(of("a", 1))
        before = pair.secondary.namespace.operation_count
        for number in range(2, 12):
            await sender.send_messages(of("a", number))
        assert pair.secondary.namespace.operation_count == before
        client.pair.force_failover(QUEUE)
        client.pair.mark_healthy(QUEUE)
        await sender.send_messages(of("a", 12))
        assert pair.secondary.namespace.operation_count > before
    assert len(await taken(pair)) == 12


async def test_only_diverted_sessions_raise_when_the_secondary_is_down(pair: MemoryPair) -> None:
    async with pair.client(ORDERED) as client, client.get_queue_sender(QUEUE) as sender:
        client.pair.force_failover(QUEUE)
        await sender.send_messages(of("a", 1))
        client.pair.mark_healthy(QUEUE)
        pair.secondary.inject(Fault(FaultKind.DOWN))
        with pytest.raises(ServiceBusConnectionError) as caught:
            await sender.send_messages(of("a", 2))
        assert not caught.value.is_in_doubt
        await sender.send_messages(of("b", 1))
        pair.secondary.heal()
        await sender.send_messages(of("a", 3))
        await client.run_syphon(until="empty")
    assert texts(await taken(pair)) == ["b1", "a1", "a3"]


async def test_a_hanging_secondary_delays_one_send_only(pair: MemoryPair) -> None:
    async with pair.client(ORDERED) as client, client.get_queue_sender(QUEUE) as sender:
        pair.secondary.inject(Fault(FaultKind.HANG))
        for number in range(50):
            await sender.send_messages(of(f"session {number} ", 1))
        assert clock.monotonic() == 10.0
        await clock.sleep(30.0)
        pair.secondary.heal()
        before = pair.secondary.namespace.operation_count
        await sender.send_messages(of("a", 1))
        assert pair.secondary.namespace.operation_count > before
    assert len(await taken(pair)) == 51


async def test_a_hanging_secondary_leaves_most_of_the_timeout_to_the_primary(pair: MemoryPair) -> None:
    async with pair.client(ORDERED) as client, client.get_queue_sender(QUEUE) as sender:
        pair.secondary.inject(Fault(FaultKind.HANG))
        began_at = clock.monotonic()
        await sender.send_messages(of("a", 1), timeout=8)
        assert clock.monotonic() - began_at <= 8 / 4
        assert client.pair.status().entities[QUEUE].state is FailoverState.HEALTHY
    assert texts(await taken(pair)) == ["a1"]


async def test_known_sessions_are_bounded_and_forgotten_ones_count_as_diverted(
    pair: MemoryPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(known_sessions, "SESSIONS_KEPT", 3)
    async with pair.client(ORDERED) as client, client.get_queue_sender(QUEUE) as sender:
        for session in "abcde":
            await sender.send_messages(of(session, 1))
        client.pair.force_failover(QUEUE)
        for session in "abcde":
            await sender.send_messages(of(session, 2))
        assert client.pair.state.entity(QUEUE).sessions.size <= 3
        client.pair.mark_healthy(QUEUE)
        pair.secondary.inject(Fault(FaultKind.DOWN))
        with pytest.raises(ServiceBusConnectionError):
            await sender.send_messages(of("a", 3))


async def test_divert_while_suspect_keeps_the_order(pair: MemoryPair) -> None:
    chosen = options(ordering="session", divert_while_suspect=True)
    async with pair.client(chosen) as client, client.get_queue_sender(QUEUE) as sender:
        await sender.send_messages(of("a", 1))
        pair.primary.inject(Fault(FaultKind.DOWN))
        await sender.send_messages(of("a", 2))
        pair.primary.heal()
        await sender.send_messages(of("a", 3))
        await client.run_syphon(until="empty")
    assert texts(await taken(pair)) == ["a1", "a2", "a3"]


@pytest.mark.parametrize("seed", range(8))
async def test_order_is_kept_under_outages_lost_locks_and_two_syphons(pair: MemoryPair, seed: int) -> None:
    chance = Random(seed)
    accepted: dict[str, list[int]] = {session: [] for session in "abcd"}
    chosen = options(ordering="session", failover_interval=4, ping_primary_interval=3)
    async with pair.client(chosen) as client, pair.client(chosen) as second, client.get_queue_sender(QUEUE) as sender:
        syphons = [asyncio.ensure_future(one.run_syphon()) for one in (client, second)]

        async def produce(session: str) -> None:
            for number in range(60):
                try:
                    await sender.send_messages(of(session, number), timeout=6.0)
                except ServiceBusError:
                    await clock.sleep(0.5)
                else:
                    accepted[session].append(number)
                await clock.sleep(chance.random())

        async def disturb() -> None:
            for _ in range(6):
                await clock.sleep(chance.uniform(1, 8))
                fault = pair.primary.inject(Fault(FaultKind.DOWN))
                await clock.sleep(chance.uniform(1, 12))
                pair.primary.heal(fault)
                hosts = chance.choice([pair.primary, pair.secondary])
                fault = hosts.inject(Fault(FaultKind.DOWN, operations=[chance.choice(list(Operation))]))
                await clock.sleep(chance.uniform(0, 3))
                hosts.heal(fault)

        await asyncio.gather(disturb(), *map(produce, accepted))
        pair.primary.heal()
        await clock.sleep(120.0)
        for syphon in syphons:
            syphon.cancel()
        await asyncio.wait(syphons)
        await client.run_syphon(until="empty")
    received = texts(await taken(pair))
    for session, numbers in accepted.items():
        arrived = [int(text[1:]) for text in received if text[0] == session]
        assert [number for number in dict.fromkeys(arrived) if number in numbers] == numbers
        assert list(dict.fromkeys(arrived)) == sorted(dict.fromkeys(arrived))


async def test_send_raises_when_both_namespaces_are_down_with_session_order(pair: MemoryPair) -> None:
    async with pair.client(ORDERED) as client, client.get_queue_sender(QUEUE) as sender:
        client.pair.force_failover(QUEUE)
        pair.secondary.inject(Fault(FaultKind.DOWN))
        with pytest.raises(BacklogUnavailableError):
            await sender.send_messages(of("a", 1))


async def test_all_senders_of_a_client_share_the_diverted_sessions(pair: MemoryPair) -> None:
    async with pair.client(ORDERED) as client:
        async with client.get_queue_sender(QUEUE) as sender:
            client.pair.force_failover(QUEUE)
            await sender.send_messages(of("a", 1))
        client.pair.mark_healthy(QUEUE)
        pair.secondary.inject(Fault(FaultKind.DOWN))
        async with client.get_queue_sender(QUEUE) as another:
            with pytest.raises(ServiceBusConnectionError):
                await another.send_messages(of("a", 2))
            pair.secondary.heal()
            await another.send_messages(of("a", 3))
        await client.run_syphon(until="empty")
    assert texts(await taken(pair)) == ["a1", "a3"]


async def test_a_session_diverted_by_another_sender_is_diverted(pair: MemoryPair) -> None:
    chosen = options(ordering="session", divert_while_suspect=True)
    async with pair.client(chosen) as client:
        first, second = client.get_queue_sender(QUEUE), client.get_queue_sender(QUEUE)
        await second.send_messages(of("a", 1))
        await first.send_messages(of("a", 2))
        pair.primary.inject(Fault(FaultKind.DOWN))
        await first.send_messages(of("a", 3))
        pair.primary.heal()
        await second.send_messages(of("a", 4))
        await client.run_syphon(until="empty")
    assert texts(await taken(pair)) == ["a1", "a2", "a3", "a4"]


async def test_a_transaction_raises_while_its_session_has_a_backlog(pair: MemoryPair) -> None:
    async with pair.client(ORDERED) as client, client.get_queue_sender(QUEUE) as sender:
        client.pair.force_failover(QUEUE)
        await sender.send_messages(of("a", 1))
        client.pair.mark_healthy(QUEUE)
        with pytest.raises(TransactionNotSupportedError, match="backlog"):
            async with client.transaction() as transaction:
                await sender.send_messages(of("a", 2), transaction=transaction)
        await client.run_syphon(until="empty")
        async with client.transaction() as transaction:
            await sender.send_messages(of("a", 3), transaction=transaction)
    assert texts(await taken(pair)) == ["a1", "a3"]


async def test_each_sender_checks_a_session_itself(pair: MemoryPair) -> None:
    """As the tasks of a stream, one batch after the other, in processes that keep their clients."""
    async with pair.client(ORDERED) as one, pair.client(ORDERED) as other:
        async with one.get_queue_sender(QUEUE) as sender:
            await sender.send_messages(of("a", 1))
        async with other.get_queue_sender(QUEUE) as sender:
            other.pair.force_failover(QUEUE)
            await sender.send_messages(of("a", 2))
            other.pair.mark_healthy(QUEUE)
        async with one.get_queue_sender(QUEUE) as sender:
            await sender.send_messages(of("a", 3))
        await one.run_syphon(until="empty")
    assert texts(await taken(pair)) == ["a1", "a2", "a3"]


async def test_many_sessions_are_listed_once_and_not_accepted_one_by_one(pair: MemoryPair) -> None:
    async with pair.client(ORDERED) as client, client.get_queue_sender(QUEUE) as sender:
        for number in range(ACCEPTED_SINGLY + 1):
            await sender.send_messages(of(f"s{number} ", 0))
        before = pair.secondary.namespace.operation_count
        for number in range(50):
            await sender.send_messages(of(f"s{number} ", 1))
        assert pair.secondary.namespace.operation_count == before
        client.pair.force_failover(QUEUE)
        client.pair.mark_healthy(QUEUE)
        await sender.send_messages(of("s1 ", 2))
        assert pair.secondary.namespace.operation_count > before


async def test_each_failover_asks_the_secondary_as_the_first_one(
    pair: MemoryPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    list_sessions, open_receiver = MemoryTransport.list_sessions, MemoryTransport.open_receiver
    fails = False

    async def listed(self: MemoryTransport, path: str, **kwargs: Any) -> list[str]:
        asked.append("list")
        if fails:
            raise ServiceBusError("no such operation")
        return list(await list_sessions(self, path, **kwargs))

    def opened(self: MemoryTransport, path: str, **kwargs: Any) -> Any:
        asked.append("session")
        return open_receiver(self, path, **kwargs)

    monkeypatch.setattr(MemoryTransport, "list_sessions", listed)
    monkeypatch.setattr(MemoryTransport, "open_receiver", opened)
    queues = len(SESSION_BACKLOG)
    async with pair.client(ORDERED) as client, client.get_queue_sender(QUEUE) as sender:
        for turn in range(4):
            fails = turn == 2
            if turn:
                client.pair.force_failover(QUEUE)
                client.pair.mark_healthy(QUEUE)
            courses: list[list[str]] = []
            for session in "abcde":
                asked.clear()
                await sender.send_messages(of(session, turn))
                courses.append(asked[:])
            one, all_of_them = ["session"], ["list"] * queues
            rest = [all_of_them + one, one, one, one] if fails else [all_of_them, [], [], []]
            assert courses == [one, *rest]
            if fails:  # the sessions are listed again after a while
                await clock.sleep(known_sessions.ASK_AGAIN_S)
                fails = False
                asked.clear()
                await sender.send_messages(of("f", turn))
                assert asked == all_of_them


async def test_a_listed_session_is_diverted_and_others_are_not(pair: MemoryPair) -> None:
    async with pair.client(ORDERED) as other, other.get_queue_sender(QUEUE) as sender:
        other.pair.force_failover(QUEUE)
        await sender.send_messages(of("s7 ", 1))
    async with pair.client(ORDERED) as client, client.get_queue_sender(QUEUE) as sender:
        for number in range(10):
            await sender.send_messages(of(f"s{number} ", 2))
        assert "s7 2" not in texts(await taken(pair))
        await client.run_syphon(until="empty")
        await sender.send_messages(of("s7 ", 3))
    assert texts(await taken(pair)) == ["s7 1", "s7 2", "s7 3"]


async def test_after_a_failover_the_sessions_are_listed_again(pair: MemoryPair) -> None:
    async with (
        pair.client(ORDERED) as client,
        client.get_queue_sender(QUEUE) as sender,
        pair.client(ORDERED) as other,
        other.get_queue_sender(QUEUE) as others_sender,
    ):
        for number in range(10):
            await sender.send_messages(of(f"s{number} ", 1))
        other.pair.force_failover(QUEUE)
        await others_sender.send_messages(of("s7 ", 2))
        client.pair.force_failover(QUEUE)
        client.pair.mark_healthy(QUEUE)
        for number in range(10):
            await sender.send_messages(of(f"s{number} ", 3))
        assert "s7 3" not in texts(await taken(pair))


async def test_a_session_that_a_list_has_cleared_needs_the_secondary_no_more(pair: MemoryPair) -> None:
    async with pair.client(ORDERED) as client, client.get_queue_sender(QUEUE) as sender:
        for turn in (1, 2):  # again after a second failover
            client.pair.force_failover(QUEUE)
            for session in "abc":
                await sender.send_messages(of(session, turn))
            client.pair.mark_healthy(QUEUE)
            await client.run_syphon(until="empty")
            for session in "abc":
                await sender.send_messages(of(session, 10 + turn))
            pair.secondary.inject(Fault(FaultKind.DOWN))
            client.pair.force_failover(QUEUE)
            client.pair.mark_healthy(QUEUE)
            for session in "cba":
                await sender.send_messages(of(session, 20 + turn))
            pair.secondary.heal()
            await clock.sleep(60.0)
    received = texts(await taken(pair))
    for session in "abc":
        assert [text for text in received if text[0] == session] == [
            f"{session}{one}" for one in (1, 11, 21, 2, 12, 22)
        ]


async def test_a_session_that_was_diverted_after_the_list_is_diverted(pair: MemoryPair) -> None:
    async with pair.client(ORDERED) as client, client.get_queue_sender(QUEUE) as sender:
        for number in range(10):
            await sender.send_messages(of(f"s{number} ", 1))
        client.pair.state.entity(QUEUE).sessions.diverted("s5 ")
        queue, native = home_of("s5 ")
        async with (
            pair.unpaired_client(secondary=True) as other,
            other.get_queue_receiver(queue, session_id=native) as holder,
        ):
            assert holder.session is not None
            for number in range(10):
                await sender.send_messages(of(f"s{number} ", 2))
    assert "s5 2" not in texts(await taken(pair))


async def test_sessions_are_accepted_one_by_one_if_they_cannot_be_listed(
    pair: MemoryPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unsupported(*_: object, **__: object) -> list[str]:
        raise ServiceBusError("no such operation")

    async with pair.client(ORDERED) as client, client.get_queue_sender(QUEUE) as sender:
        client.pair.force_failover(QUEUE)
        await sender.send_messages(of("b", 1))
    monkeypatch.setattr(MemoryTransport, "list_sessions", unsupported)
    async with pair.client(ORDERED) as client, client.get_queue_sender(QUEUE) as sender:
        for session in "abcd":
            await sender.send_messages(of(session, 2))
    assert texts(await taken(pair)) == ["a2", "c2", "d2"]


@pytest.mark.parametrize("partitioned", [False, True])
async def test_an_encoded_transfer_of_several_sessions_is_split_by_their_state(
    pair: MemoryPair, partitioned: bool
) -> None:
    if partitioned:
        async with pair.unpaired_client(secondary=True) as other:
            for name in BACKLOG:
                await other.administration.create_queue(name, enable_partitioning=True)
            for name in SESSION_BACKLOG:
                await other.administration.create_queue(name, enable_partitioning=True, requires_session=True)

    async def send(sender: ServiceBusSender, number: int) -> None:
        messages = [of(session, number) for session in "abcde"]
        for message in messages:
            message.message_id = str(message)
        scheduled = ServiceBusMessage("later", message_id="later", session_id="a")
        scheduled.scheduled_enqueue_time_utc = datetime(2000, 1, 1, tzinfo=UTC)
        await sender.send_encoded(encoded([*messages, scheduled]), sessions=list("abcde"))

    async with pair.client(ORDERED) as client, client.get_queue_sender(QUEUE) as sender:
        await send(sender, 1)
        client.pair.force_failover(QUEUE)
        await sender.send_messages(of("b", 2))
        client.pair.mark_healthy(QUEUE)
        await send(sender, 3)
        pair.primary.inject(Fault(FaultKind.DOWN))
        await send(sender, 4)
        pair.primary.heal()
        client.pair.mark_healthy(QUEUE)
        await client.run_syphon(until="empty")
        await send(sender, 5)
    received = [text for text in texts(await taken(pair)) if text != "later"]
    assert sorted(received) == sorted(["b2", *(f"{session}{number}" for session in "abcde" for number in (1, 3, 4, 5))])
    for session in "abcde":
        mine = [text for text in received if text[0] == session]
        assert mine == sorted(mine)
