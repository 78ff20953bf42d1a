"""What a test has left behind in a namespace: messages that somebody holds, and a backlog that nobody brought home."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from sbclient.broker.host import BrokerHost
from sbclient.rules.backlog import is_backlog_path
from sbclient.rules.entity_path import split_sub_queue
from sbclient.server.namespace_state import state_of

LAST_LOOK: Final = 0.0
"""A moment long past: nothing more expires, the namespace is seen as whoever used it last left it."""


def leftovers(host: BrokerHost) -> list[str]:
    """One sentence for each thing that is left, none if all is in order."""
    return list(_found(host))


def _found(host: BrokerHost) -> Iterator[str]:
    for entity in state_of(host.namespace, LAST_LOOK)["entities"]:
        path = entity["path"]
        bodies = {path: entity["fragments"]}
        bodies |= {f"{path}/{name}": body["fragments"] for name, body in entity["sub_queues"].items()}
        for place, fragments in bodies.items():
            locked = sum(fragment["locked_count"] for fragment in fragments)
            if locked:
                yield f"{place} has {locked} locked messages: settle what you receive, or close the receiver"
            waiting = sum(fragment["message_count"] for fragment in fragments) - locked
            if waiting and is_backlog_path(path) and split_sub_queue(place)[1] is None:
                yield f"{place} holds {waiting} messages that no syphon brought home"
