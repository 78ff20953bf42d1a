from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbclient.errors import InvalidOperationError
from sbclient.settings.durations import duration_text, seconds_of


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90.0),
        ("0", 0.0),
        ("1.5 s", 1.5),
        ("250ms", 0.25),
        (" 10 Minutes ", 600.0),
        ("2h", 7200.0),
        ("1 day", 86400.0),
        ("PT1H30M", 5400.0),
        ("P1DT0.5S", 86400.5),
        ("P2W", 1209600.0),
        ("pt20s", 20.0),
        ("P1.5D", 129_600.0),
        ("PT1H0,5M", 3630.0),
    ],
)
def test_a_span_is_read_in_seconds(text: str, seconds: float) -> None:
    assert seconds_of(text) == seconds


@pytest.mark.parametrize(
    "text",
    [
        "",
        "P",
        "PT",
        "P1DT",
        "-1",
        "1 fortnight",
        "P1Y",
        "P1M",
        "soon",
        "1,5",
        "nan",
        "P1.5DT1H",
        "P0,5DT0S",
        "PT1.5H1S",
        "PT0.5M0.5S",
        "P1W1D",
    ],
)
def test_invalid_duration_is_rejected(text: str) -> None:
    with pytest.raises(InvalidOperationError):
        seconds_of(text)


@pytest.mark.parametrize(
    ("seconds", "text"), [(90.0, "90 s"), (900.0, "15 min"), (86400.0, "24 h"), (172800.0, "2 d"), (0.1, "0.1 s")]
)
def test_duration_text_is_readable(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text
    assert seconds_of(text) == seconds


@given(
    st.floats(0, 1e16)
    | st.integers(0, 10**12)
    | st.timedeltas(timedelta(0), timedelta.max).map(timedelta.total_seconds)
    | st.integers(1, 10**9).map(lambda days: days * 86_400.0)
)
def test_every_duration_that_is_written_is_read(seconds: float) -> None:
    assert seconds_of(duration_text(seconds)) == seconds
