"""Waiting, turns, timers and lost answers: the broker in running time."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from sbclient import clock
from sbclient.amqp import encode_message
from sbclient.broker.entry import WORK_AT_ONCE, Entry, Selector
from sbclient.broker.faults import Call, Fault, FaultKind, Operation
from sbclient.broker.profile import STD_2021
from sbclient.broker.session import SessionLock
from sbclient.delivery import NEXT_AVAILABLE_SESSION, ServiceBusReceiveMode
from sbclient.entities import (
    EntityAddress,
    EntityKind,
    QueueProperties,
    RuleProperties,
    SqlRuleAction,
    SubscriptionProperties,
    TopicProperties,
    TrueRuleFilter,
)
from sbclient.errors import (
    InvalidOperationError,
    MessageLockLostError,
    MessagingEntityNotFoundError,
    OperationTimeoutError,
    ServiceBusConnectionError,
    ServiceBusInternalError,
    ServiceBusQuotaExceededError,
    SessionCannotBeLockedError,
    SessionLockLostError,
)
from sbclient.hosting.host import BrokerHost, Performed
from sbclient.message import ServiceBusMessage, ServiceBusReceivedMessage
from sbclient.testing import VirtualLoop, run_virtual
from tests.broker.driver import (
    ABANDON,
    COMPLETE,
    DEAD_LETTER,
    DEFER,
    KEYS,
    address,
    at,
    bodies,
    message,
    seconds,
    topic_address,
)


class Running:
    """A host, with short words for what the tests ask of it."""

    def __init__(self, **how: Any) -> None:
        self.host = BrokerHost("contoso", random=Random(1), **how)
        self.namespace = self.host.namespace

    def create(self, name: str = "q", **described: Any) -> None:
        call = Call(Operation.MANAGE, clock.now())
        self.namespace.management.create(call, address(name), QueueProperties(name, **described))

    async def send(self, *messages: ServiceBusMessage, path: str = "q", timeout_s: float = 60.0) -> None:
        await self.host.perform(
            Operation.SEND,
            path,
            lambda call: self.namespace.send(call, path, [encode_message(message) for message in messages]),
            timeout_s=timeout_s,
        )

    async def receive(self, wait_s: float = 60.0, count: int = 1, path: str = "q", **how: Any) -> list[str]:
        return bodies(await self.taken(wait_s, count, path, **how))

    async def taken(
        self, wait_s: float = 60.0, count: int = 1, path: str = "q", **how: Any
    ) -> list[ServiceBusReceivedMessage]:
        taken = await self.host.receive(path, max_message_count=count, max_wait_time_s=wait_s, **how)
        return [entry.received() for entry in taken]

    def settle(self, message: ServiceBusReceivedMessage, how: Any = COMPLETE, path: str = "q") -> None:
        assert message.lock_token is not None
        call = Call(Operation.SETTLE, clock.now())
        self.namespace.settle(call, path, [message.lock_token], how)


@pytest.fixture
async def running() -> Running:
    made = Running()
    made.create()
    made.create("p", enable_partitioning=True)
    made.create("s", requires_session=True)
    return made


def elapsed() -> float:
    return asyncio.get_running_loop().time()


async def after(span_s: float, work: Any) -> Any:
    await asyncio.sleep(span_s)
    outcome = work()
    return await outcome if asyncio.iscoroutine(outcome) else outcome


async def test_a_receive_returns_available_messages_at_once(running: Running) -> None:
    await running.send(message("a"), message("b"))
    assert await running.receive(count=5) == ["a", "b"]
    assert elapsed() == 0


async def test_a_receive_waits_for_its_wait_time_at_most(running: Running) -> None:
    assert await running.receive(7.0) == []
    assert elapsed() == 7.0
    assert await running.receive(0.0) == []
    assert elapsed() == 7.0
    assert not running.host._waiting.queues


async def test_a_waiting_receiver_gets_what_becomes_available_after_other_timed_changes(running: Running) -> None:
    running.create("once", lock_duration=seconds(5), max_delivery_count=1)
    await running.send(message("dead-lettered"), message("deferred", time_to_live=seconds(10)), path="once")
    _, deferred = await running.taken(count=2, path="once")
    running.settle(deferred, DEFER, path="once")
    due = at(clock.now() + 20)
    await running.send(message("scheduled", scheduled_enqueue_time_utc=due), path="once")
    assert await running.receive(60, path="once") == ["scheduled"]
    assert elapsed() == 20
    assert await running.receive(0, path="once/$deadletterqueue") == ["dead-lettered"]


async def test_a_send_wakes_a_receiver_which_gets_the_whole_batch(running: Running) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(after(5, lambda: running.send(message("a"), message("b"))))
        assert await running.receive(60, count=5) == ["a", "b"]
    assert elapsed() == 5


async def test_receivers_are_served_in_the_order_of_arrival(running: Running) -> None:
    served: list[int] = []

    async def wait(place: int) -> None:
        await running.receive()
        served.append(place)

    async with asyncio.TaskGroup() as group:
        for place in range(10):
            group.create_task(wait(place))
        group.create_task(after(1, lambda: running.send(*(message() for _ in range(10)))))
    assert served == list(range(10))


async def test_a_new_receiver_waits_behind_the_others(running: Running) -> None:
    first = asyncio.create_task(running.receive())
    await asyncio.sleep(1)
    running.namespace.send(Call(Operation.SEND, clock.now()), "q", [encode_message(message("a"))])
    newcomer = asyncio.create_task(running.receive(10))
    assert await first == ["a"]
    assert await newcomer == []


async def test_a_new_receiver_does_not_overtake_a_woken_one(running: Running) -> None:
    first = asyncio.create_task(running.receive())
    await asyncio.sleep(1)
    newcomer = asyncio.create_task(running.receive(10))
    await asyncio.sleep(0)
    running.namespace.send(Call(Operation.SEND, clock.now()), "q", [encode_message(message("a"))])
    assert await newcomer == []
    assert await first == ["a"]


async def test_a_woken_receiver_without_a_message_waits_again(running: Running) -> None:
    waiting = asyncio.create_task(running.receive(5))
    await asyncio.sleep(1)
    now = clock.now()
    running.namespace.send(Call(Operation.SEND, now), "q", [encode_message(message("a"))])
    assert len(running.namespace.receive(Call(Operation.RECEIVE, now), "q", max_message_count=1)) == 1
    assert await waiting == []
    assert elapsed() == 5


@pytest.mark.parametrize("moment", range(4))
async def test_a_cancelled_receive_loses_no_message(running: Running, moment: int) -> None:
    waiting = asyncio.create_task(running.receive())
    other = asyncio.create_task(running.receive())
    await asyncio.sleep(1)
    sending = asyncio.create_task(running.send(message("a")))
    for _ in range(moment):
        await asyncio.sleep(0)
    waiting.cancel()
    await sending
    given = await asyncio.gather(waiting, return_exceptions=True)
    received = [] if isinstance(given[0], BaseException) else given[0]
    assert received + (await other if not received else []) == ["a"]
    assert elapsed() == 1
    other.cancel()


async def test_an_ended_lock_wakes_a_receiver(running: Running) -> None:
    await running.send(message("a"))
    assert await running.receive() == ["a"]
    (again,) = await running.taken(100)
    assert (elapsed(), again.delivery_count) == (60.0, 1)


async def test_an_abandoned_message_wakes_a_receiver(running: Running) -> None:
    await running.send(message("a"))
    (held,) = await running.taken()
    async with asyncio.TaskGroup() as group:
        group.create_task(after(3, lambda: running.settle(held, ABANDON)))
        assert await running.receive() == ["a"]
    assert elapsed() == 3


async def test_scheduled_message_wakes_a_waiting_receiver(running: Running) -> None:
    async with asyncio.TaskGroup() as group:
        later = at(clock.now() + 30)
        group.create_task(after(2, lambda: running.send(message("later", scheduled_enqueue_time_utc=later))))
        sooner = at(clock.now() + 20)
        group.create_task(after(3, lambda: running.send(message("sooner", scheduled_enqueue_time_utc=sooner))))
        assert await running.receive() == ["sooner"]
        assert elapsed() == 20
        assert await running.receive() == ["later"]
    assert elapsed() == 30


async def test_an_expired_message_wakes_a_receiver_of_dead_letters(running: Running) -> None:
    running.create("mortal", dead_lettering_on_message_expiration=True)
    await running.send(message("a", time_to_live=seconds(9)), path="mortal")
    assert await running.receive(path="mortal/$DeadLetterQueue") == ["a"]
    assert elapsed() == 9


async def test_a_message_scheduled_on_a_topic_wakes_its_subscription(running: Running) -> None:
    management, now = running.namespace.management, clock.now()
    management.create(Call(Operation.MANAGE, now), topic_address("t"), TopicProperties("t"))
    management.create(Call(Operation.MANAGE, now), address("t/Subscriptions/x"), SubscriptionProperties("x"))
    async with asyncio.TaskGroup() as group:
        sent = message("a", scheduled_enqueue_time_utc=at(now + 8))
        group.create_task(after(1, lambda: running.send(sent, path="t")))
        assert await running.receive(path="t/Subscriptions/x") == ["a"]
    assert elapsed() == 8


async def test_a_forwarded_message_wakes_the_receiver_at_the_end(running: Running) -> None:
    running.create("source", forward_to="q", dead_lettering_on_message_expiration=True)
    async with asyncio.TaskGroup() as group:
        group.create_task(after(2, lambda: running.send(message("a"), path="source")))
        assert await running.receive() == ["a"]
        assert elapsed() == 2
        later = at(clock.now() + 10)
        await running.send(message("b", scheduled_enqueue_time_utc=later), path="source")
        assert await running.receive() == ["b"]
    assert elapsed() == 12


@pytest.mark.parametrize("source", ["end", "near", "far", "topic"])
@pytest.mark.parametrize("waits_at", ["end", "end/$DeadLetterQueue", "dead"])
@pytest.mark.parametrize("schedule_s", [0.0, 3.0])
@pytest.mark.parametrize("late_s", [-1.0, 0.5])
async def test_a_message_wakes_a_receiver_in_time_wherever_it_came_from(
    source: str, waits_at: str, schedule_s: float, late_s: float
) -> None:
    """The receiver waits before or after the send. The message reaches `end` at once, by queues or a subscription that
    forward it, and expires there, or is forwarded as a dead letter."""
    running = Running()
    running.create("dead")
    to = "dead" if waits_at == "dead" else None
    running.create("end", dead_lettering_on_message_expiration=True, forward_dead_lettered_messages_to=to)
    running.create("near", forward_to="end")
    running.create("far", forward_to="near")
    call, management = Call(Operation.MANAGE, clock.now()), running.namespace.management
    management.create(call, topic_address("topic"), TopicProperties("topic"))
    management.create(call, address("topic/Subscriptions/x"), SubscriptionProperties("x", forward_to="end"))
    life = None if waits_at == "end" else seconds(2)
    later = at(clock.now() + 1 + schedule_s) if schedule_s else None
    async with asyncio.TaskGroup() as group:
        sent = message("m", scheduled_enqueue_time_utc=later, time_to_live=life)
        group.create_task(after(1.0, lambda: running.send(sent, path=source)))
        await asyncio.sleep(1.0 + late_s)
        assert await running.receive(path=waits_at) == ["m"]
    assert elapsed() == pytest.approx(max(1.0 + schedule_s + (2.0 if life else 0.0), 1.0 + late_s))


@pytest.mark.parametrize("schedule_s", [0.0, 3.0])
async def test_a_copy_that_expires_in_a_subscription_wakes_the_receiver_of_its_dead_letters(schedule_s: float) -> None:
    running = Running()
    call, management = Call(Operation.MANAGE, clock.now()), running.namespace.management
    management.create(call, topic_address("topic"), TopicProperties("topic"))
    kept = SubscriptionProperties("x", dead_lettering_on_message_expiration=True)
    management.create(call, address("topic/Subscriptions/x"), kept)
    later = at(clock.now() + 1 + schedule_s) if schedule_s else None
    async with asyncio.TaskGroup() as group:
        sent = message("m", scheduled_enqueue_time_utc=later, time_to_live=seconds(2))
        group.create_task(after(1.0, lambda: running.send(sent, path="topic")))
        assert await running.receive(path="topic/Subscriptions/x/$DeadLetterQueue") == ["m"]
    assert elapsed() == pytest.approx(3.0 + schedule_s)


async def test_a_dead_letter_wakes_the_receiver_of_the_dead_letter_queue(running: Running) -> None:
    await running.send(message("a"))
    (held,) = await running.taken()
    async with asyncio.TaskGroup() as group:
        group.create_task(after(4, lambda: running.settle(held, DEAD_LETTER)))
        assert await running.receive(path="Q/$deadletterqueue") == ["a"]


async def test_deleting_an_entity_ends_the_wait(running: Running) -> None:
    call = Call(Operation.MANAGE, clock.now())
    waiting = asyncio.create_task(running.receive())
    await asyncio.sleep(2)
    running.namespace.management.delete(call, address("q"))
    with pytest.raises(MessagingEntityNotFoundError):
        await waiting
    assert elapsed() == 2


async def test_receiving_from_a_missing_entity_fails_at_once(running: Running) -> None:
    with pytest.raises(MessagingEntityNotFoundError):
        await running.receive(path="nowhere")


async def test_a_waited_for_queue_is_not_idle(running: Running) -> None:
    running.create("idle", auto_delete_on_idle=seconds(300))
    assert await running.receive(1000, path="idle") == []
    await running.send(message("a"), path="idle")


async def test_a_batch_receive_returns_the_messages_available_with_the_first(running: Running) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(after(2, lambda: running.send(message("a"), message("b"))))
        group.create_task(after(3, lambda: running.send(message("c"))))
        assert await running.receive(60, count=10) == ["a", "b"]
        assert elapsed() == 2


@pytest.mark.parametrize("waits_at", ["t/Subscriptions/x", "T/subscriptions/y", "t/Subscriptions/x/$DeadLetterQueue"])
@pytest.mark.parametrize("joins_at", ["t/Subscriptions/y", "t/subscriptions/y/$DeadLetterQueue", "q/$DeadLetterQueue"])
async def test_the_waiting_receivers_of_an_entity_with_all_its_parts_are_limited(waits_at: str, joins_at: str) -> None:
    running = Running(profile=replace(STD_2021, max_concurrent_receives=3))
    management, now = running.namespace.management, clock.now()
    running.create("q")
    management.create(Call(Operation.MANAGE, now), topic_address("t"), TopicProperties("t"))
    for name in "xy":
        where = address(f"t/Subscriptions/{name}")
        management.create(Call(Operation.MANAGE, now), where, SubscriptionProperties(name))
    for _ in range(2):  # who has left does not count
        others = [asyncio.create_task(running.receive(10, path=waits_at)) for _ in range(2)]
        await asyncio.sleep(1)
        assert await running.receive(1, path=joins_at) == []
        others.append(asyncio.create_task(running.receive(8, path=waits_at)))
        await asyncio.sleep(1)
        if joins_at.startswith("q"):
            assert await running.receive(1, path=joins_at) == []
        else:
            with pytest.raises(ServiceBusQuotaExceededError):
                await running.receive(1, path=joins_at)
        others[0].cancel()
        await asyncio.sleep(1)
        assert await running.receive(1, path=joins_at) == []
        await asyncio.wait(others)
    assert running.host._waiting._counts == {}
    assert STD_2021.max_concurrent_receives == 5_000


# ---------------------------------------------------------------------- faults


async def test_waits_fail_when_the_namespace_goes_down(running: Running) -> None:
    waiting = asyncio.create_task(running.receive())
    await asyncio.sleep(2)
    running.host.inject(Fault(FaultKind.DOWN))
    with pytest.raises(ServiceBusConnectionError):
        await waiting
    assert elapsed() == 2


@pytest.mark.parametrize("path", ["q", "s"])
@pytest.mark.parametrize("waits_s", [0, 2])
async def test_a_check_ends_a_receive_and_an_accept_before_they_take_anything(
    running: Running, path: str, waits_s: int
) -> None:
    is_closed = waits_s == 0

    def check() -> None:
        if is_closed:
            raise ServiceBusConnectionError("closed")

    if path == "q":
        waiting = asyncio.create_task(running.receive(check=check))
    else:
        accepting = running.host.accept_session("s", NEXT_AVAILABLE_SESSION, timeout_s=60, check=check)
        waiting = asyncio.create_task(accepting)  # type: ignore[arg-type]  # its error alone is looked at
    await asyncio.sleep(waits_s)
    is_closed = True
    running.host.wake(path)
    with pytest.raises(ServiceBusConnectionError, match="closed"):
        await waiting
    assert elapsed() == waits_s
    await running.send(message("a", session_id="x"), path=path)
    lock = await accept(running, 0) if path == "s" else None
    assert await running.receive(0, path=path, lock=lock) == ["a"]


async def test_a_receiver_with_a_selector_does_not_hold_up_others(running: Running) -> None:
    chosen = asyncio.create_task(running.taken(selector=Selector(lambda entry: (entry.content.body == b"b", 1))))
    await asyncio.sleep(1)
    plain = asyncio.create_task(running.receive())
    await asyncio.sleep(1)
    await running.send(message("a"))
    assert await plain == ["a"]
    await running.send(message("b"))
    assert bodies(await chosen) == ["b"]
    assert elapsed() == 2


async def test_listeners_hear_of_each_update_and_the_failure_of_one_undoes_nothing(
    running: Running, caplog: pytest.LogCaptureFixture
) -> None:
    def update(attempts: int) -> Performed[object]:
        changed = QueueProperties("q", max_delivery_count=attempts)
        return running.host.perform_now(
            Operation.MANAGE, None, lambda call: running.namespace.management.update(call, address("q"), changed)
        )

    def fails(_: str) -> None:
        raise ZeroDivisionError

    heard: list[str] = []
    for attempts, listener in ((3, heard.append), (4, fails), (5, heard.append)):
        running.host.update_listeners[listener] = None
        assert update(attempts).result() == running.namespace.management.get(
            Call(Operation.MANAGE, clock.now()), address("q")
        )
        running.host.update_listeners.pop(fails, None)
    assert heard == ["q", "q", "q"]
    (record,) = caplog.records
    assert (record.levelname, record.name.split(".")[0]) == ("ERROR", "sbclient")
    assert "a callback failed, the operation is done" in record.getMessage()


async def test_a_fault_of_an_entity_that_does_not_exist_is_logged(
    running: Running, caplog: pytest.LogCaptureFixture
) -> None:
    for path in ("q", "Q/$DeadLetterQueue", "qq"):
        running.host.inject(Fault(FaultKind.DOWN, path))
    assert [(record.levelname, record.message) for record in caplog.records] == [
        ("WARNING", "qq does not exist in contoso; the fault takes effect when it is created")
    ]


async def test_a_receive_from_a_hanging_entity_waits_until_it_is_healed(running: Running) -> None:
    await running.send(message("a"))
    fault = running.host.inject(Fault(FaultKind.HANG, "q"))
    async with asyncio.TaskGroup() as group:
        group.create_task(after(10, lambda: running.host.heal(fault)))
        assert await running.receive(5) == []
        assert elapsed() == 5
        assert await running.receive() == ["a"]
    assert elapsed() == 10


async def test_a_fault_that_heals_by_itself_wakes_receivers(running: Running) -> None:
    await running.send(message("a", partition_key=KEYS[3]), path="p")
    until = clock.now() + 7
    running.host.inject(Fault(FaultKind.DOWN, "p", fragments=[3], until_at=until))
    assert await running.receive(path="p") == ["a"]
    assert elapsed() == 7


@pytest.mark.parametrize("fragments", [None, [3]])
async def test_a_slow_entity_delivers_later(running: Running, fragments: list[int] | None) -> None:
    await running.send(message("a", partition_key=KEYS[3]), path="p")
    running.host.inject(Fault(FaultKind.SLOW, "p", fragments=fragments, latency_s=3.0))
    assert await running.receive(2, path="p") == []
    assert await running.receive(path="p") == ["a"]
    assert elapsed() == 5


async def test_a_lost_answer_to_a_receive_costs_a_delivery(running: Running) -> None:
    await running.send(message("a"))
    fault = running.host.inject(Fault(FaultKind.LOSE_ACKNOWLEDGEMENT, "q", operations=[Operation.RECEIVE]))
    assert await running.receive(10) == []
    assert elapsed() == 10
    running.host.heal(fault)
    (again,) = await running.taken(100)
    assert (elapsed(), again.delivery_count) == (60, 1)


@pytest.mark.parametrize(
    ("fault", "stored"),
    [(Fault(FaultKind.HANG, "q"), []), (Fault(FaultKind.LOSE_ACKNOWLEDGEMENT, "q", count=1), ["a"])],
    ids=["hang", "lost acknowledgement"],
)
async def test_a_request_without_an_answer_ends_with_its_timeout(
    running: Running, fault: Fault, stored: list[str]
) -> None:
    """One that hangs did nothing; the message of one whose acknowledgement was lost is stored."""
    running.host.inject(fault)
    with pytest.raises(OperationTimeoutError, match=r"within the allotted timeout: [qps] did not answer"):
        await running.send(message("a"), timeout_s=10)
    assert elapsed() == 10
    running.host.heal()
    assert await running.receive(0) == stored


@pytest.mark.parametrize(("timeout_s", "is_in_time"), [(10.0, False), (14.9, False), (15.0, True), (60.0, True)])
async def test_a_timeout_must_exceed_15_seconds(running: Running, timeout_s: float, is_in_time: bool) -> None:
    running.host.inject(Fault(FaultKind.HANG, "p", fragments=list(range(15))))
    if is_in_time:
        await running.send(message("a"), path="p", timeout_s=timeout_s)
        assert elapsed() == 15
    else:
        with pytest.raises(OperationTimeoutError, match=r"within the allotted timeout: [qps] did not answer"):
            await running.send(message("a"), path="p", timeout_s=timeout_s)
        assert elapsed() == timeout_s
    assert await running.receive(0, path="p") == ["a"]


async def test_an_error_of_a_slow_entity_is_late_too(running: Running) -> None:
    running.host.inject(Fault(FaultKind.SLOW, "s", latency_s=4.0))
    with pytest.raises(ValueError, match="requires sessions"):
        await running.send(message("a"), path="s")
    assert elapsed() == 4
    with pytest.raises(OperationTimeoutError, match=r"within the allotted timeout: [qps] did not answer"):
        await running.send(message("a"), path="s", timeout_s=1)


async def test_a_request_to_the_namespace_times_out_too(running: Running) -> None:
    running.host.inject(Fault(FaultKind.HANG))
    with pytest.raises(OperationTimeoutError, match="contoso did not answer to transaction"):
        await running.host.perform(Operation.TRANSACTION, None, running.namespace.begin_transaction, timeout_s=3)
    assert elapsed() == 3


async def test_a_request_cancelled_before_it_runs_has_no_effect(running: Running) -> None:
    sending = asyncio.create_task(running.send(message("a")))
    await asyncio.sleep(0)
    sending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sending
    assert await running.receive(0) == []


# ---------------------------------------------------------------------- sessions


async def accept(running: Running, timeout_s: float = 60.0, session: Any = NEXT_AVAILABLE_SESSION) -> SessionLock:
    return await running.host.accept_session("s", session, timeout_s=timeout_s)


async def test_accepting_waits_for_a_session(running: Running) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(after(5, lambda: running.send(message("a", session_id="x"), path="s")))
        assert (await accept(running)).session_id == "x"
    assert elapsed() == 5


async def test_accepting_a_session_times_out(running: Running) -> None:
    with pytest.raises(OperationTimeoutError) as caught:
        await accept(running, 9)
    assert elapsed() == 9
    assert not caught.value.is_in_doubt


async def test_a_named_session_that_is_held_is_refused_at_once(running: Running) -> None:
    await accept(running, session="x")
    with pytest.raises(SessionCannotBeLockedError):
        await accept(running, session="x")
    assert elapsed() == 0


async def test_an_ended_session_lock_wakes_waiting_acceptors_and_receivers(running: Running) -> None:
    await running.send(message("a", session_id="x"), path="s")
    lock = await accept(running)
    assert await running.receive(path="s", lock=lock) == ["a"]
    receiving = asyncio.create_task(running.receive(100, path="s", lock=lock))
    assert (await accept(running, 100)).session_id == "x"
    with pytest.raises(SessionLockLostError):
        await receiving
    assert elapsed() == 60


async def test_a_released_session_wakes_a_waiting_acceptor(running: Running) -> None:
    await running.send(message("a", session_id="x"), path="s")
    lock = await accept(running)
    async with asyncio.TaskGroup() as group:
        call = Call(Operation.SESSION, clock.now() + 3)
        group.create_task(after(3, lambda: running.namespace.release_session(call, "s", lock)))
        assert (await accept(running)).session_id == "x"
    assert elapsed() == 3


async def test_a_slow_accept_is_late_and_a_lost_one_holds_the_session(running: Running) -> None:
    await running.send(message("a", session_id="x"), path="s")
    running.host.inject(Fault(FaultKind.SLOW, "s", operations=[Operation.SESSION], latency_s=2.0, count=1))
    lock = await accept(running)
    assert elapsed() == 2
    running.namespace.release_session(Call(Operation.SESSION, clock.now()), "s", lock)
    running.host.inject(Fault(FaultKind.LOSE_ACKNOWLEDGEMENT, "s", operations=[Operation.SESSION], count=1))
    with pytest.raises(OperationTimeoutError) as caught:
        await accept(running, 5)
    assert caught.value.is_in_doubt
    with pytest.raises(SessionCannotBeLockedError):
        await accept(running, session="x")


@pytest.mark.parametrize("session", ["x", NEXT_AVAILABLE_SESSION])
@pytest.mark.parametrize("kind", [FaultKind.SLOW, FaultKind.LOSE_ACKNOWLEDGEMENT])
async def test_a_cancelled_accept_whose_answer_is_delayed_holds_no_session(
    running: Running, kind: FaultKind, session: Any
) -> None:
    await running.send(message("a", session_id="x"), path="s")
    latency: dict[str, Any] = {"latency_s": 5.0} if kind is FaultKind.SLOW else {}
    running.host.inject(Fault(kind, "s", operations=[Operation.SESSION], count=1, **latency))
    accepting = asyncio.create_task(accept(running, 20, session=session))
    await asyncio.sleep(2)
    accepting.cancel()
    await asyncio.wait([accepting])
    waiting = asyncio.create_task(running.host.accept_session("s", NEXT_AVAILABLE_SESSION, timeout_s=1))
    assert await running.receive(1, path="s", lock=await waiting) == ["a"]


async def test_one_message_wakes_one_of_many_sessions(running: Running) -> None:
    locks = [await accept(running, session=f"s{n}") for n in range(200)]
    waiting = [asyncio.create_task(running.receive(30, path="s", lock=lock)) for lock in locks]
    await asyncio.sleep(1)
    before = running.namespace.operation_count
    await running.send(message("a", session_id="s7"), path="s")
    assert await waiting[7] == ["a"]
    assert running.namespace.operation_count - before == 2
    assert sum(map(len, await asyncio.gather(*waiting))) == 1


# ---------------------------------------------------------------------- loops and front ends


def test_host_drops_waiters_of_closed_loops() -> None:
    running = Running()

    async def first() -> None:
        running.create()
        asyncio.get_running_loop().create_task(running.receive())
        await asyncio.sleep(1)
        await running.send(message("later", scheduled_enqueue_time_utc=at(clock.now() + 50)))

    async def second() -> list[str]:
        async with asyncio.TaskGroup() as group:
            group.create_task(after(5, lambda: running.send(message("a"))))
            return await running.receive() + await running.receive(100)

    run_virtual(first())
    assert run_virtual(second()) == ["a", "later"]


def test_a_waiter_of_a_closed_loop_is_skipped() -> None:
    running = Running()

    async def prepare() -> None:
        running.create()

    run_virtual(prepare())
    abandoned = VirtualLoop()
    task = abandoned.create_task(running.receive())
    abandoned.run_until_complete(asyncio.sleep(0.5))
    abandoned._ready.clear()
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    abandoned.close()

    async def second() -> list[str]:
        running.host.inject(Fault(FaultKind.BUSY, "other"))
        async with asyncio.TaskGroup() as group:
            group.create_task(after(5, lambda: running.send(message("a"))))
            return await running.receive()

    assert run_virtual(second()) == ["a"]


async def test_a_connection_gets_a_random_front_end() -> None:
    hosts = [BrokerHost("contoso", random=Random(seed), front_end_count=10**9) for seed in (1, 1, 2)]
    one, same, other = [[host.connect() for _ in range(3)] for host in hosts]
    assert one == same != other
    assert BrokerHost("contoso", front_end_count=2).connect() in (0, 1)
    running = Running(front_end_count=3)
    assert {running.host.connect() for _ in range(50)} == {0, 1, 2}


async def test_a_receiver_at_another_front_end_waits_for_the_locks_to_end() -> None:
    running = Running(front_end_count=2)
    running.create(enable_partitioning=True)
    for index in (1, 5):
        await running.send(message(str(index), partition_key=KEYS[index]))
    first = await running.taken(front_end=0)
    running.settle(first[0])
    (other,) = await running.taken(100, front_end=1)
    assert (elapsed(), other.delivery_count) == (60, 0)


@pytest.mark.parametrize("path", ["p", "p/$DeadLetterQueue"])
async def test_a_receiver_waiting_at_another_front_end_delays_no_other(path: str) -> None:
    running = Running(front_end_count=2)
    running.create("p", enable_partitioning=True)
    for index in range(4):
        await running.send(message(str(index), partition_key=KEYS[index]), path="p")
    if path != "p":
        for each in await running.taken(count=4, path="p"):
            running.settle(each, DEAD_LETTER, path="p")
    assert len(await running.receive(path=path, front_end=0)) == 1
    other = asyncio.create_task(running.receive(50, path=path, front_end=1))
    await asyncio.sleep(1)
    assert len(await running.receive(30, path=path, front_end=0)) == 1
    assert elapsed() == 1
    assert await other == []


async def test_receivers_at_several_front_ends_are_served_in_the_order_of_arrival() -> None:
    running = Running(front_end_count=2)
    running.create(enable_partitioning=True)
    served: list[int] = []

    async def wait(place: int, front_end: int) -> None:
        await running.receive(front_end=front_end)
        served.append(place)

    async with asyncio.TaskGroup() as group:
        for place, front_end in enumerate([0, 1, 1, 0, 1, 0]):
            group.create_task(wait(place, front_end))
        for moment in range(6):
            group.create_task(after(1 + moment, lambda: running.send(message(partition_key=KEYS[3]))))
    assert served == list(range(6))


@pytest.mark.parametrize("wait_s", [0.0, 5.0])
async def test_selectors_are_evaluated_one_call_in_a_step(running: Running, wait_s: float) -> None:
    """A call that may look at one message only is repeated until it has looked at all, also if it may not wait."""
    await running.send(*map(message, "abcde"))
    looked_at: list[bytes] = []
    in_this_step: list[bytes] = []

    def selector(wanted: bytes) -> Selector:
        def matches(entry: Entry) -> tuple[bool, int]:
            assert not in_this_step
            in_this_step.append(wanted)
            asyncio.get_running_loop().call_soon(in_this_step.clear)
            looked_at.append(wanted)
            return bytes(entry.content) == wanted, WORK_AT_ONCE

        return Selector(matches)

    receivers = [running.receive(wait_s, selector=selector(wanted)) for wanted in (b"e", b"d", b"x")]
    assert await asyncio.gather(*receivers) == [["e"], ["d"], []]
    assert [looked_at.count(wanted) for wanted in (b"e", b"d")] == [5, 4]
    assert elapsed() == wait_s


async def test_the_error_of_a_check_prevents_the_request(running: Running) -> None:
    done: list[Call] = []

    def refuse() -> None:
        raise InvalidOperationError("closed")

    with pytest.raises(InvalidOperationError, match="closed"):
        await running.host.perform(Operation.SEND, "q", done.append, timeout_s=1.0, check=refuse)
    assert done == []


async def test_front_ends_do_not_change_the_order_of_receivers_at_a_plain_entity() -> None:
    running = Running(front_end_count=2)
    running.create()
    first, second, third = [asyncio.create_task(running.receive(30, front_end=each)) for each in (0, 0, 1)]
    await asyncio.sleep(1)
    call = Call(Operation.SEND, clock.now())
    running.namespace.send(call, "q", [encode_message(message(each)) for each in "ab"])
    assert await running.receive(10, front_end=1) == []
    assert [await first, await second, await third] == [["a"], ["b"], []]


async def test_a_message_wakes_the_holder_of_its_session_in_its_fragment(running: Running) -> None:
    path, manage = "t/Subscriptions/s", Call(Operation.MANAGE, clock.now())
    management = running.namespace.management
    management.create(manage, topic_address("t"), TopicProperties("t", enable_partitioning=True))
    management.create(manage, address(path), SubscriptionProperties("s", requires_session=True))
    same = RuleProperties("$Default", filter=TrueRuleFilter(), action=SqlRuleAction("SET sys.SessionId = 'one'"))
    management.update(manage, address(f"{path}/$Rules/$Default"), same)
    for index in (3, 5):
        await running.send(message("first", partition_key=KEYS[index]), path="t")
    locks = [await running.host.accept_session(path, NEXT_AVAILABLE_SESSION, timeout_s=1) for _ in range(2)]
    for lock in locks:
        await running.receive(path=path, lock=lock)
    waiting = []
    for lock in locks:
        waiting.append(asyncio.create_task(running.receive(30, path=path, lock=lock)))
        await asyncio.sleep(1)
    await running.send(message("more", partition_key=KEYS[locks[1].fragment_index]), path="t")
    assert (await waiting[1], elapsed()) == (["more"], 2)
    assert await waiting[0] == []


async def test_receive_and_delete_waits_for_messages(running: Running) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(after(5, lambda: running.send(message("a"))))
        received = await running.receive(mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE)
    assert received == ["a"]


async def test_a_fragment_down_is_an_error_to_a_waiting_plain_receiver(running: Running) -> None:
    waiting = asyncio.create_task(running.receive())
    await asyncio.sleep(1)
    running.host.inject(Fault(FaultKind.DOWN, "q", fragments=[0]))
    with pytest.raises(ServiceBusInternalError):
        await waiting


async def test_without_waiting_receivers_there_is_no_timer(running: Running) -> None:
    await running.send(message("a"))
    await running.receive()
    assert await running.receive(5) == []
    await asyncio.sleep(100)
    assert running.host._timers == {}
    assert await running.receive(0) == ["a"]


# ---------------------------------------------------------------------- sequences


@pytest.mark.parametrize("front_end_count", [1, 2])
def test_no_message_waits_while_a_receiver_does_and_nothing_is_left_behind(front_end_count: int) -> None:
    for seed in range(25):
        running = Running(front_end_count=front_end_count)
        run_virtual(_wait_and_cancel(running, Random(seed), is_first=True))
        run_virtual(_wait_and_cancel(running, Random(seed + 1), is_first=False))  # the loop before is closed


async def _wait_and_cancel(running: Running, random: Random, *, is_first: bool) -> None:
    loop: Any = asyncio.get_running_loop()
    if is_first:
        running.create("q", lock_duration=seconds(5), dead_lettering_on_message_expiration=True)
        running.create("p", enable_partitioning=True, lock_duration=seconds(5))
        running.create("s", requires_session=True)
        running.create("f", forward_to="q")
    waiting: dict[asyncio.Task[Any], str] = {}
    held: list[tuple[str, ServiceBusReceivedMessage]] = []
    for _ in range(40):
        path = random.choice(["q", "p", "q/$DeadLetterQueue"])
        match random.randrange(9):
            case 0 | 1:
                later = at(clock.now() + random.randrange(9)) if random.random() < 0.5 else None
                life = seconds(random.randrange(1, 9)) if random.random() < 0.5 else None
                sent = message("m", scheduled_enqueue_time_utc=later, time_to_live=life)
                await running.send(sent, path=random.choice("qpf"))
                if waiting and random.random() < 0.5:  # one that is woken and cancelled at once
                    random.choice(list(waiting)).cancel()
            case 2 | 3 | 4:
                waiting[asyncio.create_task(running.taken(random.randrange(1, 30), path=path))] = path
            case 5 if waiting:
                random.choice(list(waiting)).cancel()
            case 6 if held:
                where, one = held.pop()
                with suppress(MessageLockLostError):
                    running.settle(one, random.choice((COMPLETE, ABANDON)), where)
            case 7:
                waiting[asyncio.create_task(accept(running, random.randrange(1, 30)))] = "s"
                await running.send(message("m", session_id="x"), path="s")
            case _:
                await asyncio.sleep(random.choice((0.5, 1.0, 6.0)))
        for _ in range(8):
            await asyncio.sleep(0)
        for task in [task for task in waiting if task.done()]:
            path = waiting.pop(task)
            if path != "s" and not task.cancelled():
                held += [(path, one) for one in task.result()]
            elif not task.cancelled() and task.exception() is None:
                running.namespace.release_session(Call(Operation.SESSION, clock.now()), "s", task.result())
        for path in {*waiting.values()} - {"s"}:
            if running.host._front_end_count == 1:
                assert await running.receive(0, path=path) == []
        alive = [handle for handle in loop._scheduled if not handle.cancelled()]
        assert len(alive) <= len(waiting) + 4  # one for each entity
    await asyncio.gather(*waiting, return_exceptions=True)
    await asyncio.sleep(100)
    assert [handle for handle in loop._scheduled if not handle.cancelled()] == []
    assert (running.host._timers, running.host._waiting.queues, running.host._waiting._counts) == ({}, {}, {})


def test_addresses_of_the_driver_are_right() -> None:
    assert address("t/Subscriptions/s") == EntityAddress(EntityKind.SUBSCRIPTION, ("t", "s"))
