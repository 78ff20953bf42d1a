"""I4, I5, I10, I11 and I18: what arrives is what was sent, where it was sent, and at a time when it may."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from zlib import crc32

from sbclient.message import DEAD_LETTER_DESCRIPTION, DEAD_LETTER_REASON, ServiceBusReceivedMessage
from sbclient.testing import FaultKind
from tests.simulation.checkers.accounting import arrived
from tests.simulation.consumer import delivery_path
from tests.simulation.history import TEXT_ATTRIBUTES, Delivery, Outcome, Submission, Violation
from tests.simulation.network_weather import transit_s
from tests.simulation.plan import SMALL_FRAGMENTS, Lane
from tests.simulation.world import World

GRAIN_S = 1.5
"""The time to live is restored in whole seconds; the rest is latency."""


def check_content(world: World) -> Iterator[Violation]:
    lanes = {lane.name: lane for lane in world.plan.lanes}
    for uid, deliveries in arrived(world).items():
        submission = world.history.submissions.get(uid)
        if submission is None:
            continue
        for delivery in deliveries:
            if delivery.origin == "backlog":
                continue
            yield from _check_same(submission, delivery)
            yield from _check_place(world, submission, lanes[submission.lane], delivery)
    yield from _check_lives(world)
    yield from _check_times(world)
    yield from _check_edges(world)


def _check_same(submission: Submission, delivery: Delivery) -> Iterator[Violation]:
    sent, got = submission.message, delivery.message
    if bytes(sent) != bytes(got):
        yield Violation("I4", f"the body of {submission.uid} was changed")
    for name in TEXT_ATTRIBUTES:
        if getattr(sent, name) != getattr(got, name):
            kind = "I5" if name in ("session_id", "partition_key") else "I4"
            yield Violation(
                kind, f"{name} of {submission.uid} was {getattr(sent, name)!r}, came as {getattr(got, name)!r}"
            )
    properties = dict(got.application_properties)
    if delivery.origin == "dead_letter":
        properties.pop(DEAD_LETTER_REASON, None)
        properties.pop(DEAD_LETTER_DESCRIPTION, None)
    if properties != sent.application_properties:
        yield Violation("I4", f"the properties of {submission.uid} were changed to {sorted(properties)}")
    if sent.scheduled_enqueue_time_utc != got.scheduled_enqueue_time_utc:
        yield Violation("I5", f"the schedule of {submission.uid} came as {got.scheduled_enqueue_time_utc}")
    if (sent.time_to_live is None) != (got.time_to_live is None):
        yield Violation("I5", f"the life of {submission.uid} was {sent.time_to_live}, came as {got.time_to_live}")


def _check_place(world: World, submission: Submission, lane: Lane, delivery: Delivery) -> Iterator[Violation]:
    if delivery.path.casefold() != delivery_path(lane).casefold():
        yield Violation("I5", f"{submission.uid} for {submission.path} came out of {delivery.path}")
    key = submission.key
    if key is None and lane.detects_duplicates:
        key = submission.message.message_id
    if lane.is_partitioned and key is not None:
        expected, found = crc32(key.encode()) % SMALL_FRAGMENTS, delivery.message.sequence_number >> 48
        if found != expected:
            yield Violation("I5", f"{submission.uid} with key {key!r} came from fragment {found}, not {expected}")


def _check_lives(world: World) -> Iterator[Violation]:
    """A life begins when the message, or its schedule, comes; the way through the backlog is part of it."""
    plan, history = world.plan, world.history
    slack_s = GRAIN_S + abs(plan.skew_s) + 2 * plan.latency_s + transit_s(plan)
    attempts = history.attempts_of()
    for delivery in history.deliveries:
        submission = history.submissions.get(delivery.uid)
        life, asked = delivery.message.time_to_live, submission.message.time_to_live if submission is not None else None
        if submission is None or life is None or asked is None:
            continue
        schedule = submission.message.scheduled_enqueue_time_utc
        not_before = schedule.timestamp() if schedule is not None else 0.0
        ends_at = delivery.message.enqueued_time_utc.timestamp() + life.total_seconds()
        first = max(min(one.begin for one in submission.tries), not_before)
        own = [one.end for one in attempts.get(submission.uid, []) if one.client.startswith("producer")]
        last = max([*own, first, not_before])
        life_s = asked.total_seconds()
        if ends_at < first + life_s - slack_s:
            early_s = first + life_s - ends_at
            yield Violation("I5", f"the life of {submission.uid} ended {early_s:.1f} s too early")
        if plan.options.backlog_time_to_live == "remaining" and ends_at > last + life_s + slack_s:
            late_s = ends_at - last - life_s
            yield Violation("I10", f"the life of {submission.uid} was {late_s:.1f} s longer than it was given")


def _check_times(world: World) -> Iterator[Violation]:
    slow = any(incident.what is FaultKind.SLOW for incident in world.plan.incidents)
    slack_s = (35.0 if slow else 0.01) + transit_s(world.plan)
    lanes = {lane.name: lane for lane in world.plan.lanes}
    for handed in world.history.handed:
        submission = world.history.submissions.get(handed.uid)
        if handed.is_backlog or submission is None:
            continue
        expires = _expiry(handed.message)
        is_fresh = not (handed.is_deferred or handed.is_stale or lanes[submission.lane].prefetch)
        if expires is not None and is_fresh and handed.at > expires + slack_s:
            late_s = handed.at - expires
            yield Violation("I10", f"{handed.uid} was handed out {late_s:.1f} s after its life had ended")
        schedule = submission.message.scheduled_enqueue_time_utc
        if schedule is not None and datetime.fromtimestamp(handed.at, UTC) < schedule:
            early_s = schedule.timestamp() - handed.at
            yield Violation("I11", f"{handed.uid} was handed out {early_s:.1f} s before its time")


def _expiry(message: ServiceBusReceivedMessage) -> float | None:
    """When its life ends: what the broker says of it, and what follows from the life itself, whichever is earlier."""
    ends = [message.expires_at_utc.timestamp()] if message.expires_at_utc is not None else []
    if message.time_to_live is not None:
        ends.append(message.enqueued_time_utc.timestamp() + message.time_to_live.total_seconds())
    return min(ends, default=None)


def _check_edges(world: World) -> Iterator[Violation]:
    attempts = world.history.attempts_of()
    for submission in world.history.submissions.values():
        for one in attempts.get(submission.uid, []):
            is_taken = one.outcome is Outcome.OK and one.client.startswith("producer")
            if is_taken and (
                submission.edge == "over_limit" or (submission.edge == "over_reserve" and one.side == "primary")
            ):
                yield Violation("I18", f"{submission.uid} is one byte too large and was taken by the {one.side}")
