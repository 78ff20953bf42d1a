"""How the runner of the tests of azure-servicebus judges their results; `.ci/proofs suite` runs the real ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.wire.python_suite import judge

REPORT = """<testsuites><testsuite>
<testcase classname="test_queues.TestQueue" name="test_sends[pyamqp]"/>
<testcase classname="test_queues.TestQueue" name="test_is_outdated[pyamqp]"><failure message="TypeError: x"/></testcase>
<testcase classname="mgmt_tests.async.test_rules" name="test_lists"><skipped message="later"/></testcase>
</testsuite></testsuites>"""

ALONE = (
    """<testsuites><testsuite><testcase classname="test_queues.TestQueue" name="test_slow"/></testsuite></testsuites>"""
)


@pytest.mark.parametrize(
    ("known", "is_as_known"),
    [
        ({"is outdated": ["test_queues.py::test_is_outdated"]}, True),
        ({}, False),
        ({"is outdated": ["test_queues.py::test_is_outdated", "test_queues.py::test_sends"]}, False),
    ],
)
def test_table_counts_each_file_and_compares_with_the_known_failures(
    tmp_path: Path, known: dict[str, list[str]], is_as_known: bool
) -> None:
    together, alone = tmp_path / "together.xml", tmp_path / "alone.xml"
    together.write_text(REPORT)
    alone.write_text(ALONE)
    lines, found = judge([together, alone], known)
    assert found is is_as_known
    assert [line.split() for line in lines[1:4]] == [
        ["mgmt_tests/async/test_rules.py", "1", "0", "0", "1"],
        ["test_queues.py", "3", "2", "1", "0"],
        ["total", "4", "2", "1", "1"],
    ]
    assert f"failed: test_queues.py::test_is_outdated: {'is outdated' if known else 'TypeError: x'}" in lines[4:]
