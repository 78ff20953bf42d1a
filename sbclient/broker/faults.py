"""Faults for tests: a namespace, entity or fragment is down, hangs, is busy or slow, or loses its answers.

Faults are injected and healed at run time; they never change stored messages. Their effects (the documents say only "an
error"; the rest is our choice):

1. A namespace that is down refuses the connection; an entity or fragment that is down returns an internal error.
2. A hanging target does nothing and never answers. Messages without a key avoid fragments that are down, busy or hang;
   to avoid a hanging fragment takes 15 s (documented: the operation timeout must exceed that).
3. With a lost acknowledgement the operation is done, but the answer is lost.
4. A slow target acts at once and answers late. Only a receive also acts late, so that no message
   is in flight.
5. A receive from an entity with faults on some fragments returns messages of the others.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from random import Random
from typing import Any, Final, TypeVar

from sbclient.errors import (
    InvalidOperationError,
    ServiceBusConnectionError,
    ServiceBusError,
    ServiceBusInternalError,
    ServiceBusServerBusyError,
)
from sbclient.rules.entity_path import belongs_to

REPLACING_S: Final = 15.0
"""The time to move a message without a key away from a hanging fragment. Source: partitioned entities."""


class Operation(StrEnum):
    """The kind of a request."""

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
    """One fault.

    Attributes:
        kind: the effect, or its value such as "down".
        entity_path: the entity; None = the whole namespace. The path of an entity includes its sub-queues, the path of
            a topic includes its subscriptions.
        fragments: the indexes of the affected fragments of the entity; None = the entity itself.
        operations: the affected operations, or their values such as "send"; None = all.
        probability: of an effect on each request, above 0, up to 1.
        count: the number of effects after which the fault ends; None = no limit.
        until_at: the time at which the fault ends, in seconds since 1970-01-01 UTC of the broker's clock.
        latency_s: seconds, of SLOW.
        error: the class that ERROR raises, or an error with the text.
        applied: how often it had an effect.

    Raises:
        InvalidOperationError: a value is not one of these.
    """

    kind: FaultKind
    entity_path: str | None = None
    fragments: Collection[int] | None = None
    operations: Collection[Operation] | None = None
    probability: float = 1.0
    count: int | None = None
    until_at: float = math.inf
    latency_s: float = 1.0
    error: type[ServiceBusError] | ServiceBusError = ServiceBusInternalError
    applied: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.kind = _member(FaultKind, "kind", self.kind)
        if not isinstance(self.entity_path, str | None) or self.entity_path == "":
            raise _refused("entity_path", self.entity_path, "a path such as 'orders', or None for the whole namespace")
        if self.operations is not None:
            values = ", ".join(Operation)
            given = _entries("operations", self.operations, f"a list with some of {values}")
            self.operations = [_member(Operation, "operations", each) for each in given]
        if self.fragments is not None:
            advice = "a list of indexes from 0, such as [3]"
            for index in _entries("fragments", self.fragments, advice):
                if not _is_number(index, int) or index < 0:
                    raise _refused("fragments", index, advice)
        if not _is_number(self.probability) or not 0 < self.probability <= 1:
            raise _refused("probability", self.probability, "more than 0 and up to 1")
        if self.count is not None and (not _is_number(self.count, int) or self.count < 1):
            raise _refused("count", self.count, "1 or more, or None for no limit")
        if not _is_number(self.until_at) or math.isnan(self.until_at):
            raise _refused("until_at", self.until_at, "seconds since 1970, as the timestamp() of an aware datetime")
        if not _is_number(self.latency_s) or not 0 <= self.latency_s < math.inf:
            raise _refused("latency_s", self.latency_s, "0 or more seconds")
        kind = self.error if isinstance(self.error, type) else type(self.error)
        if not issubclass(kind, ServiceBusError):
            raise _refused("error", self.error, "a ServiceBusError of sbclient")

    def error_at(self, place: str, call: Call) -> ServiceBusError | NoAnswer:
        """The error for a request that the fault stops."""
        if self.kind is FaultKind.HANG:
            return NoAnswer(math.inf)
        if self.kind is FaultKind.SLOW:
            return NoAnswer(self.latency_s - call.waited_s)
        if self.kind is FaultKind.BUSY:
            return busy(place)
        if self.kind is FaultKind.ERROR:
            if isinstance(self.error, type):
                return self.error(f"{place} returns the injected error")
            return type(self.error)(str(self.error))  # a new one for each request
        if self.entity_path is None:
            return ServiceBusConnectionError(f"{place} refuses the connection: it is down")
        return ServiceBusInternalError(f"{place} has an internal error: it is down")


def busy(place: str) -> ServiceBusServerBusyError:
    """The error for a request to a place that takes no more."""
    return ServiceBusServerBusyError(
        f"The request was terminated because {place} is being throttled. Please wait 10 seconds and try again."
    )


E = TypeVar("E", bound=Enum)


def _member(kind: type[E], name: str, value: Any) -> E:
    try:
        return kind(value)
    except ValueError:
        values = ", ".join(str(each.value) for each in kind)
        raise _refused(name, value, f"one of {values}") from None


def _entries(name: str, value: Any, advice: str) -> Collection[Any]:
    if isinstance(value, str) or not isinstance(value, Collection) or not value:
        raise _refused(name, value, advice)
    return value


def _is_number(value: Any, kind: type = float) -> bool:
    return isinstance(value, (int, kind)) and not isinstance(value, bool)


def _refused(name: str, value: Any, advice: str) -> InvalidOperationError:
    return InvalidOperationError(f"{name} of a fault is {value!r:.80}: give {advice}")


class NoAnswer(Exception):
    """The request has no effect and no answer; a retry makes sense after `after_s` seconds, infinity = never."""

    def __init__(self, after_s: float) -> None:
        super().__init__(after_s)
        self.after_s = after_s


class Call:
    """One request to the broker, and the delay of its answer.

    Attributes:
        operation: the kind of request.
        now: seconds.
        front_end: the index of the front end of the connection.
        waited_s: how long the request has waited so far.
        answer_after_s: set by the broker: 0 = at once, infinity = the request was executed and the answer is lost.
        retry_after_s: set by the broker: the seconds after which a receive without result makes sense again.
        is_unfinished: set by the broker: a receive has not looked at all messages, and must be called again.
    """

    __slots__ = ("answer_after_s", "front_end", "is_unfinished", "now", "operation", "retry_after_s", "waited_s")

    def __init__(self, operation: Operation, now: float, front_end: int = 0, waited_s: float = 0.0) -> None:
        self.operation = operation
        self.now = now
        self.front_end = front_end
        self.waited_s = waited_s
        self.answer_after_s = 0.0
        self.retry_after_s = math.inf
        self.is_unfinished = False

    def answer_not_before(self, after_s: float) -> None:
        self.answer_after_s = max(self.answer_after_s, after_s)


class Faults:
    """The faults of one namespace.

    Args:
        namespace: its name, for errors.
        random: for faults with a probability.

    Attributes:
        injected: the faults, oldest first; some may have ended. Read-only.
    """

    def __init__(self, namespace: str, random: Random) -> None:
        self._namespace = namespace
        self._random = random
        self.injected: list[Fault] = []

    def inject(self, fault: Fault) -> Fault:
        """Inject a fault and return it, for `heal`."""
        self.injected.append(fault)
        return fault

    def heal(self, fault: Fault | None = None) -> None:
        """Remove one fault, or all of them. A fault that has ended is ignored."""
        self.injected = [] if fault is None else [other for other in self.injected if other is not fault]

    def active(self, now: float) -> list[Fault]:
        """The active faults, oldest first."""
        self._drop_ended(now)
        return list(self.injected)

    def next_change_at(self) -> float:
        """The time at which the next fault ends; infinity if none does."""
        return min((fault.until_at for fault in self.injected), default=math.inf)

    def check(self, call: Call, path: str | None) -> None:
        """Apply the faults of the namespace and of the entity as a whole.

        Raises:
            ServiceBusError, NoAnswer: a fault stops the request.
        """
        self._drop_ended(call.now)
        for fault in self.injected.copy():
            place = path if path is not None and fault.entity_path is not None else f"namespace {self._namespace}"
            if fault.fragments is None and self._covers(fault, path) and self._applies(fault, call):
                if _stops(fault, call):
                    raise fault.error_at(place, call)
                _delay_answer(fault, call)

    def stopping(self, call: Call, path: str, index: int) -> Fault | None:
        """The fault that stops a request to a fragment, if any."""
        for fault in self._at_fragment(path, index):
            if _stops(fault, call) and self._applies(fault, call):
                if fault.kind is FaultKind.SLOW:
                    call.retry_after_s = min(call.retry_after_s, fault.latency_s - call.waited_s)
                return fault
        return None

    def delay(self, call: Call, path: str, index: int) -> None:
        """Apply faults that delay the answer of a fragment."""
        for fault in self._at_fragment(path, index):
            if not _stops(fault, call) and self._applies(fault, call):
                _delay_answer(fault, call)

    def check_fragment(self, call: Call, path: str, index: int) -> None:
        """Apply the faults of a fragment to a request that only this fragment can serve.

        Raises:
            ServiceBusError, NoAnswer: a fault stops the request.
        """
        fault = self.stopping(call, path, index)
        if fault is not None:
            raise fault.error_at(f"fragment {index} of {path}", call)
        self.delay(call, path, index)

    def unreachable(self, now: float, path: str, fragment_count: int) -> list[int]:
        """The fragments of an entity that are down or hang for all operations."""
        self._drop_ended(now)
        lost = (FaultKind.DOWN, FaultKind.HANG)
        affecting = [
            fault
            for fault in self.injected
            if fault.fragments is not None and fault.kind in lost and not fault.operations
        ]
        return [
            index
            for index in range(fragment_count)
            if any(self._covers(fault, path) and index in (fault.fragments or ()) for fault in affecting)
        ]

    def _at_fragment(self, path: str, index: int) -> list[Fault]:
        return [
            fault
            for fault in self.injected
            if fault.fragments is not None and index in fault.fragments and self._covers(fault, path)
        ]

    def _covers(self, fault: Fault, path: str | None) -> bool:
        return fault.entity_path is None or (path is not None and belongs_to(path, fault.entity_path))

    def _applies(self, fault: Fault, call: Call) -> bool:
        if fault.operations is not None and call.operation not in fault.operations:
            return False
        if fault.probability < 1 and self._random.random() >= fault.probability:
            return False
        fault.applied += 1
        if fault.count is not None:
            fault.count -= 1
            if fault.count == 0:
                self.heal(fault)
        return True

    def _drop_ended(self, now: float) -> None:
        if self.injected and self.next_change_at() <= now:
            self.injected = [fault for fault in self.injected if fault.until_at > now]


def _stops(fault: Fault, call: Call) -> bool:
    """Whether the fault prevents the operation, at least for now."""
    if fault.kind is FaultKind.SLOW:
        return call.operation is Operation.RECEIVE and call.waited_s < fault.latency_s
    return fault.kind is not FaultKind.LOSE_ACKNOWLEDGEMENT


def _delay_answer(fault: Fault, call: Call) -> None:
    if fault.kind is FaultKind.LOSE_ACKNOWLEDGEMENT:
        call.answer_not_before(math.inf)
    elif call.operation is not Operation.RECEIVE:
        call.answer_not_before(fault.latency_s)
