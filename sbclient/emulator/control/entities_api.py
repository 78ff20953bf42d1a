"""The requests of the control API about entities. JSON over HTTP.

    GET    /$control/entities?entity=orders     its kind, its names and its settings
    POST   /$control/entities                   {"kind": "queue", "names": ["orders"], "settings": {...}}: create it
    PUT    /$control/entities?entity=orders     {"settings": {"max_delivery_count": "5"}}: change some settings
    DELETE /$control/entities?entity=orders     delete it with its messages, subscriptions and rules

`&rule=` selects a rule of a subscription. Settings are text, in the form of `sbclient admin --set`. Faults affect
changes, as they affect any client.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final, TypeAlias, TypeVar

from sbclient.broker.directory import path_of
from sbclient.broker.faults import Call, Operation
from sbclient.emulator.context import NamespaceContext
from sbclient.emulator.net.http_messages import Request, json_object
from sbclient.entities import FIXED, EntityAddress, EntityKind, EntityProperties, kind_of
from sbclient.errors import InvalidOperationError, MessagingEntityNotFoundError
from sbclient.formats.entity_settings import described, settings_text, with_settings

Facts: TypeAlias = dict[str, Any]
T = TypeVar("T")

TIMEOUT_S: Final = 5.0
"""Shorter than that of an application, because a user of the page waits for the answer."""


class EntitiesApi:
    """The entities of one namespace. Each method answers one request with a JSON value."""

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
        path, rule_name = request.query.get("entity"), request.query.get("rule")
        if not path:
            raise InvalidOperationError("the request names no entity: add ?entity= with its path")
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
