"""The requests of the emulator, for docs/page.md and docs/emulator.md."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from sbclient.emulator.control import api as control
from sbclient.emulator.messaging import api as messaging
from sbclient.emulator.page.watch_api import RESOURCES
from tests.pages.table import page_table


def _of_control() -> Iterator[tuple[str, str]]:
    for name, about in RESOURCES.items():
        yield f"`GET {name}`", about
    for name, routes in control.ROUTES.items():
        for method, route in routes.items():
            query = f"?{route.query}=" if route.query else ""
            yield f"`{method} {name}{query}`", route.about


def _of_messages() -> Iterator[tuple[str, str, str]]:
    for (method, kind), route in messaging.ROUTES.items():
        yield f"`{method} /{{path}}/{messaging.TARGETS[kind]}`", route.about, route.success


TABLES: Final = [
    page_table("page.md", "requests of the control API", ("request", "effect"), _of_control),
    page_table("emulator.md", "requests on messages", ("request", "effect", "success"), _of_messages),
]
