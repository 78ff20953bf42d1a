"""The list of known differences from Service Bus and from azure-servicebus.

The list is `deviations.json` in this folder. `python -m tests.pages` generates docs/deviations.md from it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

AREAS: Final = {
    "broker": "The broker",
    "emulator": "The broker over the network",
    "client": "The client compared with azure-servicebus",
    "pairing": "Paired namespaces compared with the .NET client",
}
"""The areas of deviations and their titles, in the order of the page."""


@dataclass(frozen=True, slots=True)
class Deviation:
    """A known difference.

    Attributes:
        id: a permanent id; begins with its area.
        area: one of `AREAS`.
        service: the behaviour of Service Bus, or of its SDK if the text says so.
        ours: the behaviour of this package.
        why: the reason.
        since: the first version with this difference.
    """

    id: str
    area: str
    service: str
    ours: str
    why: str
    since: str


@cache
def deviations() -> Sequence[Deviation]:
    """Return all deviations, grouped by area."""
    text = Path(__file__).with_suffix(".json").read_text(encoding="utf-8")
    return tuple(Deviation(**each) for each in json.loads(text))


def page() -> str:
    """Return the content of docs/deviations.md."""
    lines = [
        "# Deviations from Service Bus",
        "",
        "Known differences from Azure Service Bus, from its Python SDK, and from the paired namespaces of its former",
        ".NET client. A difference that is not listed is a bug. The same list as JSON:",
        "`sbclient emulator --deviations --json`.",
    ]
    for area, title in AREAS.items():
        lines += ["", f"## {title}", "", "| id | Service Bus | sbclient | reason |", "|---|---|---|---|"]
        lines += [
            f"| `{each.id}` | {each.service} | {each.ours} | {each.why} |" for each in deviations() if each.area == area
        ]
    return "\n".join(lines) + "\n"
