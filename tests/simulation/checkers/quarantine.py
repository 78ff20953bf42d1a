"""I16: a backlog queue that has failed rests for as long as its rule says, unless no other one takes the message."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Final

from sbclient.errors import InvalidOperationError, MessageSizeExceededError, ServiceBusServerBusyError
from tests.simulation.checkers.failover import GRAIN_S
from tests.simulation.history import Attempt, Outcome, Violation
from tests.simulation.world import World

SHORTEST_S: Final = 30.0
LONGEST_S: Final = 300.0

Terms = dict[str, list[tuple[float, float]]]
"""For each queue the begin and the end of its quarantines, in order; a success ends one early."""


def check_quarantine(world: World) -> Iterator[Violation]:
    by_client: dict[str, list[Attempt]] = defaultdict(list)
    for one in world.history.attempts:
        if one.side == "secondary" and one.what == "send":
            by_client[one.client].append(one)
    possible = {client: _terms(attempts, is_certain=False) for client, attempts in by_client.items()}
    for client, attempts in by_client.items():
        yield from _check_choices(world, client, attempts, _terms(attempts, is_certain=True), possible[client])
    if world.plan.network is None:
        for at, client, resting in world.history.resting:
            for queue in resting:
                if not _rests(possible.get(client, {}), queue, at, spread_s=GRAIN_S):
                    yield Violation("I16", f"{client} let {queue} rest when its quarantine was over")


def _terms(attempts: list[Attempt], *, is_certain: bool) -> Terms:
    """The quarantines of a client: 30 s after a failure, twice as long after each one that follows, up to 300 s.

    A busy queue may be withdrawn or waited for, and of a success and a failure at one moment either may be the later
    one. From then until the next success only the possible terms are known.
    """
    terms: Terms = defaultdict(list)
    spans_s: dict[str, float] = {}
    unclear: set[str] = set()
    failures = {(one.path, one.end) for one in attempts if _is_fault(one)}
    for one in sorted(attempts, key=lambda one: (one.end, one.outcome is not Outcome.OK)):
        mine = terms[one.path]
        if one.error is not None and issubclass(one.error, ServiceBusServerBusyError):
            unclear.add(one.path)
        if one.outcome is Outcome.OK:
            unclear.discard(one.path)
            if (one.path, one.end) in failures:
                unclear.add(one.path)
            spans_s.pop(one.path, None)
            if mine and mine[-1][1] > one.end:
                mine[-1] = mine[-1][0], one.end
        elif one.path in unclear:
            if not is_certain and one.error is not None:
                mine.append((one.end, one.end + LONGEST_S))
        elif _is_fault(one) and (one.path not in spans_s or mine[-1][1] <= one.end):
            span_s = spans_s[one.path] = min(2 * spans_s.get(one.path, SHORTEST_S / 2), LONGEST_S)
            mine.append((one.end, one.end + span_s))
    return terms


def _rests(terms: Terms, queue: str, at: float, *, spread_s: float) -> bool:
    """Whether a queue is in quarantine at a moment, or may be, so close to the begin or end of one."""
    return any(begin - spread_s <= at < end + spread_s for begin, end in terms.get(queue, ()))


def _check_choices(
    world: World, client: str, attempts: list[Attempt], terms: Terms, possible: Terms
) -> Iterator[Violation]:
    queues = world.operator.backlog_queues
    for one in attempts:
        if one.path not in queues or not _rests(terms, one.path, one.begin, spread_s=-GRAIN_S):
            continue
        for other in queues:
            if other == one.path or _rests(possible, other, one.begin, spread_s=GRAIN_S):
                continue
            if not _has_refused([each for each in attempts if each.path == other], one, world.plan.timeout_s):
                yield Violation("I16", f"{client} used {one.path} while it rested, and {other} did not")


def _has_refused(attempts: list[Attempt], one: Attempt, timeout_s: float) -> bool:
    """Whether the queue did not accept the same message within the same call."""
    return any(
        set(other.uids) & set(one.uids)
        and other.outcome is not Outcome.OK
        and one.begin - timeout_s <= other.begin <= one.begin
        for other in attempts
    )


def _is_fault(one: Attempt) -> bool:
    return one.error is not None and not issubclass(one.error, InvalidOperationError | MessageSizeExceededError)
