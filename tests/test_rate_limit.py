from __future__ import annotations

import asyncio

import pytest

from sbclient import clock
from sbclient.options import SyphonLimits
from sbclient.rate_limit import RateLimiter, RateLimits


async def test_without_a_limit_nothing_waits() -> None:
    limiter = RateLimiter(None, None)
    assert [await limiter.take(1_000_000, 10**9) for _ in range(3)] == [0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("messages_per_second", "bytes_per_second", "expected_s"),
    [(10.0, None, 9.0), (None, 1000.0, 18.0), (10.0, 1000.0, 18.0), (1000.0, 1000.0, 18.0)],
)
async def test_the_lower_of_two_rates_holds_over_time(
    messages_per_second: float | None, bytes_per_second: float | None, expected_s: float
) -> None:
    limiter = RateLimiter(messages_per_second, bytes_per_second)
    began_at = clock.monotonic()
    for _ in range(10):
        await limiter.take(10, 2000)
    assert clock.monotonic() - began_at == pytest.approx(expected_s)


async def test_unused_rate_is_not_saved() -> None:
    limiter = RateLimiter(10.0, None)
    await limiter.take(10, 0)
    await clock.sleep(100.0)
    assert await limiter.take(10, 0) == 0.0
    assert await limiter.take(10, 0) == pytest.approx(1.0)


async def test_rates_hold_in_total_and_for_each_destination() -> None:
    rates = RateLimits(SyphonLimits(max_messages_per_second=10.0, max_messages_per_second_per_destination=2.0))
    assert rates.group_messages == 1
    for _ in range(20):
        await rates.take("orders", 1)
    assert clock.monotonic() == pytest.approx(9.5)
    began_at = clock.monotonic()
    await asyncio.gather(*(rates.take(f"queue{number}", 1) for number in range(20)))
    assert clock.monotonic() - began_at == pytest.approx(1.9, abs=0.11)


async def test_the_rate_of_a_destination_holds_also_after_a_wait_for_the_total_rate() -> None:
    rates = RateLimits(SyphonLimits(max_messages_per_second=10.0, max_messages_per_second_per_destination=5.0))
    sent: list[float] = []

    async def send_twice() -> None:
        for _ in range(2):
            await rates.take("orders", 2)
            sent.append(clock.monotonic())

    others = [rates.take(f"queue{number}", 1) for number in range(5)]
    await asyncio.gather(*others, send_twice())
    assert sent[0] == pytest.approx(0.5)
    assert sent[1] - sent[0] == pytest.approx(0.4)


async def test_the_rate_limit_of_a_destination_ignores_the_case_of_its_path() -> None:
    rates = RateLimits(SyphonLimits(max_messages_per_second_per_destination=1.0))
    assert rates.to("Orders") is rates.to("orders")


async def test_the_number_of_rate_limiters_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sbclient.rate_limit.LIMITERS_KEPT", 3)
    rates = RateLimits(SyphonLimits(max_messages_per_second_per_destination=1.0))
    first = rates.to("queue0")
    for number in range(1, 4):
        rates.to(f"queue{number}")
    assert rates.to("queue0") is not first


@pytest.mark.parametrize(("rate", "group"), [(None, 100), (0.1, 1), (10.0, 5), (10_000.0, 100)])
def test_what_leaves_at_once_is_small_where_the_rate_is_low(rate: float | None, group: int) -> None:
    rates = RateLimits(SyphonLimits(max_messages_per_second=rate))
    assert rates.group_messages == group
