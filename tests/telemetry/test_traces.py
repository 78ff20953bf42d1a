"""One trace shows a message's way: sent, diverted, drained, received; in virtual time, on the bundled broker."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from random import Random

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from sbclient import clock
from sbclient.broker.profile import PREM_2021
from sbclient.client.client import ServiceBusClient
from sbclient.errors import BacklogUnavailableError, MessageSizeExceededError
from sbclient.message import ServiceBusMessage, ServiceBusReceivedMessage
from sbclient.options import PairedNamespaceOptions
from sbclient.telemetry import tracing
from sbclient.testing import Fault, FaultKind, MemoryNamespace, MemoryPair
from tests.client.scene import AT_ONCE, BACKLOG, QUEUE, dead_letters, make_queue, options, taken
from tests.payloads import size_of
from tests.traced import parent_of, tree

ADDED = {"Diagnostic-Id", "traceparent"}
THEIRS = "00-0123456789abcdef0123456789abcdef-0123456789abcdef-01"

application = TracerProvider(shutdown_on_exit=False).get_tracer("an application")


def named(exporter: InMemorySpanExporter, name: str) -> list[ReadableSpan]:
    return [span for span in exporter.get_finished_spans() if span.name == name]


def seconds(span: ReadableSpan) -> float:
    assert span.start_time is not None
    assert span.end_time is not None
    return (span.end_time - span.start_time) / 1e9


async def test_one_trace_shows_send_diversion_drain_and_receive(
    pair: MemoryPair, span_exporter: InMemorySpanExporter
) -> None:
    async with pair.client(AT_ONCE) as client, client.get_queue_sender(QUEUE) as sender:
        pair.primary.inject(Fault(FaultKind.DOWN))
        await sender.send_messages(ServiceBusMessage("a"))
        await clock.sleep(100.0)
        pair.primary.heal()
        await clock.sleep(66.0)
        await client.run_syphon(until="empty")
        async with client.get_queue_receiver(QUEUE) as receiver:
            (message,) = await receiver.receive_messages()
            await receiver.complete_message(message)
    spans = span_exporter.get_finished_spans()
    assert len({span.context.trace_id for span in spans if span.context}) == 1
    assert (
        tree(spans)
        == """
ServiceBus.send
  ServiceBus.message
    sbclient.divert
    sbclient.drain
    ServiceBus.receive
    ServiceBus.complete
""".strip("\n")
    )
    divert, drain = named(span_exporter, "sbclient.divert")[0], named(span_exporter, "sbclient.drain")[0]
    assert (divert.attributes or {})["server.address"] == "memory://contoso-backup"
    assert (divert.attributes or {})["sbclient.backlog.queue"] in BACKLOG
    assert (drain.attributes or {})["server.address"] == "memory://contoso"
    assert drain.start_time is not None
    assert divert.end_time is not None
    assert (drain.start_time - divert.end_time) / 1e9 == pytest.approx(166.0, abs=2.0)


async def test_under_a_span_of_the_application_everything_of_the_send_is_its_child(
    client: ServiceBusClient, span_exporter: InMemorySpanExporter
) -> None:
    async with client.get_queue_sender(QUEUE) as sender:
        with application.start_as_current_span("an order comes in") as own:
            await sender.send_messages([ServiceBusMessage("a"), ServiceBusMessage("b")])
    (send,) = named(span_exporter, "ServiceBus.send")
    messages = named(span_exporter, "ServiceBus.message")
    assert [parent_of(span) for span in (send, *messages)] == [own.get_span_context().span_id] * 3
    assert [link.context.span_id for link in send.links] == [span.context.span_id for span in messages if span.context]
    assert send.kind is SpanKind.CLIENT
    assert {span.kind for span in messages} == {SpanKind.PRODUCER}
    assert send.attributes == {
        "az.namespace": "Microsoft.ServiceBus",
        "messaging.system": "servicebus",
        "messaging.operation": "publish",
        "messaging.batch.message_count": 2,
        "messaging.destination.name": QUEUE,
        "server.address": "memory://contoso",
        "sbclient.route": "primary",
    }


async def test_callers_that_share_a_transfer_keep_their_own_traces(
    client: ServiceBusClient, span_exporter: InMemorySpanExporter
) -> None:
    roots: list[int] = []

    async def caller(number: int) -> None:
        with application.start_as_current_span(f"caller {number}") as own:
            roots.append(own.get_span_context().span_id)
            await sender.send_messages(ServiceBusMessage(str(number)))

    async with client.get_queue_sender(QUEUE) as sender:
        await asyncio.gather(*map(caller, range(5)))
    assert sorted(parent_of(span) or 0 for span in named(span_exporter, "ServiceBus.message")) == sorted(roots)
    assert sorted(parent_of(span) or 0 for span in named(span_exporter, "ServiceBus.send")) == sorted(roots)


async def test_a_receive_is_linked_to_every_message_and_lasts_as_long_as_the_wait(
    client: ServiceBusClient, span_exporter: InMemorySpanExporter
) -> None:
    async with client.get_queue_sender(QUEUE) as sender, client.get_queue_receiver(QUEUE) as receiver:
        waiting = asyncio.ensure_future(receiver.receive_messages(10, max_wait_time=30))
        await clock.sleep(12.0)
        await sender.send_messages([ServiceBusMessage("a"), ServiceBusMessage("b")])
        received = await waiting
        assert await receiver.receive_messages(10, max_wait_time=1) == []
    assert len(received) == 2
    (receive,) = named(span_exporter, "ServiceBus.receive")
    assert [link.context.span_id for link in receive.links] == [
        span.context.span_id for span in named(span_exporter, "ServiceBus.message") if span.context
    ]
    assert [(link.attributes or {})["enqueuedTime"] for link in receive.links] == [
        int(message.enqueued_time_utc.timestamp() * 1000) for message in received
    ]
    assert parent_of(receive) is None
    assert seconds(receive) == pytest.approx(12.0)
    assert (receive.attributes or {})["messaging.operation"] == "receive"


@pytest.mark.parametrize("order", list(itertools.product([True, False], repeat=3)))
async def test_a_receive_is_linked_to_the_messages_with_a_trace_among_others(
    client: ServiceBusClient,
    span_exporter: InMemorySpanExporter,
    order: tuple[bool, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with client.get_queue_sender(QUEUE) as sender, client.get_queue_receiver(QUEUE) as receiver:
        with monkeypatch.context() as sending:
            sending.setattr(tracing, "_attached", None)  # which would add a trace to each
            for is_traced in order:
                properties = {"traceparent": THEIRS} if is_traced else {}
                await sender.send_messages(ServiceBusMessage("x", application_properties=properties))
        assert len(await receiver.receive_messages(10)) == 3
    (receive,) = named(span_exporter, "ServiceBus.receive")
    assert len(receive.links) == sum(order)


async def test_settling_peeking_scheduling_and_fetching_have_the_names_of_the_sdk(
    client: ServiceBusClient, span_exporter: InMemorySpanExporter
) -> None:
    later = datetime.fromtimestamp(clock.now(), UTC) + timedelta(seconds=1)
    async with client.get_queue_sender(QUEUE) as sender, client.get_queue_receiver(QUEUE) as receiver:
        await sender.schedule_messages([ServiceBusMessage("a")] * 3, later)
        await clock.sleep(2.0)
        await receiver.peek_messages()
        first, second, third = await receiver.receive_messages(3)
        await receiver.abandon_message(first)
        await receiver.dead_letter_message(second, "why")
        await receiver.defer_message(third)
        (deferred,) = await receiver.receive_deferred_messages(third.sequence_number)
        await receiver.complete_message(deferred)
    assert [span.name for span in span_exporter.get_finished_spans() if span.name != "ServiceBus.message"] == [
        "ServiceBus.schedule",
        "ServiceBus.peek",
        "ServiceBus.receive",
        "ServiceBus.abandon",
        "ServiceBus.dead-letter",
        "ServiceBus.defer",
        "ServiceBus.receive_deferred",
        "ServiceBus.complete",
    ]
    settled = named(span_exporter, "ServiceBus.defer")[0]
    assert (settled.attributes or {})["messaging.operation"] == "settle"
    assert len(settled.links) == 1


async def test_an_error_is_the_status_of_its_span(pair: MemoryPair, span_exporter: InMemorySpanExporter) -> None:
    async with pair.client(AT_ONCE) as client, client.get_queue_sender(QUEUE) as sender:
        client.pair.force_failover(QUEUE)
        pair.secondary.inject(Fault(FaultKind.DOWN))
        with pytest.raises(BacklogUnavailableError):
            await sender.send_messages(ServiceBusMessage("a", message_id="1"))
    for name in ("ServiceBus.send", "sbclient.divert"):
        (span,) = named(span_exporter, name)
        assert span.status.status_code is StatusCode.ERROR
        assert (span.attributes or {})["error.type"] == "BacklogUnavailableError"


async def test_a_message_that_cannot_be_forwarded_ends_its_trace_with_the_reason(
    pair: MemoryPair, span_exporter: InMemorySpanExporter, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "sbclient")
    async with pair.client(options(backlog_queue_count=1)) as client:
        async with pair.unpaired_client(secondary=True) as other, other.get_queue_sender(BACKLOG[0]) as sender:
            await sender.send_messages(ServiceBusMessage("unknown destination"))
        await client.run_syphon(until="empty")
    (sent,) = named(span_exporter, "ServiceBus.message")
    (dead,) = named(span_exporter, "sbclient.dead_letter")
    assert sent.context is not None
    assert parent_of(dead) == sent.context.span_id
    assert (dead.attributes or {})["sbclient.reason"] == "DestinationMissing"
    (record,) = [record for record in caplog.records if vars(record)["event_name"] == "syphon.dead_lettered"]
    assert record.trace_id == f"{sent.context.trace_id:032x}"  # type: ignore[attr-defined]


# -- what travels ------------------------------------------------------------------------------------------------------


async def test_received_message_differs_only_by_the_context(
    pair: MemoryPair, client: ServiceBusClient, span_exporter: InMemorySpanExporter
) -> None:
    mine = ServiceBusMessage("a", application_properties={"own": 1}, subject="s", message_id="1")
    async with client.get_queue_sender(QUEUE) as sender:
        await sender.send_messages(mine)
    assert mine.application_properties == {"own": 1}
    (arrived,) = await taken(pair)
    added = {name: arrived.application_properties.pop(name) for name in ADDED}
    (span,) = named(span_exporter, "ServiceBus.message")
    assert span.context is not None
    expected = f"00-{span.context.trace_id:032x}-{span.context.span_id:016x}-{span.context.trace_flags:02x}"
    assert added == dict.fromkeys(ADDED, expected)
    assert (arrived.application_properties, arrived.subject, arrived.message_id) == ({"own": 1}, "s", "1")


async def test_diverted_message_keeps_its_first_context(
    pair: MemoryPair, client: ServiceBusClient, span_exporter: InMemorySpanExporter
) -> None:
    client.pair.force_failover(QUEUE)
    async with client.get_queue_sender(QUEUE) as sender:
        await sender.send_messages(ServiceBusMessage("a", session_id=None, time_to_live=timedelta(hours=1)))
    await client.run_syphon(until="empty")
    (arrived,) = await taken(pair)
    (span,) = named(span_exporter, "ServiceBus.message")
    assert arrived.application_properties.keys() == ADDED
    assert span.context is not None
    assert str(arrived.application_properties["traceparent"])[36:52] == f"{span.context.span_id:016x}"


@pytest.mark.parametrize("name", sorted(ADDED))
async def test_message_with_a_context_keeps_it(
    pair: MemoryPair, client: ServiceBusClient, span_exporter: InMemorySpanExporter, name: str
) -> None:
    async with client.get_queue_sender(QUEUE) as sender:
        await sender.send_messages(ServiceBusMessage("a", application_properties={name: THEIRS}))
    (arrived,) = await taken(pair)
    assert arrived.application_properties == {name: THEIRS}
    assert named(span_exporter, "ServiceBus.message") == []
    (link,) = named(span_exporter, "ServiceBus.send")[0].links
    assert f"{link.context.span_id:016x}" == "0123456789abcdef"


@pytest.mark.parametrize("value", ["", "nonsense", "00-" + "0" * 32 + "-" + "0" * 16 + "-01", 7, None, "x" * 1000])
async def test_an_invalid_context_is_ignored(
    pair: MemoryPair, client: ServiceBusClient, span_exporter: InMemorySpanExporter, value: object
) -> None:
    properties = {"traceparent": value, "tracestate": ",,=;\x00"}
    client.pair.force_failover(QUEUE)
    async with client.get_queue_sender(QUEUE) as sender, client.get_queue_receiver(QUEUE) as receiver:
        await sender.send_messages(ServiceBusMessage("a", application_properties=properties))
        await client.run_syphon(until="empty")
        (arrived,) = await receiver.receive_messages()
        await receiver.complete_message(arrived)
    assert arrived.application_properties == properties
    assert all(not span.links for span in span_exporter.get_finished_spans())


async def test_without_a_tracer_provider_no_message_is_touched(pair: MemoryPair, client: ServiceBusClient) -> None:
    assert not tracing.is_on()
    with application.start_as_current_span("an order comes in"):
        async with client.get_queue_sender(QUEUE) as sender:
            await sender.send_messages(ServiceBusMessage("a"))
    (arrived,) = await taken(pair)
    assert arrived.application_properties == {}


async def test_the_context_of_a_message_can_be_the_parent_of_the_applications_own_span(
    client: ServiceBusClient, span_exporter: InMemorySpanExporter
) -> None:
    async with client.get_queue_sender(QUEUE) as sender, client.get_queue_receiver(QUEUE) as receiver:
        await sender.send_messages(ServiceBusMessage("a"))
        (message,) = await receiver.receive_messages()
        with application.start_as_current_span("handle it", context=tracing.context_of(message)) as own:
            await receiver.complete_message(message)
    (sent,), (complete,) = named(span_exporter, "ServiceBus.message"), named(span_exporter, "ServiceBus.complete")
    assert sent.context is not None
    assert own.get_span_context().trace_id == sent.context.trace_id
    assert parent_of(complete) == own.get_span_context().span_id


# -- sizes -------------------------------------------------------------------------------------------------------------


def of_size(size: int, **attributes: str) -> ServiceBusMessage:
    message = ServiceBusMessage(b"", message_id="1", **attributes)  # type: ignore[arg-type]
    message = ServiceBusMessage(b"x" * (size - size_of(message) - 3), message_id="1", **attributes)  # type: ignore[arg-type]
    assert size_of(message) == size
    return message


LARGEST = 256 * 1024


async def sent_alone(pair: MemoryPair, message: ServiceBusMessage) -> list[ServiceBusReceivedMessage]:
    async with pair.unpaired_client() as client, client.get_queue_sender(QUEUE) as sender:
        await sender.send_messages(message)
    return await taken(pair)


async def test_a_message_at_the_edge_of_the_size_is_sent_without_its_context(
    pair: MemoryPair, span_exporter: InMemorySpanExporter
) -> None:
    (edge,) = await sent_alone(pair, of_size(LARGEST))
    assert edge.application_properties == {}
    (below,) = await sent_alone(pair, of_size(LARGEST - tracing.TRACE_BYTES))
    assert below.application_properties.keys() == ADDED
    with pytest.raises(MessageSizeExceededError):
        await sent_alone(pair, of_size(LARGEST + 1))


async def test_headers_at_the_edge_of_their_size_are_sent_without_a_context(
    pair: MemoryPair, span_exporter: InMemorySpanExporter
) -> None:
    def message(size: int) -> ServiceBusMessage:
        properties = {"first": "x" * 32_768, "second": "x" * size}
        return ServiceBusMessage(b"", message_id="1", application_properties=properties)

    with pytest.raises(MessageSizeExceededError):
        await sent_alone(pair, message(32_768))
    (edge,) = await sent_alone(pair, message(32_768 - 100))
    assert edge.application_properties.keys() == {"first", "second"}


async def test_a_list_at_the_edge_of_the_size_is_sent_without_contexts(
    pair: MemoryPair, span_exporter: InMemorySpanExporter
) -> None:
    async with pair.unpaired_client() as client, client.get_queue_sender(QUEUE) as sender:
        await sender.send_messages([of_size(LARGEST // 2 - 50), of_size(LARGEST // 2 - 50)])
    assert [message.application_properties for message in await taken(pair)] == [{}, {}]


async def test_diversion_at_the_size_limit_omits_the_context(
    pair: MemoryPair, span_exporter: InMemorySpanExporter
) -> None:
    async with pair.client(PairedNamespaceOptions(reserve_backlog_headroom=False)) as client:
        client.pair.force_failover(QUEUE)
        async with client.get_queue_sender(QUEUE) as sender:
            await sender.send_messages(of_size(LARGEST - 40))
            with pytest.raises(MessageSizeExceededError):
                await sender.send_messages(of_size(LARGEST - 20))
        await client.run_syphon(until="empty")
    (arrived,) = await taken(pair)
    assert arrived.application_properties == {}
    assert await dead_letters(pair) == []


async def test_batch_reserves_space_for_contexts(pair: MemoryPair, span_exporter: InMemorySpanExporter) -> None:
    async with pair.unpaired_client() as client, client.get_queue_sender(QUEUE) as sender:
        batch = await sender.create_message_batch()
        while batch.size_in_bytes < LARGEST - 1000:
            batch.add_message(ServiceBusMessage(b"x" * 500))
        with pytest.raises(MessageSizeExceededError):
            batch.add_message(ServiceBusMessage(b"x" * 1000))
        await sender.send_messages(batch)
    arrived = await taken(pair)
    assert len(arrived) == len(batch)
    assert {frozenset(message.application_properties) for message in arrived} == {frozenset(ADDED)}


async def test_a_message_that_the_primary_accepts_only_without_context_is_forwarded(
    span_exporter: InMemorySpanExporter,
) -> None:
    primary = MemoryNamespace("contoso", random=Random(1))
    secondary = MemoryNamespace("contoso-backup", random=Random(2), profile=PREM_2021)
    pair = MemoryPair(primary, secondary, Random(3))
    await make_queue(pair)
    async with pair.client(PairedNamespaceOptions(reserve_backlog_headroom=False)) as client:
        client.pair.force_failover(QUEUE)
        async with client.get_queue_sender(QUEUE) as sender:
            await sender.send_messages(of_size(LARGEST))
        await client.run_syphon(until="empty")
    (arrived,) = await taken(pair)
    assert arrived.application_properties == {}


# -- logs --------------------------------------------------------------------------------------------------------------


def trace_ids(records: Sequence[logging.LogRecord], event: str) -> list[str | None]:
    return [getattr(record, "trace_id", None) for record in records if vars(record)["event_name"] == event]


async def test_an_event_has_the_trace_id_of_its_own_message(
    pair: MemoryPair, span_exporter: InMemorySpanExporter, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "sbclient")
    with application.start_as_current_span("a request"):
        client = await pair.client(AT_ONCE).__aenter__()
    async with client, client.get_queue_sender(QUEUE) as sender:
        pair.primary.inject(Fault(FaultKind.DOWN))
        await sender.send_messages(ServiceBusMessage("a"))
        pair.primary.heal()
        await clock.sleep(66.0)
        with application.start_as_current_span("a manual decision") as own:
            client.pair.force_failover(QUEUE)
    (sent,) = named(span_exporter, "ServiceBus.message")
    assert sent.context is not None
    assert trace_ids(caplog.records, "failover.engaged") == [
        f"{sent.context.trace_id:032x}",
        f"{own.get_span_context().trace_id:032x}",
    ]
    assert trace_ids(caplog.records, "failover.recovered") == [None]  # the pinger's own, not of the first request
    assert not trace.get_current_span().get_span_context().is_valid
