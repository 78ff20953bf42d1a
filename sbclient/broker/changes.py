"""The names of what has changed in a namespace since it was last stored.

Rules:

1. Only names are noted. The store reads the present state, so several changes of one thing become one.
2. All changes of one request are noted when it returns, so that a transaction is stored as a whole.
3. Locks, faults, pings and the time of the last access are not noted.
4. A change is noted before it is made: if the store raises, nothing has changed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from sbclient.broker.deduplication import Identity


class FragmentAddress(NamedTuple):
    """A fragment: the path of its entity, the name of the sub-queue (empty for the entity itself), and its index."""

    path: str
    sub_queue: str
    fragment_index: int


class FragmentLog:
    """Notes what changes in one fragment.

    Args:
        changes: to which the log adds itself at its first change.
        address: of the fragment.

    Attributes:
        numbers: of messages that were stored, changed or removed.
        sessions: the ids of sessions whose state was set.
        seen: new ids of the duplicate window, with the times of their arrival.
    """

    __slots__ = ("_changes", "address", "numbers", "seen", "sessions")

    def __init__(self, changes: Changes, address: FragmentAddress) -> None:
        self._changes = changes
        self.address = address
        self.clear()

    def clear(self) -> None:
        self.numbers: dict[int, None] = {}
        self.sessions: dict[str, None] = {}
        self.seen: list[tuple[Identity, float]] = []

    def mark(self) -> None:
        """Note any change, such as a new sequence number."""
        fragments = self._changes.fragments
        if self not in fragments:
            self._changes.note()
            fragments[self] = None

    def change(self, number: int) -> None:
        """Note that a message was stored, changed or removed."""
        self.mark()
        self.numbers[number] = None

    def set_state(self, session_id: str) -> None:
        """Note that the state of a session was set."""
        self.mark()
        self.sessions[session_id] = None

    def remember(self, identity: Identity, at: float) -> None:
        """Note a new id in the duplicate window."""
        self.mark()
        self.seen.append((identity, at))

    def drop(self) -> None:
        """Forget the changes, because the entity is deleted."""
        self._changes.fragments.pop(self, None)


class Changes:
    """Notes what changes in one namespace.

    Args:
        on_change: called before the first change, and before the first one after each `clear`.

    Attributes:
        removed, defined: the canonical paths of entities that were deleted, and of those created or updated since.
        rules: the canonical paths of subscriptions with the keys of rules that were created, replaced or deleted.
        fragments: the logs of fragments with changes.
    """

    def __init__(self, on_change: Callable[[], None]) -> None:
        self._on_change = on_change
        self._is_noted = False
        self.removed: dict[str, None] = {}
        self.defined: dict[str, None] = {}
        self.rules: dict[tuple[str, str], None] = {}
        self.fragments: dict[FragmentLog, None] = {}

    def note(self) -> None:
        """Note that something is about to change. If it raises, the next change calls it again."""
        if not self._is_noted:
            self._on_change()
            self._is_noted = True

    def define(self, path: str) -> None:
        """Note that an entity was created or updated; the path is canonical."""
        self.note()
        self.defined[path] = None

    def remove(self, path: str) -> None:
        """Note that an entity was deleted; the path is canonical."""
        self.note()
        self.defined.pop(path, None)
        self.removed[path] = None

    def change_rule(self, path: str, key: str) -> None:
        """Note that a rule of the subscription with a canonical path was created, replaced or deleted."""
        self.note()
        self.rules.pop((path, key), None)  # a replaced rule moves to the end
        self.rules[path, key] = None

    def clear(self) -> None:
        """Forget all changes, because they are stored."""
        self._is_noted = False
        for log in self.fragments:
            log.clear()
        for noted in (self.removed, self.defined, self.rules, self.fragments):
            noted.clear()
