"""The control API, ours: look into a namespace, reset it, empty it, make it fail, and watch it. JSON over HTTP.

    GET    /$control/state[?entity=orders]      what each entity and fragment holds
    POST   /$control/reset                      as at the start: entities of the configuration, no messages, no faults
    POST   /$control/purge                      {"entity": "orders"} or nothing: remove messages
    GET    /$control/faults                     the switches that are thrown
    PUT    /$control/faults                     [fault, ...] or {"seed": 7, "faults": [...]}: these, and no others
    POST   /$control/faults                     fault: one more
    DELETE /$control/faults[/id]                heal all, or one
    GET    /$control/events                     a stream of server-sent events

Everything needs the Manage right on the whole namespace. Faults do not strike this API, but those of the
connection strike a namespace's own port. The HTTP port stands outside of them: there `?namespace=` says which is meant.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

from sbclient.broker.faults import Fault
from sbclient.entities import AccessRights
from sbclient.errors import (
    InvalidOperationError,
    MessagingEntityNotFoundError,
    ServiceBusAuthenticationError,
    ServiceBusAuthorizationError,
    ServiceBusError,
)
from sbclient.server.context import NamespaceContext
from sbclient.server.event_feed import EventStream
from sbclient.server.fault_words import AnyFault, read_fault, write_fault
from sbclient.server.http_messages import JSON, Request, Response
from sbclient.server.namespace_state import purge, state_of

_METHODS: Final = {
    "state": ("GET",),
    "reset": ("POST",),
    "purge": ("POST",),
    "faults": ("GET", "PUT", "POST", "DELETE"),
    "events": ("GET",),
}


class ControlApi:
    """The control API of one namespace.

    Args:
        context: the namespace.
        reset: makes it what it was at the start.
    """

    def __init__(self, context: NamespaceContext, reset: Callable[[], None]) -> None:
        self._context = context
        self._reset_namespace = reset
        self._ids: dict[int, AnyFault] = {}
        self._last_id = 0

    async def answer(self, request: Request) -> Response:
        """Carry out one request under `/$control`."""
        what = request.segments[1].casefold() if len(request.segments) > 1 else ""
        if what not in _METHODS or len(request.segments) > (3 if what == "faults" else 2):
            return _refusal(404, f"/{'/'.join(request.segments)[:300]} is nothing: ask for {', '.join(_METHODS)}")
        if request.method not in _METHODS[what]:
            return _refusal(405, f"{what} takes {' and '.join(_METHODS[what])}")
        try:
            self._check_right(request)
            answers = {
                "state": self._state,
                "reset": self._reset,
                "purge": self._purge,
                "faults": self._faults,
                "events": self._events,
            }
            return await answers[what](request)
        except (ServiceBusAuthenticationError, ServiceBusAuthorizationError) as error:
            return _refusal(401, error.message)
        except MessagingEntityNotFoundError as error:
            return _refusal(404, error.message)
        except ServiceBusError as error:
            return _refusal(400, error.message)

    def _check_right(self, request: Request) -> None:
        token = request.headers.get("authorization", "")
        grant = self._context.authorizer.authenticate(token, self._context.clock.now())
        grant.check("", AccessRights.MANAGE)

    # ------------------------------------------------------------------ state, reset, purge

    async def _state(self, request: Request) -> Response:
        path = request.query.get("entity")
        state = state_of(self._context.host.namespace, self._context.clock.now(), path)
        return _said(state | {"faults": self._active(), "auth": str(self._context.authorizer.mode)})

    async def _reset(self, request: Request) -> Response:
        _read_object(request, ())
        self._reset_namespace()
        return _said({"reset": self._context.name})

    async def _purge(self, request: Request) -> Response:
        path = _read_object(request, ("entity",)).get("entity")
        if path is not None and not isinstance(path, str):
            raise InvalidOperationError(f"entity is {path!r}: give the path of a queue, topic or subscription")
        now = self._context.clock.now()
        count = purge(self._context.host.namespace, now, path)
        self._context.events.publish("namespace.purged", now, path=path, count=count)
        return _said({"purged": count})

    # ------------------------------------------------------------------ faults

    async def _faults(self, request: Request) -> Response:
        now = self._context.clock.now()
        number = request.segments[2] if len(request.segments) > 2 else None
        if number is not None and request.method != "DELETE":
            return _refusal(405, "one fault can only be healed: use DELETE")
        if request.method == "DELETE":
            return self._healed(number)
        if request.method in ("PUT", "POST"):
            said, seed = _read_faults(request)
            faults = [read_fault(each, now) for each in said]
            if request.method == "PUT":
                self._heal_all()
            if seed is not None:
                self._context.random.seed(seed)
            for fault in faults:
                self._throw(fault)
        return _said({"faults": self._active()})

    def _throw(self, fault: AnyFault) -> None:
        now = self._context.clock.now()
        if isinstance(fault, Fault):
            self._context.host.inject(fault)
        else:
            self._context.wire_faults.inject(fault)
        self._context.events.publish("fault.thrown", now, **write_fault(fault, now))

    def _healed(self, number: str | None) -> Response:
        if number is None:
            self._heal_all()
            return _said({"faults": []})
        chosen = next((each["id"] for each in self._active() if str(each["id"]) == number), None)
        if chosen is None:
            return _refusal(404, f"there is no fault {number[:32]!r}: it has healed by itself, or never was")
        fault = self._ids.pop(chosen)
        now = self._context.clock.now()
        if isinstance(fault, Fault):
            self._context.host.heal(fault)
        else:
            self._context.wire_faults.heal(fault)
        self._context.events.publish("fault.healed", now, **write_fault(fault, now))
        return _said({"faults": self._active()})

    def _heal_all(self) -> None:
        self._context.host.heal()
        self._context.wire_faults.heal()
        self._context.events.publish("fault.all_healed", self._context.clock.now())

    def _active(self) -> list[dict[str, Any]]:
        """The switches that are thrown, each with its number; those that were thrown in process get one as well."""
        now = self._context.clock.now()
        active: list[AnyFault] = [
            *self._context.host.namespace.faults.active(now),
            *self._context.wire_faults.active(now),
        ]
        known = {id(fault): number for number, fault in self._ids.items()}
        self._ids = {number: fault for number, fault in self._ids.items() if any(fault is each for each in active)}
        for fault in active:
            if id(fault) not in known or known[id(fault)] not in self._ids:
                self._last_id += 1
                self._ids[self._last_id] = fault
        return [{"id": number, **write_fault(fault, now)} for number, fault in self._ids.items()]

    # ------------------------------------------------------------------ events

    async def _events(self, request: Request) -> Response:
        if not self._context.events.has_room:
            return _refusal(503, "too many watch already: end one of them")
        stream = EventStream(self._context.events.watch(), self._context.clock)
        return Response(200, b": watching\n\n", "text/event-stream", {"Cache-Control": "no-store"}, events=stream)


def _said(value: Any) -> Response:
    return Response(200, json.dumps(value, indent=1, default=str).encode(), JSON)


def _refusal(status: int, text: str) -> Response:
    return Response(status, json.dumps({"error": text}).encode(), JSON)


def _read(request: Request) -> Any:
    try:
        return json.loads(request.body) if request.body.strip() else None
    except (ValueError, RecursionError) as error:
        raise InvalidOperationError("the body is no JSON: send an object") from error


def _read_object(request: Request, names: tuple[str, ...]) -> dict[str, Any]:
    said = _read(request)
    if said is None:
        return {}
    if not isinstance(said, dict) or any(name not in names for name in said):
        allowed = f"an object with {' and '.join(names)} or nothing" if names else "nothing"
        raise InvalidOperationError(f"the body says something else than is expected: send {allowed}")
    return said


def _read_faults(request: Request) -> tuple[list[Any], int | None]:
    said, seed = _read(request), None
    if isinstance(said, dict) and ("faults" in said or "seed" in said):
        unknown = [name for name in said if name not in ("faults", "seed")]
        if unknown:
            raise InvalidOperationError(f"the body has {unknown[0][:64]!r}: send seed and faults, or a list of faults")
        said, seed = said.get("faults", []), said.get("seed")
        if seed is not None and (not isinstance(seed, int) or isinstance(seed, bool)):
            raise InvalidOperationError(f"seed is {seed!r}: give a whole number")
    if isinstance(said, list):
        return said, seed
    return [said], seed
