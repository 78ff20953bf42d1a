"""Writes entities as Microsoft's Config.json, and writes and reads them in a form of our own, which has every setting.

Laws:

1. No form has keys: a copy of a namespace has keys of its own.
2. Config.json has the documented fields of Microsoft, always with a value, since its defaults differ from those of the
   service; of our additions it has those that differ from the defaults of the service.
3. In our form an absent setting has the service's default. Absent `rules` of a subscription stand for the default rule,
   an empty list for none.
4. What a form cannot hold is returned by name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, replace
from datetime import timedelta
from typing import Any, Final

from sbclient.broker.descriptions import completed
from sbclient.broker.profile import Partitioning, Profile
from sbclient.broker.rule import Rule
from sbclient.emulator.config.config import NOT_IN_CONFIG, READERS, check_unique, read_config
from sbclient.emulator.config.entities import EntityConfig, NamespaceConfig
from sbclient.emulator.config.located_json import Located, read_located
from sbclient.emulator.config.values import choice_of, entries_of, fields_of, flag_of, name_of, required, text_of
from sbclient.emulator.management.atom_rules import CORRELATION_ELEMENTS
from sbclient.entities import (
    DEFAULT_RULE_NAME,
    PROPERTIES_OF,
    SETTINGS,
    CorrelationRuleFilter,
    EntityAddress,
    EntityKind,
    EntityProperties,
    FalseRuleFilter,
    InConfig,
    RuleProperties,
    SqlRuleAction,
    SqlRuleFilter,
    SubscriptionProperties,
    TrueRuleFilter,
    element_name,
    kind_of,
    settings_of,
)
from sbclient.errors import InvalidOperationError
from sbclient.formats.entity_settings import NOT_SET_AS_TEXT
from sbclient.formats.iso8601 import write_duration
from sbclient.formats.message_json import property_json, property_of

Entities = Mapping[EntityAddress, EntityProperties]
"""Entities by address, each after those above it."""

_FILTERS: Final[Mapping[str, type[Any]]] = {
    "sql": SqlRuleFilter,
    "correlation": CorrelationRuleFilter,
    "true": TrueRuleFilter,
    "false": FalseRuleFilter,
}


def values_of(properties: EntityProperties) -> dict[str, Any]:
    """Return the values of a description as JSON: settings that are set, without keys; filter and action of a rule."""
    if isinstance(properties, RuleProperties):
        kind = next(name for name, each in _FILTERS.items() if isinstance(properties.filter, each))
        action = {} if properties.action is None else {"action": _part_values(properties.action)}
        return {"filter": {"type": kind} | _part_values(properties.filter)} | action
    names = [name for name in settings_of(kind_of(properties)) if name not in NOT_SET_AS_TEXT]
    given = {name: getattr(properties, name) for name in names}
    return {name: _json(value) for name, value in given.items() if value not in (None, "")}


def _part_values(part: Any) -> dict[str, Any]:
    values = {each.name: getattr(part, each.name) for each in fields(part)}
    return {name: _json(value) for name, value in values.items() if value not in (None, {}, False)}


def _json(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: property_json(each) for name, each in value.items()}
    return write_duration(value) if isinstance(value, timedelta) else value


def write_entities(entities: Entities) -> tuple[str, list[str]]:
    """Return the entities in our form, and the names of what it does not hold."""
    written: dict[EntityAddress, dict[str, Any]] = {}
    for address, properties in entities.items():
        if isinstance(properties, RuleProperties):
            above = written[EntityAddress(EntityKind.SUBSCRIPTION, address.names[:2])]
            above["rules"].append({"name": properties.name} | values_of(properties))
            continue
        written[address] = {"kind": address.kind, "names": address.names, "settings": values_of(properties)}
        if address.kind is EntityKind.SUBSCRIPTION:
            written[address]["rules"] = []
    return json.dumps({"entities": [*written.values()]}, indent=2), _keys(entities)


def _keys(entities: Entities) -> list[str]:
    return [f"{address}: authorization_rules" for address, each in entities.items() if each.get("authorization_rules")]


# ---------------------------------------------------------------------- Config.json


def write_config(namespace: str, entities: Entities, profile: Profile) -> tuple[str, list[str]]:
    """Return the entities as Config.json, and the names of what it does not hold.

    Args:
        profile: has the defaults of the namespace.
    """
    lost, written = _keys(entities), dict[tuple[str, ...], dict[str, Any]]()
    config: dict[str, Any] = {"Name": namespace, "Queues": [], "Topics": []}
    for address, properties in entities.items():
        names = address.names
        if isinstance(properties, RuleProperties):
            rule, missing = _config_rule(properties)
            lost += [f"{address}: {each}; the rule is left out" for each in missing]
            written[names[:2]]["Rules"] += [] if missing else [rule]
            continue
        default = _defaults(properties, profile)
        values = values_of(properties)
        lost += [
            f"{address}: {name}" for name, each in values.items() if name in NOT_IN_CONFIG and each != default[name]
        ]
        written[names] = {
            "Name": properties.name,
            "Properties": {
                element_name(name): value
                for name, value in values.items()
                if name not in NOT_IN_CONFIG and not _is_left_out(name, value, default)
            },
        }
        if isinstance(properties, SubscriptionProperties):
            written[names]["Rules"] = []
            written[names[:1]]["Subscriptions"].append(written[names])
        elif address.kind is EntityKind.TOPIC:
            written[names]["Subscriptions"] = []
            config["Topics"].append(written[names])
        else:
            config["Queues"].append(written[names])
    for names, each in written.items():
        if each.get("Rules") == []:
            lost.append(f"subscription {'/'.join(names)}: no rules; the file gives it the rule that accepts everything")
        if each.get("Rules") == [{"Name": DEFAULT_RULE_NAME, "Properties": {"FilterType": "True"}}]:
            del each["Rules"]  # what a subscription without rules gets
    document = {"UserConfig": {"Namespaces": [config], "Logging": {"Type": "File"}}}
    return json.dumps(document, indent=2), lost


def _is_left_out(name: str, value: Any, default: Mapping[str, Any]) -> bool:
    """Whether Config.json leaves out a setting of ours, which has the default of the service."""
    return SETTINGS[name].in_config is InConfig.OURS and value == default.get(name)


def _defaults(properties: EntityProperties, profile: Profile) -> dict[str, Any]:
    """Return the values that the service gives an entity like this one, partitioned or not."""
    partitioning = {name: True for name in ("enable_partitioning",) if getattr(properties, name, False)}
    asked = replace(profile, partitioning=Partitioning.ASKED)
    plain = completed(PROPERTIES_OF[kind_of(properties)](properties.name, **partitioning), asked)
    return values_of(as_requested(plain, profile)) | {"enable_partitioning": False}


def _config_rule(rule: RuleProperties) -> tuple[dict[str, Any], list[str]]:
    """Return a rule of Config.json, and the names of what it does not hold."""
    values = values_of(rule)
    chosen, action = values["filter"], values.get("action", {})
    kind = chosen.pop("type").capitalize()
    properties: dict[str, Any] = {"FilterType": kind}
    lost = [
        f"{name} of its {part}"
        for part, each in (("filter", chosen), ("action", action))
        for name in ("parameters", "requires_preprocessing")
        if name in each
    ]
    if kind == "Sql":
        properties["SqlFilter"] = {"SqlExpression": chosen["sql_expression"]}
    elif kind == "Correlation":
        held = {label: chosen[name] for label, name in CORRELATION_ELEMENTS.items() if name in chosen}
        given = chosen.get("properties", {})
        lost += [
            f"the type of property {name}" for name, each in given.items() if each is None or isinstance(each, dict)
        ]
        properties["CorrelationFilter"] = held | ({"Properties": given} if given else {})
    if action:
        properties["Action"] = {"SqlExpression": action["sql_expression"]}
    return {"Name": rule.name, "Properties": properties}, lost


# ---------------------------------------------------------------------- reading


def read_exchanged(text: str, source: str) -> list[NamespaceConfig]:
    """The namespaces of a file in either form; one without a name in ours.

    Raises:
        ConfigError: the file is not valid; the text names file, line, path and what is allowed.
    """
    document = read_located(text, source)
    if not isinstance(document.value, dict) or "entities" not in document.value:
        return read_config(text, source, None)
    found = NamespaceConfig("")
    for each in entries_of(fields_of(document, "entities")["entities"]):
        found.entities += _entity(each)
    check_unique([("/".join(entity.address.names), entity.place) for entity in found.entities])
    return [found]


def _entity(place: Located) -> list[EntityConfig]:
    given = fields_of(place, "kind", "names", "settings", "rules")
    kind = choice_of(required(place, given, "kind"), EntityKind)
    entries = entries_of(required(place, given, "names"))
    if kind is EntityKind.RULE or len(entries) != kind.name_count:
        raise place.error(f"is a {kind} with {len(entries)} names: a queue and a topic have 1, a subscription has 2")
    kinds = (EntityKind.TOPIC, kind) if kind is EntityKind.SUBSCRIPTION else (kind,)
    names = tuple(name_of(each, of_kind) for each, of_kind in zip(entries, kinds, strict=True))
    readers = {name: READERS[type_] for name, type_ in settings_of(kind).items() if name not in NOT_SET_AS_TEXT}
    settings = fields_of(given["settings"], *readers) if "settings" in given else {}
    properties = PROPERTIES_OF[kind](names[-1], **{name: readers[name](each) for name, each in settings.items()})
    if "rules" in given and kind is not EntityKind.SUBSCRIPTION:
        raise given["rules"].error(f"is not allowed: a {kind} has no rules")
    rules = [_rule(each, names) for each in entries_of(given.get("rules"))]
    return [EntityConfig(EntityAddress(kind, names), properties, place, "rules" in given), *rules]


def _rule(place: Located, parents: tuple[str, ...]) -> EntityConfig:
    given = fields_of(place, "name", "filter", "action")
    name = name_of(required(place, given, "name"), EntityKind.RULE)
    chosen = required(place, given, "filter")
    kinds = chosen.value if isinstance(chosen.value, dict) else {}
    if "type" not in kinds or kinds["type"].value not in _FILTERS:
        raise chosen.error(f"has no type: it is one of {', '.join(_FILTERS)}")
    action = _part(given["action"], SqlRuleAction) if "action" in given else None
    rule = RuleProperties(name, _part(chosen, _FILTERS[kinds["type"].value], "type"), action)
    try:
        Rule(rule)
    except InvalidOperationError as error:
        raise place.error(f"cannot be used: {error.message}") from error
    return EntityConfig(EntityAddress(EntityKind.RULE, (*parents, name)), rule, place)


def _part(place: Located, part: type[Any], *also: str) -> Any:
    given = fields_of(place, *also, *(each.name for each in fields(part)))
    if part in (SqlRuleFilter, SqlRuleAction):
        required(place, given, "sql_expression")
    return part(**{name: _part_value(name, each) for name, each in given.items() if name not in also})


def _part_value(name: str, place: Located) -> Any:
    if name == "requires_preprocessing":
        return flag_of(place)
    if name not in ("parameters", "properties"):
        return text_of(place)
    if not isinstance(place.value, dict):
        raise place.error("is not an object: give names and values")
    values = {}
    for key, each in place.value.items():
        try:
            values[key] = property_of(each.plain())
        except InvalidOperationError as error:
            raise each.error(f"is not allowed: {error.message}") from error
    return values


def as_requested(properties: EntityProperties, profile: Profile) -> EntityProperties:
    """Return the description that creates an entity like this one: a partitioned one has the size of a fragment."""
    size = getattr(properties, "max_size_in_megabytes", None)
    if size is None or not getattr(properties, "enable_partitioning", False):
        return properties
    return replace(properties, max_size_in_megabytes=size // profile.fragment_count)
