"""Exponential back-off: how long to wait before the next attempt."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Final

_MAX_DOUBLINGS: Final = 32
"""Keeps the power of two within the range of a float, however many failures there were."""


def growing(first_s: float, longest_s: float, random: Random | None = None) -> Callable[[int], float]:
    """Return a function of the consecutive failures, at least 1, to the pause after them.

    The first pause doubles with each further failure, up to a limit. With `random` it is shortened by up to a half.
    """

    def pause_s(failures: int) -> float:
        longest = min(first_s * 2.0 ** min(failures - 1, _MAX_DOUBLINGS), longest_s)
        return longest if random is None else longest * random.uniform(0.5, 1.0)

    return pause_s
