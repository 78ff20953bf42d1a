"""Messages from a file: lines of text, JSON Lines, or CSV with chosen columns."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, NamedTuple

from sbclient.errors import InvalidOperationError
from sbclient.message import MAX_ID_LENGTH

LARGEST_FIELD: Final = 100 * 2**20
"""Characters in one CSV field: as much as the largest message of any tier. The reader's own limit is 128 KiB."""

JSON_LINES_SUFFIXES = (".jsonl", ".ndjson", ".json")


class Record(NamedTuple):
    """What becomes one message. `others` are further attributes by name, as text."""

    body: bytes
    session_id: str | None = None
    partition_key: str | None = None
    others: tuple[tuple[str, str], ...] = ()

    def __repr__(self) -> str:
        """Without the body and the properties."""
        return f"Record(session_id={self.session_id!r}, partition_key={self.partition_key!r})"


class Columns(NamedTuple):
    """Which columns, or members of a JSON object, are what; None = not used, and the whole row is the body.

    `others` are pairs of an attribute's name and its column.
    """

    body: str | None = None
    session: str | None = None
    key: str | None = None
    others: tuple[tuple[str, str], ...] = ()

    @property
    def any_named(self) -> bool:
        return any(self)

    @property
    def named(self) -> list[str]:
        """Every column that is used."""
        chosen = (self.body, self.session, self.key, *(column for _, column in self.others))
        return [column for column in chosen if column is not None]


class Format(StrEnum):
    """How a file is cut into messages."""

    LINES = "lines"
    JSONL = "jsonl"
    CSV = "csv"


def format_of(path: Path) -> Format:
    """What a file's suffix says: `.csv`; `.jsonl`, `.ndjson`, `.json` (an object a line); else lines."""
    suffix = path.suffix.lower()
    return Format.CSV if suffix == ".csv" else Format.JSONL if suffix in JSON_LINES_SUFFIXES else Format.LINES


def read_records(path: Path, columns: Columns) -> Iterator[Record]:
    """The messages in a file, as `records_of` reads them.

    Raises:
        OSError: the file cannot be opened.
    """
    with path.open(encoding="utf-8-sig", newline="") as lines:
        yield from records_of(lines, path.name, format_of(path), columns)


def records_of(lines: Iterator[str], name: str, form: Format, columns: Columns) -> Iterator[Record]:
    """The messages in lines of text. An empty session or key cell gives a message without one.

    Args:
        name: of the file, for errors.

    Raises:
        InvalidOperationError: a column does not exist, or a line cannot be read; it names file, line and column.
    """
    if columns.session is not None and columns.key is not None and columns.session != columns.key:
        raise InvalidOperationError(
            f"the session column {columns.session!r} and the key column {columns.key!r} differ, and a message's "
            "session_id and partition_key must be equal: name one of them"
        )
    if form is Format.LINES and columns.any_named:
        raise InvalidOperationError(f"{name} is read line by line and has no columns: use CSV or JSON Lines")
    try:
        if form is Format.CSV:
            yield from _csv_records(name, csv.DictReader(lines), columns)
        elif form is Format.JSONL:
            yield from _json_records(name, lines, columns)
        else:
            yield from (Record(text.encode()) for line in lines if (text := line.rstrip("\r\n")))
    except UnicodeDecodeError as error:
        raise InvalidOperationError(
            f"{name} is not UTF-8, byte {error.object[error.start]:#04x} has no meaning in it: save it as UTF-8"
        ) from None  # the error has the bytes


def _csv_records(name: str, rows: csv.DictReader[str], columns: Columns) -> Iterator[Record]:
    csv.field_size_limit(LARGEST_FIELD)
    try:
        known = rows.fieldnames or []
        for column in columns.named:
            if column not in known:
                raise InvalidOperationError(f"{name} has no column {column!r}; it has {', '.join(known) or 'none'}")
        for row in rows:
            place = f"{name}, line {rows.line_num}"
            if None in row or None in row.values():
                raise InvalidOperationError(f"{place}: not {len(known)} fields as in the first line")
            yield _record(place, row, columns)
    except csv.Error as error:
        raise InvalidOperationError(f"{name}, line {rows.line_num}: not CSV, {error}") from error


def _json_records(name: str, lines: Iterator[str], columns: Columns) -> Iterator[Record]:
    for place, row in json_objects(name, lines):
        for column in columns.named:
            if column not in row:
                raise InvalidOperationError(f"{place}: no member {column!r}")
        yield _record(place, row, columns)


def json_objects(name: str, lines: Iterator[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The objects of JSON Lines, each with its file and line; empty lines are passed over.

    Raises:
        InvalidOperationError: a line is no JSON object.
    """
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        place = f"{name}, line {number}"
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise InvalidOperationError(
                f"{place}: not JSON, {error.msg} at {error.colno}"
            ) from None  # the error has the line
        except (ValueError, RecursionError) as error:
            raise InvalidOperationError(
                f"{place}: a number is too long, or values lie too deep in each other"
            ) from error
        if not isinstance(row, dict):
            raise InvalidOperationError(f"{place}: a {type(row).__name__}, not an object")
        yield place, row


def _record(place: str, row: dict[str, Any], columns: Columns) -> Record:
    body = row if columns.body is None else row[columns.body]
    text = body if isinstance(body, str) else json.dumps(body, ensure_ascii=False)
    return Record(
        _encoded(place, text),
        session_id=_key(place, row, columns.session),
        partition_key=_key(place, row, columns.key),
        others=tuple(
            (attribute, str(cell)) for attribute, column in columns.others if (cell := row[column]) not in (None, "")
        ),
    )


def _encoded(place: str, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise InvalidOperationError(f"{place}: half a surrogate pair, which is no character") from None


def _key(place: str, row: dict[str, Any], column: str | None) -> str | None:
    value = None if column is None else row[column]
    if value is None or value == "":
        return None
    key = str(value)
    _encoded(place, key)
    if len(key) > MAX_ID_LENGTH:
        raise InvalidOperationError(
            f"{place}: {column!r} has {len(key)} characters, a session id or partition key has at most "
            f"{MAX_ID_LENGTH}: name another column"
        )
    return key
