"""The emulator's configuration: Microsoft's Config.json, and what we add to it, read into entities.

Laws (source: the file's documented form, unless said otherwise):

1. What a queue or subscription does not say is as in Microsoft's emulator: messages live an hour, three deliveries, a
   lock of a minute, a duplicate window of 20 s. Values may be anything that the profile allows, beyond its limits.
2. Rules that a subscription names take the place of the rule that lets every message pass.
3. Names of fields count in any case of letters; an unknown one is an error, for it is a setting that has no effect.
4. Ours: several namespaces, each with a Port and AuthorizationRules; EnablePartitioning, MaxSizeInMegabytes,
   AutoDeleteOnIdle, Status, UserMetadata and AuthorizationRules of entities; the filter types True and False.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from enum import StrEnum
from typing import Any, Final, TypeAlias, TypeVar

from sbclient.broker.descriptions import completed
from sbclient.broker.profile import Profile
from sbclient.broker.rule import Rule
from sbclient.entities import (
    AccessRights,
    AuthorizationRule,
    CorrelationRuleFilter,
    EntityAddress,
    EntityKind,
    EntityStatus,
    FalseRuleFilter,
    QueueProperties,
    RuleFilter,
    RuleProperties,
    SqlRuleAction,
    SqlRuleFilter,
    SubscriptionProperties,
    TopicProperties,
    TrueRuleFilter,
)
from sbclient.errors import InvalidOperationError
from sbclient.rules.entity_path import canonical, check_entity_path
from sbclient.server.atom_values import read_span
from sbclient.server.config_entities import Description, EntityConfig, NamespaceConfig, without_sub_code
from sbclient.server.located_json import Located, read_located

Choice = TypeVar("Choice", bound=StrEnum)

_NAMESPACE_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,62}[A-Za-z0-9])?")


def read_config(text: str, source: str, profile: Profile) -> list[NamespaceConfig]:
    """The namespaces of a configuration.

    Args:
        source: the name of the file, for errors.
        profile: whose limits the values must keep.

    Raises:
        ConfigError: it cannot be used; the text names file, line, path and what is allowed.
    """
    root = _object(read_located(text, source), "UserConfig", "$schema")
    place = root.get("userconfig")
    if place is None:
        raise read_located(text, source).error("has no UserConfig: put the Namespaces in one")
    config = _object(place, "Namespaces", "Logging")
    if "logging" in config:
        _object(config["logging"], "Type")
    namespaces = [_namespace(each, profile) for each in _array(config.get("namespaces"))]
    if not namespaces:
        raise place.error("has no Namespaces: name at least one")
    _check_unique(
        [(namespace.name, each) for namespace, each in zip(namespaces, _array(config["namespaces"]), strict=True)]
    )
    return namespaces


# ---------------------------------------------------------------------- entities


def _namespace(place: Located, profile: Profile) -> NamespaceConfig:
    fields = _object(place, "Name", "Port", "AuthorizationRules", "Queues", "Topics")
    name = _text(_required(place, fields, "Name"))
    if _NAMESPACE_NAME.fullmatch(name) is None:
        raise fields["name"].error(f"is {name[:80]!r}: a namespace has letters, digits and hyphens, up to 64 of them")
    port = _whole(fields["port"], 0, 65_535) if "port" in fields else None
    rules = _authorization_rules(fields["authorizationrules"]) if "authorizationrules" in fields else []
    found = NamespaceConfig(name, port, rules)
    for each in _array(fields.get("queues")):
        found.entities.append(_entity(each, EntityKind.QUEUE, (), profile))
    for each in _array(fields.get("topics")):
        topic = _entity(each, EntityKind.TOPIC, (), profile)
        found.entities.append(topic)
        found.entities.extend(_subscriptions(each, topic, profile))
    _check_unique([("/".join(entity.address.names), entity.place) for entity in found.entities])
    return found


def _entity(place: Located, kind: EntityKind, parents: tuple[str, ...], profile: Profile) -> EntityConfig:
    fields = _object(place, *_FIELDS_BESIDE[kind])
    name = _name(_required(place, fields, "Name"), kind)
    described, table = _TABLES[kind]
    properties = described(name, **{key: value for key, value in _DEFAULTS.items() if key in _attributes(table)})
    if "properties" in fields:
        said = _object(fields["properties"], *table)
        for label, (attribute, read) in table.items():
            each = said.get(label.casefold())
            if each is not None:
                value = read(each)
                _check_value(each, described(name, **{attribute: value}), profile)
                properties = replace(properties, **{attribute: value})
    return EntityConfig(EntityAddress(kind, (*parents, name)), properties, place)


def _subscriptions(place: Located, topic: EntityConfig, profile: Profile) -> list[EntityConfig]:
    found: list[EntityConfig] = []
    for each in _array(_object(place, *_FIELDS_BESIDE[EntityKind.TOPIC]).get("subscriptions")):
        subscription = _entity(each, EntityKind.SUBSCRIPTION, topic.address.names, profile)
        found.append(subscription)
        rules = _object(each, *_FIELDS_BESIDE[EntityKind.SUBSCRIPTION]).get("rules")
        found.extend(_rule(rule, subscription.address.names) for rule in _array(rules))
    return found


def _rule(place: Located, parents: tuple[str, ...]) -> EntityConfig:
    fields = _object(place, "Name", "Properties")
    name = _name(_required(place, fields, "Name"), EntityKind.RULE)
    said = _required(place, fields, "Properties")
    parts = _object(said, "FilterType", "CorrelationFilter", "SqlFilter", "Action")
    action = _sql(parts["action"]) if "action" in parts else None
    rule = RuleProperties(name, _filter(said, parts), None if action is None else SqlRuleAction(action))
    try:
        Rule(rule)
    except InvalidOperationError as error:
        raise said.error(f"cannot be used: {error.message}") from error
    return EntityConfig(EntityAddress(EntityKind.RULE, (*parents, name)), rule, place)


def _filter(place: Located, parts: Mapping[str, Located]) -> RuleFilter:
    kind = _required(place, parts, "FilterType")
    if kind.value == "Correlation":
        fields = _object(_required(place, parts, "CorrelationFilter"), *_CORRELATION, "Properties")
        given = {
            attribute: _text(fields[label.casefold()])
            for label, attribute in _CORRELATION.items()
            if label.casefold() in fields
        }
        properties = {}
        if "properties" in fields:
            if not isinstance(fields["properties"].value, dict):
                raise fields["properties"].error("is no object: give names and values")
            properties = {key: _scalar(each) for key, each in fields["properties"].value.items()}
        if not given and not properties:
            raise place.error("has a CorrelationFilter that says nothing: give at least one property")
        return CorrelationRuleFilter(**given, properties=properties or None)
    if kind.value == "Sql":
        return SqlRuleFilter(_sql(_required(place, parts, "SqlFilter")))
    if kind.value in ("True", "False"):
        return TrueRuleFilter() if kind.value == "True" else FalseRuleFilter()
    raise kind.error(f"is {kind.plain()!r}: it is one of Correlation, Sql, True and False")


def _sql(place: Located) -> str:
    return _text(_required(place, _object(place, "SqlExpression"), "SqlExpression"))


def _check_value(place: Located, description: Description, profile: Profile) -> None:
    """Let the broker itself say whether a value is allowed, so that the ranges are in one place."""
    try:
        completed(description, profile)
    except InvalidOperationError as error:
        raise place.error(f"is not allowed: {without_sub_code(error)}") from error


def _check_unique(named: list[tuple[str, Located]]) -> None:
    seen: dict[str, Located] = {}
    for name, place in named:
        before = seen.setdefault(canonical(name), place)
        if before is not place:
            raise place.error(f"is named {name!r} as is {before.path} in line {before.line}: rename one")


# ---------------------------------------------------------------------- values


def _object(place: Located, *names: str) -> dict[str, Located]:
    """The fields of an object, by name in small letters."""
    if not isinstance(place.value, dict):
        raise place.error(f"is {_shown(place)}: an object with {', '.join(names)} is expected")
    allowed = {name.casefold() for name in names}
    found: dict[str, Located] = {}
    for name, each in place.value.items():
        if name.casefold() not in allowed:
            raise each.error(f"is not known: {place.path} may have {', '.join(names)}")
        if name.casefold() in found:
            raise each.error(f"is there twice, also in line {found[name.casefold()].line}: keep one")
        if each.value is not None:
            found[name.casefold()] = each
    return found


def _array(place: Located | None) -> list[Located]:
    if place is None:
        return []
    if not isinstance(place.value, list):
        raise place.error(f"is {_shown(place)}: an array is expected")
    return place.value


def _required(place: Located, fields: Mapping[str, Located], name: str) -> Located:
    if name.casefold() not in fields:
        raise place.error(f"has no {name}: give one")
    return fields[name.casefold()]


def _shown(place: Located) -> str:
    if isinstance(place.value, dict | list):
        return "an object" if isinstance(place.value, dict) else "an array"
    return repr(place.value)[:80]


def _text(place: Located) -> str:
    if not isinstance(place.value, str):
        raise place.error(f"is {_shown(place)}: a text is expected")
    return place.value


def _name(place: Located, kind: EntityKind) -> str:
    try:
        return check_entity_path(_text(place), kind.value[0])
    except InvalidOperationError as error:
        raise place.error(f"is not allowed: {error.message}") from error


def _scalar(place: Located) -> Any:
    if not isinstance(place.value, str | int | float | bool):
        raise place.error(f"is {_shown(place)}: a text, a number, true or false is expected")
    return place.value


def _flag(place: Located) -> bool:
    if not isinstance(place.value, bool):
        raise place.error(f"is {_shown(place)}: true or false is expected")
    return place.value


def _whole(place: Located, least: int = -(2**31), most: int = 2**31 - 1) -> int:
    is_whole = isinstance(place.value, int) and not isinstance(place.value, bool)
    if not is_whole or not least <= place.value <= most:
        raise place.error(f"is {_shown(place)}: a whole number from {least} to {most} is expected")
    return int(place.value)


def _count(place: Located) -> int:
    return _whole(place)


def _span(place: Located) -> timedelta:
    try:
        return read_span(_text(place))
    except InvalidOperationError as error:
        raise place.error(f"is not allowed: {error.message}") from error


def _choice(place: Located, choices: type[Choice]) -> Choice:
    for choice in choices:
        if isinstance(place.value, str) and place.value.casefold() == choice.casefold():
            return choice
    raise place.error(f"is {_shown(place)}: it is one of {', '.join(choices)}")


def _status(place: Located) -> EntityStatus:
    return _choice(place, EntityStatus)


def _destination(place: Located) -> str | None:
    return _text(place).strip("/") or None


def _authorization_rules(place: Located) -> list[AuthorizationRule]:
    rules = []
    for each in _array(place):
        fields = _object(each, "KeyName", "Rights", "PrimaryKey", "SecondaryKey")
        rules.append(
            AuthorizationRule(
                key_name=_text(_required(each, fields, "KeyName")),
                rights=[_choice(right, AccessRights) for right in _array(_required(each, fields, "Rights"))],
                primary_key=_text(_required(each, fields, "PrimaryKey")),
                secondary_key=_text(fields["secondarykey"]) if "secondarykey" in fields else None,
            )
        )
    return rules


# ---------------------------------------------------------------------- the tables

Table: TypeAlias = Mapping[str, tuple[str, Callable[[Located], Any]]]

_LIFE: Final[Table] = {"DefaultMessageTimeToLive": ("default_message_time_to_live", _span)}
_WINDOW: Final[Table] = {
    "DuplicateDetectionHistoryTimeWindow": ("duplicate_detection_history_time_window", _span),
    "RequiresDuplicateDetection": ("requires_duplicate_detection", _flag),
}
_RECEIVED_FROM: Final[Table] = {
    "DeadLetteringOnMessageExpiration": ("dead_lettering_on_message_expiration", _flag),
    "ForwardDeadLetteredMessagesTo": ("forward_dead_lettered_messages_to", _destination),
    "ForwardTo": ("forward_to", _destination),
    "LockDuration": ("lock_duration", _span),
    "MaxDeliveryCount": ("max_delivery_count", _count),
    "RequiresSession": ("requires_session", _flag),
}
_STORE: Final[Table] = {
    "EnablePartitioning": ("enable_partitioning", _flag),
    "MaxSizeInMegabytes": ("max_size_in_megabytes", _count),
    "MaxMessageSizeInKilobytes": ("max_message_size_in_kilobytes", _count),
    "AuthorizationRules": ("authorization_rules", _authorization_rules),
}
_ANY: Final[Table] = {
    "AutoDeleteOnIdle": ("auto_delete_on_idle", _span),
    "Status": ("status", _status),
    "UserMetadata": ("user_metadata", _text),
}
_TABLES: Final[Mapping[EntityKind, tuple[type[Description], Table]]] = {
    EntityKind.QUEUE: (QueueProperties, {**_LIFE, **_WINDOW, **_RECEIVED_FROM, **_STORE, **_ANY}),
    EntityKind.TOPIC: (TopicProperties, {**_LIFE, **_WINDOW, **_STORE, **_ANY}),
    EntityKind.SUBSCRIPTION: (SubscriptionProperties, {**_LIFE, **_RECEIVED_FROM, **_ANY}),
}
_FIELDS_BESIDE: Final = {
    EntityKind.QUEUE: ("Name", "Properties"),
    EntityKind.TOPIC: ("Name", "Properties", "Subscriptions"),
    EntityKind.SUBSCRIPTION: ("Name", "Properties", "Rules"),
}
_CORRELATION: Final = {
    "ContentType": "content_type",
    "CorrelationId": "correlation_id",
    "Label": "label",
    "MessageId": "message_id",
    "ReplyTo": "reply_to",
    "ReplyToSessionId": "reply_to_session_id",
    "SessionId": "session_id",
    "To": "to",
}
_DEFAULTS: Final[Mapping[str, Any]] = {
    "default_message_time_to_live": timedelta(hours=1),
    "duplicate_detection_history_time_window": timedelta(seconds=20),
    "lock_duration": timedelta(minutes=1),
    "max_delivery_count": 3,
}


def _attributes(table: Table) -> set[str]:
    """The attributes of a description that a table can set."""
    return {attribute for attribute, _ in table.values()}
