"""azure-servicebus and our own transport run one script; what they send is compared field by field."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from azure.servicebus import NEXT_AVAILABLE_SESSION as SDK_NEXT
from azure.servicebus import ServiceBusMessage as SdkMessage
from azure.servicebus import ServiceBusReceiveMode as SdkMode
from azure.servicebus.aio import ServiceBusClient as SdkClient

from sbclient import NEXT_AVAILABLE_SESSION, ServiceBusClient, ServiceBusMessage, ServiceBusReceiveMode
from tests.stage.serving import ServingThread
from tests.wire.serving import ServedNamespace
from tests.wire.transcript import Recorder, Transcript, differences


@dataclass(frozen=True, slots=True)
class Difference:
    """A known difference.

    Attributes:
        kind, field: patterns of the frames and of their field.
        theirs, ours: patterns of the values of azure-servicebus and of our transport.
        reason: why it is as it is.
    """

    kind: str
    field: str
    theirs: str
    ours: str
    reason: str

    def explains(self, found: tuple[str, str, str, str]) -> bool:
        patterns = (self.kind, self.field, self.theirs, self.ours)
        return all(re.fullmatch(pattern, text) for pattern, text in zip(patterns, found, strict=True))


NAMES = "Names of containers, links and termini are free, and are unique on the connection."
ADDRESS = "The address of an entity is its path, as in the clients for Java."
SIZE = "Receivers announce 128 MiB, more than the largest message of the service."
CREDIT = "Reply links get 1,000 credits, which are renewed."
ENDS = "A link is detached with `closed`, and the end of its AMQP session ends the links beside it."
FLOWS = "Links on which a client sends get no flow, since the client has nothing to announce there."
LIMITS = "The client states the limits of the service, a session window of 2,000 frames and an idle time-out of 60 s."
MANAGEMENT = "The request-response protocol documents no property `type`."

DIFFERENCES = (
    Difference(
        "attach .*|open",
        r"name|container_id|(source|target)\.address",
        "(sender-|receiver-)?.*<uuid>.*",
        "<name>.*",
        NAMES,
    ),
    Difference("attach .*receiver.*|attach sender", r"(source|target)\.address", "amqps://.*", r"[a-z |]+", ADDRESS),
    Difference(
        "attach .*receiver.*", r"properties\.com\.microsoft:receiver-name", "SBReceiver-<uuid>", "absent", NAMES
    ),
    Difference("attach .*(replies|receiver.*)", "max_message_size", "absent|1048576", "134217728", SIZE),
    Difference("attach sender", "max_message_size", "0", "absent", "Zero and no value both mean no limit."),
    Difference(
        "attach .* replies",
        "snd_settle_mode",
        "0",
        "2",
        "The service settles its replies, which mode 2 (mixed) allows.",
    ),
    Difference(
        "attach sender", "rcv_settle_mode", "1", "0", "The service settles what it accepts, which is mode 0 (first)."
    ),
    Difference(
        "attach session receiver",
        r"properties\.com\.microsoft:timeout",
        r"\d+ \| absent",
        r"10000 \| 60000",
        "The wait of an attach is stated for a named session too, as in the client for .NET.",
    ),
    Difference("begin", "handle_max|incoming_window|outgoing_window", r"\d+", r"\d+", LIMITS),
    Difference("open", "channel_max|idle_time_out|max_frame_size", r"\d+|absent", r"\d+", LIMITS),
    Difference("open", r"properties\.product", "azsdk-python-servicebus", "sbclient", "It is another product."),
    Difference("detach .* replies", "", "sent", "absent", ENDS),
    Difference(r"detach \$management requests", "closed", "False", "True", ENDS),
    Difference("flow .*requests|flow sender", "", "sent", "absent", FLOWS),
    Difference("flow .* replies", "link_credit", "10000", "1000", CREDIT),
    Difference(
        "flow .*receiver.*",
        "link_credit",
        r"0 \| \d",
        r"\d",
        "Credit that is used up needs no drain at the end.",
    ),
    Difference(
        "disposition: dead-letter",
        r"state\.error\.description",
        "d",
        "absent",
        "The description of a dead letter is in the error's info, where the service reads it.",
    ),
    Difference("request com.*", r"application_properties\.type", "entity-mgmt", "absent", MANAGEMENT),
    Difference(
        "request com.*",
        r"application_properties\.associated-link-name",
        "<uuid>",
        "<name>",
        NAMES,
    ),
    Difference(
        "request com.*",
        r"application_properties\.com\.microsoft:server-timeout",
        r"uint \d+",
        r"uint \d+",
        "A request states the time that is left for the attempt; azure-servicebus states 60 s.",
    ),
    Difference(
        "request .*", r"properties\.message_id", "uuid", r"[\d |]+", "Message ids of requests are numbers as text."
    ),
    Difference(
        "request put-token", r"properties\.reply_to", "absent", r"\$cbs", "Every request names its reply address."
    ),
    Difference(
        "request put-token",
        r"application_properties\.(name|type)",
        "sb://.*|jwt",
        "amqps://.*|servicebus.windows.net:sastoken",
        "A token has its documented type, and its audience has the scheme `amqps`.",
    ),
    Difference("transfer to .*", "delivery_tag", "4 bytes", "8 bytes", "Delivery tags are free."),
    Difference(
        "transfer: one message",
        r"properties\.(absolute_expiry_time|creation_time)",
        "timestamp",
        "absent",
        "The service counts the time to live in the header from the acceptance.",
    ),
)

WAIT_S = 10.0
AT = datetime(2100, 1, 1, tzinfo=UTC)


async def play(transcript: Transcript, client: Any, message: Any, delete: Any, next_session: Any) -> None:
    """Use every operation of azure-servicebus that goes over AMQP."""

    def begin(step: str) -> None:
        transcript.step = step

    async with client.get_queue_sender("orders") as sender:
        begin("one message")
        await sender.send_messages(
            message(
                b"body",
                application_properties={"text": "t", "number": 7, "yes": True, "ratio": 1.5, "at": AT},
                message_id="m",
                session_id=None,
                time_to_live=timedelta(minutes=5),
                subject="s",
                content_type="text/plain",
                correlation_id="c",
                partition_key="k",
                to="t",
                reply_to="r",
                reply_to_session_id="rs",
                scheduled_enqueue_time_utc=None,
            )
        )
        begin("list")
        await sender.send_messages([message(b"1", message_id="1"), message(b"2", message_id="2")])
        begin("batch")
        batch = await sender.create_message_batch()
        for number in ("3", "4", "5"):
            batch.add_message(message(number.encode(), message_id=number))
        await sender.send_messages(batch)
        begin("schedule")
        numbers = await sender.schedule_messages([message(b"a", message_id="a"), message(b"b", message_id="b")], AT)
        await sender.cancel_scheduled_messages(numbers)
        begin("close")
    async with client.get_queue_receiver("orders") as receiver:
        begin("receive")
        first, second, third, fourth = [
            (await receiver.receive_messages(max_message_count=1, max_wait_time=WAIT_S))[0] for _ in range(4)
        ]
        begin("renew")
        await receiver.renew_message_lock(first)
        begin("complete")
        await receiver.complete_message(first)
        begin("abandon")
        await receiver.abandon_message(second)
        begin("defer")
        await receiver.defer_message(third)
        begin("dead-letter")
        await receiver.dead_letter_message(fourth, reason="r", error_description="d")
        begin("deferred")
        (deferred,) = await receiver.receive_deferred_messages([third.sequence_number])
        begin("complete a deferred message")
        await receiver.complete_message(deferred)
        begin("peek")
        await receiver.peek_messages(max_message_count=5, sequence_number=1)
        begin("close")
    async with client.get_queue_receiver("orders", receive_mode=delete) as receiver:
        begin("receive and delete")
        await receiver.receive_messages(max_message_count=2, max_wait_time=WAIT_S)
        begin("close")
    async with client.get_queue_sender("visits") as sender:
        begin("one message of a session")
        await sender.send_messages(message(b"v", message_id="v", session_id="a"))
        begin("close")
    async with client.get_queue_receiver("visits", session_id="a") as receiver:
        begin("session")
        (visit,) = await receiver.receive_messages(max_message_count=1, max_wait_time=WAIT_S)
        await receiver.session.set_state(b"state")
        await receiver.session.get_state()
        await receiver.session.renew_lock()
        await receiver.peek_messages(max_message_count=5, sequence_number=1)
        begin("abandon in a session")
        await receiver.abandon_message(visit)
        begin("close")
    async with client.get_queue_receiver("visits", session_id=next_session, max_wait_time=WAIT_S) as receiver:
        begin("next session")
        (visit,) = await receiver.receive_messages(max_message_count=1, max_wait_time=WAIT_S)
        begin("complete in a session")
        await receiver.complete_message(visit)
        begin("close")


async def recorded(thread: ServingThread, run: Any) -> Transcript:
    """What a client sends to a namespace of its own."""
    served = ServedNamespace(thread)
    transcript = Transcript()
    try:
        served.queue("orders")
        served.queue("visits", requires_session=True)
        async with Recorder(transcript, served.port) as recorder:
            text = served.connection_string.replace(f":{served.port};", f":{recorder.port};")
            await run(transcript, text)
    finally:
        served.close()
    return transcript


async def of_the_sdk(transcript: Transcript, text: str) -> None:
    async with SdkClient.from_connection_string(text) as client:
        await play(transcript, client, SdkMessage, SdkMode.RECEIVE_AND_DELETE, SDK_NEXT)


async def of_ours(transcript: Transcript, text: str) -> None:
    async with ServiceBusClient.from_connection_string(text) as client:
        await play(
            transcript, client, ServiceBusMessage, ServiceBusReceiveMode.RECEIVE_AND_DELETE, NEXT_AVAILABLE_SESSION
        )


async def test_differences_from_azure_servicebus_are_known(thread: ServingThread) -> None:
    theirs, ours = await asyncio.gather(recorded(thread, of_the_sdk), recorded(thread, of_ours))
    found = list(differences(theirs, ours))
    unknown = [each for each in found if not any(known.explains(each) for known in DIFFERENCES)]
    assert not unknown, "\n".join(map(str, unknown))
    unused = [known for known in DIFFERENCES if not any(known.explains(each) for each in found)]
    assert not unused, "\n".join(map(str, unused))


def test_the_page_lists_every_reason() -> None:
    page = (Path(__file__).parents[2] / "docs" / "moving.md").read_text(encoding="utf-8")
    section = page.partition("## What is sent")[2]
    assert [known.reason for known in DIFFERENCES if known.reason not in section] == []
