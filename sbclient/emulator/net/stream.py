"""The interface of a byte stream: TCP, TLS or a WebSocket."""

from __future__ import annotations

from typing import Final, Protocol

READ_BYTES: Final = 2**14
"""The most that one read returns, because the reader processes it in one step."""


class ByteStream(Protocol):
    """One connection. At any time one task may read and another one may write."""

    @property
    def peer(self) -> str:
        """The address of the client, `127.0.0.1:50123`, for logs."""

    async def read(self) -> bytes:
        """The next bytes, at most `READ_BYTES`; `b""` at the end of the stream, or if the connection is lost."""

    def write(self, data: bytes) -> None:
        """Send without waiting. Data for a lost connection is dropped."""

    async def drain(self) -> None:
        """Wait until the write buffer is nearly empty, so that a slow reader cannot fill the memory."""

    async def close(self) -> None:
        """Send the write buffer and end the connection. Safe to call twice; does not raise for a lost connection."""

    def trust(self) -> None:
        """Stop waiting for the turns of clients without a token: this one has put a valid token."""
