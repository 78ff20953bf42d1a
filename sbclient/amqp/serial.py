"""Serial number arithmetic: counters of 32 bits that wrap around, compared by their distance.

Source: RFC 1982, which AMQP 1.0 part 2 section 2.8.10 requires.
"""

from __future__ import annotations

from typing import Final

MASK: Final = 0xFFFF_FFFF
_HALF: Final = 0x8000_0000


def after(number: int, steps: int = 1) -> int:
    """The number that is `steps` after `number`."""
    return (number + steps) & MASK


def distance(start: int, end: int) -> int:
    """Steps from `start` to `end`: negative if `end` is at most 2**31 steps before `start`."""
    steps = (end - start) & MASK
    return steps - MASK - 1 if steps >= _HALF else steps
