"""Messages over HTTP on real sockets, with the client of the standard library."""

from __future__ import annotations

import asyncio
import ssl
from http.client import HTTPConnection, HTTPSConnection
from pathlib import Path
from typing import Final

import pytest

from sbclient.emulator import Emulator
from sbclient.emulator.sas import ROOT_KEY, ROOT_KEY_NAME
from sbclient.rules.shared_access_signature import sign
from tests.emulator.requests import FOREVER
from tests.limit import HANG_S

pytestmark = pytest.mark.real_time

HEAD: Final = "/orders/messages/head?timeout=0"
HEADERS: Final = {"Authorization": sign("sb://localhost/", ROOT_KEY_NAME, ROOT_KEY, FOREVER)}


def ask(connection: HTTPConnection, method: str, target: str, body: str = "") -> tuple[int, str, str]:
    """The status, the location and the body of a response."""
    connection.request(method, target, body, HEADERS)
    response = connection.getresponse()
    # 204 has none, and older clients take one for a property of the message
    assert ("Content-Length" in response.headers) == (not (method in ("POST", "DELETE") and target == HEAD))
    return response.status, response.headers.get("Location", ""), response.read().decode()


async def test_receiver_without_keep_alive_misses_messages_that_another_front_end_has_cached() -> None:
    """The documents advise receivers from partitioned entities to keep the connection."""
    count = 40

    def exchange(port: int) -> tuple[int, set[int], list[int]]:
        kept = HTTPConnection("localhost", port, timeout=HANG_S)
        for _ in range(count):
            assert ask(kept, "POST", "/orders/messages", "an order")[0] == 201
        taken = int(ask(kept, "POST", HEAD)[0] == 201)  # its front end caches a message of each fragment
        others = []
        for _ in range(2 * count):
            fresh = HTTPConnection("localhost", port, timeout=HANG_S)
            others.append(ask(fresh, "POST", HEAD)[0])
            fresh.close()
        rest = [ask(kept, "POST", HEAD)[0] for _ in range(count)]
        kept.close()
        return taken, set(others), rest

    async with Emulator("contoso", http_port=None, seed=1, front_end_count=8) as emulator:
        emulator.create_queue("orders", enable_partitioning=True)
        taken, others, rest = await asyncio.to_thread(exchange, emulator.ports["contoso"])
        state = emulator.context().host.namespace.queue("orders")
        assert len(state) == count
    assert taken == 1
    assert 204 in others  # although no receiver has most of the messages
    assert rest[0] == 201
    assert set(rest) == {201, 204}


@pytest.mark.parametrize("front_end_count", [1, 8])
async def test_one_kept_connection_finds_every_message(front_end_count: int) -> None:
    count = 40

    def exchange(port: int) -> list[int]:
        kept = HTTPConnection("localhost", port, timeout=HANG_S)
        for _ in range(count):
            ask(kept, "POST", "/orders/messages", "an order")
        found = [ask(kept, "DELETE", HEAD)[0] for _ in range(count + 1)]
        kept.close()
        return found

    async with Emulator("contoso", http_port=None, seed=1, front_end_count=front_end_count) as emulator:
        emulator.create_queue("orders", enable_partitioning=True)
        found = await asyncio.to_thread(exchange, emulator.ports["contoso"])
    assert found == [*[200] * count, 204]


async def test_location_has_the_scheme_of_the_connection(emulator: Emulator, trusted: str) -> None:
    emulator.create_queue("orders")

    def locations(port: int) -> list[str]:
        context = ssl.create_default_context(cafile=trusted)
        found = []
        for connection in (
            HTTPConnection("localhost", port, timeout=HANG_S),
            HTTPSConnection("localhost", port, timeout=HANG_S, context=context),
        ):
            assert ask(connection, "POST", "/orders/messages", "an order")[0] == 201
            _, location, _ = ask(connection, "POST", HEAD)
            found.append(location)
            assert ask(connection, "DELETE", location[location.index("/orders") :])[0] == 200
            connection.close()
        return found

    port = emulator.ports["contoso"]
    plain, secure = await asyncio.to_thread(locations, port)
    assert plain.startswith(f"http://localhost:{port}/orders/messages/1/")
    assert secure.startswith(f"https://localhost:{port}/orders/messages/2/")


@pytest.mark.deviation("emulator.persistence")
@pytest.mark.parametrize("is_kept", [True, False])
async def test_acknowledged_messages_survive_a_restart_only_with_data(tmp_path: Path, is_kept: bool) -> None:
    data = tmp_path if is_kept else None

    def request(method: str, target: str, body: str, port: int) -> tuple[int, str, str]:
        connection = HTTPConnection("localhost", port, timeout=HANG_S)
        try:
            return ask(connection, method, target, body)
        finally:
            connection.close()

    async with Emulator("contoso", http_port=None, data=data) as emulator:
        emulator.create_queue("orders")
        port = emulator.ports["contoso"]
        assert (await asyncio.to_thread(request, "POST", "/orders/messages", "one", port))[0] == 201
        assert (await asyncio.to_thread(request, "POST", "/orders/messages", "two", port))[0] == 201
        assert (await asyncio.to_thread(request, "DELETE", HEAD, "", port))[2] == "one"
    async with Emulator("contoso", http_port=None, data=data) as emulator:
        port = emulator.ports["contoso"]
        if is_kept:
            assert (await asyncio.to_thread(request, "DELETE", HEAD, "", port))[2] == "two"
        else:
            emulator.create_queue("orders")
        assert (await asyncio.to_thread(request, "DELETE", HEAD, "", port))[0] == 204
