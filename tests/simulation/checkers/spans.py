"""I1, I6, I16, I18: what has a span ends with it. Failovers are in time, graces and windows are kept, rates hold."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Final

from sbclient.errors import (
    InvalidOperationError,
    MessageSizeExceededError,
    MessagingEntityDisabledError,
    MessagingEntityNotFoundError,
    ServiceBusQuotaExceededError,
)
from sbclient.rules.syphon_reason import SyphonReason
from tests.simulation.checkers.failover import GRAIN_S, OUTAGES
from tests.simulation.history import Attempt, Handed, Outcome, Violation
from tests.simulation.plan import Lane
from tests.simulation.world import World

SETTLED_WITHIN_S: Final = 25.0
LOST_WITHIN_S: Final = 3.0
"""A syphon looks at its locks once a second at least, where nothing holds it up."""

_PROVES_EXISTENCE: Final = (
    InvalidOperationError,
    MessageSizeExceededError,
    MessagingEntityDisabledError,
    ServiceBusQuotaExceededError,
)


def check_spans(world: World) -> Iterator[Violation]:
    yield from _check_in_time(world)
    syphons = _by_client_and_path(world, "syphon", "last-syphon")
    if not world.plan.is_ordered and "twice" not in world.plan.syphons:  # each of two syphons asks for itself
        yield from _check_graces(world, syphons)
    if world.plan.syphon_limits is not None:
        yield from _check_rates(world, _by_client_and_path(world, "syphon", "last-syphon", sides=world.plan.sides))
    yield from _check_pauses(world)
    yield from _check_lost_locks(world)
    yield from _check_copies(world)


def _by_client_and_path(
    world: World, *programs: str, sides: Sequence[str] = ("primary",)
) -> dict[str, dict[str, list[Attempt]]]:
    found: dict[str, dict[str, list[Attempt]]] = defaultdict(lambda: defaultdict(list))
    for one in world.history.attempts:
        if one.side in sides and not one.is_backlog and one.client.startswith(programs):
            found[one.client][one.path].append(one)
    return found


# -- failovers ---------------------------------------------------------------------------------------------------------


def _check_in_time(world: World) -> Iterator[Violation]:
    """An interval after an outage that an application met, its entity is failed over, unless it answered again."""
    history, interval_s = world.history, world.plan.options.failover_interval.total_seconds()
    names = {error.__name__ for error in OUTAGES}
    attempts = _by_client_and_path(world, "producer")
    transactional = {lane.name for lane in world.plan.lanes if lane.kind == "transactional"}
    for submission in history.submissions.values():
        if submission.lane in transactional or (world.plan.is_ordered and submission.message.session_id is not None):
            continue
        for call in submission.tries:
            if call.error not in names or call.client not in history.pair_events:
                continue
            mine = attempts[call.client][submission.path]
            last = max(
                (one for one in mine if submission.uid in one.uids and call.begin <= one.begin and one.end <= call.end),
                key=lambda one: one.end,
                default=None,
            )
            if last is None or last.error is None or last.error.__name__ != call.error:
                continue
            by_at = call.end + interval_s + GRAIN_S
            has_sent = any(one.what != "limits" and one.outcome is Outcome.OK and one.end < call.end for one in mine)
            if last.error is MessagingEntityNotFoundError and not has_sent:
                continue
            has_answered = any(
                one.what in ("send", "schedule")
                and one.outcome is Outcome.OK
                and call.end - GRAIN_S <= one.end <= by_at
                for one in mine
            )
            is_over = history.ended_at.get(call.client, 0.0) <= by_at
            # A failover may end before the call does, if the message is too large for the backlog.
            if not (has_answered or is_over or _was_failed_over(world, call.client, submission.path, last.end, by_at)):
                yield Violation(
                    "I16", f"{submission.path} failed {submission.uid} and was not failed over in {interval_s:g} s"
                )


def _was_failed_over(world: World, client: str, path: str, begin: float, end: float) -> bool:
    """Whether an entity was failed over at some moment of a span."""
    is_failed_over = False
    for event in world.history.pair_events[client]:
        at = event.at_utc.timestamp() - world.plan.skew_s
        if event.path != path or not event.name.startswith("failover."):
            continue
        if at > end:
            break
        if is_failed_over and at >= begin - GRAIN_S:
            return True
        is_end = event.name in ("failover.recovered", "failover.entity_missing")
        is_failed_over = event.name == "failover.engaged" or (is_failed_over and not is_end)
        if is_failed_over and at >= begin - GRAIN_S:
            return True
    return is_failed_over


# -- syphons -----------------------------------------------------------------------------------------------------------


def _check_graces(world: World, syphons: dict[str, dict[str, list[Attempt]]]) -> Iterator[Violation]:
    """A missing entity is given up after it was known to be missing for the grace, no sooner and no later."""
    grace_s = world.plan.options.missing_entity_grace.total_seconds()
    given_up: dict[tuple[str, str], list[float]] = defaultdict(list)
    for handed in world.history.handed:
        for settled in handed.settles if handed.side == "secondary" else ():
            if settled.mode == "dead_letter" and settled.reason == SyphonReason.NOT_FOUND:
                given_up[handed.client, handed.uid].append(settled.begin)
    for (client, uid), moments in given_up.items():
        submission = world.history.submissions.get(uid)
        for at in moments if submission is not None else ():
            assert submission is not None
            before = [
                one
                for one in syphons[client][submission.path]
                if one.end <= at + GRAIN_S and not (_shows(one) and one.begin >= at)  # one begun then came after it
            ]
            missing_s = _missing_at_most_s(before)
            if missing_s < grace_s - GRAIN_S:
                yield Violation("I1", f"{client} gave {uid} up after {missing_s:.1f} s, the grace is {grace_s:g} s")
    dead = {client: at for at, client in world.history.deaths}
    for client, by_path in syphons.items():
        resumed_at = [end for worker, _, end in world.history.pauses if worker == client]
        for path, attempts in by_path.items():
            for one in _refused_after(attempts, grace_s, resumed_at):
                for uid in one.uids:
                    mine = [each for each in world.history.handed if each.client == client and each.uid == uid]
                    holds = [each for each in mine if each.at <= one.begin]  # a copy may have come since
                    is_lost = all(each.locked_until <= one.end + LOST_WITHIN_S for each in holds)
                    is_over = dead.get(client, one.end + 1e9) <= one.end + SETTLED_WITHIN_S
                    tried = any(at >= one.end - GRAIN_S for at in given_up[client, uid])
                    if not (tried or is_lost or is_over):
                        yield Violation("I1", f"{client} kept {uid}, and {path} was gone for more than {grace_s:g} s")


def _missing_at_most_s(attempts: Sequence[Attempt]) -> float:
    """How long an entity can be known to be missing: from an answer that says so to the next request with such an
    answer, since it last was there. Another failure between them ends that, if its request began after the first one.
    """
    since = max((one.begin for one in attempts if _shows(one)), default=0.0)
    missing = sorted(
        (one for one in attempts if one.error is MessagingEntityNotFoundError and one.end >= since),
        key=lambda one: one.end,
    )
    others = [one for one in attempts if one.error not in (None, MessagingEntityNotFoundError) and not _shows(one)]
    return sum(
        max(0.0, after.begin - before.end)
        for before, after in pairwise(missing)
        if not any(before.end < one.begin and one.end < after.end for one in others)
    )


def _refused_after(attempts: Sequence[Attempt], grace_s: float, resumed_at: Sequence[float]) -> Iterator[Attempt]:
    """Yield the sends that were refused after the entity was known to be missing for at least the grace.

    A syphon learns the answers to sends that left together when it has all of them. A worker that is resumed knows
    nothing.
    """
    known_s, before, is_first = 0.0, None, True
    resumes = sorted(resumed_at, reverse=True)
    known_at: dict[float, float] = {}
    for one in attempts:
        known_at[one.begin] = max(one.end, known_at.get(one.begin, 0.0))
    for one in sorted(attempts, key=lambda one: one.end):
        while resumes and resumes[-1] <= one.begin:
            resumes.pop()
            known_s, before, is_first = 0.0, None, True
        if one.error is MessagingEntityNotFoundError:
            if before is not None:
                known_s += max(0.0, one.begin - before) if not is_first else 0.0
                is_first = False
            before = known_at[one.begin]
            if known_s >= grace_s + GRAIN_S and one.what == "send":
                yield one
        else:
            before, is_first = None, True
            if _shows(one):
                known_s = 0.0


def _shows(one: Attempt) -> bool:
    """Whether an answer shows that the entity exists."""
    return one.outcome is Outcome.OK or (one.error is not None and issubclass(one.error, _PROVES_EXISTENCE))


def _check_rates(world: World, syphons: dict[str, dict[str, list[Attempt]]]) -> Iterator[Violation]:
    """In no span are more messages accepted than the rate allows, and what is sent at once."""
    limits = world.plan.syphon_limits
    assert limits is not None
    own, total = limits.max_messages_per_second_per_destination, limits.max_messages_per_second
    rates = [rate for rate in (own, total) if rate is not None]
    at_once = max(1, int(min(rates) / 2))
    workers = 4 * len(world.operator.session_backlog_queues)
    for client, by_path in syphons.items():
        if client.startswith("last") or "option" in world.plan.syphons:
            continue
        for path, attempts in by_path.items():
            if own is not None and (most := _excess(attempts, own)) > at_once + workers + 1:
                yield Violation("I18", f"{client} sent {most:.1f} messages to {path} beyond {own:g} a second")
        every = [one for attempts in by_path.values() for one in attempts]
        if total is not None and (most := _excess(every, total)) > at_once * len(by_path) + workers + 1:
            yield Violation("I18", f"{client} sent {most:.1f} messages beyond {total:g} a second")


def _excess(attempts: Iterable[Attempt], rate: float) -> float:
    """How many messages more than the rate allows were sent in the busiest span."""
    ahead = most = 0.0
    at = 0.0
    for one in sorted((one for one in attempts if one.outcome is Outcome.OK and one.uids), key=lambda one: one.begin):
        ahead = max(0.0, ahead - (one.begin - at) * rate) + len(one.uids)
        at, most = one.begin, max(most, ahead)
    return most


def _check_pauses(world: World) -> Iterator[Violation]:
    """A worker that is paused sends nothing."""
    for client, begin, end in world.history.pauses:
        for one in world.history.attempts:
            if one.client == client and one.what == "send" and begin < one.begin < end:
                yield Violation("I15", f"{client} sent {one.uids} while it was paused")


def _check_lost_locks(world: World) -> Iterator[Violation]:
    """A syphon that has lost the lock of a message does not send it; another one may."""
    if world.plan.network is not None:
        return
    held: dict[tuple[str, str], list[Handed]] = defaultdict(list)
    for handed in world.history.handed:
        if handed.side == "secondary" and handed.path in world.operator.backlog_queues:
            held[handed.client, handed.uid].append(handed)
    for one in world.history.attempts:
        if one.is_backlog or one.what != "send" or one.client.startswith("producer"):
            continue
        for uid in one.uids:
            holds = [handed.locked_at_most for handed in held[one.client, uid] if handed.at <= one.begin]
            if holds and max(holds) + GRAIN_S + abs(world.plan.skew_s) < one.begin:
                late_s = one.begin - max(holds)
                yield Violation("I6", f"{one.client} sent {uid} {late_s:.1f} s after it had lost its lock")


# -- rules -------------------------------------------------------------------------------------------------------------


def _check_copies(world: World) -> Iterator[Violation]:
    """Matching rules without an action make one copy together, and each rule with one its own."""
    lanes: dict[str, Lane] = {lane.name: lane for lane in world.plan.lanes}
    for uid, copies in world.copies.items():
        submission = world.history.submissions.get(uid)
        if submission is None:
            continue
        expected = {(None, None)} | {(name, name) for name in lanes[submission.lane].rules if name.startswith("tag-")}
        if set(copies) != expected or len(set(copies.values())) != 1:
            yield Violation("I6", f"the rules {lanes[submission.lane].rules} made of {uid} the copies {dict(copies)}")
