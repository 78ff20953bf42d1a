"""The output of `sbclient admin`: entities as text and as JSON."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any, Final

from sbclient.cli.common import cell, make_console, print_line
from sbclient.cli.json_values import plain
from sbclient.cli.table import table

SECRET: Final = "authorization_rules"
"""These contain keys and are never printed."""

_COLUMNS: Final = {
    "queue": ("status", "availability_status", "enable_partitioning", "requires_session", "max_delivery_count"),
    "topic": ("status", "availability_status", "enable_partitioning", "requires_duplicate_detection"),
    "subscription": ("status", "availability_status", "requires_session", "max_delivery_count", "forward_to"),
    "rule": ("filter", "action"),
}
_COUNTS: Final = ("active_message_count", "dead_letter_message_count", "scheduled_message_count")


def shown(value: Any) -> dict[str, Any]:
    """Return all fields of a description or its counts; None stands for unset, no limit and never."""
    return {field.name: _plain(getattr(value, field.name)) for field in fields(value) if field.name != SECRET}


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        kind = type(value).__name__.removesuffix("RuleFilter").removesuffix("RuleAction").lower()
        return {"type": kind} | {name: each for name, each in shown(value).items() if each is not None}
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    return value if value is None or isinstance(value, str | bool | int | float) else plain(value)


def print_description(description: dict[str, Any]) -> None:
    """Print each field that is set and limited as a name and a value on one line."""
    lines = _flat(description)
    width = max(len(name) for name, _ in lines)
    for name, value in lines:
        print_line(f"{name:{width}}  {value}")


def _flat(description: dict[str, Any]) -> list[tuple[str, str]]:
    lines = []
    for name, value in description.items():
        if name == "runtime":
            lines += [each for each in _flat(value) if each[0] != "name"]
        elif value is not None:
            lines.append((name, _text(value)))
    return lines


def print_list(kind: str, found: list[dict[str, Any]]) -> None:
    """Print a table with the main fields of each entity."""
    if not found:
        return
    fields = ("name", *_COLUMNS[kind])
    counts = _COUNTS if "runtime" in found[0] else ()
    headers = [name.removesuffix("_status").removeprefix("enable_").replace("_", " ") for name in fields]
    numbers = [name.removesuffix("_message_count").replace("_", " ") for name in counts]
    rows = [
        [cell(_text(each[name])) for name in fields] + [cell(f"{each['runtime'][name]:,}") for name in counts]
        for each in found
    ]
    console = make_console()
    console.print(table([*headers, *numbers], rows, console.width, numbers=numbers))


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        if value.keys() == {"type", "sql_expression"}:
            return str(value["sql_expression"])
        return " ".join(str(each) if name == "type" else f"{name}={each!r}" for name, each in value.items())
    return "" if value is None else str(value)
