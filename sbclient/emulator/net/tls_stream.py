"""TLS over any byte stream. It works in memory, so that faults and flow control of the stream below still apply."""

from __future__ import annotations

import asyncio
import ssl
from contextlib import suppress
from typing import Final

from sbclient import clock
from sbclient.emulator.net.stream import READ_BYTES, ByteStream
from sbclient.emulator.net.time_slice import start_unauthenticated

HANDSHAKE_RECORD: Final = 0x16
"""The first byte that a TLS client sends."""
RECORDS_AT_ONCE: Final = 32
"""The records that are decrypted in one step: a request for new keys takes some 15 µs and has 27 bytes."""
_HEADER_BYTES: Final = 5
"""Of a record: its type, a version, and in the last two bytes how many bytes follow. Source: RFC 8446, section 5.1."""


class TlsStream:
    """A `ByteStream` over another one that carries TLS.

    Args:
        stream: carries the records; closed with this one.
        context: with the certificate.
        first: the bytes that were read to detect the protocol.
        turns: limits the clients without a token.
    """

    def __init__(self, stream: ByteStream, context: ssl.SSLContext, first: bytes, turns: asyncio.Semaphore) -> None:
        self._stream = stream
        self._turns: asyncio.Semaphore | None = turns
        self._received = bytearray(first)
        self._record_rest = 0
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._engine = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._is_over = False

    @property
    def peer(self) -> str:
        return self._stream.peer

    async def handshake(self) -> bool:
        """Do the handshake; returns whether it succeeded."""
        while True:
            try:
                self._engine.do_handshake()
            except ssl.SSLWantReadError:
                self._send()
                if not await self._receive():
                    return False
            except ssl.SSLError:
                self._send()
                return False
            else:
                self._send()
                return True

    async def read(self) -> bytes:
        if self._incoming.pending or self._received:
            await clock.step()
        while not self._is_over:
            try:
                data = self._engine.read(READ_BYTES)
            except ssl.SSLWantReadError:
                self._send()
                await self._stream.drain()  # a client that requests new keys must read the answers
                await self._receive()
            except ssl.SSLError:
                self._is_over = True
            else:
                return data
        return b""

    def write(self, data: bytes) -> None:
        if self._is_over or not data:
            return
        rest = memoryview(data)
        with suppress(ssl.SSLError):
            while rest:
                rest = rest[self._engine.write(rest) :]
        self._send()

    async def drain(self) -> None:
        await self._stream.drain()

    def trust(self) -> None:
        self._turns = None
        self._stream.trust()

    async def close(self) -> None:
        with suppress(ssl.SSLError, ValueError):
            self._engine.unwrap()
        self._send()
        self._is_over = True
        await self._stream.close()

    async def _receive(self) -> bool:
        """Give the engine a few more records; False at the end of the stream."""
        has_waited = False
        while not (size_bytes := self._size_of_records()):
            has_waited = True
            data = await self._stream.read()
            if not data:
                self._incoming.write_eof()
                return False
            self._received += data
        if self._turns is not None:
            await start_unauthenticated(self._turns)
        elif not has_waited:
            await clock.step()
        self._incoming.write(self._received[:size_bytes])
        del self._received[:size_bytes]
        return True

    def _size_of_records(self) -> int:
        """The bytes of the next records that have been received; the last one may be incomplete."""
        end, received = 0, self._received
        for _ in range(RECORDS_AT_ONCE):
            if not self._record_rest:
                if len(received) - end < _HEADER_BYTES:
                    break
                self._record_rest = _HEADER_BYTES + int.from_bytes(received[end + 3 : end + _HEADER_BYTES])
            size_bytes = min(self._record_rest, len(received) - end)
            end += size_bytes
            self._record_rest -= size_bytes
        return end

    def _send(self) -> None:
        if self._outgoing.pending:
            self._stream.write(self._outgoing.read())
