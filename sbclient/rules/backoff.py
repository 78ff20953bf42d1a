"""Exponential back-off: how long to wait before the next attempt."""

from __future__ import annotations

from typing import Final

_MAX_DOUBLINGS: Final = 32
"""Keeps the power of two within the range of a float, however many failures there were."""


def backoff_s(failures: int, *, first_s: float, longest_s: float) -> float:
    """Return the pause after some consecutive failures, without jitter.

    Args:
        failures: at least 1.
        first_s: the pause after the first failure; it doubles with each further failure.
        longest_s: the upper limit.
    """
    return min(first_s * 2.0 ** min(failures - 1, _MAX_DOUBLINGS), longest_s)
