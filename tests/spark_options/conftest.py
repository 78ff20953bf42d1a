"""The options of the Spark connector are tested without Spark."""

from __future__ import annotations

from tests.spark_options.without_spark import load_package

load_package()
