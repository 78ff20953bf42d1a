"""A TCP proxy between a program and a namespace that can delay, slow down, slice, hold and cut connections.

A `Trouble` describes a fault of a proxy; several can be active at once. The proxy also records when the mark of a
message passes towards the namespace, as evidence that is independent of the programs.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from tests.processes.bodies import LONGEST_MARK, MARK

READ_BYTES: Final = 64 * 1024
RESET: Final = struct.pack("ii", 1, 0)
"""A value of SO_LINGER with which closing sends a reset and drops unsent data."""


class Way(StrEnum):
    """The two directions of a proxy."""

    OUT = "out"
    """From the program to the namespace."""
    BACK = "back"


@dataclass(slots=True, eq=False)
class Trouble:
    """What is wrong with a proxy for a while.

    Attributes:
        ways: in which direction.
        holds: nothing passes until the trouble is over; then what was held arrives, unless its connection was cut.
        refuses: new connections are reset.
        delay_s: by how much each piece is late.
        bytes_per_s: how much passes in a second.
        slice_bytes: how much is sent at once, so that a frame comes in many pieces.
    """

    ways: tuple[Way, ...] = (Way.OUT, Way.BACK)
    holds: bool = False
    refuses: bool = False
    delay_s: float = 0.0
    bytes_per_s: float = 0.0
    slice_bytes: int = 0


GRAIN_S: Final = 0.02
"""A slow proxy passes on so much at once as it takes in this time."""

Witness = Callable[[str], None]
"""Called with the uid of each message before the message passes towards the namespace."""


class Proxy:
    """Listens on a port of its own and passes everything on to a namespace's port.

    Attributes:
        port: where it listens, once it has started.
        cut_count: connections that were cut.
    """

    def __init__(self, namespace_port: int, witness: Witness) -> None:
        self._namespace_port = namespace_port
        self._witness = witness
        self._server: asyncio.Server | None = None
        self._troubles: list[Trouble] = []
        self._changed = asyncio.Event()
        self._connections: dict[_Connection, None] = {}
        self._serving: set[asyncio.Task[None]] = set()
        self.port = 0
        self.cut_count = 0

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accepted, "127.0.0.1", 0, limit=READ_BYTES)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Cut what stands and listen no more."""
        if self._server is not None:
            self._server.close()
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    # -- troubles ------------------------------------------------------------------------------------------------

    def begin(self, trouble: Trouble) -> None:
        self._troubles.append(trouble)
        self._tell()

    def end(self, trouble: Trouble) -> None:
        """Nothing happens if it is over already."""
        self._troubles = [other for other in self._troubles if other is not trouble]
        self._tell()

    def cut(self) -> int:
        """Reset every connection that stands; returns how many. What is held is lost."""
        standing = list(self._connections)
        for connection in standing:
            connection.reset()
        self.cut_count += len(standing)
        return len(standing)

    def cut_after(self, byte_count: int) -> int:
        """Let so many more bytes pass, and reset each connection in the midst of what comes then; returns how many."""
        for connection in self._connections:
            connection.bytes_left = byte_count
        return len(self._connections)

    def spare(self) -> None:
        """What `cut_after` has not cut by now stands."""
        for connection in self._connections:
            connection.bytes_left = None

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def _on(self, way: Way) -> Iterator[Trouble]:
        return (trouble for trouble in self._troubles if way in trouble.ways)

    # -- passing on ----------------------------------------------------------------------------------------------

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = _Connection()
        connection.writers.append(writer)
        self._connections[connection] = None
        try:
            if any(trouble.refuses for trouble in self._troubles):
                connection.reset()
                return
            there = await asyncio.open_connection("127.0.0.1", self._namespace_port, limit=READ_BYTES)
            connection.writers.append(there[1])
            for each in connection.writers:
                each.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.pumps = [
                asyncio.ensure_future(self._pass(reader, there[1], Way.OUT, connection)),
                asyncio.ensure_future(self._pass(there[0], writer, Way.BACK, connection)),
            ]
            await asyncio.wait(connection.pumps)
        except OSError:
            pass  # the namespace does not listen: the program's connection ends, as it would without us
        finally:
            connection.reset()
            self._connections.pop(connection, None)
            await asyncio.gather(*connection.pumps, return_exceptions=True)

    async def _pass(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: Way, connection: _Connection
    ) -> None:
        """Forward data until one side ends; then send the end of the stream to the other side, after all data."""
        unread = b""
        try:
            while piece := await reader.read(READ_BYTES):
                await asyncio.sleep(max((each.delay_s for each in self._on(way)), default=0.0))
                while piece:
                    part, piece = self._split(piece, way, connection)
                    await self._hold_up(way, len(part))
                    if way is Way.OUT:
                        unread = self._bear_witness(unread + part)
                    writer.write(part)
                    await writer.drain()
                    if connection.bytes_left == 0:
                        self.cut_count += 1
                        connection.reset()
                        return
            await self._hold_up(way, 0)
            with suppress(OSError):
                writer.write_eof()
        except OSError:
            connection.reset()

    def _split(self, piece: bytes, way: Way, connection: _Connection) -> tuple[bytes, bytes]:
        """What is to pass next, and the rest."""
        sizes = [each.slice_bytes for each in self._on(way) if each.slice_bytes]
        sizes += [max(1, int(each.bytes_per_s * GRAIN_S)) for each in self._on(way) if each.bytes_per_s]
        size = min([len(piece), *sizes])
        if connection.bytes_left is not None:
            size = min(size, connection.bytes_left)
            connection.bytes_left -= size
        return piece[:size], piece[size:]

    async def _hold_up(self, way: Way, size: int) -> None:
        """Wait for as long as something of that size takes."""
        rates = [each.bytes_per_s for each in self._on(way) if each.bytes_per_s]
        await asyncio.sleep(size / min(rates) if rates else 0.0)
        while any(each.holds for each in self._on(way)):
            await self._changed.wait()

    def _bear_witness(self, passed: bytes) -> bytes:
        """Note the marks in what passes; returns its end, in which one may have begun."""
        end = 0
        for found in MARK.finditer(passed):
            self._witness(found[1].decode())
            end = found.end()
        return passed[max(end, len(passed) - LONGEST_MARK) :]


class _Connection:
    """Two sockets, and how many more bytes may pass between them."""

    def __init__(self) -> None:
        self.pumps: list[asyncio.Task[None]] = []
        self.writers: list[asyncio.StreamWriter] = []
        self.bytes_left: int | None = None

    def reset(self) -> None:
        """Both sides meet a reset, and what was not passed on by now never is."""
        for pump in self.pumps:
            if pump is not asyncio.current_task():
                pump.cancel()
        for writer in self.writers:
            with suppress(OSError):
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            writer.transport.abort()
