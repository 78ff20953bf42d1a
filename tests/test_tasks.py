"""Background tasks with an owner."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from sbclient import clock
from sbclient.tasks import Deadlines, OwnedTasks, gather


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


class Waiter:
    """Notes when it expires; may remove others then, and add one."""

    def __init__(self, deadlines: Deadlines, deadline: float, removes: list[Waiter], adds: Waiter | None) -> None:
        self._deadlines, self.deadline, self.removes, self.adds = deadlines, deadline, removes, adds
        self.expired_at: list[float] = []
        self.removed_at: float | None = None

    def expire(self) -> None:
        self.expired_at.append(clock.monotonic())
        for other in self.removes:
            other.remove()
        if self.adds is not None:
            self._deadlines.add(self.adds)

    def remove(self) -> None:
        self._deadlines.remove(self)
        if self.removed_at is None:
            self.removed_at = clock.monotonic()


@pytest.mark.parametrize("seed", range(40))
async def test_each_deadline_is_kept_once_unless_it_is_removed_before(seed: int) -> None:
    random, deadlines = Random(seed), Deadlines()
    waiters: list[Waiter] = []
    for _ in range(60):
        deadline = random.choice([clock.monotonic(), clock.monotonic() // 5 * 5 + random.choice([5.0, 10.0, 12.3])])
        adds = None
        if random.random() < 0.2:
            adds = Waiter(deadlines, deadline + random.choice([0.0, 4.0]), [], None)
        waiters.append(Waiter(deadlines, deadline, [], adds))
        for one in random.sample(waiters, min(len(waiters), random.choice([0, 0, 1, 3]))):
            one.removes.append(waiters[-1])
            waiters[-1].removes.append(one)
        deadlines.add(waiters[-1])
        if random.random() < 0.3:
            random.choice(waiters).remove()
        if random.random() < 0.5:
            await clock.sleep(random.choice([0.0, 0.5, 2.0, random.uniform(0.0, 8.0)]))
    await clock.sleep(100.0)
    for waiter in waiters:
        if waiter.expired_at:
            assert waiter.expired_at == [pytest.approx(waiter.deadline)]
            assert waiter.removed_at is None or waiter.removed_at >= waiter.expired_at[0]
        else:
            assert waiter.removed_at is not None
            assert waiter.removed_at <= waiter.deadline
    for waiter in waiters:
        if waiter.adds is not None:
            assert waiter.adds.expired_at == ([pytest.approx(waiter.adds.deadline)] if waiter.expired_at else [])
