"""Rows per second from Spark into a queue: the writer, and `foreachPartition` with azure-servicebus.

    python -m tests.benchmarks.spark [--rows 200000] [--rounds 3]

The same rows, with a body of 200 bytes and a message id, in the same two partitions, go by turns to a new queue of the
same kind on one emulator, a process of its own: by the writer, with and without a secondary; by `foreachPartition`
with azure-servicebus that sends lists of 100; and by one that sends each row for itself. What is timed is the whole
action, from the call to the last acknowledgement; then the queue must hold every row. Of each way the fastest round
counts, the least disturbed one; row by row has one. Beside it, for a machine that is shared, stands what a row costs in
microseconds of the processor: in Spark, with Java and all workers, and in the emulator.

What differs: the writer keeps its connections from one job to the next and has several transfers under way, each as
large as the queue takes; the others connect for each partition and wait for the answer to each list, or row. On one
machine an answer takes no time on its way; with a network in between, waiting for it costs the others more.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple, Protocol

from pyspark.sql import DataFrame, SparkSession

import sbclient_spark
from sbclient.amqp import BATCH_FORMAT
from sbclient.message import ServiceBusMessage
from tests.benchmarks.engine_client import EngineClient
from tests.benchmarks.row import Result, Settings
from tests.payloads import batch_of
from tests.stage.namespaces import Namespace, connection_string

ROOT: Final = Path(__file__).parents[2]
PARTITIONS: Final = 2
BODY_BYTES: Final = 200
LIST_ROWS: Final = 100
RAW_BATCH: Final = 500
SESSION_ROWS: Final = 20
RATE_BOUND: Final = 8.0
RAW_BOUND: Final = 0.8
"""The rate of the writer must reach one of the two: so many times that of lists, or this part of a raw sender's."""

SLOWEST: Final = "foreachPartition, row by row"
"""One round of it takes longer than all others together, and is enough."""

TICKS: Final = os.sysconf("SC_CLK_TCK")

Write = Callable[[DataFrame, str], None]


class Round(NamedTuple):
    """Rows per second; microseconds of processor time for a row in Spark, in the broker, in the Python workers."""

    rate: float
    spark_us: float
    broker_us: float
    workers_us: float


@contextmanager
def session(folder: str, master: str = f"local[{PARTITIONS}]", **settings: str) -> Iterator[SparkSession]:
    """A Spark session that runs this tree and leaves nothing behind."""
    os.environ |= {"PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    sbclient_spark.ensure_java()
    builder = SparkSession.builder.master(master).appName("benchmark").config("spark.ui.enabled", "false")
    builder = builder.config("spark.local.dir", folder).config("spark.sql.warehouse.dir", f"{folder}/warehouse")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    sbclient_spark.register(spark)
    try:
        yield spark
    finally:
        spark.stop()


class Broker(Protocol):
    """What a measurement of a write asks of a broker."""

    def queue(self, name: str, **properties: Any) -> None: ...
    def count_and_delete(self, name: str) -> int: ...
    def busy_s(self) -> tuple[float, float, float]: ...


class Emulated:
    """Two namespaces of one emulator each, and the queues of a run."""

    def __init__(self, folder: str) -> None:
        self.primary, self.secondary = (Namespace(name, Path(folder)) for name in ("contoso", "contoso-backup"))

    def __enter__(self) -> Emulated:
        for namespace in (self.primary, self.secondary):
            asyncio.run(namespace.begin())
        return self

    def __exit__(self, *_: object) -> None:
        self.primary.kill()
        self.secondary.kill()

    def queue(self, name: str, **properties: Any) -> None:
        asyncio.run(self._administer(lambda queues: queues.create_queue(name, **properties)))

    def count_and_delete(self, name: str) -> int:
        async def both(queues: Any) -> int:
            count: int = (await queues.get_queue_runtime_properties(name)).active_message_count
            await queues.delete_queue(name)
            return count

        count: int = asyncio.run(self._administer(both))
        return count

    def busy_s(self) -> tuple[float, float, float]:
        return busy_s(self.primary.process_id, self.secondary.process_id)

    async def _administer(self, work: Callable[[Any], Any]) -> Any:
        async with self.primary.client() as client:
            return await work(client.administration)


def busy_s(broker: int, *others: int) -> tuple[float, float, float]:
    """Return the processor time of all processes below this one but the brokers, of the first broker, and of those of
    the first that run Python, which are the workers. Each includes its children that have ended."""
    spent, parents, names = {}, {}, {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended
            head, _, tail = path.read_text().rpartition(")")
            fields = tail.split()
            process = int(path.parent.name)
            parents[process], spent[process] = int(fields[1]), sum(map(int, fields[11:15])) / TICKS
            names[process] = head.partition("(")[2]
    below = {process for process in parents if _is_below(process, parents)} - {broker, *others}
    workers = {process for process in below if names[process].startswith("python")}
    return sum(spent[process] for process in below), spent[broker], sum(spent[each] for each in workers)


def _is_below(process: int, parents: dict[int, int]) -> bool:
    while process in parents:
        process = parents[process]
        if process == os.getpid():
            return True
    return False


def by_the_writer(primary: str, secondary: str | None, **more: str) -> Write:
    options = {"connectionString": primary, "requireDuplicateDetection": "off", **more}
    if secondary is not None:
        options["secondaryConnectionString"] = secondary

    def write(df: DataFrame, queue: str) -> None:
        df.write.format("servicebus").mode("append").options(**options, queue=queue).save()

    return write


def by_lists(primary: str, rows_each: int) -> Write:
    """As it is written today, with azure-servicebus in each partition; lists of 1 are one send for each row."""

    def write(df: DataFrame, queue: str) -> None:
        has_sessions = "session_id" in df.columns

        def send(rows: Iterator[Any]) -> None:
            from azure.servicebus import ServiceBusClient, ServiceBusMessage

            with ServiceBusClient.from_connection_string(primary) as client, client.get_queue_sender(queue) as sender:
                while some := list(islice(rows, rows_each)):
                    ids = [row.session_id if has_sessions else None for row in some]
                    messages = [
                        ServiceBusMessage(row.body, message_id=row.message_id, session_id=one)
                        for row, one in zip(some, ids, strict=True)
                    ]
                    sender.send_messages(messages if rows_each > 1 else messages[0])

        df.foreachPartition(send)

    return write


def measured(broker: Broker, df: DataFrame, rows: int, write: Write, queue: str, **properties: Any) -> Round:
    """One round of one way; every row must be there at the end."""
    broker.queue(queue, **properties)
    before = broker.busy_s()
    began_at = time.perf_counter()
    write(df, queue)
    span_s = time.perf_counter() - began_at
    spent_us = ((now - then) / rows * 1e6 for now, then in zip(broker.busy_s(), before, strict=True))
    found = broker.count_and_delete(queue)
    assert found == rows, f"{found} of {rows} rows arrived in {queue}"
    return Round(rows / span_s, *spent_us)


def raw_rate(emulated: Emulated, rows: int, queue: str) -> float:
    """Return the rows per second of one connection that sends encoded batches, without Spark."""
    emulated.queue(queue)
    bodies = (str(number).ljust(BODY_BYTES, "x") for number in range(rows))
    messages = [ServiceBusMessage(body, message_id=str(number)) for number, body in enumerate(bodies)]
    payloads = [batch_of(messages[start : start + RAW_BATCH]).payload for start in range(0, rows, RAW_BATCH)]

    async def send() -> float:
        async with EngineClient(emulated.primary.port) as client:
            began_at = time.perf_counter()
            await client.send(queue, payloads, message_format=BATCH_FORMAT)
            return rows / (time.perf_counter() - began_at)

    rate = asyncio.run(send())
    found = emulated.count_and_delete(queue)
    assert found == rows, f"{found} of {rows} rows arrived in {queue}"
    return rate


@contextmanager
def frame(rows: int) -> Iterator[tuple[Emulated, DataFrame]]:
    """Start the emulators and Spark; yield them with a cached frame of so many rows."""
    with tempfile.TemporaryDirectory() as folder, Emulated(folder) as emulated, session(folder) as spark:
        columns = f"rpad(cast(id as string), {BODY_BYTES}, 'x') as body", "cast(id as string) as message_id"
        df = spark.range(0, rows, 1, PARTITIONS).selectExpr(*columns).cache()
        assert df.count() == rows
        yield emulated, df


def row(settings: Settings) -> Result:
    """Measure the row `spark`: the paired writer against lists of azure-servicebus, and a raw sender beside them."""
    rows = settings.count(100_000)
    rounds: list[tuple[Round, Round, float]] = []
    with frame(rows) as (emulated, df):
        primary, secondary = (connection_string(each.port) for each in (emulated.primary, emulated.secondary))
        writer, lists = by_the_writer(primary, secondary), by_lists(primary, LIST_ROWS)
        for number in range(settings.pairs + 1):
            ours = measured(emulated, df, rows, writer, f"writer-{number}")
            other = measured(emulated, df, rows, lists, f"lists-{number}")
            raw = raw_rate(emulated, rows, f"raw-{number}")
            if number:  # the first one is the warm-up
                rounds.append((ours, other, raw))
    rate_ratio = median(ours.rate / other.rate for ours, other, _ in rounds)
    raw_part = median(ours.rate / raw for ours, _, raw in rounds)
    notes = [
        f"{name}: {median(each.rate for each in sides):,.0f} rows/s, "
        f"{median(each.workers_us for each in sides):.1f} µs in the workers, "
        f"{median(each.spark_us for each in sides):.1f} µs in Spark with Java, "
        f"{median(each.broker_us for each in sides):.1f} µs in the emulator"
        for name, sides in (
            ("the writer, paired", [ours for ours, _, _ in rounds]),
            (f"foreachPartition, lists of {LIST_ROWS}", [other for _, other, _ in rounds]),
        )
    ]
    rates = f"the rate is {rate_ratio:.1f} times that of lists, and {raw_part:.0%} of a raw sender"
    return Result(
        ratios=[other.workers_us / ours.workers_us for ours, other, _ in rounds],
        notes=[*notes, rates],
        misses=[] if rate_ratio >= RATE_BOUND or raw_part >= RAW_BOUND else [rates],
    )


def sessions(settings: Settings) -> Result:
    """Measure the row `spark-sessions`: ordered sessions, as many as rows, against one session per partition."""
    rows = settings.count(100_000)
    rounds: list[tuple[Round, Round]] = []
    with frame(rows) as (emulated, df):
        primary, secondary = (connection_string(each.port) for each in (emulated.primary, emulated.secondary))
        writer = by_the_writer(primary, secondary, ordering="session")
        each = df.selectExpr("*", "message_id as session_id")
        one = df.selectExpr("*", "concat('partition ', spark_partition_id()) as session_id")
        for number in range(settings.pairs + 1):
            many = measured(emulated, each, rows, writer, f"many-{number}", requires_session=True)
            few = measured(emulated, one, rows, writer, f"few-{number}", requires_session=True)
            if number:  # the first one is the warm-up
                rounds.append((many, few))
    notes = [
        f"{name}: {median(side.rate for side in sides):,.0f} rows/s, "
        f"{median(side.workers_us for side in sides):.1f} µs in the workers"
        for name, sides in (
            (f"{rows:,} sessions", [many for many, _ in rounds]),
            (f"{PARTITIONS} sessions", [few for _, few in rounds]),
        )
    ]
    return Result(ratios=[many.rate / few.rate for many, few in rounds], notes=notes)


def reads(settings: Settings) -> Result:
    """Measure the row `spark-read`: queues with sessions of 20 messages, against a plain and a partitioned queue."""
    rows = settings.count(100_000)
    kinds: dict[str, dict[str, bool]] = {
        "plain": {},
        "partitioned": {"enable_partitioning": True},
        "sessions": {"requires_session": True},
    }
    rounds: dict[str, list[Round]] = {kind: [] for kind in kinds}
    with frame(rows) as (emulated, df):
        primary = connection_string(emulated.primary.port)
        df = df.selectExpr("*", f"cast(cast(message_id as long) div {SESSION_ROWS} as string) as session_id")
        for kind, properties in kinds.items():
            emulated.queue(kind, **properties)
            by_the_writer(primary, None)(df, kind)
        for number in range(settings.pairs + 1):
            for kind, found in rounds.items():
                one = measured_read(emulated, df.sparkSession, rows, primary, kind)
                if number:  # the first one is the warm-up
                    found.append(one)
    notes = [
        f"{kind}: {median(each.rate for each in found):,.0f} messages/s, "
        f"{median(each.workers_us for each in found):.1f} µs in the workers, "
        f"{median(each.broker_us for each in found):.1f} µs in the emulator"
        for kind, found in rounds.items()
    ]
    pairs = zip(rounds["sessions"], rounds["plain"], strict=True)
    return Result(ratios=[ours.rate / other.rate for ours, other in pairs], notes=notes)


def measured_read(emulated: Emulated, spark: SparkSession, rows: int, primary: str, queue: str) -> Round:
    """Read a queue once; every message must be read, and none twice."""
    before = emulated.busy_s()
    began_at = time.perf_counter()
    found = spark.read.format("servicebus").options(connectionString=primary, queue=queue).load()
    counts = found.selectExpr("count(1)", "count(distinct message_id)").collect()[0]
    span_s = time.perf_counter() - began_at
    spent_us = ((now - then) / rows * 1e6 for now, then in zip(emulated.busy_s(), before, strict=True))
    assert tuple(counts) == (rows, rows), f"{counts} of {rows} messages were read from {queue}"
    return Round(rows / span_s, *spent_us)


def stream_sessions(settings: Settings) -> Result:
    """Measure the row `spark-stream-sessions`: streams of queues with sessions of 20 messages, against plain queues."""
    rows = settings.count(50_000)
    kinds: dict[str, dict[str, bool]] = {"plain": {}, "sessions": {"requires_session": True}}
    rounds: dict[str, list[Round]] = {}
    with frame(rows) as (emulated, df), tempfile.TemporaryDirectory() as folder:
        primary = connection_string(emulated.primary.port)
        df = df.selectExpr("*", f"cast(cast(message_id as long) div {SESSION_ROWS} as string) as session_id")
        for number in range(settings.pairs + 1):
            for kind, properties in kinds.items():
                queue = f"{kind}-{number}"
                emulated.queue(queue, **properties)
                by_the_writer(primary, None)(df, queue)
                for mode in ("peek", "receive"):
                    place = f"{folder}/{queue}-{mode}"
                    one = measured_stream(emulated, df.sparkSession, rows, primary, queue, mode, place)
                    if number:  # the first one is the warm-up
                        rounds.setdefault(f"{mode}, {kind}", []).append(one)
                assert emulated.count_and_delete(queue) == 0, f"messages were left in {queue}"
    notes = [
        f"{kind}: {median(each.rate for each in found):,.0f} messages/s, "
        f"{median(each.workers_us for each in found):.1f} µs in Python, "
        f"{median(each.broker_us for each in found):.1f} µs in the emulator"
        for kind, found in rounds.items()
    ]
    pairs = zip(rounds["receive, sessions"], rounds["receive, plain"], strict=True)
    return Result(ratios=[ours.rate / other.rate for ours, other in pairs], notes=notes)


def measured_stream(
    emulated: Emulated, spark: SparkSession, rows: int, primary: str, queue: str, mode: str, checkpoint: str
) -> Round:
    """Stream a queue once, to nowhere; every message must be read."""
    before = emulated.busy_s()
    began_at = time.perf_counter()
    options = {"connectionString": primary, "queue": queue, "mode": mode, "maxMessagesPerTrigger": "10000"}
    found = spark.readStream.format("servicebus").options(**options).load()
    writer = found.writeStream.format("noop").option("checkpointLocation", checkpoint)
    query = writer.trigger(availableNow=True).start()
    assert query.awaitTermination(600)
    span_s = time.perf_counter() - began_at
    spent_us = ((now - then) / rows * 1e6 for now, then in zip(emulated.busy_s(), before, strict=True))
    read = sum(each.numInputRows for each in query.recentProgress)
    assert read == rows, f"{read} of {rows} messages were read from {queue}"
    return Round(rows / span_s, *spent_us)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.spark")
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    rounds: dict[str, list[Round]] = {}
    with frame(arguments.rows) as (emulated, df):
        primary, secondary = (connection_string(each.port) for each in (emulated.primary, emulated.secondary))
        ways: dict[str, Write] = {
            "the writer, paired": by_the_writer(primary, secondary),
            "the writer, without a secondary": by_the_writer(primary, None),
            f"foreachPartition, lists of {LIST_ROWS}": by_lists(primary, LIST_ROWS),
            SLOWEST: by_lists(primary, 1),
        }
        for number in range(-1, arguments.rounds):  # the first one is for Java to warm up
            for place, (name, write) in enumerate(ways.items()):
                if name == SLOWEST and number != 0:
                    continue
                one = measured(emulated, df, arguments.rows, write, f"round-{number}-{place}")
                if number >= 0:
                    rounds.setdefault(name, []).append(one)
    setup = f"{arguments.rows:,} rows of {BODY_BYTES} bytes in {PARTITIONS} partitions"
    print(f"{setup}, the fastest of {arguments.rounds} rounds")
    print(f"{'':34} {'rows/s':>9}   {'slowest':>9}   Spark us/row   emulator us/row")
    for name, each in rounds.items():
        best, slowest = max(each), min(each)
        print(f"{name:34} {best.rate:9,.0f}   {slowest.rate:9,.0f}", end="")
        print(f"   {min(one.spark_us for one in each):12.1f}   {min(one.broker_us for one in each):15.1f}")
    paired, alone, lists, singly = (max(each).rate for each in rounds.values())
    for name, rate in (("paired", paired), ("without a secondary", alone)):
        print(f"the writer, {name}, is {rate / lists:.1f} times as fast as lists, {rate / singly:.1f} as row by row")


if __name__ == "__main__":
    main()
