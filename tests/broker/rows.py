"""Which behaviour of Service Bus is kept by which test; `python -m tests.broker.rows` writes COVERAGE.md beside this.

The rows are numbered P (partitioned entities), B (what surrounds them) and N (paired namespaces on partitions). A test
carries the numbers of its rows at the head of its name: `test_p052_...`, `test_p131_p132_...`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

TESTS: Final = Path(__file__).parents[1]
COVERAGE: Final = Path(__file__).with_name("COVERAGE.md")

SERIES: Final = {
    "P": ((1, 9), (10, 31), (40, 58), (60, 68), (70, 76), (80, 90), (100, 103), (110, 114), (120, 133)),
    "B": ((1, 8), (10, 27), (30, 49), (50, 63), (70, 79), (80, 95)),
    "N": ((1, 11), (20, 25)),
}

ROWS: Final = tuple(
    f"{letter}-{number:03}"
    for letter, spans in SERIES.items()
    for first, last in spans
    for number in range(first, last + 1)
)

WITHOUT_TEST: Final[Mapping[str, str]] = {
    "P-019": "Documentation only: it speaks of a box in the portal, and there is no portal here.",
    "P-030": "Documentation only: Service Bus for Windows Server is not served.",
    "P-031": "Client-era note: of its protocols only AMQP is still in use, and the wire tests use it.",
    "P-058": "Documentation only: advice not to set a key without need.",
    "P-067": "Documentation only: advice on HTTP keep-alive, and messages do not travel over HTTP here.",
    "P-068": "Documentation only: advice not to partition entities with little traffic.",
    "B-092": "Left out: a service frees idle links and connections for its neighbours, an emulator has none.",
}
"""Rows that no test carries, and why; a test that does carry one wins over its sentence."""

_NAME = re.compile(r"def (test_((?:[pbn]\d{3}_)+)\w*)")


def rows_with_tests() -> dict[str, list[str]]:
    """For each row the tests that carry its number, as `folder/file.py::test`."""
    found: dict[str, list[str]] = {row: [] for row in ROWS}
    for path in sorted(TESTS.rglob("test_*.py")):
        for name, numbers in _NAME.findall(path.read_text()):
            for number in numbers.split("_")[:-1]:
                row = f"{number[0].upper()}-{number[1:]}"
                found.setdefault(row, []).append(f"{path.relative_to(TESTS)}::{name}")
    return found


def written() -> str:
    """The text of COVERAGE.md."""
    found = rows_with_tests()
    tested = sum(bool(found[row]) for row in ROWS)
    lines = [
        "# Which behaviour is kept by which test",
        "",
        "Written by `python -m tests.broker.rows` from the names of the tests; do not edit.",
        f"{tested} of {len(ROWS)} rows have a test ({tested / len(ROWS):.1%}).",
        "",
        "| row | tests, or why there is none |",
        "|---|---|",
    ]
    lines += [f"| {row} | {'<br>'.join(f'`{test}`' for test in found[row]) or WITHOUT_TEST[row]} |" for row in ROWS]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    COVERAGE.write_text(written())
