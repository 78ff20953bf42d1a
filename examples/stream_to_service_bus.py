"""Send a stream to a queue with Spark, stop it, and start it again from its checkpoint: every row arrives once.

An emulator serves the namespace on a port of this machine. A message id consists of the query, the micro-batch, the
position of the row and its content, so that duplicate detection drops rows that are sent again after the restart. It
needs the extra `spark`.

    python stream_to_service_bus.py
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from datetime import timedelta
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812  (Spark's own custom)
from pyspark.sql.streaming.query import StreamingQuery

import sbclient_spark
from sbclient import ServiceBusClient
from sbclient.testing import served

FILES, READINGS = 4, 50


async def create(connection_string: str) -> None:
    async with ServiceBusClient.from_connection_string(connection_string) as client:
        await client.administration.create_queue(
            "readings",
            requires_duplicate_detection=True,
            duplicate_detection_history_time_window=timedelta(hours=2),
        )


async def until_stored(connection_string: str, count: int) -> None:
    """Returns when the queue holds so many messages."""
    async with ServiceBusClient.from_connection_string(connection_string) as client:
        while True:
            counts = await client.administration.get_queue_runtime_properties("readings")
            if counts.active_message_count >= count:
                return
            await asyncio.sleep(0.05)


async def received(connection_string: str) -> list[str]:
    async with (
        ServiceBusClient.from_connection_string(connection_string) as client,
        client.get_queue_receiver("readings", receive_mode="receiveanddelete", max_wait_time=0.5) as receiver,
    ):
        return [str(message) async for message in receiver]


def start(spark: SparkSession, folder: Path, connection_string: str, *, until_now: bool = False) -> StreamingQuery:
    """The query; its checkpoint is beside the files that it reads."""
    lines = spark.readStream.option("maxFilesPerTrigger", 1).text(str(folder / "readings"))
    rows = lines.select(F.col("value").alias("body"), F.split("value", ",")[0].alias("partition_key"))
    writer = rows.writeStream.format("servicebus").options(
        checkpointLocation=str(folder / "checkpoint"),
        connectionString=connection_string,
        queue="readings",
        requireDuplicateDetection="error",
        metricsPath=str(folder / "metrics.jsonl"),
    )
    return (writer.trigger(availableNow=True) if until_now else writer.trigger(processingTime="0 seconds")).start()


def session() -> SparkSession:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    sbclient_spark.ensure_java()
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.driver.host", "127.0.0.1").getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    sbclient_spark.register(spark)
    return spark


def stream(connection_string: str, folder: Path) -> None:
    asyncio.run(create(connection_string))
    (folder / "readings").mkdir()
    for number in range(FILES):
        lines = (f"sensor-{reading % 5},{number * READINGS + reading}" for reading in range(READINGS))
        (folder / "readings" / f"{number}.txt").write_text("\n".join(lines))

    spark = session()
    query = start(spark, folder, connection_string)
    asyncio.run(until_stored(connection_string, READINGS))
    query.stop()
    print(f"stopped in micro-batch {len(list((folder / 'checkpoint' / 'offsets').glob('[0-9]*')))} of {FILES}")

    start(spark, folder, connection_string, until_now=True).awaitTermination()
    spark.stop()
    arrived = asyncio.run(received(connection_string))
    if sorted(arrived) != sorted({*arrived}) or len(arrived) != FILES * READINGS:
        sys.exit(f"{len(arrived)} messages arrived, {len({*arrived})} different ones")
    print(f"started again, and now {len(arrived)} readings have arrived, each once")
    print((folder / "metrics.jsonl").read_text().splitlines()[-1])


def main() -> None:
    with served("contoso") as emulator, tempfile.TemporaryDirectory() as folder:
        os.environ["SSL_CERT_FILE"] = str(emulator.certificate_path)  # workers look at the queue over https
        stream(emulator.connection_string, Path(folder))


if __name__ == "__main__":
    main()
