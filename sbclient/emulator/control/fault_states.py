"""The health of namespaces and fragments, as the active faults determine it.

The worst fault determines the health; without a fault it is `UP`. A fault with a probability, a count or a list of
operations counts as well, and makes the state partial.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Final, NamedTuple

from sbclient.broker.faults import Fault, FaultKind
from sbclient.emulator.context import AnyFault
from sbclient.emulator.faults import WireFaultKind
from sbclient.errors import ServiceBusQuotaExceededError
from sbclient.rules.entity_path import belongs_to


class Health(StrEnum):
    """From the worst to the best."""

    DOWN = "down"
    HANGING = "hanging"
    FAILING = "failing"
    FULL = "full"
    BUSY = "busy"
    MUTE = "mute"
    """Operations are carried out, but their answers are lost."""

    SLOW = "slow"
    UP = "up"


class State(NamedTuple):
    """A health, and whether only some requests are affected."""

    health: Health
    is_partial: bool = False


UP: Final = State(Health.UP)
FULL: Final = State(Health.FULL)

_ORDER: Final = {health: place for place, health in enumerate(Health)}
_HEALTH: Final[dict[FaultKind | WireFaultKind, Health]] = {
    FaultKind.DOWN: Health.DOWN,
    FaultKind.HANG: Health.HANGING,
    FaultKind.ERROR: Health.FAILING,
    FaultKind.BUSY: Health.BUSY,
    FaultKind.LOSE_ACKNOWLEDGEMENT: Health.MUTE,
    FaultKind.SLOW: Health.SLOW,
    WireFaultKind.REFUSE: Health.DOWN,
    WireFaultKind.RESET: Health.DOWN,
    WireFaultKind.BLACK_HOLE: Health.HANGING,
    WireFaultKind.DETACH: Health.FAILING,
    WireFaultKind.SERVER_BUSY: Health.BUSY,
    WireFaultKind.DROP_ACKNOWLEDGEMENT: Health.MUTE,
    WireFaultKind.LATENCY: Health.SLOW,
}


def state_of_namespace(faults: Iterable[AnyFault]) -> State:
    """The state of a namespace by the faults that affect all of it."""
    return worst(_state(fault) for fault in faults if fault.entity_path is None)


def state_of_fragment(faults: Iterable[AnyFault], path: str, index: int) -> State:
    """The state of one fragment by the faults that affect it, its entity or its namespace."""
    return worst(_state(fault) for fault in faults if _affects(fault, path, index))


def worst(states: Iterable[State]) -> State:
    """The worst of several states; among equals one that is not partial."""
    return min(states, key=lambda state: (_ORDER[state.health], state.is_partial), default=UP)


def combined(states: Sequence[State]) -> State:
    """The combined state of several parts: the worst one, partial unless all parts have the same health."""
    found = worst(states)
    return State(found.health, found.is_partial or any(state.health is not found.health for state in states))


def _state(fault: AnyFault) -> State:
    health = _HEALTH[fault.kind]
    if isinstance(fault, Fault) and fault.kind is FaultKind.ERROR and fault.error is ServiceBusQuotaExceededError:
        health = Health.FULL
    is_partial = fault.probability < 1 or fault.count is not None or getattr(fault, "operations", None) is not None
    return State(health, is_partial)


def _affects(fault: AnyFault, path: str, index: int) -> bool:
    if fault.entity_path is not None and not belongs_to(path, fault.entity_path):
        return False
    return not isinstance(fault, Fault) or fault.fragments is None or index in fault.fragments
