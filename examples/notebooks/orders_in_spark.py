# %% [markdown]
# # Orders in Spark
# Write orders, read them, archive them as a stream, and query them with SQL. The namespaces are emulated on this
# machine. Each cell runs in Jupyter, in VS Code and as a script: `python orders_in_spark.py`. Needs the extra `spark`.

# %% Set-up: two emulated namespaces and a session
import asyncio
import os
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from pyspark.sql import SparkSession

import sbclient_spark
from sbclient import ServiceBusClient
from sbclient.testing import served

resources = ExitStack()
emulator = resources.enter_context(served("contoso", "contoso-backup"))
folder = Path(resources.enter_context(tempfile.TemporaryDirectory()))
primary, secondary = (emulator.connection_strings[name] for name in ("contoso", "contoso-backup"))
os.environ |= {"SSL_CERT_FILE": str(emulator.certificate_path), "PYSPARK_PYTHON": sys.executable}
sbclient_spark.ensure_java()
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
resources.callback(spark.stop)
sbclient_spark.register(spark)

# %% A queue with duplicate detection


async def create(queue: str) -> None:
    async with ServiceBusClient.from_connection_string(primary) as client:
        await client.administration.create_queue(queue, requires_duplicate_detection=True)


asyncio.run(create("orders"))  # in Jupyter: await create("orders")

# %% Write: repeated with the same ids, so that the queue drops the second copies
orders = spark.range(1000).selectExpr(
    "to_json(named_struct('order', id, 'total', id * 2)) AS body",
    "concat('order-', id) AS message_id",
    "if(id % 2 = 0, 'eu', 'us') AS subject",
)
options = {"connectionString": primary, "secondaryConnectionString": secondary, "queue": "orders"}
options |= {"requireDuplicateDetection": "off"}  # the window of this queue is the default, ten minutes
for _ in range(2):
    orders.write.format("servicebus").mode("append").options(**options).save()

# %% Read: nothing is taken
reading = {"connectionString": primary, "queue": "orders", "bodyType": "string"}
messages = spark.read.format("servicebus").options(**reading, minPartitions=4).load()
by_region = {row["subject"]: row["count"] for row in messages.groupBy("subject").count().collect()}
print("by region:", by_region)

# %% Archive: a stream that starts again where it ended
for _ in range(2):
    stream = spark.readStream.format("servicebus").options(**reading).load()
    writer = stream.writeStream.format("parquet").option("checkpointLocation", str(folder / "checkpoint"))
    writer.trigger(availableNow=True).start(str(folder / "archive")).awaitTermination()
archived = spark.read.parquet(str(folder / "archive")).count()
print("archived:", archived)

# %% SQL: the namespace comes from the configuration, by the name of a file
(folder / "primary").write_text(primary)
spark.conf.set("spark.servicebus.connectionStringFile", str(folder / "primary"))
sbclient_spark.register(spark)
spark.sql("CREATE OR REPLACE TEMPORARY VIEW orders USING servicebus OPTIONS (queue 'orders', bodyType 'string')")
largest = spark.sql("SELECT max(variant_get(parse_json(body), '$.total', 'int')) AS largest FROM orders")
largest_total = largest.collect()[0].largest
print("largest total:", largest_total)

# %% The end of the session
spark.conf.unset("spark.servicebus.connectionStringFile")
resources.close()
