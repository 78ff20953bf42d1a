"""The AMQP engine's client on a socket, without the layers above it: as fast as Python can ask a server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from sbclient.amqp import (
    ACCEPTED,
    Connection,
    ConnectionOptions,
    DispositionReceived,
    DispositionsReceived,
    IncomingLink,
    LinkAttached,
    OutgoingLink,
    PlainCredentials,
    Target,
)
from sbclient.emulator.sas import ROOT_KEY, ROOT_KEY_NAME

WINDOW: Final = 200
"""Number of transfers in flight."""


class EngineClient:
    """The engine's client role on a socket: as fast as Python can ask."""

    def __init__(self, port: int) -> None:
        self._port = port
        options = ConnectionOptions(container_id="bench", hostname="h")
        credentials = PlainCredentials(ROOT_KEY_NAME, ROOT_KEY)
        self.engine = Connection.client(options, now=time.monotonic(), mechanism="PLAIN", credentials=credentials)

    async def __aenter__(self) -> EngineClient:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.engine.close(now=time.monotonic())
        self.flush()
        self._writer.close()
        await self._writer.wait_closed()

    def flush(self) -> None:
        if output := self.engine.bytes_to_send(now=time.monotonic()):
            self._writer.write(output)

    async def events(self, answer: Callable[[Any], bool]) -> None:
        """Let `answer` see every event until it returns True."""
        self.flush()
        while True:
            chunk = await self._reader.read(262_144)
            assert chunk, "the server hung up"
            self.engine.receive_bytes(chunk, now=time.monotonic())
            is_done = False
            while (event := self.engine.next_event()) is not None:
                is_done = answer(event) or is_done
            self.flush()
            if is_done:
                return

    async def attached(self, link: OutgoingLink | IncomingLink) -> None:
        await self.events(lambda event: isinstance(event, LinkAttached) and event.link is link)

    async def send(self, path: str, payloads: Sequence[bytes], *, message_format: int = 0) -> None:
        """Send encoded messages or batches; return when the server has accepted all of them."""
        link = self.engine.begin().attach_sender("s", target=Target(address=path))
        await self.attached(link)
        sent = answered = 0

        def more(event: Any) -> bool:
            nonlocal sent, answered
            if isinstance(event, DispositionReceived):
                assert event.state == ACCEPTED
                answered += 1
            elif isinstance(event, DispositionsReceived):
                assert event.state == ACCEPTED
                answered += len(event.deliveries)
            while sent < len(payloads) and sent - answered < WINDOW:
                tag = sent.to_bytes(4, "big")
                link.send(payloads[sent], tag=tag, message_format=message_format, needs_credit=False)
                sent += 1
            return answered == len(payloads)

        more(None)
        await self.events(more)
