"""The version of this package. It needs no installed metadata: a copy on a worker of Spark has none."""

from __future__ import annotations

VERSION = "0.1.0"
