"""Reads the configuration of the emulator: the Config.json of Microsoft, with additions of our own.

Laws (source: the file's documented form, unless said otherwise):

1. Defaults are those of Microsoft's emulator: a time to live of an hour, three deliveries, a lock of a minute, a
   duplicate window of 20 s. The profile limits the values, not Microsoft's emulator.
2. The rules of a subscription replace the default rule, which accepts every message.
3. Field names are case-insensitive. An unknown field is an error, because it would have no effect.
4. Ours: several namespaces, each with a Port and AuthorizationRules; the settings of entities that are `InConfig.OURS`;
   the filter types True and False.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final

from sbclient.broker.descriptions import check_values, completed
from sbclient.broker.profile import Profile
from sbclient.broker.rule import Rule
from sbclient.emulator.config.entities import EntityConfig, NamespaceConfig, without_sub_code
from sbclient.emulator.config.located_json import Located, read_located
from sbclient.emulator.config.values import (
    choice_of,
    destination_of,
    duration_of,
    entries_of,
    fields_of,
    flag_of,
    key_of,
    name_of,
    required,
    scalar_of,
    text_of,
    whole_of,
)
from sbclient.emulator.management.atom_rules import CORRELATION_ELEMENTS
from sbclient.entities import (
    FORWARDING,
    PROPERTIES_OF,
    SETTINGS,
    AccessRights,
    AuthorizationRule,
    CorrelationRuleFilter,
    Description,
    EntityAddress,
    EntityKind,
    EntityStatus,
    FalseRuleFilter,
    InConfig,
    RuleFilter,
    RuleProperties,
    SqlRuleAction,
    SqlRuleFilter,
    TrueRuleFilter,
    element_name,
    settings_of,
)
from sbclient.errors import InvalidOperationError
from sbclient.rules.entity_path import canonical

_NAMESPACE_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,62}[A-Za-z0-9])?")


def read_config(text: str, source: str, profile: Profile | None) -> list[NamespaceConfig]:
    """The namespaces of a configuration.

    Args:
        source: the name of the file, for errors.
        profile: the limits for the values; None = those that all profiles have.

    Raises:
        ConfigError: the configuration is not valid; the text names file, line, path and the allowed values.
    """
    document = read_located(text, source)
    place = fields_of(document, "UserConfig", "$schema").get("userconfig")
    if place is None:
        raise document.error("has no UserConfig: put the Namespaces into one")
    config = fields_of(place, "Namespaces", "Logging")
    if "logging" in config:
        fields_of(config["logging"], "Type")
    namespaces = [_namespace(each, profile) for each in entries_of(config.get("namespaces"))]
    if not namespaces:
        raise place.error("has no Namespaces: add at least one")
    check_unique(
        [(namespace.name, each) for namespace, each in zip(namespaces, entries_of(config["namespaces"]), strict=True)]
    )
    return namespaces


# ---------------------------------------------------------------------- entities


def _namespace(place: Located, profile: Profile | None) -> NamespaceConfig:
    fields = fields_of(place, "Name", "Port", "AuthorizationRules", "Queues", "Topics")
    name = text_of(required(place, fields, "Name"))
    if _NAMESPACE_NAME.fullmatch(name) is None:
        raise fields["name"].error(f"is {name[:80]!r}: a namespace has letters, digits and hyphens, up to 64 of them")
    port = whole_of(fields["port"], 0, 65_535) if "port" in fields else None
    rules = _authorization_rules(fields["authorizationrules"]) if "authorizationrules" in fields else []
    found = NamespaceConfig(name, port, rules=rules)
    for each in entries_of(fields.get("queues")):
        found.entities.append(_entity(each, EntityKind.QUEUE, (), profile))
    for each in entries_of(fields.get("topics")):
        topic = _entity(each, EntityKind.TOPIC, (), profile)
        found.entities.append(topic)
        found.entities.extend(_subscriptions(each, topic, profile))
    check_unique([("/".join(entity.address.names), entity.place) for entity in found.entities])
    return found


def _entity(place: Located, kind: EntityKind, parents: tuple[str, ...], profile: Profile | None) -> EntityConfig:
    fields = fields_of(place, *_FIELDS_BESIDE[kind])
    name = name_of(required(place, fields, "Name"), kind)
    described = PROPERTIES_OF[kind]
    readers = {
        attribute: destination_of if attribute in FORWARDING else READERS[type_]
        for attribute, type_ in settings_of(kind).items()
        if attribute not in NOT_IN_CONFIG
    }
    defaults = {attribute: SETTINGS[attribute].config_default for attribute in readers}
    values = {attribute: value for attribute, value in defaults.items() if value is not None}
    if "properties" in fields:
        given = fields_of(fields["properties"], *map(element_name, readers))
        for attribute, read in readers.items():
            each = given.get(element_name(attribute).casefold())
            if each is not None:
                values[attribute] = read(each)
                _check_value(each, described(name, **{attribute: values[attribute]}), profile)
    return EntityConfig(EntityAddress(kind, (*parents, name)), described(name, **values), place)


def _subscriptions(place: Located, topic: EntityConfig, profile: Profile | None) -> list[EntityConfig]:
    found: list[EntityConfig] = []
    for each in entries_of(fields_of(place, *_FIELDS_BESIDE[EntityKind.TOPIC]).get("subscriptions")):
        subscription = _entity(each, EntityKind.SUBSCRIPTION, topic.address.names, profile)
        rules = entries_of(fields_of(each, *_FIELDS_BESIDE[EntityKind.SUBSCRIPTION]).get("rules"))
        found.append(replace(subscription, replaces_default=bool(rules)))
        found.extend(_rule(rule, subscription.address.names) for rule in rules)
    return found


def _rule(place: Located, parents: tuple[str, ...]) -> EntityConfig:
    fields = fields_of(place, "Name", "Properties")
    name = name_of(required(place, fields, "Name"), EntityKind.RULE)
    described = required(place, fields, "Properties")
    parts = fields_of(described, "FilterType", "CorrelationFilter", "SqlFilter", "Action")
    action = _sql(parts["action"]) if "action" in parts else None
    rule = RuleProperties(name, _filter(described, parts), None if action is None else SqlRuleAction(action))
    try:
        Rule(rule)
    except InvalidOperationError as error:
        raise described.error(f"cannot be used: {error.message}") from error
    return EntityConfig(EntityAddress(EntityKind.RULE, (*parents, name)), rule, place)


def _filter(place: Located, parts: Mapping[str, Located]) -> RuleFilter:
    kind = required(place, parts, "FilterType")
    if kind.value == "Correlation":
        fields = fields_of(required(place, parts, "CorrelationFilter"), *CORRELATION_ELEMENTS, "Properties")
        given = {
            attribute: text_of(fields[label.casefold()])
            for label, attribute in CORRELATION_ELEMENTS.items()
            if label.casefold() in fields
        }
        properties = {}
        if "properties" in fields:
            if not isinstance(fields["properties"].value, dict):
                raise fields["properties"].error("is not an object: give names and values")
            properties = {key: scalar_of(each) for key, each in fields["properties"].value.items()}
        if not given and not properties:
            raise place.error("has an empty CorrelationFilter: give at least one property")
        return CorrelationRuleFilter(**given, properties=properties or None)
    if kind.value == "Sql":
        return SqlRuleFilter(_sql(required(place, parts, "SqlFilter")))
    if kind.value in ("True", "False"):
        return TrueRuleFilter() if kind.value == "True" else FalseRuleFilter()
    raise kind.error(f"is {kind.plain()!r}: it is one of Correlation, Sql, True and False")


def _sql(place: Located) -> str:
    return text_of(required(place, fields_of(place, "SqlExpression"), "SqlExpression"))


def _check_value(place: Located, description: Description, profile: Profile | None) -> None:
    """Check a value by the rules of the broker, which owns the ranges."""
    try:
        if profile is None:
            check_values(description)
        else:
            completed(description, profile)
    except InvalidOperationError as error:
        raise place.error(f"is not allowed: {without_sub_code(error)}") from error


def check_unique(named: list[tuple[str, Located]]) -> None:
    seen: dict[str, Located] = {}
    for name, place in named:
        before = seen.setdefault(canonical(name), place)
        if before is not place:
            raise place.error(f"has the name {name!r} of {before.path} in line {before.line}: rename one")


def _authorization_rules(place: Located) -> list[AuthorizationRule]:
    rules = []
    for each in entries_of(place):
        fields = fields_of(each, "KeyName", "Rights", "PrimaryKey", "SecondaryKey")
        rules.append(
            AuthorizationRule(
                key_name=text_of(required(each, fields, "KeyName")),
                rights=[choice_of(right, AccessRights) for right in entries_of(required(each, fields, "Rights"))],
                primary_key=key_of(required(each, fields, "PrimaryKey")),
                secondary_key=key_of(fields["secondarykey"]) if "secondarykey" in fields else None,
            )
        )
    return rules


# ---------------------------------------------------------------------- the tables

READERS: Final[Mapping[type, Callable[[Located], Any]]] = {
    EntityStatus: lambda place: choice_of(place, EntityStatus),
    bool: flag_of,
    int: whole_of,
    list: _authorization_rules,
    str: text_of,
    timedelta: duration_of,
}
NOT_IN_CONFIG: Final = tuple(name for name, each in SETTINGS.items() if each.in_config is InConfig.NO)
_FIELDS_BESIDE: Final = {
    EntityKind.QUEUE: ("Name", "Properties"),
    EntityKind.TOPIC: ("Name", "Properties", "Subscriptions"),
    EntityKind.SUBSCRIPTION: ("Name", "Properties", "Rules"),
}
