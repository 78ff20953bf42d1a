"""The door to OpenTelemetry's traces: whose provider counts, and what it costs when there is none."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import get_current_span

from sbclient.amqp import encode_message
from sbclient.message import ServiceBusMessage
from sbclient.tasks import OwnedTasks
from sbclient.telemetry import tracing
from tests.fresh_process import output_of
from tests.payloads import size_of

application = TracerProvider(shutdown_on_exit=False).get_tracer("an application")


def test_opentelemetry_is_not_imported_unless_enabled() -> None:
    code = """
import sys
import sbclient.client.client
from sbclient.telemetry import tracing
with tracing.sending(tracing.SEND, [], {}, 0):
    pass
print(tracing.is_on(), tracing.ids(), tracing.outside(), [name for name in sys.modules if "opentelemetry" in name])
"""
    assert output_of(code) == "False {} None []"


def test_the_api_alone_or_a_provider_that_does_nothing_switches_nothing_on() -> None:
    code = """
from opentelemetry import trace
from sbclient.telemetry import tracing
print(tracing.is_on())
trace.set_tracer_provider(trace.NoOpTracerProvider())
print(tracing.is_on())
"""
    assert output_of(code) == "False\nFalse"


def test_the_global_provider_is_used_from_when_it_is_set() -> None:
    code = """
from opentelemetry import trace
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from sbclient.telemetry import tracing
before = tracing.is_on()
trace.set_tracer_provider(TracerProvider())
print(before, tracing.is_on())
"""
    assert output_of(code) == "False True"


def test_a_message_that_is_not_sampled_has_an_unsampled_context() -> None:
    message = ServiceBusMessage("a")
    tracing.attach(TracerProvider(sampler=ALWAYS_OFF, shutdown_on_exit=False))
    try:
        asyncio.run(_sign(message))
    finally:
        tracing.detach()
    flags = int(str(message.application_properties["traceparent"])[-2:], 16)
    assert flags & 1 == 0


async def _sign(message: ServiceBusMessage) -> None:
    sent = [encode_message(message)]
    with tracing.sending(tracing.SEND, sent, {}, tracing.TRACE_BYTES):
        pass
    message.application_properties.update(sent[0].application_properties)


async def test_a_message_is_signed_if_the_context_fits(span_exporter: InMemorySpanExporter) -> None:
    for properties in ({}, {"own": "x" * 300}, {"own": "x" * 250}):
        message = ServiceBusMessage("a", application_properties=properties)
        before = size_of(message)
        sent = [encode_message(message)]
        with tracing.sending(tracing.SEND, sent, {}, tracing.TRACE_BYTES - 1):
            assert sent[0].size_bytes == before
        with tracing.sending(tracing.SEND, sent, {}, tracing.TRACE_BYTES):
            assert 0 < sent[0].size_bytes - before <= tracing.TRACE_BYTES


async def test_a_context_with_a_state_is_left_out_where_the_state_does_not_fit() -> None:
    context = trace.SpanContext(1, 1, False, trace.TraceFlags(1), trace.TraceState([("vendor", "x" * 250)]))
    for room_bytes, expected in ((tracing.TRACE_BYTES, set()), (1000, {"Diagnostic-Id", "traceparent", "tracestate"})):
        signed = tracing.signed(encode_message(ServiceBusMessage("a")), trace.NonRecordingSpan(context), room_bytes)
        assert signed.application_properties.keys() == expected


async def test_background_work_is_not_part_of_the_callers_span() -> None:
    tasks = OwnedTasks()

    async def work() -> bool:
        return get_current_span().get_span_context().is_valid

    with application.start_as_current_span("a request") as span:
        assert await tasks.start(work(), name="work") is False
        assert tracing.ids()["trace_id"] == f"{span.get_span_context().trace_id:032x}"
    assert tracing.ids() == {}


@given(st.dictionaries(st.sampled_from(["traceparent", "tracestate", "Diagnostic-Id"]), st.text() | st.integers(0, 9)))
def test_any_context_properties_can_be_read(properties: dict[str, str | int]) -> None:
    try:
        message = ServiceBusMessage("a", application_properties=properties)
    except ValueError:
        return  # what cannot be encoded never travels
    assert (
        tracing.context_of(encode_message(message)) is None
        or "traceparent" in properties
        or "Diagnostic-Id" in properties
    )
