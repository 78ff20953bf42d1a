"""Reads the options of a data source by a table: every value is checked by name, an unknown name is refused."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, Final

from sbclient.errors import InvalidOperationError
from sbclient.settings.values import Parser

SPARKS_OWN: Final = ("checkpointlocation", "queryname")
"""Options of a streaming query itself, which Spark hands to its sink along with the sink's own."""


def read_options(
    options: Mapping[str, str], table: Mapping[str, Parser], *, prefix: str | None = None, what: str
) -> dict[str, Any]:
    """The parsed value of every option that is given, by the name the table knows it by.

    Spark hands over the keys in lower case, so case never distinguishes two options.

    Args:
        options: as Spark hands them over.
        table: every option that there is.
        prefix: options that begin so are handed on as they are, under their lower-case names.
        what: "writing" or "reading", for the error.

    Raises:
        InvalidOperationError: a value cannot be used, or nothing is known by that name; the nearest name is said.
            Values are never repeated where the name is unknown: somebody may have put a secret there.
    """
    known = {name.lower(): name for name in table}
    found: dict[str, Any] = {}
    for key, value in options.items():
        lowered = key.lower()
        name = known.get(lowered)
        if lowered in SPARKS_OWN:
            continue
        if name is not None:
            found[name] = table[name](name, str(value))
        elif prefix is not None and lowered.startswith(prefix):
            found[lowered] = str(value)
        else:
            near = get_close_matches(lowered, known, n=1, cutoff=0.5)
            hint = f"did you mean {known[near[0]]}?" if near else f"known are {', '.join(table)}"
            raise InvalidOperationError(f"there is no option {key!r} for {what} servicebus: {hint}")
    return found
