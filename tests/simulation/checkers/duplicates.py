"""I6 and I7: each message is there once; for every copy beyond that something happened that explains it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import pairwise

from tests.simulation.consumer import delivery_path
from tests.simulation.history import Attempt, Handed, History, Outcome, Violation
from tests.simulation.plan import Lane
from tests.simulation.world import World

WINDOW_S = 600.0
"""The broker's default window of duplicate detection."""

ROUNDED_S = 0.0015
"""The time of storing is rounded to whole microseconds in memory, and down to milliseconds over the network."""

Copies = dict[str, dict[tuple[float, int, str], None]]
"""For each uid the copies that the destination held: when stored, under which number, and in which namespace."""


def check_duplicates(world: World) -> Iterator[Violation]:
    copies = copies_of(world)
    attempts = world.history.attempts_of()
    lanes = {lane.name: lane for lane in world.plan.lanes}
    for uid, submission in world.history.submissions.items():
        mine = attempts.get(uid, [])
        if any(one.transaction is not None for one in mine):
            continue
        yield from _check_sends(world.history, uid, mine, len(submission.tries))
        possible = sum(one.uids.count(uid) for one in mine if not one.is_backlog and one.outcome is not Outcome.REFUSED)
        count = len(copies.get(uid, ()))
        if count > possible:
            yield Violation(
                "I6", f"{uid} was stored {count} times in {submission.path}, and sent {possible} times at most"
            )
        lane = lanes[submission.lane]
        if lane.detects_duplicates and not _is_deleted(world, lane):
            window_s = WINDOW_S if lane.window_s is None else lane.window_s
            for side in world.plan.sides:
                here = sorted(one for one in copies.get(uid, ()) if one[2] == side)
                yield from _check_window(uid, here, window_s)
                sends = [one for one in mine if one.side == side and not one.is_backlog]
                yield from _check_first_arrivals(uid, sends, len(here), window_s)
        if len({side for _, _, side in copies.get(uid, ())}) > 1 and not _may_be_in_both(world.history, uid, mine):
            yield Violation("I22", f"{uid} was delivered by both namespaces, and none of its sends was in doubt")
    yield from _check_syphons(world.history, attempts)
    yield from _check_after_the_end(world.history)


def copies_of(world: World) -> Copies:
    """A dead letter has a new sequence number; its enqueue time identifies the copy."""
    copies: Copies = defaultdict(dict)
    paths = {delivery_path(lane).casefold() for lane in world.plan.lanes}
    for handed in world.history.handed:
        if handed.path.casefold() in paths:
            copies[handed.uid][handed.copy[2], handed.copy[1], handed.side] = None
    for delivery in world.history.deliveries:
        _, number, stored_at = delivery.copy
        known = copies[delivery.uid]
        is_dead = delivery.origin == "dead_letter"
        times = [at for at, other, side in known if side == delivery.side and (is_dead or other == number)]
        if not any(abs(at - stored_at) < ROUNDED_S for at in times):
            known[stored_at, -number if is_dead else number, delivery.side] = None
    return copies


def _may_be_in_both(history: History, uid: str, attempts: list[Attempt]) -> bool:
    """Whether a send was in doubt, the application sent twice, or two syphons had a copy of the backlog in turn."""
    holders = Counter(
        copy for _, copy in {(one.client, one.copy) for one in history.handed if one.uid == uid and one.is_backlog}
    )
    is_in_doubt = any(one.outcome is Outcome.DOUBT for one in attempts)
    return is_in_doubt or len(history.submissions[uid].tries) > 1 or max(holders.values(), default=0) > 1


def _check_sends(history: History, uid: str, attempts: list[Attempt], try_count: int) -> Iterator[Violation]:
    """One call of the application stores a message once, as far as the client can know."""
    sent = [one for one in attempts if one.client.startswith("producer") and one.outcome is Outcome.OK]
    if len(sent) > try_count:
        yield Violation("I6", f"{uid} was sent {len(sent)} times with success in {try_count} calls")
    expected = history.submissions[uid].message.message_id
    for one in attempts:
        if one.ids[one.uids.index(uid)] != expected:
            yield Violation("I4", f"{uid} has message id {expected!r} and was sent with another one")


def _check_first_arrivals(uid: str, attempts: list[Attempt], count: int, window_s: float) -> Iterator[Violation]:
    """A window begins with the first message and is not moved by a duplicate, where it is known when each came."""
    sends = sorted((one for one in attempts if one.what == "send"), key=lambda one: one.end)
    expected, first = 0, None
    for one in sends:
        if one.outcome is Outcome.DOUBT:
            return
        if one.outcome is Outcome.REFUSED:
            continue
        if first is None or one.begin >= first.end + window_s:
            expected, first = expected + 1, one
        elif one.end > first.begin + window_s:
            return  # it may have come just before or just after the end
    if count < expected:
        yield Violation("I7", f"{uid} was stored {count} times, and {expected} of its sends were in no window")


def _check_window(uid: str, copies: list[tuple[float, int, str]], window_s: float) -> Iterator[Violation]:
    for before, after in pairwise(copies):
        if after[0] - before[0] < window_s - 1:
            span_s = after[0] - before[0]
            yield Violation("I7", f"{uid} was stored twice within {span_s:.1f} s where duplicates are detected")


def _is_deleted(world: World, lane: Lane) -> bool:
    """An entity that was deleted and made again has forgotten what it saw."""
    return any(incident.what == "delete" and incident.path == lane.name for incident in world.plan.incidents)


def _check_syphons(history: History, attempts: dict[str, list[Attempt]]) -> Iterator[Violation]:
    """One syphon never sends a copy again that a namespace has accepted from it."""
    taken: dict[tuple[str, str], set[tuple[str, int, float]]] = defaultdict(set)
    for handed in history.handed:
        if handed.is_backlog:
            taken[handed.client, handed.uid].add(handed.copy)
    for uid, mine in attempts.items():
        moved = Counter[str]()
        for one in mine:
            if not one.client.startswith("producer") and not one.is_backlog and one.outcome is Outcome.OK:
                moved[one.client] += one.uids.count(uid)
        for client, count in moved.items():
            if count > len(taken[client, uid]):
                yield Violation("I6", f"{client} sent {uid} {count} times, from {len(taken[client, uid])} copies")


def _check_after_the_end(history: History) -> Iterator[Violation]:
    """What was confirmed to be gone, or put aside, does not come again by itself."""
    last: dict[tuple[str, tuple[str, int, float]], Handed] = {}
    for handed in history.handed:
        if handed.is_stale:
            continue
        before = last.get((handed.side, handed.copy))
        last[handed.side, handed.copy] = handed
        if before is None:
            continue
        if before.is_final:
            yield Violation("I6", f"{handed.uid} came again from {handed.path} after it was {before.how}d for certain")
        done = before.settles[-1] if before.settles else None
        if done is not None and done.mode == "defer" and done.outcome is Outcome.OK and not handed.is_deferred:
            yield Violation("I6", f"{handed.uid} was deferred in {handed.path} and came by itself")
