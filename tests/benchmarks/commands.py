"""Rows of commands as processes, with their start-up: `sbclient receive` and `sbclient send`."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from tests.benchmarks.row import BODY, Result, Settings, Side, in_pairs
from tests.benchmarks.sending import QUEUE
from tests.commands import SBCLIENT
from tests.stage.counting import EmulatorProcess

SESSIONS: Final = 500


async def receive_command(settings: Settings) -> Result:
    """Compare `sbclient receive` into a file with `sbclient send` of as many lines."""
    count = settings.count(50_000)
    sent = (BODY + b"\n") * count
    with EmulatorProcess() as server, TemporaryDirectory() as folder:
        server.create_queue(QUEUE)
        lines, received = Path(folder, "sent.txt"), Path(folder, "received.jsonl")
        await asyncio.to_thread(lines.write_bytes, sent)

        async def call(*arguments: str) -> None:
            environment = os.environ | {"SERVICEBUS_CONNECTION_STRING": server.primary}
            await asyncio.to_thread(_run, arguments, received, environment)

        async def send() -> None:
            await call("send", "--queue", QUEUE, "--input", str(lines))

        async def receive() -> None:
            await call("receive", "--queue", QUEUE, "--count", str(count))
            assert (await asyncio.to_thread(received.read_bytes)).count(b"\n") == count, "messages were not printed"
            assert not any(server.counts().values()), "messages were not completed"

        async def fill() -> None:
            server.empty()
            await send()

        async def empty() -> None:
            server.empty()

        return await in_pairs(
            server,
            Side("sbclient receive", count, receive, fill),
            [Side("sbclient send", count, send, empty)],
            settings,
        )


async def send_sessions(settings: Settings) -> Result:
    """Compare `sbclient send` of rows with many sessions with as many rows of one session."""
    count = settings.count(50_000)
    with EmulatorProcess() as server, TemporaryDirectory() as folder:
        server.create_queue(QUEUE, requires_session=True)
        environment = os.environ | {"SERVICEBUS_CONNECTION_STRING": server.primary}

        async def empty() -> None:
            server.empty()

        def side(sessions: int) -> Side:
            path = Path(folder, f"{sessions}.csv")
            path.write_text("session,body\n" + "".join(f"s{at % sessions},{BODY.decode()}\n" for at in range(count)))
            columns = ("--session-column", "session", "--body-column", "body")
            arguments = ("send", "--queue", QUEUE, "--input", str(path), *columns)

            async def send() -> None:
                await asyncio.to_thread(_run, arguments, Path(os.devnull), environment)

            return Side(f"{sessions} sessions", count, send, empty)

        return await in_pairs(server, side(SESSIONS), [side(1)], settings)


def _run(arguments: Sequence[str], output: Path, environment: Mapping[str, str]) -> None:
    command = [*SBCLIENT, *arguments]
    with output.open("wb") as file:
        subprocess.run(command, env=environment, stdout=file, stderr=subprocess.PIPE, check=True)
