"""Bodies contain a uid and can be checked for completeness."""

from __future__ import annotations

import pytest

from tests.processes.bodies import body_of, is_whole, uid_of


@pytest.mark.parametrize("size", [0, 1, 63, 64, 65, 20_000])
def test_body_contains_its_uid_and_is_whole(size: int) -> None:
    body = body_of("sender-1.0-17", size)
    assert uid_of(body) == "sender-1.0-17"
    assert is_whole(body)
    assert len(body) == size + len("~sender-1.0-17~")


@pytest.mark.parametrize("change", [lambda body: body[1:], lambda body: b"x" + body, lambda body: body[:-2]])
def test_changed_body_is_not_whole(change: object) -> None:
    assert callable(change)
    assert not is_whole(change(body_of("sender-1.0-17", 100)))


def test_foreign_body_has_no_uid() -> None:
    assert uid_of(b"") == ""
    assert uid_of(b"something else") == ""
    assert not is_whole(b"something else")
