"""A reason in a header of HTTP: any text is the same again, but for its blanks and its end."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbclient.formats.refusal_reason import read_reason, write_reason

TEXTS = st.text() | st.text("a %é€+&=25\r\n\t", max_size=40)


@given(reason=TEXTS)
def test_a_reason_is_the_same_again(reason: str) -> None:
    value = write_reason(reason)
    assert all(" " <= character <= "~" for character in value)
    readable = reason.encode(errors="replace").decode()
    assert read_reason(value) == " ".join(readable.split())


@pytest.mark.parametrize("character", ["a", "%", "é", "€", "🚚"])
def test_the_first_two_thousand_characters_are_kept(character: str) -> None:
    for length in (1_999, 2_000, 2_001, 20_000):
        kept = character * min(length, 2_000)
        assert read_reason(write_reason(character * length)) == kept
        assert len(read_reason(character * length)) <= 2_000
