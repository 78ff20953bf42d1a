"""Calls as applications write them, right and wrong ones, for mypy and pyright. Nothing here runs.

A line that is wrong ends in an ignore comment. Both checkers are set to report a comment that ignores nothing, so
each of these lines is known to be an error.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta

from azure import servicebus as sdk

from sbclient import (
    NEXT_AVAILABLE_SESSION,
    AutoLockRenewer,
    MessagingEntityNotFoundError,
    PairedNamespaceOptions,
    ServiceBusClient,
    ServiceBusError,
    ServiceBusMessage,
    ServiceBusReceivedMessage,
    ServiceBusReceiver,
    ServiceBusSender,
    ServiceBusSubQueue,
)

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)


def numbered(count: int) -> Iterator[ServiceBusMessage]:
    for number in range(count):
        yield ServiceBusMessage(f"order {number}")


async def right_sends(sender: ServiceBusSender, received: ServiceBusReceivedMessage) -> list[int]:
    await sender.send_messages(ServiceBusMessage("text", session_id="s", time_to_live=timedelta(minutes=1)))
    await sender.send_messages(ServiceBusMessage([b"one section", b"another"], application_properties={"size": 3}))
    await sender.send_messages([ServiceBusMessage(b"bytes"), {"body": "a mapping", "subject": "s"}])
    await sender.send_messages({"body": "a mapping"}, timeout=5)
    await sender.send_messages(numbered(3))
    await sender.send_messages(received)
    await sender.send_messages(sdk.ServiceBusMessage("of azure-servicebus"))
    await sender.send_messages([sdk.ServiceBusMessage("of azure-servicebus"), received])
    await sender.send_messages(received.raw_amqp_message)
    batch = await sender.create_message_batch()
    batch.add_message(ServiceBusMessage("text"))
    batch.add_message({"body": "a mapping"})
    await sender.send_messages(batch)
    numbers: list[int] = await sender.schedule_messages(numbered(3), NOON)
    await sender.cancel_scheduled_messages(numbers[0])
    await sender.cancel_scheduled_messages(numbers)
    return numbers


async def wrong_sends(sender: ServiceBusSender, unsent: AsyncIterator[ServiceBusMessage]) -> None:
    await sender.send_messages(3)  # type: ignore[arg-type]
    await sender.send_messages("text")  # type: ignore[arg-type]
    await sender.send_messages(b"bytes")  # type: ignore[arg-type]
    await sender.send_messages(None)  # type: ignore[arg-type]
    await sender.send_messages(["text", "text"])  # type: ignore[list-item]
    await sender.send_messages({1: "a key that is no name"})  # type: ignore[arg-type]
    await sender.send_messages(unsent)  # type: ignore[arg-type]
    await sender.send_messages(sdk.ServiceBusMessageBatch())  # type: ignore[arg-type]
    await sender.send_messages(ServiceBusMessage("text"), timeout="5")  # type: ignore[arg-type]
    await sender.send_messages(ServiceBusMessage("text"), timout=5)  # type: ignore[call-arg]
    await sender.schedule_messages("text", NOON)  # type: ignore[arg-type]
    await sender.schedule_messages(ServiceBusMessage("text"), 60)  # type: ignore[arg-type]
    await sender.cancel_scheduled_messages("7")  # type: ignore[arg-type]
    (await sender.create_message_batch()).add_message("text")  # type: ignore[arg-type]
    ServiceBusMessage(3)  # type: ignore[arg-type]
    ServiceBusMessage("text", session_id=7)  # type: ignore[arg-type]
    ServiceBusMessage("text", sesion_id="s")  # type: ignore[call-arg]


async def right_receives(client: ServiceBusClient) -> str:
    async with (
        AutoLockRenewer(max_lock_renewal_duration=300) as renewer,
        client.get_queue_receiver("orders", auto_lock_renewer=renewer, max_wait_time=5) as receiver,
    ):
        async for message in receiver:
            try:
                size = message.application_properties["size"]
                if isinstance(size, int) and size > 3:
                    await receiver.dead_letter_message(message, reason="too large", error_description=f"{size} > 3")
                else:
                    await receiver.complete_message(message)
            except MessagingEntityNotFoundError as error:
                print(error.message, error.is_in_doubt)
            except ServiceBusError as error:
                print(error.status_code)
    async with client.get_queue_receiver("orders", session_id=NEXT_AVAILABLE_SESSION) as receiver:
        await receiver.session.set_state(b"state")
    return client.get_queue_receiver("orders", sub_queue=ServiceBusSubQueue.DEAD_LETTER).entity_path


async def wrong_receives(client: ServiceBusClient, receiver: ServiceBusReceiver) -> None:
    (message,) = await receiver.receive_messages(max_message_count=1)
    print(message.application_properties[b"size"])  # type: ignore[index]
    print(message.application_properties.get(b"size"))  # type: ignore[call-overload]
    print(message.raw_amqp_message.annotations[b"x-opt-enqueued-time"])  # type: ignore[index]
    await receiver.complete_message(message.message_id)  # type: ignore[arg-type]
    await receiver.complete_message([message])  # type: ignore[arg-type]
    await receiver.receive_messages(max_message_count="ten")  # type: ignore[arg-type]
    await receiver.receive_deferred_messages(["7"])  # type: ignore[list-item]
    client.get_queue_receiver("orders", session_id=7)  # type: ignore[arg-type]
    client.get_queue_receiver("orders", max_wait_time=timedelta(seconds=5))  # type: ignore[arg-type]
    client.get_queue_sender(7)  # type: ignore[arg-type]
    for unread in receiver:  # type: ignore[attr-defined]
        del unread


def right_options() -> list[ServiceBusClient]:
    options = PairedNamespaceOptions(failover_interval=timedelta(seconds=10), is_outage=(ServiceBusError,))
    primary, secondary = "memory://contoso", "memory://contoso-backup"
    paired = ServiceBusClient.from_connection_string(primary, secondary=secondary, options=options)
    return [paired, ServiceBusClient.from_connection_string("memory://third", secondary=paired, retry_total=1)]


def wrong_options() -> None:
    PairedNamespaceOptions(failover_interval=10)  # type: ignore[arg-type]
    PairedNamespaceOptions(ordering="sessions")  # type: ignore[arg-type]
    PairedNamespaceOptions(failover_intervall=timedelta(seconds=10))  # type: ignore[call-arg]
    ServiceBusClient.from_connection_string("memory://contoso", secondary=3)  # type: ignore[arg-type]
    ServiceBusClient.from_connection_string("memory://contoso", options={"ordering": "session"})  # type: ignore[arg-type]
    ServiceBusClient("contoso.servicebus.windows.net", timeout="60")  # type: ignore[arg-type]
