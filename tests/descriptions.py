"""Other values for the settings of queues, topics and subscriptions."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from sbclient.entities import SETTINGS, AccessRights, AuthorizationRule, EntityKind, EntityStatus, settings_of


def another_value(kind: EntityKind, name: str, before: Any, target: str) -> Any:
    """Return a value of a setting that is not the one before."""
    setting, of_type = SETTINGS[name], settings_of(kind)[name]
    if setting.is_path:
        return target
    if of_type is bool:
        return not before
    if of_type is timedelta:
        return (setting.least or timedelta()) + timedelta(minutes=2)
    if issubclass(of_type, EntityStatus):
        return EntityStatus.DISABLED
    if of_type is list:
        return [AuthorizationRule(key_name="other", rights=[AccessRights.SEND])]
    return 2048 if of_type is int else "other"
