from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import nullcontext, suppress
from typing import Any

import pytest
from azure.servicebus import exceptions as sdk_errors

from sbclient import clock
from sbclient.errors import InvalidOperationError, OperationTimeoutError, ServiceBusConnectionError
from sbclient.tasks import OwnedTasks
from sbclient.transport.sdk.link import (
    CANCEL_TIMEOUT_S,
    CLOSE_S,
    TIMEOUT_GRACE_S,
    LinkDiscardedError,
    SdkLink,
    call_any,
)
from tests.transport.sdk.sdk_double import OPENING_S, SdkDouble


@pytest.fixture
def sdk() -> SdkDouble:
    return SdkDouble()


@pytest.fixture
async def tasks() -> AsyncIterator[OwnedTasks]:
    tasks = OwnedTasks(on_failure=lambda error: None)
    yield tasks
    await tasks.close()


@pytest.fixture
def link(sdk: SdkDouble, tasks: OwnedTasks) -> SdkLink[SdkDouble]:
    return SdkLink(sdk, "'orders'", tasks)


async def call(link: SdkLink[SdkDouble], what: Any = "x", timeout_s: float = 10.0) -> Any:
    return await link.call(lambda sdk: sdk.enter(what), doing="ask", timeout_s=timeout_s)


async def hang(_: Any = None) -> None:
    await asyncio.Event().wait()


async def test_the_first_call_opens_and_later_ones_do_not(link: SdkLink[SdkDouble], sdk: SdkDouble) -> None:
    assert not link.is_open
    await call(link, 1)
    await call(link, 2)
    assert (sdk.opened, sdk.log, link.is_open) == (1, [1, 2], True)


async def test_calls_run_one_at_a_time_in_order(link: SdkLink[SdkDouble], sdk: SdkDouble) -> None:
    async def slow(given: int) -> int:
        await asyncio.sleep(1.0)
        return given * 10

    sdk.on_call = slow
    answers = await asyncio.gather(*(call(link, number) for number in range(5)))
    assert answers == [0, 10, 20, 30, 40]
    assert (sdk.log, sdk.faults) == ([0, 1, 2, 3, 4], [])


async def test_a_call_of_any_link_takes_the_next_one_when_one_is_discarded_while_it_waits(
    link: SdkLink[SdkDouble], tasks: OwnedTasks
) -> None:
    link.discard()
    links = [link, SdkLink(SdkDouble(), "'orders'", tasks)]

    def choose() -> nullcontext[SdkLink[SdkDouble]]:
        return nullcontext(links.pop(0))

    async def answer(sdk: SdkDouble) -> str:
        return "done"

    assert await call_any(choose, answer, doing="ask", subject="'orders'", timeout_s=5.0) == "done"
    assert not links


@pytest.mark.parametrize("timeout_s", [0.0, -1.0])
async def test_a_call_of_any_link_without_time_is_not_in_doubt(timeout_s: float) -> None:
    def choose() -> nullcontext[SdkLink[SdkDouble]]:
        raise AssertionError("no link is needed")

    with pytest.raises(
        OperationTimeoutError, match="ask 'orders': the timeout expired before anything was sent"
    ) as caught:
        await call_any(choose, hang, doing="ask", subject="'orders'", timeout_s=timeout_s)
    assert not caught.value.is_in_doubt


async def test_a_call_that_waits_too_long_sends_nothing(link: SdkLink[SdkDouble], sdk: SdkDouble) -> None:
    sdk.on_call = lambda _: asyncio.sleep(5.0)
    first = asyncio.create_task(call(link, "first"))
    await asyncio.sleep(0)
    began = clock.monotonic()
    with pytest.raises(OperationTimeoutError, match="nothing was sent") as caught:
        await call(link, "second", timeout_s=2.0)
    assert not caught.value.is_in_doubt
    assert clock.monotonic() - began == pytest.approx(2.0)
    await first
    assert sdk.log == ["first"]
    await call(link, "third")
    assert sdk.log == ["first", "third"]


@pytest.mark.parametrize("fails", [True, False])
@pytest.mark.parametrize("place", ["open", "prepare", "call"])
async def test_only_a_call_that_has_asked_is_in_doubt(
    sdk: SdkDouble, tasks: OwnedTasks, place: str, *, fails: bool
) -> None:
    """Also if its time ends in the moment in which the link is open."""

    async def end(_: Any = None) -> None:
        if fails:
            raise sdk_errors.ServiceBusConnectionError(message="lost")
        await asyncio.sleep(10.0 - OPENING_S * (place != "call"))

    async def prepare(_: Any) -> None:
        if place == "prepare":
            await end()

    link = SdkLink(sdk, "'orders'", tasks, prepare=prepare)
    sdk.on_open, sdk.on_call = (end if place == each else None for each in ("open", "call"))
    with pytest.raises((OperationTimeoutError, ServiceBusConnectionError)) as caught:
        await call(link, timeout_s=10.0 - TIMEOUT_GRACE_S)
    await clock.sleep(60.0)
    assert caught.value.is_in_doubt == bool(sdk.log) == (place == "call")


async def test_a_cancelled_waiting_call_does_not_run(link: SdkLink[SdkDouble], sdk: SdkDouble) -> None:
    sdk.on_call = lambda _: asyncio.sleep(1.0)
    waiting = [asyncio.create_task(call(link, number)) for number in range(3)]
    await asyncio.sleep(0.1)
    waiting[1].cancel()
    await asyncio.wait(waiting)
    assert sdk.log == [0, 2]
    assert link.is_open


async def test_running_and_waiting_calls_are_counted(link: SdkLink[SdkDouble], sdk: SdkDouble) -> None:
    sdk.on_call = lambda _: asyncio.sleep(1.0)
    await link.acquire("ask", 5.0)
    assert link.calls == 1
    task = link.start(lambda sdk: sdk.enter(1), doing="ask")
    waiting = asyncio.create_task(call(link, 2))
    await asyncio.sleep(0.1)
    assert link.calls == 2
    await asyncio.gather(task, waiting)
    assert link.calls == 0


async def test_a_call_cancelled_while_it_acquires_the_object_releases_it(
    link: SdkLink[SdkDouble], sdk: SdkDouble
) -> None:
    await link.acquire("ask", 5.0)
    second = asyncio.create_task(link.acquire("ask", 5.0))
    await asyncio.sleep(0)
    link.release()
    second.cancel()
    await asyncio.wait({second})
    await call(link, "third", timeout_s=1.0)
    assert sdk.log == ["third"]


async def test_a_call_without_an_answer_discards_the_object(link: SdkLink[SdkDouble], sdk: SdkDouble) -> None:
    sdk.on_call = hang
    began = clock.monotonic()
    with pytest.raises(OperationTimeoutError, match="result is unknown"):
        await call(link, timeout_s=3.0)
    assert clock.monotonic() - began == pytest.approx(3.0 + TIMEOUT_GRACE_S)
    assert link.is_gone
    with pytest.raises(LinkDiscardedError):
        await call(link)
    await link.close()
    assert (sdk.closed, sdk.faults) == (1, [])


async def test_a_cancelled_call_discards_the_object(link: SdkLink[SdkDouble], sdk: SdkDouble) -> None:
    sdk.on_call = hang
    caller = asyncio.create_task(call(link))
    await asyncio.sleep(1.0)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert link.is_gone
    await link.close()
    assert sdk.closed == 1


async def test_waiting_calls_raise_when_the_object_is_discarded(link: SdkLink[SdkDouble], sdk: SdkDouble) -> None:
    sdk.on_call = hang
    first = asyncio.create_task(call(link, "first", timeout_s=1.0))
    await asyncio.sleep(0)
    second = asyncio.create_task(call(link, "second"))
    with pytest.raises(OperationTimeoutError):
        await first
    with pytest.raises(LinkDiscardedError):
        await second
    assert sdk.log == ["first"]


async def test_a_connection_error_discards_the_object_and_keeps_its_cause(
    link: SdkLink[SdkDouble], sdk: SdkDouble
) -> None:
    cause = sdk_errors.ServiceBusConnectionError(message="cut")

    async def fail(_: Any) -> None:
        raise cause

    sdk.on_call = fail
    with pytest.raises(ServiceBusConnectionError) as caught:
        await call(link)
    assert caught.value.__cause__ is cause
    assert link.is_gone


async def test_a_rejected_request_keeps_the_object_open(link: SdkLink[SdkDouble], sdk: SdkDouble) -> None:
    async def reject(_: Any) -> None:
        raise sdk_errors.ServiceBusError("no", condition=b"amqp:not-allowed")

    sdk.on_call = reject
    with pytest.raises(InvalidOperationError):
        await call(link)
    assert link.is_open
    sdk.on_call = None
    await call(link)
    assert sdk.opened == 1


async def test_the_timeout_includes_opening(link: SdkLink[SdkDouble], sdk: SdkDouble) -> None:
    sdk.on_open = hang
    with pytest.raises(OperationTimeoutError):
        await call(link, timeout_s=2.0)
    assert (link.is_gone, sdk.log) == (True, [])


async def test_an_idle_object_is_closed_and_a_busy_one_is_not(sdk: SdkDouble, tasks: OwnedTasks) -> None:
    link = SdkLink(sdk, "'orders'", tasks, idle_s=30.0)
    await call(link)
    await asyncio.sleep(29.0)
    sdk.on_call = lambda _: asyncio.sleep(40.0)
    await call(link, timeout_s=60.0)
    assert link.is_open
    await asyncio.sleep(29.0)
    assert link.is_open
    await asyncio.sleep(2.0)
    assert (link.is_gone, sdk.closed) == (True, 1)


async def test_closing_waits_for_a_limited_time(link: SdkLink[SdkDouble], sdk: SdkDouble) -> None:
    await call(link)
    sdk.on_close = hang
    began = clock.monotonic()
    await link.close()
    assert clock.monotonic() - began <= CANCEL_TIMEOUT_S + CLOSE_S


async def test_the_object_is_prepared_once_after_opening(sdk: SdkDouble, tasks: OwnedTasks) -> None:
    prepared: list[int] = []

    async def prepare(sdk: SdkDouble) -> None:
        prepared.append(sdk.opened)

    link = SdkLink(sdk, "'orders'", tasks, prepare=prepare)
    await call(link)
    await call(link)
    assert prepared == [1]


async def test_a_cancelled_call_that_does_not_end_is_logged_with_its_timeout(
    link: SdkLink[SdkDouble], sdk: SdkDouble, caplog: pytest.LogCaptureFixture
) -> None:
    async def ignore_cancellation(_: Any) -> None:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(60.0)
        await asyncio.sleep(60.0)

    sdk.on_call = ignore_cancellation
    with caplog.at_level("INFO", logger="sbclient"):
        with pytest.raises(OperationTimeoutError):
            await call(link, timeout_s=3.0)
        await link.close()
    (record,) = caplog.records
    assert f"did not end within {CANCEL_TIMEOUT_S:g} s" in record.getMessage()
