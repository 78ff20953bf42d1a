"""Repeats each row 2,000 times, in memory and over AMQP: `python -m tests.lifetimes [--repeats N] [ROW...]`."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from typing import Final

from sbclient.emulator import Emulator
from sbclient.testing import MemoryNamespace, VirtualLoop, served
from tests.lifetimes.counting import grown_by
from tests.lifetimes.rows import ROWS, Row, Scene, amqp_scene, memory_scene

SLOW_OVER_AMQP: Final = ("get no answer",)
"""A receiver waits at least 15 s for its link."""


async def in_memory(row: Row, repeats: int) -> dict[str, int]:
    async with memory_scene(MemoryNamespace("contoso")) as scene:
        return await measured(row, scene, repeats)


async def over_amqp(row: Row, repeats: int, emulator: Emulator) -> dict[str, int]:
    async with amqp_scene(emulator) as scene:
        return await measured(row, scene, repeats)


async def measured(row: Row, scene: Scene, repeats: int) -> dict[str, int]:
    return await grown_by(lambda: row(scene), scene.count_broker, repeats)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=2000)
    parser.add_argument("rows", nargs="*", metavar="ROW", help=", ".join(ROWS))
    arguments = parser.parse_args()
    failures = 0
    for name in arguments.rows or ROWS:
        for transport in ("memory",) if name in SLOW_OVER_AMQP else ("memory", "amqp"):
            began_at = time.monotonic()
            if transport == "memory":
                with asyncio.Runner(loop_factory=VirtualLoop) as runner:
                    grown = runner.run(in_memory(ROWS[name], arguments.repeats))
            else:
                with served("contoso", "contoso-backup") as emulator:
                    grown = asyncio.run(over_amqp(ROWS[name], arguments.repeats, emulator))
            failures += bool(grown)
            sys.stdout.write(f"{name}, {transport}: {grown or 'flat'} ({time.monotonic() - began_at:.1f} s)\n")
            sys.stdout.flush()
    sys.stdout.write(f"{failures} rows grow after {arguments.repeats} repetitions\n")
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main())
