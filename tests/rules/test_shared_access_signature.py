"""A token says what it was signed for, whatever letters the names have."""

from __future__ import annotations

from urllib.parse import parse_qs

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbclient.rules.shared_access_signature import SCHEME, sign, signature_of

names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=40)


@given(names, names, names, st.floats(0, 2**33))
def test_every_field_of_a_token_is_read_as_it_was_signed(path: str, name: str, key: str, expires_at: float) -> None:
    uri = f"sb://contoso/{path}"
    token = sign(uri, name, key, expires_at)
    assert token.startswith(SCHEME)
    fields = parse_qs(token.removeprefix(SCHEME), strict_parsing=True)
    encoded, expiry = token.split("sr=")[1].split("&")[0], str(int(expires_at))
    assert fields == {"sr": [uri], "se": [expiry], "skn": [name], "sig": [signature_of(encoded, expiry, key).decode()]}


@pytest.mark.parametrize("other", [("sb://h/q", "1", "l"), ("sb://h/q", "2", "k"), ("sb://h/r", "1", "k")])
def test_another_key_uri_or_expiry_has_another_signature(other: tuple[str, str, str]) -> None:
    assert signature_of(*other) != signature_of("sb://h/q", "1", "k")
