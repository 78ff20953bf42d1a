"""All that a namespace keeps over a restart, as values that can be compared."""

from __future__ import annotations

import math
from dataclasses import fields
from operator import itemgetter
from typing import Any

from sbclient.amqp.encode import encode_value
from sbclient.broker.entity import Queue
from sbclient.broker.entry import Entry
from sbclient.broker.fragment import Fragment
from sbclient.broker.namespace import Namespace
from sbclient.broker.topic import Topic


def described(namespace: Namespace, now: float) -> dict[str, Any]:
    """Everything but locks and the times of the last access."""
    found: dict[str, Any] = {}
    for entity in namespace.directory.all():
        rules = {} if entity.subscription is None else entity.subscription.rules
        found[entity.path] = {
            "definition": (entity.description, entity.created_at, entity.updated_at),
            "rules": [(key, rule.properties) for key, rule in rules.items()],
            "does": [_done_by(body) for body in entity.queues()],
        }
        if entity.subscription is not None:
            filters = entity.subscription
            found[entity.path]["filters"] = filters.correlation_count, filters.dead_letters_filter_errors
        for name, body in [("", entity.body), *entity.sub_queues.items()]:
            for fragment in body.fragments:
                kept = fragment_described(fragment, now)
                if kept["counter"] or kept["states"]:
                    found[entity.path][name, fragment.index] = kept
    directory = namespace.directory
    idle = sorted(key for key in namespace._gate._idle_ends._at if directory.get(key) is not None)
    found["counts"] = len(directory), directory.partitioned_count, idle
    return found


def _done_by(body: Queue | Topic) -> Any:
    """What the entity does as its description says."""
    policy = [getattr(body.policy, each.name) for each in fields(body.policy)]
    subscriptions = sorted(body.subscriptions) if isinstance(body, Topic) else body.forward_to
    return body.path, policy, body.requires_session, subscriptions


def fragment_described(fragment: Fragment, now: float) -> dict[str, Any]:
    long_ago = -math.inf  # applies no timed changes
    entries = list(fragment.browse(long_ago, 0))
    seen = list(zip(fragment.seen._in_order, fragment.seen._seen_at[fragment.seen._forgotten :], strict=True))
    assert seen == sorted(seen, key=itemgetter(1)), "ids are forgotten in this order"
    return {
        "counter": fragment.counter,
        "arrived": fragment.arrived_count,
        "scheduled": fragment.scheduled_count,
        "deferred": fragment.deferred_count,
        "sizes": (fragment.size_bytes, fragment.usage.size_bytes),
        "entries": [entry_described(entry) for entry in entries],
        "states": {
            name: (session.state, session.state_set_at)
            for name, session in fragment.sessions(long_ago)
            if session.state is not None
        },
        "seen": {each for each in seen if each[1] + fragment.policy.duplicate_window_s > now},
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
        encode_value(dict(entry.properties)),  # an int of AMQP equals a long, and is encoded otherwise
        content.message_id,
        content.payload,
    )
