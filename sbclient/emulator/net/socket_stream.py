"""One TCP connection, with the injected faults that act below the protocols.

Laws:

1. The receive buffer is bounded: the socket is not read while the buffer is full. For a client without a token one read
   fills it, so that a step of the event loop does not read many sockets of such clients more than once.
2. Data is sent in order, each piece delayed by the injected latency. While the connection is in a black hole, nothing
   is sent and nothing is read.
3. A connection that a fault ends is reset.
4. Other connections run between two reads, also if much data is buffered.
5. The receive buffer of a lost connection is dropped, because no answer can be sent; after an orderly end it is read.
6. With a data directory nothing is sent before the changes that precede it are written.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final, cast

from sbclient import clock
from sbclient.emulator.faults import WireFault, WireFaults
from sbclient.emulator.net.stream import READ_BYTES

MAX_RECEIVED_BYTES: Final = 2**16
"""The socket of a client with a token is not read while more than this is buffered: 64 MB for a thousand clients."""

MAX_HELD_BYTES: Final = 2**20
"""`drain` waits while faults or the data directory delay this much data."""

CLOSING_S: Final = 2.0
"""The time that a client has to read the rest when its connection is closed."""

_NOTHING: Final = bytearray()
_RESET_ON_CLOSE: Final = struct.pack("ii", 1, 0)


class SocketStream(asyncio.BufferedProtocol):
    """A `ByteStream` over a TCP connection.

    Args:
        faults: the wire faults of the namespace.
        accepted: called when the connection is open.
        ended: called when the connection has ended.
        hold_back: calls a function once the changes that precede an answer are written; False if they are.
    """

    def __init__(
        self,
        faults: WireFaults,
        accepted: Callable[[SocketStream], None],
        ended: Callable[[SocketStream], None],
        hold_back: Callable[[Callable[[], None]], bool] = lambda _: False,
    ) -> None:
        self._faults = faults
        self._accepted = accepted
        self._ended = ended
        self._hold_back = hold_back
        self._is_waiting_for_data = False
        self._hole: WireFault | None = None
        self._received = bytearray()
        self._max_received_bytes = 0
        self._buffer = _NOTHING
        self._is_at_end = False
        self._is_closing = False
        self._is_paused = False
        self._reader: asyncio.Future[None] | None = None
        self._held: deque[tuple[float, bytes]] = deque()  # (due in monotonic seconds, data)
        self._held_bytes = 0
        self._flush_timer: asyncio.TimerHandle | None = None
        self._can_write = asyncio.Event()
        self._can_write.set()
        self._is_gone = asyncio.Event()

    # ------------------------------------------------------------------ callbacks of asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        address = transport.get_extra_info("peername")
        self._peer = f"{address[0]}:{address[1]}" if address else "unknown"
        if self._faults.refuses(clock.now()):
            self.cut()
            return
        with suppress(OSError):
            transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._hole = self._faults.black_hole(clock.now())
        self._accepted(self)

    def get_buffer(self, sizehint: int) -> bytearray:
        self._buffer = bytearray(READ_BYTES)
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._received += memoryview(self._buffer)[:nbytes]
        self._buffer = _NOTHING
        if len(self._received) > self._max_received_bytes and not self._is_paused:
            self._is_paused = True
            self._transport.pause_reading()
        self._wake_reader()

    def eof_received(self) -> bool:
        self._is_at_end = True
        self._wake_reader()
        return True

    def pause_writing(self) -> None:
        self._can_write.clear()

    def resume_writing(self) -> None:
        if self._held_bytes < MAX_HELD_BYTES:
            self._can_write.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_at_end = self._is_closing = True
        self._received.clear()
        self._hole = None
        self._held.clear()
        if self._flush_timer is not None:
            self._flush_timer.cancel()
        self._is_gone.set()
        self._can_write.set()
        self._wake_reader()
        self._ended(self)

    # ------------------------------------------------------------------ the interface of a byte stream

    @property
    def peer(self) -> str:
        return self._peer

    async def read(self) -> bytes:
        if self._received:
            await clock.step()
        while self._hole is not None or not (self._received or self._is_at_end):
            self._reader = asyncio.get_running_loop().create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        data = bytes(self._received[:READ_BYTES])
        del self._received[:READ_BYTES]
        if self._is_paused and len(self._received) <= self._max_received_bytes // 2:
            self._is_paused = False
            self._transport.resume_reading()
        return data

    def write(self, data: bytes) -> None:
        if self._is_closing or self._transport.is_closing() or not data:
            return  # a transport with an error is closing before it calls connection_lost
        latency_s = self._faults.latency_s(clock.now())
        if not latency_s and not self._held and self._hole is None and not self._waits_for_data():
            self._transport.write(data)
            return
        self._held.append((clock.monotonic() + latency_s, data))
        self._held_bytes += len(data)
        if self._held_bytes >= MAX_HELD_BYTES:
            self._can_write.clear()
        self._flush()

    async def drain(self) -> None:
        await self._can_write.wait()

    def trust(self) -> None:
        self._max_received_bytes = MAX_RECEIVED_BYTES

    async def close(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            if not self._held and self._hole is None:
                self._transport.close()
        if self._hole is not None:
            return  # the client learns of the end when the black hole is healed
        if not await clock.wait_for(self._is_gone, CLOSING_S):
            self._transport.abort()

    # ------------------------------------------------------------------ faults

    def cut(self) -> None:
        """End the connection at once, with a reset."""
        self._is_closing = True
        with suppress(OSError):
            self._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        self._transport.abort()

    def apply_faults(self) -> None:
        """Apply the current faults; called whenever one is injected or healed."""
        now = clock.now()
        if self._faults.resets(now):
            self.cut()
        elif self._hole is None:
            self._hole = self._faults.black_hole(now)
        elif not self._faults.is_active(self._hole, now):
            self._hole = None
            self._wake_reader()
            self._flush()

    def _flush(self) -> None:
        """Send the pieces that are due, in order, and set a timer for the next one."""
        if self._flush_timer is not None:
            self._flush_timer.cancel()
            self._flush_timer = None
        if self._hole is not None or self._waits_for_data():
            return
        now = clock.monotonic()
        while self._held and self._held[0][0] <= now:
            _, data = self._held.popleft()
            self._held_bytes -= len(data)
            self._transport.write(data)
        if self._held:
            self._flush_timer = clock.call_later(self._held[0][0] - now, self._flush)
        elif self._is_closing:
            self._transport.close()
        if self._held_bytes < MAX_HELD_BYTES and not self._transport.get_write_buffer_size():
            self._can_write.set()

    def _waits_for_data(self) -> bool:
        """Return whether changes must be written first. If so, `_flush` is called when they are."""
        if not self._is_waiting_for_data:
            self._is_waiting_for_data = self._hold_back(self._written)
        return self._is_waiting_for_data

    def _written(self) -> None:
        self._is_waiting_for_data = False
        self._flush()

    def _wake_reader(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)
