"""Messages from files: lines, JSON Lines, CSV; and what is said of a file that cannot be used."""

from __future__ import annotations

import json
from io import BytesIO, StringIO
from itertools import product
from pathlib import Path

import pytest

from sbclient.cli import records
from sbclient.cli.records import Columns, Format, Record, limited_lines, read_records, records_of, text_of
from sbclient.errors import InvalidOperationError


def write(tmp_path: Path, name: str, text: str) -> Path:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def test_text_file_has_one_message_per_line(tmp_path: Path) -> None:
    path = write(tmp_path, "lines.txt", "one\n\ntwo\r\nthree")
    assert list(read_records(path, Columns())) == [
        Record(b"one"),
        Record(b""),
        Record(b"two"),
        Record(b"three"),
    ]


def test_csv_columns_set_body_session_and_key(tmp_path: Path) -> None:
    path = write(tmp_path, "orders.csv", "\ufefforder,customer,text\n1,ada,hello\n2,,there\n")
    assert list(read_records(path, Columns(body="text", key="customer"))) == [
        Record(b"hello", partition_key="ada"),
        Record(b"there"),
    ]
    assert [record.session_id for record in read_records(path, Columns(session="order"))] == ["1", "2"]


@pytest.mark.parametrize("before", ["", "\ufeff"])
@pytest.mark.parametrize("after", ["\n", "\r\n", ""])
def test_ends_of_lines_belong_to_no_record_and_blanks_do(tmp_path: Path, before: str, after: str) -> None:
    def read(name: str, *lines: str) -> list[bytes]:
        path = tmp_path / name
        path.write_bytes((before + (after or "\n").join(lines) + after).encode())
        return [record.body for record in read_records(path, Columns(body=None if name == "a.txt" else "x"))]

    assert read("a.txt", " one ", "", "two\t") == [b" one ", b"", b"two\t"]
    assert read("a.csv", "y,x", "1, one ", '2,"two\t"', '3,"a\r\nb"', "4,") == [b" one ", b"two\t", b"a\r\nb", b""]
    assert read("a.jsonl", '{"x": " one "} ', ' {"x": "two\\t"}\t') == [b" one ", b"two\t"]


def test_csv_row_becomes_a_json_body(tmp_path: Path) -> None:
    path = write(tmp_path, "orders.csv", 'order,text\n1,"a, b"\n')
    assert list(read_records(path, Columns())) == [Record(b'{"order": "1", "text": "a, b"}')]


def test_json_lines_keep_nested_bodies_and_number_keys(tmp_path: Path) -> None:
    path = write(tmp_path, "orders.jsonl", '{"id": 7, "order": {"total": 3}}\n{"id": null, "order": "text"}\n')
    assert list(read_records(path, Columns(body="order", session="id"))) == [
        Record(b'{"total": 3}', session_id="7"),
        Record(b"text"),
    ]


@pytest.mark.parametrize(
    ("value", "key"), [(None, None), ("", None), (" ", " "), ("0", "0"), (0, "0"), (0.0, "0.0"), (False, "False")]
)
def test_every_value_but_an_empty_one_is_a_key(tmp_path: Path, value: object, key: str | None) -> None:
    path = write(tmp_path, "rows.jsonl", json.dumps({"body": "x", "k": value}))
    (record,) = read_records(path, Columns(body="body", session="k", key="k"))
    assert (record.session_id, record.partition_key) == (key, key)


def test_only_an_empty_cell_sets_no_attribute(tmp_path: Path) -> None:
    cells = {"a": 0, "b": False, "c": 0.0, "d": "", "e": None, "f": "0", "g": []}
    path = write(tmp_path, "orders.jsonl", json.dumps(cells | {"text": "x"}))
    (record,) = read_records(path, Columns(body="text", others=tuple((f"to_{name}", name) for name in cells)))
    assert record.others == (("to_a", "0"), ("to_b", "false"), ("to_c", "0.0"), ("to_f", "0"), ("to_g", "[]"))


@pytest.mark.parametrize(
    ("name", "text", "columns"),
    [
        ("a.csv", "x,y\n1,2\n", Columns(body="z")),
        ("a.csv", "x,y\n1\n", Columns()),
        ("a.csv", "x,y\n1,2,3\n", Columns()),
        ("a.csv", "", Columns(key="x")),
        ("a.csv", "x,y\n1,2\n", Columns(session="x", key="y")),
        ("a.csv", "x\n1\n\n2\n", Columns()),
        ("a.jsonl", '{"x": 1}\n\n{"x": 2}\n', Columns()),
        ("a.jsonl", "{", Columns()),
        ("a.jsonl", "[1]", Columns()),
        ("a.jsonl", '{"x": 1}', Columns(key="y")),
        ("a.txt", "x", Columns(body="x")),
        ("a.jsonl", '{"x": ' + "9" * 5000 + "}", Columns()),
        ("a.jsonl", "[" * 100_000, Columns()),
        ("a.jsonl", '{"x": "\\ud800"}', Columns()),
        ("a.jsonl", '{"x": "\\ud800", "y": ""}', Columns(body="y", key="x")),
        ("a.csv", f"x\n{'k' * 129}\n", Columns(key="x")),
    ],
)
def test_invalid_input_is_rejected(tmp_path: Path, name: str, text: str, columns: Columns) -> None:
    with pytest.raises(InvalidOperationError):
        list(read_records(write(tmp_path, name, text), columns))


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl", "a.txt"])
def test_error_of_invalid_utf8_names_file_and_line(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(b'{"x": 1}\n' + b"caf\xe9\n")
    with pytest.raises(InvalidOperationError) as caught:
        list(read_records(path, Columns()))
    assert f"{name}, line 2: byte 0xe9 at column 4" in str(caught.value)


def test_csv_field_can_be_as_large_as_a_message(tmp_path: Path) -> None:
    path = write(tmp_path, "a.csv", f"x\n{'y' * 200_000}\n")
    assert [record.body for record in read_records(path, Columns(body="x"))] == [b"y" * 200_000]


def test_invalid_csv_is_rejected() -> None:
    with pytest.raises(InvalidOperationError):
        list(records_of(iter(["x\n", "y\rz\n"]), "stdin", Format.CSV, Columns()))


@pytest.mark.parametrize("length", range(6))
def test_long_line_is_read_in_pieces_as_a_short_one(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "_PIECE_LENGTH", 2)
    for characters in product("a\r\n\U0001f600\udc80", repeat=length):
        data = "".join(characters).encode("utf-8", "surrogateescape")
        lines = list(text_of(BytesIO(data), "utf-8"))
        assert list(limited_lines(text_of(BytesIO(data), "utf-8"))) == lines


@pytest.mark.promise("commands.input")
@pytest.mark.parametrize("character", ["a", "\xfc", "\U0001f600", "\udc80"])
def test_line_has_a_limit_of_bytes(character: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "_PIECE_LENGTH", 2)
    monkeypatch.setattr(records, "MAX_LINE_BYTES", 12)
    count = 12 // len(character.encode("utf-8", "surrogatepass"))
    assert list(limited_lines(StringIO(character * count))) == [character * count]
    with pytest.raises(InvalidOperationError, match="more than 12 bytes"):
        list(limited_lines(StringIO(character * (count + 1))))
