"""Count the messages in the stores of a namespace, independent of the broker's own counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from sbclient import clock
from sbclient.broker.directory import Entity
from sbclient.broker.entry import Entry
from sbclient.hosting.host import BrokerHost
from sbclient.message import ServiceBusMessageState
from tests.simulation.history import uid_of


@dataclass(frozen=True, slots=True)
class Stored:
    """One stored message, and where."""

    path: str
    sub_queue: str | None
    fragment: int
    entry: Entry


def stored(host: BrokerHost, path: str | None = None) -> Iterator[Stored]:
    """Return all messages of a namespace or entity, in any state."""
    entity = host.namespace.directory.get(path) if path is not None else None
    entities = host.namespace.directory.all() if path is None else [] if entity is None else [entity]
    for each in entities:
        yield from _stored_in(each, clock.true_now())


def _stored_in(entity: Entity, now: float) -> Iterator[Stored]:
    stores = [(None, entity.body), *entity.sub_queues.items()]
    for name, queue in stores:
        for fragment in queue.fragments:
            for entry in fragment.browse(now, 0):
                yield Stored(entity.path, name, fragment.index, entry)


def uids_in(host: BrokerHost, path: str | None = None) -> Counter[str]:
    """How many copies of each uid a namespace, or one entity, holds."""
    return Counter(uid_of(one.entry.content) for one in stored(host, path))


def count_of(host: BrokerHost, path: str, reached: list[int]) -> dict[str, int]:
    """The counts of one entity over some of its fragments, by the names of `RuntimeProperties`."""
    counts = Counter[str]()
    for one in stored(host, path):
        if one.fragment not in reached:
            continue
        counts["total_message_count"] += 1
        if one.sub_queue == "deadletter":
            counts["dead_letter_message_count"] += 1
        elif one.sub_queue is None and one.entry.state is ServiceBusMessageState.SCHEDULED:
            counts["scheduled_message_count"] += 1
        elif one.sub_queue is None:
            counts["active_message_count"] += 1
    names = ("total_message_count", "dead_letter_message_count", "scheduled_message_count", "active_message_count")
    return {name: counts[name] for name in names}
