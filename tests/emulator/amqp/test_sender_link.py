"""Sending over AMQP: what is stored, and what each refusal says."""

from __future__ import annotations

import asyncio

import pytest

from sbclient import clock
from sbclient.amqp import (
    ACCEPTED,
    BATCH_FORMAT,
    DispositionReceived,
    LinkDetached,
    OutgoingLink,
    Target,
)
from sbclient.amqp.sections import Properties
from sbclient.amqp.types import Int
from sbclient.broker.faults import Fault, FaultKind, Operation
from sbclient.delivery import ServiceBusReceiveMode
from sbclient.emulator.context import NamespaceContext
from sbclient.emulator.faults import WireFault, WireFaultKind
from sbclient.entities import EntityKind, EntityStatus
from sbclient.hosting.host import BrokerHost
from sbclient.message import ServiceBusMessage
from tests.emulator.amqp.client import HOST, Client, condition_of, connected, create
from tests.payloads import batch_of, encode_sections, payload_of, size_of

MIB = 2**20


def stored(host: BrokerHost, path: str = "q") -> int:
    return len(host.namespace.queue(path))


async def test_a_message_is_accepted_and_stored(context: NamespaceContext, host: BrokerHost) -> None:
    create(host, EntityKind.QUEUE, "q")
    async with connected(context, "q") as client:
        link = await client.sender("amqps://contoso:5671/q")
        assert await client.send(link, ServiceBusMessage("hello", message_id="1")) == ACCEPTED
    (entry,) = await host.receive("q", max_message_count=1, max_wait_time_s=0)
    assert bytes(entry.content).decode() == "hello"
    assert entry.content.message_id == "1"


async def test_a_link_name_too_long_for_the_frames_of_the_client_ends_its_session_only(
    context: NamespaceContext, host: BrokerHost, caplog: pytest.LogCaptureFixture
) -> None:
    create(host, EntityKind.QUEUE, "q")
    async with connected(context, "q", frame_size=512) as client:
        link = client.session.attach_sender("x" * 600, target=Target(address=f"{HOST}/q"))
        client.flush()
        assert await client.refusal(link) == "amqp:frame-size-too-small"
        assert not client.closed.done()
    assert [record.message for record in caplog.records if record.levelname == "ERROR"] == []


async def test_the_attach_has_the_maximum_sizes_of_messages_and_batches(
    context: NamespaceContext, host: BrokerHost
) -> None:
    create(host, EntityKind.QUEUE, "q")
    async with connected(context, "q") as client:
        link = await client.sender("q")
        answer = client.answer(link)
        assert answer.max_message_size == 256 * 1024
        assert answer.properties is None  # the service states no size of batches
        assert link.credit > 0


async def test_a_batch_is_stored_whole_with_one_answer(context: NamespaceContext, host: BrokerHost) -> None:
    create(host, EntityKind.QUEUE, "q")
    async with connected(context, "q") as client:
        link = await client.sender("q")
        assert await client.send(link, *(ServiceBusMessage(str(number)) for number in range(3))) == ACCEPTED
    received = await host.receive("q", max_message_count=9, max_wait_time_s=0)
    assert [bytes(entry.content).decode() for entry in received] == ["0", "1", "2"]


async def test_a_batch_with_two_keys_is_refused_on_a_partitioned_queue(
    context: NamespaceContext, host: BrokerHost
) -> None:
    create(host, EntityKind.QUEUE, "q", enable_partitioning=True)
    async with connected(context, "q") as client:
        link = await client.sender("q")
        outcome = await client.send(link, *(ServiceBusMessage("", partition_key=key) for key in "ab"))
        assert condition_of(outcome) == "amqp:not-allowed"
    assert stored(host) == 0


async def test_pipelined_messages_are_stored_in_the_order_of_the_wire(
    context: NamespaceContext, host: BrokerHost
) -> None:
    create(host, EntityKind.QUEUE, "q")
    async with connected(context, "q") as client:
        link = await client.sender("q")
        async with asyncio.TaskGroup() as group:
            for number in range(300):
                group.create_task(client.send(link, ServiceBusMessage(str(number))))
    received = await host.receive("q", max_message_count=300, max_wait_time_s=0)
    assert [int(bytes(entry.content).decode()) for entry in received] == list(range(300))


async def test_a_settled_transfer_is_stored_without_an_answer(context: NamespaceContext, host: BrokerHost) -> None:
    create(host, EntityKind.QUEUE, "q")
    async with connected(context, "q") as client:
        link = await client.sender("q")
        delivery = link.send(payload_of(ServiceBusMessage("x")), tag=b"1", settled=True)
        client.flush()
        with pytest.raises(TimeoutError):
            await client.event(DispositionReceived, delivery, within_s=5)
    assert stored(host) == 1


async def test_a_message_over_many_frames_passes(context: NamespaceContext, host: BrokerHost) -> None:
    create(host, EntityKind.QUEUE, "q")
    body = bytes(range(256)) * 1000
    async with connected(context, "q") as client:
        link = await client.sender("q")
        assert await client.send(link, ServiceBusMessage(body)) == ACCEPTED
    (entry,) = await host.receive("q", max_message_count=1, max_wait_time_s=0)
    assert entry.content.body == body


async def test_the_size_limit_counts_every_section(context: NamespaceContext, host: BrokerHost) -> None:
    create(host, EntityKind.QUEUE, "q")
    room = 256 * 1024 - size_of(ServiceBusMessage(b"x" * 1000)) + 1000
    with_annotations = encode_sections(message_annotations={"their-own": "x" * 20_000}, data=[b"x" * room])
    async with connected(context, "q") as client:
        link = await client.sender("q")
        assert condition_of(await client.transfer(link, with_annotations)) == "amqp:link:message-size-exceeded"
        assert await client.transfer(link, encode_sections(data=[b"x" * room])) == ACCEPTED


@pytest.mark.parametrize(
    ("payload", "message_format", "condition"),
    [
        (b"\x00\x53\x99\x40", 0, "amqp:decode-error"),
        (b"\xff", 0, "amqp:decode-error"),
        (payload_of(ServiceBusMessage("x")), 7, "amqp:not-allowed"),
        (b"\x00\x53\x75\xa0\x01\xff", BATCH_FORMAT, "amqp:decode-error"),
        (b"", BATCH_FORMAT, "amqp:invalid-field"),
        (encode_sections(properties=Properties(message_id="x" * 129), data=[b""]), 0, "amqp:not-allowed"),
        (payload_of(ServiceBusMessage(b"x" * 256 * 1024)), 0, "amqp:link:message-size-exceeded"),
        (payload_of(ServiceBusMessage(b"x" * MIB)), 0, "amqp:link:message-size-exceeded"),
    ],
    ids=lambda value: str(value)[:20],
)
async def test_an_invalid_message_is_rejected_and_the_link_stays(
    context: NamespaceContext, host: BrokerHost, payload: bytes, message_format: int, condition: str
) -> None:
    create(host, EntityKind.QUEUE, "q")
    async with connected(context, "q") as client:
        link = await client.sender("q")
        outcome = await client.transfer(link, payload, message_format=message_format)
        assert condition_of(outcome) == condition
        assert await client.send(link, ServiceBusMessage("good")) == ACCEPTED
    assert stored(host) == 1


async def test_one_bad_message_in_a_batch_refuses_all_of_it(context: NamespaceContext, host: BrokerHost) -> None:
    create(host, EntityKind.QUEUE, "q", requires_session=True)
    async with connected(context, "q") as client:
        link = await client.sender("q")
        batch = batch_of([ServiceBusMessage("a", session_id="s"), ServiceBusMessage("b")]).payload
        outcome = await client.transfer(link, batch, message_format=BATCH_FORMAT)
        assert condition_of(outcome) == "amqp:not-allowed"
    assert stored(host) == 0


@pytest.mark.parametrize(
    ("address", "condition"),
    [
        ("missing", "amqp:not-found"),
        ("q/$DeadLetterQueue", "amqp:not-allowed"),
        ("t/Subscriptions/s", "amqp:not-allowed"),
        ("off", "com.microsoft:entity-disabled"),
        ("", "amqp:not-found"),
    ],
)
async def test_a_link_to_a_target_that_accepts_no_messages_is_rejected(
    context: NamespaceContext, host: BrokerHost, address: str, condition: str
) -> None:
    create(host, EntityKind.QUEUE, "q")
    create(host, EntityKind.QUEUE, "off", status=EntityStatus.DISABLED)
    create(host, EntityKind.TOPIC, "t")
    create(host, EntityKind.SUBSCRIPTION, "t", "s")
    async with connected(context, "") as client:
        link = await client.sender(address)
        assert client.answer(link).target is None
        assert await client.refusal(link) == condition


# Faults --------------------------------------------------------------------------------------------------------------


async def test_a_fault_of_the_broker_rejects_the_transfer(context: NamespaceContext, host: BrokerHost) -> None:
    create(host, EntityKind.QUEUE, "q")
    async with connected(context, "q") as client:
        link = await client.sender("q")
        host.inject(Fault(FaultKind.BUSY, "q", operations=(Operation.SEND,), count=1))
        assert condition_of(await client.send(link, ServiceBusMessage("x"))) == "com.microsoft:server-busy"
        assert await client.send(link, ServiceBusMessage("x")) == ACCEPTED


async def test_a_hanging_send_is_answered_after_the_timeout_of_the_client(
    context: NamespaceContext, host: BrokerHost
) -> None:
    create(host, EntityKind.QUEUE, "q")
    async with connected(context, "q") as client:
        link = await client.sender("q")
        host.inject(Fault(FaultKind.HANG, "q", operations=(Operation.SEND,), count=1))
        began_at = clock.monotonic()
        hanging = asyncio.ensure_future(client.send(link, ServiceBusMessage("x")))
        await asyncio.sleep(1)
        assert await client.send(link, ServiceBusMessage("not held up")) == ACCEPTED
        assert condition_of(await hanging) == "com.microsoft:timeout"
        assert clock.monotonic() - began_at == pytest.approx(60, abs=1)


async def test_a_namespace_that_is_down_closes_the_connection(context: NamespaceContext, host: BrokerHost) -> None:
    create(host, EntityKind.QUEUE, "q")
    async with connected(context, "q") as client:
        link = await client.sender("q")
        host.inject(Fault(FaultKind.DOWN))
        link.send(payload_of(ServiceBusMessage("x")), tag=b"1")
        client.flush()
        detached = await client.event(LinkDetached, link)
        assert detached.error is not None
        assert "it is down" in (detached.error.description or "")  # of the session's end, which comes first
        closed = await client.closed
        assert closed.error is not None
        assert closed.error.condition == "amqp:connection:forced"


async def test_a_dropped_acknowledgement_stores_the_message_without_an_answer(
    context: NamespaceContext, host: BrokerHost
) -> None:
    create(host, EntityKind.QUEUE, "q")
    async with connected(context, "q") as client:
        link = await client.sender("q")
        context.wire_faults.inject(WireFault(WireFaultKind.DROP_ACKNOWLEDGEMENT, "q", count=1))
        delivery = link.send(payload_of(ServiceBusMessage("x")), tag=b"1")
        client.flush()
        with pytest.raises(TimeoutError):
            await client.event(DispositionReceived, delivery, within_s=200)
        assert await client.send(link, ServiceBusMessage("y")) == ACCEPTED
    assert stored(host) == 2


async def test_a_detach_fault_affects_open_and_new_links(context: NamespaceContext, host: BrokerHost) -> None:
    create(host, EntityKind.QUEUE, "q")
    create(host, EntityKind.QUEUE, "other")
    async with connected(context, "q", "other") as client:
        link, other = await client.sender("q"), await client.sender("other")
        fault = WireFault(WireFaultKind.DETACH, "q", condition="com.microsoft:container-close")
        context.wire_faults.inject(fault)
        assert await client.refusal(link) == "com.microsoft:container-close"
        assert await client.refusal(await client.sender("q")) == "com.microsoft:container-close"
        assert await client.send(other, ServiceBusMessage("x")) == ACCEPTED
        context.wire_faults.heal(fault)
        assert await client.send(await client.sender("q"), ServiceBusMessage("x")) == ACCEPTED


async def test_a_busy_fault_rejects_the_transfer_and_stores_nothing(
    context: NamespaceContext, host: BrokerHost
) -> None:
    create(host, EntityKind.QUEUE, "q")
    async with connected(context, "q") as client:
        link = await client.sender("q")
        context.wire_faults.inject(WireFault(WireFaultKind.SERVER_BUSY, "q", count=1))
        assert condition_of(await client.send(link, ServiceBusMessage("x"))) == "com.microsoft:server-busy"
    assert stored(host) == 0


# By way of another entity --------------------------------------------------------------------------------------------


async def test_messages_sent_by_way_of_a_queue_arrive_at_their_destination(
    context: NamespaceContext, host: BrokerHost
) -> None:
    create(host, EntityKind.QUEUE, "via")
    create(host, EntityKind.QUEUE, "q")
    async with connected(context, "via", "q") as client:
        link = await via(client, "via", "q")
        assert await client.send(link, ServiceBusMessage("x")) == ACCEPTED
    (entry,) = await host.receive(
        "q", max_message_count=1, max_wait_time_s=1, mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE
    )
    assert bytes(entry.content).decode() == "x"
    assert stored(host, "via") == 0


@pytest.mark.parametrize("is_partitioned", [False, True])
async def test_a_via_partition_key_that_is_not_a_string_is_rejected(
    context: NamespaceContext, host: BrokerHost, is_partitioned: bool
) -> None:
    create(host, EntityKind.QUEUE, "via", enable_partitioning=is_partitioned)
    create(host, EntityKind.QUEUE, "q")
    async with connected(context, "via", "q") as client:
        link = await via(client, "via", "q")
        bad = encode_sections(message_annotations={"x-opt-via-partition-key": Int(3)}, data=[b"x"])
        assert condition_of(await client.transfer(link, bad)) == "amqp:invalid-field"
        good = encode_sections(message_annotations={"x-opt-via-partition-key": "3"}, data=[b"x"])
        assert await client.transfer(link, good) == ACCEPTED
    assert stored(host) == 1


async def via(client: Client, path: str, destination: str) -> OutgoingLink:
    properties = {"com.microsoft:transfer-destination-address": f"amqps://contoso/{destination}"}
    return await client.sender(path, properties=properties)
