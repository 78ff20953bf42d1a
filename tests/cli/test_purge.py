"""`sbclient admin purge` on an emulator in another thread."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import pytest
from typer.testing import Result

from sbclient import ServiceBusClient, ServiceBusMessage
from sbclient.emulator.emulator import Emulator
from sbclient.testing import served
from tests.commands import call


@pytest.fixture(scope="module")
def emulator() -> Iterator[Emulator]:
    with served("contoso") as found:
        for name in ("orders", "visits"):
            found.create_queue(name)
        yield found


@pytest.fixture(autouse=True)
def _messages(emulator: Emulator) -> None:
    """Two messages in one queue, and one in the other."""
    emulator.purge()

    async def main() -> None:
        async with ServiceBusClient.from_connection_string(emulator.connection_string) as client:
            for name, count in (("orders", 2), ("visits", 1)):
                async with client.get_queue_sender(name) as sender:
                    await sender.send_messages([ServiceBusMessage("x")] * count)

    asyncio.run(main())


def purge(emulator: Emulator, *arguments: str, status: int = 0) -> Result:
    return call("admin", "purge", "--primary", emulator.connection_string, *arguments, status=status)


def test_one_entity_is_purged_and_stays(emulator: Emulator) -> None:
    assert purge(emulator, "orders", "--yes").stdout == "removed 2 messages of orders\n"
    assert json.loads(purge(emulator, "orders", "--yes", "--json").stdout) == {"purged": 0}
    assert json.loads(purge(emulator, "visits", "--yes", "--json").stdout) == {"purged": 1}


def test_all_entities_are_purged(emulator: Emulator) -> None:
    assert purge(emulator, "--all", "-y").stdout == "removed 3 messages of all entities\n"


@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        (["--yes"], 2, "give the path of an entity, or --all"),
        (["orders", "--all", "--yes"], 2, "give the path of an entity, or --all"),
        (["orders"], 2, "Remove all messages of orders? Stdin is not a terminal: confirm with --yes"),
        (["ordres", "--yes"], 5, "entity 'ordres' does not exist"),
        (["--all", "--yes", "--primary", "memory://x"], 2, "only an emulator can do this"),
    ],
)
def test_a_mistake_removes_nothing(emulator: Emulator, arguments: list[str], status: int, text: str) -> None:
    assert text in purge(emulator, *arguments, status=status).stderr
    assert json.loads(purge(emulator, "--all", "--yes", "--json").stdout) == {"purged": 3}
