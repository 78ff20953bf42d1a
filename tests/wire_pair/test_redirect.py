"""Messages are sent, delivered and received over AMQP while emulators are killed: SIGKILL, and a data directory."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from datetime import timedelta
from pathlib import Path

import pytest

from sbclient import PairedNamespaceOptions, ServiceBusClient, ServiceBusMessage, clock
from sbclient.errors import ServiceBusError
from sbclient.testing.ledger import Ledger
from tests.limit import HANG_S
from tests.stage.namespaces import Namespace

QUEUE = "orders"
MESSAGES = 240
OPTIONS = PairedNamespaceOptions(
    failover_interval=timedelta(0),
    ping_primary_interval=timedelta(seconds=1),
    backlog_queue_count=2,
    receive_from="both",
    redirect_after=timedelta(0),
    enable_syphon=True,
)


class Traffic:
    """Orders that are sent and received until all of them have arrived.

    Attributes:
        in_doubt: ids whose first send was not answered, or whose completion failed: these may come twice.
        sides: where each id was received.
    """

    def __init__(self, client: ServiceBusClient) -> None:
        self._client = client
        self.ledger = Ledger()
        self.in_doubt: set[str] = set()
        self.sides: dict[str, list[str]] = defaultdict(list)
        self.sending: str | None = None

    async def send(self) -> None:
        async with self._client.get_queue_sender(QUEUE) as sender:
            for number in range(MESSAGES):
                self.sending = message_id = f"{number}"
                self.ledger.send(message_id)
                while message_id not in self.ledger.accepted:
                    try:
                        await sender.send_messages(ServiceBusMessage(message_id, message_id=message_id))
                        self.ledger.accepted.add(message_id)
                    except ServiceBusError as error:  # both namespaces are gone
                        if error.is_in_doubt:
                            self.in_doubt.add(message_id)
                        await clock.sleep(0.1)
                await clock.sleep(0.01)

    async def receive(self) -> None:
        async with self._client.get_queue_receiver(QUEUE, prefetch_count=8) as receiver:
            while True:
                try:
                    messages = await receiver.receive_messages(10, max_wait_time=2)
                except ServiceBusError:
                    await clock.sleep(0.1)
                    continue
                for message in messages:
                    assert message.message_id is not None
                    self.ledger.deliver(message.message_id)
                    self.sides[message.message_id].append(message.namespace)
                    try:
                        await receiver.complete_message(message)
                    except ServiceBusError:
                        self.in_doubt.add(message.message_id)

    async def until_received(self, count: int) -> None:
        deadline = clock.monotonic() + HANG_S
        while len(self.ledger.delivered) < count:
            assert clock.monotonic() < deadline, f"only {len(self.ledger.delivered)} of {count} have arrived"
            await clock.sleep(0.05)


@pytest.mark.parametrize("killed", [["primary"], ["primary", "secondary"]], ids=["primary", "both"])
async def test_every_message_is_received_while_namespaces_are_killed(tmp_path: Path, killed: list[str]) -> None:
    sides = {
        side: Namespace(name, tmp_path, options=["--data", str(tmp_path / side)])
        for side, name in (("primary", "contoso"), ("secondary", "contoso-backup"))
    }
    primary, secondary = sides.values()
    try:
        await asyncio.gather(*(process.begin() for process in sides.values()))
        for process in sides.values():
            async with process.client() as client:
                await client.administration.create_queue(QUEUE, lock_duration=timedelta(seconds=5))
        async with ServiceBusClient.from_connection_string(
            primary.connection_string, secondary=secondary.connection_string, options=OPTIONS, timeout=4.0
        ) as client:
            traffic = Traffic(client)
            receiving = asyncio.ensure_future(traffic.receive())
            sending = asyncio.ensure_future(traffic.send())
            await traffic.until_received(MESSAGES // 4)
            if traffic.sending is not None:
                traffic.in_doubt.add(traffic.sending)  # its first send may be in the namespace that is killed
            if "secondary" in killed:  # also what a syphon has in flight may be stored without an answer
                traffic.in_doubt |= traffic.ledger.accepted - traffic.ledger.delivered.keys()
            for side in killed:
                sides[side].kill()
            if "secondary" in killed:
                await clock.sleep(2.0)
                await secondary.begin()
            await traffic.until_received(MESSAGES // 2)
            assert "secondary" in {side for found in traffic.sides.values() for side in found}
            await primary.begin()
            await sending
            await traffic.until_received(MESSAGES)
            named = {
                message_id
                for event in client.pair.events()
                if event.name == "syphon.redirected_in_doubt"
                for message_id in event.facts["message_ids"]
            }
            await clock.sleep(6.0)  # a lock that was lost with its connection ends, and its message comes again
            receiving.cancel()
            await asyncio.wait([receiving])
            await until_back(client, traffic)
    finally:
        for process in sides.values():
            process.kill()
    ledger = traffic.ledger
    assert (ledger.lost, ledger.unexpected, len(ledger.accepted)) == (set(), set(), MESSAGES)
    twice = {message_id for message_id, count in ledger.delivered.items() if count > 1}
    assert twice <= traffic.in_doubt | named, (twice - traffic.in_doubt - named, traffic.sides)


async def until_back(client: ServiceBusClient, traffic: Traffic) -> None:
    """What is sent now is received from the primary."""
    deadline = clock.monotonic() + HANG_S
    receiver, sender = client.get_queue_receiver(QUEUE), client.get_queue_sender(QUEUE)
    while True:
        assert clock.monotonic() < deadline, "messages do not go to the primary again"
        traffic.ledger.send("back")
        await sender.send_messages(ServiceBusMessage("back", message_id="back"))
        messages = await receiver.receive_messages(max_wait_time=10)
        for message in messages:
            await receiver.complete_message(message)
        if [message.namespace for message in messages] == ["primary"]:
            return
