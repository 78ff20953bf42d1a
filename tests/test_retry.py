"""The retry policy by itself: tries, pauses, deadlines, and what is raised in the end."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import Sequence
from random import Random
from weakref import ref

import pytest

from sbclient import clock
from sbclient.errors import (
    InvalidOperationError,
    OperationTimeoutError,
    ServiceBusConnectionError,
    ServiceBusError,
    ServiceBusInternalError,
    ServiceBusServerBusyError,
)
from sbclient.options import RetryOptions
from sbclient.retry import BackOffInterrupted, RetryPolicy


class Service:
    """Answers with a list of errors, then with success; notes when it was asked and how long it was given."""

    def __init__(self, answers: Sequence[ServiceBusError | float], *, lasting: bool = False):
        self.answers = list(answers)
        self.lasting = lasting
        self.asked_at: list[float] = []
        self.given_s: list[float] = []

    async def __call__(self, timeout_s: float) -> str:
        self.asked_at.append(clock.monotonic())
        self.given_s.append(timeout_s)
        if not self.answers:
            return "done"
        answer = self.answers[0] if self.lasting else self.answers.pop(0)
        if isinstance(answer, float):  # it answers that late, or not in time
            await clock.sleep(min(answer, timeout_s))
            if answer > timeout_s:
                raise OperationTimeoutError("too late")
            return "done"
        raise answer


def policy(**options: float) -> RetryPolicy:
    return RetryPolicy(RetryOptions(**options), Random(1))  # type: ignore[arg-type]  # whole numbers are floats


def pauses(service: Service) -> list[float]:
    return [later - earlier for earlier, later in zip(service.asked_at, service.asked_at[1:], strict=False)]


async def test_success_is_returned_and_asked_for_once() -> None:
    service = Service([])
    assert await policy().run(service, deadline=60.0) == "done"
    assert service.asked_at == [0.0]


@pytest.mark.deviation("client.retries")
async def test_three_retries_with_growing_pauses_and_jitter() -> None:
    service = Service([ServiceBusConnectionError("gone")], lasting=True)
    with pytest.raises(ServiceBusConnectionError):
        await policy().run(service, deadline=60.0)
    assert len(service.asked_at) == 4
    for pause, longest in zip(pauses(service), (0.8, 1.6, 3.2), strict=True):
        assert longest / 2 <= pause <= longest


async def test_pauses_are_capped() -> None:
    service = Service([ServiceBusConnectionError("gone")], lasting=True)
    with pytest.raises(ServiceBusConnectionError):
        await policy(retry_total=8, retry_backoff_max=2.0).run(service, deadline=60.0)
    assert len(service.asked_at) == 9
    assert max(pauses(service)) <= 2.0


async def test_jitter_comes_from_the_given_generator() -> None:
    spans = []
    for _ in range(2):
        service = Service([ServiceBusConnectionError("gone")], lasting=True)
        with pytest.raises(ServiceBusConnectionError):
            await policy().run(service, deadline=clock.monotonic() + 60.0)
        spans.append([round(pause, 9) for pause in pauses(service)])
    assert spans[0] == spans[1]


async def test_a_retry_that_succeeds_ends_it() -> None:
    service = Service([ServiceBusConnectionError("gone"), ServiceBusInternalError("hm")])
    assert await policy().run(service, deadline=60.0) == "done"
    assert len(service.asked_at) == 3


async def test_the_callers_own_mistakes_are_never_tried_again() -> None:
    service = Service([InvalidOperationError("no")], lasting=True)
    with pytest.raises(InvalidOperationError):
        await policy().run(service, deadline=60.0)
    assert len(service.asked_at) == 1


async def test_a_mistake_found_by_a_retry_is_not_tried_again() -> None:
    service = Service([ServiceBusConnectionError("gone"), InvalidOperationError("no")])
    with pytest.raises(InvalidOperationError) as caught:
        await policy().run(service, deadline=60.0)
    assert len(service.asked_at) == 2
    assert caught.value.is_in_doubt, "the first try may have succeeded"


async def test_no_retries_where_the_options_say_none() -> None:
    service = Service([ServiceBusConnectionError("gone")])
    with pytest.raises(ServiceBusConnectionError):
        await policy(retry_total=0).run(service, deadline=60.0)


async def test_the_options_say_how_many_retries_there_are() -> None:
    service = Service([ServiceBusConnectionError("gone")], lasting=True)
    with pytest.raises(ServiceBusConnectionError):
        await policy(retry_total=1).run(service, deadline=60.0)
    assert len(service.asked_at) == 2


async def test_no_try_is_cut_below_20_s_while_time_remains() -> None:
    service = Service([1000.0], lasting=True)
    with pytest.raises(OperationTimeoutError):
        await policy().run(service, deadline=60.0)
    assert service.given_s[:2] == [20.0, 20.0]
    assert service.asked_at[-1] + service.given_s[-1] <= 60.0
    assert clock.monotonic() == pytest.approx(60.0)


async def test_a_long_timeout_is_shared_among_the_tries() -> None:
    service = Service([1000.0], lasting=True)
    with pytest.raises(OperationTimeoutError):
        await policy().run(service, deadline=400.0)
    assert service.given_s[0] == 100.0


@pytest.mark.deviation("client.retries")
async def test_a_busy_server_is_given_10_s_and_costs_no_try() -> None:
    service = Service([ServiceBusServerBusyError("busy")] * 5)
    assert await policy(retry_total=0).run(service, deadline=60.0) == "done"
    assert pauses(service) == [10.0] * 5


async def test_lasting_busy_is_raised_as_such_inside_the_timeout() -> None:
    service = Service([ServiceBusServerBusyError("busy")], lasting=True)
    with pytest.raises(ServiceBusServerBusyError):
        await policy().run(service, deadline=60.0)
    assert clock.monotonic() <= 60.0
    assert len(service.asked_at) == 6


async def test_a_last_try_too_short_for_an_answer_leaves_busy_the_verdict() -> None:
    service = Service([ServiceBusServerBusyError("busy"), 1000.0])
    with pytest.raises(ServiceBusServerBusyError) as caught:
        await policy().run(service, deadline=15.0)
    assert caught.value.is_in_doubt


async def test_a_full_try_without_an_answer_is_a_timeout_though_it_was_busy_before() -> None:
    service = Service([ServiceBusServerBusyError("busy"), 1000.0, ServiceBusInternalError("hm")])
    with pytest.raises(ServiceBusInternalError):
        await policy(retry_total=1).run(service, deadline=60.0)


async def test_after_a_busy_answer_other_errors_are_retried_as_usual() -> None:
    for _ in range(2):
        gone = [ServiceBusInternalError("gone") for _ in range(10)]
        service = Service([ServiceBusServerBusyError("busy"), gone[0], ServiceBusServerBusyError("busy"), *gone[1:]])
        with pytest.raises(ServiceBusInternalError):
            await policy().run(service, deadline=clock.monotonic() + 120.0)
        busy, first, busy_again, second, third = pauses(service)
        assert [busy, busy_again] == pytest.approx([10.0, 10.0])
        assert 0.4 <= first <= 0.8
        assert 0.8 <= second <= 1.6
        assert 1.6 <= third <= 3.2


async def test_busy_after_other_errors_waits_10_s_too() -> None:
    service = Service([ServiceBusInternalError("hm"), ServiceBusServerBusyError("busy")])
    assert await policy().run(service, deadline=60.0) == "done"
    assert pauses(service)[1] == 10.0


async def test_nothing_is_tried_when_the_time_is_over_before_it_began() -> None:
    await clock.sleep(5.0)
    service = Service([])
    with pytest.raises(OperationTimeoutError):
        await policy().run(service, deadline=5.0)
    assert service.asked_at == []


async def test_no_pause_goes_beyond_the_deadline() -> None:
    service = Service([ServiceBusConnectionError("gone")], lasting=True)
    with pytest.raises(ServiceBusConnectionError):
        await policy(retry_backoff_factor=8.0).run(service, deadline=3.0)
    assert len(service.asked_at) == 1
    assert clock.monotonic() == 0.0


async def test_a_pause_can_be_interrupted() -> None:
    interrupt = asyncio.Event()
    service = Service([ServiceBusServerBusyError("busy")], lasting=True)
    clock.call_later(12.0, interrupt.set)
    with pytest.raises(BackOffInterrupted) as caught:
        await policy().run(service, deadline=60.0, interrupt=interrupt)
    assert clock.monotonic() == 12.0
    assert isinstance(caught.value.__cause__, ServiceBusServerBusyError)


async def test_an_uninterrupted_pause_takes_its_full_time() -> None:
    service = Service([ServiceBusServerBusyError("busy")])
    assert await policy().run(service, deadline=60.0, interrupt=asyncio.Event()) == "done"
    assert clock.monotonic() == 10.0


async def test_cancellation_passes_through() -> None:
    service = Service([1000.0])
    task = asyncio.ensure_future(policy().run(service, deadline=60.0))
    await clock.sleep(1.0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(service.asked_at) == 1


async def test_errors_are_freed_without_garbage_collection() -> None:
    alive: list[ref[ServiceBusError]] = []

    async def attempt(*, timeout_s: float) -> None:
        error = ServiceBusConnectionError("gone") if len(alive) < 2 else InvalidOperationError("no")
        alive.append(ref(error))
        try:
            raise error
        finally:
            del error  # else this frame and the traceback refer to each other

    gc.disable()
    try:
        with contextlib.suppress(InvalidOperationError):
            await policy().run(attempt, deadline=60.0)
        assert [each() for each in alive] == [None, None, None]
    finally:
        gc.enable()


async def test_operations_that_run_at_the_same_time_do_not_share_state() -> None:
    retries = policy(retry_total=2)
    lasting = Service([ServiceBusConnectionError("gone")], lasting=True)
    passing = Service([ServiceBusConnectionError("gone")] * 2)
    failed, done = await asyncio.gather(
        retries.run(lasting, deadline=60.0),
        retries.run(passing, deadline=60.0),
        return_exceptions=True,
    )
    assert (type(failed), done) == (ServiceBusConnectionError, "done")
    assert (len(lasting.asked_at), len(passing.asked_at)) == (3, 3)
