"""Converts descriptions of entities into the management models of the SDK, and back."""

from __future__ import annotations

from dataclasses import fields
from datetime import UTC, datetime, timedelta
from inspect import signature
from typing import Any, Final, TypeVar
from urllib.parse import unquote, urlsplit

from sbclient import entities as own
from sbclient.entities import CORRELATION_FIELDS, LEAST_UNLIMITED, NEVER, UNLIMITED
from sbclient.errors import InvalidOperationError
from sbclient.formats.entity_settings import value_text

P = TypeVar("P", own.QueueProperties, own.TopicProperties, own.SubscriptionProperties)

_NO_LIMIT: Final = "P10675199DT2H48M5.4775807S"
_STATED_ONLY: Final = ("name", "status", *(name for name, each in own.SETTINGS.items() if each.is_answer))
"""Attributes that are not passed when an entity is created."""

LACKING: Final = ("filtering_messages_before_publishing",)
"""Settings that the SDK does not have or does not write; `http.ElementOrder` adds their elements to a request."""


def lacking(properties: own.EntityProperties) -> dict[str, Any]:
    """Return the settings that a description has and the SDK does not write; it may not read them either."""
    given = {name: getattr(properties, name, None) for name in LACKING}
    return {name: value for name, value in given.items() if value is not None}


def added_elements(properties: own.EntityProperties) -> dict[str, str]:
    """Return the text of each element that the SDK does not write, by name."""
    return {own.element_name(name): value_text(value) for name, value in lacking(properties).items()}


def creation_options(properties: own.Description) -> dict[str, Any]:
    """Return the keyword arguments of the SDK's create methods; the service has defaults for those that are None."""
    left_out = (*_STATED_ONLY, *LACKING)
    chosen = {name: value for name, value in properties.items() if value is not None and name not in left_out}
    return {name: _to_sdk(value) for name, value in chosen.items()}


def to_sdk_properties(properties: own.EntityProperties) -> Any:
    """Return the SDK's model of a complete description, for an update."""
    from azure.servicebus import management

    if isinstance(properties, own.RuleProperties):
        return management.RuleProperties(
            properties.name,
            filter=filter_to_sdk(properties.filter),
            action=action_to_sdk(properties.action),
            created_at_utc=None,
        )
    kind: Any = getattr(management, type(properties).__name__)
    known = signature(kind).parameters
    values = {name: _to_sdk(value) for name, value in properties.items() if name in known}
    return kind(values.pop("name"), **values)


def _to_sdk(value: Any) -> Any:
    if isinstance(value, timedelta) and value >= LEAST_UNLIMITED:
        return _NO_LIMIT
    if isinstance(value, list):
        return [_rule_to_sdk(rule) for rule in value]
    return value.value if isinstance(value, own.EntityStatus | own.EntityAvailabilityStatus) else value


def _rule_to_sdk(rule: own.AuthorizationRule) -> Any:
    from azure.servicebus.management import AuthorizationRule as SdkRule

    return SdkRule(
        type=rule.type,
        claim_type=rule.claim_type,
        claim_value=rule.claim_value,
        rights=[right.value for right in rule.rights],
        key_name=rule.key_name,
        primary_key=rule.primary_key,
        secondary_key=rule.secondary_key,
    )


def filter_to_sdk(rule_filter: own.RuleFilter) -> Any:
    """Return the filter of the SDK."""
    from azure.servicebus import management

    if isinstance(rule_filter, own.SqlRuleFilter):
        return management.SqlRuleFilter(rule_filter.sql_expression, rule_filter.parameters or {})
    if isinstance(rule_filter, own.CorrelationRuleFilter):
        values: dict[str, Any] = {name: getattr(rule_filter, name) for name in CORRELATION_FIELDS}
        return management.CorrelationRuleFilter(**values, properties=rule_filter.properties or {})
    return management.TrueRuleFilter() if isinstance(rule_filter, own.TrueRuleFilter) else management.FalseRuleFilter()


def action_to_sdk(action: own.SqlRuleAction | None) -> Any:
    """Return the action of the SDK, None if there is none."""
    from azure.servicebus.management import SqlRuleAction as SdkAction

    return None if action is None else SdkAction(action.sql_expression, action.parameters or {})


def from_sdk_properties(kind: type[P], sdk: Any) -> P:
    """Return our description for the description of the SDK."""
    values: dict[str, Any] = {field.name: getattr(sdk, field.name, None) for field in fields(kind)}
    for name in ("auto_delete_on_idle", "default_message_time_to_live"):
        values[name] = _duration(values[name])
    for name in own.FORWARDING:
        if name in values:
            values[name] = path_of_target(values[name])
    values["status"] = member_of(own.EntityStatus, values["status"], own.EntityStatus.UNKNOWN)
    values["availability_status"] = member_of(
        own.EntityAvailabilityStatus, values["availability_status"], own.EntityAvailabilityStatus.UNKNOWN
    )
    if "authorization_rules" in values:
        values["authorization_rules"] = [_rule_from_sdk(rule) for rule in values["authorization_rules"] or []]
    return kind(**values)


def _duration(value: timedelta | str | None) -> timedelta | None:
    if value is None or isinstance(value, str):
        return None if value is None else UNLIMITED
    return UNLIMITED if value >= LEAST_UNLIMITED else value


def path_of_target(target: str | None) -> str | None:
    """Return the path of an entity; the service returns forwarding targets as URLs."""
    return unquote(urlsplit(target).path.lstrip("/")) if target and "://" in target else target or None


W = TypeVar("W", own.EntityStatus, own.EntityAvailabilityStatus, own.MessagingSku)


def member_of(kind: type[W], value: Any, unknown: W) -> W | None:
    """Return the member with that value; `unknown` if a newer service has others."""
    if value is None:
        return None
    try:
        return kind(getattr(value, "value", value))
    except ValueError:
        return unknown


def _rule_from_sdk(rule: Any) -> own.AuthorizationRule:
    return own.AuthorizationRule(
        key_name=rule.key_name,
        rights=[own.AccessRights(getattr(right, "value", right)) for right in rule.rights or ()],
        primary_key=rule.primary_key or None,
        secondary_key=rule.secondary_key or None,
        created_at_utc=rule.created_at_utc,
        modified_at_utc=rule.modified_at_utc,
    )


def from_sdk_rule(rule: Any) -> own.RuleProperties:
    """Return our rule for a rule of the SDK."""
    action = rule.action
    return own.RuleProperties(
        rule.name,
        _filter_from_sdk(rule.filter),
        None if action is None else own.SqlRuleAction(action.sql_expression, action.parameters or None),
        _utc(rule.created_at_utc),
    )


def _filter_from_sdk(rule_filter: Any) -> own.RuleFilter:
    name = type(rule_filter).__name__
    if name == "TrueRuleFilter" or rule_filter is None:
        return own.TrueRuleFilter()
    if name == "FalseRuleFilter":
        return own.FalseRuleFilter()
    if name == "SqlRuleFilter":
        return own.SqlRuleFilter(rule_filter.sql_expression, rule_filter.parameters or None)
    if name == "CorrelationRuleFilter":
        values: dict[str, Any] = {each: getattr(rule_filter, each) for each in CORRELATION_FIELDS}
        return own.CorrelationRuleFilter(**values, properties=rule_filter.properties or None)
    raise InvalidOperationError(f"a rule has an unknown filter {name}: use a newer version of this package")


def from_sdk_namespace(sdk: Any) -> own.NamespaceProperties:
    """Return our description of a namespace for the description of the SDK."""
    standard = own.MessagingSku.STANDARD
    return own.NamespaceProperties(
        name=sdk.name,
        messaging_sku=member_of(own.MessagingSku, sdk.messaging_sku, unknown=standard) or standard,
        messaging_units=sdk.messaging_units,
        created_at_utc=_utc(sdk.created_at_utc) or NEVER,
        modified_at_utc=_utc(sdk.modified_at_utc) or NEVER,
        alias=sdk.alias or None,
    )


def _utc(value: datetime | None) -> datetime | None:
    return value if value is None or value.tzinfo is not None else value.replace(tzinfo=UTC)
