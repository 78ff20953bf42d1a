"""Clients that mean no good, or have died, on real sockets: nothing for the others, and nothing that grows."""

from __future__ import annotations

import asyncio
import gc
import socket
import struct
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient

from sbclient.amqp import (
    Connection,
    ConnectionOptions,
    LinkAttached,
    PlainCredentials,
    Source,
    Target,
)
from sbclient.emulator.sas import ROOT_KEY, ROOT_KEY_NAME
from tests.limit import HANG_S
from tests.wire.checks import Names
from tests.wire.serving import ServedNamespace

names = Names("hostile")

MIB = 2**20


@contextmanager
def raw(namespace: ServedNamespace) -> Iterator[socket.socket]:
    """A socket without a client behind it."""
    connection = socket.create_connection(("127.0.0.1", namespace.port), timeout=HANG_S)
    try:
        yield connection
    finally:
        connection.close()


def reset(connection: socket.socket) -> None:
    """Hang up as a machine does that loses its power and comes back."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


@asynccontextmanager
async def serving(namespace: ServedNamespace) -> AsyncIterator[None]:
    """After any internal error the SDK continues to send and receive."""
    path = namespace.queue(names.new())
    client = ServiceBusClient.from_connection_string(namespace.connection_string, retry_total=0)
    async with client, client.get_queue_sender(path) as sender, client.get_queue_receiver(path) as receiver:
        yield
        for number in range(20):
            await sender.send_messages(ServiceBusMessage(str(number)), timeout=5)
            (message,) = await receiver.receive_messages(max_wait_time=5)
            assert str(message) == str(number)
            await receiver.complete_message(message)


def resident_bytes() -> int:
    """What this process, which holds the broker, has in memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


class RawClient:
    """The engine's client role on a blocking socket."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        options = ConnectionOptions(container_id="raw", hostname="h")
        credentials = PlainCredentials(ROOT_KEY_NAME, ROOT_KEY)
        self.engine = Connection.client(options, now=0.0, mechanism="PLAIN", credentials=credentials)

    def flush(self) -> None:
        if output := self.engine.bytes_to_send(now=0.0):
            self.socket.sendall(output)

    def until(self, kind: type) -> None:
        """Read until an event of that kind has come."""
        self.flush()
        while True:
            self.engine.receive_bytes(self.socket.recv(65_536), now=0.0)
            while (event := self.engine.next_event()) is not None:
                if isinstance(event, kind):
                    return
            self.flush()


async def test_a_client_that_requests_much_and_reads_nothing_uses_little_memory(
    namespace: ServedNamespace,
) -> None:
    path = namespace.queue(names.new())
    client = ServiceBusClient.from_connection_string(namespace.connection_string, retry_total=0)
    async with client, client.get_queue_sender(path) as sender:
        for _ in range(200):
            await sender.send_messages(ServiceBusMessage(b"x" * 250_000))
    gc.collect()
    before = resident_bytes()
    with raw(namespace) as connection:
        greedy = RawClient(connection)
        link = greedy.engine.begin().attach_receiver("r", source=Source(address=path))
        greedy.until(LinkAttached)
        link.grant(10_000)
        greedy.flush()
        await asyncio.sleep(2)
        assert resident_bytes() - before < 16 * MIB
        held = namespace.do(lambda: len(namespace.host.namespace.queue(path)))
        assert held == 200
        async with serving(namespace):
            pass


async def test_a_reset_in_the_middle_of_a_message_stores_nothing_of_it(namespace: ServedNamespace) -> None:
    path = namespace.queue(names.new())
    async with serving(namespace):
        for _ in range(20):
            with raw(namespace) as connection:
                client = RawClient(connection)
                link = client.engine.begin().attach_sender("s", target=Target(address=path))
                client.until(LinkAttached)
                link.send(b"\x00\x53\x75\xb0\x00\x02\x00\x00" + b"x" * 131_072, tag=b"t", needs_credit=False)
                output = client.engine.bytes_to_send(now=0.0)
                connection.sendall(output[: len(output) // 2])
                reset(connection)
    assert namespace.count(path) == 0


@pytest.mark.parametrize("kind", ["reset", "close"])
async def test_messages_of_vanished_receivers_are_redelivered(namespace: ServedNamespace, kind: str) -> None:
    path = namespace.queue(names.new())
    for _ in range(20):
        with raw(namespace) as connection:
            client = RawClient(connection)
            link = client.engine.begin().attach_receiver("r", source=Source(address=path))
            client.until(LinkAttached)
            link.grant(5)
            client.flush()
            if kind == "reset":
                reset(connection)
    await asyncio.sleep(0.5)
    sdk = ServiceBusClient.from_connection_string(namespace.connection_string, retry_total=0)
    async with sdk, sdk.get_queue_sender(path) as sender, sdk.get_queue_receiver(path) as receiver:
        await sender.send_messages(ServiceBusMessage("x"))
        (message,) = await receiver.receive_messages(max_wait_time=5)
        assert message.delivery_count == 0
        await receiver.complete_message(message)
