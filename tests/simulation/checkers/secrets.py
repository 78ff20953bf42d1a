"""I20: no body is ever seen in a log, an error, a repr or an event."""

from __future__ import annotations

from collections.abc import Iterator

from tests.simulation.history import CANARY, Violation
from tests.simulation.world import World


def check_secrets(world: World) -> Iterator[Violation]:
    history = world.history
    for name in history.telling:
        yield Violation("I20", f"a {name} tells a body")
    for line in history.logged:
        if CANARY in line:
            yield Violation("I20", f"a log event tells a body: {line.split()[0]}")
    for client, events in history.pair_events.items():
        if CANARY in repr(events):
            yield Violation("I20", f"an event of {client} tells a body")
    for delivery in history.deliveries[:5]:
        if CANARY in repr(delivery.message):
            yield Violation("I20", "the repr of a received message tells its body")
