"""One port for plain HTTP only."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Final

from sbclient.clock import Clock
from sbclient.emulator.context import ServerSettings
from sbclient.emulator.faults import WireFaults
from sbclient.emulator.net.http_messages import Handler
from sbclient.emulator.net.socket_stream import SocketStream
from sbclient.tasks import OwnedTasks

CONNECTIONS: Final = 100
"""Open at a time; further ones are reset."""


class HttpPort:
    """Serves HTTP/1.1 on one port.

    Args:
        handler: answers requests.
        clock: for all limits.
        settings: limits; None = the defaults.
    """

    def __init__(self, handler: Handler, clock: Clock, settings: ServerSettings | None = None) -> None:
        self._handler = handler
        self._faults = WireFaults(Random(0))  # no faults are injected here
        self._tasks = OwnedTasks()
        self._streams: set[SocketStream] = set()
        self._server: asyncio.Server | None = None
        self.clock = clock
        self.settings = settings or ServerSettings()

    async def start(self, host: str, port: int) -> int:
        """Listen; returns the port.

        Args:
            port: 0 = any free one.

        Raises:
            OSError: the port cannot be used.
        """
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._new_stream, host, port)
        return int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """Stop listening and end every connection. Safe to call twice."""
        if self._server is not None:
            self._server.close()
        await self._tasks.close()
        for stream in list(self._streams):
            stream.cut()
        if self._server is not None:
            await self._server.wait_closed()
        await self.clock.sleep(0)  # lets the last sockets close

    def _new_stream(self) -> SocketStream:
        return SocketStream(self._faults, self.clock, self._accepted, self._streams.discard)

    def _accepted(self, stream: SocketStream) -> None:
        if self._tasks.is_closed or len(self._streams) >= CONNECTIONS:
            stream.cut()
            return
        self._streams.add(stream)
        self._tasks.start(self._serve(stream), name=f"serve {stream.peer}")

    async def _serve(self, stream: SocketStream) -> None:
        from sbclient.emulator.net.http import serve_http  # imported late, for a fast start

        await serve_http(stream, self, b"", self._handler)
