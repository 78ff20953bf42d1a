"""A running worker, a backlog for it, and a service manager that receives its notifications."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any, Self, cast

from sbclient.emulator.net.http_messages import Connection, Request
from sbclient.message import ServiceBusMessage
from sbclient.syphon.syphon import SyphonReport
from sbclient.testing import MemoryPair
from sbclient.worker.service import SyphonWorker
from sbclient.worker.settings import WorkerSettings
from sbclient.worker.systemd import ServiceManager
from tests.client.scene import QUEUE, options


async def make_backlog(pair: MemoryPair, *numbers: int, queue: str = QUEUE, **pairing: Any) -> None:
    """Create the backlog queues, and divert a message to them for each number."""
    async with pair.client(options(**pairing)) as client:
        if numbers:
            client.pair.force_failover(queue)
            async with client.get_queue_sender(queue) as sender:
                for number in numbers:
                    await sender.send_messages(ServiceBusMessage(f"{queue} {number}", session_id=str(number % 3)))


class Run:
    """A running worker on a pair.

    Attributes:
        worker: the worker.
    """

    def __init__(self, pair: MemoryPair, *, environment: dict[str, str] | None = None, **chosen: Any) -> None:
        settings = WorkerSettings(**chosen)
        self.worker = SyphonWorker(settings, pair.client(settings.pairing()), manager=ServiceManager(environment or {}))
        self._task = asyncio.ensure_future(self.worker.run())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        self.worker.stop("the test is over")
        await asyncio.wait([self._task])

    @property
    def state(self) -> str:
        return str(self.worker.state)

    @property
    def reasons(self) -> list[str]:
        return [reason.text for reason in self.worker.reasons_against()]

    async def ended(self, reason: str | None = "the test says so") -> SyphonReport:
        """Stop the worker, unless the reason is None, and wait for its end."""
        if reason is not None:
            self.worker.stop(reason)
        return await self._task


class Listener:
    """The service manager's end of the socket `NOTIFY_SOCKET`."""

    def __init__(self, folder: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.path = str(folder / "notify")
        self._socket.bind(self.path)
        self._socket.setblocking(False)

    def heard(self) -> list[dict[str, str]]:
        """The notifications since the last call, each by name, such as `READY`."""
        heard: list[dict[str, str]] = []
        while True:
            try:
                lines = self._socket.recv(4096).decode().splitlines()
            except BlockingIOError:
                return heard
            heard.append(dict(line.split("=", 1) for line in lines))

    def close(self) -> None:
        self._socket.close()


def request_to(
    path: str, method: str = "GET", *, client: str = "127.0.0.1:50123", host: str = "localhost", **headers: str
) -> Request:
    """A request to the port of a worker."""
    segments = tuple(filter(None, path.split("/")))
    return Request(method, segments, {}, {"host": host, **headers}, b"", client, connection=cast(Connection, None))
