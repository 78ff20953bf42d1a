"""One Spark session and one emulated pair for all tests here; without pyspark they are left out."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.spark.deployed import Ended
    from tests.stage.pair import EmulatedPair

HAS_SPARK: Final = all(find_spec(name) is not None for name in ("pyspark", "pyarrow"))
HERE: Final = Path(__file__).parent
ROOT: Final = HERE.parents[1]

QUICK_START: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""A Java that does not spend its time on making itself faster: a test ends before that pays."""


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Without pyspark only test_available.py is read, which says so."""
    is_test = collection_path.name.startswith("test_") and collection_path.name != "test_available.py"
    return True if is_test and not HAS_SPARK else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the test of a deployment last, because its program runs during the other tests. Ignore warnings about Spark
    itself."""
    mine = [number for number, item in enumerate(items) if HERE in item.path.parents]
    for number, item in zip(mine, sorted((items[number] for number in mine), key=_runs_last), strict=True):
        items[number] = item
    for item in (items[number] for number in mine):
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.filterwarnings("ignore:PySpark does not yet fully support:FutureWarning"))
            item.add_marker(pytest.mark.filterwarnings("ignore::ResourceWarning"))


def _runs_last(item: pytest.Item) -> bool:
    return item.path.name == "test_deployments.py"


def _spark_home(folder: Path) -> Path:
    """Spark as it is installed, with its Python as files: what is in its zip is compiled anew for each kind of worker.

    What Spark leaves in its home is left in the folder.
    """
    import pyspark

    installed = Path(pyspark.__file__).parent
    for entry in installed.iterdir():
        if entry.name not in ("python", "work"):
            (folder / entry.name).symlink_to(entry)
    library = folder / "python" / "lib"
    library.mkdir(parents=True)
    for archive in (installed / "python" / "lib").iterdir():
        (library / archive.name).symlink_to(installed.parent if archive.name == "pyspark.zip" else archive)
    return folder


@pytest.fixture(scope="package")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[pytest.MonkeyPatch]:
    """The environment of Spark's processes, restored after the last test here like their working directory."""
    import sbclient_spark

    with pytest.MonkeyPatch.context() as changed:
        changed.setenv("PYTHONPATH", str(ROOT))
        changed.setenv("PYSPARK_PYTHON", sys.executable)
        changed.setenv("SPARK_SUBMIT_OPTS", QUICK_START)
        changed.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        changed.setenv("SPARK_HOME", str(_spark_home(tmp_path_factory.mktemp("spark"))))
        if (home := os.environ.get("JAVA_HOME")) is not None:
            changed.setenv("JAVA_HOME", home)  # restored even if the next line fails
        else:
            changed.delenv("JAVA_HOME", raising=False)
        sbclient_spark.ensure_java()
        yield changed


@pytest.fixture(scope="package")
def emulated(environment: pytest.MonkeyPatch) -> Iterator[EmulatedPair]:
    from tests.stage.pair import EmulatedPair

    with EmulatedPair() as pair:
        environment.setenv("SSL_CERT_FILE", str(pair.certificate))  # the workers look at the destination over https
        yield pair


@pytest.fixture
def pair(emulated: EmulatedPair) -> Iterator[EmulatedPair]:
    """The emulated pair, without faults and with an empty backlog."""
    emulated.clear()
    yield emulated
    emulated.clear()


@pytest.fixture(scope="package")
def event_logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("event_logs")


@pytest.fixture(scope="package")
def spark(
    environment: pytest.MonkeyPatch, emulated: EmulatedPair, event_logs: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SparkSession]:
    """A session with four tasks at a time, which mostly wait, each tried twice; its workers need the emulator's
    certificate.

    Its Java ends with the last test here, and nothing of it stays in the directory that the tests were started in.
    """
    from pyspark.sql import SparkSession

    import sbclient_spark

    before = set(Path.cwd().iterdir())
    session = (
        # A busy machine reports a killed worker late, so that another one is killed: allow two failures of a task.
        SparkSession.builder.master("local[4,3]")
        .appName("tests")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.codegen.wholeStage", "false")
        .config("spark.sql.codegen.factoryMode", "NO_CODEGEN")
        .config("spark.eventLog.enabled", "true")
        .config("spark.eventLog.dir", event_logs.as_uri())
        .config("spark.eventLog.rolling.enabled", "false")
        .config("spark.eventLog.compress", "false")
        .config("spark.eventLog.buffer.kb", "1k")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    sbclient_spark.register(session)
    yield session
    session.stop()
    _end_java()
    assert {path.name for path in set(Path.cwd().iterdir()) - before} <= PYTESTS_OWN


@pytest.fixture
def worker_logs(spark: SparkSession) -> Iterator[None]:
    """What the workers log is kept, as `spark.tvf.python_worker_logs()`.

    Only for tests that read it: Spark then starts workers of their own for each streaming query, which takes seconds.
    """
    if not hasattr(spark.tvf, "python_worker_logs"):
        pytest.skip("PySpark 4.0 keeps no logs of its workers")
    spark.conf.set("spark.sql.pyspark.worker.logging.enabled", "true")
    yield
    spark.conf.unset("spark.sql.pyspark.worker.logging.enabled")


@pytest.fixture(scope="package", autouse=HAS_SPARK)
def deployed(request: pytest.FixtureRequest) -> Iterator[Future[Ended] | None]:
    """The program that runs during the other tests, if its test is selected."""
    from tests.spark import deployed

    if deployed.MISSING or not any(map(_runs_last, request.session.items)):
        yield None
        return
    request.getfixturevalue("spark")  # one Java after the other
    with ThreadPoolExecutor(1) as pool:
        yield deployed.start(pool)


PYTESTS_OWN: Final = {".pytest_cache", ".hypothesis", "__pycache__"}


def _end_java() -> None:
    """End the Java that Spark leaves running until this process ends."""
    from pyspark import SparkContext

    gateway: Any = SparkContext._gateway
    SparkContext._gateway = SparkContext._jvm = None
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(30)
