"""A worker as a process: `sbclient syphon` with its HTTP port and its log."""

from __future__ import annotations

import asyncio
import http.client
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from tests.commands import SBCLIENT
from tests.limit import HANG_S
from tests.stage.namespaces import Namespace
from tests.stage.programs import Program, until

QUEUES: Final = 2
NAME: Final = "contoso"


class WorkerProcess:
    """One worker. It may be started again after it has ended.

    Attributes:
        program: the process.
    """

    def __init__(self, folder: Path, primary: Namespace, secondary: Namespace, name: str = "w") -> None:
        self._environment = {
            "SERVICEBUS_CONNECTION_STRING": primary.connection_string,
            "SERVICEBUS_SECONDARY_CONNECTION_STRING": secondary.connection_string,
        }
        self.program = Program(name, folder)

    def start(self, *arguments: str, **environment: str) -> None:
        """Run `sbclient syphon` with these arguments besides those that name the backlog queues."""
        command = [*SBCLIENT, "syphon", "--primary-name", NAME, "--backlog-queue-count", str(QUEUES), *arguments]
        self.program.start(command, self._environment | environment)

    async def run(self, *arguments: str) -> tuple[int | None, str, list[str]]:
        """Run it to its end; returns the exit status, what it printed, and those lines on stderr that are no events."""
        self.start(*arguments)
        status = await self.program.ended(HANG_S)
        said = self.program.file("log").read_text().splitlines()
        return status, self.program.file("out").read_text(), [line for line in said if not line.startswith("{")]

    @property
    def events(self) -> list[dict[str, Any]]:
        """What this life has logged so far."""
        lines = self.program.file("log").read_text().splitlines()
        return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]

    async def heard_of(self, name: str, times: int = 1) -> dict[str, Any]:
        """Wait for an event; returns it."""

        def found() -> list[dict[str, Any]]:
            return [event for event in self.events if event["event"] == name]

        assert await until(lambda: len(found()) >= times, HANG_S), self.program.output()
        return found()[times - 1]

    async def asked(self, path: str, method: str = "GET") -> tuple[int, str, bytes]:
        """What its HTTP port answers: status, content type, body."""
        port = (await self.heard_of("worker.listening"))["port"]

        def ask() -> tuple[int, str, bytes]:
            connection = http.client.HTTPConnection("127.0.0.1", port)
            try:
                connection.request(method, path)
                response = connection.getresponse()
                return response.status, response.headers["Content-Type"], response.read()
            finally:
                connection.close()

        return await asyncio.to_thread(ask)

    async def readiness(self) -> tuple[int, dict[str, Any]]:
        """The status and the words of `/readyz`."""
        status, _, body = await self.asked("/readyz")
        return status, json.loads(body)

    async def readiness_is(self, is_so: Callable[[int, dict[str, Any]], bool]) -> dict[str, Any]:
        """Wait until `/readyz` says so; returns what it says."""
        for _ in range(int(HANG_S / 0.1)):
            status, content = await self.readiness()
            if is_so(status, content):
                return content
            await asyncio.sleep(0.1)
        raise AssertionError(f"{status} {content}")

    def close(self) -> None:
        self.program.kill()


def drained_of(out: str) -> int:
    """The number in the JSON report."""
    return int(json.loads(out)["drained"])


def errors_in(said: Sequence[str]) -> list[str]:
    """The lines in which the command says what is wrong."""
    return [line for line in said if line.startswith("sbclient syphon:")]
