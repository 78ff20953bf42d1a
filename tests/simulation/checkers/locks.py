"""I13: one holder at a time, for messages and for sessions, and a session's state is the one that was stored last."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Final

from tests.simulation.history import Handed, History, Outcome, SessionHold, StateNote, Violation
from tests.simulation.world import World

GRAIN_S: Final = 1e-4
"""Moments in messages are whole microseconds."""


def check_locks(world: World) -> Iterator[Violation]:
    history = world.history
    sessions = {hold.link: hold for hold in history.session_holds}
    last: dict[tuple[str, tuple[str, int, float]], Handed] = {}
    for handed in history.handed:
        if handed.is_stale:
            continue
        before = last.get((handed.side, handed.copy))
        last[handed.side, handed.copy] = handed
        if before is not None and before.token is not None and handed.at < _held_until(before, sessions) - GRAIN_S:
            yield Violation("I13", f"{handed.uid} of {handed.path} was handed to a second receiver while it was held")
    yield from _check_states(world)
    yield from _check_delivery_counts(history)


def _held_until(handed: Handed, sessions: dict[int, SessionHold]) -> float:
    """Return the time until which a receiver certainly held a message."""
    session = sessions.get(handed.link)
    until = handed.locked_until if session is None else min(session.locked_until, session.ended_at)
    return min(until, handed.ended_at)


def _check_states(world: World) -> Iterator[Violation]:
    notes: dict[tuple[str, str], list[StateNote]] = defaultdict(list)
    for note in world.history.states:
        notes[note.path, note.session_id].append(note)
    deleted = {incident.path for incident in world.plan.incidents if incident.what == "delete"}
    for (path, session_id), mine in notes.items():
        for number, read in enumerate(mine):
            if not read.is_read or (read.state is None and path in deleted):
                continue
            if read.state not in _possible(mine, number):
                yield Violation("I13", f"the state of session {session_id!r} of {path} is not the one stored last")


def _possible(notes: list[StateNote], number: int) -> set[bytes | None]:
    """The last state stored for certain before a read, and all that may have been stored since."""
    read = notes[number]
    possible: set[bytes | None] = {None}
    for note in notes[:number]:
        if note.is_read or note.outcome is Outcome.REFUSED:
            continue
        if note.outcome is Outcome.OK and note.at <= read.begin:
            possible = {note.state}
        else:
            possible.add(note.state)
    return possible | {note.state for note in notes[number:] if not note.is_read and note.begin < read.at}


def _check_delivery_counts(history: History) -> Iterator[Violation]:
    """Each delivery that certainly ended without success is counted."""
    failed: dict[tuple[str, tuple[str, int, float]], int] = defaultdict(int)
    for handed in history.handed:
        if handed.token is None or handed.is_stale:
            continue
        key = (handed.side, handed.copy)
        if handed.message.delivery_count < failed[key]:
            yield Violation(
                "I17", f"{handed.uid} tells {handed.message.delivery_count} failed deliveries after {failed[key]}"
            )
        failed[key] += any(one.mode == "abandon" and one.outcome is Outcome.OK for one in handed.settles)
