"""Faults in the words of the control API, there and back."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sbclient.broker.faults import Fault, FaultKind, Operation
from sbclient.emulator.control.fault_json import _COMMON, _EXTRAS, ERROR_NAMES, KINDS, read_fault, write_fault
from sbclient.emulator.faults import OF_CONNECTIONS, WireFault, WireFaultKind
from sbclient.errors import (
    InvalidOperationError,
    MessagingEntityDisabledError,
    ServiceBusQuotaExceededError,
)

NOW = 1_700_000_000.0


def test_fault_of_a_fragment() -> None:
    said = {"kind": "down", "entity": "orders", "fragments": [3, 5], "duration_s": 30, "probability": 0.5, "count": 2}
    fault = read_fault(said, NOW)
    assert isinstance(fault, Fault)
    assert (fault.kind, fault.entity_path, fault.fragments) == (FaultKind.DOWN, "orders", [3, 5])
    assert (fault.until_at, fault.probability, fault.count) == (NOW + 30, 0.5, 2)


def test_error_is_named_by_its_class() -> None:
    fault = read_fault({"kind": "error", "error": "MessagingEntityDisabledError", "operations": ["send"]}, NOW)
    assert isinstance(fault, Fault)
    assert fault.error is MessagingEntityDisabledError
    assert fault.operations == [Operation.SEND]


def test_an_error_with_a_text_is_written_as_its_class() -> None:
    fault = Fault(FaultKind.ERROR, error=MessagingEntityDisabledError("closed for the night"))
    assert write_fault(fault, NOW)["error"] == "MessagingEntityDisabledError"


def test_quota_is_the_error_of_a_full_entity() -> None:
    fault = read_fault({"kind": "quota", "entity": "orders"}, NOW)
    assert isinstance(fault, Fault)
    assert (fault.kind, fault.error) == (FaultKind.ERROR, ServiceBusQuotaExceededError)
    assert write_fault(fault, NOW)["kind"] == "quota"


def test_fault_of_the_wire() -> None:
    fault = read_fault({"kind": "detach", "entity": "q", "condition": "amqp:link:stolen", "description": "x"}, NOW)
    assert isinstance(fault, WireFault)
    assert (fault.kind, fault.entity_path, fault.condition) == (WireFaultKind.DETACH, "q", "amqp:link:stolen")


TEXT = st.text(min_size=1, max_size=9) | st.just("é" * 260)
MEMBERS: dict[str, st.SearchStrategy[Any]] = {
    "entity": TEXT,
    "probability": st.floats(1e-9, 1, exclude_max=True),
    "count": st.integers(1, 2**31),
    "duration_s": (st.integers(1, 4) | st.integers(5, 366 * 86_400_000)).map(lambda each: each / 1000),
    "latency_s": st.floats(0, 86_400),
    "fragments": st.lists(st.integers(0, 1023), min_size=1),
    "operations": st.lists(st.sampled_from(list(map(str, Operation))), min_size=1),
    "error": st.sampled_from(ERROR_NAMES).filter(lambda name: name != "ServiceBusQuotaExceededError"),  # is `quota`
    "condition": TEXT,
    "description": TEXT,
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_fault_is_listed_as_it_was_injected_and_can_be_injected_again(kind: str) -> None:
    names = [*_COMMON[1:], *_EXTRAS.get(kind, ())]
    if kind in OF_CONNECTIONS:
        names.remove("entity")

    @given(st.fixed_dictionaries({name: MEMBERS[name] for name in names}), st.floats(0, 1, exclude_max=True))
    @settings(max_examples=20)
    def check(said: dict[str, Any], passed: float) -> None:
        said = {"kind": kind} | said
        fault = read_fault(said, NOW)
        assert write_fault(fault, NOW) == said
        now = NOW + (fault.until_at - NOW) * passed
        later = write_fault(fault, now)
        assert later | {"duration_s": said["duration_s"]} == said
        assert read_fault(later, now).until_at == pytest.approx(fault.until_at, abs=0.001)

    check()


@pytest.mark.parametrize(
    ("said", "named"),
    [
        (None, "object"),
        ([], "object"),
        ({}, "kind"),
        ({"kind": "explode"}, "explode"),
        ({"kind": ["down"]}, "kind"),
        ({"kind": "down", "fragment": 1}, "fragment"),
        ({"kind": "refuse", "latency_s": 1}, "latency_s"),
        ({"kind": "down", "fragments": [1]}, "entity"),
        ({"kind": "down", "entity": "q", "fragments": []}, "fragments"),
        ({"kind": "down", "entity": "q", "fragments": [-1]}, "fragments"),
        ({"kind": "down", "entity": 5}, "entity"),
        ({"kind": "down", "operations": ["fly"]}, "operations"),
        ({"kind": "down", "probability": 0}, "probability"),
        ({"kind": "down", "probability": True}, "probability"),
        ({"kind": "down", "count": 1.5}, "count"),
        ({"kind": "down", "duration_s": -1}, "duration_s"),
        ({"kind": "slow", "latency_s": "1"}, "latency_s"),
        ({"kind": "error", "error": "KeyError"}, "error"),
        ({"kind": "latency", "entity": "q"}, "latency"),
        ({"kind": "detach", "condition": ""}, "condition"),
    ],
)
def test_invalid_fault_is_rejected_with_its_member(said: Any, named: str) -> None:
    with pytest.raises(InvalidOperationError, match=named):
        read_fault(said, NOW)
