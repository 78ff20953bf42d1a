"""Receivers that take messages from the primary and from the secondary."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from random import Random
from typing import Any

import pytest

from sbclient import AutoLockRenewer, ServiceBusClient, ServiceBusMessage, clock
from sbclient.client.both_links import _SIDES
from sbclient.delivery import NEXT_AVAILABLE_SESSION, ServiceBusReceiveMode
from sbclient.errors import (
    InvalidOperationError,
    MessagingEntityNotFoundError,
    ServiceBusConnectionError,
    ServiceBusError,
    SessionCannotBeLockedError,
)
from sbclient.message import NamespaceSide, ServiceBusReceivedMessage
from sbclient.testing import Fault, FaultKind, MemoryPair, Operation
from sbclient.transport.memory.receiver import MemoryReceiver
from tests.client.scene import QUEUE, cancel, make_queue, options, taken, texts

BOTH = options(receive_from="both")
MODES = list(ServiceBusReceiveMode)


async def fill(pair: MemoryPair, *texts: str, secondary: bool = False, **attributes: Any) -> None:
    async with pair.unpaired_client(secondary=secondary) as client, client.get_queue_sender(QUEUE) as sender:
        for text in texts:
            await sender.send_messages(ServiceBusMessage(text, **attributes))


def events(client: ServiceBusClient) -> list[tuple[str, str]]:
    return [(one.name, one.facts["side"]) for one in client.pair.events() if one.name.startswith("receiver.side")]


@pytest.fixture
async def both(pair: MemoryPair) -> MemoryPair:
    """A pair with the queue in both namespaces."""
    await make_queue(pair, secondary=True)
    return pair


@pytest.mark.parametrize("prefetch", [0, 10])
@pytest.mark.parametrize("mode", MODES)
async def test_messages_of_both_are_received_once_with_their_side(
    both: MemoryPair, mode: ServiceBusReceiveMode, prefetch: int
) -> None:
    expected: dict[NamespaceSide, set[str]] = {"primary": set(), "secondary": set()}
    for number in range(30):
        side: NamespaceSide = "secondary" if number % 3 else "primary"
        await fill(both, str(number), secondary=side == "secondary")
        expected[side].add(str(number))
    found: list[tuple[NamespaceSide, str]] = []
    async with both.client(BOTH) as client:
        receiver = client.get_queue_receiver(QUEUE, receive_mode=mode, max_wait_time=3, prefetch_count=prefetch)
        async with receiver:
            async for message in receiver:
                found.append((message.namespace, str(message)))
                if mode is ServiceBusReceiveMode.PEEK_LOCK:
                    await receiver.complete_message(message)
    assert sorted(found) == sorted((side, text) for side, them in expected.items() for text in them)
    assert await taken(both) == await taken(both, secondary=True) == []


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("busy", ["primary", "secondary"])
async def test_no_side_starves_while_the_other_always_has_messages(
    both: MemoryPair, busy: NamespaceSide, mode: ServiceBusReceiveMode
) -> None:
    await fill(both, *["busy"] * 400, secondary=busy == "secondary")
    async with both.client(BOTH) as client, client.get_queue_receiver(QUEUE, receive_mode=mode) as receiver:
        await receiver.receive_messages(1)
        await fill(both, "rare", secondary=busy == "primary")
        at = clock.monotonic()
        while "rare" not in texts(await receiver.receive_messages(1)):
            await clock.sleep(0.02)
        assert clock.monotonic() - at < 4.0


@pytest.mark.parametrize("mode", MODES)
async def test_a_namespace_without_messages_takes_little_time(both: MemoryPair, mode: ServiceBusReceiveMode) -> None:
    await fill(both, *map(str, range(200)))
    async with both.client(BOTH) as client, client.get_queue_receiver(QUEUE, receive_mode=mode) as receiver:
        await receiver.receive_messages(1)
        began_at = clock.monotonic()
        for _ in range(190):
            assert len(await receiver.receive_messages(1)) == 1
            await clock.sleep(0.02)
        assert clock.monotonic() - began_at < 1.1 * 190 * 0.02


async def test_a_receiver_that_deletes_takes_no_more_than_it_returns(both: MemoryPair) -> None:
    deleting = ServiceBusReceiveMode.RECEIVE_AND_DELETE
    async with both.client(BOTH) as client:
        for delay_s in (0.0, 0.5):
            async with client.get_queue_receiver(QUEUE, receive_mode=deleting) as receiver:
                waiting = asyncio.ensure_future(receiver.receive_messages(1, max_wait_time=30))
                await clock.sleep(delay_s)
                await asyncio.gather(fill(both, "a"), fill(both, "b", secondary=True))
                assert len(await waiting) == 1
            assert len(await taken(both)) + len(await taken(both, secondary=True)) == 1


async def test_a_receiver_that_deletes_loses_no_answer_that_is_slow(
    both: MemoryPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    receive, deleting = MemoryReceiver.receive, ServiceBusReceiveMode.RECEIVE_AND_DELETE

    async def slow(link: MemoryReceiver, **asked: Any) -> list[ServiceBusReceivedMessage]:
        found = await receive(link, **asked)
        await clock.sleep(0.3)
        return found

    monkeypatch.setattr(MemoryReceiver, "receive", slow)
    async with both.client(BOTH) as client, client.get_queue_receiver(QUEUE, receive_mode=deleting) as receiver:
        for number in range(6):
            await fill(both, f"{number}")
            assert texts(await receiver.receive_messages(max_wait_time=30)) == [f"{number}"]


async def test_a_wait_for_both_ends_in_time_and_returns_what_comes_first(both: MemoryPair) -> None:
    async with both.client(BOTH) as client, client.get_queue_receiver(QUEUE) as receiver:
        assert await receiver.receive_messages(max_wait_time=5) == []
        assert 5.0 <= clock.monotonic() < 5.5
        for secondary in (False, True):
            waiting = asyncio.ensure_future(receiver.receive_messages(max_wait_time=60))
            await clock.sleep(2.0)
            await fill(both, f"{secondary}", secondary=secondary)
            at = clock.monotonic()
            assert texts(await waiting) == [f"{secondary}"]
            assert clock.monotonic() - at < 0.1


@pytest.mark.parametrize("side", ["primary", "secondary"])
async def test_a_side_that_is_away_is_left_out_and_comes_back(both: MemoryPair, side: NamespaceSide) -> None:
    namespace = both.primary if side == "primary" else both.secondary
    async with both.client(BOTH) as client, client.get_queue_receiver(QUEUE) as receiver:
        namespace.inject(Fault(FaultKind.DOWN))
        await fill(both, *"abcdefgh", secondary=side == "primary")
        for expected in "abcdefgh":
            (message,) = await receiver.receive_messages(max_wait_time=30)
            assert str(message) == expected
            await receiver.complete_message(message)
            await clock.sleep(20.0)
        namespace.heal()
        await clock.sleep(60.0)
        await fill(both, "back", secondary=side == "secondary")
        assert texts(await receiver.receive_messages(max_wait_time=70)) == ["back"]
        assert events(client) == [("receiver.side_left_out", side), ("receiver.side_is_back", side)]


async def test_a_side_that_comes_back_during_a_wait_is_asked_again(both: MemoryPair) -> None:
    both.primary.inject(Fault(FaultKind.DOWN))
    async with both.client(BOTH) as client, client.get_queue_receiver(QUEUE) as receiver:
        waiting = asyncio.ensure_future(receiver.receive_messages(max_wait_time=3600))
        await clock.sleep(1800.0)
        both.primary.heal()
        await fill(both, "a")
        assert texts(await waiting) == ["a"]
        assert clock.monotonic() < 1870.0  # also after a long outage it is asked again within about a minute


@pytest.mark.parametrize("was", ["missing", "away", "well"])
async def test_the_pause_of_a_side_begins_anew_after_an_answer(pair: MemoryPair, was: str) -> None:
    async with pair.client(BOTH) as client, client.get_queue_receiver(QUEUE) as receiver:
        for _ in range(2):
            if was == "missing":
                await receiver.receive_messages(max_wait_time=300)
            await make_queue(pair, secondary=True)
            if was == "away":
                pair.secondary.inject(Fault(FaultKind.DOWN))
                await receiver.receive_messages(max_wait_time=300)
                pair.secondary.heal()
            assert await receiver.receive_messages(max_wait_time=200) == []  # both have answered
            pair.secondary.inject(Fault(FaultKind.DOWN))
            assert await receiver.receive_messages(max_wait_time=0.5) == []
            pair.secondary.heal()
            await fill(pair, "after", secondary=True)
            at = clock.monotonic()
            (message,) = await receiver.receive_messages(max_wait_time=100)
            assert clock.monotonic() - at < 3.0
            await receiver.complete_message(message)
            async with pair.unpaired_client(secondary=True) as other:
                await other.administration.delete_queue(QUEUE)


@pytest.mark.parametrize("mode", MODES)
async def test_both_away_raise_the_error_of_the_primary(both: MemoryPair, mode: ServiceBusReceiveMode) -> None:
    client = both.client(BOTH, retry_total=0)
    async with client, client.get_queue_receiver(QUEUE, receive_mode=mode) as receiver:
        both.primary.inject(Fault(FaultKind.DOWN))
        both.secondary.inject(Fault(FaultKind.ERROR, error=ServiceBusError("of the secondary")))
        for _ in range(3):
            with pytest.raises(ServiceBusConnectionError, match="namespace contoso refuses"):
                await receiver.receive_messages(max_wait_time=20)
            await clock.sleep(1.0)


async def test_a_missing_entity_of_the_secondary_is_looked_for_each_minute_without_an_event(pair: MemoryPair) -> None:
    deleting = ServiceBusReceiveMode.RECEIVE_AND_DELETE
    async with pair.client(BOTH) as client, client.get_queue_receiver(QUEUE, receive_mode=deleting) as receiver:
        before = pair.secondary.namespace.operation_count
        for _ in range(100):
            await fill(pair, "a")
            assert texts(await receiver.receive_messages()) == ["a"]
        assert pair.secondary.namespace.operation_count - before <= 2
        await make_queue(pair, secondary=True)
        await fill(pair, "late", secondary=True)
        assert texts(await receiver.receive_messages(max_wait_time=70)) == ["late"]
        assert events(client) == []
        pair.primary.inject(Fault(FaultKind.ERROR, error=MessagingEntityNotFoundError("gone")))
        await fill(pair, "b", secondary=True)
        assert texts(await receiver.receive_messages(max_wait_time=70)) == ["b"]


async def test_each_operation_on_a_message_is_done_at_its_side(both: MemoryPair) -> None:
    async with both.client(BOTH) as client, client.get_queue_receiver(QUEUE, prefetch_count=0) as receiver:
        for secondary in (False, True):
            side: NamespaceSide = "secondary" if secondary else "primary"
            await fill(both, "complete", "abandon", "defer", "dead", "renew", secondary=secondary)
            messages: dict[str, ServiceBusReceivedMessage] = {}
            while len(messages) < 5:
                messages |= {str(one): one for one in await receiver.receive_messages(5)}
            await receiver.complete_message(messages["complete"])
            await receiver.abandon_message(messages["abandon"])
            await receiver.defer_message(messages["defer"])
            await receiver.dead_letter_message(messages["dead"], "why")
            before = messages["renew"].locked_until_utc
            await clock.sleep(2.0)
            assert before is not None
            assert await receiver.renew_message_lock(messages["renew"]) > before
            peeked = await receiver.peek_messages(10, namespace=side, sequence_number=1)
            assert (texts(peeked), {each.namespace for each in peeked}) == (["abandon", "defer", "renew"], {side})
            number = messages["defer"].sequence_number
            (deferred,) = await receiver.receive_deferred_messages([number], namespace=side)
            assert deferred.namespace == side
            await receiver.complete_message(deferred)
            await receiver.complete_message(messages["renew"])
            (again,) = await receiver.receive_messages()
            assert (str(again), again.delivery_count) == ("abandon", 1)
            await receiver.complete_message(again)
            assert [one.dead_letter_reason for one in await taken(both, secondary=secondary, dead=True)] == ["why"]


@pytest.mark.parametrize("is_committed", [True, False])
async def test_a_message_is_used_in_a_transaction_of_its_side(both: MemoryPair, is_committed: bool) -> None:
    await fill(both, "a", secondary=True)
    async with both.client(BOTH) as client:
        receiver, sender = client.get_queue_receiver(QUEUE), client.get_queue_sender(QUEUE)
        (message,) = await receiver.receive_messages()
        with pytest.raises(InvalidOperationError, match=r"transaction\(namespace=message.namespace\)"):
            async with client.transaction() as transaction:
                await receiver.complete_message(message, transaction=transaction)
        transaction = client.transaction(namespace=message.namespace)
        async with transaction:
            await receiver.complete_message(message, transaction=transaction)
            await sender.send_messages(ServiceBusMessage("b"), transaction=transaction)
            if not is_committed:
                await transaction.rollback()
        if not is_committed:
            await receiver.abandon_message(message)
    assert texts(await taken(both, secondary=True)) == (["b"] if is_committed else ["a"])
    assert await taken(both) == []


async def test_a_peek_goes_on_after_the_last_message_that_was_peeked_at_its_side(both: MemoryPair) -> None:
    names: dict[NamespaceSide, list[str]] = {"primary": list("abcdefgh"), "secondary": list("ijklmnop")}
    for side, texts_there in names.items():
        await fill(both, *texts_there, secondary=side == "secondary")
    random, at = Random(1), dict.fromkeys(names, 0)
    async with both.client(BOTH) as client, client.get_queue_receiver(QUEUE) as receiver:
        for _ in range(60):
            side, count = random.choice(list(names)), random.randrange(1, 5)
            first = random.choice([0, 0, *range(1, 10)])
            begin = first - 1 if first else at[side]
            found = await receiver.peek_messages(count, sequence_number=first, namespace=side)
            assert texts(found) == names[side][begin : begin + count]
            at[side] = begin + len(found) if found else at[side]


async def test_a_subscription_receives_from_both(pair: MemoryPair) -> None:
    for secondary in (False, True):
        async with pair.unpaired_client(secondary=secondary) as client:
            await client.administration.create_topic("topic")
            await client.administration.create_subscription("topic", "sub")
            async with client.get_topic_sender("topic") as sender:
                await sender.send_messages(ServiceBusMessage(f"{secondary}"))
    async with pair.client() as client:
        receiver = client.get_subscription_receiver("topic", "sub", receive_from="both", max_wait_time=3)
        assert sorted([str(message) async for message in receiver]) == ["False", "True"]


@pytest.mark.parametrize("of_pair", ["primary", "both"])
@pytest.mark.parametrize("of_receiver", [None, "primary", "both"])
async def test_a_receiver_receives_as_it_says_or_else_as_the_pair_does(
    both: MemoryPair, of_pair: Any, of_receiver: Any
) -> None:
    for secondary in (False, True):
        await fill(both, "a", secondary=secondary)
    async with both.client(options(receive_from=of_pair)) as client:
        receiver = client.get_queue_receiver(QUEUE, max_wait_time=3, receive_from=of_receiver)
        found = {message.namespace async for message in receiver}
    assert found == ({"primary", "secondary"} if (of_receiver or of_pair) == "both" else {"primary"})


async def test_what_is_not_possible_is_refused_with_the_remedy(pair: MemoryPair) -> None:
    async with pair.unpaired_client() as client:
        with pytest.raises(InvalidOperationError, match="no secondary: open it with secondary="):
            client.get_queue_receiver(QUEUE, receive_from="both")
        with pytest.raises(InvalidOperationError, match="is not paired: open it with secondary="):
            client.transaction(namespace="secondary")
    async with pair.client(BOTH) as client:
        one = client.get_queue_receiver(QUEUE, receive_from="primary")
        with pytest.raises(InvalidOperationError, match="get it with receive_from='both'"):
            await one.peek_messages(namespace="secondary")
        with pytest.raises(InvalidOperationError, match="get it with receive_from='both'"):
            await one.receive_deferred_messages([1], namespace="secondary")
        with pytest.raises(InvalidOperationError, match="receive_from must be 'primary' or 'both'"):
            client.get_queue_receiver(QUEUE, receive_from="secondary")  # type: ignore[arg-type]


async def test_a_receiver_that_is_closed_or_cancelled_keeps_no_message(both: MemoryPair) -> None:
    async with both.client(BOTH) as client:
        for _ in range(5):
            receiver = client.get_queue_receiver(QUEUE, prefetch_count=4)
            waiting = asyncio.ensure_future(receiver.receive_messages(10, max_wait_time=60))
            await clock.sleep(0.3)
            await asyncio.gather(fill(both, "a"), fill(both, "b", secondary=True))
            await cancel(waiting) if not waiting.done() else waiting.result()
            await receiver.close()
    await clock.sleep(61.0)
    assert len(await taken(both)) + len(await taken(both, secondary=True)) == 10


async def test_a_message_that_no_call_has_returned_is_available_when_the_receiver_is_closed(both: MemoryPair) -> None:
    async with both.client(BOTH) as client:
        async with client.get_queue_receiver(QUEUE) as receiver:
            waiting = asyncio.ensure_future(receiver.receive_messages(1, max_wait_time=30))
            await clock.sleep(0.5)
            await asyncio.gather(fill(both, "a"), fill(both, "b", secondary=True))
            (returned,) = await waiting
            assert len(await taken(both)) + len(await taken(both, secondary=True)) == 0  # both are locked
            await receiver.complete_message(returned)
        assert len(await taken(both)) + len(await taken(both, secondary=True)) == 1


@pytest.mark.parametrize("later_s", [0.0, 3.0, 50.0, 70.0])
async def test_what_arrives_while_its_request_is_cancelled_is_returned_by_the_next_call(
    both: MemoryPair, monkeypatch: pytest.MonkeyPatch, later_s: float
) -> None:
    receive = MemoryReceiver.receive

    async def late(link: MemoryReceiver, **asked: Any) -> list[ServiceBusReceivedMessage]:
        try:
            return await receive(link, **asked)
        except asyncio.CancelledError:
            await fill(both, "late", secondary=True)
            return await receive(link, **asked)

    async with both.client(BOTH) as client, client.get_queue_receiver(QUEUE) as receiver:
        monkeypatch.setattr(MemoryReceiver, "receive", late)
        waiting = asyncio.ensure_future(receiver.receive_messages(max_wait_time=60))
        await clock.sleep(1.0)
        await fill(both, "first")
        assert texts(await waiting) == ["first"]
        monkeypatch.undo()
        await clock.sleep(later_s)
        (message,) = await receiver.receive_messages(max_wait_time=1)
        assert (str(message), message.namespace) == ("late", "secondary")
        await clock.sleep(55.0)  # its lock of 60 s was renewed, or is that of a second delivery
        await receiver.complete_message(message)
        assert message.delivery_count == int(later_s > 60.0)
    assert await taken(both, secondary=True) == []


@pytest.mark.parametrize("mode", list(ServiceBusReceiveMode))
@pytest.mark.parametrize("later_s", [0.0, 50.0, 70.0])
async def test_what_arrives_for_a_cancelled_call_is_returned_by_the_next_call(
    both: MemoryPair, monkeypatch: pytest.MonkeyPatch, later_s: float, mode: ServiceBusReceiveMode
) -> None:
    receive = MemoryReceiver.receive

    async def late(link: MemoryReceiver, **asked: Any) -> list[ServiceBusReceivedMessage]:
        try:
            return await receive(link, **asked)
        except asyncio.CancelledError:
            monkeypatch.undo()
            await asyncio.gather(fill(both, "late"), fill(both, "late", secondary=True))
            return await receive(link, **asked)

    async with both.client(BOTH) as client, client.get_queue_receiver(QUEUE, receive_mode=mode) as receiver:
        monkeypatch.setattr(MemoryReceiver, "receive", late)
        waiting = asyncio.ensure_future(receiver.receive_messages(max_wait_time=60))
        await clock.sleep(0.1)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await clock.sleep(later_s)
        sides = []
        for _ in range(2):
            (message,) = await receiver.receive_messages(max_wait_time=5)
            sides.append(message.namespace)
            if mode is ServiceBusReceiveMode.PEEK_LOCK:
                await receiver.complete_message(message)
        assert sorted(sides) == ["primary", "secondary"]


# -- sessions ----------------------------------------------------------------------------------------------------------


@pytest.fixture
async def sessions(pair: MemoryPair) -> MemoryPair:
    async with pair.unpaired_client() as client:
        await client.administration.delete_queue(QUEUE)
    for secondary in (False, True):
        await make_queue(pair, secondary=secondary, requires_session=True)
    return pair


@pytest.mark.parametrize(
    ("has_primary", "has_secondary", "is_away", "expected"),
    [
        (True, True, False, "primary"),
        (True, False, False, "primary"),
        (False, False, False, "primary"),
        (False, True, False, "secondary"),
        (True, True, True, "secondary"),
        (True, False, True, "secondary"),
    ],
)
async def test_a_named_session_is_held_where_the_rule_says(
    sessions: MemoryPair, has_primary: bool, has_secondary: bool, is_away: bool, expected: NamespaceSide
) -> None:
    if has_primary:
        await fill(sessions, "primary", session_id="s")
    if has_secondary:
        await fill(sessions, "secondary", session_id="s", secondary=True)
    if is_away:
        sessions.primary.inject(Fault(FaultKind.DOWN))
    async with (
        sessions.client(BOTH) as client,
        client.get_queue_receiver(QUEUE, session_id="s", max_wait_time=2) as receiver,
    ):
        await fill(sessions, "later", session_id="s", secondary=expected == "secondary")
        messages = await receiver.receive_messages(5)
        assert {message.namespace for message in messages} == {expected}
        await receiver.session.set_state(b"x")
        await receiver.session.renew_lock()
        for message in messages:
            await receiver.complete_message(message)
        other = sessions.unpaired_client(secondary=expected == "primary")
        if not (is_away and expected == "secondary"):
            async with other, other.get_queue_receiver(QUEUE, session_id="s") as unheld:
                assert await unheld.session.get_state() is None


async def test_a_named_session_that_another_receiver_holds_is_refused(sessions: MemoryPair) -> None:
    await fill(sessions, "a", session_id="s", secondary=True)
    client = sessions.client(BOTH)
    async with client, client.get_queue_receiver(QUEUE, session_id="s", receive_from="primary"):
        with pytest.raises(SessionCannotBeLockedError):
            async with client.get_queue_receiver(QUEUE, session_id="s"):
                pass


@pytest.mark.parametrize("away", [None, "primary", "secondary"])
async def test_the_next_session_is_the_one_that_comes_first(sessions: MemoryPair, away: str | None) -> None:
    async with sessions.client(BOTH) as client:
        if away:
            (sessions.primary if away == "primary" else sessions.secondary).inject(Fault(FaultKind.DOWN))
        for secondary in [False, True] if away is None else [away == "primary"]:
            waiting = asyncio.ensure_future(
                client.get_queue_receiver(QUEUE, session_id=NEXT_AVAILABLE_SESSION).receive_messages()
            )
            await clock.sleep(1.0)
            await fill(sessions, "a", session_id=f"s-{secondary}", secondary=secondary)
            (message,) = await waiting
            assert (message.session_id, message.namespace) == (
                f"s-{secondary}",
                "secondary" if secondary else "primary",
            )


async def test_no_session_in_time_raises_the_error_of_the_primary(sessions: MemoryPair) -> None:
    async with sessions.client(BOTH) as client:
        with pytest.raises(ServiceBusError, match="no session of orders became available"):
            async with client.get_queue_receiver(QUEUE, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=3):
                pass


async def test_a_primary_that_hangs_does_not_hold_up_the_secondary(both: MemoryPair) -> None:
    both.primary.inject(Fault(FaultKind.HANG, operations=[Operation.RECEIVE]))
    async with both.client(BOTH) as client, client.get_queue_receiver(QUEUE) as receiver:
        for number in range(5):
            await fill(both, f"{number}", secondary=True)
            began_at = clock.monotonic()
            assert texts(await receiver.receive_messages(max_wait_time=30)) == [f"{number}"]
            assert clock.monotonic() - began_at < 1.0
        began_at = clock.monotonic()
        assert await receiver.receive_messages(max_wait_time=5) == []
        assert clock.monotonic() - began_at < 6.0


@pytest.mark.parametrize("side", ["primary", "secondary"])
async def test_a_later_absence_of_a_side_takes_its_course_as_the_first(both: MemoryPair, side: NamespaceSide) -> None:
    namespace = both.primary if side == "primary" else both.secondary
    courses: list[list[tuple[str, str]]] = []
    lasted_s: list[float] = []
    async with both.client(BOTH) as client, client.get_queue_receiver(QUEUE) as receiver:
        for _ in range(3):
            assert await receiver.receive_messages(max_wait_time=5) == []
            before, began_at = len(events(client)), clock.monotonic()
            fault = namespace.inject(Fault(FaultKind.DOWN))
            for _ in range(4):
                assert await receiver.receive_messages(max_wait_time=5) == []
            namespace.heal(fault)
            await fill(both, "back", secondary=side == "secondary")
            (message,) = await receiver.receive_messages(max_wait_time=70)
            await receiver.complete_message(message)
            courses.append(events(client)[before:])
            lasted_s.append(clock.monotonic() - began_at)
    assert courses == [[("receiver.side_left_out", side), ("receiver.side_is_back", side)]] * 3
    assert lasted_s == [pytest.approx(lasted_s[0], rel=0.2)] * 3


async def test_an_answer_of_the_primary_proves_that_it_was_reached(both: MemoryPair) -> None:
    async with both.client(BOTH) as client, client.get_queue_receiver(QUEUE) as receiver:
        assert not client.pair.state.is_primary_reached
        await receiver.receive_messages(max_wait_time=1)
        assert client.pair.state.is_primary_reached


@pytest.mark.parametrize("named", [True, False])
async def test_sessions_are_held_at_one_side_and_not_after_the_end(sessions: MemoryPair, named: bool) -> None:
    async with sessions.client(BOTH) as client:
        for cycle in range(4):
            for secondary in [False, True] if cycle % 2 else [True]:
                await fill(sessions, f"{cycle}", session_id="s", secondary=secondary)
            receiver = client.get_queue_receiver(QUEUE, session_id="s" if named else NEXT_AVAILABLE_SESSION)
            async with receiver:
                (message,) = await receiver.receive_messages()
                assert str(message) == f"{cycle}"
                await receiver.session.set_state(b"%d" % cycle)
                assert await receiver.session.get_state() == b"%d" % cycle
                await receiver.session.set_state(None)
                side = message.namespace
                assert await holds(sessions, side)
                assert not await holds(sessions, "primary" if side == "secondary" else "secondary")
                await receiver.complete_message(message)
            assert not await holds(sessions, "primary")
            assert not await holds(sessions, "secondary")
            for secondary in (False, True):
                await taken(sessions, secondary=secondary)


async def holds(pair: MemoryPair, side: NamespaceSide) -> bool:
    """Whether a receiver holds the session."""
    async with pair.unpaired_client(secondary=side == "secondary") as client:
        try:
            async with client.get_queue_receiver(QUEUE, session_id="s"):
                return False
        except SessionCannotBeLockedError:
            return True


async def test_messages_that_no_call_has_returned_are_available_when_the_receiver_is_closed(both: MemoryPair) -> None:
    async with both.client(BOTH) as client:
        for _ in range(3):
            for secondary in (False, True):
                await fill(both, *"abc", secondary=secondary)
            receiver = client.get_queue_receiver(QUEUE)
            returned = 0
            while returned < 4:
                messages = await receiver.receive_messages(2, max_wait_time=3)
                returned += len(messages)
                for message in messages:
                    await receiver.complete_message(message)
            await receiver.close()
            assert len(await taken(both)) + len(await taken(both, secondary=True)) == 6 - returned


async def test_a_wait_for_a_session_that_found_none_can_be_repeated(sessions: MemoryPair) -> None:
    async with sessions.client(BOTH) as client:
        receiver = client.get_queue_receiver(QUEUE, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=3)
        for secondary in (False, True):
            for _ in range(2):
                with pytest.raises(ServiceBusError, match="no session of orders became available"):
                    await receiver.receive_messages()
            await fill(sessions, "a", session_id="s", secondary=secondary)
            assert texts(await receiver.receive_messages()) == ["a"]
            await receiver.close()
            receiver = client.get_queue_receiver(QUEUE, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=3)
            await taken(sessions, secondary=secondary)


async def test_a_link_that_is_attached_again_does_not_hold_up_the_other(
    both: MemoryPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    receive = MemoryReceiver.receive

    async def attaching(link: MemoryReceiver, **asked: Any) -> list[ServiceBusReceivedMessage]:
        if link._connection.host is both.primary:
            await clock.sleep(15.0)
        return await receive(link, **asked)

    async with both.client(BOTH) as client, client.get_queue_receiver(QUEUE) as receiver:
        await fill(both, "0")
        await receiver.receive_messages()
        monkeypatch.setattr(MemoryReceiver, "is_open", False)
        monkeypatch.setattr(MemoryReceiver, "receive", attaching)
        await fill(both, "1", secondary=True)
        began_at = clock.monotonic()
        assert texts(await receiver.receive_messages(max_wait_time=30)) == ["1"]
        assert clock.monotonic() - began_at < 1.0


# -- what went wrong elsewhere: consumers of other clients in outages --------------------------------------------------


async def test_messages_with_the_same_number_and_id_in_both_are_told_apart(both: MemoryPair) -> None:
    """A client that remembers numbers or ids of one cluster takes messages of the other for duplicates."""
    await fill(both, "primary", message_id="same")
    await fill(both, "secondary", message_id="same", secondary=True)
    async with both.client(BOTH) as client, AutoLockRenewer(max_lock_renewal_duration=600) as renewer:
        receiver = client.get_queue_receiver(QUEUE, auto_lock_renewer=renewer)
        messages = [*await receiver.receive_messages(), *await receiver.receive_messages()]
        assert {str(message): message.namespace for message in messages} == {side: side for side in _SIDES}
        assert len({(message.sequence_number, message.message_id) for message in messages}) == 1
        await clock.sleep(150.0)
        for message in messages:
            await receiver.defer_message(message)
        for side in _SIDES:
            (deferred,) = await receiver.receive_deferred_messages([1], namespace=side)
            assert str(deferred) == side
            await receiver.complete_message(deferred)
    assert await taken(both) == await taken(both, secondary=True) == []


async def test_prefetched_messages_of_a_namespace_that_goes_away_come_again_and_are_no_dead_letters(
    both: MemoryPair,
) -> None:
    await fill(both, *"abcdef")
    completed: list[str] = []
    client = both.client(BOTH, retry_total=0)
    async with client, client.get_queue_receiver(QUEUE, prefetch_count=10) as receiver:
        for minute in range(6):
            if minute == 1:
                both.primary.inject(Fault(FaultKind.DOWN))
                await fill(both, "s", secondary=True)
            if minute == 3:
                both.primary.heal()
            while messages := await receiver.receive_messages(2, max_wait_time=20):
                for message in messages:
                    with suppress(ServiceBusError):
                        await receiver.complete_message(message)
                        completed.append(str(message))
                if minute == 0:
                    break
            await clock.sleep(60.0)
    assert sorted(completed) == [*"abcdefs"]
    assert await taken(both, dead=True) == await taken(both, secondary=True, dead=True) == []


async def test_a_primary_that_is_missing_for_a_while_is_received_from_again_without_a_restart(both: MemoryPair) -> None:
    async with both.client(BOTH) as client, client.get_queue_receiver(QUEUE) as receiver:
        gone = Fault(FaultKind.ERROR, error=MessagingEntityNotFoundError("endpoint not found"))
        both.primary.inject(gone)
        for number in range(5):
            await fill(both, f"{number}", secondary=True)
            (message,) = await receiver.receive_messages(max_wait_time=30)
            assert str(message) == f"{number}"
            await receiver.complete_message(message)
            await clock.sleep(60.0)
        both.primary.heal()
        await fill(both, "back")
        assert texts(await receiver.receive_messages(max_wait_time=70)) == ["back"]


@pytest.mark.parametrize("side", ["primary", "secondary"])
async def test_a_namespace_that_hangs_does_not_hold_up_the_end_of_a_receiver(both: MemoryPair, side: str) -> None:
    await fill(both, "a", secondary=side == "secondary")
    async with both.client(BOTH) as client:
        async with client.get_queue_receiver(QUEUE, prefetch_count=4) as receiver:
            assert texts(await receiver.receive_messages()) == ["a"]
            await fill(both, "b", secondary=side == "secondary")
            (both.primary if side == "primary" else both.secondary).inject(Fault(FaultKind.HANG))
            await receiver.receive_messages(max_wait_time=1)
            began_at = clock.monotonic()
        assert clock.monotonic() - began_at < 6.0
