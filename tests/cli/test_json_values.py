"""Values in the JSON that commands print and read."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbclient.cli.json_values import moment_of, plain, property_json, property_of, span_of
from sbclient.entities import NEVER, UNLIMITED, EntityStatus
from sbclient.errors import InvalidOperationError

PROPERTIES = st.one_of(
    st.text(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(),
    st.booleans(),
    st.none(),
    st.datetimes(
        min_value=datetime(1, 1, 2),  # noqa: DTZ001
        timezones=st.just(UTC),
    ),
    st.uuids(),
    st.decimals(allow_nan=False),
    st.binary(),
)


@given(value=PROPERTIES)
def test_a_property_is_the_same_again_with_the_same_type(value: Any) -> None:
    again = property_of(json.loads(json.dumps(property_json(value))))
    assert type(again) is type(value)
    assert again == value or (isinstance(value, float) and math.isnan(value))


@pytest.mark.parametrize(
    "value",
    [{"datetime": "soon"}, {"uuid": "x"}, {"decimal": "ten"}, {"base64": "%"}, {"uuid": 5}, {"a": "b"}, {}, ["a"]],
)
def test_what_is_no_property_is_refused(value: Any) -> None:
    with pytest.raises(InvalidOperationError):
        property_of(value)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (datetime(2030, 1, 2, 3, 4, 5, 600_000, tzinfo=UTC), "2030-01-02T03:04:05.6Z"),
        (datetime(2030, 1, 2, tzinfo=UTC), "2030-01-02T00:00:00Z"),
        (timedelta(minutes=1, seconds=30), "PT1M30S"),
        (UNLIMITED, None),
        (timedelta(days=10_675_199, hours=2), None),
        (NEVER, None),
        (EntityStatus.ACTIVE, "Active"),
        (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (Decimal("1.50"), "1.50"),
    ],
)
def test_values_that_json_lacks_are_written_in_iso_8601(value: Any, text: str | None) -> None:
    assert plain(value) == text


def test_what_has_no_form_is_no_json() -> None:
    with pytest.raises(TypeError):
        plain(object())


@pytest.mark.parametrize(
    ("text", "span"),
    [
        ("30s", timedelta(seconds=30)),
        ("1.5m", timedelta(seconds=90)),
        ("2h", timedelta(hours=2)),
        ("7d", timedelta(days=7)),
        ("PT30S", timedelta(seconds=30)),
        ("P14D", timedelta(days=14)),
        ("unlimited", UNLIMITED),
        ("never", UNLIMITED),
        ("P10675199DT2H48M5.4775807S", UNLIMITED),
        ("9" * 400 + "d", UNLIMITED),
        ("90", timedelta(seconds=90)),
    ],
)
def test_spans_are_read_as_people_write_them(text: str, span: timedelta) -> None:
    assert span_of(text) == span


@pytest.mark.parametrize("text", ["", "soon", "s", "1e9d", "30x", "-5s"])
def test_what_is_no_span_is_refused(text: str) -> None:
    with pytest.raises(InvalidOperationError):
        span_of(text)


def test_a_moment_without_a_zone_is_in_utc() -> None:
    assert moment_of("2030-01-02T03:04:05") == datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)
    with pytest.raises(InvalidOperationError):
        moment_of("tomorrow")
