"""All that a namespace keeps over a restart, as values that can be compared."""

from __future__ import annotations

from typing import Any

from sbclient.amqp import WireMessage, encode_message
from sbclient.broker.entry import Entry
from sbclient.broker.fragment import Fragment
from sbclient.broker.namespace import Namespace
from sbclient.broker.recovery import definition_of


def described(namespace: Namespace, now: float) -> dict[str, Any]:
    """Everything but locks and the times of the last access."""
    found: dict[str, Any] = {}
    for entity in namespace.directory.all():
        rules = {} if entity.subscription is None else entity.subscription.rules
        found[entity.path] = {
            "definition": definition_of(entity)._replace(accessed_at=0.0),
            "rules": [(key, rule.properties) for key, rule in rules.items()],
        }
        for name, body in [("", entity.body), *entity.sub_queues.items()]:
            for fragment in body.fragments:
                kept = fragment_described(fragment, now)
                if kept["counter"] or kept["states"]:
                    found[entity.path][name, fragment.index] = kept
    return found


def fragment_described(fragment: Fragment, now: float) -> dict[str, Any]:
    entries = list(fragment.stored_between(-1))
    occupied = {entry.content.session_id for entry in entries}
    return {
        "counter": fragment.counter,
        "arrived": fragment.arrived_count,
        "scheduled": fragment.scheduled_count,
        "deferred": fragment.deferred_count,
        "sizes": (fragment.size_bytes, fragment.usage.size_bytes),
        "entries": [entry_described(entry) for entry in entries],
        "states": {
            state.session_id: state
            for state in fragment.states()
            if state.state is not None or state.session_id in occupied
        },
        "seen": {each for each in fragment.seen if each[1] + fragment.policy.duplicate_window_s > now},
    }


def entry_described(entry: Entry) -> Any:
    content = entry.content
    return (
        entry.number,
        entry.original_number,
        entry.enqueued_at,
        entry.expires_at,
        entry.size_bytes,
        entry.delivery_count,
        entry.state,
        entry.hops,
        entry.dead_letter_reason,
        entry.dead_letter_description,
        entry.dead_letter_source,
        entry.destination,
        entry.was_scheduled,
        dict(entry.properties),
        content.message_id,
        content.sections.payload if isinstance(content, WireMessage) else encode_message(content),
    )
