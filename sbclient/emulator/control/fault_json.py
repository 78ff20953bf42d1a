"""Faults as JSON objects of the control API.

    {"kind": "down", "entity": "orders", "fragments": [3], "duration_s": 30}
    {"kind": "quota", "entity": "orders", "operations": ["send"], "count": 5}
    {"kind": "detach", "entity": "orders", "condition": "com.microsoft:container-close"}

The kinds are those of the broker, those of the wire, and `quota`, the error of a full entity.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

from sbclient import errors
from sbclient.broker.faults import Fault, FaultKind, Operation
from sbclient.emulator.context import AnyFault
from sbclient.emulator.faults import WireFault, WireFaultKind
from sbclient.errors import InvalidOperationError, ServiceBusError, ServiceBusQuotaExceededError
from sbclient.settings.table import suggestion

QUOTA: Final = "quota"
_SHORTEST_S: Final = 0.001
"""The shortest duration of a fault, so that one that is about to end can be injected again as it is listed."""

_ERRORS: Final[dict[str, type[ServiceBusError]]] = {
    name: kind
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, ServiceBusError) and kind.condition is not None
}
ERROR_NAMES: Final = tuple(_ERRORS)
_OF_BROKER: Final = {kind.value: kind for kind in FaultKind}
_OF_WIRE: Final = {kind.value: kind for kind in WireFaultKind}
KINDS: Final = (*_OF_BROKER, QUOTA, *_OF_WIRE)

_COMMON: Final = ("kind", "entity", "probability", "count", "duration_s")
_EXTRAS: Final[dict[str, tuple[str, ...]]] = {
    "down": ("fragments", "operations"),
    "hang": ("fragments", "operations"),
    "busy": ("fragments", "operations"),
    "error": ("fragments", "operations", "error"),
    "slow": ("fragments", "operations", "latency_s"),
    "lose_acknowledgement": ("fragments", "operations"),
    QUOTA: ("fragments", "operations"),
    "latency": ("latency_s",),
    "detach": ("condition", "description"),
}


def read_fault(fields: Any, now: float) -> AnyFault:
    """The fault that an object describes.

    Raises:
        InvalidOperationError: the object describes none.
    """
    if not isinstance(fields, Mapping):
        raise InvalidOperationError(f"a fault is a {type(fields).__name__}: give an object with a kind")
    kind = fields.get("kind")
    if kind not in KINDS:
        raise InvalidOperationError(f"kind of a fault is {kind!r}: {suggestion(str(kind), KINDS)}")
    allowed = (*_COMMON, *_EXTRAS.get(kind, ()))
    unknown = [str(name)[:64] for name in fields if name not in allowed]
    if unknown:
        raise InvalidOperationError(f"a fault of kind {kind} has no {unknown[0]!r}: {suggestion(unknown[0], allowed)}")
    given: dict[str, Any] = {"entity_path": fields.get("entity")}
    for name, check in _CHECKS.items():
        if fields.get(name) is not None:
            given[_ATTRIBUTES.get(name, name)] = check(name, fields[name])
    if "until_at" in given:
        given["until_at"] += now
    if given["entity_path"] is None and given.get("fragments") is not None:
        raise InvalidOperationError("fragments are given without an entity: give its path as well")
    if kind in _OF_WIRE:
        return WireFault(_OF_WIRE[kind], **given)
    if kind == QUOTA:
        return Fault(FaultKind.ERROR, error=ServiceBusQuotaExceededError, **given)
    return Fault(_OF_BROKER[kind], **given)


def write_fault(fault: AnyFault, now: float) -> dict[str, Any]:
    """The object that describes a fault, without members that have their default; `count` is what is left of it."""
    kind = fault.kind.value
    if isinstance(fault, Fault) and fault.kind is FaultKind.ERROR and fault.error is ServiceBusQuotaExceededError:
        kind = QUOTA
    fields: dict[str, Any] = {"kind": kind, "entity": fault.entity_path, "count": fault.count}
    if fault.probability < 1:
        fields["probability"] = fault.probability
    if fault.until_at < math.inf:
        fields["duration_s"] = round(max(fault.until_at - now, _SHORTEST_S), 3)
    for name in _EXTRAS.get(kind, ()):
        value = getattr(fault, name)
        if name == "error":
            fields[name] = (value if isinstance(value, type) else type(value)).__name__
        elif value is not None:
            fields[name] = list(value) if name in ("fragments", "operations") else value
    return {name: value for name, value in fields.items() if value is not None}


def _number(least: float, most: float, *, is_whole: bool = False) -> Callable[[str, Any], Any]:
    def check(name: str, value: Any) -> Any:
        is_number = isinstance(value, int if is_whole else int | float) and not isinstance(value, bool)
        if not is_number or not least <= value <= most:
            form = "a whole number" if is_whole else "a number"
            raise InvalidOperationError(f"{name} of a fault is {value!r}: give {form} from {least:g} to {most:g}")
        return value

    return check


def _list_of(check: Callable[[str, Any], Any]) -> Callable[[str, Any], Any]:
    def check_all(name: str, value: Any) -> list[Any]:
        if not isinstance(value, list) or not value:
            raise InvalidOperationError(f"{name} of a fault is {value!r}: give a list with at least one entry")
        return [check(name, each) for each in value]

    return check_all


def _operation(name: str, value: Any) -> Operation:
    try:
        return Operation(value)
    except ValueError as error:
        raise InvalidOperationError(f"{name} has {value!r}: {suggestion(str(value), list(Operation))}") from error


def _error(name: str, value: Any) -> type[ServiceBusError]:
    if not isinstance(value, str) or value not in _ERRORS:
        raise InvalidOperationError(f"{name} of a fault is {value!r}: {suggestion(str(value), _ERRORS)}")
    return _ERRORS[value]


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= 260:
        raise InvalidOperationError(f"{name} of a fault is {value!r}: give a string of 1 to 260 characters")
    return value


_YEAR_S: Final = 366 * 86_400.0
_CHECKS: Final[dict[str, Callable[[str, Any], Any]]] = {
    "entity": _text,
    "probability": _number(1e-9, 1),
    "count": _number(1, 2**31, is_whole=True),
    "duration_s": _number(_SHORTEST_S, _YEAR_S),
    "latency_s": _number(0, 86_400),
    "fragments": _list_of(_number(0, 1023, is_whole=True)),
    "operations": _list_of(_operation),
    "error": _error,
    "condition": _text,
    "description": _text,
}
_ATTRIBUTES: Final = {"entity": "entity_path", "duration_s": "until_at"}
