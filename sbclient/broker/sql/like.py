"""The patterns of LIKE: `%` is any run of characters, `_` any one, and an escape character makes the next one literal.

A match takes at worst time in proportion to text × pattern: a run that has found the leftmost place of what follows it
is never tried again. That loses nothing, for the rest of the pattern then has the most text left.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Final, TypeAlias

Matcher: TypeAlias = Callable[[str], bool]

_ONE: Final = None
"""Any one character, among the characters of a piece."""

_Piece: TypeAlias = list[str | None]


@lru_cache(maxsize=256)  # a pattern that is the value of a property comes again with the next message
def matcher(pattern: str, escape: str | None = None) -> Matcher:
    """A function that says whether the whole of a text matches; upper and lower case differ.

    Args:
        escape: one character, or None for no escape.

    Raises:
        ValueError: the escape is not one character, or the pattern ends with it.
    """
    if escape is not None and len(escape) != 1:
        raise ValueError(f"ESCAPE takes exactly one character, not {len(escape)}")
    pieces = _pieces(pattern, escape)
    literals = ["".join(filter(None, piece)) for piece in pieces]
    if sum(map(len, pieces)) > sum(map(len, literals)):
        return _expression(pieces)
    match literals:
        case [whole]:
            return lambda text: text == whole
        case [start, ""]:
            return lambda text: text.startswith(start)
        case ["", end]:
            return lambda text: text.endswith(end)
        case ["", middle, ""]:
            return lambda text: middle in text
    return _expression(pieces)


def _pieces(pattern: str, escape: str | None) -> list[_Piece]:
    """What stands before, between and after the `%`, character by character."""
    pieces: list[_Piece] = [[]]
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


def _expression(pieces: list[_Piece]) -> Matcher:
    first, *rest = ["".join("." if one is _ONE else re.escape(one) for one in piece) for piece in pieces]
    runs = "".join(f"(?>.*?{piece})" for piece in rest[:-1])
    end = f".*{rest[-1]}" if rest else ""
    expression = re.compile(first + runs + end, re.DOTALL)
    return lambda text: expression.fullmatch(text) is not None
