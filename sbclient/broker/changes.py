"""What has changed in a namespace, as values from which another process can restore it.

Rules:

1. Changes describe states, not requests: to apply the same change twice has the effect of once. Several changes of one
   message between two calls of `take` become one.
2. All changes of one request are returned by the same `take`, so that a transaction is stored as a whole.
3. Locks, faults, pings and the time of the last access are not recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, TypeAlias

from sbclient.broker.deduplication import Identity
from sbclient.broker.entry import Entry
from sbclient.entities import Description, RuleProperties
from sbclient.message import PropertyValue, ServiceBusMessageState


class FragmentAddress(NamedTuple):
    """A fragment: the path of its entity, the name of the sub-queue (empty for the entity itself), and its index."""

    path: str
    sub_queue: str
    fragment_index: int


class EntityDefined(NamedTuple):
    """An entity was created or updated.

    Attributes:
        path: as it was created.
        topic: the path of a subscription's topic, or None.
        created_at, updated_at, accessed_at: seconds; 0 = never.
    """

    path: str
    topic: str | None
    description: Description
    created_at: float
    updated_at: float
    accessed_at: float


class EntityRemoved(NamedTuple):
    """An entity was deleted, with its messages and rules."""

    path: str


class RuleChanged(NamedTuple):
    """A rule of the subscription with a path was created or replaced; without properties it was deleted."""

    path: str
    key: str
    properties: RuleProperties | None


class EntryUpdate(NamedTuple):
    """The parts of a stored message that change while it keeps its sequence number."""

    number: int
    delivery_count: int
    state: ServiceBusMessageState
    properties: Mapping[str, PropertyValue]

    def __repr__(self) -> str:
        return f"EntryUpdate({self.number})"


class SessionState(NamedTuple):
    """The state of a session, and when it was set."""

    session_id: str
    state: bytes | None
    set_at: float

    def __repr__(self) -> str:
        return f"SessionState({self.session_id!r})"


@dataclass(slots=True)
class FragmentChanged:
    """Changes of one fragment.

    Attributes:
        counter: the last sequence number that was given, without the index of the fragment.
        arrived_count: messages that were ever stored.
        stored: new messages. Encode them before the next call of the namespace.
        removed: the numbers of messages that are gone.
        seen: new ids of the duplicate window, with the times of their arrival.
    """

    address: FragmentAddress
    counter: int
    arrived_count: int
    stored: list[Entry] = field(default_factory=list)
    updated: list[EntryUpdate] = field(default_factory=list)
    removed: list[int] = field(default_factory=list)
    sessions: list[SessionState] = field(default_factory=list)
    seen: list[tuple[Identity, float]] = field(default_factory=list)


Change: TypeAlias = EntityDefined | EntityRemoved | RuleChanged | FragmentChanged


class Recorded(Protocol):
    """A fragment, as its log sees it."""

    counter: int
    arrived_count: int

    def state_of(self, session_id: str) -> SessionState: ...


class FragmentLog:
    """Notes what changes in one fragment.

    Args:
        fragment: that it belongs to.
        address: of the fragment.
        marked: to which the log adds itself at its first change.
        on_change: called then.
    """

    __slots__ = (
        "_fragment",
        "_marked",
        "_on_change",
        "_removed",
        "_seen",
        "_sessions",
        "_stored",
        "_updated",
        "address",
    )

    def __init__(
        self,
        fragment: Recorded,
        address: FragmentAddress,
        marked: dict[FragmentLog, None],
        on_change: Callable[[], None],
    ) -> None:
        self.address = address
        self._fragment = fragment
        self._marked = marked
        self._on_change = on_change
        self._clear()

    def _clear(self) -> None:
        self._stored: dict[int, Entry] = {}
        self._updated: dict[int, Entry] = {}
        self._removed: list[int] = []
        self._sessions: dict[str, None] = {}
        self._seen: list[tuple[Identity, float]] = []

    def mark(self) -> None:
        """Note any change, such as a new sequence number."""
        if self not in self._marked:
            self._marked[self] = None
            self._on_change()

    def store(self, entry: Entry) -> None:
        """Note a new message."""
        self.mark()
        self._stored[entry.number] = entry

    def update(self, entry: Entry) -> None:
        """Note that a message has another delivery count, state or properties."""
        self.mark()
        if entry.number not in self._stored:
            self._updated[entry.number] = entry

    def remove(self, number: int) -> None:
        """Note that a message is gone."""
        self.mark()
        if self._stored.pop(number, None) is None:
            self._updated.pop(number, None)
            self._removed.append(number)

    def set_state(self, session_id: str) -> None:
        """Note that the state of a session was set."""
        self.mark()
        self._sessions[session_id] = None

    def remember(self, identity: Identity, at: float) -> None:
        """Note a new id in the duplicate window."""
        self.mark()
        self._seen.append((identity, at))

    def take(self) -> FragmentChanged:
        """Return the changes since the last call."""
        fragment = self._fragment
        changed = FragmentChanged(
            self.address,
            fragment.counter,
            fragment.arrived_count,
            list(self._stored.values()),
            [
                EntryUpdate(entry.number, entry.delivery_count, entry.state, entry.properties)
                for entry in self._updated.values()
            ],
            self._removed,
            [fragment.state_of(session_id) for session_id in self._sessions],
            self._seen,
        )
        self._clear()
        return changed


class Changes:
    """Notes what changes in one namespace.

    Args:
        on_change: called at the first change of each entity, rule or fragment after each `take`.
        find: the definition of the entity with a canonical path; None if there is none.
        find_rule: the same for the rule of a subscription, by its key.
    """

    def __init__(
        self,
        on_change: Callable[[], None],
        find: Callable[[str], EntityDefined | None],
        find_rule: Callable[[str, str], RuleProperties | None],
    ) -> None:
        self._on_change = on_change
        self._find = find
        self._find_rule = find_rule
        self._removed: dict[str, None] = {}
        self._defined: dict[str, None] = {}
        self._rules: dict[tuple[str, str], None] = {}
        self._marked: dict[FragmentLog, None] = {}

    def __bool__(self) -> bool:
        """Whether anything has changed since the last `take`."""
        return bool(self._marked or self._defined or self._removed or self._rules)

    def log_of(self, fragment: Recorded, address: FragmentAddress) -> FragmentLog:
        """Return the log of a fragment."""
        return FragmentLog(fragment, address, self._marked, self._on_change)

    def define(self, path: str) -> None:
        """Note that an entity was created or updated; the path is canonical."""
        self._defined[path] = None
        self._on_change()

    def remove(self, path: str, logs: list[FragmentLog]) -> None:
        """Note that an entity was deleted, with the logs of its fragments; the path is canonical."""
        self._defined.pop(path, None)
        for log in logs:
            self._marked.pop(log, None)
        self._removed[path] = None
        self._on_change()

    def change_rule(self, path: str, key: str) -> None:
        """Note that a rule of the subscription with a canonical path was created, replaced or deleted."""
        self._rules.pop((path, key), None)  # a replaced rule moves to the end
        self._rules[path, key] = None
        self._on_change()

    def take(self) -> list[Change]:
        """Return the changes since the last call, in an order in which they can be applied."""
        found: list[Change] = [EntityRemoved(path) for path in self._removed]
        found += [defined for path in self._defined if (defined := self._find(path)) is not None]
        found += [RuleChanged(path, key, self._find_rule(path, key)) for path, key in self._rules]
        found += [log.take() for log in self._marked]
        for noted in (self._removed, self._defined, self._rules, self._marked):
            noted.clear()
        return found
