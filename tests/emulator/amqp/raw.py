"""A client that is nothing but frames: a test chooses each frame, and which frames share one write."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from sbclient.amqp import Attach, Sections, Source, Target
from sbclient.amqp.frames import AMQP_HEADER, SASL_HEADER, TYPE_AMQP, TYPE_SASL, FrameReader, encode_frame
from sbclient.amqp.performatives import Begin, Detach, Disposition, Flow, Open, SaslInit, SaslOutcome, Transfer
from sbclient.amqp.sections import Properties
from sbclient.amqp.states import DeliveryState
from sbclient.emulator.amqp.connection import serve_amqp
from sbclient.emulator.context import NamespaceContext
from sbclient.emulator.sas import ROOT_KEY, ROOT_KEY_NAME
from tests.emulator.amqp.client import wire
from tests.payloads import encode_sections

P = TypeVar("P")

PLAIN_RESPONSE = b"\x00" + ROOT_KEY_NAME.encode() + b"\x00" + ROOT_KEY.encode()
RECEIVER, SENDER = True, False


class Raw:
    """The client's end of a connection."""

    def __init__(self, read: Callable[[], Awaitable[bytes]], write: Callable[[bytes], None]) -> None:
        self._read, self._write = read, write
        self._reader = FrameReader(65_536)
        self._kept: list[Any] = []
        self._expected = TYPE_SASL
        self.outcome: SaslOutcome | None = None
        self.begun: Begin | None = None
        self.payloads: dict[int, bytes] = {}
        """The bytes of each received transfer, by delivery id."""

    async def open(self, *, mechanism: str = "PLAIN", **fields: Any) -> Open:
        """Exchange the headers, SASL, open and begin; returns the server's open."""
        response = PLAIN_RESPONSE if mechanism == "PLAIN" else b""
        self._write(SASL_HEADER + encode_frame(0, SaslInit(mechanism, response), 512, TYPE_SASL))
        await self._header()
        self.outcome = await self.next(SaslOutcome)
        begin = Begin(None, 0, 5_000, 5_000)
        self._write(AMQP_HEADER)
        self.write(Open("raw", **fields), begin)
        await self._header()
        self._expected = TYPE_AMQP
        opened = await self.next(Open)
        self.begun = await self.next(Begin)
        return opened

    def write(self, *frames: Any, channel: int = 0) -> None:
        """Send frames of a channel, each a performative or a transfer with its payload, in one write."""
        written = b""
        for frame in frames:
            performative, payload = frame if type(frame) is tuple else (frame, b"")
            encoded = encode_frame(channel, performative, 65_536)
            size = len(encoded) + len(payload)
            written += size.to_bytes(4, "big") + encoded[4:] + payload
        self._write(written)

    async def _header(self) -> None:
        while self._reader.next_header() is None:
            self._reader.feed(await self._read())

    async def next(self, kind: type[P], *, within_s: float = 30.0) -> P:
        """The next frame of a kind; frames of other kinds are kept for later calls.

        Raises:
            TimeoutError: none came.
        """
        async with asyncio.timeout(within_s):
            while True:
                for position, frame in enumerate(self._kept):
                    if isinstance(frame, kind):
                        del self._kept[position]
                        return frame
                await self._take_frame()

    def frames(self, kind: type[P]) -> list[P]:
        """The frames of a kind that are kept."""
        return [frame for frame in self._kept if isinstance(frame, kind)]

    async def _take_frame(self) -> None:
        while (frame := self._reader.next_frame(self._expected)) is None:
            if not (piece := await self._read()):
                raise ConnectionError("the server has closed the connection")
            self._reader.feed(piece)
        if isinstance(frame.performative, Transfer) and frame.performative.delivery_id is not None:
            self.payloads[frame.performative.delivery_id] = frame.payload
        if frame.performative is not None:
            self._kept.append(frame.performative)

    async def messages(self, count: int, *, within_s: float = 2.0) -> list[str]:
        """The bodies of the next messages."""
        texts = []
        for _ in range(count):
            transfer = await self.next(Transfer, within_s=within_s)
            assert transfer.delivery_id is not None
            texts.append(b"".join(Sections(self.payloads[transfer.delivery_id]).data()).decode())
        return texts

    async def request(
        self,
        node: str,
        operation: str,
        body: Any,
        *,
        state: DeliveryState | None = None,
        delivery_id: int = 0,
        **arguments: Any,
    ) -> Sections:
        """Ask a node on links of its own, with the handles 100 and 101."""
        properties = Properties(message_id="1", reply_to="here")
        payload = encode_sections(
            properties=properties, application_properties={"operation": operation, **arguments}, value=body
        )
        self.write(
            Attach("to", 100, SENDER, source=Source("here"), target=Target(node), initial_delivery_count=0),
            Attach("from", 101, RECEIVER, source=Source(node), target=Target("here")),
            flow(101, credit=10),
            (Transfer(100, delivery_id, b"1", 0, settled=True, state=state), payload),
        )
        transfer = await self.next(Transfer)
        assert transfer.delivery_id is not None
        return Sections(self.payloads[transfer.delivery_id])

    async def attach(self, *frames: Attach) -> None:
        """Send attaches, and wait for their answers."""
        self.write(*frames)
        for _ in frames:
            await self.next(Attach)

    async def settle(self, delivery_id: int, state: DeliveryState | None) -> Disposition:
        """Send an outcome; returns the confirmation."""
        self.write(Disposition(RECEIVER, delivery_id, state=state))
        return await self.next(Disposition)


def receiver(name: str, handle: int, address: str, **fields: Any) -> Attach:
    """The attach of a link to receive on; `filters` are those of its source."""
    source = Source(address, filter=fields.pop("filters", None))
    return Attach(name, handle, RECEIVER, source=source, target=Target("here"), **fields)


def sender(name: str, handle: int, address: str, **fields: Any) -> Attach:
    """The attach of a link to send on."""
    target = Target(address)
    return Attach(name, handle, SENDER, source=Source("here"), target=target, initial_delivery_count=0, **fields)


def flow(handle: int | None = None, *, credit: int | None = None, drain: bool = False, echo: bool = False) -> Flow:
    """A flow of a link that has received nothing."""
    count = None if credit is None else 0
    return Flow(0, 5_000, 0, 5_000, handle, count, credit, drain=drain, echo=echo)


async def taken(raw: Raw) -> tuple[int, Sections]:
    """The next message with its delivery id."""
    transfer = await raw.next(Transfer)
    assert transfer.delivery_id is not None
    return transfer.delivery_id, Sections(raw.payloads[transfer.delivery_id])


async def detached(raw: Raw, *, within_s: float = 30.0) -> str:
    """The condition of the next detach."""
    error = (await raw.next(Detach, within_s=within_s)).error
    assert error is not None
    return error.condition


@asynccontextmanager
async def raw_client(context: NamespaceContext) -> AsyncIterator[Raw]:
    """A connection over a wire in memory."""
    near, far = wire()
    server = asyncio.get_running_loop().create_task(serve_amqp(far, context, b""), name="server")
    try:
        yield Raw(near.read, near.write)
        await near.close()
        async with asyncio.timeout(300):
            await server
    finally:
        server.cancel()
        await asyncio.gather(server, return_exceptions=True)


@asynccontextmanager
async def raw_socket(port: int) -> AsyncIterator[Raw]:
    """A connection over a socket of this machine."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield Raw(lambda: reader.read(65_536), writer.write)
    finally:
        writer.close()
        await writer.wait_closed()
