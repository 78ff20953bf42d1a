"""Gives access to the modules of `sbclient_spark` without the imports of its `__init__.py`, which needs PySpark."""

from __future__ import annotations

import sys
from importlib.util import find_spec, module_from_spec


def load_package() -> None:
    spec = find_spec("sbclient_spark")
    assert spec is not None
    sys.modules["sbclient_spark"] = module_from_spec(spec)
