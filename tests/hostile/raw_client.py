"""A client without a token on a blocking socket, which writes any frame it likes."""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any, Final

from sbclient.amqp.encode import sized_map
from sbclient.amqp.frames import AMQP_HEADER, SASL_HEADER, encode_frame
from sbclient.amqp.performatives import Attach, Begin, Open, SaslInit, Source, Target
from sbclient.amqp.transfers import write_transfers
from tests.limit import HANG_S

FRAME_BYTES: Final = 65_536


class RawClient:
    """One connection.

    Args:
        port: on this machine.
        properties: of the open, encoded as a map; None = none.
    """

    def __init__(self, port: int, properties: bytes | None = None) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=HANG_S)
        self._deliveries = 0
        self.send(opening_frames(properties))

    def send(self, *frames: bytes) -> None:
        """Write frames; raises OSError once the server has closed the connection."""
        self.socket.sendall(b"".join(frames))

    def attach(self, handle: int, address: str, *, is_receiver: bool = False) -> bytes:
        """The frame that attaches a link."""
        return link_frame(handle, address, is_receiver=is_receiver)

    def transfer(self, handle: int, payload: bytes) -> Iterable[bytes]:
        """The frames of a message."""
        number, self._deliveries = self._deliveries, self._deliveries + 1
        tag = number.to_bytes(4, "big")
        return write_transfers(0, handle, number, tag, 0, payload, settled=True, state=None, max_frame_size=FRAME_BYTES)

    def received(self) -> bytes:
        """All bytes until the server closes the connection or is silent for the timeout of the socket."""
        parts = []
        with suppress(OSError):
            while data := self.socket.recv(65_536):
                parts.append(data)
        return b"".join(parts)

    def close(self) -> None:
        """Close the socket with a reset."""
        with suppress(OSError):
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()


def opening_frames(properties: bytes | None = None) -> bytes:
    """The frames that open a connection without a token, and a session; `properties` as for `RawClient`."""
    opening = Open("attacker", max_frame_size=FRAME_BYTES)
    return b"".join(
        (
            SASL_HEADER,
            encode_frame(0, SaslInit("ANONYMOUS", b""), 512, 1),
            AMQP_HEADER,
            encode_frame(0, opening, FRAME_BYTES) if properties is None else composite_frame(0x10, _OPEN, properties),
            encode_frame(0, Begin(None, 0, 5_000, 5_000), FRAME_BYTES),
        )
    )


def link_frame(handle: int, address: str, *, is_receiver: bool = False) -> bytes:
    """The frame that attaches a link."""
    source = Source(address=address if is_receiver else "client")
    target = Target(address="client" if is_receiver else address)
    count = None if is_receiver else 0
    link = Attach(f"l{handle}", handle, is_receiver, source=source, target=target, initial_delivery_count=count)
    return encode_frame(0, link, FRAME_BYTES)


_OPEN: Final = b"\xa1\x01a" + b"\x40" * 8
"""The fields of an open before its properties."""


def composite_frame(code: int, before: bytes, last: bytes) -> bytes:
    """A frame with a performative of encoded fields, the last of which is `last`."""
    count = _field_count(before) + 1
    content = before + last
    body = bytes((0, 0x53, code, 0xD0)) + struct.pack(">II", len(content) + 4, count) + content
    return struct.pack(">IBBH", len(body) + 8, 2, 0, 0) + body


def _field_count(encoded: bytes) -> int:
    from sbclient.amqp.decode import skip_value

    count = position = 0
    while position < len(encoded):
        position = skip_value(encoded, position)
        count += 1
    return count


def attach_frame(handle: int, properties: bytes, name: str = "") -> bytes:
    """The frame that attaches a sender to `$cbs`, with encoded properties."""
    title = (name or f"l{handle}").encode()
    target = b"\x00\x53\x29" + _short_list(1, b"\xa1\x04$cbs")
    before = b"".join(
        (
            b"\xa1" + bytes((len(title),)) + title,
            b"\x70" + struct.pack(">I", handle),
            b"\x42\x40\x40",
            b"\x00\x53\x28" + _short_list(1, b"\xa1\x01c"),
            target,
            b"\x40\x40\x43\x40\x40\x40",
        )
    )
    return composite_frame(0x12, before, properties)


def _short_list(count: int, content: bytes) -> bytes:
    return b"\xc0" + bytes((len(content) + 1, count)) + content


def encoded_map(entries: Iterable[tuple[bytes, bytes]]) -> bytes:
    """A map of encoded keys and values."""
    parts = [part for entry in entries for part in entry]
    return sized_map(b"".join(parts), len(parts))


@contextlib.contextmanager
def connected(port: int, count: int = 1, **settings: Any) -> Iterator[list[RawClient]]:
    """So many clients."""
    clients: list[RawClient] = []
    try:
        clients.extend(RawClient(port, **settings) for _ in range(count))
        yield clients
    finally:
        for client in clients:
            client.close()
