"""I16: an entity fails over only because of outages, only after the interval without a success, until the ping."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from sbclient.amqp import encode_message
from sbclient.errors import (
    MessagingEntityDisabledError,
    MessagingEntityNotFoundError,
    OperationTimeoutError,
    ServiceBusCommunicationError,
    ServiceBusConnectionError,
    ServiceBusInternalError,
    ServiceBusQuotaExceededError,
    ServiceBusServerBusyError,
)
from sbclient.pairing.status import PairEvent
from tests.simulation.history import GAVE_UP, Attempt, Outcome, Violation
from tests.simulation.operator import GAP_BYTES
from tests.simulation.plan import Plan
from tests.simulation.world import World

GRAIN_S = 1e-3

AT_ONCE_S = 0.1
PLACED_WITHIN_S = 16.0
"""The shortest timeout with which a send has the 15 s in which a message gets to another fragment."""

OUTAGES = (
    OperationTimeoutError,
    ServiceBusConnectionError,
    ServiceBusCommunicationError,
    ServiceBusInternalError,
    MessagingEntityDisabledError,
    MessagingEntityNotFoundError,
    ServiceBusQuotaExceededError,
    ServiceBusServerBusyError,
)
"""Said here once more, and not asked of the errors themselves: they may be wrong."""


def check_failovers(world: World) -> Iterator[Violation]:
    history = world.history
    for client, events in history.pair_events.items():
        mine = [one for one in history.attempts if one.client == client and one.side == "primary"]
        paths = {event.path for event in events if event.name.startswith("failover.")}
        for path in sorted(paths):
            own = [one for one in mine if one.path == path]
            its_events = [event for event in events if event.path == path]
            yield from _check_path(world.plan, path, its_events, own, _calls(world, client, path))
            yield from _check_full(world, path, its_events, own)
            if all(incident.side == "primary" for incident in world.plan.incidents):
                yield from _check_served(world, client, path, its_events)
    yield from _check_asked(world)
    yield from _check_placed(world)
    if (
        all(incident.side == "primary" for incident in world.plan.incidents)
        and not world.plan.options.failover_interval
    ):
        yield from _check_diverted_at_once(world)


def _calls(world: World, client: str, path: str) -> dict[str, list[tuple[float, float]]]:
    """When each call of the application began and ended, by uid."""
    return {
        submission.uid: [(one.begin, one.end) for one in submission.tries if one.client == client]
        for submission in world.history.submissions.values()
        if submission.path == path
    }


def _check_path(
    plan: Plan,
    path: str,
    events: Sequence[PairEvent],
    attempts: Sequence[Attempt],
    calls: dict[str, list[tuple[float, float]]],
) -> Iterator[Violation]:
    interval_s = plan.options.failover_interval.total_seconds()
    recovered_at, engaged_at = 0.0, None
    for event in events:
        at = event.at_utc.timestamp() - plan.skew_s
        if event.name == "failover.engaged":
            engaged_at = at
            yield from _check_engaged(path, at, interval_s, recovered_at, attempts)
        elif event.name == "failover.recovered" and engaged_at is not None:
            yield from _check_recovered(plan, path, engaged_at, at, attempts)
            yield from _check_silence(path, engaged_at, at, attempts, calls)
            recovered_at, engaged_at = at, None
        elif event.name == "failover.entity_missing" and engaged_at is not None:
            if any(one.outcome is Outcome.OK and one.what != "limits" and one.end < at for one in attempts):
                yield Violation("I16", f"{path} was said to have never existed after it had accepted a send or a ping")
            yield from _check_silence(path, engaged_at, at, attempts, calls)
            recovered_at, engaged_at = at, None
    if engaged_at is not None:
        yield from _check_silence(path, engaged_at, float("inf"), attempts, calls)


def _check_full(
    world: World, path: str, events: Sequence[PairEvent], attempts: Sequence[Attempt]
) -> Iterator[Violation]:
    """A full entity does not recover, where all sends that failed since it is full were larger than its gap."""
    plan, epoch = world.plan, world.history.epoch
    fills = [one for one in plan.incidents if one.what == "fill" and one.path == path and one.side == "primary"]
    for fill in fills if plan.options.probe == "message" else ():
        begin, end = epoch + fill.at_s, epoch + min(fill.at_s + fill.span_s, plan.traffic_s)
        failed = [
            one
            for one in attempts
            if one.what in ("send", "schedule", "limits") and one.error is not None and one.end >= begin
        ]
        for event in events:
            at = event.at_utc.timestamp() - plan.skew_s
            before = [one for one in failed if one.end <= at]
            is_during = event.name == "failover.recovered" and begin < at < end - GRAIN_S
            if is_during and before and all(_is_too_large(world, one) for one in before):
                yield Violation("I16", f"{path} recovered while it was full")


def _is_too_large(world: World, one: Attempt) -> bool:
    """Whether an attempt was refused by an entity whose gap is too small for it.

    Where duplicates are detected, each message id has its own fragment, and a ping may meet another one.
    """
    submissions = [world.history.submissions[uid] for uid in one.uids]
    size_bytes = sum(encode_message(submission.message).size_bytes for submission in submissions)
    has_own_fragment = one.keys == (None, None) and any(
        lane.name == one.path and lane.detects_duplicates and lane.is_partitioned for lane in world.plan.lanes
    )
    return one.error is ServiceBusQuotaExceededError and size_bytes > GAP_BYTES and not has_own_fragment


def _check_placed(world: World) -> Iterator[Violation]:
    """A message without a key is stored in time on another fragment, where some hang and nothing else is wrong.

    One that waits for the transfer of an earlier one has less time.
    """
    plan = world.plan
    if "fragments_hang" not in plan.kinds or plan.timeout_s < PLACED_WITHIN_S or plan.network is not None:
        return
    attempts = world.history.attempts_of()
    others = {lane.name for lane in plan.lanes if lane.kind in ("transactional", "dedup")}  # an id is a key there
    for submission in world.history.submissions.values():
        for call in submission.tries if submission.key is None and submission.path not in others else ():
            begins = [one.begin for one in attempts.get(submission.uid, ()) if one.number in call.attempts]
            is_at_once = min(begins, default=math.inf) - call.begin < AT_ONCE_S
            if is_at_once and call.error and call.error not in _NOT_FOR_THE_BACKLOG:
                yield Violation("I16", f"{submission.uid} met {call.error} although some fragments answered")


def _check_served(world: World, client: str, path: str, events: Sequence[PairEvent]) -> Iterator[Violation]:
    """While an entity is failed over to a secondary that nothing has struck, what is sent is accepted."""
    moments = [(event.at_utc.timestamp() - world.plan.skew_s, event.name) for event in events]
    for submission in world.history.submissions.values():
        for call in submission.tries if submission.path == path else ():
            before = [name for at, name in moments if at < call.begin - GRAIN_S and name.startswith("failover.")]
            meanwhile = [at for at, _ in moments if call.begin - GRAIN_S <= at <= call.end + GRAIN_S]
            is_failed_over = before[-1:] == ["failover.engaged"] and not meanwhile
            if call.client == client and is_failed_over and call.error and call.error not in _NOT_FOR_THE_BACKLOG:
                yield Violation("I16", f"{submission.uid} met {call.error} while {path} was failed over")


def _check_asked(world: World) -> Iterator[Violation]:
    """No send times out before its message is transferred: the backlog query takes only a part of the timeout.

    A message that waits for the transfer of an earlier one may time out.
    """
    attempts = world.history.attempts_of()
    sends = [one for one in world.history.attempts if one.what == "send"]
    for submission in world.history.submissions.values():
        for call in submission.tries:
            if call.error != "NotTriedError" or any(
                one.number in call.attempts and one.client == call.client for one in attempts.get(submission.uid, [])
            ):
                continue
            if not any(one.client == call.client and one.begin < call.end and one.end > call.begin for one in sends):
                yield Violation("I16", f"{submission.uid} timed out although no other send delayed it")


def _check_diverted_at_once(world: World) -> Iterator[Violation]:
    """With an interval of 0 an outage of the primary causes no errors, except for sends that are never diverted."""
    transactional = {lane.name for lane in world.plan.lanes if lane.kind == "transactional"}
    for submission in world.history.submissions.values():
        if submission.path in transactional or submission.message.scheduled_enqueue_time_utc is not None:
            continue
        for call in submission.tries:
            if call.error in _TOLD_ONLY_WITHOUT_BACKLOG:
                yield Violation("I16", f"{submission.uid} met {call.error}, and the backlog could have taken it")


_TOLD_ONLY_WITHOUT_BACKLOG = (
    "ServiceBusConnectionError",
    "ServiceBusCommunicationError",
    "ServiceBusInternalError",
    "MessagingEntityDisabledError",
    "ServiceBusQuotaExceededError",
    "ServiceBusServerBusyError",
)

_NOT_FOR_THE_BACKLOG = (
    GAVE_UP,
    "InvalidOperationError",
    "MessageSizeExceededError",
    "ScheduleUnavailableError",
    "TransactionNotSupportedError",
)


def _check_engaged(
    path: str, at: float, interval_s: float, recovered_at: float, attempts: Sequence[Attempt]
) -> Iterator[Violation]:
    sends = [one for one in attempts if one.what in ("send", "schedule", "limits")]
    outages = [one for one in sends if _shows_outage(one)]
    armed = [one for one in outages if recovered_at - GRAIN_S <= one.end <= at - interval_s + GRAIN_S]
    if not armed:
        yield Violation("I16", f"{path} failed over without an outage {interval_s:g} s before")
        return
    cleared = [
        one
        for one in sends
        if one.outcome is Outcome.OK
        and one.what != "limits"
        and one.begin > recovered_at
        and at - interval_s + GRAIN_S < one.end < at - GRAIN_S
    ]
    if cleared:
        yield Violation("I16", f"{path} failed over {at - cleared[-1].end:.3f} s after it had accepted a send")


def is_outage(error: type[BaseException]) -> bool:
    return issubclass(error, OUTAGES)


def _shows_outage(attempt: Attempt) -> bool:
    """Whether a client may count an attempt as an outage: a link that took all the time of its send to open is one."""
    if attempt.error is not None:
        return is_outage(attempt.error)
    return attempt.what == "limits" and attempt.end - attempt.begin >= attempt.timeout_s - GRAIN_S


def _check_recovered(
    plan: Plan, path: str, engaged_at: float, at: float, attempts: Sequence[Attempt]
) -> Iterator[Violation]:
    probe = "ping" if plan.options.probe == "message" else "open"
    probes = [one for one in attempts if one.what == probe]
    pings = [one for one in probes if engaged_at - GRAIN_S <= one.begin and one.end <= at + GRAIN_S]
    needed = plan.options.pings_to_recover
    rows = [pings[last - needed : last] for last in range(needed, len(pings) + 1)]
    if not any(abs(row[-1].end - at) < GRAIN_S and all(one.outcome is Outcome.OK for one in row) for row in rows):
        yield Violation("I16", f"{path} recovered and its last pings were not accepted")
    if probe == "ping":
        sending = [one for one in attempts if one.what in ("send", "schedule", "limits") and one.error is not None]
        failed = [one for one in sending if one.end <= engaged_at + GRAIN_S]
        keys = {one.keys for one in failed}  # a look at the limits has none, and may be for any message
        keyless = [one for one in pings if one.keys == (None, None)]
        if keyless and failed and (None, None) not in keys and not any(k[0] for k in keys if k[1] is None):
            yield Violation("I16", f"{path} failed for keyed sends only and was pinged without a key")


def _check_silence(
    path: str, engaged_at: float, until: float, attempts: Sequence[Attempt], calls: dict[str, list[tuple[float, float]]]
) -> Iterator[Violation]:
    """What the application sends while an entity is failed over does not go to the primary."""
    for one in attempts:
        if one.what not in ("send", "schedule") or not engaged_at + GRAIN_S < one.begin < until - GRAIN_S:
            continue
        running = [
            begin for uid in one.uids for begin, end in calls.get(uid, []) if begin <= one.begin <= end + GRAIN_S
        ]
        if running and min(running) > engaged_at + GRAIN_S:  # several calls may send the same message
            yield Violation("I16", f"{one.uids[0]} was sent to {path} while it was failed over")
