"""What happened in one run: every message with its tries, and everything that crossed the wire, in order.

Two views are kept apart. A `Submission` is what the application knows: each attempt and its outcome. An `Attempt`, a
`Handed` and a `Settled` are what crossed the wire between a client and a namespace, which no application sees. The
checkers compare the two.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from hashlib import sha256
from itertools import count
from math import floor
from typing import Any, Final

from sbclient import clock
from sbclient.amqp import EncodedMessage
from sbclient.errors import (
    OperationTimeoutError,
    ServiceBusCommunicationError,
    ServiceBusConnectionError,
    ServiceBusError,
)
from sbclient.message import AmqpMessageBodyType, ServiceBusMessage, ServiceBusReceivedMessage
from sbclient.pairing.status import PairEvent
from sbclient.rules import backlog

CANARY: Final = "canary-b0dy-4711"
"""In every body; it must never be seen outside a message."""

FORGED: Final = "forged"
"""Prefix of the uids of messages that no client sent."""


GAVE_UP: Final = "gave up"
"""The error of a call whose application did not wait for the answer."""

is_backlog_path: Final = cache(backlog.is_backlog_path)

TEXT_ATTRIBUTES: Final = (
    "message_id",
    "session_id",
    "partition_key",
    "subject",
    "correlation_id",
    "content_type",
    "to",
    "reply_to",
    "reply_to_session_id",
)
"""The attributes of a message that are texts, in the order in which a copy sets them."""


class Outcome(StrEnum):
    OK = "ok"
    REFUSED = "refused"
    DOUBT = "doubt"


def outcome_of(error: BaseException) -> Outcome:
    """How sure one answer of the wire leaves us: a timeout and a lost connection leave it open whether it was done."""
    doubtful = (OperationTimeoutError, ServiceBusConnectionError, ServiceBusCommunicationError)
    if isinstance(error, ServiceBusError) and not isinstance(error, doubtful):
        return Outcome.REFUSED
    return Outcome.DOUBT


def reported_outcome(error: ServiceBusError) -> Outcome:
    """What the client says of an operation that failed, all its tries together."""
    return Outcome.DOUBT if error.is_in_doubt else Outcome.REFUSED


@dataclass(slots=True, eq=False)
class Try:
    """One call of an application with some message.

    Attributes:
        attempts: the numbers of those on the wire that were made meanwhile, by whomever.
    """

    begin: float
    client: str
    end: float = math.inf
    outcome: Outcome = Outcome.DOUBT
    error: str = ""
    attempts: range = range(0)


@dataclass(slots=True, eq=False)
class Submission:
    """One message of an application, with the outcome of each attempt.

    Attributes:
        uid: in the body, so that no part of the system can change it unseen.
        message: as it was handed to the sender.
        position: rises within its lane and key.
        unit: of submissions that are sent together; those of one transaction are stored together or not at all.
        cancelled: the outcome of cancelling its schedule; None = not attempted.
        edge: of a message at the edge of the size limits: `below`, `fits`, `over_reserve` or `over_limit`.
    """

    uid: str
    lane: str
    path: str
    position: int
    unit: int
    message: ServiceBusMessage
    tries: list[Try] = field(default_factory=list)
    cancelled: Outcome | None = None
    edge: str = ""

    @property
    def is_accepted(self) -> bool:
        return any(one.outcome is Outcome.OK for one in self.tries)

    @property
    def is_refused(self) -> bool:
        """Whether every try was refused for certain."""
        return bool(self.tries) and all(one.outcome is Outcome.REFUSED for one in self.tries)

    @property
    def key(self) -> str | None:
        message = self.message
        return message.session_id if message.session_id is not None else message.partition_key


@dataclass(slots=True, eq=False)
class Attempt:
    """A send, or a link opened, on the wire.

    Attributes:
        side: `primary` or `secondary`.
        what: `send`, `schedule`, `limits`, `open`, or `ping`.
        uids: of the messages, empty for pings.
        keys: (session id, partition key) of the first message.
        transaction: which one it was part of.
        error: the class of what came back; None on success.
        ids: of the messages.
        number: how many there were before it.
        timeout_s: how long the client waits for the answer.
    """

    number: int
    client: str
    side: str
    what: str
    path: str
    uids: tuple[str, ...]
    ids: tuple[str | None, ...]
    keys: tuple[str | None, str | None]
    begin: float
    timeout_s: float
    transaction: int | None = None
    end: float = math.inf
    outcome: Outcome = Outcome.DOUBT
    error: type[BaseException] | None = None

    @property
    def is_backlog(self) -> bool:
        return is_backlog_path(self.path)


@dataclass(slots=True, eq=False)
class Handed:
    """A message handed to a client on the wire, locked unless it was deleted.

    Attributes:
        link: the receiver link.
        copy: names the stored copy: path, number, and time of storing.
        locked_until: the earliest end of its lock, extended by renewals. Infinite in a session, which has its own lock.
        locked_at_most: the latest end of its lock, if an answer to a renewal was lost.
        ended_at: when the hold certainly or possibly ended: settled, given back, or its link gone.
        how: what ended it.
        is_final: whether the message was confirmed to be gone from where it was.
        is_stale: whether it was fetched ahead, and may have lain with its receiver until its lock had ended.
    """

    client: str
    link: int
    side: str
    path: str
    copy: tuple[str, int, float]
    uid: str
    at: float
    token: Any
    message: ServiceBusReceivedMessage
    is_deferred: bool
    locked_until: float = math.inf
    locked_at_most: float = math.inf
    ended_at: float = math.inf
    how: str = ""
    is_final: bool = False
    is_stale: bool = False
    settles: list[Settled] = field(default_factory=list)

    @property
    def is_backlog(self) -> bool:
        return is_backlog_path(self.path)


@dataclass(slots=True, eq=False)
class Settled:
    """A try to settle on the wire."""

    mode: str
    begin: float
    transaction: int | None
    reason: str | None = None
    end: float = math.inf
    outcome: Outcome = Outcome.DOUBT


@dataclass(slots=True, eq=False)
class Delivery:
    """A message that an application received.

    Attributes:
        origin: `queue`, `deferred`, `dead_letter`, `backlog_dead_letter` or `drain`.
        side: `primary` or `secondary`.
    """

    at: float
    client: str
    path: str
    uid: str
    message: ServiceBusReceivedMessage
    origin: str
    side: str = "primary"

    @property
    def copy(self) -> tuple[str, int, float]:
        return copy_of(self.path, self.message)


@dataclass(slots=True, eq=False)
class SessionHold:
    """A session that a client accepted on the wire. The moments are as in `Handed`."""

    client: str
    link: int
    side: str
    path: str
    session_id: str
    at: float
    locked_until: float
    locked_at_most: float
    ended_at: float = math.inf


@dataclass(slots=True, eq=False)
class Grant:
    """A session that a broker granted, whether or not its client has heard of it.

    Attributes:
        hold: of the client, once it has.
    """

    ended_at: float = math.inf
    hold: SessionHold | None = None

    def end(self, now: float) -> None:
        """The broker has released the session."""
        self.ended_at = now
        if self.hold is not None:
            self.hold.ended_at = min(self.hold.ended_at, now)


@dataclass(slots=True, eq=False)
class StateNote:
    """A session's state that was read or stored by an application."""

    at: float
    path: str
    session_id: str
    state: bytes | None
    is_read: bool
    outcome: Outcome
    begin: float


@dataclass(slots=True, eq=False)
class TransactionStory:
    """One transaction. `fate` is the outcome for its application: ok, refused or doubt; rolled back is refused."""

    number: int
    uids: tuple[str, ...]
    fate: Outcome = Outcome.DOUBT


@dataclass(frozen=True, slots=True)
class Violation:
    """Something that must hold and did not."""

    invariant: str
    text: str


def copy_of(path: str, message: ServiceBusReceivedMessage) -> tuple[str, int, float]:
    """Names a stored copy: path, number, and the time of storing in whole milliseconds, as messages carry it."""
    return path.casefold(), message.sequence_number, floor(message.enqueued_time_utc.timestamp() * 1000 + 1e-3) / 1000


def uid_of(message: ServiceBusMessage | EncodedMessage) -> str:
    """The uid in the body; empty for other messages, as pings or those of the vandal."""
    if message.body_type is not AmqpMessageBodyType.DATA:
        return ""
    head, bar, _ = bytes(message).partition(b"|")
    return head.decode(errors="replace") if bar else ""


class History:
    """Everything of one run.

    Attributes:
        epoch: what the clock says when the run begins, so that moments can be printed from 0.
        deleted: how many copies of each uid were deleted together with their entity.
        deleted_at: when an entity was last deleted, by side and path.
        ended_at: when each client that sends was closed.
        pauses: from when to when each worker that is paused may send nothing.
        resting: which backlog queues a client reported as quarantined, and when.
        cuts: how often each side's connections break within a call, from 0 to 1.
        violations: what was seen to be broken while it happened; the checkers find the rest.
        telling: the errors, by name, that contained a body.
        trace: whether readable lines are kept.
    """

    def __init__(self, *, trace: bool = False) -> None:
        self.epoch = 0.0
        self.trace = trace
        self.lines: list[str] = []
        self.submissions: dict[str, Submission] = {}
        self.attempts: list[Attempt] = []
        self.handed: list[Handed] = []
        self.handed_uids: set[str] = set()
        self.deliveries: list[Delivery] = []
        self.session_holds: list[SessionHold] = []
        self.states: list[StateNote] = []
        self.transactions: dict[int, TransactionStory] = {}
        self.pair_events: dict[str, list[PairEvent]] = {}
        self.diverted_reported: dict[str, int] = {}
        self.ended_at: dict[str, float] = {}
        self.pauses: list[tuple[str, float, float]] = []
        self.resting: list[tuple[float, str, tuple[str, ...]]] = []
        self.logged: list[str] = []
        self.deleted: defaultdict[str, int] = defaultdict(int)
        self.deleted_at: dict[tuple[str, str], float] = {}
        self.deaths: list[tuple[float, str]] = []
        self.violations: list[Violation] = []
        self.telling: list[str] = []
        self.cuts: dict[str, float] = {}
        self.wire_calls = 0
        self.numbers = count(1)
        self._holds: dict[tuple[str, Any], Handed] = {}
        self._grants: dict[tuple[str, str, str, int], Grant] = {}
        self._digest = sha256()

    def now(self) -> float:
        return clock.true_now()

    def note(self, *facts: object) -> None:
        """Add a line to what the hash is made of."""
        line = f"{self.now() - self.epoch:.6f} " + " ".join(map(str, facts))
        self._digest.update(line.encode())
        if self.trace:
            self.lines.append(line)

    def digest(self) -> str:
        """Names this history: two runs with the same one were the same step by step."""
        return self._digest.hexdigest()[:16]

    def violated(self, invariant: str, text: str) -> None:
        self.violations.append(Violation(invariant, text))
        self.note("VIOLATED", invariant, text)

    def hold(self, handed: Handed) -> None:
        """A message was handed over."""
        self.handed.append(handed)
        self.handed_uids.add(handed.uid)
        self._holds[handed.side, handed.token] = handed

    def holder(self, side: str, token: Any) -> Handed | None:
        return self._holds.get((side, token))

    def granted(self, side: str, path: str, session_id: str, until: float) -> Grant:
        """A broker has granted a session until some moment."""
        grant = self._grants[side, path.casefold(), session_id, int(until * 1000)] = Grant()
        return grant

    def grant_of(self, side: str, path: str, session_id: str, until: float) -> Grant | None:
        """What the broker knows of a session that a client holds; None where it is not asked."""
        return self._grants.get((side, path.casefold(), session_id, int(until * 1000)))

    def refused(self, error: BaseException) -> None:
        """An application met an error; its text must tell no body."""
        if CANARY in _all_of(error):
            self.telling.append(type(error).__name__)

    def attempts_of(self) -> dict[str, list[Attempt]]:
        """The sends of each uid, in order of their begin."""
        by_uid: dict[str, list[Attempt]] = defaultdict(list)
        for attempt in self.attempts:
            for uid in dict.fromkeys(attempt.uids):
                by_uid[uid].append(attempt)
        return by_uid

    def arrivals(self) -> dict[str, list[Delivery]]:
        """The deliveries of each uid, in order."""
        by_uid: dict[str, list[Delivery]] = defaultdict(list)
        for delivery in self.deliveries:
            by_uid[delivery.uid].append(delivery)
        return by_uid


def _all_of(error: BaseException | None, depth: int = 0) -> str:
    """An error with its causes and notes, as a log would show it."""
    if error is None or depth > 5:
        return ""
    notes = " ".join(getattr(error, "__notes__", ()))
    return f"{error} {error!r} {notes} {_all_of(error.__cause__, depth + 1)} {_all_of(error.__context__, depth + 1)}"


def listed(items: Iterable[object], most: int = 6) -> str:
    """The first few of some things, for an error."""
    shown = [str(item) for item in items]
    return ", ".join(shown[:most]) + (f" and {len(shown) - most} more" if len(shown) > most else "")
