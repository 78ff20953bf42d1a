import re
import time
from collections.abc import Iterator
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbclient.broker.sql.like import matcher
from sbclient.broker.sql.values import FilterError, Steps


@pytest.mark.parametrize(
    ("pattern", "text", "is_match"),
    [
        ("", "", True),
        ("", "a", False),
        ("%", "", True),
        ("%", "any\nthing", True),
        ("%%", "x", True),
        ("_", "", False),
        ("_", "\n", True),
        ("_", "ab", False),
        ("abc", "abc", True),
        ("abc", "ABC", False),
        ("ab%", "abc", True),
        ("ab%", "a", False),
        ("%bc", "abc", True),
        ("%bc", "abcd", False),
        ("%bus%", "the bus stops", True),
        ("%bus%", "bu s", False),
        ("a%c", "abbc", True),
        ("a%c", "ac", True),
        ("a%a", "a", False),
        ("%a%b%", "ba", False),
        ("%a%b%", "xaxbx", True),
        ("a_c%", "abcd", True),
        ("%_", "", False),
        ("%_b", "ab", True),
        ("%ab_%c", "abababxc", True),
        ("[a].*", "[a].*", True),
        ("[a].*", "a", False),
        ("(%", "(x", True),
        ("(_", "(x", True),
        ("a.c_", "abcd", False),
        ("a%.%[b]", "a.b", False),
    ],
)
def test_percent_is_any_run_and_underscore_any_character(pattern: str, text: str, is_match: bool) -> None:
    assert matcher(pattern)(text, Steps()) is is_match


@pytest.mark.parametrize(
    ("pattern", "escape", "text", "is_match"),
    [
        ("ABC\\%", "\\", "ABC%", True),
        ("ABC\\%", "\\", "ABCD", False),
        ("50!%!!", "!", "50%!", True),
        ("!_x", "!", "_x", True),
        ("!_x", "!", "ax", False),
        ("!ab", "!", "ab", True),
        ("%%%%", "%", "%%", True),
        ("_%_%", "_", "%%", True),
    ],
)
def test_the_escape_makes_the_next_character_literal(pattern: str, escape: str, text: str, is_match: bool) -> None:
    assert matcher(pattern, escape)(text, Steps()) is is_match


@pytest.mark.parametrize(("pattern", "escape"), [("a", ""), ("a", "ab"), ("a!", "!"), ("!!!", "!"), ("%%%", "%")])
def test_an_escape_that_is_not_one_character_or_escapes_nothing_is_refused(pattern: str, escape: str) -> None:
    with pytest.raises(ValueError):
        matcher(pattern, escape)


def naive(pattern: str, text: str) -> bool:
    """By the definition: a run takes nothing, or one character more."""
    if not pattern:
        return not text
    if pattern[0] == "%":
        return naive(pattern[1:], text) or (bool(text) and naive(pattern, text[1:]))
    return bool(text) and pattern[0] in ("_", text[0]) and naive(pattern[1:], text[1:])


@pytest.mark.parametrize(("characters", "length"), [("a%_", 6), ("ab%_", 4)])
def test_a_pattern_matches_what_the_definition_says(characters: str, length: int) -> None:
    texts = [*words("ab", 4), "aaaaaa", "ababab"]
    for pattern in words(characters, length):
        match = matcher(pattern)
        assert [match(text, Steps()) for text in texts] == [naive(pattern, text) for text in texts], pattern


def words(characters: str, length: int) -> Iterator[str]:
    """All texts of at most so many of the characters."""
    for size in range(length + 1):
        yield from map("".join, product(characters, repeat=size))


@given(st.text("a%_!.[\\", max_size=8), st.text("a%_!.[\\", max_size=8))
def test_an_escaped_text_matches_itself_alone(wanted: str, other: str) -> None:
    match = matcher(re.sub("[%_!]", r"!\g<0>", wanted), "!")
    assert match(wanted, Steps())
    assert match(other, Steps()) is (wanted == other)


@pytest.mark.parametrize("pattern", ["%" + "a%" * 500 + "b", "%" + "a_%" * 300 + "b%", "a%" * 500 + "b_"])
def test_every_pattern_matches_quickly(pattern: str) -> None:
    match = matcher(pattern)
    before = time.thread_time()
    assert not match("a" * 32_768, Steps())
    assert time.thread_time() - before < 1.0  # a pattern that is tried over and over takes years


@pytest.mark.promise("emulator.rules")
@pytest.mark.parametrize("pattern", ["%" + "a_" * 400 + "b%", "%" + "a" * 4_000 + "_b%"])
def test_wildcards_with_too_many_steps_are_an_error(pattern: str) -> None:
    with pytest.raises(FilterError, match="100000 steps"):
        matcher(pattern)("a" * 262_144, Steps())


def test_long_literals_are_found_in_a_long_text() -> None:
    assert matcher("%" + "a" * 4_000 + "b%")("a" * 262_144 + "b", Steps())
    assert not matcher("%" + "a" * 4_000 + "b%")("a" * 262_144, Steps())


@pytest.mark.promise("emulator.rules")
def test_pattern_longer_than_4096_characters_is_rejected() -> None:
    matcher("a" * 4_096)
    with pytest.raises(ValueError, match="4096"):
        matcher("a" * 4_097)
