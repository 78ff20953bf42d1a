"""In which state the faults of a namespace put an entity and its fragments: a word for each, for people.

The word is that of the worst fault that strikes; `UP` where none does. A fault that strikes only now and then, only so
often, or only some operations counts as well, and is said to be partial.
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
    """What is asked is done, and nobody is told."""

    SLOW = "slow"
    UP = "up"


class State(NamedTuple):
    """How something stands, and whether only some requests notice."""

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
    """What strikes a namespace as a whole."""
    return worst(_state(fault) for fault in faults if fault.entity_path is None)


def state_of_fragment(faults: Iterable[AnyFault], path: str, index: int) -> State:
    """What strikes one fragment of an entity: by itself, with its entity or with its namespace."""
    return worst(_state(fault) for fault in faults if _strikes(fault, path, index))


def worst(states: Iterable[State]) -> State:
    """The worst of several; among equals the one that everybody notices."""
    return min(states, key=lambda state: (_ORDER[state.health], state.is_partial), default=UP)


def together(states: Sequence[State]) -> State:
    """The state of what consists of several: that of the worst, in part unless all stand as badly."""
    found = worst(states)
    return State(found.health, found.is_partial or any(state.health is not found.health for state in states))


def _state(fault: AnyFault) -> State:
    health = _HEALTH[fault.kind]
    if isinstance(fault, Fault) and fault.kind is FaultKind.ERROR and fault.error is ServiceBusQuotaExceededError:
        health = Health.FULL
    is_partial = fault.probability < 1 or fault.count is not None or getattr(fault, "operations", None) is not None
    return State(health, is_partial)


def _strikes(fault: AnyFault, path: str, index: int) -> bool:
    if fault.entity_path is not None and not belongs_to(path, fault.entity_path):
        return False
    return not isinstance(fault, Fault) or fault.fragments is None or index in fault.fragments
