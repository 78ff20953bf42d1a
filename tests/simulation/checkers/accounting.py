"""I1 and I3: every accepted message arrives, and no message that was rejected for certain does."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import assert_never

from sbclient.delivery import SettleMode
from sbclient.rules.syphon_reason import SyphonReason
from sbclient.testing.ledger import Ledger
from tests.simulation.consumer import REASON
from tests.simulation.history import GAVE_UP, Delivery, Handed, Outcome, Submission, Violation
from tests.simulation.network_weather import loses_deliveries
from tests.simulation.plan import Lane, Plan
from tests.simulation.world import World

MAX_DELIVERIES = "MaxDeliveryCountExceeded"


def check_accounting(world: World) -> Iterator[Violation]:
    history, arrivals = world.history, arrived(world)
    attempts, submissions = history.attempts_of(), history.submissions
    refused = {uid: one for uid, one in submissions.items() if one.is_refused}
    ledger = Ledger(accepted={uid for uid, one in submissions.items() if one.is_accepted} - excused_uids(world))
    ledger.send(*(uid for uid in submissions if uid not in refused))
    ledger.delivered.update([*arrivals, *(history.handed_uids & refused.keys())])
    for uid in sorted(ledger.lost):
        yield Violation("I1", f"{uid} was accepted and is lost")
    for uid in sorted(ledger.unexpected):
        errors = ", ".join(one.error for one in refused[uid].tries) if uid in refused else "never sent"
        yield Violation("I3", f"{uid!r} was refused ({errors}) and stored all the same")
    for uid, submission in submissions.items():
        is_once = len(submission.tries) == 1 and len(attempts.get(uid, ())) == 1
        if submission.cancelled is Outcome.OK and uid in arrivals and is_once:
            yield Violation("I3", f"{uid} was taken back and delivered all the same")
    yield from _check_what_was_told(world)
    yield from _check_reasons(world)
    yield from _check_last_hands(world)


def _check_what_was_told(world: World) -> Iterator[Violation]:
    """A refusal is for certain only if no try of that call was left in doubt.

    What left before a caller gave up goes on without him, until the time of that call is over: his next call does not
    answer for it.
    """
    attempts = world.history.attempts_of()
    for submission in world.history.submissions.values():
        sends = [one for one in attempts.get(submission.uid, []) if one.transaction is None and one.what != "open"]
        doubtful = [one for one in sends if one.outcome is Outcome.DOUBT]
        for call in submission.tries:
            begin = max(
                (
                    one.begin + world.plan.timeout_s
                    for one in submission.tries
                    if one.error == GAVE_UP and one.end <= call.end
                ),
                default=call.begin,
            )
            if call.outcome is Outcome.REFUSED and any(
                one.client == call.client and one.number in call.attempts and begin <= one.begin and one.end <= call.end
                for one in doubtful
            ):
                yield Violation("I3", f"{submission.uid} was reported as refused ({call.error}) and a try was in doubt")


def arrived(world: World) -> dict[str, list[Delivery]]:
    """What came out of the destinations and their dead-letter queues, and what was dead-lettered in the backlog."""
    arrivals = world.history.arrivals()
    for delivery in world.backlog_dead:
        if delivery.uid in world.history.submissions:
            arrivals.setdefault(delivery.uid, []).append(delivery)
    return arrivals


def excused_uids(world: World) -> set[str]:
    """Return accepted messages that need not arrive: expired without a trace, deleted with their entity, cancelled, or
    delivered to a program that deletes messages on receipt and was killed."""
    history = world.history
    lanes = {lane.name: lane for lane in world.plan.lanes}
    dead = {client for _, client in history.deaths}
    excused = {handed.uid for handed in history.handed if handed.token is None and handed.client in dead}
    for uid, submission in history.submissions.items():
        lane = lanes[submission.lane]
        expires_silently = submission.message.time_to_live is not None and not lane.dead_letters_expired
        if expires_silently or uid in history.deleted or submission.cancelled is not None:
            excused.add(uid)
    return excused


def _check_reasons(world: World) -> Iterator[Violation]:
    """A dead letter has a reason, and it is true."""
    lanes = {lane.name: lane for lane in world.plan.lanes}
    handed_count: dict[str, int] = {}
    for handed in world.history.handed:
        if not handed.is_backlog:
            handed_count[handed.uid] = handed_count.get(handed.uid, 0) + 1
    unwanted = {
        handed.uid for handed in world.history.handed for settled in handed.settles if settled.mode == "dead_letter"
    }
    for delivery in world.history.deliveries:
        submission = world.history.submissions.get(delivery.uid)
        if delivery.origin != "dead_letter" or submission is None:
            continue
        lane, reason = lanes[submission.lane], delivery.message.dead_letter_reason
        is_true = (
            (reason == REASON and delivery.uid in unwanted)
            or (reason == SyphonReason.TTL_EXPIRED and submission.message.time_to_live is not None)
            or (reason == MAX_DELIVERIES and _has_failed_enough(world, lane, handed_count.get(delivery.uid, 0)))
        )
        if not is_true:
            yield Violation("I1", f"{delivery.uid} was dead-lettered in {delivery.path} for {reason!r}")
    for delivery in world.backlog_dead:
        submission = world.history.submissions.get(delivery.uid)
        if submission is not None and not _is_true_in_backlog(world, submission, delivery):
            reason = delivery.message.dead_letter_reason
            yield Violation("I1", f"{delivery.uid} was dead-lettered in the backlog for {reason!r}")


def _has_failed_enough(world: World, lane: Lane, handed_count: int) -> bool:
    """Unseen deliveries count too: those with a lost response, and prefetched ones."""
    unseen = lane.prefetch > 0 or loses_deliveries(world.plan) or may_lose_received(world.plan)
    return unseen or handed_count >= lane.max_deliveries


def may_lose_received(plan: Plan) -> bool:
    """Whether messages may be locked for a receiver that never gets them."""
    return any(
        incident.side in plan.sides
        and incident.harms_receiving
        and (incident.operations is None or "receive" in incident.operations)
        for incident in plan.incidents
    )


def _is_true_in_backlog(world: World, submission: Submission, delivery: Delivery) -> bool:
    match reason := next((one for one in SyphonReason if one == delivery.message.dead_letter_reason), None):
        case SyphonReason.TTL_EXPIRED:
            return submission.message.time_to_live is not None
        case SyphonReason.NOT_FOUND:  # whether it was gone for long enough is checked with the other spans
            return any(one.what == "delete" and one.path == submission.lane for one in world.plan.incidents)
        case SyphonReason.TOO_LARGE:
            return submission.edge == "over_limit"
        case (
            SyphonReason.DESTINATION_MISSING
            | SyphonReason.DESTINATION_ILLEGAL
            | SyphonReason.DESTINATION_NOT_ALLOWED
            | SyphonReason.PROPERTY_MALFORMED
            | SyphonReason.REFUSED
            | None
        ):  # no producer gives cause for it
            return False
        case _:
            assert_never(reason)


def _check_last_hands(world: World) -> Iterator[Violation]:
    """What the last receiver of a copy neither completed nor dead-lettered must have been found at the end.

    And what it dead-lettered for certain must lie among the dead letters.
    """
    found: dict[str, set[str]] = defaultdict(set)
    for delivery in world.history.deliveries:
        found[delivery.uid].add(delivery.origin)
    last: dict[tuple[str, tuple[str, int, float]], Handed] = {}
    for handed in world.history.handed:
        if not handed.is_backlog and handed.token is not None and not handed.is_stale:
            last[handed.side, handed.copy] = handed
    for handed in last.values():
        submission = world.history.submissions.get(handed.uid)
        if submission is None or handed.uid in world.history.deleted:
            continue
        ways = {settled.mode: settled.outcome for settled in handed.settles if settled.outcome is not Outcome.REFUSED}
        is_found = bool(found[handed.uid] & {"drain", "deferred", "dead_letter"})
        if ways.get(SettleMode.DEAD_LETTER) is Outcome.OK and "dead_letter" not in found[handed.uid]:
            yield Violation("I1", f"{handed.uid} was dead-lettered in {handed.path} and is not there")
        elif not is_found and not ways.keys() & _ENDS and submission.message.time_to_live is None:
            yield Violation("I1", f"{handed.uid} was given back to {handed.path} and is lost")


_ENDS = {SettleMode.COMPLETE, SettleMode.DEAD_LETTER}
