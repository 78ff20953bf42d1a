"""Observes the pairs among the namespaces of the emulator. The clients decide about the failover itself.

A namespace with queues named `<primary>/x-servicebus-transfer/n` is the secondary of a pair. The messages there show
which entities of the primary are diverted, how many messages wait and since when. The pings at the primary show whether
a client checks it, and with which result. A message that arrives in an entity of the secondary with the path of one of
them was delivered there instead.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final, TypeAlias

from sbclient.amqp import EncodedMessage
from sbclient.broker.directory import Entity
from sbclient.broker.fragment import Fragment
from sbclient.broker.namespace import Namespace
from sbclient.broker.pings import Ping
from sbclient.emulator.page.history import STATES_KEPT, Change, note_state
from sbclient.rules.backlog import is_backlog_path
from sbclient.rules.entity_path import split_sub_queue
from sbclient.rules.envelope import PATH

Facts: TypeAlias = dict[str, Any]

MAX_KNOWN: Final = 20_000
"""Messages of one fragment of a backlog queue whose destinations are kept; of a longer one, those of the oldest."""

MAX_READ: Final = 2_000
"""Messages that one observation reads, so that it stays short; the next one reads the others."""

MAX_DESTINATIONS: Final = 200
RECENT_S: Final = 10.0
"""A destination whose last message arrived within so many seconds is diverted."""

ELSEWHERE_S: Final = 60.0
"""A destination whose entity in the secondary has got a message within so many seconds is delivered there."""

UNKNOWN: Final = "(unknown)"

DIVERTED: Final = "diverted"
WAITING: Final = "waiting"
QUIET: Final = "quiet"
"""The states of a destination: messages arrive in the backlog, only wait there, or neither."""

_PORT = re.compile(r".*-([0-9]{1,5})")


@dataclass(slots=True)
class _Known:
    """The messages of one fragment of a backlog queue: the destination and time of each, by number."""

    messages: dict[int, tuple[str, float]] = field(default_factory=dict)
    last_number: int = 0

    def update(self, fragment: Fragment, now: float, at_most: int) -> list[tuple[str, float]]:
        """Remove the messages that have left and read those that have arrived; returns the latter."""
        for number in [number for number in self.messages if number not in fragment]:
            del self.messages[number]
        room = min(at_most, MAX_KNOWN - len(self.messages))
        new = list(islice(fragment.browse(now, self.last_number + 1), max(room, 0)))
        for entry in new:
            self.messages[entry.number] = (_destination_of(entry.content), entry.enqueued_at)
            self.last_number = entry.number
        return [self.messages[entry.number] for entry in new]


@dataclass(slots=True)
class _Destination:
    """One entity of a primary: the messages that wait, and those that arrived since the first observation."""

    waiting: int = 0
    oldest_at: float | None = None
    latest_at: float | None = None
    arrived: int = 0
    first_new_at: float | None = None
    states: deque[Change] = field(default_factory=lambda: deque(maxlen=STATES_KEPT))
    elsewhere: int | None = None
    elsewhere_at: float | None = None
    elsewhere_latest_at: float = 0.0

    def note_elsewhere(self, entity: Entity | None, now: float) -> float | None:
        """Return since when the entity of the same path in the secondary gets messages; None = none for a minute."""
        before, self.elsewhere = self.elsewhere, 0 if entity is None else _queue_row(entity)["arrived"]
        if before is not None and self.elsewhere > before:
            self.elsewhere_at, self.elsewhere_latest_at = self.elsewhere_at or now, now
        elif now - self.elsewhere_latest_at >= ELSEWHERE_S:
            self.elsewhere_at = None
        return self.elsewhere_at

    def note_state(self, ping: Ping | None, now: float) -> None:
        """Add the state of this observation and, if they are known, the exact times of the changes before it."""
        if self.first_new_at is not None:
            note_state(self.states, DIVERTED, self.first_new_at)
        if _is_diverted(self, ping, now):
            note_state(self.states, DIVERTED, now)
        elif self.waiting:
            note_state(self.states, WAITING, _end_of_diversion(self, ping, now))
        else:
            note_state(self.states, QUIET, now)


class PairObserver:
    """Observes one pair.

    Args:
        primary: its name in the names of the backlog queues.
        secondary: the namespace of the backlog queues.
    """

    def __init__(self, primary: str, secondary: Namespace) -> None:
        self.primary = primary
        self.secondary = secondary
        self._known: dict[Fragment, _Known] = {}
        self._destinations: dict[str, _Destination] = {}

    def observe(self, queues: Iterable[Entity], primary: Namespace | None, now: float) -> Facts:
        """The state of the pair.

        Args:
            queues: its backlog queues.
            primary: None = the emulator does not serve it.
        """
        rows, fragments = [], []
        for queue in queues:
            fragments += queue.body.fragments
            rows.append(_queue_row(queue))
        self._count(fragments, now)
        return {
            "primary": self.primary if primary is None else primary.name,
            "secondary": self.secondary.name,
            "is_primary_here": primary is not None,
            "queues": rows,
            "destinations": [self._row(path, primary, now) for path in self._destinations],
            "unread": sum(map(len, fragments)) - sum(len(known.messages) for known in self._known.values()),
        }

    def _count(self, fragments: list[Fragment], now: float) -> None:
        self._known = {fragment: self._known.get(fragment) or _Known() for fragment in fragments}
        left = MAX_READ
        for destination in self._destinations.values():
            destination.first_new_at = None
        for fragment, known in self._known.items():
            new = known.update(fragment, now, left)
            left -= len(new)
            for path, at in new:
                if path in self._destinations or len(self._destinations) < MAX_DESTINATIONS:
                    destination = self._destinations.setdefault(path, _Destination())
                    destination.arrived += 1
                    destination.latest_at = max(destination.latest_at or at, at)
                    destination.first_new_at = min(destination.first_new_at or at, at)
        for destination in self._destinations.values():
            destination.waiting, destination.oldest_at = 0, None
        for path, at in (message for known in self._known.values() for message in known.messages.values()):
            found = self._destinations.get(path)
            if found is not None:
                found.waiting += 1
                found.oldest_at = min(found.oldest_at or at, at)

    def _row(self, path: str, primary: Namespace | None, now: float) -> Facts:
        destination = self._destinations[path]
        ping = None if primary is None else primary.pings.last(path)
        destination.note_state(ping, now)
        return {
            "path": path,
            "waiting": destination.waiting,
            "oldest_at": destination.oldest_at,
            "arrived": destination.arrived,
            "latest_at": destination.latest_at,
            "state": destination.states[-1]["state"],
            "states": list(destination.states),
            "elsewhere_at": destination.note_elsewhere(self.secondary.directory.get(path), now),
            "ping": None if ping is None else {"at": ping.at, "refusal": ping.refusal},
        }


def _is_diverted(destination: _Destination, ping: Ping | None, now: float) -> bool:
    """Whether messages still arrive, and no ping was accepted since the last one, which would end the failover."""
    if destination.latest_at is None or now - destination.latest_at >= RECENT_S:
        return False
    return ping is None or ping.refusal is not None or ping.at < destination.latest_at


def _end_of_diversion(destination: _Destination, ping: Ping | None, now: float) -> float:
    """The time of the accepted ping that ended it, or the time from which no further message was expected."""
    if destination.latest_at is None:
        return now
    if ping is not None and ping.refusal is None and ping.at >= destination.latest_at:
        return ping.at
    return destination.latest_at + RECENT_S


def backlog_queues_of(namespace: Namespace) -> dict[str, list[Entity]]:
    """The backlog queues in a namespace, by the name of the primary."""
    found: dict[str, list[Entity]] = {}
    for entity in namespace.directory.all():
        if "/" in entity.path and is_backlog_path(entity.path):
            found.setdefault(entity.path.partition("/")[0].casefold(), []).append(entity)
    return found


def primary_of(name: str, namespaces: Mapping[str, Namespace], ports: Mapping[str, int]) -> Namespace | None:
    """The namespace in the names of backlog queues, which is its own name, or a host and the port of the namespace."""
    for each in namespaces.values():
        if each.name.casefold() == name.casefold():
            return each
    port = _PORT.fullmatch(name)
    named = [each for each, number in ports.items() if port is not None and number == int(port[1])]
    return namespaces[named[0]] if named else None


def _queue_row(queue: Entity) -> Facts:
    fragments = queue.body.fragments
    stored, arrived = sum(map(len, fragments)), sum(fragment.arrived_count for fragment in fragments)
    dead = queue.sub_queues.get("deadletter")
    return {
        "path": queue.path,
        "waiting": stored,
        "dead": 0 if dead is None else len(dead),
        "arrived": arrived,
        "left": arrived - stored,
    }


def _destination_of(content: EncodedMessage) -> str:
    path = content.application_properties.get(PATH)
    return split_sub_queue(path)[0] if isinstance(path, str) else UNKNOWN
