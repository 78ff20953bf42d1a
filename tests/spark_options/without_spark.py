"""Gives access to the modules of `sbclient_spark` without the imports of its `__init__.py`, which needs PySpark."""

from __future__ import annotations

import sys
from importlib.util import find_spec, module_from_spec


def load_package() -> None:
    """Make `sbclient_spark` importable, as it is with PySpark."""
    if "sbclient_spark" in sys.modules or (find_spec("pyspark") is not None and find_spec("pyarrow") is not None):
        return
    spec = find_spec("sbclient_spark")
    assert spec is not None
    sys.modules["sbclient_spark"] = module_from_spec(spec)
