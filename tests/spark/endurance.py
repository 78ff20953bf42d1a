"""Jobs that are struck while they run, and an account of what arrived: every row once, each session's in their order.

In the middle of each job the primary is cut off, with its store kept, and restored; a Python worker of Spark is killed
with SIGKILL; a query is stopped and started again from its checkpoint. Who runs them says how large they are: the tests
in small, on two namespaces in a thread; `python -m tests.benchmarks spark_endurance` in full, on two processes.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, Protocol

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (Spark's own custom)
from pyspark.sql.streaming.query import StreamingQuery

import sbclient_spark
from sbclient.testing.ledger import Ledger

UNIQUE: Final[dict[str, Any]] = {
    "requires_duplicate_detection": True,
    "duplicate_detection_history_time_window": timedelta(hours=12),
    "max_size_in_megabytes": 5120,
}
LOOK_S: Final = 0.1
STREAM_SESSIONS: Final = 4
GROUP_PROPERTIES: Final = ("spark.jobGroup.id", "spark.job.description", "spark.job.interruptOnCancel")
"""What `setJobGroup` leaves set for every job of the thread."""
KILLED_AT, CUT_AT, HEALED_AT = 0.15, 0.3, 0.1
"""Shares of a job's rows: that have arrived when a worker is killed, and when the primary is cut off; and that wait in
the backlog when it is restored."""


class Message(Protocol):
    """What arrived; `str()` is its body."""

    @property
    def session_id(self) -> str | None: ...
    @property
    def message_id(self) -> str | None: ...


class Pair(Protocol):
    """Two emulated namespaces, as the tests have them in a thread and the benchmark as processes."""

    def options(self, **more: Any) -> dict[str, str]: ...
    def reading(self, **more: Any) -> dict[str, str]: ...
    def create_queue(self, stem: str, **properties: Any) -> str: ...
    def count(self, name: str) -> int: ...
    def backlog(self) -> int: ...
    def take(self, name: str, *, sessions: bool = False) -> Sequence[Message]: ...
    def cut(self) -> None: ...
    def heal(self) -> None: ...
    def senders(self) -> set[int]: ...


@dataclass(slots=True, kw_only=True)
class Account:
    """What became of one job.

    Attributes:
        rows: that were written.
        arrived: messages in the queue at the end.
        lost, duplicates, strangers: rows that never arrived; copies beyond the first; messages that were never written.
        misordered: messages that arrived behind a later one of their session.
        most_waiting: the most messages that were seen in the backlog.
        killed: workers that were killed.
        failed_tasks: attempts that failed, and were made again.
        restarts: of the query.
        drained: messages that the final drain forwarded, after those that the concurrent syphon had moved.
    """

    job: str
    rows: int
    arrived: int = 0
    lost: int = 0
    duplicates: int = 0
    strangers: int = 0
    sessions: int = 0
    misordered: int = 0
    most_waiting: int = 0
    killed: int = 0
    failed_tasks: int = 0
    restarts: int = 0
    drained: int = 0
    seconds: float = 0.0

    @property
    def is_clean(self) -> bool:
        return not (self.lost or self.duplicates or self.strangers or self.misordered) and self.arrived == self.rows

    def take_stock(self, expected: Iterable[str], found: Iterable[tuple[str | None, str]]) -> None:
        """Judge what arrived, as pairs of a session and a row, by what was written, in its order."""
        ledger, sessions = Ledger(), set[str | None]()
        ledger.send(*expected)
        ledger.accepted.update(ledger.sent)
        for session, name in found:
            ledger.deliver(name, session)
            sessions.add(session)
        self.arrived = ledger.delivered.total()
        self.lost, self.strangers = len(ledger.lost), len(ledger.unexpected)
        self.duplicates, self.misordered = ledger.duplicates, ledger.out_of_order
        self.sessions = len(sessions - {None})


def runs_tasks(process: int) -> bool:
    """Return whether a Python process of Spark runs tasks; others plan and commit on the driver."""
    return Path(f"/proc/{process}/cmdline").read_text().rstrip("\0").endswith("pyspark.worker")


@dataclass
class FaultSchedule:
    """Injects faults into a job at given shares of its progress; they are healed on exit.

    Attributes:
        failed: returns the number of tasks of the job that have failed.
    """

    pair: Pair
    queue: str
    account: Account
    failed: Callable[[], int] = int
    kills: bool = True
    failure: BaseException | None = None
    _is_over: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> FaultSchedule:
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()
        self.pair.heal()
        if self.failure is not None:
            raise self.failure

    def _run(self) -> None:
        try:
            if self.kills and self._seen(lambda: self.pair.count(self.queue), KILLED_AT):
                self._kill_a_task()
            if self._seen(lambda: self.pair.count(self.queue), CUT_AT):
                self.pair.cut()
                self._seen(self._waiting, HEALED_AT)
                self.pair.heal()
                while not self._is_over.wait(LOOK_S):
                    self._waiting()
        except BaseException as error:
            self.failure = error

    def _kill_a_task(self) -> None:
        """Kill the workers that are connected until a task has failed: each may be between two tasks."""
        while not self.failed():
            for process in filter(runs_tasks, self.pair.senders()):
                os.kill(process, signal.SIGKILL)
                self.account.killed += 1
            for _ in range(30):  # a busy machine reports the failure late
                if self.failed() or self._is_over.wait(LOOK_S):
                    return

    def _waiting(self) -> int:
        waiting = self.pair.backlog()
        self.account.most_waiting = max(self.account.most_waiting, waiting)
        return waiting

    def _seen(self, count: Callable[[], int], share: float) -> bool:
        """Wait until so many are there; False if the job ends before."""
        while not self._is_over.wait(LOOK_S):
            if count() >= share * self.account.rows:
                return True
        return False


def batch(spark: SparkSession, pair: Pair, rows: int, *, partitions: int = 8, **options: Any) -> Account:
    """A frame of numbers, written by one job."""
    account = Account(job="a frame", rows=rows)
    orders = pair.create_queue("orders", **UNIQUE)
    body = "concat(id, ' ', repeat('x', 100)) as body"
    df = spark.range(0, rows, 1, partitions).selectExpr(body, "cast(id as string) as message_id")
    written(spark, pair, df, orders, account, options)
    numbers = (str(number) for number in range(rows))
    account.take_stock(numbers, ((None, message.message_id or "") for message in pair.take(orders)))
    return account


def sessions(spark: SparkSession, pair: Pair, path: Path, *, partitions: int = 4, **options: Any) -> Account:
    """The lines of a CSV, a session for each `InvoiceNo`, each in its order."""
    lines = spark.read.csv(str(path), header=True).withColumn("line", F.monotonically_increasing_id()).cache()
    names = [str(row.line) for row in lines.select("line").orderBy("line").collect()]
    account = Account(job=path.name, rows=len(names))
    invoices = pair.create_queue("invoices", requires_session=True, **UNIQUE)
    columns = (
        F.to_json(F.struct("*")).alias("body"),
        F.col("line").cast("string").alias("message_id"),
        F.col("InvoiceNo").alias("session_id"),
        "line",
    )
    df = sbclient_spark.repartition_by_session(lines.select(*columns), order_by="line", partitions=partitions).drop(
        "line"
    )
    written(spark, pair, df, invoices, account, {"ordering": "session", **options})
    arrived = pair.take(invoices, sessions=True)
    account.take_stock(names, ((message.session_id, message.message_id or "") for message in arrived))
    return account


def stream(spark: SparkSession, pair: Pair, folder: Path, *, files: int, rows: int, **options: Any) -> Account:
    """Files of numbers in a few sessions, one file for each micro-batch; the query is stopped in the middle and started
    again."""
    account = Account(job="a stream", rows=files * rows)
    readings = pair.create_queue("readings", requires_session=True, **UNIQUE)
    source = folder / "source"
    source.mkdir()
    for number in range(files):
        path = source / f"{number:03}.txt"
        path.write_text("\n".join(str(number * rows + row) for row in range(rows)))
        os.utime(path, (1_700_000_000 + number,) * 2)  # the order in which Spark takes them
    given = pair.options(queue=readings, ordering="session", checkpointLocation=folder / "checkpoint", **options)

    def start(**trigger: Any) -> StreamingQuery:
        lines = spark.readStream.option("maxFilesPerTrigger", 1).text(str(source))
        lines = lines.selectExpr("value as body", f"cast(int(value) % {STREAM_SESSIONS} as string) as session_id")
        return lines.writeStream.format("servicebus").options(**given).trigger(**trigger).start()

    began_at = time.monotonic()
    query = start(processingTime="0 seconds")
    while pair.count(readings) < account.rows / 5:
        assert query.isActive, query.exception()
        time.sleep(LOOK_S)
    query.stop()
    account.restarts += 1
    with FaultSchedule(pair, readings, account, kills=False):
        assert start(availableNow=True).awaitTermination(3600)
    _drain_backlog(spark, pair, account)
    account.seconds = round(time.monotonic() - began_at, 1)
    numbers = (str(number) for number in range(account.rows))
    arrived = pair.take(readings, sessions=True)
    account.take_stock(numbers, ((message.session_id, str(message)) for message in arrived))
    return account


def source(
    spark: SparkSession,
    pair: Pair,
    folder: Path,
    rows: int,
    *,
    mode: str,
    with_sessions: bool = False,
    **properties: Any,
) -> Account:
    """A queue that is read as a stream into files: a worker is killed in the middle, the query is stopped and started
    again. With sessions, each has 20 messages."""
    name = f"{mode}, sessions" if with_sessions else mode
    account = Account(job=f"a source, {name}", rows=rows)
    queue = pair.create_queue(mode, requires_session=with_sessions, **properties)
    columns = ["cast(id as string) as body", "cast(id as string) as message_id"]
    columns += ["cast(id div 20 as string) as session_id"] * with_sessions
    body = spark.range(0, rows, 1, 8).selectExpr(*columns)
    options = pair.options(queue=queue, requireDuplicateDetection="off")
    body.write.format("servicebus").mode("append").options(**options).save()
    place = folder / queue
    given = pair.reading(queue=queue, mode=mode, maxMessagesPerTrigger=max(rows // 20, 1), bodyType="string")
    if mode == "receive":
        given["orphans"] = "take"

    def start(**trigger: Any) -> StreamingQuery:
        reading = spark.readStream.format("servicebus").options(**given).load().select("body")
        writer = reading.writeStream.format("parquet").option("checkpointLocation", str(place / "checkpoint"))
        return writer.trigger(**trigger).start(str(place / "found"))

    began_at = time.monotonic()
    query = start(processingTime="0 seconds")
    while len(list((place / "checkpoint" / "commits").glob("[0-9]*"))) < 5:
        assert query.isActive, query.exception()
        time.sleep(LOOK_S)
    os.kill(max(pair.senders()), signal.SIGKILL)
    account.killed += 1
    time.sleep(10 * LOOK_S)
    query.stop()
    account.restarts += 1
    assert start(availableNow=True).awaitTermination(3600)
    account.seconds = round(time.monotonic() - began_at, 1)
    found = spark.read.parquet(str(place / "found")).collect()
    account.take_stock((str(number) for number in range(rows)), ((None, row.body) for row in found))
    assert pair.count(queue) == (0 if mode == "receive" else rows)
    return account


def written(
    spark: SparkSession,
    pair: Pair,
    df: DataFrame,
    queue: str,
    account: Account,
    options: dict[str, Any],
    schedule: Callable[..., FaultSchedule] = FaultSchedule,
) -> None:
    """Write during faults, and drain the backlog afterwards."""
    began_at = time.monotonic()
    group = f"{account.job} to {queue}"
    context: Any = spark.sparkContext
    context.setJobGroup(group, group)
    try:
        with schedule(pair, queue, account, failed=lambda: _failed_tasks(spark, group)):
            df.write.format("servicebus").mode("append").options(**pair.options(queue=queue, **options)).save()
    finally:
        for each in GROUP_PROPERTIES:
            context.setLocalProperty(each, None)
    account.failed_tasks = _failed_tasks(spark, group)
    _drain_backlog(spark, pair, account)
    account.seconds = round(time.monotonic() - began_at, 1)


def _failed_tasks(spark: SparkSession, group: str) -> int:
    context: Any = spark.sparkContext
    context._jsc.sc().listenerBus().waitUntilEmpty()  # the tracker counts what the bus has delivered
    tracker = context.statusTracker()
    jobs = [tracker.getJobInfo(number) for number in tracker.getJobIdsForGroup(group)]
    stages = [tracker.getStageInfo(stage) for job in jobs if job is not None for stage in job.stageIds]
    return sum(stage.numFailedTasks for stage in stages if stage is not None)


def _drain_backlog(spark: SparkSession, pair: Pair, account: Account) -> None:
    """Drain until the backlog is empty; a syphon beside it may hold some of it for a while."""
    while True:
        account.drained += sum(row.moved for row in sbclient_spark.drain(spark, options=pair.reading()).collect())
        if not pair.backlog():
            return
        time.sleep(LOOK_S)
