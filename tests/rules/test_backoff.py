"""The pauses of the exponential back-off."""

from __future__ import annotations

from random import Random

from sbclient.rules.backoff import growing


def test_the_pause_doubles_up_to_the_limit() -> None:
    assert [growing(1.0, 20.0)(failures) for failures in range(1, 8)] == [1, 2, 4, 8, 16, 20, 20]


def test_the_first_pause_is_limited_too() -> None:
    assert growing(5.0, 3.0)(1) == 3.0


def test_any_number_of_failures_has_a_pause() -> None:
    assert growing(0.8, 30.0)(10**6) == 30.0


def test_jitter_shortens_a_pause_by_up_to_a_half() -> None:
    pauses = [growing(1.0, 8.0, Random(seed))(3) for seed in range(100)]
    assert 2.0 <= min(pauses) < 2.1
    assert 3.9 < max(pauses) <= 4.0
