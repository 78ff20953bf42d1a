"""A process that is traced, by azure-servicebus too where it is told so; prints what was traced and what arrived.

python -m tests.transport.sdk.traced_over_sdk sdk|ours
{"trees": ["…"], "properties": {"…": "…"}}
"""

from __future__ import annotations

import asyncio
import json
import sys
from datetime import UTC, datetime, timedelta
from typing import Any

from azure.core.settings import settings
from azure.servicebus import ServiceBusMessage as SdkMessage
from azure.servicebus.aio import ServiceBusClient as SdkClient
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from sbclient import PairedNamespaceOptions, ServiceBusClient, ServiceBusMessage
from sbclient.emulator import Emulator
from sbclient.rules.size import batch_size, encoded_size
from tests.traced import tree

CONTEXT = "00-" + "0" * 32 + "-" + "0" * 16 + "-00"


def too_large_for_a_batch() -> ServiceBusMessage:
    """A message that, with its context, goes out alone, written by azure-servicebus and not by us."""
    traced = {"Diagnostic-Id": CONTEXT, "traceparent": CONTEXT}
    rest = encoded_size(ServiceBusMessage(b"x" * 300, message_id="1", application_properties=traced)) - 300
    message = ServiceBusMessage(b"x" * (256 * 1024 - rest), message_id="1")
    assert batch_size([message.copy(application_properties=traced)]) > 256 * 1024
    return message


async def work(exporter: InMemorySpanExporter) -> dict[str, Any]:
    trees: dict[str, str] = {}
    properties: dict[str, Any] = {}

    def told(what: str) -> None:
        trees[what] = tree(exporter.get_finished_spans())
        exporter.clear()

    options = PairedNamespaceOptions(backlog_queue_count=1, reserve_backlog_headroom=False)
    async with (
        Emulator("contoso") as primary,
        Emulator("contoso-backup") as secondary,
        ServiceBusClient.from_connection_string(
            primary.connection_string, secondary=secondary.connection_string, options=options
        ) as client,
    ):
        await client.administration.create_queue("orders")
        exporter.clear()
        async with client.get_queue_sender("orders") as sender, client.get_queue_receiver("orders") as receiver:
            client.pair.force_failover("orders")
            await sender.send_messages(ServiceBusMessage("a"))
            await client.run_syphon(until="empty")
            client.pair.mark_healthy("orders")
            (message,) = await receiver.receive_messages()
            await receiver.complete_message(message)
            properties["diverted"] = message.application_properties
            told("diverted")
            await sender.send_messages(too_large_for_a_batch())
            (message,) = await receiver.receive_messages()
            await receiver.dead_letter_message(message)
            properties["large"] = message.application_properties
            told("large")
            await sender.schedule_messages(ServiceBusMessage("b"), datetime.now(UTC) + timedelta(hours=1))
            await receiver.peek_messages()
            told("scheduled")
        async with (
            SdkClient.from_connection_string(primary.connection_string) as theirs,
            theirs.get_queue_sender("orders") as their_sender,
        ):
            await their_sender.send_messages(SdkMessage("c"))
        told("by the SDK alone")
    return {"trees": trees, "properties": properties}


def main() -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    if sys.argv[1] == "sdk":
        settings.tracing_implementation = "opentelemetry"
    json.dump(asyncio.run(work(exporter)), sys.stdout)


if __name__ == "__main__":
    main()
