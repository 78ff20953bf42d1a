from __future__ import annotations

import pytest

from sbclient.testing import VirtualClock
from sbclient_spark.pace import Pace


async def test_without_a_limit_nothing_waits(clock: VirtualClock) -> None:
    pace = Pace(clock, None, None)
    assert [await pace.take(1_000_000, 10**9) for _ in range(3)] == [0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("messages_per_second", "bytes_per_second", "expected_s"),
    [(10.0, None, 9.0), (None, 1000.0, 18.0), (10.0, 1000.0, 18.0), (1000.0, 1000.0, 18.0)],
)
async def test_the_slower_of_two_rates_holds_over_any_span(
    clock: VirtualClock, messages_per_second: float | None, bytes_per_second: float | None, expected_s: float
) -> None:
    pace = Pace(clock, messages_per_second, bytes_per_second)
    began_at = clock.monotonic()
    for _ in range(10):
        await pace.take(10, 2000)
    assert clock.monotonic() - began_at == pytest.approx(expected_s)


async def test_what_was_not_used_is_not_saved_up(clock: VirtualClock) -> None:
    pace = Pace(clock, 10.0, None)
    await pace.take(10, 0)
    await clock.sleep(100.0)
    assert await pace.take(10, 0) == 0.0
    assert await pace.take(10, 0) == pytest.approx(1.0)
