"""Matches the patterns of LIKE: `%` matches any characters, `_` one character; an escape character precedes a literal.

The part of a pattern before the first `%` is compared with the start of a text, the part after the last `%` with its
end. Each part in between is matched at its leftmost place, because the following parts then have the most text left. A
part without `_` is found in linear time. The steps for other parts are limited, because both pattern and text may come
from a message.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from itertools import groupby
from typing import Final, NamedTuple, TypeAlias

from sbclient.broker.sql.values import Steps

Matcher: TypeAlias = Callable[[str, Steps], bool]
"""Tests whether a whole text matches; raises `FilterError` if that takes too many steps."""

MAX_PATTERN_LENGTH: Final = 4_096

_ONE: Final = None
"""Matches any character; an element of a part."""


class _Part(NamedTuple):
    """The characters between two `%`.

    Attributes:
        length: in characters.
        literals: the runs of literal characters with their places in the part, the longest one first.
    """

    length: int
    literals: list[tuple[int, str]]

    def is_at(self, text: str, start: int) -> bool:
        """Whether the part matches at a place of a text, which has room for it."""
        return all(text.startswith(literal, start + place) for place, literal in self.literals)

    def find(self, text: str, start: int, stop: int, steps: Steps) -> int:
        """Return the leftmost match of the part between two places; -1 if there is none."""
        if not self.literals:
            return start if start + self.length <= stop else -1
        (place, longest), *others = self.literals
        if not others and len(longest) == self.length:
            return text.find(longest, start, stop)
        while start + self.length <= stop:
            found = text.find(longest, start + place, stop - self.length + place + len(longest))
            if found < 0:
                return -1
            start = found - place
            steps.spend(1 + (self.length >> 4))
            for other, literal in others:
                if not text.startswith(literal, start + other):
                    break
                steps.spend(1)
            else:
                return start
            start += 1
        return -1


@lru_cache(maxsize=256)  # a pattern may be the value of a property, often the same in each message
def matcher(pattern: str, escape: str | None = None) -> Matcher:
    """Return a function that tests whether a whole text matches, case-sensitively.

    Args:
        escape: one character, or None for no escape.

    Raises:
        ValueError: the escape is not one character, the pattern ends with it, or the pattern is too long.
    """
    if escape is not None and len(escape) != 1:
        raise ValueError(f"ESCAPE takes exactly one character, not {len(escape)}")
    if len(pattern) > MAX_PATTERN_LENGTH:
        raise ValueError(f"the LIKE pattern has {len(pattern)} characters, {MAX_PATTERN_LENGTH} are allowed")
    first, *rest = map(_part, _pieces(pattern, escape))
    if not rest:
        return lambda text, _: len(text) == first.length and first.is_at(text, 0)
    *middle, last = rest
    least = first.length + last.length

    def matches(text: str, steps: Steps) -> bool:
        steps.spend((len(text) >> 6) + len(middle))
        stop = len(text) - last.length
        if len(text) < least or not first.is_at(text, 0) or not last.is_at(text, stop):
            return False
        position = first.length
        for part in middle:
            found = part.find(text, position, stop, steps)
            if found < 0:
                return False
            position = found + part.length
        return True

    return matches


def _part(piece: list[str | None]) -> _Part:
    literals = []
    place = 0
    for is_any, group in groupby(piece, lambda one: one is _ONE):
        run = list(group)
        if not is_any:
            literals.append((place, "".join(filter(None, run))))
        place += len(run)
    return _Part(place, sorted(literals, key=lambda each: -len(each[1])))


def _pieces(pattern: str, escape: str | None) -> list[list[str | None]]:
    """Split a pattern at each `%`."""
    pieces: list[list[str | None]] = [[]]
    characters = iter(pattern)
    for character in characters:
        if character == escape:
            literal = next(characters, None)
            if literal is None:
                raise ValueError("the LIKE pattern ends with its escape character")
            pieces[-1].append(literal)
        elif character == "%":
            pieces.append([])
        else:
            pieces[-1].append(_ONE if character == "_" else character)
    return pieces
