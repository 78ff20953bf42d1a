"""The tables of options in docs/options.md, docs/syphon.md and docs/spark-reference.md."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from functools import partial
from typing import Any, Final

from sbclient import ServiceBusClient
from sbclient.options import PAIR_OPTIONS, RETRY_OPTIONS, TRANSPORT_OPTIONS
from sbclient.settings.kinds import FLAG
from sbclient.worker.settings import SETTINGS
from tests.pages.reference import section_text
from tests.pages.table import page_table

COLUMNS: Final = ("option", "default", "unit", "amqp", "sdk", "meaning")
VALUE_COLUMNS: Final = ("option", "value", "default", "meaning")
SETTING_COLUMNS: Final = ("option", "environment variable", "in the file", "value", "unit", "default", "description")


def _client_rows() -> Iterator[tuple[str, ...]]:
    meanings = _meanings(ServiceBusClient) | {name: row.about for name, row in RETRY_OPTIONS.items()}
    for each in inspect.signature(ServiceBusClient).parameters.values():
        if each.kind is each.KEYWORD_ONLY:
            unit = "s" if each.name in RETRY_OPTIONS and RETRY_OPTIONS[each.name].unit == "seconds" else ""
            of_sdk = "rejected" if each.name == "enable_cross_entity_transactions" else "yes"
            yield f"`{each.name}`", f"`{each.default!r}`", unit, "yes", of_sdk, meanings[each.name]


def _transport_rows() -> Iterator[tuple[str, ...]]:
    for name, option in TRANSPORT_OPTIONS.items():
        otherwise = "rejected" if option.ignored_because is None else "ignored"
        amqp, sdk = ("yes" if each in option.transports else otherwise for each in ("amqp", "sdk"))
        reason = f" (ignored: {option.ignored_because})" if "ignored" in (amqp, sdk) else ""
        unit = "s" if re.search(r"\bseconds\b", option.meaning) else ""
        yield f"`{name}`", option.default, unit, amqp, sdk, option.meaning + reason


def _pair_rows() -> Iterator[tuple[str, ...]]:
    for each in PAIR_OPTIONS.values():
        yield f"`{each.name}`", each.kind.word, each.shown(each.default), each.about


def _meanings(documented: Any) -> dict[str, str]:
    """Return the meaning of each argument or attribute, from the docstring."""
    found = re.findall(r"^\* `([\w, ]+)`: (.*)$", section_text(documented.__doc__), re.M)
    return {name: text for names, text in found for name in names.split(", ")}


def _setting_rows(group: str) -> Iterator[tuple[str, ...]]:
    for each in SETTINGS.values():
        if each.group == group:
            option = f"`{each.option}`"
            if each.kind is FLAG:
                option += f", `--no-{each.option.removeprefix('--')}`"
            key = "" if each.is_secret else f"`{each.name}`"
            shown = each.shown(each.default)
            yield option, f"`{each.variable}`", key, each.kind.word, each.unit, shown, each.about


def _spark_rows(operation: str) -> Iterator[tuple[str, ...]]:
    """Yield the options of Spark for `reading`, for `writing`, or for `both`."""
    from sbclient_spark.options import SECRETS, places_of
    from sbclient_spark.read.options import READ_TABLE
    from sbclient_spark.write.options import WRITE_TABLE

    shared = READ_TABLE.keys() & WRITE_TABLE.keys()
    table = WRITE_TABLE if operation == "writing" else READ_TABLE
    others = {place for secret in SECRETS for place in places_of(secret)[1:]}
    for name, row in table.items():
        if name not in others and (name in shared) is (operation == "both"):
            names = places_of(name) if name in SECRETS else (name,)
            yield (
                ", ".join(f"`{each}`" for each in names),
                row.kind.word,
                row.shown(row.default),
                row.about + (row.group and f" Only of {row.group}."),
            )


TABLES: Final = [
    page_table("options.md", "options of a client", COLUMNS, _client_rows),
    page_table("options.md", "options of a transport", COLUMNS, _transport_rows),
    page_table("options.md", "options of a pair", VALUE_COLUMNS, _pair_rows),
    *(
        page_table("syphon.md", f"settings: {group}", SETTING_COLUMNS, partial(_setting_rows, group))
        for group in dict.fromkeys(each.group for each in SETTINGS.values())
    ),
    *(
        page_table(
            "spark-reference.md", f"options for {each}", VALUE_COLUMNS, partial(_spark_rows, each), needs="pyspark"
        )
        for each in ("both", "writing", "reading")
    ),
]
