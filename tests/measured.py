"""What an in-memory reader of metrics holds, in a form to compare."""

from __future__ import annotations

from typing import Any

from opentelemetry.sdk.metrics.export import HistogramDataPoint, InMemoryMetricReader

from sbclient.telemetry.metrics import Instrument


def values(reader: InMemoryMetricReader, instrument: Instrument, *attributes: str) -> dict[Any, float]:
    """The value of each series, of a histogram its count, by these attributes: by one, by a tuple of many, or None."""
    found: dict[Any, float] = {}
    data = reader.get_metrics_data()
    for resource in data.resource_metrics if data is not None else ():
        for metric in (metric for scope in resource.scope_metrics for metric in scope.metrics):
            for point in metric.data.data_points if metric.name == instrument.name else ():
                assert set(point.attributes or {}) <= set(instrument.attributes)
                every = tuple((point.attributes or {}).get(name) for name in attributes)
                key = every[0] if len(every) == 1 else every or None
                value = point.count if isinstance(point, HistogramDataPoint) else getattr(point, "value", 0)
                found[key] = found.get(key, 0) + value
    return found
