"""Faults: which calls they affect, when they end, and which errors callers get."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from random import Random
from typing import Any

import pytest

from sbclient.broker.faults import Call, Fault, FaultKind, Faults, NoAnswer, Operation
from sbclient.errors import (
    InvalidOperationError,
    MessagingEntityDisabledError,
    ServiceBusConnectionError,
    ServiceBusError,
    ServiceBusInternalError,
    ServiceBusServerBusyError,
)
from tests.broker.driver import KEYS, START, Driver, address, message


@pytest.mark.parametrize(
    ("kind", "path", "error"),
    [
        (FaultKind.DOWN, None, ServiceBusConnectionError),
        (FaultKind.DOWN, "q", ServiceBusInternalError),
        (FaultKind.BUSY, None, ServiceBusServerBusyError),
        (FaultKind.BUSY, "q", ServiceBusServerBusyError),
        (FaultKind.ERROR, "q", MessagingEntityDisabledError),
        (FaultKind.HANG, None, NoAnswer),
        (FaultKind.HANG, "q", NoAnswer),
    ],
)
def test_an_entity_with_a_fault_rejects_requests(
    broker: Driver, kind: FaultKind, path: str | None, error: type[Exception]
) -> None:
    broker.queue()
    broker.send("q", message("a"))
    broker.down(path, kind=kind, error=MessagingEntityDisabledError)
    for attempt in (
        lambda: broker.send("q", message()),
        lambda: broker.receive(),
        lambda: broker.peek(),
        lambda: broker.get(address("q")),
    ):
        with pytest.raises(error):
            attempt()
    broker.heal()
    assert len(broker.body()) == 1


def test_a_fault_of_an_entity_does_not_affect_others(broker: Driver) -> None:
    broker.queue("a")
    broker.queue("b")
    broker.down("A")
    broker.down("A", 0)
    with pytest.raises(ServiceBusInternalError):
        broker.send("a", message())
    broker.send("b", message())


def test_a_fault_affects_sub_queues_and_subscriptions(broker: Driver) -> None:
    broker.topic()
    broker.subscription()
    broker.down("t")
    for path in ("t/Subscriptions/s", "t/Subscriptions/s/$DeadLetterQueue"):
        with pytest.raises(ServiceBusInternalError):
            broker.receive(path)


def test_a_fault_of_fragments_without_a_path_affects_every_entity(broker: Driver) -> None:
    broker.partitioned("a")
    broker.partitioned("b")
    broker.namespace.faults.inject(Fault(FaultKind.DOWN, fragments=[3]))
    for path in "ab":
        with pytest.raises(ServiceBusError):
            broker.send(path, message(partition_key=KEYS[3]))
        broker.send(path, message(partition_key=KEYS[4]))


def test_namespace_operations_are_affected_only_by_namespace_faults(broker: Driver) -> None:
    broker.queue()
    fault = broker.down("q")
    broker.begin()
    broker.heal(fault)
    broker.down(None)
    with pytest.raises(ServiceBusConnectionError):
        broker.begin()


def test_a_lost_acknowledgement_does_not_prevent_the_operation(broker: Driver) -> None:
    broker.queue()
    broker.down("q", kind=FaultKind.LOSE_ACKNOWLEDGEMENT)
    assert broker.send("q", message()).answer_after_s == math.inf
    assert len(broker.body()) == 1


@pytest.mark.parametrize("fragments", [(), (3,)])
def test_a_slow_operation_runs_at_once_and_answers_late(broker: Driver, fragments: tuple[int, ...]) -> None:
    broker.partitioned()
    broker.down("q", *fragments, kind=FaultKind.SLOW, latency_s=4.0)
    assert broker.send("q", message(partition_key=KEYS[3])).answer_after_s == 4.0
    assert len(broker.body()) == 1


def test_a_lost_acknowledgement_of_a_fragment_affects_only_its_messages(broker: Driver) -> None:
    broker.partitioned()
    broker.down("q", 3, kind=FaultKind.LOSE_ACKNOWLEDGEMENT)
    assert broker.send("q", message(partition_key=KEYS[3])).answer_after_s == math.inf
    assert broker.send("q", message(partition_key=KEYS[4])).answer_after_s == 0.0
    delays = {broker.send("q", message()).answer_after_s for _ in range(16)}
    assert delays == {0.0, math.inf}
    call = broker.call(Operation.RECEIVE)
    broker.namespace.receive(call, "q", max_message_count=30)
    assert call.answer_after_s == math.inf


def test_a_fault_affects_only_its_operations(broker: Driver) -> None:
    broker.queue()
    broker.down("q", operations=[Operation.SEND])
    with pytest.raises(ServiceBusInternalError):
        broker.send("q", message())
    assert broker.receive() == []


@pytest.mark.parametrize("fragments", [None, (3,)])
@pytest.mark.parametrize("kind", list(FaultKind))
def test_a_fault_counts_the_requests_that_it_affects(kind: FaultKind, fragments: tuple[int, ...] | None) -> None:
    faults = Faults("contoso", Random(1))
    fault = faults.inject(Fault(kind, "q", fragments=fragments, count=2))
    affected = []
    for _ in range(4):
        call = Call(Operation.SEND, START)
        try:
            faults.check(call, "q")
            faults.check_fragment(call, "q", 3)
        except (ServiceBusError, NoAnswer):
            affected.append(True)
        else:
            affected.append(call.answer_after_s > 0)
    assert (affected, fault.applied, faults.active(START)) == ([True, True, False, False], 2, [])


def test_a_fault_ends_after_its_count(broker: Driver) -> None:
    broker.queue()
    for count in (1, 2):
        fault = broker.down("q", count=count)
        for applied in range(count):
            assert fault.applied == applied
            with pytest.raises(ServiceBusInternalError):
                broker.send("q", message())
        broker.send("q", message())
        assert fault.applied == count
        assert broker.namespace.faults.active(broker.now) == []


@pytest.mark.parametrize("latencies", [(2.0, 1.0), (1.0, 2.0)])
def test_of_two_latencies_the_longer_one_counts(broker: Driver, latencies: tuple[float, float]) -> None:
    broker.queue()
    for latency_s in latencies:
        broker.down("q", kind=FaultKind.SLOW, latency_s=latency_s)
    assert broker.send("q", message()).answer_after_s == 2.0


def test_a_fault_occurs_with_its_probability() -> None:
    outcomes = []
    for _ in range(2):
        broker = Driver(seed=3)
        broker.queue()
        broker.down("q", probability=0.3)
        struck = []
        for _ in range(200):
            try:
                broker.send("q", message())
            except ServiceBusInternalError:
                struck.append(True)
            else:
                struck.append(False)
        outcomes.append(struck)
    assert outcomes[0] == outcomes[1]
    assert 30 < sum(outcomes[0]) < 90


def test_a_fault_ends_at_its_time(broker: Driver) -> None:
    broker.queue()
    fault = broker.down("q", until_at=START + 10)
    assert broker.namespace.faults.next_change_at() == START + 10
    broker.wait(9.9)
    assert broker.namespace.faults.active(broker.now) == [fault]
    with pytest.raises(ServiceBusInternalError):
        broker.send("q", message())
    broker.wait(0.1)
    broker.send("q", message())
    assert broker.namespace.faults.next_change_at() == math.inf


def test_healing_one_fault_keeps_the_others() -> None:
    faults = Faults("contoso", Random(1))
    first, second = faults.inject(Fault(FaultKind.DOWN, "a")), faults.inject(Fault(FaultKind.DOWN, "b"))
    faults.heal(first)
    faults.heal(first)
    assert faults.active(0.0) == [second]
    assert faults.injected
    faults.heal()
    assert not faults.injected


def test_a_receive_waits_for_a_slow_fragment() -> None:
    faults = Faults("contoso", Random(1))
    faults.inject(Fault(FaultKind.SLOW, "q", latency_s=5.0))
    with pytest.raises(NoAnswer) as silence:
        faults.check(Call(Operation.RECEIVE, 0.0, waited_s=2.0), "q")
    assert silence.value.after_s == 3.0
    call = Call(Operation.RECEIVE, 0.0, waited_s=5.0)
    faults.check(call, "q")
    assert call.answer_after_s == 0.0


def test_a_fragment_is_unreachable_if_it_is_down_or_hangs_for_all_operations() -> None:
    faults = Faults("contoso", Random(1))
    faults.inject(Fault(FaultKind.DOWN, "q", fragments=[1]))
    faults.inject(Fault(FaultKind.HANG, "q", fragments=[2]))
    faults.inject(Fault(FaultKind.BUSY, "q", fragments=[3]))
    faults.inject(Fault(FaultKind.DOWN, "q", fragments=[4], operations=[Operation.SEND]))
    faults.inject(Fault(FaultKind.DOWN, "other", fragments=[5]))
    faults.inject(Fault(FaultKind.DOWN, "q", fragments=[6], until_at=5.0))
    assert faults.unreachable(0.0, "q", 16) == [1, 2, 6]
    assert faults.unreachable(5.0, "q", 16) == [1, 2]


def test_a_fault_of_other_operations_does_not_delay_this_one(broker: Driver) -> None:
    broker.partitioned()
    broker.down("q", 3, operations=[Operation.PEEK])
    broker.down("q", 3, kind=FaultKind.SLOW, latency_s=2.0)
    assert broker.send("q", message(partition_key=KEYS[3])).answer_after_s == 2.0


@pytest.mark.deviation("broker.throttling")
def test_only_a_fault_makes_a_namespace_busy(broker: Driver) -> None:
    broker.queue()
    for _ in range(1500):  # in one instant; each costs a credit or more of the 1,000 of a second
        broker.send("q", message())
    broker.namespace.faults.inject(Fault(FaultKind.BUSY))
    with pytest.raises(ServiceBusServerBusyError):
        broker.send("q", message())


def test_a_busy_namespace_says_how_long_to_wait() -> None:
    assert "10 seconds" in str(Fault(FaultKind.BUSY).error_at("q", Call(Operation.SEND, 0.0)))


@pytest.mark.parametrize(
    ("name", "value", "advice"),
    [
        ("kind", "dwon", "one of down, hang, busy"),
        ("entity_path", "", "a path"),
        ("entity_path", ["orders"], "a path"),
        ("operations", ["sendd"], "one of open, send"),
        ("operations", "send", "a list with some of open, send"),
        ("operations", [], "a list"),
        ("fragments", 3, "a list of indexes"),
        ("fragments", [-1], "a list of indexes"),
        ("fragments", ["3"], "a list of indexes"),
        ("probability", 2, "more than 0 and up to 1"),
        ("probability", 0, "more than 0 and up to 1"),
        ("count", 0, "1 or more"),
        ("count", 1.5, "1 or more"),
        ("until_at", datetime(2030, 1, 1, tzinfo=UTC), "seconds since 1970"),
        ("until_at", math.nan, "seconds since 1970"),
        ("latency_s", -1, "0 or more seconds"),
        ("latency_s", math.inf, "0 or more seconds"),
        ("error", ValueError, "a ServiceBusError"),
        ("error", "busy", "a ServiceBusError"),
    ],
)
def test_a_fault_without_effect_or_meaning_is_refused(name: str, value: Any, advice: str) -> None:
    with pytest.raises(InvalidOperationError, match=f"^{name} of a fault is .*: give {advice}"):
        Fault(**{"kind": FaultKind.DOWN, name: value})


def test_values_stand_for_kinds_and_operations() -> None:
    fault = Fault("hang", operations=["send", Operation.PEEK])  # type: ignore[arg-type, list-item]  # as without mypy
    assert (fault.kind, fault.operations) == (FaultKind.HANG, [Operation.SEND, Operation.PEEK])


def test_an_error_with_a_text_is_raised_anew_for_each_request(broker: Driver) -> None:
    broker.queue()
    broker.down("q", kind=FaultKind.ERROR, error=ServiceBusServerBusyError("later"))
    raised = []
    for _ in range(2):
        with pytest.raises(ServiceBusServerBusyError, match=r"^later$") as caught:
            broker.receive()
        raised.append(caught.value)
    assert raised[0] is not raised[1]
