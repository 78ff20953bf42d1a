"""Inspect the backlog, and resubmit or purge its dead letters."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from sbclient import clock
from sbclient.amqp import EncodedBatch
from sbclient.amqp.encode import sized_map
from sbclient.amqp.encoded import encode_entries, encoded_content
from sbclient.amqp.sections import APPLICATION_PROPERTIES, map_entries
from sbclient.backlog import Backlog
from sbclient.client.client import ServiceBusClient
from sbclient.client.receiver import ServiceBusReceiver
from sbclient.delivery import ServiceBusSubQueue
from sbclient.errors import InvalidOperationError, OperationTimeoutError
from sbclient.message import ServiceBusMessage, ServiceBusReceivedMessage
from sbclient.options import PairedNamespaceOptions
from sbclient.testing import Fault, FaultKind, MemoryPair, Operation, memory_pair
from tests.original_client import BACKLOG, Recorded, healthy


async def divert(pair: MemoryPair, client: ServiceBusClient, count: int, *, queue: str = "orders") -> None:
    client.pair.force_failover(queue)
    async with client.get_queue_sender(queue) as sender:
        for number in range(count):
            await sender.send_messages(ServiceBusMessage(f"order {number}"))


async def dead_letter(pair: MemoryPair, body: str, **properties: str) -> None:
    """A message in backlog queue 0 that the syphon cannot forward."""
    async with (
        pair.unpaired_client(secondary=True) as stranger,
        stranger.get_queue_sender("contoso/x-servicebus-transfer/0") as sender,
    ):
        await sender.send_messages(ServiceBusMessage(body, application_properties=properties))


async def test_a_survey_counts_what_waits_by_queue_and_destination() -> None:
    pair = memory_pair(seed=1)
    async with pair.client(PairedNamespaceOptions(backlog_queue_count=2)) as client:
        await client.administration.create_queue("orders")
        await divert(pair, client, 250)
        views = await Backlog(client.pair).survey()
        assert [view.queue for view in views] == [f"contoso/x-servicebus-transfer/{index}" for index in range(2)]
        assert sum(view.waiting for view in views) == 250
        assert sum(view.destinations["orders"] for view in views) == 250
        assert all(view.is_complete for view in views)
        for limit in (1, 99, 100, 101, 249, 250, 251):
            views = await Backlog(client.pair).survey(limit=limit)
            assert (sum(view.depth for view in views), all(view.is_complete for view in views)) == (
                min(limit, 250),
                limit >= 250,
            )


async def test_parked_messages_and_dead_letters_are_distinguished() -> None:
    pair = memory_pair(seed=1)
    async with pair.client(PairedNamespaceOptions(backlog_queue_count=1)) as client:
        await client.administration.create_queue("orders")
        await divert(pair, client, 3)
        await dead_letter(pair, "unknown destination")
        pair.primary.inject(Fault(FaultKind.DOWN, entity_path="orders"))
        await client.run_syphon(until="empty")
        (view,) = await Backlog(client.pair).survey()
        assert (view.parked, view.dead_letters) == (3, {"DestinationMissing": 1})
        assert view.oldest_utc is not None


async def test_a_message_without_a_destination_is_counted_as_unknown() -> None:
    pair = memory_pair(seed=1)
    async with pair.client(PairedNamespaceOptions(backlog_queue_count=1)) as client:
        await dead_letter(pair, "unknown destination")
        (view,) = await Backlog(client.pair).survey()
        assert view.destinations == {"(unknown)": 1}


async def test_resubmitted_dead_letters_are_drained() -> None:
    pair = memory_pair(seed=1)
    async with pair.client(PairedNamespaceOptions(backlog_queue_count=1)) as client:
        await client.administration.create_queue("parcels", requires_session=True)
        await dead_letter(pair, "no session", **{"x-ms-path": "parcels"})
        await dead_letter(pair, "unknown destination")
        await client.run_syphon(until="empty")
        assert await Backlog(client.pair).resubmit(reason="NoSuchReason") == 0
        await client.administration.delete_queue("parcels")
        await client.administration.create_queue("parcels")
        assert await Backlog(client.pair).resubmit(reason="DestinationRefused") == 1
        assert (await client.run_syphon(until="empty")).drained == 1
        async with client.get_queue_receiver("parcels", max_wait_time=1) as receiver:
            (message,) = await receiver.receive_messages()
        assert str(message) == "no session"
        assert message.dead_letter_reason is None
        (view,) = await Backlog(client.pair).survey()
        assert view.dead_letters == {"DestinationMissing": 1}


async def test_a_purge_deletes_dead_letters_only() -> None:
    pair = memory_pair(seed=1)
    async with pair.client(PairedNamespaceOptions(backlog_queue_count=1)) as client:
        await dead_letter(pair, "unknown destination")
        await client.run_syphon(until="empty")
        await client.administration.create_queue("orders")
        await divert(pair, client, 2)
        surveyor = Backlog(client.pair)
        assert await surveyor.purge(reason="other") == 0
        assert await surveyor.purge(queue="CONTOSO/x-servicebus-transfer/0") == 1
        (view,) = await surveyor.survey()
        assert (view.waiting, view.dead_letters.total()) == (2, 0)


async def test_missing_queues_are_reported_and_an_unknown_one_is_rejected() -> None:
    pair = memory_pair(seed=1)
    async with pair.client(PairedNamespaceOptions(backlog_queue_count=1, provision="none")) as client:
        surveyor = Backlog(client.pair)
        (view,) = await surveyor.survey()
        assert not view.is_present
        assert await surveyor.purge() == 0
        with pytest.raises(InvalidOperationError):
            await surveyor.resubmit(queue="orders")


async def test_what_waits_is_counted_for_each_destination() -> None:
    pair = memory_pair(seed=1)
    async with pair.client(PairedNamespaceOptions(backlog_queue_count=1)) as client:
        await divert(pair, client, 2)
        await clock.sleep(60)
        await divert(pair, client, 3, queue="bills")
        await dead_letter(pair, "illegal", **{"x-ms-path": "/no path/"})
        (view,) = await Backlog(client.pair).survey()
        orders, bills = view.by_destination["orders"], view.by_destination["bills"]
        assert (orders.depth, bills.depth, view.depth) == (2, 3, 6)
        assert orders.oldest_utc is not None
        assert bills.oldest_utc is not None
        assert (bills.oldest_utc - orders.oldest_utc).total_seconds() == 60
        assert view.oldest_utc == orders.oldest_utc


async def test_progress_is_reported() -> None:
    pair = memory_pair(seed=1)
    async with pair.client(PairedNamespaceOptions(backlog_queue_count=1)) as client:
        for _ in range(3):
            await dead_letter(pair, "unknown destination")
        await client.run_syphon(until="empty")
        progress: list[int] = []
        assert await Backlog(client.pair, on_progress=progress.append).purge() == 3
        assert progress == [1, 2, 3]


async def test_an_interrupted_resubmission_leaves_nothing_locked() -> None:
    pair = memory_pair(seed=1)
    async with pair.client(PairedNamespaceOptions(backlog_queue_count=1)) as client:
        for _ in range(3):
            await dead_letter(pair, "unknown destination")
        await client.run_syphon(until="empty")
        pair.secondary.inject(Fault(FaultKind.HANG, operations=[Operation.SEND]))
        with pytest.raises(OperationTimeoutError):
            await Backlog(client.pair).resubmit()
        pair.secondary.heal()
        assert await Backlog(client.pair).purge() == 3


async def refused(pair: MemoryPair, client: ServiceBusClient, count: int) -> None:
    """Dead letters in backlog queue 0 that would be refused again."""
    await client.administration.create_queue("visits", requires_session=True)
    await divert(pair, client, count, queue="visits")
    await client.run_syphon(until="empty")


async def test_a_message_dead_lettered_again_is_put_back_once() -> None:
    pair = memory_pair(seed=1)
    async with pair.client(PairedNamespaceOptions(backlog_queue_count=1)) as client:
        await refused(pair, client, 3)
        syphon = asyncio.create_task(client.run_syphon())
        for host in (pair.primary, pair.secondary):
            host.inject(Fault(FaultKind.SLOW, latency_s=0.05))
        assert await Backlog(client.pair).resubmit() == 3
        pair.secondary.heal()
        await clock.sleep(5)
        syphon.cancel()
        await asyncio.wait([syphon])
        (view,) = await Backlog(client.pair).survey()
        assert view.dead_letters == {"DestinationRefused": 3}


@pytest.mark.parametrize("order", ["first", "last"])
async def test_a_purge_by_reason_ends_though_locks_end_before_it_does(order: str) -> None:
    pair = memory_pair(seed=1)
    async with pair.unpaired_client(secondary=True) as stranger:
        await stranger.administration.create_queue(
            "contoso/x-servicebus-transfer/0", lock_duration=timedelta(seconds=5), max_delivery_count=2**31 - 1
        )
    async with pair.client(PairedNamespaceOptions(backlog_queue_count=1)) as client:
        if order == "first":
            await dead_letter(pair, "unknown destination")
            await client.run_syphon(until="empty")
        await refused(pair, client, 700)
        if order == "last":
            await dead_letter(pair, "unknown destination")
            await client.run_syphon(until="empty")
        pair.secondary.inject(Fault(FaultKind.SLOW, latency_s=0.9, operations=[Operation.RECEIVE]))
        backlog = Backlog(client.pair)
        assert await backlog.purge(reason="TTLExpiredException") == 0
        async with clock.timeout(60):
            await backlog.purge(reason="DestinationMissing")
        pair.secondary.heal()
        assert await backlog.purge(reason="DestinationRefused") == 700


async def test_a_slow_secondary_is_not_taken_for_an_empty_one() -> None:
    pair = memory_pair(seed=1)
    async with pair.client(PairedNamespaceOptions(backlog_queue_count=1)) as client:
        await refused(pair, client, 5)
        pair.secondary.inject(Fault(FaultKind.SLOW, latency_s=1.5))
        assert await Backlog(client.pair).purge() == 5


async def test_messages_locked_by_another_receiver_are_awaited_then_skipped() -> None:
    pair = memory_pair(seed=1)
    async with pair.client(PairedNamespaceOptions(backlog_queue_count=1)) as client:
        await refused(pair, client, 2)
        async with (
            pair.unpaired_client(secondary=True) as stranger,
            stranger.get_queue_receiver(
                "contoso/x-servicebus-transfer/0", sub_queue=ServiceBusSubQueue.DEAD_LETTER
            ) as holder,
        ):
            (held,) = await holder.receive_messages(max_message_count=1)
            renewals = asyncio.create_task(_renew(holder, held))
            assert await Backlog(client.pair).purge() == 1
            renewals.cancel()


async def _renew(receiver: ServiceBusReceiver, message: ServiceBusReceivedMessage) -> None:
    while True:
        await clock.sleep(20)
        await receiver.renew_message_lock(message)


@pytest.mark.parametrize("recorded", BACKLOG[:4], ids=str)
async def test_messages_of_net_are_resubmitted_and_forwarded_byte_for_byte(recorded: Recorded) -> None:
    pair = memory_pair(seed=1)
    options = PairedNamespaceOptions(backlog_queue_count=1, missing_entity_grace=timedelta(0))
    sections = recorded.message
    async with pair.client(options) as client, pair.unpaired_client(secondary=True) as stranger:
        async with stranger.get_queue_sender("contoso/x-servicebus-transfer/0") as sender:
            await sender.send_encoded(EncodedBatch([recorded.message]))
        assert (await client.run_syphon(until="empty")).dead_lettered == {"DestinationNotFound": 1}
        await client.administration.create_queue(healthy(recorded).path)
        assert await Backlog(client.pair).resubmit() == 1
        assert (await client.run_syphon(until="empty")).drained == 1
        async with client.get_queue_receiver(healthy(recorded).path) as receiver:
            (message,) = await receiver.peek_messages()
        found = encoded_content(message)
        assert found.raw_body == sections.raw_body
        entries = dict(map_entries(sections.raw_value(APPLICATION_PROPERTIES)))
        aliases = [name for name in entries if name.startswith("x-ms-")]
        assert found.raw_value(APPLICATION_PROPERTIES) == sized_map(
            b"".join(entry for name, entry in entries.items() if name not in aliases), 2 * (len(entries) - len(aliases))
        )
        async with client.get_queue_sender("copies") as sender:  # read, changed and sent on
            await client.administration.create_queue("copies")
            message.application_properties["added"] = 1
            await sender.send_messages(message)
        async with client.get_queue_receiver("copies") as receiver:
            (copy,) = await receiver.peek_messages()
        copied = encoded_content(copy)
        assert copied.raw_body == sections.raw_body
        added = encode_entries({"added": 1})[0]
        assert copied.raw_value(APPLICATION_PROPERTIES).endswith(found.raw_value(APPLICATION_PROPERTIES)[3:] + added)
