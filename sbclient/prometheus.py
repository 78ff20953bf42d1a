"""The metrics of this process in the Prometheus exposition format; requires the extra `metrics`."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from sbclient.errors import InvalidOperationError
from sbclient.telemetry import metrics

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics import MeterProvider
    from prometheus_client import CollectorRegistry


def start() -> None:
    """Start collecting metrics for `exposition`. Safe to call twice.

    A meter provider of the application and the global registry of Prometheus are not affected.

    Raises:
        InvalidOperationError: the packages of the extra `metrics` are not installed.
    """
    _opened()


def stop() -> None:
    """Stop collecting metrics, and drop those collected. Safe to call twice."""
    if _opened.cache_info().currsize:
        _, provider = _opened()
        _opened.cache_clear()
        metrics.detach(provider)
        provider.shutdown()


def exposition() -> tuple[str, bytes]:
    """Return the content type and the body for a scrape: all metrics since `start`, or since the first call.

    Requires no event loop; may be called in any thread.

    Raises:
        InvalidOperationError: the packages of the extra `metrics` are not installed.
    """
    registry, _ = _opened()
    from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

    return CONTENT_TYPE_LATEST, generate_latest(registry)


@cache
def _opened() -> tuple[CollectorRegistry, MeterProvider]:
    try:
        from opentelemetry.exporter.prometheus import PrometheusMetricReader
        from opentelemetry.sdk.metrics import MeterProvider
        from prometheus_client import CollectorRegistry, ProcessCollector
    except ImportError as error:
        raise InvalidOperationError(
            f"metrics require the package {error.name}: install the extra `metrics`, in a checkout of this "
            "package with python -m pip install '.[metrics]'"
        ) from error
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    reader = PrometheusMetricReader(registry=registry, disable_target_info=True)
    provider = MeterProvider(metric_readers=[reader], shutdown_on_exit=False)
    metrics.attach(provider)
    return registry, provider
