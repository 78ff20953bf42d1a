"""Metrics and spans of messages with canaries leak nothing."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

from sbclient import prometheus
from sbclient.backlog import Backlog
from sbclient.errors import ServiceBusError, ServiceBusInternalError
from sbclient.message import ServiceBusMessage
from sbclient.testing import Fault, FaultKind, memory_pair
from tests.client.scene import options
from tests.secrets.canaries import BODY, PROPERTY, STATE
from tests.secrets.output_capture import OutputCapture, capture_output
from tests.secrets.test_runs import QUEUE, SESSIONS, make_entities, secret

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

pytestmark = pytest.mark.skipif(find_spec("opentelemetry") is None, reason="needs the extra `metrics`")


@pytest.fixture
def capture() -> Iterator[OutputCapture]:
    with capture_output() as capture:
        yield capture
        capture.check(at_least=20)


@pytest.fixture
def _measured() -> Iterator[None]:
    prometheus.start()
    yield
    prometheus.stop()


@pytest.mark.promise("client.secrets")
@pytest.mark.usefixtures("_measured")
async def test_metrics_and_spans_leak_no_canary(capture: OutputCapture, span_exporter: InMemorySpanExporter) -> None:
    pair = memory_pair(seed=1)
    async with pair.client(options(failover_interval=0)) as client:
        await make_entities(client)
        sender = client.get_queue_sender(QUEUE)
        await sender.send_messages([secret(), secret()])
        await sender.send_messages(
            ServiceBusMessage(BODY, application_properties={"traceparent": PROPERTY, "tracestate": f"a={PROPERTY}"})
        )
        await sender.schedule_messages(secret(), datetime.now(UTC) + timedelta(days=3000))
        async with client.get_queue_receiver(QUEUE) as receiver:
            first, second, third = await receiver.receive_messages(max_message_count=3)
            await receiver.complete_message(first)
            await receiver.dead_letter_message(second, reason="broken")
            await receiver.defer_message(third)
            await receiver.peek_messages()
            await receiver.receive_deferred_messages(third.sequence_number)
        await client.get_queue_sender(SESSIONS).send_messages(secret(session_id="a"))
        async with client.get_queue_receiver(SESSIONS, session_id="a") as receiver:
            assert receiver.session is not None
            await receiver.session.set_state(STATE)
        pair.primary.inject(Fault(FaultKind.ERROR, error=ServiceBusInternalError))
        await sender.send_messages(secret())
        pair.secondary.inject(Fault(FaultKind.DOWN))
        with capture.expecting(ServiceBusError, where="nowhere to go"):
            await sender.send_messages(secret(), timeout=20)
        pair.secondary.heal()
        pair.primary.heal()
        await client.run_syphon(until="empty")
        await Backlog(client.pair).survey()
        _, exposition = prometheus.exposition()
    for line in exposition.decode().splitlines():
        capture.add("metrics", line)
    spans = span_exporter.get_finished_spans()
    for span in spans:
        capture.add("a span", span.to_json())
        capture.add("a span", repr((span.name, span.attributes, span.events, span.status, span.links)))
    assert "sbclient_diverted_messages_total" in exposition.decode()
    assert {"ServiceBus.send", "sbclient.divert", "sbclient.drain"} <= {span.name for span in spans}
