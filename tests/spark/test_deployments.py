"""The writer as a program of its own: on a cluster of processes, with speculation, and by Spark Connect."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import pytest

from tests.spark.conftest import QUICK_START
from tests.spark.emulated import EmulatedPair

LIMIT_S: Final = 300.0

PROGRAM: Final = """
import sys
from pyspark.sql import SparkSession
import sbclient_spark

master, quick_start, *pairs = sys.argv[1:]
builder = SparkSession.builder.config("spark.ui.enabled", "false")
if master == "connect":
    spark = builder.remote("local[2]").getOrCreate()
else:
    builder = builder.config("spark.executor.extraJavaOptions", quick_start).config("spark.speculation", "true")
    spark = builder.master(master).getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
sbclient_spark.register(spark)
rows = spark.range(0, 200, 1, 4).selectExpr("cast(id as string) as body", "string(id) as message_id")
options = dict(pair.split("=", 1) for pair in pairs)
rows.write.format("servicebus").mode("append").options(**options).save()
spark.stop()
"""


@pytest.mark.parametrize(
    ("master", "needed"),
    [("local-cluster[2,1,1024]", ()), ("connect", ("grpc", "grpc_status", "pandas", "zstandard"))],
    ids=["cluster", "connect"],
)
def test_the_writer_runs_wherever_spark_does(
    pair: EmulatedPair, tmp_path: Path, master: str, needed: tuple[str, ...]
) -> None:
    missing = [name for name in needed if find_spec(name) is None]
    if missing:
        pytest.skip(f"needs {', '.join(missing)}, of the extra `connect`")
    orders = pair.create_queue("orders")
    options = [f"{name}={value}" for name, value in pair.options(queue=orders).items()]
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, master, QUICK_START, *options],
        cwd=tmp_path,  # where Spark Connect leaves its artifacts
        capture_output=True,
        encoding="utf-8",
        timeout=LIMIT_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert sorted(int(str(message)) for message in pair.take(orders)) == list(range(200))
    assert ("register.speculation_is_on" in ended.stderr) == (master != "connect")
