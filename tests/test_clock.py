from __future__ import annotations

import asyncio
import sys
import time

import pytest

from sbclient import ServiceBusClient, ServiceBusMessage, clock
from sbclient.testing import VirtualLoop, drop_memory_host


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


@pytest.mark.real_time
async def test_a_step_is_due_if_something_is_ready_or_a_millisecond_has_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = time.monotonic() + 1
    monkeypatch.setattr(time, "monotonic", lambda: seconds)
    assert clock.is_step_due()
    assert not clock.is_step_due()
    seconds += 0.9 * clock.LONGEST_RUN_S
    assert not clock.is_step_due()
    asyncio.get_running_loop().call_soon(lambda: None)
    assert clock.is_step_due()
    await clock.step()
    assert not clock.is_step_due()
    seconds += 0.2 * clock.LONGEST_RUN_S
    assert clock.is_step_due()
    assert not clock.is_step_due()


async def test_a_step_is_always_due_on_a_virtual_loop() -> None:
    assert clock.is_step_due()
    assert clock.is_step_due()


class _LoopOfAnotherKind(asyncio.SelectorEventLoop):
    """Does not tell what is ready, as uvloop."""

    def __getattribute__(self, name: str) -> object:
        if name == "_ready" and clock.is_step_due.__code__ is sys._getframe(1).f_code:
            raise AttributeError(name)
        return super().__getattribute__(name)


def test_a_step_is_always_due_on_a_loop_that_does_not_tell_what_is_ready() -> None:
    async def are_due() -> list[bool]:
        return [clock.is_step_due(), clock.is_step_due()]

    with asyncio.Runner(loop_factory=_LoopOfAnotherKind) as runner:
        assert runner.run(are_due()) == [True, True]


@pytest.mark.real_time
@pytest.mark.parametrize("operation", ["send", "receive", "complete", "peek"])
async def test_an_operation_in_memory_lets_run_what_is_ready(operation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task that never waits for long would else hold up the others, whatever the clock says."""
    async with ServiceBusClient.from_connection_string("memory://fair") as client:
        await client.administration.create_queue("q")
        async with client.get_queue_sender("q") as sender, client.get_queue_receiver("q") as receiver:
            for _ in range(20):
                await sender.send_messages(ServiceBusMessage(b"x"))
            held = await receiver.receive_messages(max_message_count=10)
            monkeypatch.setattr(clock, "LONGEST_RUN_S", 1e9)
            ran = list[int]()
            for position in range(10):
                asyncio.get_running_loop().call_soon(ran.append, position)
                match operation:
                    case "send":
                        await sender.send_messages(ServiceBusMessage(b"x"))
                    case "receive":
                        await receiver.receive_messages(max_wait_time=1)
                    case "complete":
                        await receiver.complete_message(held[position])
                    case _:
                        await receiver.peek_messages()
                assert ran == list(range(position + 1))
    drop_memory_host("fair")
