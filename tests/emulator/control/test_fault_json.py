"""Faults in the words of the control API, there and back."""

from __future__ import annotations

from typing import Any

import pytest

from sbclient.broker.faults import Fault, FaultKind, Operation
from sbclient.emulator.control.fault_json import KINDS, read_fault, write_fault
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


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_fault_is_read_as_it_was_written(kind: str) -> None:
    said: dict[str, Any] = {"kind": kind, "duration_s": 12.345, "probability": 0.000412345, "count": 123_456_789}
    if kind not in [each.value for each in OF_CONNECTIONS]:
        said["entity"] = "orders"
    written = write_fault(read_fault(said, NOW), NOW)
    assert written.items() >= said.items()
    for later_s in (0.0, 1.25, 12.0, 12.3):
        again = write_fault(read_fault(written, NOW), NOW + later_s)
        assert again == written | {"duration_s": round(12.345 - later_s, 3)}
        assert read_fault(again, NOW + later_s).until_at == pytest.approx(NOW + 12.345, abs=0.001)


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
