"""Back-off of the sessions of one backlog queue whose destinations refuse messages.

The rules, our choice: one session at a time tries a destination that refuses, after the pauses of `rules/refusal.py`.
The other sessions of that destination rest, so that many of them cost no more than one. The numbers of destinations and
sessions are limited. A destination without resting sessions is forgotten after a while.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from random import Random
from typing import Final

from sbclient.clock import Clock
from sbclient.errors import ServiceBusError
from sbclient.rules.entity_path import canonical
from sbclient.rules.refusal import OngoingError, Refusal
from sbclient.syphon.destination import FORGET_AFTER_S

TRY_S: Final = 20.0
"""Longest duration of one attempt; after that another session may try the same destination."""

REFUSALS_KEPT: Final = 1_000
"""Limit of destinations. The one with the oldest attempt is dropped first, and its `missing_entity_grace` restarts."""
SESSIONS_KEPT: Final = 10_000
"""Limit of resting sessions; each destination has at least one. Further sessions are visited repeatedly, a few at a
time."""


class _Refusing(Refusal):
    """A destination that refuses, and its resting sessions, the one with the oldest attempt first."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.path = path
        self.needed_at = float("-inf")
        self.tried_by: str | None = None
        self.sessions: OrderedDict[str, None] = OrderedDict()


class SessionBackoff:
    """The destinations that refuse messages, by path without regard to case, and their resting sessions.

    Attributes:
        count: number of resting sessions.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._refusing: OrderedDict[str, _Refusing] = OrderedDict()
        self.count = 0

    def __len__(self) -> int:
        """Return the number of destinations that refuse."""
        return len(self._refusing)

    @property
    def errors(self) -> dict[str, OngoingError]:
        """The errors of the destinations that refuse, by path; readable in any thread."""
        return {one.path: one.error for one in list(self._refusing.values())}

    @property
    def least_failures(self) -> int:
        """The least number of failures of a destination that refuses; 0 if none does."""
        return min((one.failures for one in self._refusing.values()), default=0)

    # -- destinations --------------------------------------------------------------------------------------------

    def may_try(self, path: str, session_id: str) -> bool:
        """Return whether a session may try its destination now; if so, no other may until the result is known."""
        refusing = self._refusing.get(canonical(path))
        if refusing is None:
            return True
        now = self._clock.monotonic()
        if refusing.retry_at > now and refusing.tried_by != session_id:
            return False
        refusing.tried_by, refusing.retry_at = session_id, now + TRY_S
        return True

    def refused(self, path: str, error: ServiceBusError, asked_at: float) -> bool:
        """Record that a destination returned an error; return whether it is the first one.

        Args:
            asked_at: monotonic time of the request.
        """
        now, key = self._clock.monotonic(), canonical(path)
        is_new = key not in self._refusing
        refusing = _Refusing(path) if is_new else self._refusing.pop(key)
        refusing.add(error, now, asked_at=asked_at)
        refusing.tried_by, refusing.needed_at = None, now
        self._refusing[key] = refusing
        if len(self._refusing) > REFUSALS_KEPT:
            self.count -= len(self._refusing.popitem(last=False)[1].sessions)
        return is_new

    def interrupt(self, path: str) -> None:
        """Record that the service is busy, so that a destination is not known to be missing until the next answer."""
        refusing = self._refusing.get(canonical(path))
        if refusing is not None:
            refusing.interrupt()

    def is_missing_for(self, path: str, grace_s: float) -> bool:
        """Return whether a destination is known to be missing for at least that time."""
        refusing = self._refusing.get(canonical(path))
        return refusing is not None and refusing.is_missing_for(grace_s)

    def given_up(self, path: str) -> None:
        """A message was dead-lettered; allow the next attempt at once, since there may be many such messages."""
        refusing = self._refusing.get(canonical(path))
        if refusing is not None:
            refusing.retry_at = self._clock.monotonic()

    def answered(self, path: str) -> bool:
        """Record that a destination can be reached; return whether it refused before."""
        refusing = self._refusing.pop(canonical(path), None)
        if refusing is None:
            return False
        self.count -= len(refusing.sessions)
        return True

    # -- sessions ------------------------------------------------------------------------------------------------

    def rest(self, session_id: str, path: str) -> bool:
        """Let a session rest until its destination is to be tried again; return whether it did not rest before."""
        refusing = self._refusing.get(canonical(path))
        if refusing is None or session_id in refusing.sessions:
            return False
        if refusing.sessions and self.count >= SESSIONS_KEPT:
            return False
        refusing.sessions[session_id] = None
        self.count += 1
        return True

    def due(self) -> str | None:
        """Return a session that may try its destination now; None if there is none."""
        now = self._clock.monotonic()
        for refusing in self._refusing.values():
            if refusing.retry_at <= now and refusing.sessions:
                session_id = next(iter(refusing.sessions))
                refusing.sessions.move_to_end(session_id)
                refusing.tried_by, refusing.retry_at = session_id, now + TRY_S
                return session_id
        return None

    @property
    def due_at(self) -> float:
        """Monotonic time of the next attempt by a resting session; inf if no session rests."""
        return min((one.retry_at for one in self._refusing.values() if one.sessions), default=float("inf"))

    def forget_missing(self, listed: Sequence[str], random: Random, most: int) -> list[str]:
        """Forget resting sessions that are not listed; return listed ones that do not rest.

        Args:
            listed: every session of the queue.
            random: samples the result.
            most: limit of the result; a random sample of this size gives each session a chance.
        """
        now, present = self._clock.monotonic(), set(listed)
        resting: set[str] = set()
        for refusing in self._refusing.values():
            for session_id in [one for one in refusing.sessions if one not in present]:
                del refusing.sessions[session_id]
                self.count -= 1
            resting.update(refusing.sessions)
            if refusing.sessions:
                refusing.needed_at = now
        others = [one for one in listed if one not in resting]
        return others if len(others) <= most else random.sample(others, most)

    def forget_idle(self) -> None:
        """Forget destinations that have had no resting session for a while."""
        now = self._clock.monotonic()
        for key, refusing in list(self._refusing.items()):
            if not refusing.sessions and now - refusing.needed_at >= FORGET_AFTER_S:
                del self._refusing[key]
