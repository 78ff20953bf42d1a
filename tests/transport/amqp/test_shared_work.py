"""Work that several callers share, while callers come, are cancelled and come again: attaches, tokens, renewals."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from itertools import product
from random import Random
from types import SimpleNamespace
from typing import Any, Final, cast
from uuid import UUID

import pytest

from sbclient import clock
from sbclient.errors import (
    InvalidOperationError,
    OperationTimeoutError,
    ServiceBusConnectionError,
    ServiceBusError,
)
from sbclient.tasks import Deadlines, OwnedTasks
from sbclient.transport.amqp.single_flight import SingleFlight
from sbclient.transport.amqp.token_requests import TokenRequests
from sbclient.transport.amqp.transfers import Transfers

TAKES_S: Final = 1.0
UNWIND_STEPS: Final = 2


class Work:
    """Runs of the shared work: each takes 1 s, and every third one fails.

    Attributes:
        running: the numbers of the runs that have not ended.
        most_running: so many at once.
    """

    def __init__(self) -> None:
        self.count = 0
        self.running: set[int] = set()
        self.most_running = 0

    async def __call__(self) -> Any:
        self.count += 1
        number = self.count
        self.running.add(number)
        self.most_running = max(self.most_running, len(self.running))
        try:
            await clock.sleep(TAKES_S)
            if number % 3 == 0:
                raise ServiceBusConnectionError(f"run {number}")
            # As a link that is lost at once: the next caller needs another run.
            return SimpleNamespace(number=number, is_open=False, release=lambda: None)
        finally:
            self.running.discard(number)


def by_single_flight(work: Work, tasks: OwnedTasks) -> Callable[[], Awaitable[Any]]:
    return SingleFlight(work, tasks=tasks, name="the work").get


def by_transfers(work: Work, tasks: OwnedTasks) -> Callable[[], Awaitable[Any]]:
    transfers = Transfers(cast("Any", work), "'orders'", tasks=tasks, deadlines=Deadlines())
    return lambda: transfers.open(clock.monotonic() + 60)


@pytest.mark.parametrize("shared", [by_single_flight, by_transfers])
async def test_each_caller_gets_a_run_that_went_on_while_it_waited(
    shared: Callable[[Work, OwnedTasks], Callable[[], Awaitable[Any]]],
) -> None:
    for seed in range(200):
        await callers_come_and_go(shared, Random(seed))


async def callers_come_and_go(
    shared: Callable[[Work, OwnedTasks], Callable[[], Awaitable[Any]]], random: Random
) -> None:
    work, tasks = Work(), OwnedTasks(on_failure=lambda _: None)
    enter = shared(work, tasks)
    errors: list[BaseException] = []

    async def caller(after_s: float, steps: int, patience_s: float | None) -> None:
        await clock.sleep(after_s)
        for _ in range(steps):
            await asyncio.sleep(0)
        came_at = clock.monotonic()
        task = asyncio.ensure_future(enter())
        if patience_s is not None:
            await clock.wait({task}, patience_s)
            task.cancel()
        await asyncio.wait([task])
        if task.cancelled():
            assert patience_s is not None, "a caller that was not cancelled was cancelled"
            return
        assert clock.monotonic() - came_at <= TAKES_S, "it waited for longer than a run"
        if (error := task.exception()) is not None:
            assert isinstance(error, ServiceBusConnectionError)
            assert not error.is_in_doubt
            errors.append(error)

    grid = [0.0, 0.5, 1.0, 1.5, 2.0]
    callers = [
        caller(random.choice(grid), random.randrange(6), random.choice([None, None, 0.0, 0.5, 1.0])) for _ in range(6)
    ]
    await asyncio.gather(*callers)
    assert len(set(map(id, errors))) == len(errors), "callers share an error"
    for _ in range(UNWIND_STEPS):
        await asyncio.sleep(0)
    assert not work.running, "a run goes on without a caller"
    assert work.most_running <= 2, "more runs at once than one that ends and one that begins"
    await tasks.close()


@pytest.mark.parametrize("shared", [by_single_flight, by_transfers])
async def test_callers_that_wait_when_the_client_is_closed_get_an_error(
    shared: Callable[[Work, OwnedTasks], Callable[[], Awaitable[Any]]],
) -> None:
    tasks = OwnedTasks(on_failure=lambda _: None)
    enter = shared(Work(), tasks)
    callers = [asyncio.ensure_future(enter()) for _ in range(3)]
    await clock.sleep(TAKES_S / 2)
    callers[0].cancel()
    await tasks.close()
    results = await asyncio.gather(*callers, return_exceptions=True)
    assert isinstance(results[0], asyncio.CancelledError)
    assert all(isinstance(result, ServiceBusError) for result in results[1:])


async def test_each_renewal_has_its_own_timeout() -> None:
    async def renew(_: Any, tokens: Any, timeout_s: float) -> list[datetime]:
        await clock.sleep(min(5, timeout_s))
        if timeout_s < 5:
            raise OperationTimeoutError("no answer")
        return [datetime.fromtimestamp(0, UTC) for _ in tokens]

    tasks = OwnedTasks()
    renewals: TokenRequests[None, datetime] = TokenRequests(renew, "renew locks of 'orders'", tasks=tasks)
    for patience in ([1, 30], [30, 1], [None, 30]):
        callers = [
            asyncio.ensure_future(renewals.call(None, UUID(int=number), clock.monotonic() + (timeout_s or 30)))
            for number, timeout_s in enumerate(patience)
        ]
        await asyncio.sleep(0)
        if patience[0] is None:
            callers[0].cancel()
        results = await asyncio.gather(*callers, return_exceptions=True)
        assert [isinstance(result, datetime) for result in results] == [each == 30 for each in patience]
    await tasks.close()


@pytest.mark.parametrize("outcome", ["answered", "lost", "refused", "broken"])
async def test_calls_that_share_a_request_end_at_its_time_whoever_is_cancelled(outcome: str) -> None:
    """None of them, or all: before the request, while it is under way, or in the step in which the answer comes."""

    async def ask(_: Any, tokens: Any, timeout_s: float) -> list[UUID]:
        await clock.sleep(TAKES_S)
        if outcome == "lost":
            raise ServiceBusConnectionError("lost", is_in_doubt=True)
        if outcome == "broken":
            raise OSError("broken")
        if outcome == "refused" and UUID(int=0) in tokens:
            raise InvalidOperationError("one of them is refused")
        for caller in at_the_answer:
            caller.cancel()
        return list(tokens)

    tasks = OwnedTasks(on_failure=lambda _: None)
    requests: TokenRequests[None, UUID] = TokenRequests(ask, "renew locks of 'orders'", tasks=tasks)
    for moments in product([None, "at once", "meanwhile", "at the answer"], repeat=3):
        at_the_answer: list[asyncio.Future[UUID]] = []
        began_at = clock.monotonic()
        tokens = [UUID(int=number) for number in range(3)]
        callers = [asyncio.ensure_future(requests.call(None, token, began_at + 60)) for token in tokens]
        at_the_answer += [caller for caller, moment in zip(callers, moments, strict=True) if moment == "at the answer"]
        for now, pause_s in (("at once", TAKES_S / 2), ("meanwhile", 0.0)):
            await asyncio.sleep(0)
            for caller, moment in zip(callers, moments, strict=True):
                if moment == now:
                    caller.cancel()
            await clock.sleep(pause_s)
        _, late = await asyncio.wait(callers, timeout=2 * TAKES_S)
        assert not late, moments
        for token, caller, moment in zip(tokens, callers, moments, strict=True):
            if moment is not None and caller.cancelled():
                continue
            assert moment in (None, "at the answer"), moments
            error = caller.exception()
            if outcome == "answered" or (outcome == "refused" and token.int):
                assert error is None, moments
                assert caller.result() == token
            elif outcome == "broken":
                assert isinstance(error, OSError)
            else:
                assert isinstance(error, ServiceBusError)
                assert error.is_in_doubt is (outcome == "lost")
    await tasks.close()
