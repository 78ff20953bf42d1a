"""A paired client over real sockets whose secondary cannot be reached when it opens; over memory: tests/pairing.

`COUNT` messages are sent to the primary and received from it. The environment sets a larger number for a long run.
"""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from typing import Any, Final

import pytest

from sbclient import PairedNamespaceOptions, ServiceBusClient, ServiceBusMessage, clock
from sbclient.emulator import Emulator
from sbclient.emulator.faults import WireFault, WireFaultKind
from sbclient.pairing.backlog_queues import LONGEST_PAUSE_S, OPENING_S

QUEUE = "orders"
COUNT = int(os.environ.get("UNAVAILABLE_SECONDARY_MESSAGES", "60"))
UNKNOWN_NAME: Final = "no-such-host.invalid"
OPTIONS = PairedNamespaceOptions(failover_interval=timedelta(0), backlog_queue_count=2)


Start = Callable[[], Awaitable[None]]


def emulated(namespace: str, **settings: Any) -> Emulator:
    """Return an emulator with the certificate that all of this module have in common."""
    return Emulator(namespace, certificate_names=[UNKNOWN_NAME], **settings)


@pytest.fixture
async def primary() -> AsyncIterator[Emulator]:
    async with emulated("contoso") as emulator:
        yield emulator


def unused_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def paired(primary: Emulator, secondary: str, transport: str) -> ServiceBusClient:
    return ServiceBusClient.from_connection_string(
        primary.connection_string,
        secondary=secondary,
        options=OPTIONS,
        transport=transport,
        connection_verify=str(primary.certificate_path),
    )


async def send_and_receive(client: ServiceBusClient, count: int) -> None:
    """Send messages to the primary and receive each of them."""
    async with client.get_queue_sender(QUEUE) as sender, client.get_queue_receiver(QUEUE) as receiver:
        await asyncio.gather(*(sender.send_messages(ServiceBusMessage(str(number))) for number in range(count)))
        numbers: list[int] = []
        while len(numbers) < count:
            for message in await receiver.receive_messages(count, max_wait_time=20):
                numbers.append(int(str(message)))
                await receiver.complete_message(message)
        assert sorted(numbers) == list(range(count))


@asynccontextmanager
async def absent(name: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[str, Start]]:
    """Yield the connection string of a secondary without server or without DNS name, and what starts the server."""
    resolve = socket.getaddrinfo
    is_known = name == "127.0.0.1"

    def getaddrinfo(host: Any, *arguments: Any, **named: Any) -> Any:
        if host not in (UNKNOWN_NAME, UNKNOWN_NAME.encode()):
            return resolve(host, *arguments, **named)
        if is_known:
            return resolve("127.0.0.1", *arguments, **named)
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    port, key = unused_port(), "b".ljust(44, "=")
    async with AsyncExitStack() as stack:

        async def start() -> None:
            nonlocal is_known
            await stack.enter_async_context(emulated("contoso-backup", first_port=port, key=key))
            is_known = True

        rule = f"SharedAccessKeyName=RootManageSharedAccessKey;SharedAccessKey={key}"
        yield f"Endpoint=sb://{name}:{port};{rule};UseDevelopmentEmulator=true", start


@asynccontextmanager
async def silent() -> AsyncIterator[tuple[str, Start]]:
    """Yield the connection string of a secondary that accepts connections and never answers, and what ends this."""
    async with emulated("contoso-backup") as backup:
        backup.inject(fault := WireFault(WireFaultKind.BLACK_HOLE))

        async def start() -> None:
            backup.heal(fault)

        yield backup.connection_string, start


@pytest.mark.parametrize("transport", ["amqp", "sdk"])
@pytest.mark.parametrize("kind", ["down", "hanging", "unresolvable"])
async def test_the_primary_works_until_the_secondary_answers_and_is_provisioned(
    primary: Emulator, transport: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = {"down": "127.0.0.1", "unresolvable": UNKNOWN_NAME}
    async with silent() if kind == "hanging" else absent(name[kind], monkeypatch) as (secondary, start):
        began_at = clock.monotonic()
        async with paired(primary, secondary, transport) as client:
            assert clock.monotonic() - began_at < OPENING_S + 30
            await client.administration.create_queue(QUEUE)
            await send_and_receive(client, COUNT)
            status = client.pair.status()
            assert status.provisioning_error
            assert not status.is_provisioned
            await start()
            deadline = clock.monotonic() + LONGEST_PAUSE_S
            while not client.pair.status().is_provisioned:
                assert clock.monotonic() < deadline, client.pair.status().provisioning_error
                await clock.sleep(0.1)
            primary.inject(WireFault(WireFaultKind.RESET))
            async with client.get_queue_sender(QUEUE) as sender:
                await sender.send_messages(ServiceBusMessage("diverted"))
            assert client.pair.status().entities[QUEUE].diverted == 1
            primary.heal()


async def test_an_opening_that_fails_leaves_no_connection(primary: Emulator) -> None:
    async with emulated("contoso-backup") as backup:
        wrong = backup.connection_string.partition("SharedAccessKey=")[0] + "SharedAccessKey=d3Jvbmc="
        wrong += ";UseDevelopmentEmulator=true"
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with pytest.raises(Exception, match="rejects the credential"):
                await paired(primary, wrong, "amqp").__aenter__()
            gc.collect()
            await clock.sleep(0.1)
    assert [str(each.message) for each in caught if issubclass(each.category, ResourceWarning)] == []
