"""A Kafka broker in a process of its own, and Spark's connector for it. Maven fetches both."""

from __future__ import annotations

import asyncio
import socket
import subprocess
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, SparkSession

from tests.benchmarks.spark import busy_s
from tests.stage.programs import Program, until
from tests.wire.maven import check_installed, jars_of

READY_S: Final = 60.0
CLUSTER_ID: Final = "MkU3OEVBNTcwNTJENDM2Qg"
CONNECTOR: Final = "spark-sql-kafka-*.jar", "spark-token-provider-*.jar", "kafka-clients-*.jar", "commons-pool2-*.jar"

SETTINGS: Final = """
process.roles=broker,controller
node.id=1
controller.quorum.bootstrap.servers=127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
log.dirs={folder}/kafka
num.partitions=2
offsets.topic.replication.factor=1
"""


def installed() -> Path:
    """Return the folder with the jars, which Maven may fetch; raises as `maven.jars_of`."""
    check_installed("java", "mvn")
    return jars_of(Path(__file__).parent / "pom.xml", proof="spark-cluster", may_fetch=True)


def connector(jars: Path) -> str:
    """Return the value of `spark.jars`."""
    return ",".join(str(path) for pattern in CONNECTOR for path in jars.glob(pattern))


class KafkaBroker:
    """A broker without authentication; `with` starts and ends it. Topics are created by their first write."""

    def __init__(self, jars: Path, folder: Path, spark: SparkSession) -> None:
        self._jars = jars
        self._folder = folder
        self._spark = spark
        self._program = Program("kafka", folder)
        with socket.socket() as one, socket.socket() as two:
            one.bind(("127.0.0.1", 0))
            two.bind(("127.0.0.1", 0))
            self._port, self._controller_port = one.getsockname()[1], two.getsockname()[1]

    def __enter__(self) -> KafkaBroker:
        settings = self._folder / "kafka.properties"
        settings.write_text(SETTINGS.format(port=self._port, controller=self._controller_port, folder=self._folder))
        java = ["java", "-Xmx1g", "-cp", f"{self._jars}/*"]
        formatting = ["kafka.tools.StorageTool", "format", "--standalone", "-t", CLUSTER_ID, "-c", str(settings)]
        subprocess.run([*java, *formatting], check=True, capture_output=True, timeout=READY_S)
        self._program.start([*java, "kafka.Kafka", str(settings)])
        is_ready = asyncio.run(until(self._answers, READY_S))
        assert is_ready, self._program.output()
        return self

    def __exit__(self, *_: object) -> None:
        self._program.kill()

    def _answers(self) -> bool:
        with socket.socket() as connection:
            return connection.connect_ex(("127.0.0.1", self._port)) == 0

    def _options(self) -> dict[str, str]:
        return {"kafka.bootstrap.servers": f"127.0.0.1:{self._port}"}

    def write(self, df: DataFrame, topic: str) -> None:
        """Write rows with the session as the key, as those of a session must be in one partition."""
        rows = df.selectExpr("session_id as key", "body as value")
        rows.write.format("kafka").options(**self._options(), topic=topic).save()

    # -- what `measured` asks of a broker

    def queue(self, name: str, **_: object) -> None:
        pass

    def count_and_delete(self, name: str) -> int:
        return int(self._spark.read.format("kafka").options(**self._options(), subscribe=name).load().count())

    def busy_s(self) -> tuple[float, float, float]:
        return busy_s(self._program.process_id)
