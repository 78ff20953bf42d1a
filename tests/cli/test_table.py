"""Tables at the widths of terminals: no name and no number is cut."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from rich.text import Text

from sbclient.cli.backlog import backlog_table
from sbclient.cli.table import table

NAMES = ("orders", "a-queue-of-a-department-with-a-long-name", "x" * 60, "日本語のキュー")


def printed(text: Text, width: int) -> list[str]:
    out = io.StringIO()
    Console(file=out, width=width).print(text)
    return out.getvalue().splitlines()


def row(waiting: int, **dead_letters: int) -> dict[str, object]:
    return {"waiting": waiting, "parked": 0, "oldest_age_seconds": 93_784, "dead_letters": dead_letters}


@pytest.mark.parametrize("width", [40, 80, 120])
def test_every_name_and_number_is_printed_whole(width: int) -> None:
    rows = [(name, row(1_234_567, TTLExpiredException=12, DestinationRefused=7)) for name in NAMES]
    lines = printed(backlog_table("destination", rows, width), width)
    assert all(Text(line).cell_len <= width for line in lines)
    joined, text = "".join(lines), " ".join(" ".join(lines).split())
    for name in NAMES:
        assert name in joined  # a name wider than the terminal continues on the next line
    for number in ("1,234,567", "1 day, 2:03:04", "12 TTLExpiredException", "7 DestinationRefused"):
        assert text.count(number) == len(NAMES)
    assert "…" not in text


def test_columns_without_content_are_left_out_before_the_table_becomes_a_list() -> None:
    def cells(*texts: str) -> list[Text]:
        return [Text(text) for text in texts]

    columns = ("name", "waiting", "parked", "note")
    rows = [cells("orders", "12", "0", ""), cells("visits", "7", "0", "")]
    wide = printed(table(columns, rows, 40, numbers=columns[1:3]), 40)
    assert [line.split() for line in wide] == [
        ["name", "waiting", "parked"],
        ["orders", "12", "0"],
        ["visits", "7", "0"],
    ]
    narrow = printed(table(columns, rows, 16, numbers=columns[1:3]), 16)
    assert narrow == ["name    waiting", "orders       12", "visits        7"]
    assert printed(table(columns, rows, 10), 10) == ["orders", "  waiting ", "12", "visits", "  waiting ", "7"]


def test_only_one_row_keeps_its_zeros_where_they_fit() -> None:
    assert printed(table(("name", "waiting"), [[Text("orders"), Text("0")]], 40), 40)[1].split() == ["orders", "0"]
