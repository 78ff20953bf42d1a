"""Reads the options of a data source by a table of settings. Option names are in camel case and ignore case."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from sbclient.settings.table import Kind, Setting, read_texts, settings_of

CLIENT_PREFIX: Final = "sbclient."
"""Prefix of options for fields of `PairedNamespaceOptions` and for the client's retry options."""

SPARK_OPTIONS: Final = ("checkpointlocation", "queryname")
"""Options of a streaming query, which Spark also passes to its sink."""


def table_of(settings: type[Any], others: Mapping[str, Kind]) -> dict[str, Setting]:
    """Return the options that a dataclass declares, and other options by name.

    The field `task_deadline_s` is the option `taskDeadline`.
    """
    rows = {
        name: Setting(name, name, kind, None, about="", group="", unit="", variable="", is_secret=False)
        for name, kind in others.items()
    }
    return rows | dict(settings_of(settings, name_of=_option_name))


def _option_name(field: str) -> str:
    first, *others = field.removesuffix("_s").split("_")
    return first + "".join(map(str.capitalize, others))


def read_options(options: Mapping[str, str], table: Mapping[str, Setting]) -> dict[str, Any]:
    """Return the checked values of options: by field for settings of a dataclass, else by name.

    Options with `CLIENT_PREFIX` are returned as text by their lower-case names.

    Raises:
        InvalidOperationError: a value is invalid, or an option is unknown.
    """
    texts = {name: str(value) for name, value in options.items() if name.lower() not in SPARK_OPTIONS}
    of_client = {name.lower(): text for name, text in texts.items() if name.lower().startswith(CLIENT_PREFIX)}
    own = {name: text for name, text in texts.items() if name.lower() not in of_client}
    return read_texts(own, table, "option") | of_client


def given_fields(settings: type[Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return those values that are settings of a dataclass, by field."""
    return {row.attribute: values[row.attribute] for row in settings_of(settings).values() if row.attribute in values}
