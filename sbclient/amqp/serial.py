"""Numbers that go round: counters of 32 bits, compared by their distance.

Source: RFC 1982, as AMQP 1.0 part 2 section 2.8.10 asks.
"""

from __future__ import annotations

from typing import Final

MASK: Final = 0xFFFF_FFFF
_HALF: Final = 0x8000_0000


def after(number: int, steps: int = 1) -> int:
    """The number that many steps further on."""
    return (number + steps) & MASK


def distance(start: int, end: int) -> int:
    """Steps from `start` to `end`; negative where `end` lies behind, within half the circle."""
    steps = (end - start) & MASK
    return steps - MASK - 1 if steps >= _HALF else steps
