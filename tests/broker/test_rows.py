"""Every row has a test or a reason, and COVERAGE.md says the truth."""

from __future__ import annotations

import re

from tests.broker.rows import COVERAGE, ROWS, WITHOUT_TEST, rows_with_tests


def test_every_row_has_a_test_or_a_reason() -> None:
    found = rows_with_tests()
    assert [row for row in ROWS if not found[row] and row not in WITHOUT_TEST] == []


def test_no_test_carries_a_row_that_does_not_exist() -> None:
    assert sorted(set(rows_with_tests()) - set(ROWS)) == []


def test_at_least_19_of_20_rows_are_tested() -> None:
    untested = [row for row, tests in rows_with_tests().items() if not tests]
    assert len(untested) <= len(ROWS) // 20


def test_the_page_names_every_row_and_of_these_tests_only_those_that_exist() -> None:
    page = COVERAGE.read_text()
    assert re.findall(r"^\| ([PBN]-\d{3}) \|", page, flags=re.MULTILINE) == list(ROWS)
    existing = {test for tests in rows_with_tests().values() for test in tests}
    assert sorted(set(re.findall(r"`(broker/[^`]+::\w+)`", page)) - existing) == []
