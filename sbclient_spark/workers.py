"""Checks the Python of Spark's workers, where the driver can know it: with a local master, on the same machine."""

from __future__ import annotations

import shutil
import subprocess
import sys
from typing import Any, Final

from pyspark.sql import SparkSession

from sbclient.errors import InvalidOperationError

PACKAGES: Final = ("sbclient_spark", "sbclient", "pyarrow")
_LOOK: Final = f"""
from importlib.util import find_spec
print(*[name for name in {PACKAGES} if find_spec(name) is None])
"""
_SHIPPED: Final = ("spark.submit.pyFiles", "spark.archives", "spark.executorEnv.PYTHONPATH")
"""Settings that give the packages to the workers in another way."""


def check_worker_python(spark: SparkSession) -> None:
    """Check that the workers can import this package. Without a local master, nothing is known.

    Raises:
        InvalidOperationError: they run another Python, which lacks it.
    """
    context: Any = getattr(spark, "sparkContext", None)  # a client of Spark Connect has none
    if context is None or not context.master.startswith("local"):
        return
    python = shutil.which(context.pythonExec)
    if python is None or python == sys.executable or any(context.getConf().get(name) for name in _SHIPPED):
        return
    looked = subprocess.run([python, "-c", _LOOK], capture_output=True, text=True, check=False)
    missing = looked.stdout.split()
    if looked.returncode == 0 and missing and not context.listFiles:
        raise InvalidOperationError(
            f"the workers of Spark run {python}, which has no {missing[0]}: set PYSPARK_PYTHON={sys.executable} before "
            "the session is created, or activate the virtual environment"
        )
