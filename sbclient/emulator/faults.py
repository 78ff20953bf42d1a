"""Faults between the broker and its clients, which tests inject and heal at run time.

The faults of the broker (`broker.faults`) affect fragments and entities; these affect connections and links.

1. REFUSE: a new connection is reset before a byte is read. Open connections stay.
2. RESET: open connections are reset at once, and new ones as soon as they are made. Messages are kept.
3. BLACK_HOLE: data is held back in both directions, and new connections are accepted in silence. When the fault is
   healed, the data arrives, as after a network partition.
4. LATENCY: everything that is sent to clients is delayed.
5. DROP_ACKNOWLEDGEMENT: the operation is carried out, but the client gets no answer.
6. DETACH: links end with a chosen condition, and new ones too, until the fault is healed.
7. SERVER_BUSY: requests are refused with `com.microsoft:server-busy`.

`listener` implements 1 to 4, below the protocols; `amqp` implements 5 and 6; `amqp` and `management` implement 7.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from random import Random
from typing import Final

from sbclient.errors import InvalidOperationError
from sbclient.rules.entity_path import belongs_to


class WireFaultKind(StrEnum):
    REFUSE = "refuse"
    RESET = "reset"
    BLACK_HOLE = "black_hole"
    LATENCY = "latency"
    DROP_ACKNOWLEDGEMENT = "drop_acknowledgement"
    DETACH = "detach"
    SERVER_BUSY = "server_busy"


OF_CONNECTIONS: Final = (
    WireFaultKind.REFUSE,
    WireFaultKind.RESET,
    WireFaultKind.BLACK_HOLE,
    WireFaultKind.LATENCY,
)
"""The faults of connections, which have no entity."""


@dataclass(slots=True, eq=False)
class WireFault:
    """One fault.

    Attributes:
        kind: the effect.
        entity_path: of the affected entity, with its subscriptions and sub-queues; None = all. Faults of connections
            have none.
        probability: of each occurrence.
        count: how often it occurs before it heals by itself; None = no limit.
        until_at: when it heals by itself, in seconds of the broker's clock.
        latency_s: of LATENCY.
        condition, description: of DETACH.
        applied: how often it occurred.
        is_healed: whether it was healed. A black hole whose count is used up still affects the connections that it has
            hit.
    """

    kind: WireFaultKind
    entity_path: str | None = None
    probability: float = 1.0
    count: int | None = None
    until_at: float = math.inf
    latency_s: float = 1.0
    condition: str = "amqp:link:detach-forced"
    description: str = "the link was ended by an injected fault"
    applied: int = field(default=0, init=False)
    is_healed: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        try:
            self.kind = WireFaultKind(self.kind)
        except ValueError:
            raise InvalidOperationError(
                f"kind of a fault is {self.kind!r}: give one of {', '.join(WireFaultKind)}"
            ) from None
        if self.entity_path is not None and self.kind in OF_CONNECTIONS:
            raise InvalidOperationError(
                f"{self.kind} affects connections, not {self.entity_path!r}: leave out the entity"
            )
        if not 0 < self.probability <= 1:
            raise InvalidOperationError(
                f"probability of {self.kind} is {self.probability}: give more than 0 and up to 1"
            )
        if self.count is not None and self.count < 1:
            raise InvalidOperationError(f"count of {self.kind} is {self.count}: give 1 or more, or none")
        if not 0 <= self.latency_s < math.inf:
            raise InvalidOperationError(f"latency_s of {self.kind} is {self.latency_s}: give 0 or more seconds")


class WireFaults:
    """The faults of the wire in one namespace.

    Args:
        random: for faults with a probability.
    """

    def __init__(self, random: Random) -> None:
        self._random = random
        self._faults: list[WireFault] = []
        self._spent: list[
            WireFault
        ] = []  # the count is used up; a connection in a black hole stays there until it heals
        self._listeners: dict[Callable[[], None], None] = {}

    def inject(self, fault: WireFault) -> WireFault:
        """Activate a fault; returns it."""
        self._faults.append(fault)
        self._notify()
        return fault

    def heal(self, fault: WireFault | None = None) -> None:
        """Heal one fault, or all of them, also those whose count is used up. One whose time has passed is ignored."""
        for healed in [*self._faults, *self._spent] if fault is None else [fault]:
            healed.is_healed = True
        self._faults = [other for other in self._faults if not other.is_healed]
        self._spent = [other for other in self._spent if not other.is_healed]
        self._notify()

    def active(self, now: float) -> list[WireFault]:
        """The faults that can still occur, oldest first."""
        if self._faults:
            self._faults = [fault for fault in self._faults if fault.until_at > now]
        return list(self._faults)

    def spent(self, now: float) -> list[WireFault]:
        """The faults whose count is used up and that still affect connections."""
        self._spent = [fault for fault in self._spent if fault.until_at > now]
        return list(self._spent)

    def listen(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Call `changed` whenever a fault is injected or healed; returns a function that ends this."""
        self._listeners[changed] = None
        return lambda: self._forget(changed)

    # ------------------------------------------------------------------ below the protocols

    def refuses(self, now: float) -> bool:
        """Whether a new connection is reset."""
        return self._occurring(WireFaultKind.REFUSE, now) is not None or self.resets(now)

    def resets(self, now: float) -> bool:
        """Whether an open connection is reset."""
        return self._occurring(WireFaultKind.RESET, now) is not None

    def black_hole(self, now: float) -> WireFault | None:
        """The fault, if any, that holds back the data of a connection from now on."""
        return self._occurring(WireFaultKind.BLACK_HOLE, now)

    def is_active(self, fault: WireFault, now: float) -> bool:
        """Whether a fault still affects the connections that it has hit."""
        return not fault.is_healed and fault.until_at > now

    def latency_s(self, now: float) -> float:
        """The delay of data that is sent to a client now, in seconds."""
        fault = self._occurring(WireFaultKind.LATENCY, now)
        return 0.0 if fault is None else fault.latency_s

    # ------------------------------------------------------------------ in the protocols

    def drops_acknowledgement(self, path: str, now: float) -> bool:
        """Whether the answer to an operation that is done is dropped."""
        return self._occurring(WireFaultKind.DROP_ACKNOWLEDGEMENT, now, path) is not None

    def is_busy(self, path: str, now: float) -> bool:
        """Whether a request to an entity is refused with server-busy."""
        return self._occurring(WireFaultKind.SERVER_BUSY, now, path) is not None

    def detaching(self, path: str, now: float) -> WireFault | None:
        """The fault, if any, that ends a link to an entity now, with its condition."""
        return self._occurring(WireFaultKind.DETACH, now, path)

    def _occurring(self, kind: WireFaultKind, now: float, path: str | None = None) -> WireFault | None:
        if not self._faults:
            return None
        for fault in self.active(now):
            if fault.kind is not kind or not _covers(fault, path):
                continue
            if fault.probability < 1 and self._random.random() >= fault.probability:
                continue
            fault.applied += 1
            if fault.count is not None:
                fault.count -= 1
                if fault.count == 0:
                    self._faults.remove(fault)
                    if kind is WireFaultKind.BLACK_HOLE:
                        self._spent.append(fault)
            return fault
        return None

    def _notify(self) -> None:
        for changed in list(self._listeners):
            changed()

    def _forget(self, changed: Callable[[], None]) -> None:
        self._listeners.pop(changed, None)


def _covers(fault: WireFault, path: str | None) -> bool:
    return fault.entity_path is None or path is None or belongs_to(path, fault.entity_path)
