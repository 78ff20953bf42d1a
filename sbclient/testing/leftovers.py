"""What a test has left behind in a namespace: messages that somebody holds, and a backlog that nobody brought home."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from sbclient.emulator.control.namespace_state import state_of
from sbclient.hosting.host import BrokerHost
from sbclient.rules.backlog import is_backlog_path

NO_SYPHON: Final = "no syphon brought home: `await client.run_syphon(until='empty')`"
NEVER_HOME: Final = "can never be brought home: see why they were dead-lettered"
LAST_LOOK: Final = 0.0
"""A moment long past: nothing more expires, the namespace is seen as whoever used it last left it."""


def leftovers(host: BrokerHost) -> list[str]:
    """One sentence for each thing that is left, none if all is in order."""
    return list(_found(host))


def _found(host: BrokerHost) -> Iterator[str]:
    for entity in state_of(host.namespace, LAST_LOOK)["entities"]:
        path = entity["path"]
        sub_queues = {name: body["fragments"] for name, body in entity["sub_queues"].items()}
        for name, fragments in {"": entity["fragments"], **sub_queues}.items():
            place = f"{name} of {path}" if name else path
            locked = sum(fragment["locked_count"] for fragment in fragments)
            if locked:
                yield f"{place} has {_messages(locked)} locked: settle what you receive, or close the receiver"
            lost = sum(fragment["message_count"] for fragment in fragments) - locked
            if lost and is_backlog_path(path):
                yield f"{place} holds {_messages(lost)} that {NEVER_HOME if name else NO_SYPHON}"


def _messages(count: int) -> str:
    return "1 message" if count == 1 else f"{count:,} messages"
