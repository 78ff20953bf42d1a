"""I14 and I17: nothing is left over, and what the client tells of itself is true."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator

from tests.simulation.history import FORGED, Outcome, Violation, listed
from tests.simulation.world import World


def check_counts(world: World) -> Iterator[Violation]:
    if world.left:
        yield Violation("I14", f"{len(world.left)} messages are left: {listed(world.left)}")
    yield from _check_forged(world)
    diverted, unheard = Counter[str](), Counter[str]()
    killed_at = {client: at for at, client in world.history.deaths}
    for one in world.history.attempts:
        if one.side == "secondary" and one.what == "send" and one.outcome is Outcome.OK:
            diverted[one.client] += len(one.uids)
            if one.end >= killed_at.get(one.client, math.inf):
                unheard[one.client] += len(one.uids)
    for client, reported in world.history.diverted_reported.items():
        if not diverted[client] - unheard[client] <= reported <= diverted[client]:
            yield Violation("I17", f"{client} reports {reported} diverted messages and diverted {diverted[client]}")


def _check_forged(world: World) -> Iterator[Violation]:
    """Messages that cannot be forwarded are dead-lettered in the backlog, with a reason."""
    forged = [one for one in world.backlog_dead if one.uid.startswith(FORGED)]
    deleted = sum(count for uid, count in world.history.deleted.items() if uid.startswith(FORGED))
    if len(forged) + deleted != world.operator.forged:
        yield Violation("I14", f"{world.operator.forged} messages were forged and {len(forged)} are dead-lettered")
    for one in forged:
        if not one.message.dead_letter_reason:
            yield Violation("I17", f"{one.uid} was dead-lettered without a reason")
