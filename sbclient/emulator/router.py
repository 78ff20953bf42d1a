"""Who answers an HTTP request: the page, health, the control API, or the management API.

`GET /` is the page, and `GET /health` is about the emulator, unless they say an api-version or bring a token, as
management clients do: then they are about the namespace, and about the queue or topic of that name.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Final

from sbclient.emulator.context import NamespaceContext
from sbclient.emulator.control.health import health_of
from sbclient.emulator.net.http_messages import TEXT, Request, Response, json_response
from sbclient.emulator.page.namespace_registry import NamespaceRegistry

if TYPE_CHECKING:
    from sbclient.emulator.management.api import ManagementApi

CONTROL: Final = "$control"
HEALTH: Final = "health"
PAGE: Final = "$page"

_LOOKING: Final = ("GET", "HEAD")


class Router:
    """Answers the HTTP requests of one port.

    Args:
        context: the namespace that the port serves.
        registry: it and those that are served beside it: the page shows all of them, and the control API of each is
            reached by `?namespace=`.
        reports_all: whether the health is that of all of them, and not of this one alone.
    """

    def __init__(self, context: NamespaceContext, registry: NamespaceRegistry, *, reports_all: bool = False) -> None:
        self._context = context
        self._registry = registry
        self._tells_of_all = reports_all

    @cached_property
    def _management(self) -> ManagementApi:
        from sbclient.emulator.management.api import ManagementApi  # loaded when somebody first asks for it

        return ManagementApi(self._context)

    async def answer(self, request: Request) -> Response:
        """Answer one request.

        Raises:
            NoResponse: the namespace does not answer.
        """
        first = request.segments[0].casefold() if request.segments else ""
        if first == HEALTH and len(request.segments) == 1 and "api-version" not in request.query:
            if request.method in _LOOKING:
                return await self._health()
        elif first in (CONTROL, PAGE) or _is_for_page(request):
            from sbclient.emulator.page.browsers import reason_to_refuse

            reason = reason_to_refuse(request, self._registry.own_names)
            if reason is not None:
                return Response(403, reason.encode(), TEXT)
            return await self._answer_control(request) if first == CONTROL else _page(request)
        return await self._management.answer(request)

    async def _answer_control(self, request: Request) -> Response:
        from sbclient.emulator.page.watch_api import ABOUT_ALL

        if len(request.segments) > 1 and request.segments[1].casefold() in ABOUT_ALL:
            return await self._registry.watch.answer(request)
        controls, name = self._registry.controls, request.query.get("namespace", self._context.name)
        if name not in controls:
            error = f"namespace {name[:64]!r} does not exist: use one of {', '.join(controls)}"
            return json_response(404, {"error": error})
        return await controls[name].answer(request)

    async def _health(self) -> Response:
        contexts = self._registry.contexts if self._tells_of_all else {self._context.name: self._context}
        found = {name: await health_of(context.host) for name, context in contexts.items()}
        is_healthy = not any(found.values())
        said = {
            "status": "healthy" if is_healthy else "unhealthy",
            "namespaces": {name: wrong or "healthy" for name, wrong in found.items()},
        }
        return json_response(200 if is_healthy else 503, said)


def _is_for_page(request: Request) -> bool:
    if request.segments or request.method not in _LOOKING:
        return False
    return "api-version" not in request.query and "authorization" not in request.headers


def _page(request: Request) -> Response:
    from sbclient.emulator.page.files import INDEX, page_file

    if request.method not in _LOOKING:
        return Response(405, b"the page is only looked at: use GET", TEXT)
    return page_file(request.segments[1] if len(request.segments) == 2 else "" if request.segments else INDEX)
