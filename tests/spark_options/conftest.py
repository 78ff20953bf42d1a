"""The options of the Spark connector are tested without Spark."""

from __future__ import annotations

from importlib.util import find_spec

from tests.spark_options.without_spark import load_package

if find_spec("pyspark") is None or find_spec("pyarrow") is None:
    load_package()
