"""The requests of the control API about all namespaces of an emulator.

A client sees the namespaces on which it has the Manage right, until its token expires. The entity in the query is shown
in detail.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from sbclient.emulator.control.api import ControlApi, error_response
from sbclient.emulator.net.http_messages import Request, Response, json_response
from sbclient.emulator.page.namespace_watcher import NamespaceWatcher
from sbclient.emulator.page.watch_stream import WatchStream, detail_in, pairs_of
from sbclient.emulator.sas import Grant
from sbclient.errors import ServiceBusAuthenticationError, ServiceBusAuthorizationError

MAX_VIEWERS: Final = 20
RESOURCES: Final = {
    "overview": "counts of all namespaces, entities and pairs",
    "watch": "the same as server-sent events: a snapshot, then changes; `?namespace=&entity=` adds the fragments of "
    "one entity",
}
"""The resources that belong to no single namespace, and what they show. They are read-only."""


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
