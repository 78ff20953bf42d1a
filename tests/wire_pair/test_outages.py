"""An outage of the primary over real sockets, from its start until the last message is forwarded."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from datetime import timedelta

import pytest

from sbclient import PairedNamespaceOptions, ServiceBusClient, ServiceBusMessage, clock
from sbclient.client.sender import ServiceBusSender
from sbclient.errors import OperationTimeoutError, ServiceBusConnectionError, ServiceBusError
from tests.limit import HANG_S
from tests.wire_pair.conftest import NamespaceProcess

QUEUE = "orders"
KEYS = 4
EACH = 3
TIMEOUT_S = 8.0

OPTIONS = PairedNamespaceOptions(
    failover_interval=timedelta(0),
    ping_primary_interval=timedelta(seconds=1),
    backlog_queue_count=2,
)


@dataclass
class Account:
    """What became of each message that was sent."""

    accepted: set[str] = field(default_factory=set)
    in_doubt: set[str] = field(default_factory=set)
    refused: dict[str, ServiceBusError] = field(default_factory=dict)

    async def send(self, sender: ServiceBusSender, body: str, key: str) -> None:
        try:
            await sender.send_messages(ServiceBusMessage(body, partition_key=key))
        except (OperationTimeoutError, ServiceBusConnectionError):
            self.in_doubt.add(body)
        except ServiceBusError as error:
            self.refused[body] = error
        else:
            self.accepted.add(body)

    async def send_wave(self, sender: ServiceBusSender, wave: str) -> None:
        """Several keys at once, each with a few messages one after the other."""

        async def send_key(key: str) -> None:
            for number in range(EACH):
                await self.send(sender, f"{wave}/{key}/{number}", key)

        await asyncio.gather(*(send_key(f"key-{index}") for index in range(KEYS)))


def paired(primary: NamespaceProcess, secondary: NamespaceProcess, options: PairedNamespaceOptions) -> ServiceBusClient:
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


async def drained(client: ServiceBusClient) -> Counter[str]:
    """Every message of the queue, by its body."""
    seen: Counter[str] = Counter()
    async with client.get_queue_receiver(QUEUE) as receiver:
        while messages := await receiver.receive_messages(50, max_wait_time=1.5):
            for message in messages:
                seen[str(message)] += 1
                await receiver.complete_message(message)
                assert not [name for name in message.application_properties if name.startswith("x-ms-")]
    return seen


@pytest.mark.parametrize("how", ["reset", "frozen", "black_hole"])
async def test_an_outage_costs_no_message(primary: NamespaceProcess, secondary: NamespaceProcess, how: str) -> None:
    account = Account()
    async with paired(primary, secondary, OPTIONS) as client:
        await client.administration.create_queue(QUEUE, requires_duplicate_detection=True)
        async with client.get_queue_sender(QUEUE) as sender:
            await account.send_wave(sender, "before")
            assert client.pair.status().entities[QUEUE].state.name == "HEALTHY"
            await primary.hurt(how)
            await account.send_wave(sender, "during")
            status = client.pair.status().entities[QUEUE]
            assert status.state.name == "FAILED_OVER"
            assert status.diverted == KEYS * EACH
            await primary.heal(how)
            await until_recovered(client)
            await account.send_wave(sender, "after")
        report = await client.run_syphon(until="empty")
        seen = await drained(client)
    assert (account.in_doubt, account.refused) == (set(), {})
    assert report.drained == KEYS * EACH
    assert (report.dead_lettered, report.parked) == ({}, 0)
    assert seen == Counter(account.accepted), "each message arrives once, for its id is the same on both ways"


async def test_syphon_drains_the_backlog_during_sends(primary: NamespaceProcess, secondary: NamespaceProcess) -> None:
    account = Account()
    options = PairedNamespaceOptions(
        failover_interval=timedelta(0),
        ping_primary_interval=timedelta(seconds=1),
        backlog_queue_count=2,
        enable_syphon=True,
        syphon_long_poll=timedelta(seconds=5),
    )
    async with paired(primary, secondary, options) as client:
        await client.administration.create_queue(QUEUE, requires_duplicate_detection=True)
        async with client.get_queue_sender(QUEUE) as sender:
            await account.send_wave(sender, "before")
            await primary.hurt("reset")
            await account.send_wave(sender, "during")
            await clock.sleep(2.0)  # the syphon finds the primary closed, and puts aside what it holds
            await primary.heal("reset")
            await until_recovered(client)
        seen: Counter[str] = Counter()
        deadline = clock.monotonic() + HANG_S
        while len(seen) < 2 * KEYS * EACH:
            assert clock.monotonic() < deadline, f"only {len(seen)} arrived"
            seen += await drained(client)
    assert (account.in_doubt, account.refused) == (set(), {})
    assert seen == Counter(account.accepted)


async def test_lost_acknowledgements_cost_no_message_and_make_none(
    primary: NamespaceProcess, secondary: NamespaceProcess
) -> None:
    account = Account()
    async with paired(primary, secondary, OPTIONS) as client:
        await client.administration.create_queue(QUEUE, requires_duplicate_detection=True)
        async with client.get_queue_sender(QUEUE) as sender:
            await account.send_wave(sender, "before")
            await primary.hurt("drop_acknowledgement")
            await account.send_wave(sender, "during")
            await primary.heal("drop_acknowledgement")
            await until_recovered(client)
            await account.send_wave(sender, "after")
        await client.run_syphon(until="empty")
        seen = await drained(client)
    assert (account.in_doubt, account.refused) == (set(), {})
    assert seen == Counter(account.accepted)


async def test_a_send_to_a_busy_primary_is_diverted_after_its_retries(
    primary: NamespaceProcess, secondary: NamespaceProcess
) -> None:
    account = Account()
    async with paired(primary, secondary, OPTIONS) as client:
        await client.administration.create_queue(QUEUE)
        async with client.get_queue_sender(QUEUE) as sender:
            await account.send(sender, "before", "k")
            await primary.hurt("server_busy")
            await account.send(sender, "during", "k")
            assert client.pair.status().entities[QUEUE].diverted == 1
            await primary.heal("server_busy")
            await until_recovered(client)
            await account.send(sender, "after", "k")
        await client.run_syphon(until="empty")
        seen = await drained(client)
    assert account.refused == {}
    assert seen == Counter(account.accepted) == Counter({"before", "during", "after"})


async def test_with_both_namespaces_gone_the_caller_knows(
    primary: NamespaceProcess, secondary: NamespaceProcess
) -> None:
    account = Account()
    async with paired(primary, secondary, OPTIONS) as client:
        await client.administration.create_queue(QUEUE)
        async with client.get_queue_sender(QUEUE) as sender:
            await account.send(sender, "before", "k")
            await primary.hurt("reset")
            await secondary.hurt("reset")
            await account.send(sender, "during", "k")
            await primary.heal("reset")
            await secondary.heal("reset")
            await until_recovered(client)
            await account.send(sender, "after", "k")
        await client.run_syphon(until="empty")
        seen = await drained(client)
    assert {body: type(error).__name__ for body, error in account.refused.items()} == {
        "during": "BacklogUnavailableError"
    }
    assert seen == Counter(account.accepted) == Counter({"before", "after"})
