"""The control API: shows and changes a namespace as no client can. JSON over HTTP.

Every request needs the Manage right on the whole namespace. Faults of the broker do not affect this API. Faults of
connections affect it on the port of the namespace but not on the HTTP port, where `?namespace=` selects the namespace.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from sbclient import clock
from sbclient.broker.directory import path_of
from sbclient.broker.faults import Call, Operation
from sbclient.emulator.context import AnyFault, NamespaceContext
from sbclient.emulator.control import changes
from sbclient.emulator.control.fault_json import read_fault, write_fault
from sbclient.emulator.control.messages_api import TIMEOUT_S, MessagesApi, entity_of, numbers_of
from sbclient.emulator.control.namespace_state import state_of
from sbclient.emulator.events import EventStream
from sbclient.emulator.net.http_messages import Request, Response, json_body, json_object, json_response
from sbclient.emulator.sas import Grant
from sbclient.entities import FIXED, AccessRights, EntityAddress, EntityKind, EntityProperties, kind_of
from sbclient.errors import (
    InvalidOperationError,
    MessageNotFoundError,
    MessagingEntityAlreadyExistsError,
    MessagingEntityNotFoundError,
    ServiceBusAuthenticationError,
    ServiceBusAuthorizationError,
    ServiceBusError,
)
from sbclient.formats.entity_settings import described, settings_text, with_settings

Handler: TypeAlias = Callable[[Request], Awaitable[Any]]
"""Returns a `Response`, or a value for the JSON body of one."""


class Route(NamedTuple):
    """One kind of request.

    Attributes:
        handler: returns what carries it out.
        about: its effect, for the documents.
        query: its main parameter.
    """

    handler: Callable[[ControlApi], Handler]
    about: str
    query: str = ""


MAX_ERROR_LENGTH: Final = 2_000

ITEM: Final = "/<number>"
"""Ends the routes of a single fault or message."""


_SUB_CODE: Final = re.compile(r"^SubCode=[0-9]+\. ")


class ControlApi:
    """The control API of one namespace.

    Args:
        context: the namespace.
        reset: restores the state of the namespace at the start.
    """

    def __init__(self, context: NamespaceContext, reset: Callable[[], None]) -> None:
        self.context = context
        self._reset = reset
        self._ids: dict[int, AnyFault] = {}
        self._last_id = 0
        self.messages, self.entities = MessagesApi(context), EntitiesApi(context)

    async def answer(self, request: Request) -> Response:
        """Carry out one request under `/$control`."""
        name = request.segments[1].casefold() if len(request.segments) > 1 else ""
        route = ROUTES.get(name + ITEM * (len(request.segments) == 3))
        if route is None or len(request.segments) > 3:
            path = "/".join(request.segments)[:300]
            return json_response(404, {"error": f"/{path} does not exist: use one of {', '.join(ROUTES)}"})
        found = route.get(request.method)
        if found is None:
            methods = " or ".join(route)
            return json_response(405, {"error": f"{name} does not support {request.method[:16]}: use {methods}"})
        try:
            self.check_right(request)
            answer = await found.handler(self)(request)
        except (ServiceBusAuthenticationError, ServiceBusAuthorizationError) as error:
            return error_response(401, error)
        except (MessagingEntityNotFoundError, MessageNotFoundError) as error:
            return error_response(404, error)
        except MessagingEntityAlreadyExistsError as error:
            return error_response(409, error)
        except ServiceBusError as error:
            return error_response(400, error)
        return answer if isinstance(answer, Response) else json_response(200, answer)

    def check_right(self, request: Request) -> Grant:
        """The grant of the token of a request, which includes Manage on the namespace.

        Raises:
            ServiceBusAuthenticationError, ServiceBusAuthorizationError: the token does not grant that.
        """
        token = request.headers.get("authorization", "")
        grant = self.context.authorizer.authenticate(token, clock.now())
        grant.check("", AccessRights.MANAGE)
        return grant

    # ------------------------------------------------------------------ state, reset, purge

    async def state(self, request: Request) -> Any:
        path = request.query.get("entity")
        state = state_of(self.context.host.namespace, clock.now(), path)
        return state | {"faults": self.numbered_faults(), "auth": str(self.context.authorizer.mode)}

    async def reset(self, request: Request) -> Any:
        json_object(request)
        self._reset()
        return {"reset": self.context.name}

    async def purge(self, request: Request) -> Any:
        body = json_object(request, "entity", "sequence_numbers")
        path, numbers = body.get("entity"), numbers_of(body)
        if path is not None and not isinstance(path, str):
            raise InvalidOperationError(f"entity is {path!r}: give the path of a queue, topic or subscription")
        if path is None and numbers is not None:
            raise InvalidOperationError("sequence_numbers are given without an entity: give its path as well")
        return {"purged": changes.purge(self.context, path, numbers)}

    # ------------------------------------------------------------------ faults

    async def faults(self, _: Request) -> Any:
        return {"faults": self.numbered_faults()}

    async def inject(self, request: Request) -> Any:
        return self._inject_all(*self._faults_in(request))

    async def replace(self, request: Request) -> Any:
        faults, seed = self._faults_in(request)
        changes.heal(self.context)
        return self._inject_all(faults, seed)

    def _faults_in(self, request: Request) -> tuple[list[AnyFault], int | None]:
        described, seed = _read_faults(json_body(request))
        now = clock.now()
        return [read_fault(each, now) for each in described], seed

    def _inject_all(self, faults: list[AnyFault], seed: int | None) -> Any:
        if seed is not None:
            self.context.random.seed(seed)
        for fault in faults:
            changes.inject(self.context, fault)
        return {"faults": self.numbered_faults(faults)}

    async def heal_all(self, request: Request) -> Any:
        _check_heals_all(request)
        changes.heal(self.context)
        return {"faults": []}

    async def heal_one(self, request: Request) -> Any:
        _check_heals_all(request)
        self.numbered_faults()
        number = request.segments[2]
        chosen = next((each for each in self._ids if str(each) == number), None)
        if chosen is None:
            return json_response(404, {"error": f"fault {number[:32]!r} does not exist, or has healed already"})
        fault = self._ids.pop(chosen)
        changes.heal(self.context, fault)
        return {"faults": self.numbered_faults()}

    def numbered_faults(self, injected: Sequence[AnyFault] = ()) -> list[dict[str, Any]]:
        """The active faults as JSON, each with its number, including those that were injected in process.

        Args:
            injected: listed also if their count is used up already; `applied` says how often they have had an effect.
        """
        now = clock.now()
        active = self.context.active_faults()
        shown = {id(fault): fault for fault in (*active, *injected)}
        kept = shown.keys() | {id(fault) for fault in self.context.wire_faults.spent(now)}
        self._ids = {number: fault for number, fault in self._ids.items() if id(fault) in kept}
        numbered = {id(fault) for fault in self._ids.values()}
        for key, fault in shown.items():
            if key not in numbered:
                self._last_id += 1
                self._ids[self._last_id] = fault
        found = {number: fault for number, fault in self._ids.items() if id(fault) in shown}
        described = [{"id": number, **write_fault(fault, now)} for number, fault in found.items()]
        for fields, fault in zip(described, found.values(), strict=True):
            if fault.applied and any(fault is each for each in injected):
                fields["applied"] = fault.applied
        return described

    # ------------------------------------------------------------------ events

    async def events(self, request: Request) -> Response:
        if not self.context.events.has_room:
            return json_response(503, {"error": "too many clients follow the events: disconnect one of them"})
        expires_at = self.check_right(request).expires_at
        stream = EventStream(self.context.events.subscribe(), expires_at)
        return Response(200, b": watching\n\n", "text/event-stream", {"Cache-Control": "no-store"}, events=stream)


def error_response(status: int, error: ServiceBusError) -> Response:
    """A response with the text of an error, without the sub-code of the management API, and its class name."""
    text = _SUB_CODE.sub("", error.message)
    if len(text) > MAX_ERROR_LENGTH:  # with a value of the request
        text = f"{text[: MAX_ERROR_LENGTH // 2]} ... {text[-MAX_ERROR_LENGTH // 2 :]}"
    return json_response(status, {"error": text, "type": type(error).__name__})


def _check_heals_all(request: Request) -> None:
    """
    Raises:
        InvalidOperationError: the request probably means one fault, but names it where it is not read.
    """
    more = sorted(request.query.keys() - {"namespace"})
    if more or request.body.strip():
        what = f"the parameter {more[0][:64]!r}" if more else "a body"
        raise InvalidOperationError(
            f"DELETE faults takes neither parameters nor a body, but has {what}: to heal one fault send "
            "DELETE faults/<id>, with the id from GET faults"
        )


def _read_faults(body: Any) -> tuple[list[Any], int | None]:
    """The descriptions of faults in the body of a request, and the seed if it has one."""
    seed = None
    if isinstance(body, dict) and ("faults" in body or "seed" in body):
        unknown = [name for name in body if name not in ("faults", "seed")]
        if unknown:
            raise InvalidOperationError(f"the body has {unknown[0][:64]!r}: send seed and faults, or a list of faults")
        body, seed = body.get("faults", []), body.get("seed")
        if seed is not None and (not isinstance(seed, int) or isinstance(seed, bool)):
            raise InvalidOperationError(f"seed is {seed!r}: give a whole number")
    return body if isinstance(body, list) else [body], seed


Facts: TypeAlias = dict[str, Any]
T = TypeVar("T")


class EntitiesApi:
    """The entities of one namespace. Each method answers one request with a JSON value.

    Settings are text, in the form of `sbclient admin --set`. Faults affect changes, as they affect any client.
    """

    def __init__(self, context: NamespaceContext) -> None:
        self._context = context
        self._management = context.host.namespace.management

    async def show(self, request: Request) -> Facts:
        """The settings of an entity."""
        address, properties = self._found(request)
        return _facts(address, properties)

    async def create(self, request: Request) -> Facts:
        """Create an entity."""
        body = json_object(request, "kind", "names", "settings")
        address = _address_in(body)
        properties = described(address.kind, address.names[-1], _settings_in(body))
        made = await self._perform(address, lambda call: self._management.create(call, address, properties))
        self._context.publish_change("entity.created", address)
        return _facts(address, made)

    async def update(self, request: Request) -> Facts:
        """Change some settings of an entity; the others stay."""
        settings = _settings_in(json_object(request, "settings"))
        address, before = self._found(request)
        properties = with_settings(before, settings)
        made = await self._perform(address, lambda call: self._management.update(call, address, properties))
        self._context.publish_change("entity.updated", address)
        return _facts(address, made)

    async def delete(self, request: Request) -> Facts:
        """Delete an entity with its contents."""
        address, _ = self._found(request)
        await self._perform(address, lambda call: self._management.delete(call, address))
        self._context.publish_change("entity.deleted", address)
        return {"deleted": path_of(address), "kind": address.kind}

    async def _perform(self, address: EntityAddress, work: Callable[[Call], T]) -> T:
        return await self._context.host.perform(Operation.MANAGE, address.names[0], work, timeout_s=TIMEOUT_S)

    def _found(self, request: Request) -> tuple[EntityAddress, EntityProperties]:
        """The entity or rule that the query names.

        Raises:
            InvalidOperationError: the query names none.
            MessagingEntityNotFoundError: it does not exist.
        """
        path, rule_name = entity_of(request.query), request.query.get("rule")
        entity = self._context.host.namespace.directory.get(path)
        if entity is None:
            raise MessagingEntityNotFoundError(f"{path[:300]!r} does not exist: create it, or check its name")
        description = entity.description
        names = (description.name,) if entity.topic is None else (entity.topic.path, description.name)
        if rule_name is None:
            return EntityAddress(kind_of(description), names), description
        rules = () if entity.subscription is None else entity.subscription.rules.values()
        found = next((rule for rule in rules if rule.properties.name.casefold() == rule_name.casefold()), None)
        if found is None:
            raise MessagingEntityNotFoundError(f"{path[:300]!r} has no rule {rule_name[:64]!r}: create it")
        return EntityAddress(EntityKind.RULE, (*names, found.properties.name)), found.properties


def _facts(address: EntityAddress, properties: EntityProperties) -> Facts:
    settings = settings_text(properties)
    return {
        "kind": address.kind,
        "names": list(address.names),
        "path": path_of(address),
        "settings": settings,
        "fixed": [name for name in FIXED if name in settings],
    }


def _address_in(body: Facts) -> EntityAddress:
    kind, names = body.get("kind"), body.get("names")
    if kind not in tuple(EntityKind):
        raise InvalidOperationError(f"kind is {kind!r:.64}: give one of {', '.join(EntityKind)}")
    kind = EntityKind(kind)
    if not isinstance(names, list) or len(names) != kind.name_count or not all(isinstance(each, str) for each in names):
        raise InvalidOperationError(f"names is {names!r:.300}: a {kind} has a list of {kind.name_count}, each text")
    if not all(names):
        raise InvalidOperationError(f"the name of the {kind} is empty: give one")
    return EntityAddress(kind, tuple(names))


def _settings_in(body: Facts) -> list[tuple[str, str]]:
    settings = body.get("settings", {})
    if not isinstance(settings, dict):
        raise InvalidOperationError('settings is not an object: give one such as {"lock_duration": "30s"}')
    return [(name, value if isinstance(value, str) else json.dumps(value)) for name, value in settings.items()]


ROUTES: Final[Mapping[str, Mapping[str, Route]]] = {
    "messages": {
        "GET": Route(
            lambda api: api.messages.list,
            "messages, oldest first; `order=newest`, `fragment=`, `session=`, `text=`, `count=`, and `places=` with "
            "`next` of the previous page; a request searches for a text in 5,000 messages",
            "entity",
        ),
        "POST": Route(
            lambda api: api.messages.send, 'sends `{"body": ..., "session_id": ..., "copies": 3, ...}`', "entity"
        ),
    },
    "messages" + ITEM: {"GET": Route(lambda api: api.messages.show, "one message with its body", "entity")},
    "resubmit": {
        "POST": Route(
            lambda api: api.messages.resubmit,
            '`{"entity": "orders/$DeadLetterQueue", "sequence_numbers": [1]}`, all without numbers',
        )
    },
    "purge": {
        "POST": Route(
            lambda api: api.purge,
            '`{"entity": "orders", "sequence_numbers": [1]}`, all without numbers, everything without an entity',
        )
    },
    "entities": {
        "GET": Route(
            lambda api: api.entities.show,
            "kind, names and settings of an entity; `&rule=` for a rule of a subscription",
            "entity",
        ),
        "POST": Route(
            lambda api: api.entities.create,
            'creates `{"kind": "queue", "names": ["orders"], "settings": {"lock_duration": "30s"}}`; settings as for '
            "`sbclient admin --set`",
        ),
        "PUT": Route(
            lambda api: api.entities.update,
            "changes the `settings` that it names; an empty text removes `forward_to` and the like",
            "entity",
        ),
        "DELETE": Route(
            lambda api: api.entities.delete, "deletes it with its messages, subscriptions and rules", "entity"
        ),
    },
    "sessions": {
        "GET": Route(lambda api: api.messages.sessions, "sessions with holder and state size; `prefix=`", "entity")
    },
    "faults": {
        "GET": Route(lambda api: api.faults, "active faults with their `id`"),
        "POST": Route(
            lambda api: api.inject,
            "adds one, which is in the answer even if its count is used up, with `applied`, the number of its effects",
        ),
        "PUT": Route(
            lambda api: api.replace, 'replaces all by a list; `{"seed": 7, "faults": [...]}` also sets the seed'
        ),
        "DELETE": Route(lambda api: api.heal_all, "ends all; no body allowed"),
    },
    "faults" + ITEM: {"DELETE": Route(lambda api: api.heal_one, "ends one; no body allowed")},
    "state": {"GET": Route(lambda api: api.state, "the contents of all fragments, or of those of one `entity=`")},
    "reset": {"POST": Route(lambda api: api.reset, "restores the start: configured entities, no messages, no faults")},
    "events": {"GET": Route(lambda api: api.events, "server-sent events, until the token expires")},
}
"""All requests, by resource and method."""
