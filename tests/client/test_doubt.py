"""An error without doubt means that nothing happened, whatever the attempts of the operation before met.

Each request of an operation meets the next fault of a script, at the primary and at the secondary.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import chain, product
from typing import Any, Final, TypeAlias

import pytest

from sbclient import clock
from sbclient.broker.faults import Operation
from sbclient.client.core import Calls, each_part
from sbclient.errors import (
    InvalidOperationError,
    ServiceBusConnectionError,
    ServiceBusError,
    ServiceBusQuotaExceededError,
)
from sbclient.hosting.host import BrokerHost
from sbclient.message import ServiceBusMessage
from sbclient.options import PairedNamespaceOptions
from sbclient.testing import Fault, FaultKind, MemoryPair, memory_pair
from tests.client.scene import QUEUE, SESSION_BACKLOG, encoded, make_queue, options, waiting

FAULTS: Final[dict[str, Callable[[Operation], Fault]]] = {
    "lost": lambda operation: Fault(FaultKind.LOSE_ACKNOWLEDGEMENT, operations=[operation], count=1),
    "down": lambda operation: Fault(FaultKind.DOWN, operations=[operation], count=1),
    "busy": lambda operation: Fault(FaultKind.BUSY, operations=[operation], count=1),
    "full": lambda operation: Fault(
        FaultKind.ERROR, operations=[operation], count=1, error=ServiceBusQuotaExceededError
    ),
    "invalid": lambda operation: Fault(FaultKind.ERROR, operations=[operation], count=1, error=InvalidOperationError),
    "internal": lambda operation: Fault(FaultKind.ERROR, operations=[operation], count=1),
}
CUT: Final = "cut"
FINE: Final = "fine"
DOUBTFUL: Final = {"lost", "down", CUT}


class Script:
    """Injects the next fault of a script before each request of a kind; the last one again when it is used up."""

    def __init__(self, host: BrokerHost, operation: Operation, kinds: Sequence[str]) -> None:
        self.met: list[str] = []
        self.is_on = False
        self._kinds = deque(kinds)
        self._operation = operation
        self._host = host
        self._perform = host.perform_now
        vars(host)["perform_now"] = self._scripted

    def _scripted(self, operation: Operation, *args: Any, **kwargs: Any) -> Any:
        if self.is_on and operation is self._operation:
            kind = self._kinds.popleft() if len(self._kinds) > 1 else self._kinds[0]
            self.met.append(kind)
            if kind in FAULTS:
                self._host.inject(FAULTS[kind](operation))
            elif kind == CUT:
                performed = self._perform(operation, *args, **kwargs)
                performed.error = performed.error or ServiceBusConnectionError("cut before the answer")
                return performed
        return self._perform(operation, *args, **kwargs)


Kinds: TypeAlias = tuple[tuple[str, ...], tuple[str, ...]]


def scripts(share: int) -> list[Kinds]:
    """What the first request and all further ones meet: at the primary everything, at the secondary another order."""
    pairs: list[tuple[str, ...]] = list(product(("lost", CUT, "busy"), FAULTS))
    turned = [pairs[(5 * index + share) % len(pairs)] for index in range(len(pairs))]  # a step of 5 leaves none out
    return [*zip(pairs, turned, strict=True), *zip(pairs, turned[::-1], strict=True)]


async def check(
    pair: MemoryPair,
    operation: Operation,
    script: Kinds,
    work: Callable[[], Awaitable[Sequence[BaseException | None]]],
    happened: Callable[[], Awaitable[Sequence[bool]]],
    doubtful: Collection[str] = DOUBTFUL,
) -> None:
    """Run works under a script, and compare each error with what has happened.

    Args:
        doubtful: one of these was met where an error is in doubt.
    """
    both = [Script(host, operation, kinds) for host, kinds in zip((pair.primary, pair.secondary), script, strict=True)]
    for one in both:
        one.is_on = True
    errors = await work()
    for one in both:
        one.is_on = False
    pair.primary.heal()
    pair.secondary.heal()
    met = [one.met for one in both]
    for error, has_happened in zip(errors, await happened(), strict=True):
        if error is None:
            assert has_happened, met
            continue
        assert isinstance(error, ServiceBusError), met
        assert error.is_in_doubt or not has_happened, (met, error)
        assert not error.is_in_doubt or set(doubtful) & set(chain(*met)), met


async def stored(pair: MemoryPair) -> set[str]:
    """The ids of the messages in the queue and in the backlog."""
    found = [
        *(await waiting(pair, [QUEUE], secondary=False)).values(),
        *(await waiting(pair)).values(),
        *(await waiting(pair, SESSION_BACKLOG)).values(),
    ]
    return {str(message.message_id) for messages in found for message in messages}


SENDS: Final[dict[str, PairedNamespaceOptions | None]] = {
    "unpaired": None,
    "at once": options(failover_interval=0),
    "failed over": options(failover_interval=0),
    "while suspect": options(failover_interval=60, divert_while_suspect=True),
    "while it waits": options(failover_interval=60),
    "in order": options(failover_interval=0, ordering="session"),
}


@pytest.mark.parametrize(("how", "form"), [*product(SENDS, ["one", "several", "list"]), ("in order", "sessions")])
async def test_a_send(how: str, form: str) -> None:
    for script in scripts(len(how) + len(form)):
        await send_under(script, how, form)


async def send_under(script: Kinds, how: str, form: str) -> None:
    chosen, pair = SENDS[how], memory_pair(seed=1)
    await make_queue(pair)
    client = pair.unpaired_client(retry_total=1) if chosen is None else pair.client(chosen, retry_total=1)
    async with client, client.get_queue_sender(QUEUE) as sender:
        sessions = dict(zip("abc", ["sa", "sb", "sa"] if form == "sessions" else ["s"] * 3, strict=True))
        messages = [
            ServiceBusMessage(text, message_id=text, session_id=session if how == "in order" else None)
            for text, session in sessions.items()
        ]
        await sender.send_messages(ServiceBusMessage("0", message_id="0", session_id=messages[0].session_id))
        if how == "failed over":
            client.pair.force_failover(QUEUE)
        elif how == "while it waits":  # after the first attempt
            clock.call_later(0.1, partial(client.pair.force_failover, QUEUE))
        if form == "several":  # the first leaves alone
            script = ((FINE, *script[0]), (FINE, *script[1]))
        groups = [[message] for message in messages] if form == "several" else [messages[: 1 if form == "one" else 3]]

        async def work() -> list[BaseException | None]:
            if form == "sessions":
                calls = [sender.send_encoded(encoded(messages), sessions=["sa", "sb"], timeout=60)]
            else:
                calls = [sender.send_messages(group if len(group) > 1 else group[0]) for group in groups]
            return await asyncio.gather(*calls, return_exceptions=True)

        async def happened() -> list[bool]:
            found = await stored(pair)
            return [any(str(message) in found for message in group) for group in groups]

        # Parts go to the queues of their sessions: after the first one the others are in doubt.
        doubtful = {*DOUBTFUL, FINE} if form == "sessions" else DOUBTFUL
        await check(pair, Operation.SEND, script, work, happened, doubtful)


ALONE: Final[list[Kinds]] = [((one, then), ("busy",)) for one, then in product(["lost", CUT, "busy"], FAULTS)]
PARTS: Final[list[Kinds]] = [((one, then), ("busy",)) for one, then in product([*FAULTS, FINE], repeat=2)]
OTHERS: Final[dict[str, Operation]] = {
    "schedule": Operation.SCHEDULE,
    "cancel": Operation.CANCEL,
    "cancel in partitions": Operation.CANCEL,
    "complete": Operation.SETTLE,
    "dead-letter": Operation.SETTLE,
    "set the state": Operation.SESSION,
}


@pytest.mark.parametrize("what", OTHERS)
async def test_another_operation(what: str) -> None:
    for script in PARTS if what == "cancel in partitions" else ALONE:
        await operate_under(script, what)


async def operate_under(script: Kinds, what: str) -> None:
    names = "abcdefgh" if what == "cancel in partitions" else "a"
    session = "s" if what == "set the state" else None
    pair = memory_pair(seed=1)
    await make_queue(pair, requires_session=session is not None, enable_partitioning=len(names) > 1)
    async with pair.unpaired_client(retry_total=1) as client, client.get_queue_sender(QUEUE) as sender:
        due = datetime.fromtimestamp(clock.now(), UTC) + timedelta(days=1)
        key = (lambda name: name) if len(names) > 1 else (lambda _: session)
        messages = [
            ServiceBusMessage(name, message_id=name, session_id=session, partition_key=key(name)) for name in names
        ]
        receiver = client.get_queue_receiver(QUEUE, session_id=session)
        call: Callable[[], Awaitable[Any]] = partial(sender.schedule_messages, messages, due)
        if OTHERS[what] is Operation.CANCEL:
            numbers = [number for one in messages for number in await sender.schedule_messages(one, due)]
            call = partial(sender.cancel_scheduled_messages, numbers)
        elif what != "schedule":
            await sender.send_messages(messages)
            (received,) = await receiver.receive_messages()
            settle = receiver.complete_message if what == "complete" else receiver.dead_letter_message
            call = partial(settle, received)
        if receiver.session is not None:
            call = partial(receiver.session.set_state, b"new")

        async def work() -> list[BaseException | None]:
            (result,) = await asyncio.gather(call(), return_exceptions=True)
            return [result if isinstance(result, BaseException) else None]

        async def happened() -> list[bool]:
            await receiver.close()
            if session is None:
                return [bool(set(names) - await stored(pair)) == (what != "schedule")]
            async with client.get_queue_receiver(QUEUE, session_id=session) as another:
                assert another.session is not None
                return [await another.session.get_state() == b"new"]

        # After a partial success the error is in doubt, too.
        await check(pair, OTHERS[what], script, work, happened, {*DOUBTFUL, *([FINE] if len(names) > 1 else [])})


OUTCOMES: Final[dict[str, Callable[[], BaseException | None]]] = {
    "done": lambda: None,
    "refused": lambda: InvalidOperationError("x"),
    "in doubt": lambda: ServiceBusConnectionError("x", is_in_doubt=True),
    "failed": lambda: OSError("x"),
}


async def test_an_operation_in_parts_is_in_doubt_unless_all_parts_are_refused() -> None:
    for outcomes in product(OUTCOMES, repeat=3):
        errors = iter([OUTCOMES[outcome]() for outcome in outcomes])

        async def work(part: list[int]) -> None:
            if (error := next(errors)) is not None:  # noqa: B023
                raise error

        (error,) = await asyncio.gather(each_part(work, [[1], [2], [3]]), return_exceptions=True)
        first = next((outcome for outcome in outcomes if outcome != "done"), None)
        assert type(error) is type(OUTCOMES[first]() if first else None), outcomes
        if isinstance(error, ServiceBusError):
            assert error.is_in_doubt is (set(outcomes) != {"refused"}), outcomes


@pytest.mark.parametrize("first", ["cancel", "close"])
async def test_a_call_that_is_cancelled_while_its_owner_is_closed_is_cancelled(first: str) -> None:
    calls = Calls("the receiver of 'orders'")
    task = asyncio.create_task(calls.run(clock.sleep(60.0)))
    await clock.sleep(1.0)
    for step in (task.cancel, calls.end) if first == "cancel" else (calls.end, task.cancel):
        step()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_task_goes_on_after_the_end_of_its_call() -> None:
    calls = Calls("the receiver of 'orders'")

    async def work() -> int:
        with pytest.raises(InvalidOperationError, match="'orders' was closed"):
            await calls.run(clock.sleep(60.0))
        await clock.sleep(1.0)
        task = asyncio.current_task()
        assert task is not None
        return task.cancelling()

    task = asyncio.create_task(work())
    await clock.sleep(1.0)
    calls.end()
    assert await task == 0


async def test_a_cancellation_before_a_call_is_not_one_of_the_call() -> None:
    calls = Calls("the receiver of 'orders'")

    async def work() -> int:
        with suppress(asyncio.CancelledError):
            await clock.sleep(60.0)
        with pytest.raises(InvalidOperationError, match="'orders' was closed"):
            await calls.run(clock.sleep(60.0))
        task = asyncio.current_task()
        assert task is not None
        return task.cancelling()

    task = asyncio.create_task(work())
    await clock.sleep(1.0)
    task.cancel()
    await clock.sleep(1.0)
    calls.end()
    assert await task == 1


async def test_a_change_is_in_doubt_if_its_owner_is_closed_meanwhile() -> None:
    due = datetime.fromtimestamp(clock.now(), UTC) + timedelta(days=1)
    for what in ("schedule", "cancel", "set_state", "get_state", "renew_lock", "peek"):
        pair = memory_pair(seed=1)
        await make_queue(pair, requires_session=True)
        async with pair.unpaired_client() as client:
            sender, receiver = client.get_queue_sender(QUEUE), client.get_queue_receiver(QUEUE, session_id="s")
            await receiver.__aenter__()
            (number,) = await sender.schedule_messages(ServiceBusMessage("x", session_id="s"), due)
            call: Any = {
                "schedule": lambda: sender.schedule_messages(ServiceBusMessage("y", session_id="s"), due),  # noqa: B023
                "cancel": lambda: sender.cancel_scheduled_messages([number]),  # noqa: B023
                "set_state": lambda: receiver.session.set_state(b"x"),  # noqa: B023
                "get_state": receiver.session.get_state,
                "renew_lock": receiver.session.renew_lock,
                "peek": receiver.peek_messages,
            }[what]
            pair.primary.inject(Fault(FaultKind.HANG))
            calling = asyncio.create_task(call())
            await clock.sleep(1)
            closing = asyncio.create_task((sender if what in ("schedule", "cancel") else receiver).close())
            changes = what in ("schedule", "cancel", "set_state")
            with pytest.raises(ServiceBusConnectionError if changes else InvalidOperationError) as caught:
                await calling
            assert caught.value.is_in_doubt == changes
            pair.primary.heal()
            await closing
