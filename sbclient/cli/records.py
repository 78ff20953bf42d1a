"""Reads messages from lines of text, JSON Lines, or CSV with chosen columns."""

from __future__ import annotations

import codecs
import csv
import json
import re
from collections.abc import Iterable, Iterator
from enum import StrEnum
from io import TextIOWrapper
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple, TextIO

from sbclient.errors import InvalidOperationError
from sbclient.formats.strict_json import read_json
from sbclient.message import MAX_ID_LENGTH

LARGEST_FIELD: Final = 100 * 2**20
"""Characters in one CSV field: the largest message of any tier. The default of the `csv` module is 128 KiB."""
MAX_LINE_BYTES: Final = 135 * 2**20
"""Of one line in UTF-8: room for the largest message in base64."""
_PIECE_LENGTH: Final = 2**20
"""The characters of a line that are read at a time."""

JSON_LINES_SUFFIXES = (".jsonl", ".ndjson", ".json")


class Record(NamedTuple):
    """One record of the input, which becomes one message. `others` are further attributes by name, as text."""

    body: bytes
    session_id: str | None = None
    partition_key: str | None = None
    others: tuple[tuple[str, str], ...] = ()

    def __repr__(self) -> str:
        """Omit the body and the properties."""
        return f"Record(session_id={self.session_id!r}, partition_key={self.partition_key!r})"


class Columns(NamedTuple):
    """Names of columns, or of members of a JSON object.

    Attributes:
        body: the column of the body; None = the whole row as JSON.
        session, key: the columns of the session id and the partition key; None = none.
        others: pairs of an attribute's name and its column.
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
        """The names of all chosen columns."""
        chosen = (self.body, self.session, self.key, *(column for _, column in self.others))
        return [column for column in chosen if column is not None]


class Format(StrEnum):
    """How an input is divided into messages. `messages` is the output of `receive` and `peek`."""

    LINES = "lines"
    JSONL = "jsonl"
    CSV = "csv"
    MESSAGES = "messages"


def format_of(path: Path) -> Format:
    """Return the format of a file's suffix: `.csv`; `.jsonl`, `.ndjson`, `.json` (one object per line); else lines."""
    suffix = path.suffix.lower()
    return Format.CSV if suffix == ".csv" else Format.JSONL if suffix in JSON_LINES_SUFFIXES else Format.LINES


def read_records(path: Path, columns: Columns) -> Iterator[Record]:
    """Yield the records of a file in UTF-8 like `records_of`.

    Raises:
        OSError: the file cannot be opened.
    """
    with open_text(path, UTF_8) as lines:
        yield from records_of(decoded(lines, path.name, UTF_8), path.name, format_of(path), columns)


def open_text(file: Path | int, encoding: str) -> TextIO:
    """Open a file, or a descriptor that stays open, for `decoded`.

    Raises:
        InvalidOperationError: there is no such encoding.
        OSError: the file cannot be opened.
    """
    return text_of(open(file, "rb", closefd=not isinstance(file, int)), encoding)


def text_of(stream: BinaryIO, encoding: str) -> TextIO:
    """Return the text of a stream; like `open_text`."""
    try:
        # A byte order mark is no part of the first line. Bytes that cannot be decoded become surrogates.
        name = codecs.lookup(encoding).name
        return TextIOWrapper(stream, "utf-8-sig" if name == "utf-8" else name, errors="surrogateescape", newline="")
    except LookupError as error:
        raise InvalidOperationError(
            f"there is no text encoding {encoding!r:.80}: give a name such as utf-8, utf-16, latin-1 or cp1252"
        ) from error


def limited_lines(text: TextIO) -> Iterator[str]:
    """Yield the lines of a text, which may be a pipe or a device without line breaks.

    Raises:
        InvalidOperationError: a line is longer than any message can be.
    """
    ahead = ""
    while piece := ahead or text.readline(_PIECE_LENGTH):
        is_cut = bool(ahead) or len(piece) == _PIECE_LENGTH
        ahead = ""
        if not is_cut:
            yield piece
            continue
        # In UTF-8, because text may take four times as much, and in pieces, because to join them takes as much again.
        pieces, size_bytes = [], 0
        while True:
            pieces.append(piece.encode("utf-8", "surrogatepass"))
            size_bytes += len(pieces[-1])
            if size_bytes > MAX_LINE_BYTES:
                raise InvalidOperationError(
                    f"a line of the input has more than {MAX_LINE_BYTES:,} bytes: name another input"
                )
            if not is_cut or piece.endswith(("\r", "\n")):
                break
            piece = text.readline(_PIECE_LENGTH)
            is_cut = len(piece) == _PIECE_LENGTH
        if is_cut and piece.endswith("\r"):
            ahead = text.readline(1)  # the rest of this end of the line, or the first character of the next one
            if ahead == "\n":
                pieces.append(b"\n")
                ahead = ""
        yield b"".join(pieces).decode("utf-8", "surrogatepass")


def decoded(lines: Iterable[str], name: str, encoding: str) -> Iterator[str]:
    """Yield lines of `open_text` as far as their bytes belong to the encoding.

    Raises:
        InvalidOperationError: a line has other bytes. The text names file, line and byte.
    """
    if isinstance(lines, TextIOWrapper):
        lines = limited_lines(lines)
    number = 0
    try:
        for number, line in enumerate(lines, start=1):
            if not line.isascii() and (found := _UNDECODED.search(line)) is not None:
                byte, column = ord(found[0]) - _FIRST_UNDECODED, found.start() + 1
                raise InvalidOperationError(
                    f"{name}, line {number}: byte {byte:#04x} at column {column} is not {encoding}: name the encoding "
                    "of the input with --encoding, or save it as UTF-8"
                )
            yield line
    except UnicodeDecodeError:  # of encodings with more than one byte for each character
        raise InvalidOperationError(
            f"{name}, after line {number}: the text is not {encoding}: see --encoding"
        ) from None


UTF_8: Final = "UTF-8"
_FIRST_UNDECODED: Final = 0xDC00
_UNDECODED: Final = re.compile("[\udc80-\udcff]")
"""What "surrogateescape" makes of a byte that cannot be decoded."""


def records_of(lines: Iterator[str], name: str, form: Format, columns: Columns) -> Iterator[Record]:
    """Yield the records of lines of text. An empty session or key cell means that the message has none.

    Args:
        name: of the file, for errors.
        form: any but `MESSAGES`.

    Raises:
        InvalidOperationError: a column does not exist or a line is invalid. The text names file, line and column.
    """
    if columns.session is not None and columns.key is not None and columns.session != columns.key:
        raise InvalidOperationError(
            f"the session column {columns.session!r} and the key column {columns.key!r} differ, but session_id and "
            "partition_key of a message must be equal: name one column"
        )
    if form is Format.LINES and columns.any_named:
        raise InvalidOperationError(f"{name} is read as lines, which have no columns: use CSV or JSON Lines")
    if form is Format.CSV:
        yield from _csv_records(name, lines, columns)
    elif form is Format.JSONL:
        yield from _json_records(name, lines, columns)
    else:
        yield from (Record(line.rstrip("\r\n").encode()) for line in lines)


def _csv_records(name: str, lines: Iterator[str], columns: Columns) -> Iterator[Record]:
    csv.field_size_limit(LARGEST_FIELD)
    rows = csv.reader(lines)
    try:
        known = next(rows, [])
        for column in columns.named:
            if column not in known:
                raise InvalidOperationError(f"{name} has no column {column!r}; it has {', '.join(known) or 'none'}")
        for row in rows:
            place = f"{name}, line {rows.line_num}"
            if not row:
                raise _empty(place)
            if len(row) != len(known):
                raise InvalidOperationError(f"{place}: the row does not have {len(known)} fields like the first line")
            yield _record(place, dict(zip(known, row, strict=True)), columns)
    except csv.Error as error:
        raise InvalidOperationError(f"{name}, line {rows.line_num}: invalid CSV: {error}") from error


def _json_records(name: str, lines: Iterator[str], columns: Columns) -> Iterator[Record]:
    for place, row in json_objects(name, lines):
        for column in columns.named:
            if column not in row:
                raise InvalidOperationError(f"{place}: the object has no member {column!r}")
        yield _record(place, row, columns)


def json_objects(name: str, lines: Iterator[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the objects of JSON Lines, each with its file and line.

    Raises:
        InvalidOperationError: a line is not a JSON object.
    """
    for number, line in enumerate(lines, start=1):
        place = f"{name}, line {number}"
        if not line.strip():
            raise _empty(place)
        try:
            row = read_json(line)
        except InvalidOperationError as error:
            raise InvalidOperationError(f"{place}: {error.message}") from None
        if not isinstance(row, dict):
            raise InvalidOperationError(f"{place}: the line is a JSON {type(row).__name__}, not an object")
        yield place, row


def _empty(place: str) -> InvalidOperationError:
    return InvalidOperationError(f"{place}: the line is empty and has no record: remove it")


def _record(place: str, row: dict[str, Any], columns: Columns) -> Record:
    return Record(
        _encoded(place, _text(row if columns.body is None else row[columns.body])),
        session_id=_key(place, row, columns.session),
        partition_key=_key(place, row, columns.key),
        others=tuple(
            (attribute, _text(cell)) for attribute, column in columns.others if (cell := row[column]) not in (None, "")
        ),
    )


def _text(cell: Any) -> str:
    return cell if isinstance(cell, str) else json.dumps(cell, ensure_ascii=False)


def _encoded(place: str, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise InvalidOperationError(f"{place}: the text contains half of a surrogate pair: remove it") from None


def _key(place: str, row: dict[str, Any], column: str | None) -> str | None:
    value = None if column is None else row[column]
    if value is None or value == "":
        return None
    key = str(value)
    _encoded(place, key)
    if len(key) > MAX_ID_LENGTH:
        raise InvalidOperationError(
            f"{place}: {column!r} has {len(key)} characters, but a session id or partition key has at most "
            f"{MAX_ID_LENGTH}: name another column"
        )
    return key
