"""One Spark session and one emulated pair for all tests here; without pyspark they are left out."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.spark.emulated import EmulatedPair

HAS_SPARK: Final = all(find_spec(name) is not None for name in ("pyspark", "pyarrow"))
ROOT: Final = Path(__file__).parents[2]


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Without pyspark only test_available.py is read, which says so."""
    is_test = collection_path.name.startswith("test_") and collection_path.name != "test_available.py"
    return True if is_test and not HAS_SPARK else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What Spark itself leaves open or deplores is not ours to mend."""
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.filterwarnings("ignore:PySpark does not yet fully support:FutureWarning"))
            item.add_marker(pytest.mark.filterwarnings("ignore::ResourceWarning"))


@pytest.fixture(scope="session")
def emulated() -> Iterator[EmulatedPair]:
    from tests.spark.emulated import EmulatedPair

    with EmulatedPair() as pair:
        os.environ["SSL_CERT_FILE"] = str(pair.certificate)
        yield pair
        del os.environ["SSL_CERT_FILE"]


@pytest.fixture
def pair(emulated: EmulatedPair) -> Iterator[EmulatedPair]:
    """The emulated pair, healed and with an empty backlog."""
    emulated.clear()
    yield emulated
    emulated.clear()


@pytest.fixture(scope="session")
def event_logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("event_logs")


@pytest.fixture(scope="session")
def spark(emulated: EmulatedPair, event_logs: Path) -> Iterator[SparkSession]:
    """A session with two tasks at a time, each tried four times; it needs the emulator's certificate in its workers."""
    from pyspark.sql import SparkSession

    import sbclient_spark

    os.environ["PYTHONPATH"] = str(ROOT)
    os.environ["PYSPARK_PYTHON"] = sys.executable
    sbclient_spark.ensure_java()
    session = (
        SparkSession.builder.master("local[2,4]")
        .appName("tests")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.eventLog.enabled", "true")
        .config("spark.eventLog.dir", event_logs.as_uri())
        .config("spark.eventLog.rolling.enabled", "false")
        .config("spark.eventLog.compress", "false")
        .config("spark.eventLog.buffer.kb", "1k")
        .config("spark.sql.pyspark.worker.logging.enabled", "true")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    sbclient_spark.register(session)
    yield session
    session.stop()
