"""The requests of the control API about all namespaces of an emulator, and the events for a client that watches them.

A client sees the namespaces on which it has the Manage right, until its token expires. The entity in the query is shown
in detail. One that watches gets everything at first, then the changes, as server-sent events:

    event: snapshot
    data: {"at": 1700000000.0, "is_whole": true, "namespaces": [{..., "entities": [...], "removed": []}],
           "pairs": [...], "detail": {...}, "events": [...]}

The first event also has the histories; the client continues them, and computes all rates. A slow client does not delay
the others: it gets the changes of a longer time in one event.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from sbclient.broker.directory import Entity
from sbclient.emulator.control.api import ControlApi, error_response
from sbclient.emulator.events import CONNECTION, DROPPED, Subscription
from sbclient.emulator.net.http_messages import Request, Response, json_response
from sbclient.emulator.page.namespace_watcher import NO_SNAPSHOT, NamespaceSnapshot, NamespaceWatcher, Snapshot
from sbclient.emulator.page.overview import detail_of
from sbclient.emulator.sas import Grant
from sbclient.errors import ServiceBusAuthenticationError, ServiceBusAuthorizationError

Facts: TypeAlias = dict[str, Any]

MAX_EVENTS: Final = 200
"""Events of the namespaces in one message; of more, the newest."""

MAX_VIEWERS: Final = 20
RESOURCES: Final = {
    "overview": "counts of all namespaces, entities and pairs",
    "watch": "the same as server-sent events: a snapshot, then changes; `?namespace=&entity=` adds the fragments of "
    "one entity",
}
"""The resources that belong to no single namespace, and what they show. They are read-only."""

_NOTHING: Final = NamespaceSnapshot()


class WatchApi:
    """The API for all namespaces.

    Args:
        controls: the control API of each namespace.
        watcher: takes the snapshots.
        about: returns facts about the emulator itself.
    """

    def __init__(
        self,
        controls: Mapping[str, ControlApi],
        watcher: NamespaceWatcher,
        about: Callable[[], Mapping[str, Any]] = dict,
    ) -> None:
        self._controls = controls
        self._about = about
        self._viewer_count = 0
        self.watcher = watcher

    async def answer(self, request: Request) -> Response:
        """Carry out one request for one of `RESOURCES`."""
        what = request.segments[1].casefold()
        if len(request.segments) > 2 or request.method != "GET":
            return json_response(405, {"error": f"{what} is read-only: use GET /$control/{what}"})
        grants: dict[str, Grant] = {}
        error: ServiceBusAuthenticationError | ServiceBusAuthorizationError | None = None
        for name, control in self._controls.items():
            try:
                grants[name] = control.check_right(request)
            except (ServiceBusAuthenticationError, ServiceBusAuthorizationError) as reason:
                error = reason
        if error is not None and not grants:
            return error_response(401, error)
        return await self._overview(list(grants)) if what == "overview" else self._watch(request, grants)

    async def _overview(self, names: list[str]) -> Response:
        snapshot = await self.watcher.next(0)
        overview = {
            "at": snapshot.at,
            "about": self._about(),
            "namespaces": [
                {**snapshot.namespaces[name].facts, "entities": list(snapshot.namespaces[name].rows.values())}
                for name in names
            ],
            "pairs": pairs_of(snapshot, names),
            "story": snapshot.story,
        }
        return json_response(200, overview)

    def _watch(self, request: Request, grants: Mapping[str, Grant]) -> Response:
        names = list(grants)
        has_room = all(self._controls[name].context.events.has_room for name in names)
        if self._viewer_count >= MAX_VIEWERS or not has_room:
            return json_response(503, {"error": "too many clients watch already: disconnect one of them"})
        self._viewer_count += 1
        name, path = request.query.get("namespace", names[0]), request.query.get("entity")
        control = self._controls[name] if name in names else None
        stream = WatchStream(
            self.watcher,
            names,
            detail=lambda: detail_in(control, path) if control is not None and path else None,
            events=self._recent_events(names),
            subscriptions={name: self._controls[name].context.events.subscribe() for name in names},
            ended=self._ended,
            ends_at=min(grant.expires_at for grant in grants.values()),
        )
        about = json.dumps(self._about(), default=str)
        headers = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
        return Response(200, f"event: about\ndata: {about}\n\n".encode(), "text/event-stream", headers, events=stream)

    def _recent_events(self, names: Iterable[str]) -> list[dict[str, Any]]:
        events = [
            {**event, "namespace": name} for name in names for event in self._controls[name].context.events.recent
        ]
        return sorted(events, key=lambda event: float(event["at"]))

    def _ended(self) -> None:
        self._viewer_count -= 1


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
            if not event["event"].startswith((CONNECTION, DROPPED))
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
