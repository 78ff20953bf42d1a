"""What clients of other makers depend on, in the frames that they send."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from azure.servicebus._pyamqp import _decode

from sbclient import clock
from sbclient.amqp import (
    ACCEPTED,
    AmqpError,
    EncodedMessage,
    Header,
    LinkDetached,
    Modified,
    Properties,
    Rejected,
    Sections,
)
from sbclient.amqp.types import Int, Long, longs
from sbclient.amqp.types import uuids as lock_tokens
from sbclient.emulator.context import NamespaceContext
from sbclient.emulator.sas import ROOT_KEY, ROOT_KEY_NAME
from sbclient.entities import EntityKind
from sbclient.hosting.host import BrokerHost
from sbclient.message import ServiceBusMessage, ServiceBusMessageState
from sbclient.rules.shared_access_signature import sign
from tests.emulator.amqp.client import SETTLED, Client, connected, create, received
from tests.payloads import encode_sections, payload_of

ABANDON, DEFER = Modified(True, False, {"Why": "later", "Tries": Long(3)}), Modified(True, True, {"Why": "later"})
NUMBER = "x-opt-sequence-number"
STATE = "x-opt-message-state"


@pytest.fixture
async def queue(host: BrokerHost) -> str:
    create(host, EntityKind.QUEUE, "q", max_delivery_count=3, lock_duration=timedelta(seconds=10))
    return "q"


async def sent_and_received(client: Client, queue: str, payload: bytes, **options: Any) -> Sections:
    assert await client.transfer(await client.sender(queue), payload) == ACCEPTED
    return Sections((await received(client, await client.receiver(queue, credit=1, **options))).payload)


# What the sender wrote -----------------------------------------------------------------------------------------------


async def test_message_without_an_id_gets_one(context: NamespaceContext, queue: str) -> None:
    properties = Properties(subject="s", group_id="g")
    async with connected(context, queue) as client:
        first = await sent_and_received(client, queue, encode_sections(properties=properties, data=[b"x"]))
        second = await sent_and_received(client, queue, encode_sections(data=[b"y"]))
    assert first.properties._replace(message_id=None) == properties
    assert isinstance(first.properties.message_id, str)
    assert len(first.properties.message_id) == 32
    assert first.properties.message_id != second.properties.message_id
    assert (first.data(), second.data()) == ([b"x"], [b"y"])


async def test_id_of_the_broker_counts_for_no_size(host: BrokerHost, context: NamespaceContext, queue: str) -> None:
    async with connected(context, queue) as client:
        link = await client.sender(queue)
        await client.send(link, ServiceBusMessage("x"))
        assert host.namespace.queue(queue).fragments[0].size_bytes == len(payload_of(ServiceBusMessage("x")))


@pytest.mark.parametrize(
    ("header", "fields"),
    [
        (None, b"\x40\x40\x40\x40\x43"),
        (Header(False, 4, None, False), b"\x42\x50\x04\x40\x42\x43"),
    ],
)
async def test_header_is_received_as_sent(
    context: NamespaceContext, queue: str, header: Header | None, fields: bytes
) -> None:
    """Fields that were not sent stay null, also first-acquirer; the broker sets the delivery count."""
    async with connected(context, queue) as client:
        raw = (await sent_and_received(client, queue, encode_sections(header=header, data=[b"x"]))).raw_value(0x70)
    assert raw[3:] == fields


async def test_delivery_annotations_of_the_sender_are_delivered(context: NamespaceContext, queue: str) -> None:
    payload = encode_sections(delivery_annotations={"mine": 5, "x-opt-lock-token": "forged"}, data=[b"x"])
    async with connected(context, queue) as client:
        delivered = (await sent_and_received(client, queue, payload)).delivery_annotations
    assert delivered.pop("x-opt-lock-token") != "forged"
    assert delivered == {"mine": 5}


async def test_malformed_delivery_annotations_are_dropped(context: NamespaceContext, queue: str) -> None:
    payload = b"\x00\x53\x71\xc1\x04\x02\x54\x01\x40" + encode_sections(data=[b"x"])
    async with connected(context, queue) as client:
        assert (await sent_and_received(client, queue, payload)).data() == [b"x"]


async def test_partition_key_may_be_binary(context: NamespaceContext, host: BrokerHost) -> None:
    create(host, EntityKind.QUEUE, "p", enable_partitioning=True)
    payload = encode_sections(message_annotations={"x-opt-partition-key": b"k"}, data=[b"x"])
    async with connected(context, "p") as client:
        assert EncodedMessage.of(await delivered_bytes(client, "p", payload)).partition_key == "k"


async def delivered_bytes(client: Client, queue: str, payload: bytes) -> bytes:
    return (await sent_and_received(client, queue, payload)).payload


async def test_empty_text_is_the_id_of_a_session(context: NamespaceContext, host: BrokerHost) -> None:
    create(host, EntityKind.QUEUE, "s", requires_session=True)
    async with connected(context, "s") as client:
        other = encode_sections(properties=Properties(message_id="n", group_id="a"), data=[b"other"])
        assert await client.transfer(await client.sender("s"), other) == ACCEPTED
        payload = encode_sections(properties=Properties(message_id="m", group_id=""), data=[b"x"])
        filters = {"com.microsoft:session-filter": ""}
        assert (await sent_and_received(client, "s", payload, filters=filters)).data() == [b"x"]
        peek = {"from-sequence-number": Long(0), "message-count": Int(5), "session-id": ""}
        status, body = await client.ask("s", "peek-message", peek)
    assert (status, len(body["messages"])) == (200, 1)


@pytest.mark.parametrize("text", ["0", "1.50", "-12345.678", "1E+3", "79228162514264337593543950335"])
async def test_sdk_reads_the_decimals_of_a_delivery(context: NamespaceContext, queue: str, text: str) -> None:
    sent = ServiceBusMessage("x", message_id="m", application_properties={"a": 1, "price": Decimal(text), "z": "z"})
    async with connected(context, queue) as client:
        payload = await delivered_bytes(client, queue, payload_of(sent))
    ours = EncodedMessage.of(payload).application_properties
    assert ours == sent.application_properties
    if abs(Decimal(text)) < 10**8:  # its decoder joins the words of larger numbers wrongly
        read: Any = _decode.decode_payload(memoryview(payload))
        assert read.application_properties == {b"a": 1, b"price": Decimal(text), b"z": b"z"}


@pytest.mark.deviation("emulator.decimals")
async def test_decimal_that_the_service_cannot_show_is_kept(context: NamespaceContext, queue: str) -> None:
    wide = Decimal("9999999999999999999999999999999999")
    payload = payload_of(ServiceBusMessage("x", message_id="m", application_properties={"wide": wide}))
    async with connected(context, queue) as client:
        found = await sent_and_received(client, queue, payload)
    assert found.raw(0x74) == Sections(payload).raw(0x74)
    assert found.application_properties == {"wide": wide}


# What the broker adds ------------------------------------------------------------------------------------------------


async def test_deleted_message_has_an_empty_tag_and_no_lock(context: NamespaceContext, queue: str) -> None:
    async with connected(context, queue) as client:
        await client.send(await client.sender(queue), ServiceBusMessage("x"))
        delivery = await received(client, await client.receiver(queue, credit=1, settle_mode=SETTLED))
    assert (delivery.tag, delivery.is_settled) == (b"", True)
    sections = Sections(delivery.payload)
    assert sections.raw(0x71) == b"\x00\x53\x71\xc1\x01\x00"
    assert "x-opt-locked-until" not in sections.message_annotations


@pytest.mark.parametrize(("delay_s", "state"), [(5, ServiceBusMessageState.SCHEDULED), (-5, None)])
async def test_message_that_waited_for_its_time_is_shown_as_scheduled(
    context: NamespaceContext, queue: str, delay_s: float, state: int | None
) -> None:
    at = datetime.fromtimestamp(clock.now(), UTC) + timedelta(seconds=delay_s)
    async with connected(context, queue) as client:
        payload = payload_of(ServiceBusMessage("x", scheduled_enqueue_time_utc=at))
        assert (await sent_and_received(client, queue, payload)).message_annotations.get(STATE) == state


@pytest.mark.parametrize("outcome", [ABANDON, None], ids=["abandoned", "lock ended"])
async def test_dead_letter_queue_counts_no_deliveries(
    context: NamespaceContext, queue: str, outcome: Modified | None
) -> None:
    dead = f"{queue}/$DeadLetterQueue"
    async with connected(context, "") as client:
        await client.send(await client.sender(queue), ServiceBusMessage("x"))
        await client.settle(await received(client, await client.receiver(queue, credit=1)), Rejected())
        link = await client.receiver(dead, credit=9)
        for _ in range(4):
            delivery = await received(client, link)
            assert Sections(delivery.payload).header.delivery_count == 0
            if outcome is not None:
                await client.settle(delivery, outcome)


# Settling ------------------------------------------------------------------------------------------------------------


async def test_abandon_sets_properties(context: NamespaceContext, queue: str) -> None:
    async with connected(context, "") as client:
        link = await client.receiver(queue, credit=2)
        await client.send(await client.sender(queue), ServiceBusMessage("x", application_properties={"a": 1, "Why": 0}))
        assert await client.settle(await received(client, link), ABANDON) == ABANDON
        properties = Sections((await received(client, link)).payload).application_properties
    assert properties == {"a": 1, "Why": "later", "Tries": 3}
    assert type(properties["Tries"]) is Long


async def test_defer_sets_properties(context: NamespaceContext, queue: str) -> None:
    async with connected(context, "") as client:
        await client.send(await client.sender(queue), ServiceBusMessage("x"))
        delivery = await received(client, await client.receiver(queue, credit=1))
        await client.settle(delivery, DEFER)
        number = Sections(delivery.payload).message_annotations[NUMBER]
        deferred = {"sequence-numbers": longs([number])}
        _, body = await client.ask(queue, "receive-by-sequence-number", deferred)
    assert Sections(body["messages"][0]["message"]).application_properties == {"Why": "later"}


async def test_dead_letter_sets_properties(context: NamespaceContext, queue: str) -> None:
    info = {"DeadLetterReason": "r", "DeadLetterErrorDescription": None, "Why": "bad"}
    async with connected(context, "") as client:
        await client.send(await client.sender(queue), ServiceBusMessage("x"))
        rejected = Rejected(AmqpError("com.microsoft:dead-letter", None, info))
        await client.settle(await received(client, await client.receiver(queue, credit=1)), rejected)
        dead = await received(client, await client.receiver(f"{queue}/$DeadLetterQueue", credit=1))
    assert Sections(dead.payload).application_properties == {"DeadLetterReason": "r", "Why": "bad"}


@pytest.mark.parametrize("session_id", [None, "", "any"])
async def test_disposition_request_sets_properties_and_may_name_a_session(
    context: NamespaceContext, queue: str, session_id: str | None
) -> None:
    async with connected(context, "") as client:
        await client.send(await client.sender(queue), ServiceBusMessage("x"))
        link = await client.receiver(queue, credit=2)
        token = Sections((await received(client, link)).payload).delivery_annotations["x-opt-lock-token"]
        body = {
            "disposition-status": "abandoned",
            "lock-tokens": lock_tokens([token]),
            "session-id": session_id,
            "properties-to-modify": {"Why": "later"},
        }
        assert await client.ask(queue, "update-disposition", body) == (200, {})
        assert Sections((await received(client, link)).payload).application_properties == {"Why": "later"}


async def test_property_that_is_not_simple_is_rejected(context: NamespaceContext, queue: str) -> None:
    async with connected(context, "") as client:
        await client.send(await client.sender(queue), ServiceBusMessage("x"))
        delivery = await received(client, await client.receiver(queue, credit=1))
        outcome = await client.settle(delivery, Modified(True, False, {"list": [1]}))
    assert isinstance(outcome, Rejected)
    assert outcome.error is not None
    assert outcome.error.condition == "com.microsoft:argument-error"


# Requests and refusals -----------------------------------------------------------------------------------------------


async def test_peek_can_omit_the_body(context: NamespaceContext, queue: str) -> None:
    async with connected(context, "") as client:
        await client.send(await client.sender(queue), ServiceBusMessage("x", subject="s"))
        peek = {"from-sequence-number": Long(0), "message-count": Int(5), "omit-message-body": True}
        _, body = await client.ask(queue, "peek-message", peek)
    sections = Sections(body["messages"][0]["message"])
    assert (sections.properties.subject, sections.raw_body) == ("s", b"")


async def test_batch_delete_that_finds_nothing_has_a_condition(context: NamespaceContext, queue: str) -> None:
    async with connected(context, "") as client:
        answer = await client.ask(queue, "batch-delete-messages", {"message-count": Int(5)})
    assert answer == (204, "com.microsoft:message-not-found")


@pytest.mark.deviation("broker.error-texts")
async def test_missing_entity_has_the_text_that_clients_search_for(context: NamespaceContext) -> None:
    async with connected(context, "") as client:
        arguments = {"type": "jwt", "name": "sb://contoso.example/missing"}
        refused, _ = await client.request("$cbs", "put-token", await token(client, "missing"), arguments=arguments)
        receiver = await client.receiver("missing")
        detached = await client.event(LinkDetached, receiver)
    assert refused["status-code"] == 404
    text = "The messaging entity 'sb://contoso/missing' could not be found. "
    assert refused["status-description"].startswith(text)
    assert detached.error is not None
    assert (detached.error.description or "").startswith(text)


async def token(client: Client, path: str) -> str:
    return sign(f"sb://contoso.example/{path}", ROOT_KEY_NAME, ROOT_KEY, clock.now() + 3600)


@pytest.mark.deviation("emulator.lost-sessions")
async def test_idle_link_outlasts_the_lock_of_its_session_by_a_second(
    context: NamespaceContext, host: BrokerHost
) -> None:
    create(host, EntityKind.QUEUE, "s", requires_session=True, lock_duration=timedelta(seconds=10))
    async with connected(context, "s") as client:
        link = await client.receiver("s", credit=1, filters={"com.microsoft:session-filter": "a"})
        began = clock.monotonic()
        with pytest.raises(TimeoutError):
            await client.event(LinkDetached, link, within_s=10.5)
        assert await client.refusal(link) == "com.microsoft:session-lock-lost"
        assert clock.monotonic() - began == pytest.approx(11, abs=0.1)
