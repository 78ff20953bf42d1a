"""The writer in a program of its own, by Spark Connect and with speculation.

Starting another Spark is mostly waiting. So the program begins with the first test here and is asked for at the end.
"""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from importlib.util import find_spec
from tempfile import TemporaryDirectory
from typing import Final, NamedTuple

from tests.stage.pair import EmulatedPair

LIMIT_S: Final = 300.0
ROWS: Final = 200

MISSING: Final = [name for name in ("grpc", "grpc_status", "pandas", "zstandard") if find_spec(name) is None]
"""The packages that Spark Connect needs and that are not here."""

PROGRAM: Final = """
import sys
from pyspark.sql import SparkSession
import sbclient_spark

count, *pairs = sys.argv[1:]
builder = SparkSession.builder.config("spark.ui.enabled", "false").config("spark.speculation", "true")
spark = builder.remote("local[2]").getOrCreate()
sbclient_spark.register(spark)
rows = spark.range(0, int(count), 1, 2).selectExpr("cast(id as string) as body", "string(id) as message_id")
options = dict(pair.split("=", 1) for pair in pairs)
rows.write.format("servicebus").mode("append").options(**options).save()
spark.stop()
"""


class Ended(NamedTuple):
    """How the program ended: its status, its output, and the numbers that arrived."""

    status: int
    output: str
    arrived: list[int]


def start(pool: ThreadPoolExecutor) -> Future[Ended]:
    return pool.submit(_run)


def _run() -> Ended:
    # The folder is also where Spark Connect leaves its artifacts.
    with TemporaryDirectory() as folder, EmulatedPair() as pair:
        orders = pair.create_queue("orders")
        options = [f"{name}={value}" for name, value in pair.options(queue=orders).items()]
        program = subprocess.run(
            [sys.executable, "-c", PROGRAM, str(ROWS), *options],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            timeout=LIMIT_S,
            check=False,
        )
        arrived = sorted(int(str(message)) for message in pair.take(orders))
    return Ended(program.returncode, program.stdout, arrived)
