"""Send canaries through every path of the client and every error; no output contains them."""

from __future__ import annotations

import asyncio
import gc
import inspect
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from sbclient import errors
from sbclient.backlog import Backlog
from sbclient.client.client import ServiceBusClient
from sbclient.client.receiver import ServiceBusReceiver
from sbclient.entities import SqlRuleAction, SqlRuleFilter
from sbclient.errors import ServiceBusError
from sbclient.message import ServiceBusMessage, ServiceBusReceivedMessage
from sbclient.testing import Fault, FaultKind, MemoryPair, Operation, memory_pair
from tests.client.scene import options
from tests.secrets.canaries import BODY, PROPERTY, STATE
from tests.secrets.output_capture import OutputCapture, debug
from tests.secrets.reachable import reprs_of

QUEUE, SESSIONS, TOPIC, SUBSCRIPTION = "orders", "jobs", "prices", "eu"

ERRORS = [
    kind
    for _, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, ServiceBusError) and kind not in (ServiceBusError, errors.BacklogUnavailableError)
]


def secret(**fields: Any) -> ServiceBusMessage:
    return ServiceBusMessage(BODY, application_properties={"note": PROPERTY}, **fields)


def pair_with(seed: int = 1) -> MemoryPair:
    return memory_pair(seed=seed)


async def make_entities(client: ServiceBusClient) -> None:
    administration = client.administration
    await administration.create_queue(QUEUE)
    await administration.create_queue(SESSIONS, requires_session=True)
    await administration.create_topic(TOPIC)
    await administration.create_subscription(TOPIC, SUBSCRIPTION)
    await administration.create_rule(
        TOPIC,
        SUBSCRIPTION,
        "marked",
        filter=SqlRuleFilter("note LIKE '%name%'"),
        action=SqlRuleAction("SET seen = note"),
    )


def look(capture: OutputCapture, *roots: Any) -> None:
    """Capture the reprs of all reachable objects."""
    for where, text in reprs_of(roots):
        capture.add(where, text)


@pytest.mark.promise("client.secrets")
async def test_message_operations_leak_nothing(capture: OutputCapture) -> None:
    debug(asyncio.get_running_loop())
    pair = pair_with()
    async with pair.unpaired_client() as client:
        await make_entities(client)
        async with client.get_queue_sender(QUEUE) as sender:
            await sender.send_messages(secret(message_id="1"))
            await sender.send_messages([secret() for _ in range(3)])
            batch = await sender.create_message_batch()
            batch.add_message(secret())
            await sender.send_messages(batch)
            numbers = await sender.schedule_messages(secret(), datetime.now(UTC) + timedelta(days=3000))
            look(capture, client, sender, batch)
            await sender.cancel_scheduled_messages(numbers)
            async with client.transaction() as transaction:
                await sender.send_messages(secret(), transaction=transaction)
                look(capture, transaction)
            with suppress(KeyError):
                async with client.transaction() as transaction:
                    await sender.send_messages(secret(), transaction=transaction)
                    raise KeyError
        async with client.get_queue_receiver(QUEUE) as receiver:
            messages = await receiver.receive_messages(max_message_count=20)
            assert any(str(message) == BODY for message in messages)
            look(capture, receiver, messages, *gc.get_referrers(messages[0]))
            await receiver.renew_message_lock(messages[0])
            await receiver.complete_message(messages[0])
            with capture.expecting(ValueError, ServiceBusError, where="settled twice"):
                await receiver.complete_message(messages[0])
            await receiver.abandon_message(messages[1])
            await receiver.defer_message(messages[2])
            await receiver.dead_letter_message(messages[3], reason="broken", error_description="cannot be read")
            look(capture, await receiver.receive_deferred_messages(messages[2].sequence_number))
            look(capture, await receiver.peek_messages(max_message_count=10))
            await asyncio.sleep(301)
            with capture.expecting(ServiceBusError, where="lock lost"):
                await receiver.complete_message(messages[4])
        capture.add("leftovers", repr(await client.administration.get_queue_runtime_properties(QUEUE)))


async def test_sessions_and_topics_leak_nothing(capture: OutputCapture) -> None:
    debug(asyncio.get_running_loop())
    pair = pair_with()
    async with pair.unpaired_client() as client:
        await make_entities(client)
        await client.get_queue_sender(SESSIONS).send_messages(secret(session_id="a"))
        async with client.get_queue_receiver(SESSIONS, session_id="a") as receiver:
            assert receiver.session is not None
            await receiver.session.set_state(STATE)
            assert await receiver.session.get_state() == STATE.encode()
            (message,) = await receiver.receive_messages()
            look(capture, receiver, receiver.session, message)
            with capture.expecting(ServiceBusError, where="session held"):
                async with client.get_queue_receiver(SESSIONS, session_id="a", max_wait_time=1):
                    pass
            await asyncio.sleep(301)
            with capture.expecting(ServiceBusError, where="session lost"):
                await receiver.session.set_state(STATE)
        with capture.expecting(ServiceBusError, where="no session id"):
            await client.get_queue_sender(SESSIONS).send_messages(secret())
        await client.get_topic_sender(TOPIC).send_messages(secret())
        async with client.get_subscription_receiver(TOPIC, SUBSCRIPTION) as receiver:
            look(capture, await receiver.receive_messages(max_message_count=5))
        with capture.expecting(ServiceBusError, where="a bad rule"):
            await client.administration.create_rule(TOPIC, SUBSCRIPTION, "bad", filter=SqlRuleFilter("note LIKE"))


async def test_diverted_and_drained_messages_leak_nothing(capture: OutputCapture) -> None:
    debug(asyncio.get_running_loop())
    pair = pair_with()
    async with pair.client(options(failover_interval=0)) as client:
        await make_entities(client)
        sender = client.get_queue_sender(QUEUE)
        await sender.send_messages(secret())
        pair.primary.inject(Fault(FaultKind.DOWN))
        for number in range(4):
            await sender.send_messages(
                secret(message_id=str(number), time_to_live=timedelta(seconds=2 if number else 900))
            )
        await client.get_topic_sender(TOPIC).send_messages(secret())
        await asyncio.sleep(5)
        capture.add("status", repr(client.pair.status()))
        capture.add("events", repr(client.pair.events()))
        look(capture, client, sender, client.pair)
        pair.primary.heal()
        report = await client.run_syphon(until="empty")
        capture.add("syphon", repr(report))
        assert report.dead_lettered
        look(capture, client, client.pair, await Backlog(client.pair).survey())
        capture.add("events", repr(client.pair.events()))


async def test_messages_that_the_syphon_cannot_forward_leak_nothing(capture: OutputCapture) -> None:
    debug(asyncio.get_running_loop())
    pair = pair_with()
    queue = "contoso/x-servicebus-transfer/0"
    async with pair.client(options(failover_interval=0)) as client:
        async with pair.unpaired_client(secondary=True) as other:
            forged: list[dict[str, Any]] = [
                {},
                {"x-ms-path": "a//b"},
                {"x-ms-path": QUEUE, "x-ms-scheduled-enqueue-time-utc": PROPERTY},
                {"x-ms-path": QUEUE, "x-ms-session-id": 5},
                {"x-ms-path": "missing"},
            ]
            for properties in forged:
                message = ServiceBusMessage(BODY, application_properties={"note": PROPERTY, **properties})
                await other.get_queue_sender(queue).send_messages(message)
        syphon = asyncio.ensure_future(client.run_syphon())
        await asyncio.sleep(600)
        look(capture, client, client.pair)
        syphon.cancel()
        await asyncio.gather(syphon, return_exceptions=True)
        backlog = Backlog(client.pair)
        look(capture, await backlog.survey(), backlog)
        capture.add("events", repr(client.pair.events()))


async def errors_met(
    client: ServiceBusClient, receiver: ServiceBusReceiver, message: ServiceBusReceivedMessage
) -> list[BaseException]:
    """Yield the error of every operation that can fail at the namespace."""
    met: list[BaseException] = []
    sender = client.get_queue_sender(QUEUE)
    for work in (
        sender.send_messages(secret(), timeout=30),
        sender.send_messages([secret(), secret()], timeout=30),
        sender.schedule_messages(secret(), datetime.now(UTC) + timedelta(days=3000), timeout=30),
        receiver.complete_message(message),
        receiver.receive_messages(max_wait_time=1),
        receiver.peek_messages(timeout=30),
        client.administration.get_queue(QUEUE),
    ):
        try:
            await work
        except (ServiceBusError, ValueError) as error:
            met.append(error)
    return met


@pytest.mark.promise("client.secrets")
@pytest.mark.parametrize("kind", ERRORS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("is_paired", [False, True], ids=["alone", "paired"])
async def test_errors_of_the_namespace_leak_nothing(
    capture: OutputCapture, kind: type[ServiceBusError], is_paired: bool
) -> None:
    pair = pair_with()
    client = pair.client(options(failover_interval=0)) if is_paired else pair.unpaired_client()
    async with client:
        await make_entities(client)
        await client.get_queue_sender(QUEUE).send_messages(secret())
        async with client.get_queue_receiver(QUEUE) as receiver:
            (message,) = await receiver.receive_messages()
            pair.primary.inject(Fault(FaultKind.ERROR, error=kind))
            if is_paired:
                pair.secondary.inject(Fault(FaultKind.ERROR, error=kind, operations=(Operation.SEND,)))
            met = await errors_met(client, receiver, message)
            assert met
            for error in met:
                capture.add_error(kind.__name__, error)
            look(capture, client, receiver, met)
            pair.primary.heal()


@pytest.mark.parametrize("fault", [FaultKind.DOWN, FaultKind.HANG, FaultKind.BUSY, FaultKind.LOSE_ACKNOWLEDGEMENT])
async def test_errors_leak_nothing_when_both_namespaces_are_unreachable(
    capture: OutputCapture, fault: FaultKind
) -> None:
    pair = pair_with()
    async with pair.client(options(failover_interval=0)) as client:
        await make_entities(client)
        sender = client.get_queue_sender(QUEUE)
        await sender.send_messages(secret())
        for namespace in (pair.primary, pair.secondary):
            namespace.inject(Fault(fault, operations=(Operation.SEND, Operation.OPEN)))
        with capture.expecting(ServiceBusError, where="nowhere to go"):
            await sender.send_messages(secret(), timeout=20)
        capture.add("status", repr(client.pair.status()))
        look(capture, client, sender)


async def test_cancelled_and_late_sends_leak_nothing(capture: OutputCapture) -> None:
    debug(asyncio.get_running_loop())
    pair = pair_with()
    async with pair.unpaired_client() as client:
        await make_entities(client)
        pair.primary.inject(Fault(FaultKind.HANG, operations=(Operation.SEND,)))
        sender = client.get_queue_sender(QUEUE)
        sending = asyncio.ensure_future(sender.send_messages(secret()))
        await asyncio.sleep(1)
        look(capture, client, sender, sending, *asyncio.all_tasks())
        sending.cancel()
        with capture.expecting(asyncio.CancelledError, where="cancelled"):
            await sending
        with capture.expecting(ServiceBusError, where="late"):
            await sender.send_messages(secret(), timeout=3)


@pytest.mark.parametrize(
    "fields",
    [
        {"body": BODY + "\ud800"},
        {"body": [BODY]},
        {"body": 4711},
        {"application_properties": {"note": [PROPERTY]}},
        {"application_properties": {"note": PROPERTY.encode() + b"\xff"}},
        {"application_properties": {"note": PROPERTY + "\ud800"}},
        {"application_properties": {"note": 2**64}},
        {"message_id": "x" * 129},
        {"time_to_live": timedelta(seconds=-1)},
        {"scheduled_enqueue_time_utc": "soon"},
    ],
)
def test_errors_about_invalid_messages_leak_nothing(capture: OutputCapture, fields: dict[str, Any]) -> None:
    given = {"body": BODY, "application_properties": {"note": PROPERTY}, **fields}
    with capture.expecting(ServiceBusError, ValueError, TypeError, where="a message"):
        ServiceBusMessage(**given)


async def test_errors_about_rejected_messages_leak_nothing(capture: OutputCapture) -> None:
    pair = pair_with()
    async with pair.unpaired_client() as client:
        await make_entities(client)
        sender = client.get_queue_sender(QUEUE)
        with capture.expecting(ServiceBusError, where="too large"):
            await sender.send_messages(ServiceBusMessage(BODY * 10_000))
        with capture.expecting(ServiceBusError, ValueError, where="a full batch"):
            batch = await sender.create_message_batch(max_size_in_bytes=1_000)
            for _ in range(100):
                batch.add_message(secret())
        large = {f"property-{number}": PROPERTY for number in range(2_000)}
        with capture.expecting(ServiceBusError, where="large properties"):
            await sender.send_messages(ServiceBusMessage(BODY, application_properties=large))
        with capture.expecting(TypeError, ServiceBusError, where="no message"):
            await sender.send_messages(BODY)  # type: ignore[arg-type]
        await client.close()
        with capture.expecting(ServiceBusError, ValueError, where="closed"):
            await sender.send_messages(secret())
