"""Merges the worker's settings: options take precedence over the environment, then the file, then the defaults.

The table of settings checks every value. Errors name the origin of the value.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

from sbclient.errors import InvalidOperationError
from sbclient.rules.connection_string import parse_connection_string
from sbclient.settings.table import Setting
from sbclient.worker.settings import SETTINGS, VARIABLE_PREFIX, WorkerSettings
from sbclient.worker.settings_file import SettingsFile, read_secret

CONFIG_VARIABLE: Final = f"{VARIABLE_PREFIX}CONFIG"
"""Environment variable with the path of the settings file."""

NOT_SET: Final = "default"
"""Origin of a setting that is not set."""

_SIDES: Final = ("primary", "secondary")
_KUBERNETES_VARIABLE: Final = re.compile(r"(?:.*_)?(?:SERVICE_HOST|SERVICE_PORT(?:_.*)?|PORT(?:_\d+_.*)?)")
"""Variables that Kubernetes sets in each pod, named after its services."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """The settings, with the origin of each, and warnings about them."""

    settings: WorkerSettings
    origins: Mapping[str, str]
    warnings: Sequence[str] = ()

    def rows(self) -> list[dict[str, Any]]:
        """Return name, value and origin of each setting for display, without secrets."""
        return [
            {
                "name": setting.name,
                "value": setting.shown(getattr(self.settings, setting.name)),
                "from": self.origins[setting.name],
            }
            for setting in SETTINGS.values()
        ]


@dataclass(frozen=True, slots=True)
class _Given:
    text: str = field(repr=False)  # may be a connection string
    origin: str
    rank: int
    base: Path


def configure(
    options: Mapping[str, str | bool | list[str] | None], environment: Mapping[str, str], file: SettingsFile | None
) -> Configuration:
    """Return the merged and checked settings.

    Args:
        options: values of the command line by name; None or an empty list = not given.
        environment: all variables; only the two connection strings and names with the prefix are used.
        file: content of the settings file; None = no file.

    Raises:
        InvalidOperationError: a value is invalid, a name is unknown, or a namespace is not set.
    """
    _check_variables(environment)
    given = {name: one for name, setting in SETTINGS.items() if (one := _given(setting, options, environment, file))}
    origins = dict.fromkeys(SETTINGS, NOT_SET) | {name: one.origin for name, one in given.items()}
    values = {name: _parsed(SETTINGS[name], one) for name, one in given.items()}
    for side in _SIDES:
        values[side], origins[side] = _connection_string(side, given)
    settings = WorkerSettings(**values)
    last = settings.backlog_queue_count - 1
    if settings.queue is not None and settings.queue[-1] > last:
        raise InvalidOperationError(
            f"queue is {settings.queue[-1]} ({origins['queue']}): the backlog queues have the numbers 0 to {last}; "
            "if there are more, raise backlog_queue_count"
        )
    return Configuration(settings, origins, tuple(filter(None, (_overridden(side, given) for side in _SIDES))))


def _given(
    setting: Setting,
    options: Mapping[str, str | bool | list[str] | None],
    environment: Mapping[str, str],
    file: SettingsFile | None,
) -> _Given | None:
    here = Path()
    option = options.get(setting.name)
    if option is not None and option != []:
        text = (
            str(option).lower()
            if isinstance(option, bool)
            else ",".join([option] if isinstance(option, str) else option)
        )
        return _Given(text, f"option {setting.option}", 0, here)
    if environment.get(setting.variable):
        return _Given(environment[setting.variable], f"environment variable {setting.variable}", 1, here)
    if file is not None and setting.name in file.values:
        return _Given(file.values[setting.name], file.origins[setting.name], 2, file.path.parent)
    return None


def _parsed(setting: Setting, given: _Given) -> Any:
    try:
        return setting.kind.parse(setting.name, given.text)
    except InvalidOperationError as error:
        raise InvalidOperationError(f"{error.message.removeprefix('option ')} ({given.origin})") from None


def _connection_string(side: str, given: Mapping[str, _Given]) -> tuple[str, str]:
    """Return the connection string of one namespace and its origin."""
    setting, of_file = SETTINGS[side], SETTINGS[f"{side}_file"]
    direct, named = given.get(side), given.get(of_file.name)
    if direct is not None and named is not None and direct.rank == named.rank:
        raise InvalidOperationError(
            f"both {direct.origin} and {named.origin} set the {side} namespace: set only one of them"
        )
    if direct is not None and (named is None or direct.rank < named.rank):
        text, origin, file = direct.text, direct.origin, None
    elif named is not None:
        text, origin = read_secret(of_file.name, named.text, named.base), f"{of_file.name}, {named.origin}"
        file = named.base / named.text
    else:
        what = "which receives the messages" if side == "primary" else "which has the backlog"
        raise InvalidOperationError(
            f"the {side} namespace, {what}, is not set: set {setting.variable}, or {of_file.name} to the path of a "
            "file that contains its connection string"
        )
    try:
        connection = parse_connection_string(text)
        if file is not None and not connection.is_memory and connection.credential_file is None:
            text = connection.without_credential(str(file.resolve()))  # the worker reads it again
    except InvalidOperationError as error:
        raise InvalidOperationError(f"{error.message} ({side}, {origin})") from None
    return text, origin


def _overridden(side: str, given: Mapping[str, _Given]) -> str | None:
    """Return a warning if a connection string hides the file that another place names: its new keys have no effect."""
    direct, named = given.get(side), given.get(f"{side}_file")
    if direct is None or named is None or direct.rank > named.rank:
        return None
    return (
        f"{direct.origin} overrides {side}_file ({named.origin}), so a new key in {named.text!r} has no effect: remove "
        "one of the two"
    )


def _check_variables(environment: Mapping[str, str]) -> None:
    known = {setting.variable for setting in SETTINGS.values()} | {CONFIG_VARIABLE}
    for variable in sorted(environment):
        rest = variable.removeprefix(VARIABLE_PREFIX)
        if rest == variable or variable in known or _KUBERNETES_VARIABLE.fullmatch(rest):
            continue
        near = get_close_matches(rest.lower(), SETTINGS, n=1, cutoff=0.5)
        advice = (
            f"did you mean {SETTINGS[near[0]].variable}?" if near else f"settings are named {VARIABLE_PREFIX}<NAME>"
        )
        raise InvalidOperationError(f"the environment variable {variable} is not a setting: {advice}")
