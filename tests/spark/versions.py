"""Marks of tests that need a feature of Spark which an older supported version lacks."""

from __future__ import annotations

import pyspark
import pytest
from pyspark.sql import types

PARTIAL_INSERTS = pytest.mark.skipif(
    pyspark.__version__.startswith("4.0."), reason="PySpark 4.0 requires all columns of a table in an INSERT"
)
TIMES = pytest.mark.skipif(not hasattr(types, "TimeType"), reason="PySpark 4.0 has no type TIME")
