"""An emulator without free descriptors keeps serving its connections, does not spin, and recovers."""

from __future__ import annotations

import socket
import sys
import time

import pytest

from sbclient.amqp.frames import SASL_HEADER
from tests.hostile.target import serving
from tests.limit import HANG_S

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")]

HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"


def is_answered(connection: socket.socket, request: bytes) -> bool:
    """Whether the server answers on a connection."""
    try:
        connection.sendall(request)
        return bool(connection.recv(65_536))
    except OSError:
        return False


@pytest.mark.promise("emulator.descriptors")
def test_full_emulator_serves_its_connections_and_recovers() -> None:
    with serving(descriptors=60) as server:
        address = ("127.0.0.1", server.http_port)
        with socket.create_connection(address, timeout=HANG_S) as known:
            assert is_answered(known, HEALTH)
            others = [socket.create_connection(("127.0.0.1", server.port), timeout=HANG_S) for _ in range(100)]
            time.sleep(0.5)
            before = server.cpu_s()
            for _ in range(5):
                assert is_answered(known, HEALTH)
                time.sleep(0.2)
            assert server.cpu_s() - before < 0.5
            for each in others:
                each.close()
        while True:
            with socket.create_connection(("127.0.0.1", server.port), timeout=HANG_S) as late:
                if is_answered(late, SASL_HEADER):
                    break
