"""I8 and I9: the order inside a session, and inside a fragment."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import chain, pairwise

from tests.simulation.checkers.accounting import may_lose_received
from tests.simulation.checkers.duplicates import copies_of
from tests.simulation.consumer import delivery_path
from tests.simulation.history import Handed, Outcome, Submission, Violation
from tests.simulation.network_weather import loses_deliveries
from tests.simulation.plan import Lane
from tests.simulation.world import World


def check_order(world: World) -> Iterator[Violation]:
    if may_lose_received(world.plan):
        return  # messages may be locked for a receiver that never gets them; others overtake these
    diverted = {uid for one in world.history.attempts if one.side == "secondary" for uid in one.uids}
    deleted = {incident.path for incident in world.plan.incidents if incident.what in ("delete", "miss")}
    first: dict[str, int] = {}
    for number, handed in enumerate(world.history.handed):
        if handed.side == "primary":
            first.setdefault(handed.uid, number)
    for lane in world.plan.lanes:
        if lane.name in deleted:
            continue
        if lane.requires_session:
            yield from _check_sessions(world, lane, first, diverted)
            yield from _check_redirected(world, lane)
        elif not lane.prefetch and world.plan.front_ends == 1 and _sees_order(world, lane):
            yield from _check_fragments(world, lane)
        yield from _check_storing(world, lane, diverted)


def _sees_order(world: World, lane: Lane) -> bool:
    """Whether messages reach the clients in the order in which the broker hands them out."""
    return world.plan.network is None or (lane.receivers == 1 and not loses_deliveries(world.plan))


def _check_sessions(world: World, lane: Lane, first: dict[str, int], diverted: set[str]) -> Iterator[Violation]:
    keeps_order = world.plan.is_ordered and not _may_forget(world) and not world.plan.options.redirect_sessions
    sessions: dict[str | None, list[Submission]] = defaultdict(list)
    for submission in _in_order(world, lane):
        if submission.uid in first and (keeps_order or submission.uid not in diverted):
            sessions[submission.key].append(submission)
    for submissions in sessions.values():
        for before, after in _accepted_pairs(submissions):
            if first[after.uid] < first[before.uid]:
                yield Violation("I8", f"{after.uid} overtook {before.uid} in session {before.key!r} of {lane.name}")


def _check_redirected(world: World, lane: Lane) -> Iterator[Violation]:
    """Sessions whose order is kept wait for the primary, unless the option gives their order up."""
    if not world.plan.is_ordered or world.plan.options.redirect_sessions:
        return
    ordered = {submission.uid for submission in _in_order(world, lane)}
    for one in world.history.attempts:
        if one.side == "secondary" and not one.is_backlog and (uids := ordered.intersection(one.uids)):
            yield Violation("I8", f"{min(uids)} of session {one.keys[0]!r} was redirected")


def _in_order(world: World, lane: Lane) -> list[Submission]:
    submissions = [one for one in world.history.submissions.values() if one.lane == lane.name and one.tries]
    unscheduled = [one for one in submissions if one.message.scheduled_enqueue_time_utc is None]
    return sorted(unscheduled, key=lambda one: one.tries[0].begin)


def _may_forget(world: World) -> bool:
    """A producer that starts again while the secondary cannot be asked does not know what it has diverted."""
    dead_producer = any(client.startswith("producer") for _, client in world.history.deaths)
    return (dead_producer and any(incident.side == "secondary" for incident in world.plan.incidents)) or any(
        incident.what == "miss" for incident in world.plan.incidents
    )


def _accepted_pairs(submissions: Sequence[Submission]) -> Iterator[tuple[Submission, Submission]]:
    """Neighbours of which the first was accepted before the second was first tried."""
    for before, after in pairwise(submissions):
        accepted_at = min((one.end for one in before.tries if one.outcome is Outcome.OK), default=None)
        if accepted_at is not None and accepted_at < after.tries[0].begin and before.unit != after.unit:
            yield before, after


def _called_pairs(submissions: Sequence[Submission]) -> Iterator[tuple[Submission, Submission]]:
    """Neighbours with one key that were both accepted, of which the second was sent while the first was under way.

    A batch asks for its limits before it is sent, so that it may be overtaken.
    """
    sizes = Counter(submission.unit for submission in submissions)
    for before, after in pairwise(submissions):
        if sizes[before.unit] > 1:
            continue
        calls = before.tries[0], after.tries[0]
        are_accepted = all(call.outcome is Outcome.OK for call in calls)
        if are_accepted and calls[0].client == calls[1].client and before.unit != after.unit:
            yield before, after


def _check_fragments(world: World, lane: Lane) -> Iterator[Violation]:
    """First deliveries have rising sequence numbers."""
    if any(client.startswith("receivers") for _, client in world.history.deaths):
        return
    path = delivery_path(lane).casefold()
    highest: dict[int, Handed] = {}
    seen: set[tuple[str, int, float]] = set()
    for handed in world.history.handed:
        if handed.side != "primary" or handed.path.casefold() != path or handed.is_deferred:
            continue
        fragment = handed.copy[1] >> 48
        before = highest.get(fragment)
        if handed.copy not in seen and before is not None and handed.copy[1] < before.copy[1]:
            yield Violation("I9", f"{handed.uid} came after {before.uid} from fragment {fragment} of {lane.name}")
        if before is None or handed.copy[1] > before.copy[1]:
            highest[fragment] = handed
        seen.add(handed.copy)


def _check_storing(world: World, lane: Lane, diverted: set[str]) -> Iterator[Violation]:
    """What was accepted before the next was sent has the lower number."""
    copies = copies_of(world)
    keys: dict[str | None, list[Submission]] = defaultdict(list)
    for submission in _in_order(world, lane):
        if submission.uid not in diverted and len(copies.get(submission.uid, ())) == 1 and len(submission.tries) == 1:
            keys[submission.key].append(submission)
    for key, submissions in keys.items():
        if key is None and lane.is_partitioned:
            continue
        has_call_order = key is not None and lane.kind != "transactional"
        for before, after in chain(_accepted_pairs(submissions), _called_pairs(submissions) if has_call_order else ()):
            numbers = [next(iter(copies[one.uid]))[1] for one in (before, after)]
            if min(numbers) > 0 and numbers[0] > numbers[1]:
                yield Violation("I9", f"{after.uid} was stored before {before.uid}, which was accepted first")
