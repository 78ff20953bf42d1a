"""What goes wrong between the broker and its clients: switches for tests, thrown and healed at run time.

They are beside the faults of the broker (`broker.faults`), which strike fragments and entities: these strike the wire.

1. Refused: a new connection is reset before a byte is read; those that stand stay.
2. Reset: those that stand are cut at once, and new ones as soon as they are made. The store is kept.
3. A black hole holds what is sent, both ways, and accepts new connections in silence. When it is healed all that was
   held arrives, as in a network that was cut and mended.
4. Latency holds up everything that is sent to clients.
5. A dropped acknowledgement: the work is done, the client is told nothing.
6. Detached: links are ended with a chosen condition; new ones too, until it is healed.
7. Busy: what is sent is refused with `com.microsoft:server-busy`.

1 to 4 are done below the protocols, by `server.listener`; 5 and 6 by the AMQP side; 7 by both sides.
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
"""Those that know of no entity."""


@dataclass(slots=True, eq=False)
class WireFault:
    """One switch.

    Attributes:
        kind: what happens.
        entity_path: whose, with its subscriptions and sub-queues; None = all. Only where links are struck.
        probability: with which it strikes each time.
        count: how often it strikes before it heals by itself; None = no limit.
        until_at: when it heals by itself, in seconds of the broker's clock.
        latency_s: of LATENCY.
        condition, description: of DETACH.
        is_healed: whether somebody healed it; one that has struck as often as it may still holds those it struck.
    """

    kind: WireFaultKind
    entity_path: str | None = None
    probability: float = 1.0
    count: int | None = None
    until_at: float = math.inf
    latency_s: float = 1.0
    condition: str = "amqp:link:detach-forced"
    description: str = "the link was ended by a fault that was asked for"
    is_healed: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        if self.entity_path is not None and self.kind in OF_CONNECTIONS:
            raise InvalidOperationError(
                f"{self.kind} strikes connections, not {self.entity_path!r}: leave the path out"
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
    """The switches of one namespace.

    Args:
        random: for faults that strike now and then.
    """

    def __init__(self, random: Random) -> None:
        self._random = random
        self._faults: list[WireFault] = []
        self._spent: list[WireFault] = []
        self._listeners: dict[Callable[[], None], None] = {}

    def inject(self, fault: WireFault) -> WireFault:
        """Throw a switch; returns it, to be healed by."""
        self._faults.append(fault)
        self._tell()
        return fault

    def heal(self, fault: WireFault | None = None) -> None:
        """Heal one fault, or all of them. One that has healed by itself is ignored."""
        for healed in [*self._faults, *self._spent] if fault is None else [fault]:
            healed.is_healed = True
        self._faults = [other for other in self._faults if not other.is_healed]
        self._spent = [other for other in self._spent if not other.is_healed]
        self._tell()

    def active(self, now: float) -> list[WireFault]:
        """The faults that can still strike, oldest first."""
        if self._faults:
            self._faults = [fault for fault in self._faults if fault.until_at > now]
            self._spent = [fault for fault in self._spent if fault.until_at > now]
        return list(self._faults)

    def listen(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Call `changed` whenever a switch is thrown or healed; returns what ends that."""
        self._listeners[changed] = None
        return lambda: self._forget(changed)

    # ------------------------------------------------------------------ below the protocols

    def refuses(self, now: float) -> bool:
        """Whether a connection that is made now is cut at once."""
        return self._strikes(WireFaultKind.REFUSE, now) is not None or self.resets(now)

    def resets(self, now: float) -> bool:
        """Whether a connection that stands is cut now."""
        return self._strikes(WireFaultKind.RESET, now) is not None

    def black_hole(self, now: float) -> WireFault | None:
        """The fault, if any, that swallows what a connection sends and is sent from now on, until it is healed."""
        return self._strikes(WireFaultKind.BLACK_HOLE, now)

    def is_active(self, fault: WireFault, now: float) -> bool:
        """Whether a fault still holds those that it struck."""
        return not fault.is_healed and fault.until_at > now

    def latency_s(self, now: float) -> float:
        """By how much what is sent to a client now is held up, in seconds; 0 = not at all."""
        fault = self._strikes(WireFaultKind.LATENCY, now)
        return 0.0 if fault is None else fault.latency_s

    # ------------------------------------------------------------------ in the protocols

    def drops_acknowledgement(self, path: str, now: float) -> bool:
        """Whether the client is not told what became of what it asked for; the work is done."""
        return self._strikes(WireFaultKind.DROP_ACKNOWLEDGEMENT, now, path) is not None

    def is_busy(self, path: str, now: float) -> bool:
        """Whether a request to an entity is refused with server-busy, and nothing done."""
        return self._strikes(WireFaultKind.SERVER_BUSY, now, path) is not None

    def detaching(self, path: str, now: float) -> WireFault | None:
        """The fault, if any, by whose condition a link to an entity ends now."""
        return self._strikes(WireFaultKind.DETACH, now, path)

    def _strikes(self, kind: WireFaultKind, now: float, path: str | None = None) -> WireFault | None:
        if not self._faults:
            return None
        for fault in self.active(now):
            if fault.kind is not kind or not _covers(fault, path):
                continue
            if fault.probability < 1 and self._random.random() >= fault.probability:
                continue
            if fault.count is not None:
                fault.count -= 1
                if fault.count == 0:
                    self._faults.remove(fault)
                    self._spent.append(fault)
            return fault
        return None

    def _tell(self) -> None:
        for changed in list(self._listeners):
            changed()

    def _forget(self, changed: Callable[[], None]) -> None:
        self._listeners.pop(changed, None)


def _covers(fault: WireFault, path: str | None) -> bool:
    return fault.entity_path is None or path is None or belongs_to(path, fault.entity_path)
