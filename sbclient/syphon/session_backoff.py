"""Which destinations refuse the sessions of one backlog queue, and which of its sessions rest for that reason.

The laws, ours: a destination that refuses is tried again 1 s later, then after pauses that double up to 60 s, by one of
its sessions; the others rest, so that many of them cost no more than one. What is kept is bounded in number, and a
destination for which no session is left is forgotten after a while.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from random import Random
from typing import Final

from sbclient.clock import Clock
from sbclient.errors import ServiceBusError
from sbclient.rules.absence import Absence
from sbclient.rules.backoff import backoff_s
from sbclient.rules.entity_path import canonical
from sbclient.syphon.destination import FORGET_AFTER_S
from sbclient.syphon.status import Trouble

FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 60.0
TRY_S: Final = 20.0
"""How long a try may take; only then is another session tried with the same destination."""

REFUSALS_KEPT: Final = 1_000
"""Destinations that refuse; the one longest untried is forgotten first, and its `missing_entity_grace` begins anew."""
SESSIONS_KEPT: Final = 10_000
"""Sessions known to rest; each destination that refuses has at least one. Others are looked at again and again, a few
at a time."""


class _Refusal:
    """What is known of a destination that refuses, and its sessions that rest, the one longest untried first."""

    def __init__(self, path: str, trouble: Trouble) -> None:
        self.path = path
        self.trouble = trouble
        self.failures = 0
        self.retry_at = float("-inf")
        self.absence = Absence()
        self.needed_at = float("-inf")
        self.tried_by: str | None = None
        self.sessions: OrderedDict[str, None] = OrderedDict()


class RestingSessions:
    """The destinations that refuse, by path; letters' case does not matter. Moments are monotonic seconds.

    Attributes:
        count: sessions known to rest.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._refusals: OrderedDict[str, _Refusal] = OrderedDict()
        self.count = 0

    def __len__(self) -> int:
        """How many destinations refuse."""
        return len(self._refusals)

    @property
    def troubles(self) -> dict[str, Trouble]:
        """What the destinations that refuse say, by path; may be asked in any thread."""
        return {one.path: one.trouble for one in list(self._refusals.values())}

    @property
    def least_failures(self) -> int:
        """How often each destination that refuses was tried in vain; 0 if none does."""
        return min((one.failures for one in self._refusals.values()), default=0)

    # -- destinations --------------------------------------------------------------------------------------------

    def may_try(self, path: str, session_id: str) -> bool:
        """Whether a session may try its destination now; then no other one may until it is known how that went."""
        refusal = self._refusals.get(canonical(path))
        if refusal is None:
            return True
        now = self._clock.monotonic()
        if refusal.retry_at > now and refusal.tried_by != session_id:
            return False
        refusal.tried_by, refusal.retry_at = session_id, now + TRY_S
        return True

    def refused(self, path: str, error: ServiceBusError) -> bool:
        """A destination gave an error instead of taking a message; returns whether it has only now begun to."""
        now, key = self._clock.monotonic(), canonical(path)
        refusal = self._refusals.get(key)
        is_new = refusal is None
        if refusal is None:
            refusal = self._refusals[key] = _Refusal(path, Trouble.of(error, now))
            if len(self._refusals) > REFUSALS_KEPT:
                self.count -= len(self._refusals.popitem(last=False)[1].sessions)
        self._refusals.move_to_end(key)
        refusal.trouble = Trouble.of(error, now, refusal.trouble)
        refusal.absence.note(error, now)
        refusal.failures += 1
        refusal.tried_by = None
        refusal.retry_at = now + backoff_s(refusal.failures, first_s=FIRST_PAUSE_S, longest_s=LONGEST_PAUSE_S)
        refusal.needed_at = now
        return is_new

    def is_missing_for(self, path: str, span_s: float) -> bool:
        """Whether a destination is known to have been missing for at least so long."""
        refusal = self._refusals.get(canonical(path))
        return refusal is not None and refusal.absence.has_lasted(span_s)

    def given_up(self, path: str) -> None:
        """A message was given up; the next one may be looked at at once, for there may be many."""
        refusal = self._refusals.get(canonical(path))
        if refusal is not None:
            refusal.retry_at = self._clock.monotonic()

    def answered(self, path: str) -> bool:
        """A destination can be reached, whatever it said of a message; returns whether it refused before."""
        refusal = self._refusals.pop(canonical(path), None)
        if refusal is None:
            return False
        self.count -= len(refusal.sessions)
        return True

    # -- sessions ------------------------------------------------------------------------------------------------

    def rest(self, session_id: str, path: str) -> bool:
        """A session rests until its destination is to be tried again; returns whether that is news to be kept."""
        refusal = self._refusals.get(canonical(path))
        if refusal is None or session_id in refusal.sessions:
            return False
        if refusal.sessions and self.count >= SESSIONS_KEPT:
            return False
        refusal.sessions[session_id] = None
        self.count += 1
        return True

    def due(self) -> str | None:
        """A session that may try its destination now; None if there is none."""
        now = self._clock.monotonic()
        for refusal in self._refusals.values():
            if refusal.retry_at <= now and refusal.sessions:
                session_id = next(iter(refusal.sessions))
                refusal.sessions.move_to_end(session_id)
                refusal.tried_by, refusal.retry_at = session_id, now + TRY_S
                return session_id
        return None

    @property
    def due_at(self) -> float:
        """When a destination is to be tried again; never if no session rests."""
        return min((one.retry_at for one in self._refusals.values() if one.sessions), default=float("inf"))

    def compare(self, listed: Sequence[str], random: Random, most: int) -> list[str]:
        """Forget sessions that are gone; returns those that are not known to rest, some of them if there are many.

        Args:
            listed: every session of the queue.
            random: chooses among more than `most`, so that each has its turn.
        """
        now, there = self._clock.monotonic(), set(listed)
        resting: set[str] = set()
        for refusal in self._refusals.values():
            for session_id in [one for one in refusal.sessions if one not in there]:
                del refusal.sessions[session_id]
                self.count -= 1
            resting.update(refusal.sessions)
            if refusal.sessions:
                refusal.needed_at = now
        others = [one for one in listed if one not in resting]
        return others if len(others) <= most else random.sample(others, most)

    def forget_needless(self) -> None:
        """Forget destinations for which no session has rested for a while."""
        now = self._clock.monotonic()
        for key, refusal in list(self._refusals.items()):
            if not refusal.sessions and now - refusal.needed_at >= FORGET_AFTER_S:
                del self._refusals[key]
