"""The progress line: time, rate and remaining time."""

from __future__ import annotations

import pytest

from sbclient.cli.progress import REDRAW_S, Amount, Progress, span_text


def test_line_has_rate_and_remaining_time() -> None:
    done = 0
    progress = Progress("sending")
    assert progress.line(2) == "sending  2 s"
    progress.follow(lambda: Amount(f"accepted {done:,}", done, 10_000))
    assert progress.line(2) == "accepted 0  2 s"
    assert progress.line(3) == "accepted 0  3 s, 0 per second"
    done = 4000
    assert progress.line(4) == "accepted 4,000  4 s, 2,000 per second, 3 s left"
    progress.show("closing")
    assert progress.line(5) == "closing  5 s"


def test_line_without_a_known_end_has_no_remaining_time() -> None:
    done = 0
    progress = Progress("receiving")
    progress.follow(lambda: Amount(f"received {done}", done))
    progress.line(0)
    done = 5
    assert progress.line(1) == "received 5  1 s, 5 per second"


def test_rate_is_that_of_the_last_seconds() -> None:
    done = 0
    progress = Progress("receiving")
    progress.follow(lambda: Amount("received", done))
    for second in range(100):
        done += 1000 if second < 50 else 1
        line = progress.line(second)
    assert line == "received  99 s, 1 per second"


def test_rate_is_measured_over_five_seconds() -> None:
    done = 0
    progress = Progress("receiving")
    progress.follow(lambda: Amount("received", done))
    for redraw in range(101):
        done = 1000 if redraw > 75 else 0
        line = progress.line(redraw * REDRAW_S)
    assert line == "received  20 s, 200 per second"


def test_rate_of_another_amount_starts_again() -> None:
    progress = Progress("sending")
    progress.follow(lambda: Amount("first", 1000))
    progress.line(1)
    progress.follow(lambda: Amount("second", 100))
    assert progress.line(2) == "second  2 s"
    assert progress.line(3) == "second  3 s, 0 per second"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.4, "0 s"),
        (99.6, "100 s"),
        (100, "100 s"),
        (119.4, "119 s"),
        (119.6, "2 min"),
        (5900, "98 min"),
        (7140, "119 min"),
        (7200, "2 h 0 min"),
        (7500, "2 h 5 min"),
    ],
)
def test_time_is_short(seconds: float, text: str) -> None:
    assert span_text(seconds) == text
