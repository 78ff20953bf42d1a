"""What is down, hangs, is busy or slow, or loses its answers: switches for tests, thrown and healed at run time.

A fault strikes a whole namespace, one entity, or some fragments of one. The store is kept through all of them. How it
shows, law by law (the documents say only "an error"; the rest is our choice):

1. A namespace that is down refuses the connection; an entity or a fragment that is down reports an internal error.
2. What hangs does not act and never answers. Keyless messages avoid fragments that are down, busy or hang; to move one
   off a fragment that hangs takes 15 s (documented: the operation timeout must exceed that).
3. A lost acknowledgement: the work is done and the answer never comes.
4. What is slow acts at once and answers late; only receiving acts late too, so that nothing taken is under way.
5. Receiving from an entity where only fragments are struck finds what the others hold.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum
from random import Random
from typing import Final

from sbclient.errors import (
    ServiceBusConnectionError,
    ServiceBusError,
    ServiceBusInternalError,
    ServiceBusServerBusyError,
)
from sbclient.rules.entity_path import belongs_to

REPLACING_S: Final = 15.0
"""How long it takes to move a keyless message off a fragment that hangs. Source: partitioned entities."""


class Operation(StrEnum):
    """What a caller asks for."""

    OPEN = "open"
    SEND = "send"
    SCHEDULE = "schedule"
    CANCEL = "cancel"
    RECEIVE = "receive"
    RECEIVE_DEFERRED = "receive_deferred"
    PEEK = "peek"
    SETTLE = "settle"
    RENEW = "renew"
    SESSION = "session"
    TRANSACTION = "transaction"
    MANAGE = "manage"


class FaultKind(Enum):
    DOWN = "down"
    HANG = "hang"
    BUSY = "busy"
    ERROR = "error"
    SLOW = "slow"
    LOSE_ACKNOWLEDGEMENT = "lose_acknowledgement"


@dataclass(slots=True, eq=False)
class Fault:
    """One switch.

    Attributes:
        kind: what happens.
        entity_path: whose; None = the whole namespace. A path covers the sub-queues behind it, and a topic's path its
            subscriptions.
        fragments: which fragments of the entity; None = the entity itself.
        operations: which operations; None = all.
        probability: with which it strikes each time.
        count: how often it strikes before it heals by itself; None = no limit.
        until_at: when it heals by itself, in seconds of the broker's clock.
        latency_s: of SLOW.
        error: the class that ERROR raises.
    """

    kind: FaultKind
    entity_path: str | None = None
    fragments: Sequence[int] | None = None
    operations: Sequence[Operation] | None = None
    probability: float = 1.0
    count: int | None = None
    until_at: float = math.inf
    latency_s: float = 1.0
    error: type[ServiceBusError] = ServiceBusInternalError

    def error_at(self, place: str, call: Call) -> ServiceBusError | NoAnswer:
        """What a caller meets who is stopped by this fault."""
        if self.kind is FaultKind.HANG:
            return NoAnswer(math.inf)
        if self.kind is FaultKind.SLOW:
            return NoAnswer(self.latency_s - call.waited_s)
        if self.kind is FaultKind.BUSY:
            return ServiceBusServerBusyError(f"{place} is too busy: wait 10 seconds and try again")
        if self.kind is FaultKind.ERROR:
            return self.error(f"{place} answers with the error that was asked for")
        if self.entity_path is None:
            return ServiceBusConnectionError(f"{place} refuses the connection: it is down")
        return ServiceBusInternalError(f"{place} has met an internal error: it is down")


class NoAnswer(Exception):
    """Nothing was done and no answer comes; asking again makes sense after `after_s` seconds, infinity = never."""

    def __init__(self, after_s: float) -> None:
        super().__init__(after_s)
        self.after_s = after_s


class Call:
    """One request at the broker's door, and when its answer leaves.

    Attributes:
        operation: what is asked for.
        now: seconds.
        front_end: the index of the front end that the caller's connection leads to.
        waited_s: how long this request has been held up before.
        answer_after_s: set by the broker: 0 = at once, infinity = the work is done and the answer is lost.
        retry_after_s: set by the broker: after so many seconds a receive may find what it did not find now.
    """

    __slots__ = ("answer_after_s", "front_end", "now", "operation", "retry_after_s", "waited_s")

    def __init__(self, operation: Operation, now: float, *, front_end: int = 0, waited_s: float = 0.0) -> None:
        self.operation = operation
        self.now = now
        self.front_end = front_end
        self.waited_s = waited_s
        self.answer_after_s = 0.0
        self.retry_after_s = math.inf

    def answer_not_before(self, after_s: float) -> None:
        self.answer_after_s = max(self.answer_after_s, after_s)


class Faults:
    """The switches of one namespace.

    Args:
        namespace: its name, for errors.
        random: for faults that strike now and then.
    """

    def __init__(self, namespace: str, random: Random) -> None:
        self._namespace = namespace
        self._random = random
        self._faults: list[Fault] = []

    def inject(self, fault: Fault) -> Fault:
        """Throw a switch; returns it, to be healed by."""
        self._faults.append(fault)
        return fault

    def heal(self, fault: Fault | None = None) -> None:
        """Heal one fault, or all of them. One that has healed by itself is ignored."""
        self._faults = [] if fault is None else [other for other in self._faults if other is not fault]

    def active(self, now: float) -> list[Fault]:
        """The faults that can still strike, oldest first."""
        self._drop_ended(now)
        return list(self._faults)

    @property
    def any_active(self) -> bool:
        return bool(self._faults)

    def next_change_at(self) -> float:
        """When a fault heals by itself; infinity if none will."""
        return min((fault.until_at for fault in self._faults), default=math.inf)

    def check(self, call: Call, path: str | None) -> None:
        """Apply what strikes the namespace or the entity as a whole.

        Raises:
            ServiceBusError, NoAnswer: the request ends here.
        """
        if not self._faults:
            return
        self._drop_ended(call.now)
        for fault in self._faults.copy():
            place = path if path is not None and fault.entity_path is not None else f"namespace {self._namespace}"
            if fault.fragments is None and self._covers(fault, path) and self._strikes(fault, call):
                if _stops(fault, call):
                    raise fault.error_at(place, call)
                _hold_up(fault, call)

    def stopping(self, call: Call, path: str, index: int) -> Fault | None:
        """The fault, if any, for which a fragment does not do what is asked."""
        for fault in self._at_fragment(path, index):
            if _stops(fault, call) and self._strikes(fault, call):
                if fault.kind is FaultKind.SLOW:
                    call.retry_after_s = min(call.retry_after_s, fault.latency_s - call.waited_s)
                return fault
        return None

    def delay(self, call: Call, path: str, index: int) -> None:
        """Hold up the answer to what a fragment has done."""
        for fault in self._at_fragment(path, index):
            if not _stops(fault, call) and self._strikes(fault, call):
                _hold_up(fault, call)

    def check_fragment(self, call: Call, path: str, index: int) -> None:
        """For what only this fragment can do.

        Raises:
            ServiceBusError, NoAnswer: it does not.
        """
        fault = self.stopping(call, path, index)
        if fault is not None:
            raise fault.error_at(f"fragment {index} of {path}", call)
        self.delay(call, path, index)

    def unreachable(self, now: float, path: str, fragment_count: int) -> list[int]:
        """The fragments of an entity that are down or hang for every operation."""
        self._drop_ended(now)
        lost = (FaultKind.DOWN, FaultKind.HANG)
        struck = [
            fault
            for fault in self._faults
            if fault.fragments is not None and fault.kind in lost and not fault.operations
        ]
        return [
            index
            for index in range(fragment_count)
            if any(self._covers(fault, path) and index in (fault.fragments or ()) for fault in struck)
        ]

    def _at_fragment(self, path: str, index: int) -> list[Fault]:
        return [
            fault
            for fault in self._faults
            if fault.fragments is not None and index in fault.fragments and self._covers(fault, path)
        ]

    def _covers(self, fault: Fault, path: str | None) -> bool:
        return fault.entity_path is None or (path is not None and belongs_to(path, fault.entity_path))

    def _strikes(self, fault: Fault, call: Call) -> bool:
        if fault.operations is not None and call.operation not in fault.operations:
            return False
        if fault.probability < 1 and self._random.random() >= fault.probability:
            return False
        if fault.count is not None:
            fault.count -= 1
            if fault.count == 0:
                self.heal(fault)
        return True

    def _drop_ended(self, now: float) -> None:
        if self._faults and self.next_change_at() <= now:
            self._faults = [fault for fault in self._faults if fault.until_at > now]


def _stops(fault: Fault, call: Call) -> bool:
    """Whether what is asked for is not done, or not yet."""
    if fault.kind is FaultKind.SLOW:
        return call.operation is Operation.RECEIVE and call.waited_s < fault.latency_s
    return fault.kind is not FaultKind.LOSE_ACKNOWLEDGEMENT


def _hold_up(fault: Fault, call: Call) -> None:
    if fault.kind is FaultKind.LOSE_ACKNOWLEDGEMENT:
        call.answer_not_before(math.inf)
    elif call.operation is not Operation.RECEIVE:
        call.answer_not_before(fault.latency_s)
