"""Weather for corners that no kind of it reaches often enough by chance: each is drawn in some of the runs it fits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from importlib.util import find_spec
from random import Random
from typing import TYPE_CHECKING, Final

from sbclient.broker.profile import Profile
from sbclient.errors import ServiceBusAuthenticationError, ServiceBusAuthorizationError
from sbclient.testing import FaultKind, Operation
from tests.simulation.weather import OUTAGES, Incident

if TYPE_CHECKING:
    from tests.simulation.plan import Plan


def with_corners(plan: Plan, random: Random, *, small: Profile) -> Plan:
    """The same plan, with the corners that are drawn and fit: see the functions below.

    Args:
        random: its own, so that all else of a seed stays as it was drawn.
        small: the profile in which messages soon are too large.
    """
    is_silent, has_short_locks, is_crowded = random.random() < 0.4, random.random() < 0.5, random.random() < 0.15
    silent_s, busy_s = random.uniform(15.0, 90.0), random.uniform(6.0, 30.0)
    has_refusals, is_slow = random.random() < 0.06, random.random() < 0.4
    is_throttled, stays = random.random() < 0.08, random.random() < 0.4
    pauses_s = [random.uniform(2.0, 40.0) for _ in range(6)]
    has_sessions = plan.is_ordered and any(lane.requires_session for lane in plan.lanes)
    if is_silent and has_sessions:
        plan = _with_silent_secondary(plan, silent_s)
    if has_short_locks and has_sessions:
        plan = _with_short_locks(plan, busy_s, FaultKind.SLOW if is_slow else FaultKind.BUSY)
    if is_crowded and any(lane.kind == "plain" for lane in plan.lanes):
        plan = _with_crowded_doubt(plan, small)
    if has_refusals:
        plan = _with_refusals_after_doubt(plan)
    if is_throttled:
        plan = _with_throttling(plan, [plan.traffic_s] if stays else pauses_s)
    return plan


def _with_silent_secondary(plan: Plan, silent_s: float) -> Plan:
    """The first query about each session gets no response, and sends have shorter timeouts than such a query."""
    asking = (Operation.OPEN, Operation.PEEK)
    silence = Incident(
        kind="black_hole", side="secondary", at_s=0.0, span_s=silent_s, what=FaultKind.HANG, operations=asking
    )
    return replace(plan, timeout_s=8.0, incidents=_in_order(*plan.incidents, silence))


def _with_short_locks(plan: Plan, busy_s: float, what: FaultKind) -> Plan:
    """Backlog queues whose locks end sooner than a busy server is left alone, or a slow one has answered, and a primary
    that is so when it is back."""
    busy = [
        Incident(
            kind=incident.kind,
            at_s=min(incident.at_s + incident.span_s, 0.8 * plan.traffic_s),
            span_s=busy_s,
            what=what,
            latency_s=7.0,
        )
        for incident in plan.incidents
        if incident.kind in OUTAGES and incident.side == "primary" and incident.what is not FaultKind.BUSY
    ]
    return replace(plan, backlog_lock_s=5.0, incidents=_in_order(*plan.incidents, *busy))


def _with_crowded_doubt(plan: Plan, small: Profile) -> Plan:
    """Messages that leave together, some of them too large for the backlog only, while acknowledgements are lost."""
    lanes = tuple(replace(lane, senders=3) if lane.kind == "plain" else lane for lane in plan.lanes)
    doubt = [
        Incident(
            kind="send_acknowledgement_lost",
            at_s=0.0,
            span_s=plan.traffic_s,
            what=FaultKind.LOSE_ACKNOWLEDGEMENT,
            path=lane.name,
            operations=(Operation.SEND,),
            probability=0.5,
        )
        for lane in lanes
        if lane.kind == "plain"
    ]
    options = replace(plan.options, reserve_backlog_headroom=False, failover_interval=timedelta())
    return replace(plan, lanes=lanes, options=options, profile=small, incidents=_in_order(*plan.incidents, *doubt))


def _with_refusals_after_doubt(plan: Plan) -> Plan:
    """Connections that break before an answer has come, and a right that is missing when they are opened anew."""
    breaks = Incident(kind="wire_cut", at_s=0.0, span_s=plan.traffic_s, what="cut", probability=0.15)
    missing = Incident(
        kind="token_expired",
        at_s=0.0,
        span_s=plan.traffic_s,
        what=FaultKind.ERROR,
        operations=(Operation.OPEN, Operation.SEND),
        probability=0.3,
        error=ServiceBusAuthorizationError,
    )
    options = replace(plan.options, failover_interval=timedelta())
    return replace(plan, options=options, incidents=_in_order(*plan.incidents, breaks, missing))


def _with_throttling(plan: Plan, spans_s: Sequence[float]) -> Plan:
    """A primary that is busy for each second of these spans, and works in the others; nothing else is wrong with it.

    A span that lasts longer than the failover interval fails entities over, and others do not.
    """
    incidents = [incident for incident in plan.incidents if incident.side != "primary"]
    at_s = 1.0
    for place, span_s in enumerate(spans_s):
        if place % 2 == 0:
            incidents.append(Incident(kind="server_busy", at_s=at_s, span_s=span_s, what=FaultKind.BUSY))
        at_s += span_s
    options = replace(plan.options, failover_interval=min(plan.options.failover_interval, timedelta(seconds=20)))
    return replace(plan, options=options, timeout_s=25.0, incidents=_in_order(*incidents))


def _in_order(*incidents: Incident) -> tuple[Incident, ...]:
    return tuple(sorted(incidents, key=lambda incident: incident.at_s))


# -- corners with a name, of which some runs have one -----------------------------------------------------------------


def _full(plan: Plan, random: Random) -> Plan:
    """An entity that stays full, twice for a while or until the end, or a backlog queue that does."""
    if random.random() < 0.25:
        return replace(plan, incidents=_in_order(*plan.incidents, *_fills(plan, random, "secondary", "#0")))
    path = random.choice(plan.lanes).name
    others = [one for one in plan.incidents if one.path != path or one.what not in ("delete", "update", "disable")]
    return replace(plan, incidents=_in_order(*others, *_fills(plan, random, "primary", path)))


def _fills(plan: Plan, random: Random, side: str, path: str) -> list[Incident]:
    begins_s, spans_s = [random.uniform(0.02, 0.2) * plan.traffic_s], [plan.traffic_s]
    if random.random() < 0.5:
        begins_s.append(random.uniform(0.5, 0.7) * plan.traffic_s)
        spans_s = [random.uniform(0.1, 0.3) * plan.traffic_s for _ in begins_s]
    return [
        Incident(kind="full", side=side, path=path, at_s=at_s, span_s=span_s, what="fill")
        for at_s, span_s in zip(begins_s, spans_s, strict=True)
    ]


def _key_rotated(plan: Plan, random: Random) -> Plan:
    """A namespace, or each of the two in turn, that refuses a key until the clients have read the new one."""
    sides = random.choice((("primary",), ("secondary",), ("secondary", "primary")))
    at_s = random.uniform(0.05, 0.3) * plan.traffic_s
    rotations = []
    for side in sides:
        span_s = random.choice((3.0, 20.0, 0.3 * plan.traffic_s))
        rotations.append(_rotation(plan, side, at_s, span_s))
        at_s += random.uniform(0.5, 1.5) * span_s
    if plan.network is not None:  # a key that is refused matters when a token ends
        lanes = tuple(replace(lane, deletes=False) for lane in plan.lanes)
        plan = replace(plan, lanes=lanes, network=replace(plan.network, token_s=6.0))
    return replace(plan, incidents=_in_order(*plan.incidents, *rotations))


def _rotation(plan: Plan, side: str, at_s: float, span_s: float) -> Incident:
    if plan.network is not None:
        return Incident(kind="key_rotated", side=side, at_s=at_s, span_s=span_s, what="bad_tokens")
    refusal = ServiceBusAuthenticationError
    return Incident(kind="key_rotated", side=side, at_s=at_s, span_s=span_s, what=FaultKind.ERROR, error=refusal)


def _fragments_hang(plan: Plan, random: Random) -> Plan:
    """Some fragments of each entity hang, and nothing else is wrong.

    A message without a key takes 15 s then, which a send with a timeout from 16 s on has.
    """
    lanes = tuple(replace(lane, is_partitioned=True) for lane in plan.lanes)
    count = plan.profile.fragment_count
    hangs = [
        Incident(
            kind="fragments_hang",
            path=lane.name,
            at_s=random.uniform(0.02, 0.3) * plan.traffic_s,
            span_s=random.uniform(0.3, 1.0) * plan.traffic_s,
            what=FaultKind.HANG,
            fragments=tuple(sorted(random.sample(range(count), random.randint(1, count - 1)))),
        )
        for lane in lanes
    ]
    timeout_s = random.choice((random.uniform(10.0, 16.0), random.uniform(16.0, 18.0), random.uniform(18.0, 30.0)))
    latency_s = min(plan.latency_s, 0.02)
    return replace(plan, lanes=lanes, timeout_s=timeout_s, latency_s=latency_s, incidents=_in_order(*hangs))


def _prefetches_one(plan: Plan, random: Random) -> Plan:
    """Receivers that fetch one message ahead."""
    return replace(plan, lanes=tuple(replace(lane, prefetch=1) for lane in plan.lanes))


def _drained_twice(plan: Plan, random: Random) -> Plan:
    """A client that drains the backlog twice at once; in some runs another client does too."""
    others = plan.syphons[1:] if len(plan.syphons) > 1 or random.random() < 0.5 else ("empty",)
    return replace(plan, syphons=("twice", *others), syphon_limits=None)


def _worker(plan: Plan, random: Random) -> Plan:
    """The worker instead of the first syphon."""
    return replace(
        plan, syphons=("worker", *plan.syphons[1:]), deaths=tuple(one for one in plan.deaths if not one.is_stop)
    )


def _redirects(plan: Plan, random: Random) -> Plan:
    """Syphons that deliver to the secondary, and receivers that take from both.

    In some runs an entity is missing there.
    """
    options = replace(
        plan.options,
        receive_from="both",
        redirect_after=timedelta(seconds=random.choice((0.0, 0.0, 2.0, 10.0, 40.0))),
        redirect_sessions=random.random() < 0.3,
    )
    missing = random.choice(plan.lanes).name if random.random() < 0.15 else None
    elsewhere = tuple(lane.name for lane in plan.lanes if lane.name != missing)
    lanes = plan.lanes
    if any(one.harms_receiving for one in plan.incidents):
        lanes = tuple(replace(lane, deletes=False) for lane in lanes)
    return replace(plan, options=options, elsewhere=elsewhere, lanes=lanes)


def _tasks(plan: Plan, random: Random) -> Plan:
    """Producers that write tasks of Spark; their rows have ids."""
    return replace(plan, options=replace(plan.options, ordering="none"))


HAS_SPARK: Final = all(find_spec(name) is not None for name in ("pyspark", "pyarrow"))

NAMED: Final[dict[str, Callable[[Plan, Random], Plan]]] = {
    "full": _full,
    "key_rotated": _key_rotated,
    "fragments_hang": _fragments_hang,
    "prefetches_one": _prefetches_one,
    "drained_twice": _drained_twice,
    "worker": _worker,
    "tasks": _tasks,
    "redirects": _redirects,
}
"""Each is drawn in one of 20 runs, `redirects` in a third of them, `tasks` only where PySpark is installed. These names
and those of `weather.KINDS` may be given together."""

SHARES: Final = {"redirects": 1 / 3}


def with_named(plan: Plan, random: Random, only: Sequence[str]) -> Plan:
    """The same plan, with the named corners that are drawn.

    Args:
        random: its own, so that all else of a seed stays as it was drawn.
        only: those that the run has; empty = those that are drawn.
    """
    for name, change in NAMED.items():
        is_drawn, own = random.random() < SHARES.get(name, 0.05), Random(random.getrandbits(64))
        is_possible = name != "tasks" or HAS_SPARK
        if name in only or (is_drawn and is_possible and not only):
            plan = replace(change(plan, own), kinds=(*plan.kinds, name))
    return plan
