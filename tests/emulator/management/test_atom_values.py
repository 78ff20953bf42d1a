"""Values of the management documents, there and back."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbclient.emulator.management.atom_values import (
    NO_LIMIT,
    read_any,
    read_flag,
    read_moment,
    read_span,
    read_whole,
    write_any,
    write_moment,
    write_span,
)
from sbclient.entities import NEVER, UNLIMITED
from sbclient.errors import InvalidOperationError


@pytest.mark.parametrize(
    ("text", "span"),
    [
        ("PT1M", timedelta(minutes=1)),
        ("PT0S", timedelta(0)),
        ("P14D", timedelta(days=14)),
        ("P1DT2H", timedelta(days=1, hours=2)),
        ("PT1H30M0.25S", timedelta(hours=1, minutes=30, milliseconds=250)),
        ("-PT5S", timedelta(seconds=-5)),
    ],
)
def test_span_is_read_and_written_alike(text: str, span: timedelta) -> None:
    assert read_span(text) == span
    assert write_span(span) == text


@pytest.mark.parametrize(
    ("text", "span"),
    [
        ("PT90S", timedelta(seconds=90)),
        ("P1Y", timedelta(days=365)),
        ("P2M", timedelta(days=60)),
        ("P1W", timedelta(days=7)),
        ("PT0.1234567S", timedelta(microseconds=123_456)),
        (" PT1S ", timedelta(seconds=1)),
    ],
)
def test_span_may_be_said_otherwise(text: str, span: timedelta) -> None:
    assert read_span(text) == span


@pytest.mark.parametrize("text", [NO_LIMIT, "P10675199DT2H48M5.477539S", "P999999999Y", "PT999999999999H"])
def test_the_longest_spans_mean_no_limit(text: str) -> None:
    assert read_span(text) == UNLIMITED


def test_no_limit_is_written_as_the_service_does() -> None:
    assert write_span(UNLIMITED) == write_span(timedelta(days=10_675_199)) == "P10675199DT2H48M5.4775807S"


@pytest.mark.parametrize("text", ["", "P", "PT", "1", "PT1", "P1S", "PTS", "P1DT", "PT1.S", "P-1D", "00:01:00", "PT١S"])
def test_what_is_no_span_is_refused(text: str) -> None:
    with pytest.raises(InvalidOperationError):
        read_span(text)


@given(st.timedeltas(min_value=timedelta(days=-9_999_999), max_value=timedelta(days=9_999_999)))
def test_every_span_survives_the_way_there_and_back(span: timedelta) -> None:
    assert read_span(write_span(span)) == span


@given(st.datetimes(timezones=st.just(UTC)))
def test_every_moment_survives_the_way_there_and_back(moment: datetime) -> None:
    assert read_moment(write_moment(moment)) == moment


def test_never_is_written_as_the_service_does() -> None:
    assert write_moment(NEVER) == "0001-01-01T00:00:00Z"


def test_moment_is_in_utc() -> None:
    assert read_moment("2026-01-31T12:00:00+02:00") == datetime(2026, 1, 31, 10, tzinfo=UTC)
    assert read_moment("2026-01-31T12:00:00.5") == datetime(2026, 1, 31, 12, 0, 0, 500_000, tzinfo=UTC)
    assert write_moment(datetime(2026, 1, 31, 12, tzinfo=timezone(timedelta(hours=2)))) == "2026-01-31T10:00:00Z"


@pytest.mark.parametrize("text", ["", "2026-01-31", "2026-13-01T00:00:00Z", "now", "0001-01-01T00:00:00+05:00"])
def test_what_is_no_moment_is_refused(text: str) -> None:
    with pytest.raises(InvalidOperationError):
        read_moment(text)


def test_flags_and_numbers() -> None:
    assert [read_flag(text) for text in ("true", "True", "1", "false", "0")] == [True, True, True, False, False]
    assert [read_whole(text) for text in ("0", "-5", "+7", str(2**63 - 1))] == [0, -5, 7, 2**63 - 1]


@pytest.mark.parametrize("text", ["", "yes", "2"])
def test_what_is_no_flag_is_refused(text: str) -> None:
    with pytest.raises(InvalidOperationError):
        read_flag(text)


@pytest.mark.parametrize("text", ["", "1.0", "a", "1_0", str(2**63), "9" * 30])
def test_what_is_no_whole_number_is_refused(text: str) -> None:
    with pytest.raises(InvalidOperationError):
        read_whole(text)


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        ("eu", "string", "eu"),
        (5, "int", "5"),
        (2**31, "long", "2147483648"),
        (-(2**31), "int", "-2147483648"),
        (True, "boolean", "true"),
        (2.5, "double", "2.5"),
        (datetime(2026, 1, 31, tzinfo=UTC), "dateTime", "2026-01-31T00:00:00Z"),
        (timedelta(hours=1), "duration", "PT1H"),
    ],
)
def test_value_of_any_type_says_its_type(value: Any, kind: str, text: str) -> None:
    assert write_any(value) == (kind, text)
    assert read_any(kind, text) == value


def test_numbers_that_are_not_finite_are_written_as_xml_does() -> None:
    assert [write_any(value)[1] for value in (float("inf"), float("-inf"), float("nan"))] == ["INF", "-INF", "NaN"]
    assert read_any("double", "-INF") == float("-inf")


@pytest.mark.parametrize(("kind", "text"), [("base64Binary", "aGk="), ("int", "x"), ("double", "1_0"), ("", "a")])
def test_value_of_an_unknown_type_or_form_is_refused(kind: str, text: str) -> None:
    with pytest.raises(InvalidOperationError):
        read_any(kind, text)


def test_value_that_no_document_holds_is_refused() -> None:
    with pytest.raises(InvalidOperationError):
        write_any(b"raw")
