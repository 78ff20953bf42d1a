"""Behaviour of messages and transactions that traces of the real service show, in raw frames."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from sbclient import clock
from sbclient.amqp import (
    ACCEPTED,
    AmqpError,
    Attach,
    Coordinator,
    Declare,
    Declared,
    Discharge,
    Properties,
    Rejected,
    Sections,
    Source,
    TransactionalState,
    encode_message,
)
from sbclient.amqp.performatives import Detach, Disposition, Flow, Transfer
from sbclient.amqp.sections import Header
from sbclient.amqp.types import Int, Long, longs
from sbclient.broker.faults import Call, Operation
from sbclient.emulator.context import NamespaceContext
from sbclient.emulator.faults import WireFault, WireFaultKind
from sbclient.entities import EntityKind, EntityStatus
from sbclient.hosting.host import BrokerHost
from sbclient.message import ServiceBusMessage
from tests.emulator.amqp.client import create, put
from tests.emulator.amqp.raw import SENDER, Raw, flow, raw_client, receiver, sender, taken
from tests.payloads import encode_sections

NUMBER = "x-opt-sequence-number"
VIA_KEY = "x-opt-via-partition-key"
DEAD_LETTER = "com.microsoft:dead-letter"


class Sending:
    """Sends messages with ids of deliveries that rise over all links of a session."""

    def __init__(self, raw: Raw) -> None:
        self._raw = raw
        self._next = 0

    async def __call__(self, handle: int, payload: bytes, *, state: Any = None) -> Any:
        """Send a message; returns the state of its disposition."""
        delivery_id, self._next = self._next, self._next + 1
        head = Transfer(handle, delivery_id, str(delivery_id).encode(), 0, settled=False, state=state)
        self._raw.write((head, payload))
        return (await self._raw.next(Disposition)).state

    def coordinator(self, handle: int) -> Attach:
        """The attach of a control link."""
        return Attach("c", handle, SENDER, source=Source("here"), target=Coordinator(), initial_delivery_count=0)

    async def declare(self, handle: int) -> bytes:
        declared = await self(handle, encode_sections(value=Declare()))
        assert isinstance(declared, Declared)
        return declared.txn_id

    async def discharge(self, handle: int, txn_id: bytes, *, fail: bool = False) -> None:
        self._raw.write(
            (
                Transfer(handle, self._next, b"d", 0, settled=False),
                encode_sections(value=Discharge(txn_id, fail)),
            )
        )
        self._next += 1


# Requests ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("operation", "body"),
    [
        ("cancel-scheduled-message", {"sequence-numbers": longs([99])}),
        ("receive-by-sequence-number", {"sequence-numbers": longs([99])}),
        ("unknown", {}),
        ("schedule-message", {}),
        ("get-session-state", {"session-id": "a"}),
    ],
)
async def test_error_condition_of_a_reply_is_a_symbol(
    context: NamespaceContext, host: BrokerHost, operation: str, body: Any
) -> None:
    create(host, EntityKind.QUEUE, "q")
    async with raw_client(context) as raw:
        await raw.open()
        reply = await raw.request("q/$management", f"com.microsoft:{operation}", body)
    condition = reply.application_properties["errorCondition"]
    encoded = condition.encode()
    assert b"\xa1\x0eerrorCondition\xa3" + bytes([len(encoded)]) + encoded in reply.payload


async def test_peek_at_a_topic_returns_its_scheduled_messages(context: NamespaceContext, host: BrokerHost) -> None:
    create(host, EntityKind.TOPIC, "t")
    create(host, EntityKind.SUBSCRIPTION, "t", "s")
    put(host, "t", "now")
    later = datetime.fromtimestamp(clock.now() + 600, UTC)
    put(host, "t", "later", "last", scheduled_enqueue_time_utc=later)
    async with raw_client(context) as raw:
        await raw.open()
        request = {"from-sequence-number": Long(0), "message-count": Int(10)}
        reply = await raw.request("t/$management", "com.microsoft:peek-message", request)
    assert reply.application_properties["statusCode"] == 200
    peeked = [Sections(each["message"]) for each in reply.value()["messages"]]
    assert [message.data() for message in peeked] == [[b"later"], [b"last"]]


# Sending -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "is_rejected"),
    [
        ("x-opt-scheduled-enqueue-time", True),
        ("x-opt-message-state", True),
        ("x-opt-enqueue-sequence-number", True),
        ("x-opt-partition-key", False),
        ("x-opt-deadletter-source", False),
        ("x-opt-locked-until", False),
    ],
)
async def test_null_annotations(context: NamespaceContext, host: BrokerHost, name: str, is_rejected: bool) -> None:
    create(host, EntityKind.QUEUE, "q")
    async with raw_client(context) as raw:
        await raw.open()
        await raw.attach(sender("s", 0, "q"))
        state = await Sending(raw)(0, encode_sections(message_annotations={name: None}, data=[b"x"]))
    assert isinstance(state, Rejected) is is_rejected


async def test_empty_session_id_beside_a_partition_key(context: NamespaceContext, host: BrokerHost) -> None:
    create(host, EntityKind.QUEUE, "q")
    create(host, EntityKind.QUEUE, "p", enable_partitioning=True)
    payload = encode_sections(
        message_annotations={"x-opt-partition-key": "k"}, properties=Properties(group_id=""), data=[b"x"]
    )
    async with raw_client(context) as raw:
        await raw.open()
        await raw.attach(sender("q", 0, "q"), sender("p", 1, "p"))
        send = Sending(raw)
        assert await send(0, payload) == ACCEPTED
        assert await send(1, payload) == ACCEPTED


async def test_missing_session_id_is_refused_in_the_words_of_the_service(
    context: NamespaceContext, host: BrokerHost
) -> None:
    create(host, EntityKind.QUEUE, "s", requires_session=True)
    async with raw_client(context) as raw:
        await raw.open()
        await raw.attach(sender("s", 0, "s"))
        state = await Sending(raw)(0, encode_sections(data=[b"x"]))
    assert state.error.condition == "amqp:not-allowed"
    assert state.error.description.startswith(
        "The SessionId was not set on a message, and it cannot be sent to the entity."
    )


@pytest.mark.deviation("emulator.enqueue-sequence-number")
async def test_message_of_a_plain_queue_has_an_enqueue_sequence_number(
    context: NamespaceContext, host: BrokerHost
) -> None:
    create(host, EntityKind.QUEUE, "q")
    put(host, "q", "x")
    async with raw_client(context) as raw:
        await raw.open()
        raw.write(receiver("r", 0, "q"), flow(0, credit=1))
        annotations = (await taken(raw))[1].message_annotations
    assert annotations["x-opt-enqueue-sequence-number"] == annotations[NUMBER]


# Settling ------------------------------------------------------------------------------------------------------------


async def test_dead_letter_reason_that_is_no_string_becomes_a_property(
    context: NamespaceContext, host: BrokerHost
) -> None:
    create(host, EntityKind.QUEUE, "q")
    put(host, "q", "x")
    info = {"DeadLetterReason": Long(7), "DeadLetterErrorDescription": "text", "other": True}
    async with raw_client(context) as raw:
        await raw.open()
        raw.write(receiver("r", 0, "q"), flow(0, credit=1))
        delivery_id, _ = await taken(raw)
        assert (await raw.settle(delivery_id, Rejected(AmqpError(DEAD_LETTER, None, info)))).state == Rejected()
        raw.write(receiver("d", 1, "q/$DeadLetterQueue"), flow(1, credit=1))
        properties = (await taken(raw))[1].application_properties
    assert properties == {"DeadLetterReason": 7, "DeadLetterErrorDescription": "text", "other": True}
    assert isinstance(properties["DeadLetterReason"], int)


@pytest.mark.parametrize("is_committed", [True, False])
async def test_dead_lettering_in_a_transaction_is_confirmed(
    context: NamespaceContext, host: BrokerHost, is_committed: bool
) -> None:
    create(host, EntityKind.QUEUE, "q")
    put(host, "q", "x")
    error = AmqpError(DEAD_LETTER, None, {"DeadLetterReason": "why"})
    async with raw_client(context) as raw:
        await raw.open()
        send = Sending(raw)
        raw.write(receiver("r", 0, "q"), flow(0, credit=1), send.coordinator(1))
        delivery_id, _ = await taken(raw)
        txn = await send.declare(1)
        confirmed = await raw.settle(delivery_id, TransactionalState(txn, Rejected(error)))
        assert (confirmed.settled, confirmed.state) == (False, TransactionalState(txn, Rejected()))
        await send.discharge(1, txn, fail=not is_committed)
        states = [(await raw.next(Disposition)).state for _ in range(1 + is_committed)]
        assert ACCEPTED in states
        raw.write(receiver("d", 2, "q/$DeadLetterQueue"), flow(2, credit=1))
        if is_committed:
            assert TransactionalState(txn, Rejected()) in states
            assert (await taken(raw))[1].application_properties["DeadLetterReason"] == "why"
        else:
            with pytest.raises(TimeoutError):
                await raw.next(Transfer, within_s=10)


@pytest.mark.parametrize("is_committed", [True, False])
async def test_cancelling_a_scheduled_message_in_a_transaction(
    context: NamespaceContext, host: BrokerHost, is_committed: bool
) -> None:
    create(host, EntityKind.QUEUE, "q")
    message = ServiceBusMessage("x", scheduled_enqueue_time_utc=datetime.fromtimestamp(clock.now() + 60, UTC))
    numbers = host.namespace.schedule(Call(Operation.SCHEDULE, clock.now()), "q", [encode_message(message)])
    async with raw_client(context) as raw:
        await raw.open()
        send = Sending(raw)
        raw.write(send.coordinator(0))
        txn = await send.declare(0)
        reply = await raw.request(
            "q/$management",
            "com.microsoft:cancel-scheduled-message",
            {"sequence-numbers": longs(numbers)},
            state=TransactionalState(txn),
            delivery_id=1,
        )
        assert reply.application_properties["statusCode"] == 200
        await send.discharge(0, txn, fail=not is_committed)
        await raw.next(Disposition)
        raw.write(receiver("r", 1, "q"), flow(1, credit=1))
        if is_committed:
            with pytest.raises(TimeoutError):
                await raw.next(Transfer, within_s=100)
        else:
            assert await raw.messages(1, within_s=100) == ["x"]


@pytest.mark.parametrize("is_committed", [True, False])
async def test_setting_a_session_state_in_a_transaction(
    context: NamespaceContext, host: BrokerHost, is_committed: bool
) -> None:
    create(host, EntityKind.QUEUE, "s", requires_session=True)
    put(host, "s", "x", session_id="a")
    async with raw_client(context) as raw:
        await raw.open()
        send = Sending(raw)
        raw.write(
            receiver("r", 1, "s", filters={"com.microsoft:session-filter": "a"}), flow(1, credit=1), send.coordinator(0)
        )
        delivery_id, _ = await taken(raw)
        txn = await send.declare(0)
        await raw.settle(delivery_id, TransactionalState(txn, ACCEPTED))
        reply = await raw.request(
            "s/$management",
            "com.microsoft:set-session-state",
            {"session-id": "a", "session-state": b"new"},
            state=TransactionalState(txn),
            delivery_id=1,
        )
        assert reply.application_properties["statusCode"] == 200
        await send.discharge(0, txn, fail=not is_committed)
        await raw.next(Disposition)
    async with raw_client(context) as raw:
        await raw.open()
        raw.write(receiver("r", 0, "s", filters={"com.microsoft:session-filter": "a"}))
        await raw.next(Attach)
        reply = await raw.request("s/$management", "com.microsoft:get-session-state", {"session-id": "a"})
        assert reply.value()["session-state"] == (b"new" if is_committed else None)


def keys_of_two_fragments(host: BrokerHost, path: str) -> tuple[str, str]:
    placement = host.namespace.queue(path).placement
    names = [str(number) for number in range(100)]
    other = next(name for name in names if placement.fragment_for(name) is not placement.fragment_for("0"))
    return "0", other


@pytest.mark.deviation("broker.transaction-other-partition")
async def test_a_completion_of_another_partition_that_a_transaction_refuses_keeps_its_lock(
    context: NamespaceContext, host: BrokerHost
) -> None:
    create(host, EntityKind.QUEUE, "p", enable_partitioning=True)
    one, other = keys_of_two_fragments(host, "p")
    put(host, "p", "x", partition_key=one)
    put(host, "p", "y", partition_key=other)
    async with raw_client(context) as raw:
        await raw.open()
        send = Sending(raw)
        raw.write(receiver("r", 0, "p"), flow(0, credit=2), send.coordinator(1))
        first, second = (await taken(raw))[0], (await taken(raw))[0]
        txn = await send.declare(1)
        await raw.settle(first, TransactionalState(txn, ACCEPTED))
        refused = (await raw.settle(second, TransactionalState(txn, ACCEPTED))).state
        assert isinstance(refused, Rejected)
        assert refused.error is not None
        assert refused.error.condition == "amqp:not-allowed"
        assert sum(fragment.locked_count for fragment in host.namespace.queue("p").fragments) == 2
        await clock.sleep(61)
        raw.write(flow(0, credit=4))
        again, message = await taken(raw)
        assert message.header.delivery_count == 1
        assert (await raw.settle(again, ACCEPTED)).state == ACCEPTED


async def test_via_partition_key_places_a_direct_send(context: NamespaceContext, host: BrokerHost) -> None:
    create(host, EntityKind.QUEUE, "a", enable_partitioning=True)
    create(host, EntityKind.QUEUE, "b", enable_partitioning=True)
    payload = encode_sections(message_annotations={VIA_KEY: "tenant"}, data=[b"x"])
    async with raw_client(context) as raw:
        await raw.open()
        send = Sending(raw)
        await raw.attach(send.coordinator(0), sender("a", 1, "a"), sender("b", 2, "b"), receiver("r", 3, "a"))
        assert await send(1, payload) == ACCEPTED
        raw.write(flow(3, credit=1))
        delivery_id, message = await taken(raw)
        fragment = host.namespace.queue("a").placement.fragment_for("tenant")
        assert message.message_annotations[NUMBER] >> 48 == fragment.index
        txn = await send.declare(0)
        state = TransactionalState(txn)
        confirmed = await raw.settle(delivery_id, TransactionalState(txn, ACCEPTED))
        assert isinstance(confirmed.state, TransactionalState)
        assert await send(2, payload, state=state) == TransactionalState(txn, ACCEPTED)
        assert await send(1, payload, state=state) == TransactionalState(txn, ACCEPTED)
        await send.discharge(0, txn)
        assert ACCEPTED in [(await raw.next(Disposition)).state for _ in range(2)]
    assert len(host.namespace.queue("a")) == 1
    assert len(host.namespace.queue("b")) == 1


# Time to live --------------------------------------------------------------------------------------------------------

CREATED = datetime(2026, 11, 24, 1, 53, 59, 543_000, UTC)
LARGEST = 2**32 - 1


def lasting(ttl_ms: int | None, expires: datetime | None, created: datetime | None = CREATED) -> bytes:
    properties = Properties(message_id="m", absolute_expiry_time=expires, creation_time=created)
    return encode_sections(header=Header(ttl=ttl_ms), properties=properties, data=[b"x"])


@pytest.mark.parametrize(
    ("ttl_ms", "expires", "lives_s"),
    [
        (1_566_804_069, datetime(9999, 12, 31, tzinfo=UTC), 400 * 86_400),  # a backlog message of the original client
        (LARGEST, CREATED + timedelta(days=60), 60 * 86_400),
        (60 * 86_400_000 & LARGEST, CREATED + timedelta(days=60), 60 * 86_400),
        (10_000, CREATED + timedelta(seconds=10), 10),
        (10_000, CREATED + timedelta(days=60), 10),  # unequal values: the header counts
        (10_000, None, 10),
    ],
)
async def test_time_to_live_beyond_the_header(
    context: NamespaceContext, host: BrokerHost, ttl_ms: int, expires: datetime | None, lives_s: float
) -> None:
    create(host, EntityKind.QUEUE, "q")
    payload = lasting(ttl_ms, expires)
    async with raw_client(context) as raw:
        await raw.open()
        await raw.attach(sender("s", 0, "q"))
        assert await Sending(raw)(0, payload) == ACCEPTED
    await clock.sleep(lives_s - 1)
    async with raw_client(context) as raw:
        await raw.open()
        raw.write(receiver("r", 0, "q"), flow(0, credit=1))
        _, message = await taken(raw)
        assert message.header.ttl == ttl_ms  # all as it was sent
        assert message.properties == Sections(payload).properties
    if lives_s < 400 * 86_400:
        await clock.sleep(120)
        async with raw_client(context) as raw:
            await raw.open()
            raw.write(receiver("r", 0, "q"), flow(0, credit=1))
            with pytest.raises(TimeoutError):
                await raw.next(Transfer, within_s=10)


async def test_time_to_live_that_the_entity_cuts_is_written(context: NamespaceContext, host: BrokerHost) -> None:
    create(host, EntityKind.QUEUE, "q", default_message_time_to_live=timedelta(minutes=3))
    create(host, EntityKind.QUEUE, "long")
    async with raw_client(context) as raw:
        await raw.open()
        await raw.attach(sender("s", 0, "q"), sender("l", 1, "long"), receiver("r", 2, "q"), receiver("rl", 3, "long"))
        send = Sending(raw)
        for handle in (0, 1):
            assert await send(handle, lasting(3_600_000, CREATED + timedelta(hours=1))) == ACCEPTED
        raw.write(flow(2, credit=1))
        cut = (await taken(raw))[1]
        assert (cut.header.ttl, cut.properties.message_id, cut.data()) == (180_000, "m", [b"x"])
        assert (cut.properties.creation_time, cut.properties.absolute_expiry_time) == (
            CREATED,
            CREATED + timedelta(minutes=3),
        )
        raw.write(flow(3, credit=1))
        kept = (await taken(raw))[1]
        assert (kept.header.ttl, kept.properties.absolute_expiry_time) == (3_600_000, CREATED + timedelta(hours=1))


@pytest.mark.deviation("broker.error-texts")
async def test_refusals_have_the_words_of_the_service(context: NamespaceContext, host: BrokerHost) -> None:
    create(host, EntityKind.QUEUE, "off", status=EntityStatus.DISABLED)
    create(host, EntityKind.QUEUE, "s", requires_session=True)
    create(host, EntityKind.QUEUE, "q")
    named = {"com.microsoft:session-filter": "a"}
    async with raw_client(context) as other, raw_client(context) as raw:
        await other.open()
        other.write(receiver("r", 0, "s", filters=named))
        assert (await other.next(Attach)).source is not None
        await raw.open()
        send = Sending(raw)
        texts = []
        for link in (sender("off", 0, "off"), receiver("held", 1, "s", filters=named)):
            raw.write(link)
            error = (await raw.next(Detach)).error
            assert error is not None
            texts.append(error.description or "")
        raw.write(sender("q", 2, "q"))
        assert (await raw.next(Flow)).link_credit
        payload = encode_sections(data=[b"x"])
        refused = [await send(2, payload, state=TransactionalState(b"unknown"))]
        context.wire_faults.inject(WireFault(WireFaultKind.SERVER_BUSY, "q"))
        refused.append(await send(2, payload))
        texts += [state.error.description for state in refused]
    wanted = [
        "Messaging entity 'off' is currently disabled",
        "The requested session 'a' cannot be accepted. It may be locked by another receiver. ",
        "Transaction hasn't been declared yet, or has already been discharged",
        "The request was terminated because q is being throttled. Please wait 10 seconds and try again.",
    ]
    assert [text[: len(start)] for text, start in zip(texts, wanted, strict=True)] == wanted
