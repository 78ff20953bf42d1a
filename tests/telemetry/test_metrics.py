"""The table of instruments, its readers, and its cost without a reader."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from random import Random
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from sbclient.telemetry import metrics
from tests.fresh_process import output_of
from tests.measured import values


class Lamp:
    """Something with a state."""

    def __init__(self, value: float, instrument: metrics.Instrument = metrics.QUARANTINED) -> None:
        self.value = value
        self._instrument = instrument

    def measured(self) -> Iterable[tuple[metrics.Instrument, float, Mapping[str, str | int]]]:
        yield self._instrument, self.value, {metrics.DESTINATION: "backlog"}


def test_attached_provider_gets_measurements(metric_reader: InMemoryMetricReader) -> None:
    metrics.add(metrics.DIVERTED, 2, {metrics.DESTINATION: "orders"})
    metrics.add(metrics.DIVERTED, 3, {metrics.DESTINATION: "orders"})
    metrics.add(metrics.DIVERTED, 1, {metrics.DESTINATION: "bills"})
    assert values(metric_reader, metrics.DIVERTED, metrics.DESTINATION) == {"orders": 5, "bills": 1}


def test_a_histogram_has_buckets_up_to_the_longest_send(metric_reader: InMemoryMetricReader) -> None:
    metrics.record(metrics.OPERATION_DURATION, 45.0, {})
    (point,) = metric_reader.get_metrics_data().resource_metrics[0].scope_metrics[0].metrics[0].data.data_points  # type: ignore[union-attr]
    assert (point.sum, point.explicit_bounds[-1], point.bucket_counts[-2:]) == (45.0, 60.0, (1, 0))  # type: ignore[union-attr]


def test_detached_provider_gets_no_measurements(metric_reader: InMemoryMetricReader) -> None:
    other = InMemoryMetricReader()
    provider = MeterProvider(metric_readers=[other], shutdown_on_exit=False)
    metrics.attach(provider)
    metrics.attach(provider)
    metrics.add(metrics.DIVERTED, 1, {})
    metrics.detach(provider)
    metrics.detach(provider)
    metrics.add(metrics.DIVERTED, 1, {})
    assert values(other, metrics.DIVERTED) == {None: 1}
    assert values(metric_reader, metrics.DIVERTED) == {None: 2}


def test_each_reader_gets_what_is_measured_while_it_is_attached() -> None:
    """Random histories of two readers and two objects, which are attached and watched again and again."""
    for seed in range(30):
        random, instruments = Random(seed), (metrics.DIVERTED, metrics.QUARANTINED)
        readers = [InMemoryMetricReader() for _ in range(2)]
        providers = [MeterProvider(metric_readers=[reader], shutdown_on_exit=False) for reader in readers]
        lamps, counts = [Lamp(1), Lamp(10)], [0, 0]
        attached, watched = set[int](), set[int]()
        try:
            for _ in range(20):
                which = random.randrange(2)
                match random.randrange(5):
                    case 0:
                        metrics.attach(providers[which])
                        attached.add(which)
                    case 1:
                        metrics.detach(providers[which])
                        attached.discard(which)
                    case 2:
                        metrics.watch(lamps[which])
                        watched.add(which)
                    case 3:
                        metrics.unwatch(lamps[which])
                        watched.discard(which)
                    case _:
                        metrics.add(metrics.DIVERTED, 1, {})
                        counts = [count + (number in attached) for number, count in enumerate(counts)]
                assert metrics.is_read() >= bool(attached), seed
            lit = sum(lamps[which].value for which in watched)
            for number, reader in enumerate(readers):
                metrics.attach(providers[number])  # one that never was has no instruments
                shown = [values(reader, instrument).get(None, 0) for instrument in instruments]
                assert shown == [counts[number], lit], seed
        finally:
            for provider, lamp in zip(providers, lamps, strict=True):
                metrics.detach(provider)
                metrics.unwatch(lamp)


def test_states_are_collected_by_readers_in_any_thread(metric_reader: InMemoryMetricReader) -> None:
    lamp = Lamp(1)
    metrics.watch(lamp)
    metrics.watch(lamp)
    found: list[Any] = []
    thread = threading.Thread(
        target=lambda: found.append(values(metric_reader, metrics.QUARANTINED, metrics.DESTINATION))
    )
    thread.start()
    thread.join()
    lamp.value = 0
    found.append(values(metric_reader, metrics.QUARANTINED, metrics.DESTINATION))
    metrics.unwatch(lamp)
    metrics.unwatch(lamp)
    found.append(values(metric_reader, metrics.QUARANTINED, metrics.DESTINATION))
    assert found == [{"backlog": 1}, {"backlog": 0}, {}]


def test_states_with_the_same_attributes_add_up_and_of_gauges_the_largest_counts(
    metric_reader: InMemoryMetricReader,
) -> None:
    lamps = [Lamp(value, instrument) for value in (1, 2) for instrument in (metrics.QUARANTINED, metrics.BACKLOG_AGE)]
    for lamp in lamps:
        metrics.watch(lamp)
    assert values(metric_reader, metrics.QUARANTINED) == {None: 3}
    assert values(metric_reader, metrics.BACKLOG_AGE) == {None: 2}


def test_an_unreferenced_object_is_unregistered(metric_reader: InMemoryMetricReader) -> None:
    metrics.watch(Lamp(1))
    assert values(metric_reader, metrics.QUARANTINED) == {}


def test_names_are_those_of_the_conventions_or_our_own_and_said_once() -> None:
    names = [instrument.name for instrument in metrics.INSTRUMENTS]
    assert len(set(names)) == len(names)
    assert all(name.startswith(("messaging.client.", "sbclient.")) for name in names)
    assert not [name for name in names for other in names if other.startswith(f"{name}.")]


@pytest.mark.parametrize(
    ("namespace", "attributes"),
    [
        ("contoso.servicebus.windows.net", {"server.address": "contoso.servicebus.windows.net"}),
        ("localhost:5672", {"server.address": "localhost", "server.port": 5672}),
        ("127.0.0.1:5672", {"server.address": "127.0.0.1", "server.port": 5672}),
        ("[::1]:5672", {"server.address": "[::1]", "server.port": 5672}),
        ("my-host.example:1", {"server.address": "my-host.example", "server.port": 1}),
        ("memory://contoso", {"server.address": "memory://contoso"}),
    ],
)
def test_a_namespace_is_named_by_host_and_port(namespace: str, attributes: dict[str, str | int]) -> None:
    assert metrics.server(namespace) == attributes


def test_opentelemetry_is_not_imported_unless_enabled() -> None:
    code = """
import sys
import sbclient.client.client
from sbclient.telemetry import metrics
metrics.add(metrics.DIVERTED, 1, {})
print(metrics.is_read(), [name for name in sys.modules if name.startswith("opentelemetry")])
"""
    assert output_of(code) == "False []"


def test_everything_works_without_the_packages() -> None:
    code = """
import sys
sys.modules["opentelemetry"] = sys.modules["prometheus_client"] = None
from sbclient import ServiceBusMessage, prometheus
from sbclient.errors import InvalidOperationError
from sbclient.testing import memory_pair, run_virtual
async def main():
    pair = memory_pair(seed=1)
    async with pair.client() as client:
        await client.administration.create_queue("orders")
        async with client.get_queue_sender("orders") as sender:
            await sender.send_messages(ServiceBusMessage("a"))
run_virtual(main())
try:
    prometheus.exposition()
except InvalidOperationError as error:
    print(error)
"""
    assert output_of(code).endswith("python -m pip install '.[metrics]'")


def test_the_global_provider_reads_from_when_it_is_set_also_states_that_are_older() -> None:
    code = """
from opentelemetry import metrics as api
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from sbclient.telemetry import metrics
from tests.fresh_process import output_of
from tests.measured import values
from sbclient.testing import memory_pair, run_virtual
async def main():
    async with memory_pair(seed=1).client() as client:
        client.pair.state.entity("orders")
        metrics.add(metrics.DIVERTED, 1, {})
        before = metrics.is_read()
        reader = InMemoryMetricReader()
        api.set_meter_provider(MeterProvider(metric_readers=[reader]))
        print(before, metrics.is_read())
        print(values(reader, metrics.FAILOVER_STATE, metrics.STATE))
        metrics.add(metrics.DIVERTED, 2, {})
        print(values(reader, metrics.DIVERTED))
run_virtual(main())
"""
    assert output_of(code).splitlines() == [
        "False True",
        "{'healthy': 1.0, 'suspect': 0.0, 'failed_over': 0.0}",
        "{None: 2}",
    ]


def test_a_provider_that_measures_nothing_does_not_enable_metrics() -> None:
    code = """
from opentelemetry import metrics as api
from sbclient.telemetry import metrics
metrics.add(metrics.DIVERTED, 1, {})
api.set_meter_provider(api.NoOpMeterProvider())
print(metrics.is_read())
"""
    assert output_of(code) == "False"
