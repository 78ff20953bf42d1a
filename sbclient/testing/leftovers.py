"""Finds what a test has left in a namespace: locked messages, and backlog messages that were not drained."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from sbclient.emulator.control.namespace_state import state_of
from sbclient.hosting.host import BrokerHost
from sbclient.rules.backlog import is_backlog_path

NOT_DRAINED: Final = "no syphon has drained: `await client.run_syphon(until='empty')`"
DEAD: Final = "no syphon can drain: see why they were dead-lettered"
LONG_AGO: Final = 0.0
"""A time at which nothing expires, so that the state is as the test has left it."""


def leftovers(host: BrokerHost) -> list[str]:
    """One sentence for each problem; none if there is no problem."""
    return list(_found(host))


def _found(host: BrokerHost) -> Iterator[str]:
    for entity in state_of(host.namespace, LONG_AGO)["entities"]:
        path = entity["path"]
        sub_queues = {name: body["fragments"] for name, body in entity["sub_queues"].items()}
        for name, fragments in {"": entity["fragments"], **sub_queues}.items():
            place = f"{name} of {path}" if name else path
            locked = sum(fragment["locked_count"] for fragment in fragments)
            if locked:
                yield f"{place} has {_messages(locked)} locked: settle what you receive, or close the receiver"
            lost = sum(fragment["message_count"] for fragment in fragments) - locked
            if lost and is_backlog_path(path):
                yield f"{place} holds {_messages(lost)} that {DEAD if name else NOT_DRAINED}"


def _messages(count: int) -> str:
    return "1 message" if count == 1 else f"{count:,} messages"
