"""The cost of telemetry: a pair, an outage and a syphon, without telemetry, with metrics, with traces, with both.

    python -m tests.benchmarks.observed [messages] [rounds]

Each variant runs in its own processes, alternately; the fastest run of each counts. Time is virtual, the cost is real:
microseconds for each message, and the ratio to the run without telemetry.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Final

from sbclient.telemetry import metrics, tracing
from sbclient.testing import run_virtual
from tests.benchmarks.failover import passed_through

WAYS: Final = {
    "unobserved": "OpenTelemetry is not imported",
    "imported": "it is, but has no provider",
    "metrics": "a meter provider reads",
    "traces": "a tracer provider gets every span",
    "both": "both",
}
STEPS: Final = ("send", "divert", "drain", "receive")


def watched(way: str) -> None:
    """Switch on what this way has."""
    if way == "unobserved":
        return
    from opentelemetry import metrics as _metrics_api  # noqa: F401
    from opentelemetry import trace as _trace_api  # noqa: F401

    if way in ("metrics", "both"):
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import InMemoryMetricReader

        metrics.attach(MeterProvider(metric_readers=[InMemoryMetricReader()], shutdown_on_exit=False))
    if way in ("traces", "both"):
        from opentelemetry.sdk.trace import SpanProcessor, TracerProvider

        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SpanProcessor())
        tracing.attach(provider)


def measured(way: str, messages: int) -> dict[str, float]:
    """Run once in this process; returns microseconds by step."""
    watched(way)
    result = run_virtual(passed_through(messages))
    assert result.lost == 0
    return {step: getattr(result, f"{step}_us") for step in STEPS}


def main() -> None:
    messages = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 5
    if len(sys.argv) > 3:
        print(json.dumps(measured(sys.argv[3], messages)))
        return
    best: dict[str, dict[str, float]] = {}
    for _ in range(rounds):
        for way in WAYS:
            command = [sys.executable, "-m", "tests.benchmarks.observed", str(messages), "1", way]
            found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
            before = best.setdefault(way, found)
            best[way] = {step: min(before[step], found[step]) for step in STEPS}
    base = best["unobserved"]
    print(f"microseconds for each of {messages:,} messages, the fastest of {rounds}; ratio to unobserved")
    print(f"{'':10}" + "".join(f"{step:>16}" for step in (*STEPS, "in all")))
    for way, each in best.items():
        cells = [f"{each[step]:8.1f} {each[step] / base[step]:6.2f}×" for step in STEPS]
        total, base_total = sum(each.values()), sum(base.values())
        print(f"{way:10}" + "".join(f"{cell:>16}" for cell in [*cells, f"{total:8.1f} {total / base_total:6.2f}×"]))
    print("\n".join(f"{way}: {meaning}" for way, meaning in WAYS.items()))


if __name__ == "__main__":
    main()
