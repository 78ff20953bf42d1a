from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import pytest

from sbclient.errors import InvalidOperationError
from sbclient.settings.kinds import SIZE, duration, kind_of, whole
from sbclient.settings.table import read_texts, setting, settings_of, suggestion


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    batch_bytes: int = setting("The largest batch.", "Limits", kind=SIZE, default=2**20, unit="bytes")
    wait: float | None = setting("How long to wait.", kind=duration(1, 60), unit="seconds")
    key: str = setting("The key.", default="", variable="THE_KEY", is_secret=True)
    is_dry: bool = setting("Send nothing.", name="dryRun", default=False)
    undeclared: int = 0


TABLE = settings_of(Example, variable_prefix="EXAMPLE_")


def test_table_has_the_declared_fields_in_order() -> None:
    assert list(TABLE) == ["batch_bytes", "wait", "key", "dryRun"]
    assert (TABLE["dryRun"].attribute, TABLE["dryRun"].default) == ("is_dry", False)
    assert (TABLE["batch_bytes"].variable, TABLE["key"].variable) == ("EXAMPLE_BATCH_BYTES", "THE_KEY")
    assert TABLE["batch_bytes"].option == "--batch-bytes"


def test_names_can_be_derived_from_the_attributes() -> None:
    table = settings_of(Example, name_of=lambda name: name.replace("_", ""))
    assert list(table) == ["batchbytes", "wait", "key", "dryRun"]


def test_read_texts_returns_values_by_attribute() -> None:
    values = read_texts({"BATCH_BYTES": "64 KiB", "dryrun": "true", "wait": "PT5S"}, TABLE, "option")
    assert Example(**values) == Example(batch_bytes=65536, is_dry=True, wait=5.0)


@pytest.mark.parametrize(("name", "text"), [("batch_bytes", "0"), ("wait", "61 s"), ("wait", "soon"), ("dryRun", "2")])
def test_read_texts_names_option_and_value_that_is_not_allowed(name: str, text: str) -> None:
    with pytest.raises(InvalidOperationError, match=f"{name}.*{text}"):
        read_texts({name: text}, TABLE, "option")


def test_read_texts_suggests_a_name_without_showing_the_text() -> None:
    with pytest.raises(InvalidOperationError, match="did you mean batch_bytes") as caught:
        read_texts({"batchbytes": "SECRET"}, TABLE, "option")
    assert "SECRET" not in str(caught.value)


def test_suggestion_lists_all_names_if_none_is_near() -> None:
    assert suggestion("zzz", ["queue", "topic"]) == "known are queue, topic"


def test_secret_is_not_shown() -> None:
    assert TABLE["key"].shown("SECRET") == "(hidden)"
    assert TABLE["key"].shown("") == ""
    assert "SECRET" not in repr(Example(key="SECRET"))


def test_kind_describes_its_range() -> None:
    assert (whole(0, 65_535).word, duration(1, 3600).word) == (
        "whole number from 0 to 65,535",
        "duration from 1 s to 1 h",
    )


@pytest.mark.parametrize(("size", "text"), [(64 * 2**20, "64 MiB"), (1000, "1000"), (2**30, "1 GiB"), (1536, "1536")])
def test_size_text_is_readable(size: int, text: str) -> None:
    assert SIZE.show(size) == text
    assert SIZE.parse("size", text) == size


def test_kind_follows_from_the_type_of_the_field() -> None:
    @dataclass(frozen=True, slots=True, kw_only=True)
    class Inferred:
        mode: Literal["peek", "receive"] | None = setting("The mode.")
        names: tuple[str, ...] = setting("Names.", default=())

    table = settings_of(Inferred)
    assert read_texts({"mode": "PEEK", "names": "a, b"}, table, "option") == {"mode": "peek", "names": ("a", "b")}
    with pytest.raises(InvalidOperationError, match="it must be one of peek, receive"):
        read_texts({"mode": "take"}, table, "option")


@pytest.mark.parametrize("hint", [int, float | None, str | bool, list[str]])
def test_type_that_allows_too_much_requires_a_kind(hint: Any) -> None:
    with pytest.raises(TypeError, match="kind="):
        kind_of(hint)
