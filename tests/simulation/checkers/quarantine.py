"""I16: a backlog queue that has failed rests for a while, unless no other one takes the message."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Final

from tests.simulation.checkers.failover import GRAIN_S, is_outage
from tests.simulation.history import Attempt, Outcome, Violation
from tests.simulation.world import World

SHORTEST_S: Final = 30.0
LONGEST_S: Final = 300.0


def check_quarantine(world: World) -> Iterator[Violation]:
    queues = world.operator.backlog_queues
    by_client: dict[str, dict[str, list[Attempt]]] = defaultdict(lambda: {queue: [] for queue in queues})
    for one in world.history.attempts:
        if one.side == "secondary" and one.what == "send" and one.path in queues:
            by_client[one.client][one.path].append(one)
    for client, attempts in by_client.items():
        for queue, mine in attempts.items():
            for one in mine:
                failed_at = _last_failure(mine, one.begin)
                is_resting = failed_at is not None and one.begin < failed_at + SHORTEST_S - GRAIN_S
                if is_resting and not all(
                    _has_failed_lately(others, one.begin) or _has_refused(others, one, world.plan.timeout_s)
                    for other, others in attempts.items()
                    if other != queue
                ):
                    rest_s = one.begin - (failed_at or 0.0)
                    yield Violation("I16", f"{client} used {queue} again {rest_s:.1f} s after it had failed")


def _last_failure(attempts: list[Attempt], at: float) -> float | None:
    """When the queue failed last before a moment; None if it has been used with success since, or at the moment."""
    failed_at = max((one.end for one in attempts if _is_fault(one) and one.end < at - GRAIN_S), default=None)
    if failed_at is None:
        return None
    is_back = any(one.outcome is Outcome.OK and failed_at <= one.end <= at for one in attempts)
    return None if is_back else failed_at


def _has_failed_lately(attempts: list[Attempt], at: float) -> bool:
    return any(_is_fault(one) and at - LONGEST_S - GRAIN_S <= one.end <= at for one in attempts)


def _has_refused(attempts: list[Attempt], one: Attempt, timeout_s: float) -> bool:
    """Whether the queue did not take the same message within the same call, for whatever reason."""
    return any(
        set(other.uids) & set(one.uids)
        and other.outcome is not Outcome.OK
        and one.begin - timeout_s <= other.begin <= one.begin
        for other in attempts
    )


def _is_fault(one: Attempt) -> bool:
    return one.error is not None and is_outage(one.error)
