"""The clients of other makers that are tested against the emulator, for the table in docs/emulator.md."""

from __future__ import annotations

import re
from importlib.metadata import version
from pathlib import Path
from typing import Final, NamedTuple

from tests.pages.table import page_table
from tests.wire import java_client, test_go, test_node

WIRE: Final = Path(__file__).parents[1] / "wire"

ALL_TRANSPORTS: Final = "plain, TLS, WebSockets"


class Client(NamedTuple):
    """A client and its checks."""

    name: str
    version: str
    check_count: int
    transports: str = ALL_TRANSPORTS


def clients() -> list[Client]:
    """Return the clients; the version of a Python package is the installed one.

    Raises:
        PackageNotFoundError: a Python package is not installed.
    """
    sdk, proton = version("azure-servicebus"), version("python-qpid-proton")
    return [
        Client("azure-servicebus, Python, asyncio", sdk, _count("test_sdk_aio.py")),
        Client("azure-servicebus, Python, blocking", sdk, _count("test_sdk_sync.py")),
        Client(
            "@azure/service-bus, JavaScript", _stated("node/package.json", r'service-bus": "\^?'), len(test_node.CHECKS)
        ),
        Client("azservicebus, Go", _stated("go/go.mod", r"/azservicebus v"), len(test_go.CHECKS)),
        Client("azure-messaging-servicebus, Java", _stated("java/pom.xml", "<version>(?=7)"), len(java_client.CHECKS)),
        Client("qpid-proton, Python", proton, _count("test_proton.py"), "plain, TLS; it has no WebSockets"),
    ]


def _count(name: str) -> int:
    """Return how many checks a file has, without the tests that report the checks that ran at once."""
    return len(re.findall(r"^(?:async )?def (?:check|test(?!_sdk))_", (WIRE / name).read_text(), re.M))


def _stated(name: str, before: str) -> str:
    found = re.search(before + r"([\d.]+)", (WIRE / name).read_text())
    assert found is not None
    return found[1]


TABLE: Final = page_table(
    "emulator.md", "clients", ("client", "version", "checks", "transports"), clients, needs="proton"
)
