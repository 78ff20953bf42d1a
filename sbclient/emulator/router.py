"""Routes an HTTP request to the page, the health check, the control API, the messages or the management API.

`GET /` is the page and `GET /health` the health check. With an api-version or a token, which management clients send,
they are requests about the namespace, or about an entity named `health`.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Final

from sbclient.emulator.context import NamespaceContext
from sbclient.emulator.control.namespace_state import health_of
from sbclient.emulator.net.http_messages import TEXT, Request, Response, json_response
from sbclient.emulator.page.namespace_registry import NamespaceRegistry

if TYPE_CHECKING:
    from sbclient.emulator.management.api import ManagementApi
    from sbclient.emulator.messaging.api import MessagingApi

CONTROL: Final = "$control"
HEALTH: Final = "health"
MESSAGES: Final = "messages"
PAGE: Final = "$page"

_READING: Final = ("GET", "HEAD")


class Router:
    """Answers the HTTP requests of one port.

    Args:
        context: the namespace of the port.
        registry: all namespaces of the emulator, for the page, and for `?namespace=` of the control API.
        reports_all: whether the health check covers all namespaces instead of this one.
    """

    def __init__(self, context: NamespaceContext, registry: NamespaceRegistry, *, reports_all: bool = False) -> None:
        self._context = context
        self._registry = registry
        self._reports_all = reports_all

    @cached_property
    def _management(self) -> ManagementApi:
        from sbclient.emulator.management.api import ManagementApi  # imported late, for a fast start

        return ManagementApi(self._context)

    @cached_property
    def _messaging(self) -> MessagingApi:
        from sbclient.emulator.messaging.api import MessagingApi

        return MessagingApi(self._context)

    async def answer(self, request: Request) -> Response:
        """Answer one request.

        Raises:
            NoResponse: the namespace does not answer.
        """
        first = request.segments[0].casefold() if request.segments else ""
        if first == HEALTH and len(request.segments) == 1 and "api-version" not in request.query:
            if request.method in _READING:
                return await self._health()
        elif first in (CONTROL, PAGE) or _is_for_page(request):
            return await self._answer_control(request) if first == CONTROL else _page(request)
        if MESSAGES in map(str.casefold, request.segments):
            answered = await self._messaging.answer(request)
            if answered is not None:
                return answered
        return await self._management.answer(request)

    async def _answer_control(self, request: Request) -> Response:
        from sbclient.emulator.page.watch_api import RESOURCES

        if len(request.segments) > 1 and request.segments[1].casefold() in RESOURCES:
            return await self._registry.watch.answer(request)
        controls, name = self._registry.controls, request.query.get("namespace", self._context.name)
        if name not in controls:
            error = f"namespace {name[:64]!r} does not exist: use one of {', '.join(controls)}"
            return json_response(404, {"error": error})
        return await controls[name].answer(request)

    async def _health(self) -> Response:
        contexts = self._registry.contexts if self._reports_all else {self._context.name: self._context}
        found = {name: await health_of(context.host) for name, context in contexts.items()}
        is_healthy = not any(found.values())
        health = {
            "status": "healthy" if is_healthy else "unhealthy",
            "namespaces": {name: problem or "healthy" for name, problem in found.items()},
        }
        return json_response(200 if is_healthy else 503, health)


def _is_for_page(request: Request) -> bool:
    if request.segments or request.method not in _READING:
        return False
    return "api-version" not in request.query and "authorization" not in request.headers


def _page(request: Request) -> Response:
    from sbclient.emulator.page.files import INDEX, page_file

    if request.method not in _READING:
        return Response(405, b"the page is read-only: use GET", TEXT)
    return page_file(request.segments[1] if len(request.segments) == 2 else "" if request.segments else INDEX)
