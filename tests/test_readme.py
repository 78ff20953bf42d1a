"""What the README shows runs as it stands."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any, Final

import pytest

from sbclient import ServiceBusClient
from sbclient.transport.memory import drop_memory_host

ROOT: Final = Path(__file__).parents[1]
README: Final = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS: Final = re.findall(r"^```python\n(.*?)^```", README, re.M | re.S)


def run(block: str) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "readme"}
    exec(compile(block, "README.md", "exec"), names)
    return names


@pytest.mark.parametrize("position", range(len(BLOCKS)))
def test_each_block_runs(position: int) -> None:
    run(BLOCKS[position])


async def _with_a_queue(main: Any) -> int:
    try:
        async with ServiceBusClient.from_connection_string("memory://readme") as client:
            await client.administration.create_queue("orders")
            await main("memory://readme", "memory://readme-backup")
            return (await client.administration.get_queue_runtime_properties("orders")).active_message_count
    finally:
        drop_memory_host("readme")
        drop_memory_host("readme-backup")


def test_the_first_block_sends_a_message() -> None:
    main = run(BLOCKS[0])["main"]
    assert asyncio.run(_with_a_queue(main)) == 1


def test_the_install_commands_are_the_ones_that_are_checked() -> None:
    assert "python -m pip install . && sbclient demo" in README
    assert "python -m pip install -e '.[dev]' && python -m pytest" in README
    assert "pip install --quiet -e '.[dev]'" in (ROOT / ".ci/run").read_text()
