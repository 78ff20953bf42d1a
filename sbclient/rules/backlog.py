"""Backlog queues: what they are called, which one a sender takes, and how long a failed one is left out.

Names and count, the uniformly random choice, kept for the life of a sender, and the removal of a failed queue for every
sender are documented; that it comes back after a quarantine is our choice (30 s, doubled up to 5 min).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from hashlib import sha256
from random import Random
from typing import Final
from zlib import crc32

from sbclient.errors import (
    InvalidOperationError,
    MessagingEntityNotFoundError,
    ServiceBusError,
)

BACKLOG_SEGMENT: Final = "x-servicebus-transfer"
SESSION_BACKLOG_SEGMENT: Final = "x-servicebus-transfer-sessions"

QUARANTINE_S: Final = 30.0
QUARANTINE_MAX_S: Final = 300.0

_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
_IP_ADDRESS = re.compile(r"[0-9.]+|.*:.*")


def primary_name_of(namespace: str) -> str:
    """The first segment of the backlog queues of a primary: its first DNS label, or `host-port` for a local one.

    Args:
        namespace: `contoso.servicebus.windows.net`, `localhost:5672`, `127.0.0.1:5672` or `memory://contoso`.

    Raises:
        InvalidOperationError: no legal name can be made of it; the option `primary_name` sets one.
    """
    bare = namespace.removeprefix("memory://")
    host, _, port = bare.partition(":") if bare.count(":") == 1 else (bare, "", "")
    is_local = host.lower() == "localhost" or _IP_ADDRESS.fullmatch(host) is not None
    name = "-".join(filter(None, (host.strip("[]").replace(":", "-"), port))) if is_local else host.split(".")[0]
    if _NAME.fullmatch(name) is None:
        raise InvalidOperationError(f"no backlog queues can be named after {namespace!r}: set the option primary_name")
    return name


def backlog_queue_names(primary_name: str, count: int) -> list[str]:
    """The names of the first `count` backlog queues of a primary.

    Raises:
        InvalidOperationError: the name cannot be a segment of a queue's path.
    """
    _check_primary_name(primary_name)
    return [f"{primary_name}/{BACKLOG_SEGMENT}/{index}" for index in range(count)]


def _check_primary_name(primary_name: str) -> None:
    if _NAME.fullmatch(primary_name) is None:
        raise InvalidOperationError(
            f"primary_name is {primary_name!r}: letters, digits, '.', '-' and '_', with a letter or digit at both ends"
        )


def session_backlog_queue_names(primary_name: str, count: int) -> list[str]:
    """The names of the session-enabled backlog queues, used with `ordering="session"`."""
    _check_primary_name(primary_name)
    return [f"{primary_name}/{SESSION_BACKLOG_SEGMENT}/{index}" for index in range(count)]


def native_session_id_of(path: str, session_id: str) -> str:
    """The session, in its session backlog queue, of an entity's session: the SHA-256 of both, in hexadecimal."""
    return sha256(f"{path.casefold()}\n{session_id}".encode()).hexdigest()


def session_backlog_queue_of(queues: Sequence[str], session_id: str) -> str:
    """The one session backlog queue for a session, by CRC-32, so that every client takes the same."""
    return queues[crc32(session_id.encode()) % len(queues)]


def is_backlog_path(path: str) -> bool:
    """Whether a path lies in the space of backlog queues, so that nothing may be moved there."""
    segments = path.casefold().replace("\\", "/").split("/")
    return BACKLOG_SEGMENT in segments or SESSION_BACKLOG_SEGMENT in segments


def is_queue_fault(error: ServiceBusError) -> bool:
    """Whether an error speaks against the backlog queue, and not against the message that was sent to it."""
    return error.is_outage or isinstance(error, MessagingEntityNotFoundError)


@dataclass(slots=True)
class _Term:
    until_at: float
    span_s: float


class Quarantine:
    """The backlog queues that failed lately, shared by every sender of a client."""

    def __init__(self) -> None:
        self._terms: dict[str, _Term] = {}

    def failed(self, queue: str, now: float) -> None:
        """Leave a queue out for 30 s, or twice as long as the last time, at most 5 min."""
        term = self._terms.get(queue)
        if term is not None and now < term.until_at:
            return
        span_s = QUARANTINE_S if term is None else min(term.span_s * 2, QUARANTINE_MAX_S)
        self._terms[queue] = _Term(now + span_s, span_s)

    def succeeded(self, queue: str) -> bool:
        """Forget everything that was held against a queue; returns whether there was anything."""
        return self._terms.pop(queue, None) is not None

    def is_in(self, queue: str, now: float) -> bool:
        term = self._terms.get(queue)
        return term is not None and now < term.until_at

    def due_at(self, queue: str) -> float:
        """When a queue comes back, in the past if it is not in quarantine."""
        term = self._terms.get(queue)
        return float("-inf") if term is None else term.until_at

    def queues(self, now: float) -> list[str]:
        """Every queue in quarantine, by name."""
        return sorted(queue for queue in self._terms if self.is_in(queue, now))


class BacklogChoice:
    """One sender's backlog queue: drawn at its first diversion, kept while it works.

    Args:
        queues: the usable backlog queues, at least one.
        quarantine: shared by all senders of the client.
        random: for the draw.
    """

    def __init__(self, queues: Sequence[str], quarantine: Quarantine, random: Random) -> None:
        self._queues = list(queues)
        self._quarantine = quarantine
        self._random = random
        self._chosen: str | None = None

    def pick(self, now: float, *, tried: Collection[str] = ()) -> str | None:
        """The queue for the next diversion; None when every one was tried for this message.

        With all the others in quarantine it is the one due soonest; whoever asks tries one of those for each message.
        """
        if self._chosen is not None and self._chosen not in tried and not self._quarantine.is_in(self._chosen, now):
            return self._chosen
        usable = [queue for queue in self._queues if queue not in tried and not self._quarantine.is_in(queue, now)]
        if usable:
            self._chosen = self._random.choice(usable)
            return self._chosen
        left = [queue for queue in self._queues if queue not in tried]
        return min(left, key=self._quarantine.due_at, default=None)
