"""`sbclient receive` and `sbclient peek`: messages to stdout, as JSON Lines."""

from __future__ import annotations

import base64
from enum import StrEnum
from typing import Annotated, Any

import typer

from sbclient.cli.common import Primary, open_client, print_json, run
from sbclient.client import ServiceBusClient
from sbclient.errors import InvalidOperationError
from sbclient.message import AmqpMessageBodyType, ServiceBusReceivedMessage
from sbclient.receiver import ServiceBusReceiver
from sbclient.transport.base import NEXT_AVAILABLE_SESSION, SessionChoice

BATCH = 100

Queue = Annotated[str | None, typer.Option(help="From this queue.")]
Topic = Annotated[str | None, typer.Option(help="From this topic's --subscription.")]
Subscription = Annotated[str | None, typer.Option(help="From this subscription of --topic.")]
Session = Annotated[str | None, typer.Option(help="From this session; * is the next available one.")]
DeadLetters = Annotated[bool, typer.Option("--dead-letters", help="From the dead letters.")]
Count = Annotated[int, typer.Option(min=1, help="At most so many.")]


class Settle(StrEnum):
    COMPLETE = "complete"
    ABANDON = "abandon"
    DEFER = "defer"


def receive(
    primary: Primary,
    queue: Queue = None,
    topic: Topic = None,
    subscription: Subscription = None,
    session: Session = None,
    dead_letters: DeadLetters = False,
    count: Count = 1_000_000_000,
    wait: Annotated[float, typer.Option(min=0.1, help="Seconds without a message after which it ends.")] = 5.0,
    settle: Annotated[Settle, typer.Option(help="What becomes of each message once it is printed.")] = Settle.COMPLETE,
) -> None:
    """Receive messages and print each as a line of JSON; it is settled after it was printed.

    Example: sbclient receive --queue orders --count 10
    """
    run("receive", _receive(primary, queue, topic, subscription, session, dead_letters, count, wait, settle))


async def _receive(
    primary: str,
    queue: str | None,
    topic: str | None,
    subscription: str | None,
    session: str | None,
    dead_letters: bool,
    count: int,
    wait: float,
    settle: Settle,
) -> None:
    async with (
        open_client(primary) as client,
        _receiver(client, queue, topic, subscription, session, dead_letters, wait) as receiver,
    ):
        left = count
        while left and (messages := await receiver.receive_messages(min(left, BATCH), wait)):
            left -= len(messages)
            for message in messages:
                print_json(as_json(message))
                if settle is Settle.COMPLETE:
                    await receiver.complete_message(message)
                elif settle is Settle.ABANDON:
                    await receiver.abandon_message(message)
                else:
                    await receiver.defer_message(message)


def peek(
    primary: Primary,
    queue: Queue = None,
    topic: Topic = None,
    subscription: Subscription = None,
    session: Session = None,
    dead_letters: DeadLetters = False,
    count: Count = 100,
    first: Annotated[int, typer.Option("--from", help="The first sequence number of interest.")] = 1,
) -> None:
    """Print messages without taking them.

    Example: sbclient peek --queue orders --dead-letters
    """
    run("peek", _peek(primary, queue, topic, subscription, session, dead_letters, count, first))


async def _peek(
    primary: str,
    queue: str | None,
    topic: str | None,
    subscription: str | None,
    session: str | None,
    dead_letters: bool,
    count: int,
    first: int,
) -> None:
    async with (
        open_client(primary) as client,
        _receiver(client, queue, topic, subscription, session, dead_letters, None) as receiver,
    ):
        left, number = count, first
        while left and (page := await receiver.peek_messages(min(left, BATCH), sequence_number=number)):
            left -= len(page)
            number = page[-1].sequence_number + 1
            for message in page:
                print_json(as_json(message))


def _receiver(
    client: ServiceBusClient,
    queue: str | None,
    topic: str | None,
    subscription: str | None,
    session: str | None,
    dead_letters: bool,
    wait: float | None,
) -> ServiceBusReceiver:
    choice: SessionChoice = NEXT_AVAILABLE_SESSION if session == "*" else session
    sub_queue = "deadletter" if dead_letters else None
    if queue is not None and topic is None and subscription is None:
        return client.get_queue_receiver(queue, session_id=choice, sub_queue=sub_queue, max_wait_time=wait)
    if queue is None and topic is not None and subscription is not None:
        return client.get_subscription_receiver(
            topic, subscription, session_id=choice, sub_queue=sub_queue, max_wait_time=wait
        )
    raise InvalidOperationError("give --queue, or --topic with --subscription")


def as_json(message: ServiceBusReceivedMessage) -> dict[str, Any]:
    """A message as a JSON object: what is set, the body as text, or as base64 if it is not UTF-8."""
    fields: dict[str, Any] = {
        name: getattr(message, name)
        for name in (
            "sequence_number",
            "enqueued_time_utc",
            "message_id",
            "session_id",
            "partition_key",
            "subject",
            "content_type",
            "correlation_id",
            "to",
            "reply_to",
            "reply_to_session_id",
            "time_to_live",
            "scheduled_enqueue_time_utc",
            "expires_at_utc",
            "delivery_count",
            "dead_letter_source",
        )
    }
    fields["state"] = message.state.name.lower()
    fields["application_properties"] = message.application_properties or None
    if message.body_type is not AmqpMessageBodyType.DATA:
        fields["body"] = message.body
    else:
        body = bytes(message)
        try:
            fields["body"] = body.decode()
        except UnicodeDecodeError:
            fields["body_base64"] = base64.b64encode(body).decode()
    return {name: value for name, value in fields.items() if value is not None}
