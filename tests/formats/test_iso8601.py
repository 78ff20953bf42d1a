"""Durations and timestamps in ISO 8601, read and written."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbclient.entities import NEVER, UNLIMITED
from sbclient.errors import InvalidOperationError
from sbclient.formats.iso8601 import NO_LIMIT, read_duration, read_timestamp, write_duration, write_timestamp


@pytest.mark.parametrize(
    ("text", "duration"),
    [
        ("PT1M", timedelta(minutes=1)),
        ("PT0S", timedelta(0)),
        ("P14D", timedelta(days=14)),
        ("P1DT2H", timedelta(days=1, hours=2)),
        ("PT1H30M0.25S", timedelta(hours=1, minutes=30, milliseconds=250)),
        ("-PT5S", timedelta(seconds=-5)),
    ],
)
def test_duration_is_read_as_it_is_written(text: str, duration: timedelta) -> None:
    assert read_duration(text) == duration
    assert write_duration(duration) == text


@pytest.mark.parametrize(
    ("text", "duration"),
    [
        ("PT90S", timedelta(seconds=90)),
        ("P1Y", timedelta(days=365)),
        ("P2M", timedelta(days=60)),
        ("P1W", timedelta(days=7)),
        ("PT0.1234567S", timedelta(microseconds=123_456)),
        (" PT1S ", timedelta(seconds=1)),
    ],
)
def test_duration_may_be_said_otherwise(text: str, duration: timedelta) -> None:
    assert read_duration(text) == duration


@pytest.mark.parametrize("text", [NO_LIMIT, "P10675199DT2H48M5.477581S", "P999999999Y", "PT999999999999H"])
def test_the_longest_durations_mean_no_limit(text: str) -> None:
    assert read_duration(text) == UNLIMITED


def test_no_limit_is_written_as_the_service_does() -> None:
    assert write_duration(UNLIMITED) == "P10675199DT2H48M5.4775807S"


def test_duration_just_below_the_longest_stays_as_it_is() -> None:
    assert write_duration(read_duration("P10675199DT2H48M5.477539S")) == "P10675199DT2H48M5.477539S"


@pytest.mark.parametrize("text", ["", "P", "PT", "1", "PT1", "P1S", "PTS", "P1DT", "PT1.S", "P-1D", "00:01:00", "PT١S"])
def test_text_that_is_no_duration_is_rejected(text: str) -> None:
    with pytest.raises(InvalidOperationError):
        read_duration(text)


@given(st.timedeltas(min_value=timedelta(days=-9_999_999), max_value=timedelta(days=9_999_999)))
def test_every_duration_survives_the_way_there_and_back(duration: timedelta) -> None:
    assert read_duration(write_duration(duration)) == duration


@given(st.datetimes(timezones=st.just(UTC)))
def test_every_timestamp_survives_the_way_there_and_back(timestamp: datetime) -> None:
    assert read_timestamp(write_timestamp(timestamp)) == timestamp


def test_never_is_written_as_the_service_does() -> None:
    assert write_timestamp(NEVER) == "0001-01-01T00:00:00Z"


@pytest.mark.parametrize("zone", ["UTC", "Asia/Kolkata"])
def test_timestamp_without_a_zone_is_in_utc_wherever_the_program_runs(
    zone: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        naive = datetime(2026, 1, 31, 12)  # noqa: DTZ001
        assert write_timestamp(naive) == "2026-01-31T12:00:00Z" == write_timestamp(naive.replace(tzinfo=UTC))
        assert read_timestamp("2026-01-31T12:00:00") == naive.replace(tzinfo=UTC)
    finally:
        monkeypatch.undo()
        time.tzset()


def test_timestamp_is_in_utc() -> None:
    assert read_timestamp("2026-01-31T12:00:00+02:00") == datetime(2026, 1, 31, 10, tzinfo=UTC)
    assert read_timestamp("2026-01-31T12:00:00.5") == datetime(2026, 1, 31, 12, 0, 0, 500_000, tzinfo=UTC)
    assert write_timestamp(datetime(2026, 1, 31, 12, tzinfo=timezone(timedelta(hours=2)))) == "2026-01-31T10:00:00Z"


@pytest.mark.parametrize("text", ["", "2026-01-31", "2026-13-01T00:00:00Z", "now", "0001-01-01T00:00:00+05:00"])
def test_text_that_is_no_timestamp_is_rejected(text: str) -> None:
    with pytest.raises(InvalidOperationError):
        read_timestamp(text)
