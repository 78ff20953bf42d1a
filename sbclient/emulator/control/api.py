"""The control API, ours: look into a namespace, reset it, empty it, make it fail, and watch it. JSON over HTTP.

    GET    /$control/state[?entity=orders]      what each entity and fragment holds
    POST   /$control/reset                      as at the start: entities of the configuration, no messages, no faults
    POST   /$control/purge                      {"entity": "orders", "sequence_numbers": [3]} or less: remove messages
    *      /$control/messages, resubmit, sessions   see `messages_api`
    GET    /$control/faults                     the switches that are thrown
    PUT    /$control/faults                     [fault, ...] or {"seed": 7, "faults": [...]}: these, and no others
    POST   /$control/faults                     fault: one more
    DELETE /$control/faults[/id]                heal all, or one; without a body
    GET    /$control/events                     a stream of server-sent events, as long as the token lasts

Everything needs the Manage right on the whole namespace. Faults do not strike this API, but those of the
connection strike a namespace's own port. The HTTP port stands outside of them: there `?namespace=` says which is meant.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

from sbclient.broker.faults import Fault
from sbclient.emulator.context import NamespaceContext
from sbclient.emulator.control.fault_json import AnyFault, read_fault, write_fault
from sbclient.emulator.control.message_store import purge
from sbclient.emulator.control.messages_api import MessagesApi, numbers_of
from sbclient.emulator.control.namespace_state import state_of
from sbclient.emulator.events import EventStream
from sbclient.emulator.net.http_messages import JSON, Request, Response
from sbclient.emulator.sas import Grant
from sbclient.entities import AccessRights
from sbclient.errors import (
    InvalidOperationError,
    MessageNotFoundError,
    MessagingEntityNotFoundError,
    ServiceBusAuthenticationError,
    ServiceBusAuthorizationError,
    ServiceBusError,
)

_METHODS: Final = {
    "state": ("GET",),
    "reset": ("POST",),
    "purge": ("POST",),
    "faults": ("GET", "PUT", "POST", "DELETE"),
    "events": ("GET",),
    "messages": ("GET", "POST"),
    "resubmit": ("POST",),
    "sessions": ("GET",),
}
_WITH_NUMBER: Final = ("faults", "messages")
"""What may be followed by the number of one of them."""


class ControlApi:
    """The control API of one namespace.

    Args:
        context: the namespace.
        reset: makes it what it was at the start.
    """

    def __init__(self, context: NamespaceContext, reset: Callable[[], None]) -> None:
        self.context = context
        self._reset_namespace = reset
        self._messages = MessagesApi(context)
        self._ids: dict[int, AnyFault] = {}
        self._last_id = 0

    async def answer(self, request: Request) -> Response:
        """Carry out one request under `/$control`."""
        what = request.segments[1].casefold() if len(request.segments) > 1 else ""
        if what not in _METHODS or len(request.segments) > 2 + (what in _WITH_NUMBER):
            return _refusal(404, f"/{'/'.join(request.segments)[:300]} is nothing: ask for {', '.join(_METHODS)}")
        if request.method not in _METHODS[what]:
            return _refusal(405, f"{what} takes {' and '.join(_METHODS[what])}")
        try:
            grant = self.check_right(request)
            if what == "events":
                return self._events(grant)
            answers = {
                "state": self._state,
                "reset": self._reset,
                "purge": self._purge,
                "faults": self._faults,
                "messages": self._message,
                "resubmit": self._resubmit,
                "sessions": self._sessions,
            }
            return await answers[what](request)
        except (ServiceBusAuthenticationError, ServiceBusAuthorizationError) as error:
            return refusal(401, error)
        except (MessagingEntityNotFoundError, MessageNotFoundError) as error:
            return refusal(404, error)
        except ServiceBusError as error:
            return refusal(400, error)

    def check_right(self, request: Request) -> Grant:
        """What the token of a request allows, which is everything here.

        Raises:
            ServiceBusAuthenticationError, ServiceBusAuthorizationError: who asks may not do everything here.
        """
        token = request.headers.get("authorization", "")
        grant = self.context.authorizer.authenticate(token, self.context.clock.now())
        grant.check("", AccessRights.MANAGE)
        return grant

    # ------------------------------------------------------------------ state, reset, purge

    async def _state(self, request: Request) -> Response:
        path = request.query.get("entity")
        state = state_of(self.context.host.namespace, self.context.clock.now(), path)
        return _said(state | {"faults": self.written_faults(), "auth": str(self.context.authorizer.mode)})

    async def _reset(self, request: Request) -> Response:
        _read_object(request, ())
        self._reset_namespace()
        return _said({"reset": self.context.name})

    async def _purge(self, request: Request) -> Response:
        asked = _read_object(request, ("entity", "sequence_numbers"))
        path, numbers = asked.get("entity"), numbers_of(asked)
        if path is not None and not isinstance(path, str):
            raise InvalidOperationError(f"entity is {path!r}: give the path of a queue, topic or subscription")
        if path is None and numbers is not None:
            raise InvalidOperationError("sequence_numbers are those of an entity: name it as well")
        now = self.context.clock.now()
        count = purge(self.context.host.namespace, now, path, numbers)
        self.context.events.publish("namespace.purged", now, path=path, count=count)
        return _said({"purged": count})

    # ------------------------------------------------------------------ messages

    async def _message(self, request: Request) -> Response:
        number = request.segments[2] if len(request.segments) > 2 else None
        if request.method == "POST":
            if number is not None:
                return _refusal(405, "a message that was sent stays as it is: send another")
            return _said(await self._messages.sent(request.query, _read(request)))
        if number is not None:
            return _said(self._messages.shown(request.query, number))
        return _said(self._messages.listed(request.query))

    async def _resubmit(self, request: Request) -> Response:
        return _said(self._messages.resubmitted(_read_object(request, ("entity", "sequence_numbers"))))

    async def _sessions(self, request: Request) -> Response:
        return _said(self._messages.sessions(request.query))

    # ------------------------------------------------------------------ faults

    async def _faults(self, request: Request) -> Response:
        now = self.context.clock.now()
        number = request.segments[2] if len(request.segments) > 2 else None
        if number is not None and request.method != "DELETE":
            return _refusal(405, "one fault can only be healed: use DELETE")
        if request.method == "DELETE":
            _check_heals_what_is_named(request)
            return self._healed(number)
        if request.method in ("PUT", "POST"):
            said, seed = _read_faults(request)
            faults = [read_fault(each, now) for each in said]
            if request.method == "PUT":
                self._heal_all()
            if seed is not None:
                self.context.random.seed(seed)
            for fault in faults:
                self._throw(fault)
        return _said({"faults": self.written_faults()})

    def _throw(self, fault: AnyFault) -> None:
        now = self.context.clock.now()
        if isinstance(fault, Fault):
            self.context.host.inject(fault)
        else:
            self.context.wire_faults.inject(fault)
        self.context.events.publish("fault.thrown", now, **write_fault(fault, now))

    def _healed(self, number: str | None) -> Response:
        if number is None:
            self._heal_all()
            return _said({"faults": []})
        chosen = next((each["id"] for each in self.written_faults() if str(each["id"]) == number), None)
        if chosen is None:
            return _refusal(404, f"there is no fault {number[:32]!r}: it has healed by itself, or never was")
        fault = self._ids.pop(chosen)
        now = self.context.clock.now()
        if isinstance(fault, Fault):
            self.context.host.heal(fault)
        else:
            self.context.wire_faults.heal(fault)
        self.context.events.publish("fault.healed", now, **write_fault(fault, now))
        return _said({"faults": self.written_faults()})

    def _heal_all(self) -> None:
        self.context.host.heal()
        self.context.wire_faults.heal()
        self.context.events.publish("fault.all_healed", self.context.clock.now())

    def faults(self) -> list[AnyFault]:
        """The switches that are thrown, of the broker and of the wire."""
        now = self.context.clock.now()
        return [*self.context.host.namespace.faults.active(now), *self.context.wire_faults.active(now)]

    def written_faults(self) -> list[dict[str, Any]]:
        """The same as JSON, each with its number; those that were thrown in process get one as well."""
        active = self.faults()
        known = {id(fault): number for number, fault in self._ids.items()}
        self._ids = {number: fault for number, fault in self._ids.items() if any(fault is each for each in active)}
        for fault in active:
            if id(fault) not in known or known[id(fault)] not in self._ids:
                self._last_id += 1
                self._ids[self._last_id] = fault
        now = self.context.clock.now()
        return [{"id": number, **write_fault(fault, now)} for number, fault in self._ids.items()]

    # ------------------------------------------------------------------ events

    def _events(self, grant: Grant) -> Response:
        if not self.context.events.has_room:
            return _refusal(503, "too many watch already: end one of them")
        stream = EventStream(self.context.events.watch(), self.context.clock, grant.expires_at)
        return Response(200, b": watching\n\n", "text/event-stream", {"Cache-Control": "no-store"}, events=stream)


def _said(value: Any) -> Response:
    return Response(200, json.dumps(value, indent=1, default=str).encode(), JSON)


def refusal(status: int, error: ServiceBusError) -> Response:
    """An error in the broker's own words, with the name of its class."""
    said = {"error": error.message, "type": type(error).__name__}
    return Response(status, json.dumps(said).encode(), JSON)


def _refusal(status: int, text: str) -> Response:
    return Response(status, json.dumps({"error": text}).encode(), JSON)


def _read(request: Request) -> Any:
    try:
        return json.loads(request.body) if request.body.strip() else None
    except (ValueError, RecursionError):  # it would show the body, which may be of messages
        raise InvalidOperationError("the body is no JSON: send an object") from None


def _read_object(request: Request, names: tuple[str, ...]) -> dict[str, Any]:
    said = _read(request)
    if said is None:
        return {}
    if not isinstance(said, dict) or any(name not in names for name in said):
        allowed = f"an object with {' and '.join(names)} or nothing" if names else "nothing"
        raise InvalidOperationError(f"the body says something else than is expected: send {allowed}")
    return said


def _check_heals_what_is_named(request: Request) -> None:
    """
    Raises:
        InvalidOperationError: one fault was meant perhaps, and not named where it is read: all would be healed.
    """
    more = sorted(request.query.keys() - {"namespace"})
    if more or request.body.strip():
        what = f"has {more[0][:64]!r} in its address" if more else "has a body"
        raise InvalidOperationError(
            f"DELETE faults heals all, and {what}: to heal one write DELETE faults/<id>, with the id in GET faults"
        )


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
