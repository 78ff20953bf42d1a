"""What carries the bytes of one connection, whether TCP, TLS or a WebSocket."""

from __future__ import annotations

from typing import Final, Protocol

READ_BYTES: Final = 2**14
"""The most that one read returns: what is read at once is also done at once, by whoever reads it."""


class ByteStream(Protocol):
    """One connection. One task reads it and one at a time writes; both may go on at once."""

    @property
    def peer(self) -> str:
        """The other side's address, `127.0.0.1:50123`, for logs."""

    async def read(self) -> bytes:
        """The next bytes, at most `READ_BYTES`; `b""` once the other side sends no more or the connection is lost."""

    def write(self, data: bytes) -> None:
        """Send, without waiting. What is written to a lost connection is dropped."""

    async def drain(self) -> None:
        """Wait until little of what was written is left, so that a slow reader cannot make this side hold much."""

    async def close(self) -> None:
        """Send what was written and end the connection. Safe to call twice; never raises for a lost connection."""
