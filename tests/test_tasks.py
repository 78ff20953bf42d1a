"""Background tasks with an owner."""

from __future__ import annotations

import asyncio

import pytest

from sbclient import clock
from sbclient.tasks import OwnedTasks, gather


async def fail() -> None:
    raise ZeroDivisionError


async def tidying(tidied: list[float]) -> None:
    """Work that needs 3 s to tidy up, and notes when it has."""
    try:
        await clock.sleep(100.0)
    finally:
        await clock.sleep(3.0)
        tidied.append(clock.monotonic())


async def test_closing_cancels_and_waits() -> None:
    tidied: list[float] = []
    tasks = OwnedTasks()
    task = tasks.start(tidying(tidied), name="work")
    await clock.sleep(1.0)
    await tasks.close()
    assert task.cancelled()
    assert tidied == [4.0]
    await tasks.close()


async def test_a_second_close_does_not_interrupt_cleanup() -> None:
    tidied: list[float] = []
    tasks = OwnedTasks()
    tasks.start(tidying(tidied), name="work")
    await clock.sleep(1.0)
    first = asyncio.ensure_future(tasks.close())
    await clock.sleep(1.0)
    first.cancel()
    await tasks.close()
    assert tidied == [4.0]
    await asyncio.wait([first])


async def test_after_closing_nothing_starts() -> None:
    tasks = OwnedTasks()
    await tasks.close()
    with pytest.raises(RuntimeError, match="late"):
        tasks.start(fail(), name="late")


async def test_a_task_may_close_its_owner() -> None:
    tasks = OwnedTasks()
    task = tasks.start(tasks.close(), name="closes")
    await task
    assert tasks.is_closed


async def test_a_failure_is_reported_or_logged(caplog: pytest.LogCaptureFixture) -> None:
    failures: list[BaseException] = []
    for tasks in (OwnedTasks(on_failure=failures.append), OwnedTasks()):
        await asyncio.wait([tasks.start(fail(), name="fails")])
        await asyncio.sleep(0)
        await tasks.close()
    assert [type(error) for error in failures] == [ZeroDivisionError]
    assert [vars(record)["event_name"] for record in caplog.records] == ["task.failed"]


async def test_a_task_whose_timeout_expires_during_close_ends_too() -> None:
    rounds: list[float] = []

    async def work() -> None:
        while True:
            rounds.append(clock.monotonic())
            try:
                async with clock.timeout(10.0):
                    await asyncio.Event().wait()
            except TimeoutError:
                continue

    moment = asyncio.get_running_loop().create_future()
    clock.call_later(10.0, lambda: moment.set_result(None))
    tasks = OwnedTasks()
    tasks.start(work(), name="work")
    await moment
    await tasks.close()
    assert len(rounds) <= 2
    assert clock.monotonic() < 11.0


async def test_a_task_that_was_asked_to_end_is_not_asked_again() -> None:
    tidied: list[float] = []
    tasks = OwnedTasks()
    task = tasks.start(tidying(tidied), name="work")
    await clock.sleep(1.0)
    tasks.end(task)
    await clock.sleep(1.0)
    await tasks.close()
    assert tidied == [4.0]
    tasks.end(task)


async def test_cancelling_gathered_tasks_that_fail_at_that_time_ends_them() -> None:
    async def fails_when_cancelled() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            raise ZeroDivisionError from None

    gathered = asyncio.ensure_future(gather([fails_when_cancelled()]))
    await asyncio.sleep(0)
    gathered.cancel()
    with pytest.raises(asyncio.CancelledError):
        await gathered
