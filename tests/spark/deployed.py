"""The writer in a program of its own, on a Spark that is not the one of these tests.

Starting such a Spark is mostly waiting. So the programs begin with the first test here and are asked for at the end.
"""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from importlib.util import find_spec
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Final, Self

from tests.spark.emulated import EmulatedPair

LIMIT_S: Final = 300.0
ROWS: Final = 200

CLUSTER: Final = "local-cluster[2,1,1024]"
CONNECT: Final = "connect"
NEEDED: Final[dict[str, tuple[str, ...]]] = {
    CLUSTER: (),
    CONNECT: ("grpc", "grpc_status", "pandas", "zstandard"),
}

PROGRAM: Final = """
import sys
from pyspark.sql import SparkSession
import sbclient_spark

master, quick_start, count, *pairs = sys.argv[1:]
builder = SparkSession.builder.config("spark.ui.enabled", "false")
if master == "connect":
    spark = builder.remote("local[2]").getOrCreate()
else:
    builder = builder.config("spark.executor.extraJavaOptions", quick_start).config("spark.speculation", "true")
    spark = builder.master(master).getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
sbclient_spark.register(spark)
rows = spark.range(0, int(count), 1, 2).selectExpr("cast(id as string) as body", "string(id) as message_id")
options = dict(pair.split("=", 1) for pair in pairs)
rows.write.format("servicebus").mode("append").options(**options).save()
spark.stop()
"""


def missing(master: str) -> list[str]:
    """The packages that it needs and that are not here."""
    return [name for name in NEEDED[master] if find_spec(name) is None]


@dataclass(frozen=True, slots=True)
class Ended:
    """How a program ended: its status, its output, and the numbers that arrived."""

    status: int
    output: str
    arrived: list[int]


class Deployments:
    """Runs the programs one after another, each with two namespaces of its own; `with` begins and ends it.

    Args:
        quick_start: options of Java for processes that do not live long.
    """

    def __init__(self, quick_start: str) -> None:
        self._quick_start = quick_start
        self._pool = ThreadPoolExecutor(1)
        self._ends: dict[str, Future[Ended]] = {}

    def __enter__(self) -> Self:
        self._ends = {master: self._pool.submit(self._run, master) for master in NEEDED if not missing(master)}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown(cancel_futures=True)

    def ended(self, master: str) -> Ended:
        """Wait until one has ended."""
        return self._ends[master].result()

    def _run(self, master: str) -> Ended:
        # The folder is also where Spark Connect leaves its artifacts.
        with TemporaryDirectory() as folder, EmulatedPair() as pair:
            orders = pair.create_queue("orders")
            options = [f"{name}={value}" for name, value in pair.options(queue=orders).items()]
            program = subprocess.run(
                [sys.executable, "-c", PROGRAM, master, self._quick_start, str(ROWS), *options],
                cwd=folder,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                encoding="utf-8",
                timeout=LIMIT_S,
                check=False,
            )
            arrived = sorted(int(str(message)) for message in pair.take(orders))
        return Ended(program.returncode, program.stdout, arrived)
