"""The table of benchmarks: ratios between this package and azure-servicebus, or another measure, in one run.

    python -m tests.benchmarks [--pairs 5] [--quick] [--json] [ROW ...]

Without names all rows run. The exit status is 1 if a row misses its bound. `python -m tests.benchmarks NAME
[ARGUMENTS]` with one of the further names runs a benchmark that is not in the table.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import runpy
import sys
from collections.abc import Awaitable, Callable, Sequence
from importlib import import_module
from statistics import median
from typing import Any, Final

from tests.benchmarks.row import Result, Row, Sample, Settings

FURTHER: Final = (
    "data",
    "entered",
    "failover",
    "fixtures",
    "growth",
    "limits",
    "observed",
    "spark_cluster",
    "spark_endurance",
    "spark_kills",
    "worker_days",
)


def _measure(module: str, function: str) -> Callable[[Settings], Awaitable[Result]]:
    """Return a measurement whose module, with its clients, is imported when it runs."""

    async def measure(settings: Settings) -> Result:
        found: Callable[[Settings], Awaitable[Result]] = getattr(import_module(f"{__package__}.{module}"), function)
        return await found(settings)

    return measure


def _spark(function: str) -> Callable[[Settings], Awaitable[Result]]:
    """Return a measurement with Spark."""

    async def measure(settings: Settings) -> Result:
        try:
            spark = import_module(f"{__package__}.spark")
        except ImportError as error:
            return Result(not_run=f"{error.name} is not installed")
        result: Result = await asyncio.to_thread(getattr(spark, function), settings)
        return result

    return measure


ROWS: Final = (
    Row(
        "send-one-by-one",
        "one awaited send after another, paired client / azure-servicebus",
        2.0,
        _measure("sending", "send_one_by_one"),
    ),
    Row(
        "send-concurrent",
        "256 callers of one sender / azure-servicebus, one send after another",
        15.0,
        _measure("sending", "send_concurrent"),
    ),
    Row("send-lists", "lists of 500 / azure-servicebus, lists of 100", 7.0, _measure("sending", "send_lists")),
    Row(
        "receive-complete",
        "receive 100, complete them concurrently, each side in its fastest way / azure-servicebus",
        6.0,
        _measure("receiving", "receive_complete"),
    ),
    Row(
        "receive-command",
        "the command `sbclient receive` / the command `sbclient send`, with their start-up",
        1.0,
        _measure("commands", "receive_command"),
    ),
    Row(
        "send-sessions",
        "the command `sbclient send`, rows of 500 sessions / of one session",
        0.85,
        _measure("commands", "send_sessions"),
    ),
    Row(
        "sessions",
        "accept and drain sessions of 4 messages / azure-servicebus, 8 at a time",
        20.0,
        _measure("receiving", "sessions"),
    ),
    Row("divert", "sends to a failed-over queue / to a healthy queue", 0.95, _measure("sending", "divert")),
    Row(
        "failover-latency",
        "latency of the first diverted send / of a healthy send, medians",
        3.0,
        _measure("sending", "failover_latency"),
        is_most=True,
    ),
    Row("syphon", "drain the backlog / a loop with azure-servicebus", 6.0, _measure("draining", "syphon")),
    Row(
        "syphon-sessions",
        'drain ordered sessions / the same with transport="sdk"',
        20.0,
        _measure("draining", "syphon_sessions"),
    ),
    Row(
        "memory",
        "processor time of send, receive and complete at memory:// / put and get of asyncio.Queue",
        100.0,
        _measure("receiving", "memory"),
        is_most=True,
    ),
    Row(
        "connections",
        "TCP connections of 500 senders and 500 receivers",
        1.0,
        _measure("receiving", "connections"),
        is_most=True,
    ),
    Row(
        "administration",
        "processor time to describe, count and update a queue / azure-servicebus",
        1.0,
        _measure("administering", "calls"),
        is_most=True,
    ),
    Row(
        "administration-lists",
        "processor time of lists of queues and of their counts / azure-servicebus",
        0.5,
        _measure("administering", "lists"),
        is_most=True,
    ),
    Row(
        "clients",
        "processor time of the client to send, receive and complete a message / qpid-proton",
        0.5,
        _measure("clients", "clients"),
        is_most=True,
    ),
    Row(
        "emulator",
        "processor time of the emulator for each message / of RabbitMQ",
        1.0,
        _measure("proton", "emulator"),
        is_most=True,
    ),
    Row(
        "spark",
        "processor time of the workers: foreachPartition with azure-servicebus / the writer",
        8.0,
        _spark("row"),
    ),
    Row(
        "spark-sessions",
        "rows per second of the ordered writer: as many sessions as rows / one session per partition",
        0.5,
        _spark("sessions"),
    ),
    Row(
        "spark-read",
        "messages per second of a batch read: sessions of 20 messages / a plain queue",
        0.5,
        _spark("reads"),
    ),
    Row(
        "spark-stream-sessions",
        "messages per second of a stream that receives: sessions of 20 messages / a plain queue",
        0.5,
        _spark("stream_sessions"),
    ),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the rows that the arguments name; return the exit status."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given and given[0] in FURTHER:
        sys.argv[1:] = given[1:]
        runpy.run_module(f"{__package__}.{given[0]}", run_name="__main__", alter_sys=True)
        return 0
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks",
        description=f"Rows: {', '.join(row.name for row in ROWS)}. Further names: {', '.join(FURTHER)}.",
    )
    parser.add_argument("rows", nargs="*", metavar="ROW", help="default: all")
    parser.add_argument("--pairs", type=int, default=5, help="pairs of runs after the warm-up, default 5")
    parser.add_argument("--quick", action="store_true", help="one pair of few messages; bounds are not checked")
    parser.add_argument("--json", action="store_true", help="print a list of objects, one for each row")
    options = parser.parse_args(given)
    rows = {row.name: row for row in ROWS}
    if unknown := [name for name in options.rows if name not in rows]:
        parser.error(f"there is no row {', '.join(unknown)}: choose from {', '.join(rows)}")
    if options.pairs < 1:
        parser.error(f"--pairs is {options.pairs}: it must be at least 1")
    settings = Settings(1 if options.quick else options.pairs, options.quick)
    reports = []
    for name in options.rows or rows:
        result = asyncio.run(_measured(rows[name], settings))
        reports.append(report(rows[name], result, settings))
        if not options.json:
            print(as_text(reports[-1]), flush=True)
    if options.json:
        print(json.dumps(reports, indent=2))
    return 1 if any(each["status"] == "missed" for each in reports) else 0


async def _measured(row: Row, settings: Settings) -> Result:
    return await row.measure(settings)


def report(row: Row, result: Result, settings: Settings) -> dict[str, Any]:
    """Return the result of a row as JSON values."""
    misses = [] if settings.quick else row.misses(result)
    status = "not run" if result.not_run is not None else "missed" if misses else "quick" if settings.quick else "met"
    return {
        "name": row.name,
        "compared": row.text,
        "bound": f"{'at most' if row.is_most else 'at least'} {row.bound:g}",
        "status": status,
        "reason": result.not_run,
        "misses": misses,
        "ratio": median(result.ratios) if result.ratios else None,
        "range": [min(result.ratios), max(result.ratios)] if result.ratios else None,
        "sides": {name: _side(samples) for name, samples in result.sides.items()},
        "notes": list(result.notes),
    }


def _side(samples: Sequence[Sample]) -> dict[str, float]:
    """Return the medians of the samples of one side, and its peaks of memory."""
    return {
        "messages": samples[0].count,
        "messages_per_s": median(each.rate for each in samples),
        **({} if samples[0].latency_s is None else {"latency_us": median(each.each_s for each in samples) * 1e6}),
        "client_us": median(each.client_s / each.count for each in samples) * 1e6,
        "server_us": median(each.server_s / each.count for each in samples) * 1e6,
        "client_mib": max(each.client_mib for each in samples),
        "server_mib": max(each.server_mib for each in samples),
    }


def as_text(found: dict[str, Any]) -> str:
    """Return the lines of a row for a terminal."""
    if found["ratio"] is None:
        head = f"{found['name']}: not run ({found['reason']})"
    else:
        low, high = found["range"]
        ratio = f"{found['ratio']:.2f} ({low:.2f} to {high:.2f}), {found['bound']}"
        head = f"{found['name']}: {ratio}: {found['status']}"
    lines = [head, f"    {found['compared']}"]
    for name, side in found["sides"].items():
        latency = f"   latency {side['latency_us']:,.0f} µs" if "latency_us" in side else ""
        lines.append(
            f"    {name:32} {side['messages_per_s']:10,.0f} messages/s{latency}   "
            f"processor time client {side['client_us']:7.1f} µs, server {side['server_us']:7.1f} µs   "
            f"peak memory client {side['client_mib']:4.0f} MiB, server {side['server_mib']:4.0f} MiB"
        )
    lines += [f"    {note}" for note in found["notes"]]
    lines += [f"    missed: {miss}" for miss in found["misses"]]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
