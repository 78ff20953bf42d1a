from __future__ import annotations

import asyncio
import re
import socket
import sys
import threading
import time
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import pytest

from sbclient import ServiceBusMessage, clock
from sbclient.client.client import ServiceBusClient
from sbclient.client.sender import ServiceBusSender
from sbclient.errors import InvalidOperationError, ServiceBusConnectionError, ServiceBusError
from sbclient.testing import (
    DeadlockError,
    Fault,
    FaultKind,
    MemoryNamespace,
    VirtualLoop,
    assert_no_leftovers,
    memory_namespace,
    memory_pair,
    run_virtual,
)
from sbclient.testing.ledger import Ledger

YEAR_S = 366 * 86400.0
DAY_AT = 1_700_086_400.0

SHORT_S = 0.1
"""How long to wait for threads that other tests may have left; a loop without any would not wait at all."""


def now() -> float:
    return asyncio.get_running_loop().time()


def test_sleeping_for_years_takes_no_real_time_and_ends_at_the_exact_moment() -> None:
    async def main() -> list[float]:
        moments = [now()]
        for span_s in (0.1, 0.2, 30 * YEAR_S, 0.25):
            await asyncio.sleep(span_s)
            moments.append(now())
        return moments

    begun = time.perf_counter()
    assert run_virtual(main()) == [0.0, 0.1, 0.1 + 0.2, 0.1 + 0.2 + 30 * YEAR_S, 0.1 + 0.2 + 30 * YEAR_S + 0.25]
    assert time.perf_counter() - begun < 5.0


def test_the_virtual_clock_follows_the_loop() -> None:
    async def main() -> tuple[float, float]:
        await clock.sleep(60.0)
        return clock.now(), clock.monotonic()

    assert run_virtual(main(), epoch=1000.0) == (1060.0, 60.0)


def test_timers_of_one_moment_fire_in_the_order_they_were_set() -> None:
    async def main() -> list[int]:
        fired: list[int] = []
        for number in range(100):
            asyncio.get_running_loop().call_at(5.0, fired.append, number)
        await asyncio.sleep(5.0)
        return fired

    assert run_virtual(main()) == list(range(100))


def test_the_tasks_of_a_group_are_cancelled_in_the_same_order_wherever_they_lie_in_memory() -> None:
    def cancelled(padding: int) -> list[int]:
        order: list[int] = []
        kept: list[bytearray] = []

        async def wait(number: int) -> None:
            try:
                await asyncio.sleep(60.0)
            finally:
                order.append(number)

        async def main() -> None:
            async with asyncio.TaskGroup() as group:
                for number in range(50):
                    kept.append(bytearray(padding * number))
                    group.create_task(wait(number))
                await asyncio.sleep(1.0)
                raise KeyError

        with pytest.raises(ExceptionGroup):
            run_virtual(main())
        return order

    assert [cancelled(padding) for padding in (1, 7, 30)] == [cancelled(0)] * 3


def test_a_timer_does_not_fire_before_its_moment() -> None:
    later = 1.0 + 1e-12

    async def main() -> list[tuple[str, float]]:
        fired: list[tuple[str, float]] = []
        loop = asyncio.get_running_loop()
        loop.call_at(later, lambda: fired.append(("later", now())))
        loop.call_at(1.0, lambda: fired.append(("sooner", now())))
        await asyncio.sleep(2.0)
        return fired

    assert run_virtual(main()) == [("sooner", 1.0), ("later", later)]


def test_time_stands_still_while_something_is_ready() -> None:
    async def main() -> float:
        asyncio.get_running_loop().call_later(1e-9, lambda: None)
        for _ in range(1000):
            await asyncio.sleep(0)
        return now()

    assert run_virtual(main()) == 0.0


def test_a_cancelled_timer_neither_fires_nor_moves_time() -> None:
    async def main() -> tuple[list[str], float]:
        fired: list[str] = []
        loop = asyncio.get_running_loop()
        handles = [loop.call_later(10.0, fired.append, "cancelled") for _ in range(300)]
        loop.call_later(20.0, fired.append, "kept")
        for handle in handles:
            handle.cancel()
        await asyncio.sleep(15.0)
        return fired, now()

    assert run_virtual(main()) == ([], 15.0)


def test_timeouts_groups_queues_and_events_work_together() -> None:
    async def main() -> list[tuple[str, float]]:
        seen: list[tuple[str, float]] = []
        queue: asyncio.Queue[str] = asyncio.Queue(maxsize=1)
        done = asyncio.Event()

        async def produce() -> None:
            for word in ("a", "b"):
                await asyncio.sleep(10)
                await queue.put(word)
            await asyncio.sleep(10)
            done.set()

        async def consume() -> None:
            while not done.is_set():
                try:
                    async with asyncio.timeout(7):
                        seen.append((await queue.get(), now()))
                except TimeoutError:
                    seen.append(("nothing", now()))

        async with asyncio.TaskGroup() as group:
            group.create_task(produce())
            group.create_task(consume())
        return seen

    assert run_virtual(main()) == [
        ("nothing", 7.0),
        ("a", 10.0),
        ("nothing", 17.0),
        ("b", 20.0),
        ("nothing", 27.0),
        ("nothing", 34.0),
    ]


def test_a_deadlock_is_an_error_that_names_the_waiting_tasks() -> None:
    async def never() -> None:
        await asyncio.Event().wait()

    async def main() -> None:
        await asyncio.sleep(3)
        await asyncio.create_task(never(), name="the one that waits")

    with pytest.raises(DeadlockError) as raised:
        run_virtual(main(), patience_s=SHORT_S)
    first, reason, _, other = str(raised.value).split("\n")
    assert first.startswith(f"{__file__}:")
    assert "main" in first
    assert "is at 3 s" in reason
    assert "never, awaiting Event.wait [the one that waits]" in other


async def send_again_and_again(sender: ServiceBusSender) -> None:
    while True:
        try:
            return await sender.send_messages(ServiceBusMessage("x"))
        except ServiceBusError:
            await asyncio.sleep(1)


@pytest.mark.parametrize("kind", [FaultKind.DOWN, FaultKind.HANG, FaultKind.BUSY, FaultKind.ERROR])
def test_an_outage_that_nothing_ends_stops_the_test(kind: FaultKind) -> None:
    async def main() -> None:
        namespace = memory_namespace(seed=1)
        namespace.create_queue("orders")
        async with namespace.client(retry_total=0, timeout=5) as client, client.get_queue_sender("orders") as sender:
            await asyncio.sleep(5)
            namespace.inject(Fault(kind))
            await send_again_and_again(sender)

    with pytest.raises(DeadlockError) as raised:
        run_virtual(main(), horizon_s=2 * 86_400)
    first, reason, *_ = str(raised.value).split("\n")
    assert re.search(r"in \S+main, at \S+test_testing\.py:\d+ in send_again_and_again, awaiting", first), first
    assert "namespace 'contoso' " in reason
    assert "since 5 s of virtual time, nothing has healed it" in reason


@pytest.mark.parametrize(
    ("fault", "outage_limit_s"),
    [({}, None), ({"until_at": DAY_AT}, 3600.0), ({"count": 100_000}, 3600.0)],
    ids=["no limit", "until", "count"],
)
def test_an_outage_that_ends_may_last(fault: dict[str, Any], outage_limit_s: float | None) -> None:
    """And one that the test waits for, with tasks beside it that try again."""

    async def main() -> None:
        namespace = memory_namespace(seed=1)
        namespace.create_queue("orders")
        async with namespace.client(retry_total=0) as client, client.get_queue_sender("orders") as sender:
            namespace.inject(Fault(FaultKind.BUSY, **fault))
            sending = asyncio.create_task(send_again_and_again(sender))
            for _ in range(300):
                await asyncio.sleep(60)
            namespace.heal()
            await sending

    run_virtual(main(), outage_limit_s=outage_limit_s, epoch=DAY_AT - 86_400)


def test_a_long_wait_of_the_test_itself_is_not_limited() -> None:
    async def main() -> None:
        namespace = memory_namespace(seed=1)
        namespace.create_queue("orders")
        async with namespace.client(retry_total=0) as client, client.get_queue_sender("orders") as sender:
            namespace.inject(Fault(FaultKind.BUSY))
            sending = asyncio.create_task(send_again_and_again(sender))
            await asyncio.sleep(6 * 3600)
            namespace.heal()
            await sending

    run_virtual(main())


def test_an_infinite_timer_is_no_timer() -> None:
    async def main() -> None:
        await asyncio.sleep(float("inf"))

    with pytest.raises(DeadlockError):
        run_virtual(main(), patience_s=SHORT_S)


def test_after_a_deadlock_the_tasks_are_cancelled_and_clean_up() -> None:
    cleaned: list[float] = []

    async def main() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(1)
            cleaned.append(now())

    with pytest.raises(DeadlockError):
        run_virtual(main(), patience_s=SHORT_S)
    assert cleaned == [1.0]


def test_the_horizon_ends_a_program_that_would_tick_for_ever() -> None:
    ticks: list[float] = []

    async def main() -> None:
        while True:
            await asyncio.sleep(60)
            ticks.append(now())

    with pytest.raises(DeadlockError, match="horizon"):
        run_virtual(main(), horizon_s=150.0)
    assert ticks == [60.0, 120.0]


def test_time_stands_still_while_a_thread_works_for_the_loop() -> None:
    def work() -> int:
        time.sleep(0.05)
        return 42

    async def main() -> tuple[int, float]:
        async with asyncio.timeout(0.001):
            return await asyncio.to_thread(work), now()

    assert run_virtual(main()) == (42, 0.0)


def test_time_moves_again_after_a_thread_has_finished() -> None:
    async def main() -> float:
        await asyncio.to_thread(int)
        await asyncio.sleep(100)
        return now()

    assert run_virtual(main()) == 100.0


def test_time_stands_still_while_a_subprocess_runs() -> None:
    async def main() -> tuple[bytes, float]:
        program = (sys.executable, "-c", "import time; time.sleep(0.2); print('done')")
        both = [await asyncio.create_subprocess_exec(*program, stdout=asyncio.subprocess.PIPE) for _ in range(2)]
        async with asyncio.timeout(0.001):
            outputs = [(await process.communicate())[0] for process in both]
        await asyncio.sleep(100)
        process = await asyncio.create_subprocess_exec(*program, stdout=asyncio.subprocess.PIPE)
        async with asyncio.timeout(0.001):
            outputs.append((await process.communicate())[0])
        return b"".join(outputs), now()

    assert run_virtual(main()) == (b"done\ndone\ndone\n", 100.0)


def test_a_subprocess_that_never_ends_is_named() -> None:
    async def main() -> None:
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", "import time; time.sleep(60)")
        try:
            await asyncio.sleep(1)
        finally:
            process.kill()
            await process.wait()

    with pytest.raises(DeadlockError, match="1 subprocesses run"):
        run_virtual(main(), patience_s=SHORT_S)


def test_periodic_work_has_a_nearer_horizon() -> None:
    async def tick(count: int) -> None:
        for _ in range(count):
            await asyncio.sleep(60)

    run_virtual(tick(5_000), horizon_s=1e6, busy_horizon_s=1e5)
    with pytest.raises(
        DeadlockError,
        match=r"waits too long\. .* its next timer is due at 3 days, 11:21:00, and its limit is 1 day, 3:46:40",
    ):
        run_virtual(tick(6_000), horizon_s=1e6, busy_horizon_s=1e5)


def test_a_failure_names_threads_that_time_did_not_wait_for() -> None:
    released = threading.Event()

    async def main() -> None:
        threading.Thread(target=released.wait, name="poller").start()
        async with asyncio.timeout(59):
            await asyncio.Event().wait()

    try:
        with pytest.raises(TimeoutError) as raised:
            run_virtual(main())
    finally:
        released.set()
    assert raised.value.__notes__ == ["Virtual time did not wait for thread 'poller': real time would."]


def test_a_callback_from_another_thread_wakes_the_loop() -> None:
    async def main() -> str:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[str] = loop.create_future()

        def work() -> None:
            time.sleep(0.05)
            loop.call_soon_threadsafe(answer.set_result, "from outside")

        thread = threading.Thread(target=work)
        thread.start()
        try:
            return await answer
        finally:
            thread.join()

    assert run_virtual(main()) == "from outside"


def test_waiting_for_a_silent_thread_is_bounded() -> None:
    released = threading.Event()

    async def main() -> None:
        await asyncio.to_thread(released.wait)

    loop = VirtualLoop(patience_s=0.05)
    try:
        with pytest.raises(DeadlockError, match=r"no thread and no socket was active for 0\.05 s"):
            loop.run_until_complete(main())
    finally:
        released.set()
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0.1))
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()


def test_sockets_are_served() -> None:
    async def main() -> bytes:
        near, far = socket.socketpair()
        with near, far:
            near.setblocking(False)
            far.setblocking(False)
            loop = asyncio.get_running_loop()
            async with asyncio.TaskGroup() as group:
                received = group.create_task(loop.sock_recv(far, 100))
                await loop.sock_sendall(near, b"over the wire")
            return received.result()

    assert run_virtual(main()) == b"over the wire"


def test_error_of_the_program_is_raised_unchanged() -> None:
    async def main() -> None:
        await asyncio.sleep(1)
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        run_virtual(main())


def test_closed_loop_rejects_timers() -> None:
    loop = VirtualLoop()
    loop.close()
    with pytest.raises(RuntimeError, match="closed"):
        loop.call_at(1.0, lambda: None)


def _trace() -> list[tuple[int, float]]:
    async def main() -> list[tuple[int, float]]:
        seen: list[tuple[int, float]] = []

        async def tick(number: int) -> None:
            for _ in range(20):
                await asyncio.sleep((number * 7 % 5) * 0.1)
                seen.append((number, now()))

        async with asyncio.TaskGroup() as group:
            for number in range(20):
                group.create_task(tick(number))
        return seen

    return run_virtual(main())


def test_two_runs_are_the_same_step_by_step() -> None:
    assert _trace() == _trace()


def test_a_loop_with_a_speed_lets_real_time_pass_too() -> None:
    began = time.perf_counter()
    run_virtual(asyncio.sleep(10), speed=200)
    assert 0.04 <= time.perf_counter() - began < 5


def test_a_socket_that_speaks_often_does_not_hold_up_a_loop_with_a_speed() -> None:
    async def main() -> float:
        ours, theirs = socket.socketpair()
        for end in (ours, theirs):
            end.setblocking(False)
        loop = asyncio.get_running_loop()

        def answer() -> None:
            ours.recv(10)
            time.sleep(0.001)
            theirs.send(b"x")

        loop.add_reader(ours, answer)
        theirs.send(b"x")
        try:
            async with asyncio.timeout(10):
                await asyncio.sleep(1)
            return now()
        finally:
            loop.remove_reader(ours)
            ours.close()
            theirs.close()

    begun = time.perf_counter()
    assert run_virtual(main(), speed=1000) == 1.0
    assert time.perf_counter() - begun < 5


@pytest.mark.parametrize("count", [1, 2])
def test_messages_are_cached_by_one_of_several_front_ends(count: int) -> None:
    namespace = memory_namespace(seed=2, front_end_count=count)

    async def received(client: ServiceBusClient) -> int:
        return len(await client.get_queue_receiver("q").receive_messages(max_wait_time=1))

    async def main() -> list[int]:
        async with namespace.client() as first, namespace.client() as second:
            await first.administration.create_queue("q", enable_partitioning=True)
            async with first.get_queue_sender("q") as sender:
                for number in range(8):
                    await sender.send_messages(ServiceBusMessage(str(number)))
            counts = [await received(first), await received(second)]
            await asyncio.sleep(60)  # the locks of the cached messages expire
            return [*counts, await received(second)]

    assert run_virtual(main()) == [1, 1 if count == 1 else 0, 1]


def test_a_namespace_has_a_front_end_and_an_existing_profile() -> None:
    with pytest.raises(InvalidOperationError, match="front_end_count is 0"):
        memory_pair(front_end_count=0)
    with pytest.raises(InvalidOperationError, match="prem-2016"):
        memory_namespace(profile="prem-2016")


async def send(connection_string: str) -> None:
    async with (
        ServiceBusClient.from_connection_string(connection_string, retry_total=0) as client,
        client.get_queue_sender("orders") as sender,
    ):
        await sender.send_messages(ServiceBusMessage("an order"))


async def count(namespace: MemoryNamespace) -> int:
    async with namespace.client() as client:
        return len(await client.get_queue_receiver("orders").peek_messages(10))


def test_a_fault_affects_clients_that_a_program_creates_from_the_connection_string() -> None:
    async def main() -> None:
        one, other = memory_namespace(), memory_namespace()
        assert one.connection_string == one.connection_string != other.connection_string
        for namespace in (one, other):
            namespace.create_queue("orders")
        one.inject(Fault(FaultKind.DOWN))
        with pytest.raises(ServiceBusConnectionError):
            await send(one.connection_string)
        await send(other.connection_string)
        one.heal()
        assert (await count(one), await count(other)) == (0, 1)

    run_virtual(main())


def test_a_pair_is_reached_by_the_connection_strings_of_its_namespaces() -> None:
    async def main() -> None:
        pair = memory_pair()
        pair.primary.create_queue("orders")
        async with ServiceBusClient.from_connection_string(
            pair.primary.connection_string, secondary=pair.secondary.connection_string
        ) as client:
            client.pair.force_failover("orders")
            async with client.get_queue_sender("orders") as sender:
                await sender.send_messages(ServiceBusMessage("an order"))
            assert (await client.run_syphon(until="empty")).drained == 1
        assert await count(pair.primary) == 1

    run_virtual(main())


def test_the_time_of_a_namespace_is_virtual_in_virtual_time() -> None:
    async def main() -> None:
        namespace, pair = memory_namespace(), memory_pair()
        before = namespace.now()
        assert abs(before - datetime.now(UTC)) < timedelta(minutes=1)
        await asyncio.sleep(7200)
        assert namespace.now() - before == pytest.approx(timedelta(hours=2), abs=timedelta(milliseconds=1))
        assert pair.now() - namespace.now() < timedelta(seconds=1)

    run_virtual(main())


def test_entities_are_created_without_an_event_loop() -> None:
    namespace = memory_namespace(profile="prem-2021")
    namespace.create_queue("orders", requires_session=True)
    namespace.create_topic("prices")
    namespace.create_subscription("prices", "eu", max_delivery_count=3)

    async def main() -> None:
        async with namespace.client() as client:
            assert (await client.administration.get_queue("orders")).requires_session
            assert (await client.administration.get_subscription("prices", "eu")).max_delivery_count == 3

    run_virtual(main())


def test_lines_that_received_messages_are_kept_for_the_latest_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sbclient.testing.namespaces.MAX_RECEIPTS", 2)

    async def main() -> None:
        namespace = memory_namespace(seed=1)
        namespace.create_queue("orders")
        async with namespace.client() as client:
            receiver = client.get_queue_receiver("orders")
            for number in range(5):
                await client.get_queue_sender("orders").send_messages(ServiceBusMessage(str(number)))
                await receiver.receive_messages()
        with pytest.raises(AssertionError) as caught:
            assert_no_leftovers(namespace)
        assert [__file__ in line for line in str(caught.value).splitlines()[1:]] == [False, False, True, True, True]

    run_virtual(main())


def test_a_ledger_counts_what_the_lists_of_sends_and_deliveries_say() -> None:
    """Each message by its first delivery, whatever comes a second time, from nowhere or not at all."""
    for seed in range(200):
        random, ledger = Random(seed), Ledger()
        sent = list(range(8))
        session_of = {each: random.choice(["a", "b", None]) for each in range(10)}
        ledger.send(*sent)
        ledger.accepted.update(random.sample(sent, 5))
        ledger.dead_lettered.update(random.sample(sent, 1))
        delivered = random.choices(range(10), k=12)
        for each in delivered:
            ledger.send(*sent)  # a repetition
            ledger.deliver(each, session_of[each])
        first = [each for each in dict.fromkeys(delivered) if each in sent]
        late = [
            each
            for at, each in enumerate(first)
            if session_of[each] and any(one > each and session_of[one] == session_of[each] for one in first[:at])
        ]
        assert ledger.out_of_order == len(late)
        assert ledger.duplicates == len(delivered) - len(set(delivered))
        assert ledger.unexpected == set(delivered) - set(sent)
        assert ledger.lost == ledger.accepted - set(delivered) - ledger.dead_lettered
