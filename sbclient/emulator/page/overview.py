"""The numbers of each entity for the page, and the details of one entity.

No function here reads a message. The broker keeps all counts, so that a row takes microseconds for any number of
messages, and can be made twice a second.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeAlias

from sbclient.broker.descriptions import seconds_of
from sbclient.broker.directory import Entity
from sbclient.broker.entity import Queue
from sbclient.broker.fragment import Fragment
from sbclient.broker.rule import Rule
from sbclient.broker.topic import Subscription, Topic
from sbclient.emulator.context import AnyFault
from sbclient.emulator.control.fault_states import FULL, UP, State, combined, state_of_fragment, worst
from sbclient.entities import (
    CORRELATION_FIELDS,
    SETTINGS,
    CorrelationRuleFilter,
    Description,
    SqlRuleFilter,
    TrueRuleFilter,
    kind_of,
    settings_of,
)
from sbclient.formats.entity_settings import value_text

Facts: TypeAlias = dict[str, Any]

IN_WORDS: Final = frozenset(
    {
        "authorization_rules",
        "auto_delete_on_idle",
        "dead_lettering_on_message_expiration",
        "default_message_time_to_live",
        "duplicate_detection_history_time_window",
        "enable_partitioning",
        "forward_to",
        "lock_duration",
        "max_delivery_count",
        "max_message_size_in_kilobytes",
        "max_size_in_megabytes",
        "requires_duplicate_detection",
        "requires_session",
        "status",
        "support_ordering",
    }
)
"""The settings that the page shows in words of its own, and two that it does not show: keys, and what follows from the
partitions. Any other one appears under its name if it has another value than the default."""

ROOM_BYTES: Final = 1024
"""A fragment without room for a message of this size is shown as full."""


def row_of(entity: Entity, faults: Sequence[AnyFault]) -> Facts:
    """An entity as a row of a list."""
    fragments = entity.body.fragments
    stored = scheduled = deferred = locked = arrived = size_bytes = sessions = 0
    for fragment in fragments:
        stored += len(fragment)
        scheduled += fragment.scheduled_count
        deferred += fragment.deferred_count
        locked += fragment.locked_count
        arrived += fragment.arrived_count
        size_bytes += fragment.usage.size_bytes
        sessions += fragment.session_count
    state = combined([_state_of(fragment, entity.path, faults) for fragment in fragments])
    return {
        "path": entity.path,
        "kind": kind_of(entity.description),
        "status": str(entity.description.status),
        "fragments": len(fragments),
        "requires_session": entity.body.requires_session,
        "forwards_to": entity.body.forward_to if isinstance(entity.body, Queue) else None,
        "active": stored - scheduled - deferred,
        "scheduled": scheduled,
        "deferred": deferred,
        "locked": locked,
        "dead": _count_in(entity, "deadletter"),
        "transfer": _count_in(entity, "transfer"),
        "transfer_dead": _count_in(entity, "transferdeadletter"),
        "sessions": sessions,
        "size_bytes": size_bytes,
        "arrived": arrived,
        "left": arrived - stored,
        **_state_facts(state),
    }


def detail_of(entity: Entity, faults: Sequence[AnyFault]) -> Facts:
    """The details of one entity."""
    body, policy = entity.body, entity.body.policy
    dead_letters = entity.sub_queues.get("deadletter")
    description = entity.description
    return {
        "path": entity.path,
        "lock_duration_s": policy.lock_duration_s if isinstance(body, Queue) else None,
        "max_delivery_count": policy.max_delivery_count if isinstance(body, Queue) else None,
        "default_ttl_s": _finite(policy.default_ttl_s),
        "dead_letters_expired": policy.dead_letters_expired,
        "duplicate_window_s": policy.duplicate_window_s if policy.requires_duplicate_detection else None,
        "idle_s": _finite(seconds_of(description.auto_delete_on_idle)),
        "max_message_bytes": policy.max_message_size_bytes,
        "others": _other_settings(description),
        "created_at": entity.created_at,
        "accessed_at": entity.accessed_at or None,
        "parts": [_part_of(fragment, dead_letters, entity.path, faults) for fragment in body.fragments],
        "subscriptions": (
            [{"path": each.queue.path, "rules": _rules_of(each)} for each in body.subscriptions.values()]
            if isinstance(body, Topic)
            else None
        ),
        "rules": None if entity.subscription is None else _rules_of(entity.subscription),
    }


def _other_settings(description: Description) -> dict[str, str]:
    names = sorted(settings_of(kind_of(description)).keys() - IN_WORDS)
    given = {name: description[name] for name in names if not SETTINGS[name].is_answer}
    return {name: value_text(value) for name, value in given.items() if value not in (None, SETTINGS[name].default)}


def _part_of(fragment: Fragment, dead_letters: Queue | None, path: str, faults: Sequence[AnyFault]) -> Facts:
    behind = None if dead_letters is None else dead_letters.fragments[fragment.index]
    return {
        "index": fragment.index,
        "active": len(fragment) - fragment.scheduled_count - fragment.deferred_count,
        "scheduled": fragment.scheduled_count,
        "deferred": fragment.deferred_count,
        "locked": fragment.locked_count,
        "dead": 0 if behind is None else len(behind),
        "sessions": fragment.session_count,
        "size_bytes": fragment.usage.size_bytes,
        "max_bytes": fragment.policy.max_size_bytes,
        "arrived": fragment.arrived_count,
        "left": fragment.arrived_count - len(fragment),
        **_state_facts(_state_of(fragment, path, faults)),
    }


def _state_of(fragment: Fragment, path: str, faults: Sequence[AnyFault]) -> State:
    own = UP if fragment.has_room(ROOM_BYTES) else FULL
    return worst((own, state_of_fragment(faults, path, fragment.index))) if faults else own


def _state_facts(state: State) -> Facts:
    return {"state": state.health.value, "is_partial": state.is_partial}


def _count_in(entity: Entity, name: str) -> int:
    queue = entity.sub_queues.get(name)
    return 0 if queue is None else len(queue)


def _rules_of(subscription: Subscription) -> list[Facts]:
    return [_rule_of(rule) for rule in subscription.rules.values()]


def _rule_of(rule: Rule) -> Facts:
    """A rule: its filter as SQL, or the comparisons of a correlation filter."""
    condition, action = rule.properties.filter, rule.properties.action
    if isinstance(condition, SqlRuleFilter):
        text = condition.sql_expression
    elif isinstance(condition, CorrelationRuleFilter):
        text = _correlation(condition)
    else:
        text = "every message" if isinstance(condition, TrueRuleFilter) else "no message"
    return {
        "name": rule.properties.name,
        "filter": text,
        "action": None if action is None else getattr(action, "sql_expression", None),
    }


def _correlation(condition: CorrelationRuleFilter) -> str:
    fields = {name: getattr(condition, name) for name in CORRELATION_FIELDS}
    named = [f"sys.{name} = {value!r}" for name, value in fields.items() if value is not None]
    return " AND ".join([*named, *(f"{name} = {value!r}" for name, value in (condition.properties or {}).items())])


def _finite(duration_s: float) -> float | None:
    return duration_s if duration_s < 1e12 else None
