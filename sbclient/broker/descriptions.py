"""Check and complete the descriptions of entities: defaults, ranges, and fields that cannot be changed.

Ranges and defaults are documented for the service. The sub-codes are those of its management API.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Any, Final, TypeVar

from sbclient.broker.policy import Policy
from sbclient.broker.profile import KIB, MIB, Partitioning, Profile
from sbclient.entities import (
    FIXED,
    LEAST_UNLIMITED,
    SETTABLE_STATUS,
    SETTINGS,
    UNLIMITED,
    AccessRights,
    AuthorizationRule,
    Description,
    EntityAvailabilityStatus,
    EntityKind,
    EntityStatus,
    MessagingSku,
    QueueProperties,
    SubscriptionProperties,
    TopicProperties,
    element_name,
    kind_of,
    settings_of,
)
from sbclient.errors import InvalidOperationError

D = TypeVar("D", bound=Description)

MAX_AUTHORIZATION_RULES: Final = 12
MAX_USER_METADATA: Final = 1024
PARTITIONING_API_VERSION: Final = "2013-10"

_BASIC_TTL = timedelta(days=14)

Check = Callable[[str, Any], None]


class SettingError(InvalidOperationError):
    """A setting is refused in words of the service.

    Attributes:
        words: of the service.
        reason: of the broker.
        parameter: the element that the service names; empty = none.
        value: of that element, as the service writes it.
    """

    def __init__(self, words: str, reason: str, parameter: str = "", value: str = "") -> None:
        super().__init__(f"SubCode=40000. {words} {reason}")
        self.words, self.reason, self.parameter, self.value = words, reason, parameter, value


def _refuse(text: str) -> InvalidOperationError:
    return InvalidOperationError(f"SubCode=40000. {text}")


def _span(least: timedelta | None, most: timedelta = UNLIMITED) -> Check:
    def check(what: str, value: Any) -> None:
        if not isinstance(value, timedelta):
            raise _refuse(f"{what} is {value!r}: give a timedelta")
        if (least is not None and value < least) or value > most:
            raise _outside(what, value, least or timedelta(), most)

    return check


def _outside(what: str, value: Any, least: Any, most: Any) -> SettingError:
    """The error for a number or a duration outside of its range, in words of the service (seen)."""
    return SettingError(
        f"The value supplied must be between {_shown(least)} and {_shown(most)}.",
        f"{what} is {value}: it must be between {least} and {most}",
        element_name(what.partition(" of ")[0]),
        _shown(value),
    )


def _shown(value: Any) -> str:
    """A number or a duration as .NET writes it."""
    if not isinstance(value, timedelta):
        return str(value)
    if value >= LEAST_UNLIMITED:
        return "10675199.02:48:05.4775807"
    sign, value = ("-", -value) if value < timedelta() else ("", value)
    clock = str(timedelta(seconds=value.seconds)).zfill(8)
    days = f"{value.days}." if value.days else ""
    return f"{sign}{days}{clock}" + (f".{value.microseconds:06}0" if value.microseconds else "")


def _lock(what: str, value: Any) -> None:
    if isinstance(value, timedelta) and value > SETTINGS["lock_duration"].most:
        raise SettingError(
            "The supplied lock time exceeds the allowed maximum of '5' minutes.",
            f"{what} is {value}",
            "LockDuration",
            _shown(value),
        )
    _span(SETTINGS["lock_duration"].least, SETTINGS["lock_duration"].most)(what, value)


def _count(what: str, value: Any) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise _refuse(f"{what} is {value!r}: it must be a whole number from 1 to {2**31 - 1}")
    if not 1 <= value < 2**31:
        raise _outside(what, value, 1, 2**31 - 1)


def _flag(what: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise _refuse(f"{what} is {value!r}: give True or False")


def _status(what: str, value: Any) -> None:
    if value not in SETTABLE_STATUS:
        raise _refuse(f"{what} is {value!r}: it must be one of {', '.join(SETTABLE_STATUS)}")


def _metadata(what: str, value: Any) -> None:
    if value is not None and len(value) > MAX_USER_METADATA:
        raise _refuse(f"{what} has {len(value)} characters, {MAX_USER_METADATA} are allowed: keep it elsewhere")


def _rules(what: str, rules: list[AuthorizationRule]) -> None:
    if len(rules) > MAX_AUTHORIZATION_RULES:
        raise _refuse(f"{what} has {len(rules)} rules, {MAX_AUTHORIZATION_RULES} are allowed: remove some")
    names = [rule.key_name.casefold() for rule in rules]
    for rule in rules:
        if names.count(rule.key_name.casefold()) > 1:
            raise _refuse(f"{what} has two rules named {rule.key_name!r}: rename one")
        if AccessRights.MANAGE in rule.rights and not {AccessRights.SEND, AccessRights.LISTEN} <= set(rule.rights):
            raise _refuse(f"{what}: rule {rule.key_name!r} has Manage without Send and Listen: give it all three")


def _text(what: str, value: Any) -> None:
    if not isinstance(value, str):
        raise _refuse(f"{what} is {value!r}: give a text")


_CHECKS: Final[Mapping[type, Check]] = MappingProxyType({bool: _flag, int: _count, EntityStatus: _status, str: _text})
_CHECKS_OF: Final[Mapping[str, Check]] = MappingProxyType({"lock_duration": _lock, "user_metadata": _metadata})
_OF_A_PROFILE: Final = ("authorization_rules", "max_message_size_in_kilobytes", "max_size_in_megabytes")
"""Settings that `completed` checks by hand."""


def _check_of(name: str, type_: type) -> Check:
    if name in _CHECKS_OF:
        return _CHECKS_OF[name]
    if type_ is timedelta:
        return _span(SETTINGS[name].least, SETTINGS[name].most)
    if type_ not in _CHECKS:
        raise LookupError(f"{name} is a {type_.__name__}: add a check to _CHECKS or _CHECKS_OF in {__name__}")
    return _CHECKS[type_]


_FIELDS: Final[Mapping[str, tuple[Any, Check]]] = MappingProxyType(
    {
        name: (SETTINGS[name].default, _check_of(name, type_))
        for kind in (EntityKind.QUEUE, EntityKind.TOPIC, EntityKind.SUBSCRIPTION)
        for name, type_ in settings_of(kind).items()
        if name in SETTINGS and not SETTINGS[name].is_answer and name not in _OF_A_PROFILE
    }
)
"""The default and the check of each setting that a description may have, except for sizes and authorization rules."""


def check_values(description: Description) -> None:
    """Check the settings that a description has, each by itself.

    Raises:
        InvalidOperationError: a value is out of its range.
    """
    for name, (_, check) in _FIELDS.items():
        if (value := getattr(description, name, None)) is not None:
            check(f"{name} of {description.name}", value)


def with_defaults(description: D) -> D:
    """Fill in the defaults of settings that do not depend on the namespace."""
    return replace(description, **_defaults_for(description))


def _defaults_for(description: Description) -> dict[str, Any]:
    """Return the defaults of the settings that a description lacks."""
    return {name: default for name, (default, _) in _FIELDS.items() if getattr(description, name, ...) is None}


def completed(description: D, profile: Profile) -> D:
    """Fill in the defaults of a description, and check it.

    Raises:
        InvalidOperationError: a value is out of its range.
    """
    check_values(description)
    if profile.sku is MessagingSku.BASIC:
        description = _fit_for_basic(description)
    stated = {"availability_status": EntityAvailabilityStatus.AVAILABLE, **_defaults_for(description)}
    stated["status"] = EntityStatus(description.status or stated["status"])  # may be given as text
    if not isinstance(description, TopicProperties) and description.forward_to:
        if description.requires_session:
            raise SettingError("Bad Request.", f"{description.name} requires sessions, which are not forwarded")
        stated["auto_delete_on_idle"] = UNLIMITED  # documented
    if not isinstance(description, SubscriptionProperties):
        _rules(f"authorization_rules of {description.name}", description.authorization_rules or [])
        stated["authorization_rules"] = _copies(description.authorization_rules)
        stated["enable_partitioning"] = _is_partitioned(description, profile)
        fragment_count = profile.fragment_count if stated["enable_partitioning"] else 1
        stated["max_size_in_megabytes"] = _size_in_megabytes(description, profile) * fragment_count
        stated["max_message_size_in_kilobytes"] = _message_size_in_kilobytes(description, profile)
    if isinstance(description, TopicProperties) and description.support_ordering is None:
        stated["support_ordering"] = not stated["enable_partitioning"]
    return replace(description, **stated)


def changed(before: D, after: D, profile: Profile) -> D:
    """Complete and check a new description of an existing entity; its size may be that of all fragments together.

    Raises:
        InvalidOperationError: a value is out of its range, or cannot be changed.
    """
    kept = {
        field.name: getattr(before, field.name)
        for field in fields(after)
        if getattr(after, field.name) is None and field.name in FIXED
    }
    after = replace(after, **kept)
    for name in FIXED:
        old, new = getattr(before, name, None), getattr(after, name, None)
        if old != new:
            kind, what = kind_of(before).capitalize(), f"{before.name} has {old}, not {new}"
            words = (
                f"Partitioning cannot be changed for {kind}."
                if name == "enable_partitioning"
                else f"The value for the {element_name(name)} property of an existing {kind} cannot be changed."
            )
            raise SettingError(words, f"{what}: delete and recreate the entity")
    if isinstance(before, SubscriptionProperties) or isinstance(after, SubscriptionProperties):
        return completed(after, profile)
    if before.enable_partitioning and after.max_size_in_megabytes is not None:
        single, rest = divmod(after.max_size_in_megabytes, profile.fragment_count)
        if not rest and single in profile.sizes_in_megabytes:
            after = replace(after, max_size_in_megabytes=single)
    return completed(after, profile)


def copy_of(description: D, availability: EntityAvailabilityStatus) -> D:
    """Return a description for a caller, who may change its lists and rules."""
    if isinstance(description, SubscriptionProperties):
        return replace(description, availability_status=availability)
    rules = _copies(description.authorization_rules)
    return replace(description, availability_status=availability, authorization_rules=rules)


def _copies(rules: list[AuthorizationRule] | None) -> list[AuthorizationRule]:
    return [replace(rule, rights=list(rule.rights)) for rule in rules or ()]


def with_rule_times(description: D, before: Description | None, at: datetime) -> D:
    """Return a completed description whose authorization rules have the times of their creation and last change.

    A new rule keeps the times that it was sent with.

    Args:
        before: the earlier description of the entity; None = it is new.
        at: the time of the request.
    """
    if isinstance(description, SubscriptionProperties):
        return description
    earlier = (
        {} if before is None else {each.key_name.casefold(): each for each in before.get("authorization_rules") or ()}
    )
    timed = []
    for rule in description.authorization_rules or ():
        known = earlier.get(rule.key_name.casefold())
        created, modified = rule.created_at_utc or at, rule.modified_at_utc or at
        if known is not None:
            created = known.created_at_utc or created
            is_same = replace(known, created_at_utc=rule.created_at_utc, modified_at_utc=rule.modified_at_utc) == rule
            modified = known.modified_at_utc or modified if is_same else at
        timed.append(replace(rule, created_at_utc=created, modified_at_utc=modified))
    return replace(description, authorization_rules=timed)


def check_api_version(description: QueueProperties | TopicProperties, api_version: str | None) -> None:
    """Check that an API version has the features of a description.

    Raises:
        InvalidOperationError: partitioning came with a later version.
    """
    if description.enable_partitioning and api_version is not None and api_version < PARTITIONING_API_VERSION:
        raise _refuse(
            f"{description.name} enables partitioning with api-version {api_version}: "
            f"use {PARTITIONING_API_VERSION} or later"
        )


def policy_of(
    description: Description,
    profile: Profile,
    topic: Policy | None = None,
) -> Policy:
    """Convert a complete description to the units of fragments.

    Args:
        topic: the policy of a subscription's topic, which sets the sizes.
    """
    policy = Policy(
        default_ttl_s=seconds_of(description.default_message_time_to_live),
        max_message_size_bytes=profile.max_message_size_bytes,
    )
    if topic is not None:
        policy.max_size_bytes, policy.max_message_size_bytes = topic.max_size_bytes, topic.max_message_size_bytes
    if not isinstance(description, SubscriptionProperties):
        fragment_count = profile.fragment_count if description.enable_partitioning else 1
        policy.max_size_bytes = (description.max_size_in_megabytes or 0) * MIB // fragment_count
        policy.max_message_size_bytes = (description.max_message_size_in_kilobytes or 0) * KIB
        policy.requires_duplicate_detection = bool(description.requires_duplicate_detection)
        policy.duplicate_window_s = seconds_of(description.duplicate_detection_history_time_window)
    if not isinstance(description, TopicProperties):
        policy.lock_duration_s = seconds_of(description.lock_duration)
        policy.max_delivery_count = description.max_delivery_count or 1
        policy.dead_letters_expired = bool(description.dead_lettering_on_message_expiration)
        policy.requires_session = bool(description.requires_session)
    return policy


def seconds_of(duration: timedelta | None) -> float:
    """Convert a duration to seconds; infinity = no limit."""
    return math.inf if duration is None or duration >= LEAST_UNLIMITED else duration.total_seconds()


def _fit_for_basic(description: D) -> D:
    """Check a description for the Basic tier, which has only plain queues and a time to live of at most 14 days."""
    if not isinstance(description, QueueProperties):
        raise _refuse(f"{description.name} is not a queue, but the Basic tier has only queues: use the Standard tier")
    for name, setting in SETTINGS.items():
        if not setting.is_in_basic and getattr(description, name):
            raise _refuse(f"{name} of {description.name} is not available in the Basic tier: leave it out")
    ttl = description.default_message_time_to_live
    if ttl is not None and _BASIC_TTL < ttl < LEAST_UNLIMITED:
        raise _refuse(f"default_message_time_to_live of {description.name} is {ttl}: Basic allows at most {_BASIC_TTL}")
    return replace(description, default_message_time_to_live=_BASIC_TTL if ttl is None else min(ttl, _BASIC_TTL))


def _is_partitioned(description: QueueProperties | TopicProperties, profile: Profile) -> bool:
    if profile.partitioning is Partitioning.ASKED:
        return bool(description.enable_partitioning)
    return profile.partitioning is Partitioning.ALWAYS


def _size_in_megabytes(description: QueueProperties | TopicProperties, profile: Profile) -> int:
    size = description.max_size_in_megabytes
    if size is None:
        return profile.sizes_in_megabytes[0]
    if size not in profile.sizes_in_megabytes:
        raise _refuse(
            f"max_size_in_megabytes of {description.name} is {size}: {profile.name} has "
            f"{', '.join(map(str, profile.sizes_in_megabytes))}"
        )
    return size


def _message_size_in_kilobytes(description: QueueProperties | TopicProperties, profile: Profile) -> int:
    default, size = profile.max_message_size_bytes // KIB, description.max_message_size_in_kilobytes
    if size is None or size == default:
        return default
    largest = profile.max_configurable_message_size_bytes
    if largest is None:
        raise SettingError(
            "Bad Request.",
            f"max_message_size_in_kilobytes of {description.name} is {size}: {profile.name} has {default} only",
        )
    if not default <= size <= largest // KIB:
        raise _refuse(
            f"The value for 'MaxMessageSizeInKilobytes' must be between {default} and {largest // KIB}: "
            f"max_message_size_in_kilobytes of {description.name} is {size}"
        )
    return size
