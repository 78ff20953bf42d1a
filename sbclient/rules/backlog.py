"""Backlog queues: their names, the choice of a queue by a sender, and the quarantine of failed queues.

Source: paired namespaces, documented: the names, the count, the uniformly random choice that each sender keeps, and the
removal of a failed queue for all senders. The end of the quarantine is our choice (30 s, doubled up to 5 min).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from hashlib import sha256
from random import Random
from typing import Final, NamedTuple
from zlib import crc32

from sbclient.errors import (
    BacklogUnavailableError,
    InvalidOperationError,
    ServiceBusError,
)
from sbclient.rules.backoff import growing

BACKLOG_SEGMENT: Final = "x-servicebus-transfer"
SESSION_BACKLOG_SEGMENT: Final = "x-servicebus-transfer-sessions"

QUARANTINE_S: Final = 30.0
QUARANTINE_MAX_S: Final = 300.0

_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
_IP_ADDRESS = re.compile(r"[0-9.]+|.*:.*")


def primary_name_of(namespace: str) -> str:
    """Return the first segment of a primary's backlog queue names: its first DNS label, or `host-port` if local.

    Args:
        namespace: `contoso.servicebus.windows.net`, `localhost:5672`, `127.0.0.1:5672` or `memory://contoso`.

    Raises:
        InvalidOperationError: the namespace yields no legal name. The option `primary_name` sets one.
    """
    bare = namespace.removeprefix("memory://")
    host, _, port = bare.partition(":") if bare.count(":") == 1 else (bare, "", "")
    is_local = host.lower() == "localhost" or _IP_ADDRESS.fullmatch(host) is not None
    name = "-".join(filter(None, (host.strip("[]").replace(":", "-"), port))) if is_local else host.split(".")[0]
    if _NAME.fullmatch(name) is None:
        raise InvalidOperationError(
            f"namespace {namespace!r} yields no name for its backlog queues: set the option primary_name"
        )
    return name


def backlog_queue_names(primary_name: str, count: int) -> list[str]:
    """Return the names of the first `count` backlog queues of a primary.

    Raises:
        InvalidOperationError: `primary_name` is not a legal path segment.
    """
    _check_primary_name(primary_name)
    return [f"{primary_name}/{BACKLOG_SEGMENT}/{index}" for index in range(count)]


def _check_primary_name(primary_name: str) -> None:
    if _NAME.fullmatch(primary_name) is None:
        raise InvalidOperationError(
            f"primary_name is {primary_name!r}: use letters, digits, '.', '-' and '_', with a letter or digit at "
            "both ends"
        )


def session_backlog_queue_names(primary_name: str, count: int) -> list[str]:
    """Return the names of the session-enabled backlog queues, used with `ordering="session"`."""
    _check_primary_name(primary_name)
    return [f"{primary_name}/{SESSION_BACKLOG_SEGMENT}/{index}" for index in range(count)]


def native_session_id_of(path: str, session_id: str) -> str:
    """Return the session id that an entity's session has in its backlog queue: the SHA-256 of both, in hexadecimal."""
    return sha256(f"{path.casefold()}\n{session_id}".encode()).hexdigest()


def session_backlog_queue_of(queues: Sequence[str], session_id: str) -> str:
    """Return the session backlog queue of a session, chosen by CRC-32 so that every client uses the same queue."""
    return queues[crc32(session_id.encode()) % len(queues)]


def is_backlog_path(path: str) -> bool:
    """Return whether a path is reserved for backlog queues, so that no message may be forwarded there."""
    segments = path.casefold().replace("\\", "/").split("/")
    return BACKLOG_SEGMENT in segments or SESSION_BACKLOG_SEGMENT in segments


def may_recover(error: BaseException | None) -> bool:
    """Return whether a namespace that raised this error may work later: it is unreachable, busy or full.

    The answer for a `BacklogUnavailableError` depends on the errors of its queues.
    """
    if isinstance(error, BacklogUnavailableError):
        return any(map(may_recover, (*error.causes.values(), error.__cause__)))
    return isinstance(error, ServiceBusError) and (error.is_outage or error.is_transient)


_term_s: Final = growing(QUARANTINE_S, QUARANTINE_MAX_S)


class _Term(NamedTuple):
    until_at: float
    failures: int


class Quarantine:
    """The backlog queues that failed recently. Shared by every sender of a client.

    Attributes:
        terms: the last exclusion of each queue that has not succeeded since.
    """

    def __init__(self) -> None:
        self.terms: dict[str, _Term] = {}

    def failed(self, queue: str, now: float) -> bool:
        """Exclude a queue for 30 s, or for twice as long as the last time, at most 5 min.

        Returns:
            Whether it was not excluded before, or has succeeded since.
        """
        term = self.terms.get(queue)
        if term is not None and now < term.until_at:
            return False
        failures = 1 if term is None else term.failures + 1
        self.terms[queue] = _Term(now + _term_s(failures), failures)
        return term is None

    def succeeded(self, queue: str) -> bool:
        """Forget the failures of a queue. Returns whether there were any."""
        return self.terms.pop(queue, None) is not None

    def is_in(self, queue: str, now: float) -> bool:
        term = self.terms.get(queue)
        return term is not None and now < term.until_at

    def due_at(self, queue: str) -> float:
        """Return the end of a queue's quarantine. It is in the past if the queue is not in quarantine."""
        term = self.terms.get(queue)
        return float("-inf") if term is None else term.until_at

    def queues(self, now: float) -> list[str]:
        """Return the queues in quarantine, sorted by name."""
        return sorted(queue for queue in self.terms if self.is_in(queue, now))


class BacklogChoice:
    """The backlog queue of one sender: chosen at random at its first diversion, kept until it fails.

    Args:
        queues: the usable backlog queues, at least one.
        quarantine: shared by all senders of the client.
        random: source of the random choice.
    """

    def __init__(self, queues: Sequence[str], quarantine: Quarantine, random: Random) -> None:
        self._queues = list(queues)
        self._quarantine = quarantine
        self._random = random
        self._chosen: str | None = None

    def pick(self, now: float, *, tried: Collection[str] = ()) -> str | None:
        """Return the queue for the next diversion; None if every queue was tried for this message.

        If all remaining queues are in quarantine, this is the queue whose quarantine ends first. The caller tries at
        most one queue in quarantine for each message.
        """
        chosen, is_any_out = self._chosen, bool(self._quarantine.terms)
        if chosen is not None and chosen not in tried and not (is_any_out and self._quarantine.is_in(chosen, now)):
            return chosen
        usable = [queue for queue in self._queues if queue not in tried and not self._quarantine.is_in(queue, now)]
        if usable:
            self._chosen = self._random.choice(usable)
            return self._chosen
        left = [queue for queue in self._queues if queue not in tried]
        return min(left, key=self._quarantine.due_at, default=None)
