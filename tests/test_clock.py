from __future__ import annotations

import asyncio
import time

import pytest

from sbclient import clock
from sbclient.testing import VirtualLoop


async def test_sleep_passes_virtual_time_on_both_readings() -> None:
    await clock.sleep(90.5)
    assert clock.monotonic() == 90.5
    assert clock.now() == 1_700_000_090.5


async def test_skew_is_inherited_by_tasks_and_moves_only_the_wall_clock() -> None:
    async def read() -> tuple[float, float, float]:
        return clock.now(), clock.true_now(), clock.monotonic()

    clock.SKEW_S.set(500.0)
    skewed = asyncio.ensure_future(read())
    clock.SKEW_S.set(0.0)
    assert await skewed == (1_700_000_500.0, 1_700_000_000.0, 0.0)
    assert await read() == (1_700_000_000.0, 1_700_000_000.0, 0.0)


async def test_timeout_cancels_its_body_at_the_exact_time() -> None:
    with pytest.raises(TimeoutError):
        async with clock.timeout(30.0):
            await asyncio.Event().wait()
    assert clock.monotonic() == 30.0


async def test_timeout_of_none_never_ends() -> None:
    async with clock.timeout(None):
        await clock.sleep(86400.0)
    assert clock.monotonic() == 86400.0


async def test_wait_for_ends_with_the_event_or_with_the_time() -> None:
    event = asyncio.Event()
    assert not await clock.wait_for(event, 2.0)
    clock.call_later(3.0, event.set)
    assert await clock.wait_for(event, None)
    assert clock.monotonic() == 5.0
    assert await clock.wait_for(event, 0.0)


async def test_call_later_calls_once_unless_cancelled() -> None:
    called: list[float] = []
    clock.call_later(5.0, lambda: called.append(clock.monotonic()))
    clock.call_later(6.0, lambda: called.append(-1.0)).cancel()
    await clock.sleep(100.0)
    assert called == [5.0]


async def test_async_tests_run_in_virtual_time_by_default() -> None:
    assert isinstance(asyncio.get_running_loop(), VirtualLoop)


@pytest.mark.real_time
async def test_the_marker_chooses_a_real_loop_and_the_real_clock_reads_the_machine() -> None:
    loop = asyncio.get_running_loop()
    assert not isinstance(loop, VirtualLoop)
    before, begun = time.time(), loop.time()
    wall, span = clock.now(), clock.monotonic()
    assert before <= wall <= time.time()
    assert begun <= span <= loop.time()
