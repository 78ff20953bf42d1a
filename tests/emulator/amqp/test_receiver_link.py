"""Receiving over AMQP: credit, settling and its confirmations, sessions, and what ends a link."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import product
from typing import Any
from uuid import UUID

import pytest

from sbclient import clock
from sbclient.amqp import (
    ACCEPTED,
    RELEASED,
    AmqpError,
    DispositionReceived,
    EncodedMessage,
    IncomingDelivery,
    IncomingLink,
    LinkDrained,
    Modified,
    Rejected,
    Sections,
    Source,
    encode_message,
)
from sbclient.amqp.states import DeliveryState
from sbclient.amqp.types import Described, Symbol
from sbclient.broker.faults import Call, Fault, FaultKind, Operation
from sbclient.delivery import Settlement, SettleMode
from sbclient.emulator.context import NamespaceContext
from sbclient.emulator.faults import WireFault, WireFaultKind
from sbclient.entities import EntityAddress, EntityKind
from sbclient.hosting.host import BrokerHost
from sbclient.message import ServiceBusMessage
from tests.emulator.amqp.client import SETTLED, Client, connected, create, received
from tests.payloads import payload_of

SESSION_FILTER = "com.microsoft:session-filter"
LOCKED_UNTIL = "com.microsoft:locked-until-utc"
DEFER = Modified(True, True)
ABANDON = Modified(True, False)


@pytest.fixture
async def queue(host: BrokerHost) -> str:
    create(host, EntityKind.QUEUE, "q", max_delivery_count=3)
    return "q"


@pytest.fixture
async def sessions(host: BrokerHost) -> str:
    create(host, EntityKind.QUEUE, "s", requires_session=True)
    return "s"


async def nothing(client: Client, link: IncomingLink, *, for_s: float = 5) -> None:
    with pytest.raises(TimeoutError):
        await received(client, link, within_s=for_s)


async def put(context: NamespaceContext, path: str, *messages: ServiceBusMessage) -> None:
    def send(call: Call) -> None:
        for message in messages:
            context.host.namespace.send(call, path, [encode_message(message)])

    await context.host.perform(Operation.SEND, path, send, timeout_s=10)


def text(delivery: IncomingDelivery) -> str:
    return bytes(EncodedMessage.of(delivery.payload)).decode()


def session_filter(session_id: str | None) -> dict[str, str | None]:
    return {SESSION_FILTER: session_id}


def at_ticks(ticks: int) -> datetime:
    return datetime(1, 1, 1, tzinfo=UTC) + timedelta(microseconds=ticks // 10)


# Credit --------------------------------------------------------------------------------------------------------------


async def test_nothing_is_sent_without_credit(context: NamespaceContext, queue: str) -> None:
    await put(context, queue, ServiceBusMessage("x"))
    async with connected(context, queue) as client:
        link = await client.receiver(queue)
        await nothing(client, link)
        link.grant(1)
        client.flush()
        assert text(await received(client, link)) == "x"


async def test_no_more_is_sent_than_there_is_credit(context: NamespaceContext, queue: str) -> None:
    await put(context, queue, *(ServiceBusMessage(str(number)) for number in range(5)))
    async with connected(context, queue) as client:
        link = await client.receiver(queue, credit=2)
        assert [text(await received(client, link)) for _ in range(2)] == ["0", "1"]
        await nothing(client, link)
        link.grant(3)
        client.flush()
        assert [text(await received(client, link)) for _ in range(3)] == ["2", "3", "4"]


async def test_withdrawn_credit_leaves_the_message_to_others(context: NamespaceContext, queue: str) -> None:
    async with connected(context, queue) as client:
        first, second = await client.receiver(queue, credit=1), await client.receiver(queue)
        first.grant(0)
        second.grant(1)
        client.flush()
        await asyncio.sleep(1)
        await put(context, queue, ServiceBusMessage("x"))
        assert text(await received(client, second)) == "x"
        await nothing(client, first)


async def test_a_reduced_credit_is_respected(context: NamespaceContext, queue: str) -> None:
    async with connected(context, queue) as client:
        link = await client.receiver(queue, credit=10)
        await asyncio.sleep(1)
        link.grant(1)
        client.flush()
        await asyncio.sleep(1)
        await put(context, queue, *(ServiceBusMessage(str(number)) for number in range(5)))
        assert text(await received(client, link)) == "0"
        await nothing(client, link)


async def test_a_drain_delivers_available_messages_and_ends_the_credit(context: NamespaceContext, queue: str) -> None:
    await put(context, queue, ServiceBusMessage("0"), ServiceBusMessage("1"))
    async with connected(context, queue) as client:
        link = await client.receiver(queue)
        link.grant(10, drain=True)
        client.flush()
        assert [text(await received(client, link)) for _ in range(2)] == ["0", "1"]
        await client.event(LinkDrained, link)
        await put(context, queue, ServiceBusMessage("2"))
        await nothing(client, link)


async def test_the_credit_of_the_last_flow_is_served_whatever_came_before_it(
    context: NamespaceContext, queue: str
) -> None:
    """Flows of one read: some credit, a drain, less or more credit."""
    flows = [(3, False), (5, True), (1, False), (10, False)]
    for before in [*product(flows, repeat=1), *product(flows, repeat=2)]:
        for wait_s in (0.0, 1.0):
            async with connected(context, queue) as client:
                link = await client.receiver(queue)
                for credit, is_drain in (*before, (4, False)):
                    link.grant(credit, drain=is_drain)
                    await asyncio.sleep(wait_s if is_drain else 0.0)
                client.flush()
                await asyncio.sleep(1)
                await put(context, queue, *(ServiceBusMessage(str(number)) for number in range(5)))
                got = [await received(client, link) for _ in range(4)]
                assert [text(each) for each in got] == ["0", "1", "2", "3"], before
                await nothing(client, link)
                for delivery in got:
                    await client.settle(delivery, ACCEPTED)
                link.grant(1)
                client.flush()
                await client.settle(await received(client, link), ACCEPTED)


@pytest.mark.parametrize(("granted", "count"), [(300, 250), (250, 250), (210, 210)])
async def test_a_drain_delivers_more_than_one_batch(
    context: NamespaceContext, queue: str, granted: int, count: int
) -> None:
    await put(context, queue, *(ServiceBusMessage(str(number)) for number in range(250)))
    async with connected(context, queue) as client:
        link = await client.receiver(queue)
        link.grant(granted, drain=True)
        client.flush()
        await client.event(LinkDrained, link)
        assert [text(await received(client, link)) for _ in range(count)] == [str(number) for number in range(count)]
        await nothing(client, link)


async def test_a_drain_without_credit_stops_a_waiting_receiver(context: NamespaceContext, queue: str) -> None:
    async with connected(context, queue) as client:
        link = await client.receiver(queue, credit=10)
        await asyncio.sleep(1)
        link.grant(0, drain=True)
        client.flush()
        await client.event(LinkDrained, link)
        await put(context, queue, ServiceBusMessage("x"))
        await nothing(client, link)


@pytest.mark.promise("emulator.with-token")
async def test_a_client_that_does_not_read_is_not_sent_everything(context: NamespaceContext, queue: str) -> None:
    body = b"x" * 200_000
    await put(context, queue, *(ServiceBusMessage(body) for _ in range(100)))
    async with connected(context, queue) as client:
        link = await client.receiver(queue)
        client.pipe.other.is_read.clear()
        link.grant(100)
        client.flush()
        await asyncio.sleep(5)
        assert client.pipe.waiting_bytes < 4_000_000
        client.pipe.other.is_read.set()
        for _ in range(100):
            await received(client, link)


# What is delivered ---------------------------------------------------------------------------------------------------


async def test_the_tag_is_the_lock_token_in_the_byte_order_of_net(context: NamespaceContext, queue: str) -> None:
    await put(context, queue, ServiceBusMessage("x"))
    async with connected(context, queue) as client:
        delivery = await received(client, await client.receiver(queue, credit=1))
        token = Sections(delivery.payload).delivery_annotations["x-opt-lock-token"]
        assert UUID(bytes_le=delivery.tag) == token
        assert not delivery.is_settled


async def test_a_delivery_has_number_times_and_count(context: NamespaceContext, queue: str) -> None:
    await put(context, queue, ServiceBusMessage("x", partition_key="k", time_to_live=timedelta(minutes=5)))
    async with connected(context, queue) as client:
        now = clock.now()
        link = await client.receiver(queue, credit=1)
        sections = Sections((await received(client, link)).payload)
        annotations = sections.message_annotations
        assert annotations["x-opt-sequence-number"] == 1
        assert annotations["x-opt-partition-key"] == "k"
        assert abs(annotations["x-opt-enqueued-time"].timestamp() - now) < 1
        assert abs(annotations["x-opt-locked-until"].timestamp() - now - 60) < 1
        assert sections.header.delivery_count == 0
        assert sections.header.ttl == 300_000


async def test_body_and_application_properties_pass_through_byte_for_byte(
    context: NamespaceContext, queue: str
) -> None:
    # wider than necessary, small integers, a symbol as a value, a described body: as others may encode them
    properties = b"\x00\x53\x73\xd0\x00\x00\x00\x09\x00\x00\x00\x01\xb1\x00\x00\x00\x00"
    entries = b"\xa1\x01a\x55\x07" + b"\xa1\x01b\xa3\x01s" + b"\xa1\x01c\x60\x01\xff" + b"\xa1\x01d\x52\xff"
    application = b"\x00\x53\x74\xd1" + (len(entries) + 4).to_bytes(4, "big") + b"\x00\x00\x00\x08" + entries
    body = b"\x00\x53\x77\x00\xa3\x03x:y\xd1\x00\x00\x00\x09\x00\x00\x00\x02\xa1\x01k\x50\x07"
    payload = properties + application + body
    async with connected(context, queue) as client:
        assert await client.transfer(await client.sender(queue), payload) == ACCEPTED
        sections = Sections((await received(client, await client.receiver(queue, credit=1))).payload)
    assert sections.raw(0x73) == properties
    assert sections.raw(0x74) == application
    assert sections.raw_body == body


# Settling ------------------------------------------------------------------------------------------------------------


async def test_modified_abandons_and_is_confirmed(context: NamespaceContext, queue: str) -> None:
    await put(context, queue, ServiceBusMessage("x"))
    async with connected(context, queue) as client:
        link = await client.receiver(queue, credit=2)
        assert await client.settle(await received(client, link), ABANDON) == ABANDON
        again = await received(client, link)
        assert Sections(again.payload).header.delivery_count == 1


async def test_modified_undeliverable_here_defers_and_is_confirmed(context: NamespaceContext, queue: str) -> None:
    await put(context, queue, ServiceBusMessage("x"))
    async with connected(context, queue) as client:
        link = await client.receiver(queue, credit=2)
        assert await client.settle(await received(client, link), DEFER) == DEFER
        await nothing(client, link)
        status, body = await client.ask(queue, "peek-message", {"from-sequence-number": 0, "message-count": 1})
        assert status == 200
        assert Sections(body["messages"][0]["message"]).message_annotations["x-opt-message-state"] == 1


@pytest.mark.parametrize(
    ("error", "reason", "description"),
    [
        (
            AmqpError(
                "com.microsoft:dead-letter", None, {"DeadLetterReason": "why", "DeadLetterErrorDescription": "how"}
            ),
            "why",
            "how",
        ),
        (AmqpError("com.microsoft:dead-letter", None, {"DeadLetterReason": "why"}), "why", None),
        (AmqpError("com.microsoft:dead-letter"), None, None),
        (AmqpError("amqp:decode-error", "not mine"), "amqp:decode-error", "not mine"),
        (None, None, None),
    ],
)
async def test_rejected_dead_letters_and_is_confirmed_without_an_error(
    context: NamespaceContext, queue: str, error: AmqpError | None, reason: str | None, description: str | None
) -> None:
    await put(context, queue, ServiceBusMessage("x", application_properties={"mine": 1}))
    async with connected(context, queue) as client:
        delivery = await received(client, await client.receiver(queue, credit=1))
        assert await client.settle(delivery, Rejected(error)) == Rejected(None)
        dead = await received(client, await client.receiver(f"{queue}/$DeadLetterQueue", credit=1))
        sections = Sections(dead.payload)
        assert sections.application_properties.get("DeadLetterReason") == reason
        assert sections.application_properties.get("DeadLetterErrorDescription") == description
        assert sections.application_properties["mine"] == 1
        assert sections.message_annotations["x-opt-deadletter-source"] == queue


async def test_released_returns_the_message_without_counting_a_delivery(context: NamespaceContext, queue: str) -> None:
    await put(context, queue, ServiceBusMessage("x"))
    async with connected(context, queue) as client:
        link = await client.receiver(queue, credit=2)
        (await received(client, link)).settle(RELEASED)
        client.flush()
        again = await received(client, link)
        assert Sections(again.payload).header.delivery_count == 0
        assert await client.settle(again, RELEASED) == RELEASED


async def test_a_receiver_that_settles_at_once_is_not_answered(context: NamespaceContext, queue: str) -> None:
    await put(context, queue, ServiceBusMessage("x"))
    async with connected(context, queue) as client:
        delivery = await received(client, await client.receiver(queue, credit=1))
        delivery.settle(ACCEPTED)
        client.flush()
        with pytest.raises(TimeoutError):
            await client.event(DispositionReceived, delivery, within_s=5)
    assert len(context.host.namespace.queue(queue)) == 0


@pytest.mark.parametrize("outcome", [ACCEPTED, ABANDON, DEFER, Rejected(None)])
async def test_a_lost_lock_is_confirmed_as_rejected_with_its_condition(
    context: NamespaceContext, queue: str, outcome: DeliveryState
) -> None:
    await put(context, queue, ServiceBusMessage("x"))
    async with connected(context, queue) as client:
        delivery = await received(client, await client.receiver(queue, credit=1))
        await asyncio.sleep(61)
        answer = await client.settle(delivery, outcome)
        assert isinstance(answer, Rejected)
        assert answer.error is not None
        assert answer.error.condition == "com.microsoft:message-lock-lost"


async def test_a_message_in_the_dead_letter_queue_is_not_dead_lettered_again(
    context: NamespaceContext, queue: str
) -> None:
    await put(context, queue, ServiceBusMessage("x"))
    async with connected(context, queue) as client:
        await client.settle(await received(client, await client.receiver(queue, credit=1)), Rejected(None))
        link = await client.receiver(f"{queue}/$DeadLetterQueue", credit=1)
        answer = await client.settle(await received(client, link), Rejected(None))
        assert isinstance(answer, Rejected)
        assert answer.error is not None
        assert answer.error.condition == "amqp:not-allowed"


async def test_messages_of_a_link_that_ended_stay_locked(context: NamespaceContext, queue: str) -> None:
    await put(context, queue, ServiceBusMessage("x"))
    async with connected(context, queue) as client:
        link = await client.receiver(queue, credit=1)
        await received(client, link)
        link.detach()
        client.flush()
        other = await client.receiver(queue, credit=1)
        await nothing(client, other, for_s=50)
        assert Sections((await received(client, other)).payload).header.delivery_count == 1


@pytest.mark.parametrize("has_bug", [False, True])
async def test_connection_closed_by_the_server_locks_no_more_messages(
    context: NamespaceContext, sessions: str, queue: str, monkeypatch: pytest.MonkeyPatch, has_bug: bool
) -> None:
    host = context.host
    create(host, EntityKind.QUEUE, "other")
    async with connected(context, queue, sessions, "other") as client:
        await client.receiver(queue, credit=10, settle_mode=SETTLED)
        await client.receiver(sessions, filters=session_filter("a"))
        sender = await client.sender("other")
        await asyncio.sleep(1)
        sender.send(payload_of(ServiceBusMessage("y")), tag=b"1", needs_credit=False)
        client.flush()
        monkeypatch.setattr(client, "flush", lambda: None)  # the client is slow to answer the close
        with monkeypatch.context() as broken:
            if has_bug:
                broken.setattr(host.namespace, "send", None)
            else:
                host.inject(Fault(FaultKind.DOWN, None, operations=(Operation.SEND,), count=1))
            await asyncio.sleep(1)
        await put(context, queue, ServiceBusMessage("x"))
        await asyncio.sleep(1)
        assert len(host.namespace.queue(queue)) == 1
        assert (await host.accept_session(sessions, "a", timeout_s=1)).session_id == "a"


async def test_a_connection_that_is_cut_leaves_no_receiver_behind(context: NamespaceContext, queue: str) -> None:
    async with connected(context, queue) as client:
        await client.receiver(queue, credit=10)
        await asyncio.sleep(1)
    await put(context, queue, ServiceBusMessage("x"))
    (message,) = await context.host.receive(queue, max_message_count=1, max_wait_time_s=1)
    assert message.delivery_count == 0


async def test_a_client_that_does_not_open_its_window_loses_its_session_but_not_its_connection(
    context: NamespaceContext, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = b"x" * 220_000  # 305 of them exceed the 64 MiB that the engine holds, in the middle of a batch
    await put(context, queue, *(ServiceBusMessage(body) for _ in range(310)))
    async with connected(context, queue, incoming_window=1, frame_size=2**20) as client:
        link = await client.receiver(queue, credit=400)
        monkeypatch.setattr(client, "flush", lambda: None)  # the client grants no more transfer frames
        assert await client.refusal(link) == "amqp:resource-limit-exceeded"
        await asyncio.sleep(1)
        assert not client.engine.is_over
        assert context.host.namespace.queue(queue).fragments[0].locked_count == 306  # the rest of the batch is back


# What ends or refuses a link -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "filters", "condition"),
    [
        ("missing", None, "amqp:not-found"),
        ("q/$Nothing", None, "amqp:not-found"),
        ("t", None, "amqp:not-found"),
        ("s", None, "amqp:not-allowed"),
        ("q", session_filter("a"), "amqp:not-allowed"),
        ("q", session_filter(None), "amqp:not-allowed"),
        ("s", {SESSION_FILTER: 7}, "amqp:invalid-field"),
    ],
)
async def test_a_link_that_cannot_receive_is_refused(
    context: NamespaceContext, queue: str, sessions: str, path: str, filters: dict[str, str] | None, condition: str
) -> None:
    create(context.host, EntityKind.TOPIC, "t")
    async with connected(context, "") as client:
        link = await client.receiver(path, filters=filters)
        assert client.answer(link).source is None
        assert await client.refusal(link) == condition


async def test_deleting_the_entity_detaches_its_receivers(context: NamespaceContext, queue: str) -> None:
    async with connected(context, queue) as client:
        link = await client.receiver(queue, credit=1)
        await asyncio.sleep(1)
        await context.host.perform(
            Operation.MANAGE,
            queue,
            lambda call: context.host.namespace.management.delete(call, EntityAddress(EntityKind.QUEUE, (queue,))),
            timeout_s=10,
        )
        assert await client.refusal(link) == "amqp:not-found"


async def test_a_receiver_waits_through_a_fragment_that_is_down(context: NamespaceContext, queue: str) -> None:
    async with connected(context, queue) as client:
        link = await client.receiver(queue, credit=1)
        await asyncio.sleep(1)
        fault = context.host.inject(Fault(FaultKind.HANG, queue, operations=(Operation.RECEIVE,)))
        await put(context, queue, ServiceBusMessage("x"))
        await nothing(client, link)
        context.host.heal(fault)
        assert text(await received(client, link)) == "x"


async def test_link_continues_after_a_lost_delivery(context: NamespaceContext, queue: str) -> None:
    async with connected(context, queue) as client:
        lost = Fault(FaultKind.LOSE_ACKNOWLEDGEMENT, queue, operations=(Operation.RECEIVE,), count=1)
        context.host.inject(lost)
        await put(context, queue, ServiceBusMessage("x"))
        link = await client.receiver(queue, credit=1)
        again = await received(client, link, within_s=130)
        assert Sections(again.payload).header.delivery_count == 1


async def test_dropped_confirmation_settles_without_a_response(context: NamespaceContext, queue: str) -> None:
    await put(context, queue, ServiceBusMessage("x"))
    async with connected(context, queue) as client:
        delivery = await received(client, await client.receiver(queue, credit=1))
        context.wire_faults.inject(WireFault(WireFaultKind.DROP_ACKNOWLEDGEMENT, count=1))
        with pytest.raises(TimeoutError):
            await client.settle(delivery, ACCEPTED)
        assert len(context.host.namespace.queue(queue)) == 0


# Sessions ------------------------------------------------------------------------------------------------------------


async def test_links_of_one_name_hold_their_own_sessions(context: NamespaceContext, sessions: str) -> None:
    async with connected(context, sessions) as client:
        links = []
        for amqp_session, session in ((client.session, "a"), (client.engine.begin(), "b")):
            source = Source(address=sessions, filter=session_filter(session))
            links.append(amqp_session.attach_receiver("same", source=source, snd_settle_mode=0))
            await client.attached(links[-1])
        links[0].detach()
        answer = await client.ask(sessions, "get-session-state", {"session-id": "b"})
        assert answer == (200, {"session-state": None})


async def test_a_request_about_a_session_acts_on_that_of_several(context: NamespaceContext, sessions: str) -> None:
    async with connected(context, sessions) as client:
        links = {each: await client.receiver(sessions, filters=session_filter(each)) for each in "abc"}
        for name in ("", *(link.name for link in links.values())):
            for session in "cab":
                is_allowed = name in ("", links[session].name)
                options = {"arguments": {"associated-link-name": name}} if name else {}
                body = {"session-id": session, "session-state": f"{session} {name}".encode()}
                status, _ = await client.ask(sessions, "set-session-state", body, **options)
                assert (status == 200) == is_allowed
                status, answer = await client.ask(sessions, "get-session-state", {"session-id": session}, **options)
                assert not is_allowed or answer["session-state"] == body["session-state"]


async def test_a_session_by_name_is_echoed_with_the_end_of_its_lock(context: NamespaceContext, sessions: str) -> None:
    async with connected(context, sessions) as client:
        address = f"amqps://contoso:5671/{sessions}"
        link = await client.receiver(address, filters=session_filter("a"))
        answer = client.answer(link)
        assert answer.source is not None
        assert answer.source.address == address
        assert client.granted(link) == {SESSION_FILTER: "a"}
        until = at_ticks((answer.properties or {})[LOCKED_UNTIL])
        assert abs(until.timestamp() - clock.now() - 60) < 1


async def test_the_next_available_session_is_granted_by_name(context: NamespaceContext, sessions: str) -> None:
    await put(context, sessions, ServiceBusMessage("1", session_id="a"), ServiceBusMessage("2", session_id="a"))
    async with connected(context, sessions) as client:
        link = await client.receiver(sessions, filters=session_filter(None), credit=5)
        assert client.granted(link) == {SESSION_FILTER: "a"}
        first = await received(client, link)
        locked_until = Sections(first.payload).message_annotations["x-opt-locked-until"]
        assert locked_until == at_ticks((client.answer(link).properties or {})[LOCKED_UNTIL])
        assert await client.settle(first, ACCEPTED) == ACCEPTED
        assert text(await received(client, link)) == "2"


async def test_a_described_session_filter_is_understood(context: NamespaceContext, sessions: str) -> None:
    described = {SESSION_FILTER: Described(Symbol(SESSION_FILTER), "a")}
    async with connected(context, sessions) as client:
        link = await client.receiver(sessions, filters=described)
        assert client.granted(link) == described


async def test_a_receiver_waits_for_the_next_available_session(context: NamespaceContext, sessions: str) -> None:
    async with connected(context, sessions) as client:
        attaching = asyncio.ensure_future(client.receiver(sessions, filters=session_filter(None), timeout_s=50))
        await asyncio.sleep(30)
        await put(context, sessions, ServiceBusMessage("1", session_id="a"))
        assert client.granted(await attaching) == {SESSION_FILTER: "a"}


@pytest.mark.parametrize(("timeout_s", "waited_s"), [(5.0, 5), (None, 65)])
async def test_without_a_free_session_the_attach_is_refused_in_time(
    context: NamespaceContext, sessions: str, timeout_s: float | None, waited_s: float
) -> None:
    async with connected(context, sessions) as client:
        began_at = clock.monotonic()
        link = await client.receiver(sessions, filters=session_filter(None), timeout_s=timeout_s)
        assert client.answer(link).source is None
        assert await client.refusal(link) == "com.microsoft:timeout"
        assert clock.monotonic() - began_at == pytest.approx(waited_s, abs=0.5)


async def test_a_session_held_by_another_receiver_cannot_be_locked_until_it_detaches(
    context: NamespaceContext, sessions: str
) -> None:
    await put(context, sessions, ServiceBusMessage("1", session_id="a"))
    async with connected(context, sessions) as client, connected(context, sessions) as other:
        link = await client.receiver(sessions, filters=session_filter("a"), credit=1)
        await received(client, link)
        refused = await other.receiver(sessions, filters=session_filter("a"))
        assert await other.refusal(refused) == "com.microsoft:session-cannot-be-locked"
        link.detach()
        client.flush()
        await asyncio.sleep(1)
        again = await other.receiver(sessions, filters=session_filter("a"), credit=1)
        assert Sections((await received(other, again)).payload).header.delivery_count == 0


@pytest.mark.parametrize("name", [None, "a"])
@pytest.mark.parametrize("answers_late", [False, True])
async def test_client_that_stops_waiting_for_a_session_holds_none(
    context: NamespaceContext, sessions: str, answers_late: bool, name: str | None
) -> None:
    if answers_late:
        await put(context, sessions, ServiceBusMessage("1", session_id="a"))
        context.host.inject(Fault(FaultKind.SLOW, sessions, operations=[Operation.SESSION], count=1, latency_s=9.0))
    async with connected(context, sessions) as client:
        attaching = asyncio.ensure_future(client.receiver(sessions, filters=session_filter(name)))
        await asyncio.sleep(1)
        attaching.cancel()
    await asyncio.sleep(1)
    await put(context, sessions, ServiceBusMessage("2", session_id="a"))
    lock = await context.host.accept_session(sessions, "a", timeout_s=1)
    assert lock.session_id == "a"


async def test_messages_of_other_sessions_do_not_come(context: NamespaceContext, sessions: str) -> None:
    async with connected(context, sessions) as client:
        link = await client.receiver(sessions, filters=session_filter("a"), credit=2)
        await put(context, sessions, ServiceBusMessage("no", session_id="b"), ServiceBusMessage("yes", session_id="a"))
        assert text(await received(client, link)) == "yes"
        await nothing(client, link)


async def test_settling_under_an_ended_session_lock_is_refused(context: NamespaceContext, sessions: str) -> None:
    await put(context, sessions, ServiceBusMessage("1", session_id="a"))
    async with connected(context, sessions) as client:
        link = await client.receiver(sessions, filters=session_filter("a"), credit=1)
        delivery = await received(client, link)
        await asyncio.sleep(60.5)
        answer = await client.settle(delivery, ACCEPTED)
        assert isinstance(answer, Rejected)
        assert answer.error is not None
        assert answer.error.condition == "com.microsoft:session-lock-lost"


async def test_a_session_link_stays_until_the_last_renewal_of_its_lock_has_ended(
    context: NamespaceContext, sessions: str
) -> None:
    async with connected(context, sessions) as client:
        link = await client.receiver(sessions, filters=session_filter("a"), credit=5)
        for number in range(4):
            await asyncio.sleep(45)
            assert (await client.ask(sessions, "renew-session-lock", {"session-id": "a"}))[0] == 200
            await put(context, sessions, ServiceBusMessage(f"{number}", session_id="a"))
            delivery = await received(client, link)
            assert await client.settle(delivery, ACCEPTED) == ACCEPTED
        await asyncio.sleep(60 + 0.5)
        assert not link.is_over
        await asyncio.sleep(1)
        assert link.is_over


async def test_a_session_that_was_lost_and_accepted_again_is_that_of_its_new_link(
    context: NamespaceContext, sessions: str
) -> None:
    async with connected(context, sessions) as client:
        for _ in range(3):
            await client.receiver(sessions, filters=session_filter("a"))
            assert (await client.ask(sessions, "renew-session-lock", {"session-id": "a"}))[0] == 200
            await asyncio.sleep(60.5)  # the lock has ended, and its link will in half a second


# Partitions ----------------------------------------------------------------------------------------------------------


async def test_a_receiver_gets_messages_of_every_fragment(context: NamespaceContext) -> None:
    create(context.host, EntityKind.QUEUE, "p", enable_partitioning=True)
    async with connected(context, "p") as client:
        sender = await client.sender("p")
        for number in range(32):
            assert await client.send(sender, ServiceBusMessage(str(number))) == ACCEPTED
        link = await client.receiver("p", credit=32)
        numbers = [
            Sections((await received(client, link)).payload).message_annotations["x-opt-sequence-number"]
            for _ in range(32)
        ]
        assert {number >> 48 for number in numbers} == set(range(16))


async def test_a_pinned_message_for_a_dead_fragment_is_refused(context: NamespaceContext) -> None:
    create(context.host, EntityKind.QUEUE, "p", enable_partitioning=True)
    context.host.inject(Fault(FaultKind.DOWN, "p", fragments=range(16)))
    async with connected(context, "p") as client:
        outcome = await client.transfer(await client.sender("p"), payload_of(ServiceBusMessage("x", partition_key="k")))
        assert isinstance(outcome, Rejected)
        assert outcome.error is not None
        assert outcome.error.condition == "amqp:internal-error"


# Ranges --------------------------------------------------------------------------------------------------------------


async def settle_range(
    client: Client, link: IncomingLink, deliveries: Sequence[IncomingDelivery], state: DeliveryState
) -> list[str]:
    """Settle deliveries by one disposition. Returns for each the condition of its refusal, or the confirmed outcome."""
    link.settle_many(deliveries, state, settled=False)
    client.flush()
    answers = [await client.event(DispositionReceived, delivery) for delivery in deliveries]
    assert all(answer.settled for answer in answers)
    states: list[Any] = [answer.state for answer in answers]
    return [each.error.condition if getattr(each, "error", None) else type(each).__name__ for each in states]


async def range_of(client: Client, link: IncomingLink, count: int) -> list[IncomingDelivery]:
    return [await received(client, link) for _ in range(count)]


@pytest.mark.parametrize("outcome", [ACCEPTED, ABANDON, DEFER, RELEASED, Rejected(None)])
async def test_range_has_the_effect_of_its_dispositions(
    context: NamespaceContext, queue: str, outcome: DeliveryState
) -> None:
    left: list[tuple[int, int, int]] = []
    for together in (True, False):
        await put(context, queue, *(ServiceBusMessage(str(number)) for number in range(5)))
        async with connected(context, queue) as client:
            link = await client.receiver(queue, credit=5)
            deliveries = await range_of(client, link, 5)
            before = context.host.namespace.operation_count
            if together:
                assert await settle_range(client, link, deliveries, outcome) == [type(outcome).__name__] * 5
            else:
                for delivery in deliveries:
                    assert type(await client.settle(delivery, outcome)) is type(outcome)
            requests = context.host.namespace.operation_count - before
        (fragment,) = context.host.namespace.queue(queue).fragments
        counts = sum(entry.delivery_count for entry in fragment.browse(clock.now(), 0))
        left.append((len(fragment), counts, requests))
        for path in (queue, f"{queue}/$deadletterqueue"):
            for each in context.host.namespace.queue(path).fragments:
                for entry in list(each.browse(clock.now(), 0)):
                    each.remove(entry)
    assert left[0] == left[1]


async def test_lock_that_is_lost_within_a_range_affects_only_its_message(context: NamespaceContext, queue: str) -> None:
    await put(context, queue, *(ServiceBusMessage(str(number)) for number in range(5)))
    async with connected(context, queue) as client:
        link = await client.receiver(queue, credit=5)
        deliveries = await range_of(client, link, 5)
        lost = UUID(bytes_le=deliveries[2].tag)
        namespace = context.host.namespace
        namespace.settle(Call(Operation.SETTLE, clock.now()), queue, [lost], Settlement(SettleMode.DEFER))
        answers = await settle_range(client, link, deliveries, ACCEPTED)
        assert answers == ["Accepted", "Accepted", "com.microsoft:message-lock-lost", "Accepted", "Accepted"]
        assert len(namespace.queue(queue)) == 1


async def test_range_after_the_end_of_its_locks_is_refused_as_a_whole(context: NamespaceContext, queue: str) -> None:
    await put(context, queue, *(ServiceBusMessage(str(number)) for number in range(3)))
    async with connected(context, queue) as client:
        link = await client.receiver(queue, credit=3)
        deliveries = await range_of(client, link, 3)
        await asyncio.sleep(61)
        assert await settle_range(client, link, deliveries, ACCEPTED) == ["com.microsoft:message-lock-lost"] * 3
        assert len(context.host.namespace.queue(queue)) == 3


async def test_range_under_an_ended_session_lock_is_refused(context: NamespaceContext, sessions: str) -> None:
    await put(context, sessions, *(ServiceBusMessage(str(number), session_id="a") for number in range(4)))
    async with connected(context, sessions) as client:
        link = await client.receiver(sessions, filters=session_filter("a"), credit=4)
        deliveries = await range_of(client, link, 4)
        assert await settle_range(client, link, deliveries[:2], ACCEPTED) == ["Accepted"] * 2
        await asyncio.sleep(60.5)
        assert await settle_range(client, link, deliveries[2:], ACCEPTED) == ["com.microsoft:session-lock-lost"] * 2
        assert len(context.host.namespace.queue(sessions)) == 2


async def test_range_may_name_messages_of_several_fragments(context: NamespaceContext) -> None:
    create(context.host, EntityKind.QUEUE, "p", enable_partitioning=True)
    await put(context, "p", *(ServiceBusMessage(str(number)) for number in range(32)))
    async with connected(context, "p") as client:
        link = await client.receiver("p", credit=32)
        assert await settle_range(client, link, await range_of(client, link, 32), ACCEPTED) == ["Accepted"] * 32
    assert len(context.host.namespace.queue("p")) == 0


async def test_fault_of_one_fragment_affects_its_part_of_a_range(context: NamespaceContext) -> None:
    create(context.host, EntityKind.QUEUE, "p", enable_partitioning=True)
    await put(context, "p", *(ServiceBusMessage(str(number)) for number in range(16)))
    async with connected(context, "p") as client:
        link = await client.receiver("p", credit=16)
        deliveries = await range_of(client, link, 16)
        context.host.inject(Fault(FaultKind.DOWN, "p", fragments=[3]))
        answers = await settle_range(client, link, deliveries, ACCEPTED)
        assert sorted(answers) == ["Accepted"] * 15 + ["amqp:internal-error"]
    assert [len(fragment) for fragment in context.host.namespace.queue("p").fragments] == [0] * 3 + [1] + [0] * 12


async def test_fault_for_one_request_affects_one_message_of_a_range(context: NamespaceContext, queue: str) -> None:
    await put(context, queue, *(ServiceBusMessage(str(number)) for number in range(4)))
    async with connected(context, queue) as client:
        link = await client.receiver(queue, credit=4)
        deliveries = await range_of(client, link, 4)
        context.host.inject(Fault(FaultKind.ERROR, queue, operations=[Operation.SETTLE], count=1))
        answers = await settle_range(client, link, deliveries, ACCEPTED)
        assert answers == ["amqp:internal-error", "Accepted", "Accepted", "Accepted"]


async def test_dropped_confirmation_leaves_the_others_of_a_range(context: NamespaceContext, queue: str) -> None:
    await put(context, queue, *(ServiceBusMessage(str(number)) for number in range(3)))
    async with connected(context, queue) as client:
        link = await client.receiver(queue, credit=3)
        deliveries = await range_of(client, link, 3)
        context.wire_faults.inject(WireFault(WireFaultKind.DROP_ACKNOWLEDGEMENT, count=1))
        link.settle_many(deliveries, ACCEPTED, settled=False)
        client.flush()
        for delivery in deliveries[1:]:
            await client.event(DispositionReceived, delivery)
        with pytest.raises(TimeoutError):
            await client.event(DispositionReceived, deliveries[0], within_s=5)
        assert len(context.host.namespace.queue(queue)) == 0


async def test_range_of_a_dead_letter_queue_cannot_be_dead_lettered(context: NamespaceContext, queue: str) -> None:
    await put(context, queue, *(ServiceBusMessage(str(number)) for number in range(2)))
    async with connected(context, queue) as client:
        link = await client.receiver(queue, credit=2)
        await settle_range(client, link, await range_of(client, link, 2), Rejected(None))
        dead = await client.receiver(f"{queue}/$deadletterqueue", credit=2)
        deliveries = await range_of(client, dead, 2)
        assert await settle_range(client, dead, deliveries, Rejected(None)) == ["amqp:not-allowed"] * 2
        assert await settle_range(client, dead, [], ACCEPTED) == []
    assert len(context.host.namespace.queue(f"{queue}/$deadletterqueue")) == 2


# The end ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("closes", [True, False])
async def test_settlement_right_before_the_close_is_applied(
    context: NamespaceContext, sessions: str, closes: bool
) -> None:
    await put(context, sessions, *(ServiceBusMessage(str(number), session_id="a") for number in range(5)))
    async with connected(context, sessions) as client:
        link = await client.receiver(sessions, filters=session_filter("a"), credit=5)
        for delivery in [await received(client, link) for _ in range(5)]:
            delivery.settle(ACCEPTED)
        link.detach()
        if closes:
            await client.close()
        else:
            client.flush()
    assert len(context.host.namespace.queue(sessions)) == 0
