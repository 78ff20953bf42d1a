"""Send a CSV of invoices to a queue with Spark: one session for each invoice, its lines in their order.

An emulator serves both namespaces on ports of this machine. The primary goes down during the job. The job continues,
and its rows wait in the secondary until a drain moves them to the primary. Every line arrives once, in the order of
its invoice.

    python backfill_orders.py [orders.csv]

The file needs a column InvoiceNo. Without a file the program generates some invoices. It needs the extra `spark`.
"""

from __future__ import annotations

import asyncio
import csv
import os
import sys
import tempfile
import threading
from collections import defaultdict
from datetime import timedelta
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812  (Spark's own custom)

import sbclient_spark
from sbclient import ServiceBusClient
from sbclient.emulator import Emulator
from sbclient.emulator.faults import WireFault, WireFaultKind
from sbclient.testing import served

INVOICES, LINES = 4, 15
SESSIONS_AT_ONCE = 16


def make_up(path: Path) -> None:
    """A file of invoices, with some lines each."""
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["InvoiceNo", "StockCode", "Quantity", "UnitPrice"])
        for number in range(INVOICES * LINES):
            rows.writerow([536365 + number // LINES, f"P{number % 11}", number % 5 + 1, f"{number % 9}.50"])


async def create(connection_string: str) -> None:
    async with ServiceBusClient.from_connection_string(connection_string) as client:
        await client.administration.create_queue(
            "orders",
            requires_session=True,
            requires_duplicate_detection=True,
            duplicate_detection_history_time_window=timedelta(hours=2),
        )


async def until_stored(connection_string: str, count: int) -> None:
    """Returns when the queue holds so many messages."""
    async with ServiceBusClient.from_connection_string(connection_string) as client:
        while True:
            counts = await client.administration.get_queue_runtime_properties("orders")
            if counts.active_message_count >= count:
                return
            await asyncio.sleep(0.05)


async def received(connection_string: str) -> dict[str, list[str]]:
    """What arrived, by session, in the order of arrival."""
    found: dict[str, list[str]] = {}
    side_by_side = asyncio.Semaphore(SESSIONS_AT_ONCE)
    async with ServiceBusClient.from_connection_string(connection_string) as client:

        async def read(session_id: str) -> None:
            async with (
                side_by_side,
                client.get_queue_receiver(
                    "orders", session_id=session_id, receive_mode="receiveanddelete", max_wait_time=0.5
                ) as receiver,
            ):
                found[session_id] = [message.message_id or "" async for message in receiver]

        async with asyncio.TaskGroup() as reading:
            async for session_id in client.list_queue_sessions("orders"):
                reading.create_task(read(session_id))
    return found


def session() -> SparkSession:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    sbclient_spark.ensure_java()
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.driver.host", "127.0.0.1").getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    sbclient_spark.register(spark)
    return spark


def backfill(emulator: Emulator, path: Path) -> None:
    primary, secondary = emulator.connection_strings.values()
    asyncio.run(create(primary))
    spark = session()
    lines = spark.read.csv(str(path), header=True).withColumn("line", F.monotonically_increasing_id()).cache()
    count = lines.count()
    messages = sbclient_spark.repartition_by_session(
        lines.select(
            F.to_json(F.struct("*")).alias("body"),
            F.col("line").cast("string").alias("message_id"),
            F.col("InvoiceNo").alias("session_id"),
            F.col("line"),
        ),
        session="session_id",
        order_by="line",
        partitions=2,
    ).drop("line")

    def outage() -> None:
        asyncio.run(until_stored(primary, count // 4))
        emulator.inject(WireFault(WireFaultKind.RESET), "contoso")
        print("the primary is down")

    trouble = threading.Thread(target=outage, daemon=True)
    trouble.start()
    messages.write.format("servicebus").mode("append").options(
        connectionString=primary,
        secondaryConnectionString=secondary,
        queue="orders",
        ordering="session",
        backlogQueueCount=1,
        failoverInterval="1 s",
        pingInterval="1 s",
        maxBatchMessages=3,
        maxMessagesPerSecond=count / 4,  # so slow that there is time for an outage
    ).save()
    trouble.join()
    print(f"the job has sent all {count} lines")
    emulator.heal(namespace="contoso")

    drained = sbclient_spark.drain(spark, primary=primary, secondary=secondary, options={"backlogQueueCount": "1"})
    print(f"the primary is back, and {sum(row.moved for row in drained.collect())} lines were drained")

    arrived = asyncio.run(received(primary))
    written = defaultdict(list)
    for row in lines.orderBy("line").collect():
        written[row.InvoiceNo].append(str(row.line))
    spark.stop()
    if arrived != written:
        sys.exit("what arrived is not what was written")
    print(f"{count} lines arrived, each once, and each invoice's in order")


def main() -> None:
    with served("contoso", "contoso-backup") as emulator, tempfile.TemporaryDirectory() as folder:
        os.environ["SSL_CERT_FILE"] = str(emulator.certificate_path)  # workers look at the queue over https
        path = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(folder) / "orders.csv"
        if len(sys.argv) < 2:
            make_up(path)
        backfill(emulator, path)


if __name__ == "__main__":
    main()
