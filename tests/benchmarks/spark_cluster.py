"""Rows in many sessions through a standalone cluster of Spark, an outage and the loss of a worker.

    python -m tests.benchmarks spark_cluster [--rows 1000000] [--sessions 100000] [--allocation static dynamic] [--json]

A master and two workers run as processes. A job writes the rows in order, each session in one task; a hundred sessions
are written at a time. In its middle a worker is killed with SIGKILL together with its executor, and the primary is cut
off for a while. Then a stream with `mode=receive` reads the sessions back. Each row must be there once, each session in
order, and the queue empty: the exit status is 1 if not. All of this runs without dynamic allocation and with it.

At the end a new cluster writes a fifth of the rows in each of three ways, by turns: the writer, `foreachPartition` with
azure-servicebus, and Spark's connector for Kafka to a Kafka broker, if Maven can fetch one.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import socket
import sys
import tempfile
import time
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Final

import pyspark
from pyspark.sql import DataFrame, SparkSession

import sbclient_spark
from tests.benchmarks.kafka import running as kafka
from tests.benchmarks.spark import LIST_ROWS, Broker, Emulated, Round, Write, by_lists, by_the_writer, measured, session
from tests.benchmarks.spark_endurance import HEAD, ServedPair, _line
from tests.spark.endurance import UNIQUE, Account, FaultSchedule, written
from tests.stage.namespaces import connection_string
from tests.stage.programs import Program, until
from tests.wire.maven import NotInstalledError

READY_S: Final = 120.0
PARTITIONS: Final = 8
AT_A_TIME: Final = 100
"""Sessions whose rows are mixed."""

ROUNDS: Final = 3
ALLOCATIONS: Final[dict[str, dict[str, str]]] = {
    "static": {},
    "dynamic": {
        "spark.dynamicAllocation.enabled": "true",
        "spark.dynamicAllocation.shuffleTracking.enabled": "true",
        "spark.dynamicAllocation.minExecutors": "1",
        "spark.dynamicAllocation.maxExecutors": "2",
        "spark.dynamicAllocation.executorIdleTimeout": "5s",
    },
}


class Cluster:
    """A master and two workers of one core each; `with` starts and ends them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._master = Program("master", folder)
        self.workers = [Program(f"worker-{number}", folder) for number in (1, 2)]
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]

    @property
    def url(self) -> str:
        return f"spark://127.0.0.1:{self._port}"

    def __enter__(self) -> Cluster:
        sbclient_spark.ensure_java()
        os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
        place = ["--host", "127.0.0.1", "--webui-port", "0"]
        self._start(self._master, "master.Master", [*place, "--port", str(self._port)])
        for worker in self.workers:
            more = ["--cores", "1", "--memory", "2g", "--work-dir", str(self._folder / worker.name)]
            self._start(worker, "worker.Worker", [*place, *more, self.url])
        log = self._master.file("log")
        is_ready = asyncio.run(until(lambda: log.read_text().count("Registering worker") == 2, READY_S))
        assert is_ready, self._master.output()
        return self

    def _start(self, program: Program, name: str, arguments: list[str]) -> None:
        spark_class = Path(pyspark.__file__).parent / "bin" / "spark-class"
        program.start([str(spark_class), f"org.apache.spark.deploy.{name}", *arguments])

    def __exit__(self, *_: object) -> None:
        for program in (*self.workers, self._master):
            kill_with_children(program.process_id)
            program.kill()


def kill_with_children(process: int) -> None:
    """Kill a process and all that it has started, at once."""
    children = [
        int(stat.parent.name)
        for stat in Path("/proc").glob("[0-9]*/stat")
        if _parent(stat) == process and int(stat.parent.name) != os.getpid()
    ]
    with suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)
    for child in children:
        kill_with_children(child)


def _parent(stat: Path) -> int:
    try:
        return int(stat.read_text().rpartition(")")[2].split()[1])
    except OSError:  # it has ended
        return 0


@dataclass
class WorkerLoss(FaultSchedule):
    """Kills a worker of a cluster where others kill a process of Python."""

    cluster: Cluster | None = None

    def _kill_a_task(self) -> None:
        assert self.cluster is not None
        kill_with_children(self.cluster.workers[1].process_id)
        self.account.killed += 1


def in_sessions(spark: SparkSession, rows: int, sessions: int) -> DataFrame:
    """Return rows in the order of their numbers within each session, each session in one partition."""
    mixed = max(rows // sessions, 1) * AT_A_TIME
    df = spark.range(0, rows, 1, PARTITIONS).selectExpr(
        "rpad(string(id), 100, 'x') as body",
        "string(id) as message_id",
        f"string(id div {mixed} * {AT_A_TIME} + id % {AT_A_TIME}) as session_id",
        "id",
    )
    return sbclient_spark.repartition_by_session(df, order_by="id", partitions=PARTITIONS).drop("id")


def there_and_back(
    spark: SparkSession, pair: ServedPair, cluster: Cluster, folder: Path, rows: int, sessions: int, name: str
) -> Account:
    """Write rows through an outage and the loss of a worker, and stream them back."""
    account = Account(job=f"cluster, {name}", rows=rows)
    orders = pair.create_queue("orders", requires_session=True, **UNIQUE)
    prepared = in_sessions(spark, rows, sessions)
    losing = partial(WorkerLoss, cluster=cluster)
    written(spark, pair, prepared, orders, account, {"ordering": "session"}, losing)
    options = pair.reading(
        queue=orders, mode="receive", maxMessagesPerTrigger=100_000, maxSessionsPerTrigger=10_000, minPartitions=2
    )
    found = spark.readStream.format("servicebus").options(**options).load()
    writer = found.select("session_id", "message_id", "sequence_number").writeStream.format("parquet")
    place = folder / f"found-{name}"
    query = writer.option("checkpointLocation", str(folder / f"checkpoint-{name}")).trigger(availableNow=True)
    began_at = time.monotonic()
    assert query.start(str(place)).awaitTermination(7200)
    print(f"streamed back in {time.monotonic() - began_at:.0f} s", file=sys.stderr)
    arrived = spark.read.parquet(str(place)).orderBy("sequence_number").select("session_id", "message_id").collect()
    account.take_stock((str(number) for number in range(rows)), ((one[0], one[1]) for one in arrived))
    assert pair.count(orders) == 0, "messages were left"
    return account


def rates(spark: SparkSession, folder: Path, rows: int, sessions: int, jars: Path | None) -> dict[str, Round]:
    """Return the fastest round of each way to write the same rows.

    Args:
        jars: of Kafka; None = without it.
    """
    df = in_sessions(spark, rows, sessions).cache()
    assert df.count() == rows
    found: dict[str, list[Round]] = {}
    with Emulated(str(folder)) as emulated, ExitStack() as stack:
        primary = connection_string(emulated.primary.port)
        ways: dict[str, tuple[Broker, Write]] = {
            "the writer, in the order of sessions": (emulated, by_the_writer(primary, None, ordering="session")),
            f"foreachPartition, lists of {LIST_ROWS}": (emulated, by_lists(primary, LIST_ROWS)),
        }
        if jars is not None:
            broker = stack.enter_context(kafka.KafkaBroker(jars, folder, spark))
            ways["the connector for Kafka"] = broker, broker.write
        for number in range(ROUNDS + 1):
            for place, (name, (to, write)) in enumerate(ways.items()):
                one = measured(to, df, rows, write, f"round-{number}-{place}", requires_session=True)
                if number:  # the first one is for Java to warm up
                    found.setdefault(name, []).append(one)
    return {name: max(each) for name, each in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks spark_cluster")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--sessions", type=int, default=100_000)
    parser.add_argument("--allocation", nargs="+", choices=list(ALLOCATIONS), default=list(ALLOCATIONS))
    parser.add_argument("--json", action="store_true", help="print JSON and nothing else")
    arguments = parser.parse_args()
    accounts: list[Account] = []
    settings = {"spark.executor.memory": "1g", "spark.ui.showConsoleProgress": "false"}
    jars = None
    try:
        jars = kafka.installed()
        settings["spark.jars"] = kafka.connector(jars)  # Java loads them for its first session only
    except NotInstalledError as error:
        print(f"without Kafka: {error}", file=sys.stderr)
    if not arguments.json:
        print(HEAD)
    for name in arguments.allocation:
        with tempfile.TemporaryDirectory() as place, ServedPair(Path(place)) as pair, Cluster(Path(place)) as cluster:
            with session(place, cluster.url, **settings, **ALLOCATIONS[name]) as spark:
                one = there_and_back(spark, pair, cluster, Path(place), arguments.rows, arguments.sessions, name)
            accounts.append(one)
            if not arguments.json:
                print(_line(one), flush=True)
    part, few = max(arguments.rows // 5, 1), max(arguments.sessions // 5, 1)
    with (
        tempfile.TemporaryDirectory() as place,
        Cluster(Path(place)) as cluster,
        session(place, cluster.url, **settings) as spark,
    ):
        found = rates(spark, Path(place), part, few, jars)
    if arguments.json:
        jobs = [asdict(one) | {"is_clean": one.is_clean} for one in accounts]
        print(json.dumps({"jobs": jobs, "rates": {name: way._asdict() for name, way in found.items()}}))
    else:
        for name, way in found.items():
            print(
                f"{name:37} {way.rate:9,.0f} rows/s; processor time for a row: Spark {way.spark_us:.1f} µs, of which "
                f"Python {way.workers_us:.1f} µs; broker {way.broker_us:.1f} µs"
            )
    sys.exit(0 if all(one.is_clean and one.killed and one.most_waiting for one in accounts) else 1)


if __name__ == "__main__":
    main()
