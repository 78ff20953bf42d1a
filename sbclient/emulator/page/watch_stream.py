"""The events for one client that watches: everything at first, then the changes, as server-sent events.

    event: snapshot
    data: {"at": 1700000000.0, "is_whole": true, "namespaces": [{..., "entities": [...], "removed": []}],
           "pairs": [...], "detail": {...}, "events": [...]}

The first event also has the histories; the client continues them, and computes all rates. A slow client does not delay
the others: it gets the changes of a longer time in one event.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, TypeAlias

from sbclient.broker.directory import Entity
from sbclient.emulator.control.api import ControlApi
from sbclient.emulator.events import CONNECTION, Subscription
from sbclient.emulator.page.namespace_watcher import NO_SNAPSHOT, NamespaceSnapshot, NamespaceWatcher, Snapshot
from sbclient.emulator.page.overview import detail_of

Facts: TypeAlias = dict[str, Any]

MAX_EVENTS: Final = 200
"""Events of the namespaces in one message; of more, the newest."""

_NOTHING: Final = NamespaceSnapshot()


class WatchStream:
    """The stream of one client.

    Args:
        watcher: shared by all streams.
        names: of the namespaces that the client may see.
        detail: returns the details of the entity that the client has chosen; None if there is none.
        events: the last events of all namespaces before this stream, each with its namespace, oldest first.
        subscriptions: to the events of each namespace from now on; closed with this stream.
        ended: called at the end of the stream.
        ends_at: when the stream ends, in seconds since 1970; infinity = never.
    """

    def __init__(
        self,
        watcher: NamespaceWatcher,
        names: Collection[str],
        *,
        detail: Callable[[], Facts | None],
        events: Sequence[Facts],
        subscriptions: Mapping[str, Subscription],
        ended: Callable[[], None],
        ends_at: float = math.inf,
    ) -> None:
        self._watcher = watcher
        self._names = names
        self._detail = detail
        self._subscriptions = subscriptions
        self._ended = ended
        self._ends_at = ends_at
        self._events = events
        self._last = NO_SNAPSHOT
        self._last_detail: Facts | None = None

    def __aiter__(self) -> WatchStream:
        return self

    async def __anext__(self) -> bytes:
        snapshot = await self._watcher.next(self._last.number)
        if snapshot.at >= self._ends_at:
            raise StopAsyncIteration
        changes = json.dumps(self._changes(snapshot), separators=(",", ":"), default=str)
        self._last = snapshot
        return f"event: snapshot\ndata: {changes}\n\n".encode()

    async def aclose(self) -> None:
        """End the stream."""
        for subscription in self._subscriptions.values():
            subscription.close()
        self._ended()

    def _changes(self, snapshot: Snapshot) -> Facts:
        changes: Facts = {"at": snapshot.at, "is_whole": not self._last.number}
        namespaces = [self._namespace(name, snapshot.namespaces[name]) for name in self._names]
        changes["namespaces"] = [each for each in namespaces if each]
        pairs = pairs_of(snapshot, self._names)
        if pairs != pairs_of(self._last, self._names):
            changes["pairs"] = pairs
        if snapshot.story != self._last.story:
            changes["story"] = snapshot.story
        if snapshot.gaps != self._last.gaps:
            changes["gaps"] = snapshot.gaps
        detail = self._detail()
        if detail != self._last_detail:
            changes["detail"] = detail
            if detail is not None and self._last_detail is None:
                history = snapshot.namespaces[detail["namespace"]].histories.get(detail["path"])
                changes["detail_history"] = [] if history is None else list(history.points)
            self._last_detail = detail
        events = [*self._events] + [
            {**event, "namespace": name}
            for name, subscription in self._subscriptions.items()
            for event in subscription.take_all()
            if not event["event"].startswith(CONNECTION)
        ]
        self._events = ()
        if events:
            changes["events"] = events[-MAX_EVENTS:]
        return changes

    def _namespace(self, name: str, snapshot: NamespaceSnapshot) -> Facts:
        sent = self._last.namespaces.get(name, _NOTHING)
        changed = [row for path, row in snapshot.rows.items() if sent.rows.get(path) is not row]
        removed = [path for path in sent.rows if path not in snapshot.rows]
        if not changed and not removed and sent.facts is snapshot.facts:
            return {}
        history = {} if self._last.number else {"history": list(snapshot.history.points)}
        return {**snapshot.facts, **history, "entities": changed, "removed": removed}


def pairs_of(snapshot: Snapshot, names: Collection[str]) -> Sequence[Facts]:
    """The pairs of which the client may see all namespaces that the emulator serves."""
    return [
        pair
        for pair in snapshot.pairs
        if pair["secondary"] in names and (pair["primary"] in names or not pair["is_primary_here"])
    ]


def detail_in(control: ControlApi, path: str) -> Facts | None:
    """The details of one entity; None if it does not exist."""
    entity: Entity | None = control.context.host.namespace.directory.get(path)
    if entity is None:
        return None
    return {"namespace": control.context.name, **detail_of(entity, control.context.active_faults())}
