"""What one who watches is sent: everything at first, then what has changed since, as server-sent events.

    event: snapshot
    data: {"at": 1700000000.0, "is_whole": true, "namespaces": [{..., "entities": [...], "removed": []}],
           "pairs": [...], "detail": {...}, "events": [...]}

Nothing waits for a slow watcher: whoever reads late is sent the changes of a longer time at once.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, TypeAlias

from sbclient.broker.directory import Entity
from sbclient.emulator.control.api import ControlApi
from sbclient.emulator.events import Subscription
from sbclient.emulator.page.namespace_watcher import NO_SNAPSHOT, NamespaceSnapshot, NamespaceWatcher, Snapshot
from sbclient.emulator.page.overview import detail_of

Facts: TypeAlias = dict[str, Any]

MAX_EVENTS: Final = 200
"""Events that one message tells of, at most; of more the newest."""

_NOTHING: Final = NamespaceSnapshot()


class WatchStream:
    """One who watches.

    Args:
        namespace_watcher: shared by all.
        names: of the namespaces that may be seen.
        detail: what is said of the one entity that is looked at, if one is.
        watchers: of the events of each namespace.
        ended: told when nobody watches any more.
        ends_at: when no more may be seen, in seconds since 1970; infinity = never.
    """

    def __init__(
        self,
        namespace_watcher: NamespaceWatcher,
        names: Collection[str],
        *,
        detail: Callable[[], Facts | None],
        watchers: Mapping[str, Subscription],
        ended: Callable[[], None],
        ends_at: float = math.inf,
    ) -> None:
        self._namespace_watcher = namespace_watcher
        self._names = names
        self._detail = detail
        self._watchers = watchers
        self._ended = ended
        self._ends_at = ends_at
        self._told: dict[str, NamespaceSnapshot] = {}
        self._last = NO_SNAPSHOT
        self._last_detail: Facts | None = None

    def __aiter__(self) -> WatchStream:
        return self

    async def __anext__(self) -> bytes:
        snapshot = await self._namespace_watcher.next(self._last.number)
        if snapshot.at >= self._ends_at:
            raise StopAsyncIteration
        said = json.dumps(self._changes(snapshot), separators=(",", ":"), default=str)
        self._last = snapshot
        return f"event: snapshot\ndata: {said}\n\n".encode()

    async def aclose(self) -> None:
        """Watch no more."""
        for watcher in self._watchers.values():
            watcher.close()
        self._ended()

    def _changes(self, snapshot: Snapshot) -> Facts:
        said: Facts = {"at": snapshot.at, "is_whole": not self._last.number}
        namespaces = [self._namespace(name, snapshot.namespaces[name]) for name in self._names]
        said["namespaces"] = [each for each in namespaces if each]
        pairs = pairs_of(snapshot, self._names)
        if pairs != pairs_of(self._last, self._names):
            said["pairs"] = pairs
        if snapshot.story != self._last.story:
            said["story"] = snapshot.story
        detail = self._detail()
        if detail != self._last_detail:
            said["detail"] = self._last_detail = detail
        events = [
            {**event, "namespace": name}
            for name, watcher in self._watchers.items()
            for event in watcher.take_all()
            if not event["event"].startswith("connection.")
        ]
        if events:
            said["events"] = events[-MAX_EVENTS:]
        return said

    def _namespace(self, name: str, snapshot: NamespaceSnapshot) -> Facts:
        told = self._told.get(name, _NOTHING)
        self._told[name] = snapshot
        changed = [row for path, row in snapshot.rows.items() if told.rows.get(path) is not row]
        removed = [path for path in told.rows if path not in snapshot.rows]
        if not changed and not removed and told.facts is snapshot.facts:
            return {}
        history = {"history": list(snapshot.history)} if told is _NOTHING else {}
        return {**snapshot.facts, **history, "entities": changed, "removed": removed}


def pairs_of(snapshot: Snapshot, names: Collection[str]) -> Sequence[Facts]:
    """The pairs of which both namespaces may be seen, or the one that is here."""
    return [
        pair
        for pair in snapshot.pairs
        if pair["secondary"] in names and (pair["primary"] in names or not pair["is_primary_here"])
    ]


def detail_in(control: ControlApi, path: str) -> Facts | None:
    """What is shown of one entity; None = it is not there."""
    entity: Entity | None = control.context.host.namespace.directory.get(path)
    if entity is None:
        return None
    return {"namespace": control.context.name, **detail_of(entity, control.context.active_faults())}
