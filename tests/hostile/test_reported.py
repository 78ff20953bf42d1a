"""What was reported of other libraries and brokers, tried here: amqp091-go, rabbitmq-c and brokers for tests.

Each row ends the connection, for a client and for a server, before memory follows what the peer has declared.
"""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Sequence
from typing import Final

import pytest

from sbclient.amqp import Connection, ConnectionClosed
from sbclient.amqp.frames import AMQP_HEADER, encode_frame
from sbclient.amqp.performatives import Begin, Open
from tests.amqp.pipe import CLIENT, NOW, SERVER

OPEN: Final = AMQP_HEADER + encode_frame(0, Open("peer", max_frame_size=65_536), 512)
MIB: Final = 2**20


def header(size: int, *, kind: int = 0, channel: int = 0) -> bytes:
    return struct.pack(">IBBH", size, 2, kind, channel)


ROWS: Final[dict[str, Sequence[bytes]]] = {
    "a frame of 4 GiB is declared before the open": [AMQP_HEADER, header(2**32 - 1), *[bytes(65_536)] * 40],
    "a frame of 4 GiB is declared after the open": [OPEN, header(2**32 - 1), *[bytes(65_536)] * 40],
    "a frame is larger than what was negotiated": [OPEN, header(65_537), *[bytes(65_536)] * 40],
    "frames have a type that is unknown": [OPEN, *[header(8, kind=7)] * 100_000],
    "a frame of the security layer comes after it": [OPEN, *[header(8, kind=1)] * 100_000],
    "frames have channels above the maximum": [
        OPEN,
        *[encode_frame(channel, Begin(None, 0, 1, 1), 512) for channel in range(256, 65_536, 97)],
    ],
    "the largest frame is smaller than the protocol allows": [
        AMQP_HEADER + encode_frame(0, Open("peer", max_frame_size=1), 512)
    ],
    "the largest frame has no byte": [AMQP_HEADER + encode_frame(0, Open("peer", max_frame_size=0), 512)],
}


@pytest.mark.promise("client.limits")
@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("is_server", [False, True])
def test_the_connection_ends_and_keeps_little(name: str, is_server: bool) -> None:
    engine = Connection.server(SERVER, now=NOW) if is_server else Connection.client(CLIENT, now=NOW)
    is_closed = False
    tracemalloc.start()
    try:
        for piece in ROWS[name]:
            engine.receive_bytes(piece, now=NOW)
            while (event := engine.next_event()) is not None:
                is_closed = is_closed or isinstance(event, ConnectionClosed)
            engine.bytes_to_send(now=NOW)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert is_closed
    assert peak < MIB
