"""The limits that every attack keeps."""

from __future__ import annotations

from typing import Final

MAX_P99_S: Final = 0.08
"""How long another client may wait, at the 99th percentile."""
MAX_RATIO: Final = 20
MAX_BASE_MIB: Final = 50


def memory_limit_mib(sent_mib: float) -> float:
    """How much memory an attack of so many bytes may take."""
    return MAX_RATIO * sent_mib + MAX_BASE_MIB
