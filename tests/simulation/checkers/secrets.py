"""I20: no body is ever seen in a log, an error, a repr or an event."""

from __future__ import annotations

from collections.abc import Iterator

from tests.simulation.history import CANARY, Violation
from tests.simulation.world import World


def check_secrets(world: World) -> Iterator[Violation]:
    history = world.history
    for error in history.errors_seen:
        if CANARY in _all_of(error):
            yield Violation("I20", f"a {type(error).__name__} tells a body")
    for line in history.logged:
        if CANARY in line:
            yield Violation("I20", f"a log event tells a body: {line.split()[0]}")
    for client, events in history.pair_events.items():
        if CANARY in repr(events):
            yield Violation("I20", f"an event of {client} tells a body")
    for delivery in history.deliveries[:5]:
        if CANARY in repr(delivery.message):
            yield Violation("I20", "the repr of a received message tells its body")


def _all_of(error: BaseException | None, depth: int = 0) -> str:
    """An error with its causes and notes, as a log would show it."""
    if error is None or depth > 5:
        return ""
    notes = " ".join(getattr(error, "__notes__", ()))
    return f"{error} {error!r} {notes} {_all_of(error.__cause__, depth + 1)} {_all_of(error.__context__, depth + 1)}"
