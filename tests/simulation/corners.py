"""Weather for corners that no kind of it reaches often enough by chance: each is drawn in some of the runs it fits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from random import Random
from typing import TYPE_CHECKING

from sbclient.broker.profile import Profile
from sbclient.errors import ServiceBusAuthorizationError
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
