"""The pauses of the exponential back-off."""

from __future__ import annotations

from sbclient.rules.backoff import backoff_s


def test_the_pause_doubles_up_to_the_limit() -> None:
    assert [backoff_s(failures, first_s=1.0, longest_s=20.0) for failures in range(1, 8)] == [1, 2, 4, 8, 16, 20, 20]


def test_the_first_pause_is_limited_too() -> None:
    assert backoff_s(1, first_s=5.0, longest_s=3.0) == 3.0


def test_any_number_of_failures_has_a_pause() -> None:
    assert backoff_s(10**6, first_s=0.8, longest_s=30.0) == 30.0
