"""What a run needs for laws that count time, or that hold a second time: windows, rates, graces, stops, rules."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from random import Random
from typing import TYPE_CHECKING, Final

from sbclient.options import SyphonLimits
from sbclient.testing import FaultKind, Operation
from tests.simulation.weather import Incident

if TYPE_CHECKING:
    from tests.simulation.plan import Death, Lane, Plan

WINDOW_S: Final = 20.0
"""The shortest window of duplicate detection."""

RULES: Final = ("plain-1", "tag-a", "plain-2", "tag-b")
"""Rules that all match; those named `tag-` have an action."""

SHORT_LOCK_S: Final = 5.0
"""The shortest lock. A renewal that hangs ends after 20 s."""

STOPS_WITHIN_S: Final = 16.0
"""A syphon that is stopped waits 5 s for its sessions, 5 s for other transfers, and 5 s to give messages back."""


def with_timing(plan: Plan, random: Random, stop: type[Death]) -> Plan:
    """The same plan, with what is drawn for it here.

    Args:
        random: its own, so that all else of a seed stays as it was drawn.
        stop: the class of a death, which imports this module.
    """
    has_window, has_rules, is_limited = random.random() < 0.5, random.random() < 0.5, random.random() < 0.2
    is_gone_twice, is_stopped = random.random() < 0.2, random.random() < 0.25
    lanes = tuple(_lane(lane, random, has_window=has_window, has_rules=has_rules) for lane in plan.lanes)
    plan = replace(plan, lanes=lanes)
    if is_limited:
        plan = _with_rates(plan, random)
    if is_gone_twice:
        plan = _with_two_deletions(plan, random)
    if is_stopped:
        stops = tuple(
            stop(
                program="syphon-0",
                at_call=None,
                only_sends=False,
                after_work=False,
                at_s=random.uniform(0.1, 0.5) * plan.traffic_s,
                pause_s=random.choice((0.5, 5.0)),
                is_stop=True,
            )
            for _ in range(2)
        )
        plan = replace(plan, deaths=(*stops, *plan.deaths))
    if plan.syphon_limits is not None and plan.backlog_lock_s == SHORT_LOCK_S and random.random() < 0.5:
        plan = _with_hanging_renewals(plan)
    return plan


def _lane(lane: Lane, random: Random, *, has_window: bool, has_rules: bool) -> Lane:
    if lane.kind == "dedup" and has_window:
        return replace(lane, window_s=WINDOW_S)
    if lane.kind == "topic" and has_rules:
        return replace(lane, rules=tuple(random.sample(RULES, len(RULES))))
    return lane


def _with_rates(plan: Plan, random: Random) -> Plan:
    """Syphons that may send so many messages a second, in all or to each entity; two of them, more often than not.

    Their locks end while they wait, if nothing renews them.
    """
    rate = random.choice((1.0, 2.0, 5.0))
    limits = random.choice(
        (
            SyphonLimits(max_messages_per_second=rate),
            SyphonLimits(max_messages_per_second_per_destination=rate),
            SyphonLimits(max_messages_per_second=2 * rate, max_messages_per_second_per_destination=rate),
        )
    )
    syphons = plan.syphons if len(plan.syphons) > 1 or random.random() < 0.4 else (*plan.syphons, "run")
    lock_s = random.choice((None, SHORT_LOCK_S))
    return replace(plan, syphon_limits=limits, syphons=syphons, backlog_lock_s=lock_s or plan.backlog_lock_s)


def _with_hanging_renewals(plan: Plan) -> Plan:
    """Locks that end while their renewals hang and their messages wait for the rate limit."""
    hang = Incident(
        kind="black_hole",
        side="secondary",
        at_s=0.1 * plan.traffic_s,
        span_s=0.8 * plan.traffic_s,
        what=FaultKind.HANG,
        operations=(Operation.RENEW,),
    )
    return replace(plan, incidents=tuple(sorted((*plan.incidents, hang), key=lambda incident: incident.at_s)))


def _with_two_deletions(plan: Plan, random: Random) -> Plan:
    """An entity that is deleted and made again twice; a syphon that waits for it about as long as it is gone."""
    lane = random.choice(plan.lanes)
    spans_s = [random.uniform(15.0, 0.25 * plan.traffic_s) for _ in range(2)]
    first_at_s = random.uniform(0.1, 0.2) * plan.traffic_s
    second_at_s = first_at_s + spans_s[0] + random.uniform(8.0, 0.15 * plan.traffic_s)
    gone = [
        Incident(kind="entity_deleted", at_s=at_s, span_s=span_s, what="delete", path=lane.name)
        for at_s, span_s in zip((first_at_s, second_at_s), spans_s, strict=True)
    ]
    others = [one for one in plan.incidents if one.what != "delete" or one.path != lane.name]
    grace_s = random.choice((0.0, 0.4, 0.8, 1.3)) * spans_s[1]
    options = replace(plan.options, missing_entity_grace=timedelta(seconds=grace_s))
    return replace(plan, options=options, incidents=tuple(sorted((*others, *gone), key=lambda incident: incident.at_s)))
