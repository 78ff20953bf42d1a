"""The entities of a configuration, and their creation in a namespace: first all entities, then the forwarding."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from sbclient import clock
from sbclient.broker.directory import path_of
from sbclient.broker.faults import Call, Operation
from sbclient.emulator.config.located_json import ConfigError, Located
from sbclient.entities import (
    DEFAULT_RULE_NAME,
    AuthorizationRule,
    EntityAddress,
    EntityKind,
    EntityProperties,
    RuleProperties,
    TopicProperties,
)
from sbclient.errors import ServiceBusError
from sbclient.hosting.host import BrokerHost

_SUB_CODE = re.compile(r"SubCode=\d{5}\. *")


@dataclass(frozen=True, slots=True)
class EntityConfig:
    """One entity, and its place in the file.

    Attributes:
        replaces_default: of a subscription: the file has its rules, which replace the default rule.
    """

    address: EntityAddress
    properties: EntityProperties
    place: Located
    replaces_default: bool = False


@dataclass(slots=True)
class NamespaceConfig:
    """One namespace.

    Attributes:
        port: None = not given, 0 = any free one.
        more_ports: further ports, for clients that know a host name only and use several ports there.
        rules: keys of the namespace; one with the name of the root key replaces it.
        entities: in an order in which they can be created.
    """

    name: str
    port: int | None = None
    more_ports: tuple[int, ...] = ()
    rules: list[AuthorizationRule] = field(default_factory=list)
    entities: list[EntityConfig] = field(default_factory=list)


def make_entities(config: NamespaceConfig, host: BrokerHost) -> None:
    """Create the entities of a configuration that do not exist, with their rules. Those that exist stay as they are.

    Raises:
        ConfigError: the namespace rejects an entity; the text names its line and path.
    """
    call = Call(Operation.MANAGE, clock.now())
    directory = host.namespace.directory
    missing = [entity for entity in config.entities if directory.get(path_of(entity.address)) is None]
    for entity in missing:
        _create(entity, host, call)
        if entity.replaces_default:
            default = EntityAddress(EntityKind.RULE, (*entity.address.names, DEFAULT_RULE_NAME))
            host.namespace.management.delete(call, default)
    for entity in missing:
        _set_forwarding(entity, host, call)


def _create(entity: EntityConfig, host: BrokerHost, call: Call) -> None:
    properties = entity.properties
    if not isinstance(properties, RuleProperties | TopicProperties):
        properties = replace(properties, forward_to=None, forward_dead_lettered_messages_to=None)
    try:
        host.namespace.management.create(call, entity.address, properties)
    except ServiceBusError as error:
        raise _refused(entity, error) from error


def _set_forwarding(entity: EntityConfig, host: BrokerHost, call: Call) -> None:
    properties = entity.properties
    if isinstance(properties, RuleProperties | TopicProperties):
        return
    if properties.forward_to is None and properties.forward_dead_lettered_messages_to is None:
        return
    try:
        host.namespace.management.update(call, entity.address, properties)
    except ServiceBusError as error:
        raise _refused(entity, error) from error


def without_sub_code(error: ServiceBusError) -> str:
    """The text of an error without its sub-code."""
    return _SUB_CODE.sub("", error.message)


def _refused(entity: EntityConfig, error: ServiceBusError) -> ConfigError:
    return entity.place.error(f"cannot be created: {without_sub_code(error)}")
