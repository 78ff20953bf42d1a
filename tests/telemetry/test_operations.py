"""Work that is watched is the same work: its answers, errors and cancellations go through."""

from __future__ import annotations

import asyncio

import pytest
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from sbclient import clock
from sbclient.amqp import encode_message
from sbclient.errors import InvalidOperationError, OperationTimeoutError
from sbclient.message import ServiceBusMessage
from sbclient.telemetry import metrics
from sbclient.telemetry.operations import BACKLOG, Telemetry, result_of
from tests.measured import values

MESSAGES = [encode_message(ServiceBusMessage(text)) for text in "ab"]


@pytest.fixture
def telemetry() -> Telemetry:
    return Telemetry("localhost:5672", "orders")


async def work(answer: object, *, takes_s: float = 0.0) -> object:
    await clock.sleep(takes_s)
    if isinstance(answer, Exception):
        raise answer
    return answer


async def test_work_is_returned_unchanged_if_telemetry_is_disabled(
    telemetry: Telemetry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sbclient.telemetry.operations.OPENTELEMETRY", "a package that is not imported")
    sending = work("backlog")
    assert telemetry.sending("send", MESSAGES, lambda: sending) is sending
    assert await sending == "backlog"


async def test_answers_and_errors_go_through(telemetry: Telemetry, metric_reader: InMemoryMetricReader) -> None:
    assert await telemetry.sending("send", MESSAGES, lambda: work(BACKLOG)) == BACKLOG
    assert await telemetry.sending("schedule", MESSAGES, lambda: work([7, 8])) == [7, 8]
    with pytest.raises(OperationTimeoutError):
        await telemetry.sending("send", MESSAGES, lambda: work(OperationTimeoutError("late")))
    assert values(metric_reader, metrics.SENT, metrics.OPERATION, metrics.ROUTE, metrics.OUTCOME, metrics.PORT) == {
        ("send", "backlog", "accepted", 5672): 2,
        ("schedule", "primary", "accepted", 5672): 2,
        ("send", "primary", "in_doubt", 5672): 2,
    }


async def test_error_is_attributed_to_the_route_at_its_time(metric_reader: InMemoryMetricReader) -> None:
    telemetry = Telemetry("memory://contoso", "orders", route=lambda: BACKLOG)
    with pytest.raises(InvalidOperationError):
        await telemetry.sending("send", MESSAGES, lambda: work(InvalidOperationError("no")))
    assert values(metric_reader, metrics.SENT, metrics.ROUTE, metrics.OUTCOME) == {("backlog", "refused"): 2}


async def test_a_call_that_is_cancelled_is_in_doubt(
    telemetry: Telemetry, metric_reader: InMemoryMetricReader, span_exporter: InMemorySpanExporter
) -> None:
    call = asyncio.ensure_future(telemetry.sending("send", MESSAGES, lambda: work(None, takes_s=10.0)))
    await clock.sleep(1.0)
    call.cancel()
    await asyncio.wait([call])
    assert call.cancelled()
    assert values(metric_reader, metrics.SENT, metrics.OUTCOME, metrics.ERROR) == {("in_doubt", "CancelledError"): 2}
    (span,) = [span for span in span_exporter.get_finished_spans() if span.name == "ServiceBus.send"]
    assert span.status.status_code is StatusCode.ERROR


@pytest.mark.parametrize(
    ("error", "result"),
    [
        (None, {"sbclient.outcome": "accepted"}),
        (InvalidOperationError("no"), {"sbclient.outcome": "refused", "error.type": "InvalidOperationError"}),
        (OperationTimeoutError("late"), {"sbclient.outcome": "in_doubt", "error.type": "OperationTimeoutError"}),
    ],
)
def test_the_result_of_an_operation(error: Exception | None, result: dict[str, str]) -> None:
    assert result_of(error) == result
