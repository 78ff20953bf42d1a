"""The notebook in examples/ runs as it stands, on the session of these tests."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

from pyspark.sql import SparkSession

import sbclient_spark
from tests.stage.pair import EmulatedPair

NOTEBOOK: Final = Path(__file__).parents[2] / "examples" / "notebooks" / "orders_in_spark.py"


def test_each_cell_but_the_first_and_the_last_runs(spark: SparkSession, pair: EmulatedPair, tmp_path: Path) -> None:
    cells = re.split(r"^# %%.*$", NOTEBOOK.read_text(encoding="utf-8"), flags=re.MULTILINE)
    *imports, _ = cells[2].partition("resources = ExitStack()")
    names: dict[str, Any] = {"spark": spark, "primary": pair.primary, "secondary": pair.secondary, "folder": tmp_path}
    try:
        for cell in (imports[0], *cells[3:-1]):
            exec(compile(cell, NOTEBOOK.name, "exec"), names)
    finally:
        spark.conf.unset("spark.servicebus.connectionStringFile")
        spark.catalog.dropTempView("orders")
        sbclient_spark.register(spark)
    assert names["by_region"] == {"eu": 500, "us": 500}
    assert (names["archived"], names["largest_total"]) == (1000, 1998)
