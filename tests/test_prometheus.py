"""What Prometheus reads."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families

from sbclient import prometheus
from sbclient.telemetry import metrics


@pytest.fixture(autouse=True)
def _stopped_in_the_end() -> Iterator[None]:
    yield
    prometheus.stop()


def test_the_exposition_holds_what_was_measured_since_the_start() -> None:
    prometheus.start()
    prometheus.start()
    metrics.add(metrics.DIVERTED, 2, {metrics.DESTINATION: "exposed", **metrics.server("localhost:5672")})
    metrics.record(metrics.PING_DURATION, 0.5, {metrics.OUTCOME: "accepted"})
    content_type, text = prometheus.exposition()
    families = {family.name: family for family in text_string_to_metric_families(text.decode())}
    assert content_type.startswith("text/plain")
    samples = families["sbclient_diverted_messages"].samples
    (diverted,) = (sample for sample in samples if sample.labels["messaging_destination_name"] == "exposed")
    assert (diverted.name, diverted.value) == ("sbclient_diverted_messages_total", 2)
    assert diverted.labels["server_port"] == "5672"
    assert "sbclient_ping_duration_seconds" in families
    assert "process_resident_memory_bytes" in families


def test_what_was_measured_is_forgotten_when_it_is_stopped() -> None:
    prometheus.start()
    metrics.add(metrics.DIVERTED, 2, {})
    prometheus.stop()
    prometheus.stop()
    assert b"sbclient_diverted" not in prometheus.exposition()[1]
