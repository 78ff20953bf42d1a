"""Writes the tables of docs/options.md from the code: `python -m tests.options_page`; test_options.py compares them."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import fields
from datetime import timedelta
from typing import Any, Final

from sbclient import PairedNamespaceOptions, ServiceBusClient
from sbclient.options import TRANSPORT_OPTIONS, RetryOptions
from tests.page_table import PageTable
from tests.reference_page import section_text

MODULE: Final = "tests.options_page"
COLUMNS: Final = ("option", "default", "unit", "amqp", "sdk", "meaning")
CLIENT: Final = PageTable("options.md", "options of a client", MODULE, COLUMNS)
TRANSPORT: Final = PageTable("options.md", "options of a transport", MODULE, COLUMNS)
PAIR: Final = PageTable("options.md", "options of a pair", MODULE, ("option", "default", "meaning"))


def _client_rows() -> Iterator[tuple[str, ...]]:
    meanings = _meanings(ServiceBusClient) | _meanings(RetryOptions)
    for each in inspect.signature(ServiceBusClient).parameters.values():
        if each.kind is each.KEYWORD_ONLY:
            of_sdk = "rejected" if each.name == "enable_cross_entity_transactions" else "yes"
            yield _row(each.name, f"`{each.default!r}`", "yes", of_sdk, meanings[each.name])


def _transport_rows() -> Iterator[tuple[str, ...]]:
    for name, option in TRANSPORT_OPTIONS.items():
        otherwise = "rejected" if option.ignored_because is None else "ignored"
        amqp, sdk = ("yes" if each in option.transports else otherwise for each in ("amqp", "sdk"))
        reason = f" (ignored: {option.ignored_because})" if "ignored" in (amqp, sdk) else ""
        yield _row(name, option.default, amqp, sdk, option.meaning + reason)


def _pair_rows() -> Iterator[tuple[str, ...]]:
    meanings = _meanings(PairedNamespaceOptions)
    for each in fields(PairedNamespaceOptions):
        shown = each.default.total_seconds() if isinstance(each.default, timedelta) else each.default
        yield f"`{each.name}`", f"{shown:g} s" if isinstance(shown, float) else f"`{shown!r}`", meanings[each.name]


def _row(name: str, default: str, amqp: str, sdk: str, meaning: str) -> tuple[str, ...]:
    unit = "s" if re.search(r"\bseconds\b", meaning) else ""
    return f"`{name}`", default, unit, amqp, sdk, meaning


def _meanings(documented: Any) -> dict[str, str]:
    """Return the meaning of each argument or attribute, from the docstring."""
    found = re.findall(r"^\* `([\w, ]+)`: (.*)$", section_text(documented.__doc__), re.M)
    return {name: text for names, text in found for name in names.split(", ")}


TABLES: Final[list[tuple[PageTable, Callable[[], Iterator[tuple[str, ...]]]]]] = [
    (CLIENT, _client_rows),
    (TRANSPORT, _transport_rows),
    (PAIR, _pair_rows),
]


def check() -> None:
    """Fail if a table in the page is out of date."""
    for table, rows in TABLES:
        table.check(rows())


if __name__ == "__main__":
    for table, rows in TABLES:
        table.write(rows())
