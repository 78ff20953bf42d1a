"""Which word faults give to fragments, entities and namespaces."""

from __future__ import annotations

import pytest

from sbclient.broker.faults import Fault, FaultKind, Operation
from sbclient.emulator.context import AnyFault
from sbclient.emulator.control.fault_states import (
    UP,
    Health,
    State,
    combined,
    state_of_fragment,
    state_of_namespace,
    worst,
)
from sbclient.emulator.faults import WireFault, WireFaultKind
from sbclient.errors import ServiceBusQuotaExceededError


@pytest.mark.parametrize(
    ("fault", "health"),
    [
        (Fault(FaultKind.DOWN), Health.DOWN),
        (Fault(FaultKind.HANG), Health.HANGING),
        (Fault(FaultKind.ERROR), Health.FAILING),
        (Fault(FaultKind.ERROR, error=ServiceBusQuotaExceededError), Health.FULL),
        (Fault(FaultKind.BUSY), Health.BUSY),
        (Fault(FaultKind.LOSE_ACKNOWLEDGEMENT), Health.MUTE),
        (Fault(FaultKind.SLOW), Health.SLOW),
        (WireFault(WireFaultKind.BLACK_HOLE), Health.HANGING),
        (WireFault(WireFaultKind.LATENCY), Health.SLOW),
    ],
)
def test_each_fault_has_a_word(fault: AnyFault, health: Health) -> None:
    assert state_of_namespace([fault]) == State(health)
    assert state_of_fragment([fault], "orders", 3) == State(health)


def test_every_kind_of_fault_has_a_word() -> None:
    for kind in FaultKind:
        assert state_of_namespace([Fault(kind)]) != UP
    for wire_kind in WireFaultKind:
        assert state_of_namespace([WireFault(wire_kind)]) != UP


def test_a_fragment_is_affected_by_its_faults_and_those_of_entity_and_namespace() -> None:
    faults = [Fault(FaultKind.DOWN, "orders", fragments=[3]), Fault(FaultKind.SLOW, "orders")]
    assert state_of_fragment(faults, "Orders", 3) == State(Health.DOWN)
    assert state_of_fragment(faults, "orders", 4) == State(Health.SLOW)
    assert state_of_fragment(faults, "other", 3) == UP
    assert state_of_namespace(faults) == UP


def test_a_fault_of_a_topic_affects_its_subscriptions() -> None:
    faults = [WireFault(WireFaultKind.DETACH, "prices")]
    assert state_of_fragment(faults, "prices/Subscriptions/eu", 0) == State(Health.FAILING)


@pytest.mark.parametrize(
    "fault",
    [
        Fault(FaultKind.DOWN, probability=0.5),
        Fault(FaultKind.DOWN, count=3),
        Fault(FaultKind.DOWN, count=1),
        WireFault(WireFaultKind.REFUSE, count=1),
        Fault(FaultKind.DOWN, operations=[Operation.SEND]),
        WireFault(WireFaultKind.REFUSE, probability=0.5),
    ],
)
def test_a_fault_that_affects_only_some_requests_is_partial(fault: AnyFault) -> None:
    assert state_of_namespace([fault]) == State(Health.DOWN, is_partial=True)


def test_the_worst_state_counts_and_a_complete_one_before_a_partial_one() -> None:
    assert worst([State(Health.SLOW), State(Health.DOWN, is_partial=True), State(Health.BUSY)]).health is Health.DOWN
    assert worst([State(Health.DOWN, is_partial=True), State(Health.DOWN)]) == State(Health.DOWN)
    assert worst([]) == UP


def test_a_combined_state_is_the_worst_and_partial() -> None:
    assert combined([State(Health.DOWN), UP]) == State(Health.DOWN, is_partial=True)
    assert combined([State(Health.DOWN), State(Health.DOWN)]) == State(Health.DOWN)
    assert combined([UP, UP]) == UP
