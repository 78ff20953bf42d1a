"""Every known difference from Service Bus and from azure-servicebus, as a list that ships with the package.

The list is `deviations.json` beside this file; docs/deviations.md is made of it by `python -m sbclient.deviations`.
"""

from __future__ import annotations

import json
import sys
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
"""What a deviation can be about, in the order of the page, and what that is called there."""


@dataclass(frozen=True, slots=True)
class Deviation:
    """One difference.

    Attributes:
        id: names it for ever; begins with its area.
        area: one of `AREAS`.
        service: what Service Bus does; its SDK, where that is said.
        ours: what is done here.
        why: the reason.
        since: the version that it came with.
    """

    id: str
    area: str
    service: str
    ours: str
    why: str
    since: str


@cache
def deviations() -> Sequence[Deviation]:
    """All of them, by area."""
    text = Path(__file__).with_suffix(".json").read_text(encoding="utf-8")
    return tuple(Deviation(**each) for each in json.loads(text))


def page() -> str:
    """The list as docs/deviations.md."""
    lines = [
        "# Deviations from Service Bus",
        "",
        "Known differences from Azure Service Bus, from its Python SDK, and from the paired namespaces of its former",
        ".NET client. A difference that is not listed is a bug. The same list as JSON: `sbclient/deviations.json`, or",
        "`sbclient emulator --deviations --json`.",
    ]
    for area, title in AREAS.items():
        lines += ["", f"## {title}", "", "| id | Service Bus | sbclient | reason |", "|---|---|---|---|"]
        lines += [
            f"| `{each.id}` | {each.service} | {each.ours} | {each.why} |" for each in deviations() if each.area == area
        ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(page())
