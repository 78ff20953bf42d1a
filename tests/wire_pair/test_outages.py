"""An outage of the primary over real sockets, from its start until the last message is forwarded."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from datetime import timedelta

import pytest

from sbclient import PairedNamespaceOptions, ServiceBusClient, ServiceBusMessage, clock
from sbclient.client.sender import ServiceBusSender
from sbclient.errors import OperationTimeoutError, ServiceBusConnectionError, ServiceBusError
from sbclient.testing.ledger import Ledger
from tests.limit import HANG_S
from tests.stage.namespaces import Namespace

QUEUE = "orders"
KEYS = 4
EACH = 3
TIMEOUT_S = 8.0

OPTIONS = PairedNamespaceOptions(
    failover_interval=timedelta(0),
    ping_primary_interval=timedelta(seconds=1),
    backlog_queue_count=2,
)


@dataclass(repr=False)
class Sends(Ledger):
    """The messages of one test by their bodies, those in doubt, and the errors of those that were refused."""

    in_doubt: set[str] = field(default_factory=set)
    refused: dict[str, str] = field(default_factory=dict)

    async def try_one(self, sender: ServiceBusSender, body: str, key: str = "k") -> None:
        try:
            await sender.send_messages(ServiceBusMessage(body, partition_key=key))
        except (OperationTimeoutError, ServiceBusConnectionError):
            self.in_doubt.add(body)
        except ServiceBusError as error:
            self.refused[body] = type(error).__name__
        else:
            self.send(body)
            self.accepted.add(body)

    async def try_wave(self, sender: ServiceBusSender, wave: str) -> None:
        """Several keys at once, each with a few messages one after the other."""

        async def send_key(key: str) -> None:
            for number in range(EACH):
                await self.try_one(sender, f"{wave}/{key}/{number}", key)

        await asyncio.gather(*(send_key(f"key-{index}") for index in range(KEYS)))

    async def receive(self, client: ServiceBusClient) -> None:
        """Empty the queue."""
        async with client.get_queue_receiver(QUEUE) as receiver:
            while messages := await receiver.receive_messages(50, max_wait_time=1.5):
                for message in messages:
                    self.deliver(str(message))
                    await receiver.complete_message(message)
                    assert not [name for name in message.application_properties if name.startswith("x-ms-")]

    def check(self) -> None:
        """No message is in doubt, lost, unexpected or delivered twice."""
        assert (self.in_doubt, self.lost, self.unexpected, self.duplicates) == (set(), set(), set(), 0)


def paired(primary: Namespace, secondary: Namespace, options: PairedNamespaceOptions) -> ServiceBusClient:
    return ServiceBusClient.from_connection_string(
        primary.connection_string,
        secondary=secondary.connection_string,
        options=options,
        timeout=TIMEOUT_S,
    )


async def until_recovered(client: ServiceBusClient) -> None:
    deadline = clock.monotonic() + HANG_S
    while client.pair.status().entities[QUEUE].state.name != "HEALTHY":
        assert clock.monotonic() < deadline, "the queue did not come back"
        await clock.sleep(0.1)


@pytest.mark.parametrize("how", ["reset", "frozen", "black_hole", "drop_acknowledgement", "server_busy"])
async def test_an_outage_costs_no_message(
    primary: Namespace, secondary: Namespace, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each message arrives once also after a lost acknowledgement, for its id is the same on both ways."""
    monkeypatch.setattr("sbclient.pairing.pinger.PING_TIMEOUT_S", 2.0)  # a ping loses its acknowledgement, too
    sends = Sends()
    async with paired(primary, secondary, OPTIONS) as client:
        await client.administration.create_queue(QUEUE, requires_duplicate_detection=True)
        async with client.get_queue_sender(QUEUE) as sender:
            await sends.try_wave(sender, "before")
            assert client.pair.status().entities[QUEUE].state.name == "HEALTHY"
            await primary.hurt(how)
            await sends.try_wave(sender, "during")
            status = client.pair.status().entities[QUEUE]
            assert status.state.name == "FAILED_OVER"
            assert status.diverted == KEYS * EACH
            await primary.heal(how)
            await until_recovered(client)
            await sends.try_wave(sender, "after")
        report = await client.run_syphon(until="empty")
        await sends.receive(client)
    assert report.drained == KEYS * EACH
    assert (report.dead_lettered, report.parked) == ({}, 0)
    assert sends.refused == {}
    sends.check()


async def test_syphon_drains_the_backlog_during_sends(primary: Namespace, secondary: Namespace) -> None:
    sends = Sends()
    options = replace(OPTIONS, enable_syphon=True, syphon_long_poll=timedelta(seconds=5))
    async with paired(primary, secondary, options) as client:
        await client.administration.create_queue(QUEUE, requires_duplicate_detection=True)
        async with client.get_queue_sender(QUEUE) as sender:
            await sends.try_wave(sender, "before")
            await primary.hurt("reset")
            await sends.try_wave(sender, "during")
            await clock.sleep(2.0)  # the syphon finds the primary closed, and puts aside what it holds
            await primary.heal("reset")
            await until_recovered(client)
        deadline = clock.monotonic() + HANG_S
        while len(sends.delivered) < 2 * KEYS * EACH:
            assert clock.monotonic() < deadline, f"only {len(sends.delivered)} arrived"
            await sends.receive(client)
    assert sends.refused == {}
    sends.check()


async def test_with_both_namespaces_gone_the_caller_knows(primary: Namespace, secondary: Namespace) -> None:
    sends = Sends()
    async with paired(primary, secondary, OPTIONS) as client:
        await client.administration.create_queue(QUEUE)
        async with client.get_queue_sender(QUEUE) as sender:
            await sends.try_one(sender, "before")
            await primary.hurt("reset")
            await secondary.hurt("reset")
            await sends.try_one(sender, "during")
            await primary.heal("reset")
            await secondary.heal("reset")
            await until_recovered(client)
            await sends.try_one(sender, "after")
        await client.run_syphon(until="empty")
        await sends.receive(client)
    assert sends.refused == {"during": "BacklogUnavailableError"}
    assert sends.accepted == {"before", "after"}
    sends.check()
