"""TLS over any byte stream. It works in memory, so that faults and flow control of the stream below still apply."""

from __future__ import annotations

import ssl
from contextlib import suppress
from typing import Final

from sbclient import clock
from sbclient.emulator.net.stream import READ_BYTES, ByteStream

HANDSHAKE_RECORD: Final = 0x16
"""The first byte that a TLS client sends."""


class TlsStream:
    """A `ByteStream` over another one that carries TLS.

    Args:
        stream: carries the records; closed with this one.
        context: with the certificate.
        first: the bytes that were read to detect the protocol.
    """

    def __init__(self, stream: ByteStream, context: ssl.SSLContext, first: bytes) -> None:
        self._stream = stream
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._engine = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._incoming.write(first)
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
        if self._incoming.pending:
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
        self._stream.trust()

    async def close(self) -> None:
        with suppress(ssl.SSLError, ValueError):
            self._engine.unwrap()
        self._send()
        self._is_over = True
        await self._stream.close()

    async def _receive(self) -> bool:
        data = await self._stream.read()
        if data:
            self._incoming.write(data)
        else:
            self._incoming.write_eof()
        return bool(data)

    def _send(self) -> None:
        if self._outgoing.pending:
            self._stream.write(self._outgoing.read())
