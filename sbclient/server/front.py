"""Who answers an HTTP request: health, the control API, or the management API.

`GET /health` is about the emulator unless it says an api-version, as management clients do: then it is about the queue
or topic of that name.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
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
        watched: the namespaces whose health is told; that one alone if there are none.
    """

    def __init__(
        self,
        context: NamespaceContext,
        reset: Callable[[], None],
        watched: Sequence[NamespaceContext] = (),
    ) -> None:
        self._context = context
        self._reset = reset
        self._watched = list(watched) or [context]

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
            return await self._control.answer(request)
        return await self._management.answer(request)

    async def _health(self) -> Response:
        found = {context.name: await health_of(context.host) for context in self._watched}
        is_healthy = not any(found.values())
        said = {
            "status": "healthy" if is_healthy else "unhealthy",
            "namespaces": {name: wrong or "healthy" for name, wrong in found.items()},
        }
        return Response(200 if is_healthy else 503, json.dumps(said).encode(), JSON)
