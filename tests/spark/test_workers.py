"""The Python of Spark's workers is checked when the format is registered."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkConf
from pyspark.sql import SparkSession

from sbclient.errors import InvalidOperationError
from sbclient_spark.workers import check_worker_python


class Context:
    """What the check reads of a context."""

    listFiles = ()  # noqa: N815  # the name in Spark

    def __init__(self, python: str, master: str = "local[2]", **settings: str) -> None:
        self.pythonExec, self.master = python, master  # the name in Spark
        self._settings = settings

    def getConf(self) -> SparkConf:  # noqa: N802
        return SparkConf(loadDefaults=False).setAll(
            [(name.replace("_", "."), each) for name, each in self._settings.items()]
        )


class Session:
    def __init__(self, context: Context) -> None:
        self.sparkContext = context


@pytest.fixture
def other_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An interpreter without this package."""
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.chdir(tmp_path)
    program = tmp_path / "python"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S -I "$@"\n')
    program.chmod(0o755)
    return str(program)


def test_another_python_without_the_package_is_an_error_that_says_what_to_set(other_python: str) -> None:
    session: Any = Session(Context(other_python))
    with pytest.raises(InvalidOperationError, match=f"run {other_python}, which has no sbclient_spark: set PYSPARK"):
        check_worker_python(session)


@pytest.mark.parametrize(
    "change", [{"master": "spark://host:7077"}, {"spark_archives": "environment.tar.gz"}, {"python": "/no/python"}]
)
def test_what_the_driver_cannot_know_is_no_error(other_python: str, change: dict[str, str]) -> None:
    session: Any = Session(Context(**({"python": other_python} | change)))
    check_worker_python(session)


def test_a_python_with_the_package_is_no_error(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    check_worker_python(spark)
    link = Path(sys.executable).with_name("python3")
    monkeypatch.setattr(spark.sparkContext, "pythonExec", str(link if link.exists() else sys.executable))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    check_worker_python(spark)


def test_a_process_that_plans_a_read_or_write_does_not_import_pandas() -> None:
    """Spark starts several for each query. Those that convert rows import it by `pyarrow.array`."""
    loaded = "import sys, sbclient_spark.source; sys.exit('pandas' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", loaded], check=False).returncode == 0
