"""docs/reference.md has the docstrings of the public names."""

from __future__ import annotations

from tests import reference_page


def test_the_reference_is_up_to_date() -> None:
    text = reference_page.PAGE.read_text(encoding="utf-8")
    assert text == reference_page.page(), "run python -m tests.reference_page"


def test_the_reference_is_the_same_in_each_process() -> None:
    assert " at 0x" not in reference_page.page()
