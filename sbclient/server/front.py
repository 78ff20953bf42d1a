"""Who answers an HTTP request: health, the control API, or the management API.

`GET /health` is about the emulator unless it says an api-version, as management clients do: then it is about the queue
or topic of that name.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Final

from sbclient.server.context import NamespaceContext
from sbclient.server.health import health_of
from sbclient.server.http_messages import JSON, Request, Response

if TYPE_CHECKING:
    from sbclient.server.control_api import ControlApi
    from sbclient.server.management_api import ManagementApi

CONTROL: Final = "$control"
HEALTH: Final = "health"


class Front:
    """Answers the HTTP requests of one port.

    Args:
        context: the namespace that the port serves.
        reset: makes that namespace what it was at the start.
        beside: the fronts of the namespaces that are told of together, that of `context` among them, by name: of all
            of them the health is told, and the control API of each is reached by `?namespace=`.
    """

    def __init__(
        self,
        context: NamespaceContext,
        reset: Callable[[], None],
        beside: Mapping[str, Front] | None = None,
    ) -> None:
        self._context = context
        self._reset = reset
        self._fronts = beside or {context.name: self}

    # The two interfaces are loaded when somebody first asks for them: who only wants AMQP does not wait for them.

    @cached_property
    def _control(self) -> ControlApi:
        from sbclient.server.control_api import ControlApi

        return ControlApi(self._context, self._reset)

    @cached_property
    def _management(self) -> ManagementApi:
        from sbclient.server.management_api import ManagementApi

        return ManagementApi(self._context)

    async def answer(self, request: Request) -> Response:
        """Answer one request.

        Raises:
            NoResponse: the namespace does not answer.
        """
        first = request.segments[0].casefold() if request.segments else ""
        if first == HEALTH and len(request.segments) == 1 and "api-version" not in request.query:
            if request.method in ("GET", "HEAD"):
                return await self._health()
        elif first == CONTROL:
            return await self._answer_control(request)
        return await self._management.answer(request)

    async def _answer_control(self, request: Request) -> Response:
        name = request.query.get("namespace", self._context.name)
        front = self._fronts.get(name)
        if front is None:
            told = f"there is no namespace {name[:64]!r} here: name one of {', '.join(self._fronts)}"
            return Response(404, json.dumps({"error": told}).encode(), JSON)
        return await front._control.answer(request)

    async def _health(self) -> Response:
        found = {name: await health_of(front._context.host) for name, front in self._fronts.items()}
        is_healthy = not any(found.values())
        said = {
            "status": "healthy" if is_healthy else "unhealthy",
            "namespaces": {name: wrong or "healthy" for name, wrong in found.items()},
        }
        return Response(200 if is_healthy else 503, json.dumps(said).encode(), JSON)
