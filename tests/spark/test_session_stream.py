"""Streams of queues with sessions, driven without Spark as Spark drives them."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sbclient import ServiceBusClient, ServiceBusMessage
from sbclient.client.lock_renewer import AutoLockRenewer
from sbclient.client.receiver import ServiceBusReceiver
from sbclient.errors import (
    InvalidOperationError,
    OperationTimeoutError,
    ServiceBusConnectionError,
    SessionCannotBeLockedError,
    SessionLockLostError,
)
from sbclient.message import ServiceBusReceivedMessage
from sbclient_spark.clients import WorkerClients
from sbclient_spark.read import held_sessions
from sbclient_spark.read.browsing import Extent, open_receiver
from sbclient_spark.read.held_sessions import HeldSessions
from sbclient_spark.read.limits import Budget
from sbclient_spark.read.sessions import HeldSession, StreamSessions, matches, shared_out
from sbclient_spark.read.stream import _within
from tests.spark.test_stream_reader import HERE, Stream, clients, create, run, send, set_forward

__all__ = ["clients", "set_forward"]


@pytest.fixture(autouse=True)
def _short_waits_and_own_sockets(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for name in ("WAIT_S", "MORE_S"):
        monkeypatch.setattr(f"sbclient_spark.read.sessions.{name}", 0.02)


def fill(clients: WorkerClients, sessions: int, each: int, first: int = 0, at_once: int = 1000) -> None:
    """Send `each` messages to each of some sessions by turns: message `s3:7` is the eighth of session s3."""

    async def work(client: ServiceBusClient) -> None:
        async with client.get_queue_sender("orders") as sender:
            for number in range(first, first + each):
                names = [f"s{session}" for session in range(sessions)]
                many = [ServiceBusMessage(f"{name}:{number}", session_id=name) for name in names]
                for start in range(0, sessions, at_once):
                    await sender.send_messages(many[start : start + at_once])

    run(clients, work)


def by_session(bodies: Collection[str]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for body in bodies:
        session, number = body.split(":")
        found.setdefault(session, []).append(int(number))
    return found


def in_order(sessions: int, each: int) -> dict[str, list[int]]:
    return {f"s{session}": list(range(each)) for session in range(sessions)}


def left(clients: WorkerClients) -> int:
    async def work(client: ServiceBusClient) -> int:
        return (await client.administration.get_queue_runtime_properties("orders")).total_message_count

    found: int = run(clients, work)
    return found


def locked(clients: WorkerClients, session: str) -> bool:
    """Whether a consumer cannot have the session."""

    async def work(client: ServiceBusClient) -> bool:
        try:
            async with client.get_queue_receiver("orders", session_id=session):
                return False
        except SessionCannotBeLockedError:
            return True

    found: bool = run(clients, work)
    return found


# -- the parts without a queue -----------------------------------------------------------------------------------


@dataclass
class Sized:
    size_bytes: int


def test_a_budget_gives_no_more_than_its_limits_and_takes_back_what_was_not_used() -> None:
    async def work() -> None:
        budget = Budget(10, 100)
        first = await budget.reserve(250)
        assert first.messages == 1
        waiting = asyncio.ensure_future(budget.reserve(250))
        await asyncio.sleep(0)
        assert not waiting.done()
        await budget.settle(first, cast(Any, [Sized(30)]))
        second = await waiting
        assert second == (2, 60)
        await budget.settle(second, [])
        third = await budget.reserve(250)
        assert third == (2, 60)
        await budget.settle(third, cast(Any, [Sized(5), Sized(5)]))
        assert await budget.reserve(250) == (2, 60)
        rows = Budget(3, None)
        assert (await rows.reserve(2)).messages == 2
        assert (await rows.reserve(2)).messages == 1

    asyncio.run(work())


@pytest.mark.parametrize("seed", range(60))
def test_receivers_that_share_a_budget_take_all_that_fits_and_none_waits_for_ever(seed: int) -> None:
    random, size, taken = Random(seed), 10, list[int]()
    sources = [random.randrange(13) for _ in range(random.randrange(2, 7))]
    most, most_bytes = random.choice((None, random.randrange(20))), random.choice((None, random.randrange(1, 200)))
    budget = Budget(most, most_bytes)

    async def receiver(left: int) -> None:
        while left and (reserved := await budget.reserve(random.choice((1, 3, 250)))).messages:
            for _ in range(random.randrange(4)):
                await asyncio.sleep(0)
            count = random.choice((0, min(left, reserved.messages), min(left, reserved.messages)))  # 0 = it failed
            await budget.settle(reserved, cast(Any, [Sized(size)] * count))
            left -= count
            taken.append(count)

    async def work() -> None:
        async with asyncio.timeout(20):
            await asyncio.gather(*map(receiver, sources))

    asyncio.run(work())
    limits = [sum(sources), sum(sources) if most is None else most]
    if most_bytes is not None:
        limits.append(max(most_bytes // size, 1))  # a message that is larger than the limit is taken alone
    assert sum(taken) == min(limits)


@pytest.mark.parametrize("seed", range(60))
def test_extents_of_several_queues_are_together_no_larger_than_a_size(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = Random(seed)
    limit = random.randrange(1, 300)
    sizes = {
        str(path): random.choices(range(1, 50), k=random.randrange(1, 9)) for path in range(random.randrange(1, 5))
    }

    class Receiver:
        async def close(self) -> None: ...

        def __init__(self, _: object, path: str) -> None:
            self.path = path

    async def browse(receiver: Receiver, first: int, last: int) -> AsyncIterator[list[SimpleNamespace]]:
        for number in range(first, last + 1):
            yield [SimpleNamespace(sequence_number=number, size_bytes=sizes[receiver.path][number - 1])]

    monkeypatch.setattr("sbclient_spark.read.stream.open_receiver", Receiver)
    monkeypatch.setattr("sbclient_spark.read.stream.browse", browse)
    chosen = {(path, 0): Extent(1, len(found) + 1) for path, found in sizes.items()}
    kept = asyncio.run(_within(cast(Any, None), chosen, limit))
    assert all(extent.first == 1 for extent in kept.values())
    taken = [size for (path, _), extent in kept.items() for size in sizes[path][: extent.end - 1]]
    assert sum(taken) <= limit or len(taken) == 1  # a message that is larger than the limit is taken alone


def test_sessions_are_shared_out_whole_and_evenly() -> None:
    numbers = {"a": [1, 9, 11], "b": [2, 3], "c": [4], "d": [5]}
    assert shared_out(numbers, 2) == [[1, 5, 9, 11], [2, 3, 4]]
    assert shared_out({"a": [1]}, 4) == [[1]]


@pytest.mark.parametrize(
    ("wanted", "session", "is_wanted"),
    [((), "x", True), (("a", "b"), "b", True), (("a",), "ab", False), (("a*",), "ab", True), (("a*",), None, False)],
)
def test_sessions_are_named_by_id_or_pattern(wanted: tuple[str, ...], session: str | None, is_wanted: bool) -> None:
    assert matches(session, wanted) is is_wanted


# -- both modes --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["peek", "receive"])
@pytest.mark.parametrize("properties", [{}, {"enable_partitioning": True}])
def test_each_message_is_read_once_and_each_session_in_order(
    clients: WorkerClients, mode: str, properties: dict[str, Any]
) -> None:
    create(clients, requires_session=True, **properties)
    fill(clients, 40, 6, at_once=1)
    stream = Stream(clients, mode=mode, maxMessagesPerTrigger=100, minPartitions=3)
    found: list[str] = []
    sizes: list[int] = []
    while stream.plan():
        tasks = stream.reader.partitions(stream.offset or stream.reader.initialOffset(), stream.planned or {})
        rows = [
            [row["body"].decode() for page in stream.reader.read(task) for row in page.to_pylist()] for task in tasks
        ]
        sessions = [set(by_session(part)) for part in rows]
        assert sum(map(len, sessions)) == len(set().union(*sessions)), "a session is in two tasks"
        found += [body for part in rows for body in part]
        sizes.append(sum(map(len, rows)))
        stream.commit()
    assert by_session(found) == in_order(40, 6)
    assert max(sizes) <= 100
    assert left(clients) == (0 if mode == "receive" else 240)
    stream.reader.stop()


@pytest.mark.parametrize("mode", ["peek", "receive"])
def test_only_the_named_sessions_are_read(clients: WorkerClients, mode: str) -> None:
    create(clients, requires_session=True)
    fill(clients, 12, 2)
    assert set(by_session(Stream(clients, mode=mode, sessions="s1*, s3, s99").all())) == {"s1", "s10", "s11", "s3"}


@pytest.mark.parametrize("mode", ["peek", "receive"])
def test_a_micro_batch_has_a_largest_size_in_bytes(clients: WorkerClients, mode: str) -> None:
    for number, requires_session in enumerate((False, True)):
        queue = f"orders-{number}"
        create(clients, queue, requires_session=requires_session)
        for session in range(3):
            send(clients, range(session * 10, session * 10 + 10), queue, session_id=f"s{session}")

        async def sizes(client: ServiceBusClient, queue: str = queue) -> int:
            return max(one.size_bytes for one in await client.get_queue_receiver(queue).peek_messages(100))

        largest: int = run(clients, sizes)
        stream = Stream(clients, queue=queue, mode=mode, maxBytesPerTrigger=8 * largest)
        batches: list[list[str]] = []
        while found := stream.batch():
            batches.append(found)
        assert sorted(int(body) for batch in batches for body in batch) == list(range(30))
        assert max(map(len, batches)) <= 9
        assert 4 <= len(batches) <= 5
        tiny = Stream(clients, queue=queue, maxBytesPerTrigger=1)
        assert len(tiny.batch()) == (1 if mode == "peek" else 0)


def test_sessions_of_a_queue_without_sessions_are_refused(clients: WorkerClients) -> None:
    create(clients)
    with pytest.raises(InvalidOperationError, match="has no sessions"):
        Stream(clients, sessions="all").plan()


# -- receive -----------------------------------------------------------------------------------------------------


def test_sessions_are_locked_while_a_batch_runs_and_released_at_its_end(clients: WorkerClients) -> None:
    create(clients, requires_session=True)
    fill(clients, 3, 2)
    stream = Stream(clients, mode="receive")
    assert stream.plan()
    assert all(locked(clients, f"s{session}") for session in range(3))
    fill(clients, 3, 1, first=2)
    assert by_session([row["body"].decode() for row in stream.rows()]) == in_order(3, 2)
    stream.commit()
    assert stream.plan()
    assert left(clients) == 3
    stream.rows()
    stream.commit()
    assert not stream.plan()
    assert left(clients) == 0
    assert not any(locked(clients, f"s{session}") for session in range(3))


def test_replays_neither_lose_nor_reorder_nor_raise_the_delivery_count(clients: WorkerClients) -> None:
    create(clients, requires_session=True, max_delivery_count=3)
    fill(clients, 10, 4)
    stream = Stream(clients, mode="receive", maxMessagesPerTrigger=20)
    assert stream.plan()
    first = by_session([row["body"].decode() for row in stream.rows()])
    fill(clients, 10, 1, first=4)
    for _ in range(6):  # more often than the messages may be delivered
        stream.restart()
        assert by_session([row["body"].decode() for row in stream.rows()]) == first
        assert all(locked(clients, session) for session in first)
    stream.commit()
    stream.restart()  # before the next plan has completed them
    later = by_session(stream.all())
    assert {name: first.get(name, []) + later.get(name, []) for name in in_order(10, 5)} == in_order(10, 5)
    assert left(clients) == 0


def test_a_replay_with_other_sessions_reads_all_messages_of_its_batch(clients: WorkerClients) -> None:
    create(clients, requires_session=True)
    fill(clients, 3, 2)
    stream = Stream(clients, mode="receive", sessions="s1")
    assert stream.plan()
    stream.restart(sessions="s2", minPartitions=2)
    assert by_session([row["body"].decode() for row in stream.rows()]) == {"s1": [0, 1]}
    stream.commit()
    assert by_session(stream.all()) == {"s2": [0, 1]}
    assert left(clients) == 2


def test_a_driver_that_ends_before_its_offset_is_stored_loses_and_reorders_nothing(clients: WorkerClients) -> None:
    create(clients, requires_session=True)
    fill(clients, 5, 4)
    stream = Stream(clients, mode="receive", maxMessagesPerTrigger=7)
    assert stream.plan()
    stream.restart()
    assert by_session(stream.all()) == in_order(5, 4)


def test_a_session_that_another_consumer_holds_does_not_stop_the_others(
    clients: WorkerClients, monkeypatch: pytest.MonkeyPatch
) -> None:
    receivers: list[ServiceBusReceiver] = []

    def opened(*args: Any, **options: Any) -> ServiceBusReceiver:
        receivers.append(open_receiver(*args, **options))
        return receivers[-1]

    monkeypatch.setattr("sbclient_spark.read.sessions.open_receiver", opened)
    create(clients, requires_session=True)
    fill(clients, 4, 3)

    async def hold(client: ServiceBusClient) -> None:
        async with client.get_queue_receiver("orders", session_id="s2"):
            found = await asyncio.to_thread(lambda: Stream(clients, mode="receive", sessions="s?").all())
            assert by_session(found) == {name: numbers for name, numbers in in_order(4, 3).items() if name != "s2"}

    run(clients, hold)
    assert len(receivers) > 4
    assert all(receiver.is_closed for receiver in receivers)
    assert by_session(Stream(clients, mode="receive", sessions="s?").all()) == {"s2": [0, 1, 2]}


def test_messages_whose_lock_was_lost_are_completed_under_a_new_lock(
    clients: WorkerClients, set_forward: Callable[[float], None]
) -> None:
    create(clients, requires_session=True, lock_duration=timedelta(seconds=5))
    fill(clients, 3, 2)
    stream = Stream(clients, mode="receive")
    assert stream.plan()
    set_forward(6)
    assert not locked(clients, "s1")
    assert by_session([row["body"].decode() for row in stream.rows()]) == in_order(3, 2)
    stream.commit()
    assert stream.all() == []
    assert left(clients) == 0


def test_locks_are_renewed_as_long_as_a_batch_runs(clients: WorkerClients, monkeypatch: pytest.MonkeyPatch) -> None:
    renewed: list[str] = []

    class Renewer(AutoLockRenewer):
        def register(self, receiver: Any, renewable: Any, *arguments: Any, **more: Any) -> None:
            renewed.append(renewable.session_id)
            assert self._max_s >= timedelta(days=365).total_seconds()
            super().register(receiver, renewable, *arguments, **more)

    monkeypatch.setattr("sbclient_spark.read.sessions.AutoLockRenewer", Renewer)
    create(clients, requires_session=True)
    fill(clients, 3, 1)
    assert Stream(clients, mode="receive").plan()
    assert sorted(renewed) == ["s0", "s1", "s2"]


def test_a_committed_batch_is_completed_by_another_driver(clients: WorkerClients) -> None:
    create(clients, requires_session=True)
    fill(clients, 3, 2)

    async def work(client: ServiceBusClient) -> None:
        numbers = [one.sequence_number for one in await client.get_queue_receiver("orders").peek_messages(10)]
        assert await StreamSessions(client, "orders", None, 1).complete([*numbers, 1000]) == ()

    run(clients, work)
    assert left(clients) == 0


def test_processed_messages_that_come_again_are_only_completed(clients: WorkerClients) -> None:
    create(clients, requires_session=True)
    fill(clients, 1, 4)

    async def work(client: ServiceBusClient) -> None:
        numbers = [one.sequence_number for one in await client.get_queue_receiver("orders").peek_messages(10)]
        found = await StreamSessions(client, "orders", None, 10).receive(Budget(2, None), numbers[:3], None)
        assert list(found) == numbers[3:]

    run(clients, work)
    assert left(clients) == 1


def test_messages_that_cannot_be_completed_are_read_only_once(clients: WorkerClients) -> None:
    create(clients, requires_session=True)
    fill(clients, 2, 2)
    stream = Stream(clients, mode="receive")
    assert by_session(stream.batch()) == in_order(2, 2)
    stream.restart()

    async def take_s1(client: ServiceBusClient) -> None:
        async with client.get_queue_receiver("orders", session_id="s1"):
            await asyncio.to_thread(stream.plan)

    run(clients, take_s1)
    stream.commit()
    fill(clients, 2, 1, first=2)
    assert by_session(stream.all()) == {"s0": [2], "s1": [2]}
    assert left(clients) == 0


def test_available_now_receives_what_was_there_and_from_no_later_session(clients: WorkerClients) -> None:
    create(clients, requires_session=True)
    fill(clients, 30, 3)
    stream = Stream(clients, mode="receive", maxMessagesPerTrigger=25, maxSessionsPerTrigger=7)
    stream.reader.prepareForTriggerAvailableNow()
    found = stream.batch()
    fill(clients, 60, 1, first=3)
    found += stream.all()
    assert by_session(found) == in_order(30, 3)
    assert left(clients) == 60


def test_available_now_leaves_no_session_whose_messages_come_late_or_in_parts(
    clients: WorkerClients, monkeypatch: pytest.MonkeyPatch
) -> None:
    receive, is_late = HeldSession.receive, True

    async def receive_a_part(held: HeldSession, most: int) -> list[ServiceBusReceivedMessage]:
        nonlocal is_late
        if held.session_id == "s1" and is_late:
            is_late = False
            return []
        return await receive(held, min(most, 4))

    monkeypatch.setattr(HeldSession, "receive", receive_a_part)
    create(clients, requires_session=True)
    fill(clients, 5, 30)
    stream = Stream(clients, mode="receive")
    stream.reader.prepareForTriggerAvailableNow()
    assert by_session(stream.all()) == in_order(5, 30)
    assert left(clients) == 0


def test_no_more_sessions_are_locked_than_the_options_allow(clients: WorkerClients) -> None:
    create(clients, requires_session=True)
    fill(clients, 10, 2)
    stream = Stream(clients, mode="receive", maxSessionsPerTrigger=3)
    batches = []
    while bodies := stream.batch():
        batches.append(by_session(bodies))
    assert [len(batch) for batch in batches] == [3, 3, 3, 1]
    assert {session: numbers for batch in batches for session, numbers in batch.items()} == in_order(10, 2)


@pytest.mark.parametrize("most", [1, 2, 3])
def test_named_sessions_that_have_more_have_their_turns_one_after_another(
    clients: WorkerClients, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr("sbclient_spark.read.sessions.PAGE", 2)
    create(clients, requires_session=True)
    fill(clients, 6, 6)
    options = {"maxSessionsPerTrigger": most, "maxMessagesPerTrigger": 2 * most}
    stream = Stream(clients, mode="receive", sessions="s?", **options)
    for turn in range(3):
        batches = [by_session(stream.batch()) for _ in range(6 // most)]
        assert sum(map(len, batches)) == 6
        found = {session: numbers for batch in batches for session, numbers in batch.items()}
        assert found == {f"s{session}": [2 * turn, 2 * turn + 1] for session in range(6)}


def test_a_long_session_leaves_room_for_the_others(clients: WorkerClients, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sbclient_spark.read.sessions.PAGE", 10)
    create(clients, requires_session=True)
    send(clients, range(200), session_id="long")
    send(clients, range(200, 210), session_id="short")
    stream = Stream(clients, mode="receive", maxMessagesPerTrigger=50)
    found = stream.batch()
    assert len(found) == 50
    assert {str(number) for number in range(200, 210)} <= set(found)
    assert sorted(map(int, found + stream.all())) == list(range(210))


def test_a_thousand_sessions_are_read_once_and_in_order(clients: WorkerClients) -> None:
    create(clients, requires_session=True)
    fill(clients, 1000, 2)
    options = {"maxSessionsPerTrigger": 1000, "maxMessagesPerTrigger": 50_000, "minPartitions": 4}
    stream = Stream(clients, mode="receive", **options)
    batches: list[list[str]] = []
    while found := stream.batch():
        batches.append(found)
    assert by_session([body for batch in batches for body in batch]) == in_order(1000, 2)
    assert left(clients) == 0


# -- what foreachBatch asks for ----------------------------------------------------------------------------------


def test_the_state_of_a_held_session_is_read_and_written(clients: WorkerClients) -> None:
    create(clients, requires_session=True)
    fill(clients, 2, 1)
    sessions = HeldSessions({"connectionString": HERE, "queue": "orders", "checkpointLocation": "x"})
    stream = Stream(clients, mode="receive")
    with pytest.raises(SessionLockLostError, match="no stream"):
        sessions.get_state("s0")
    assert stream.plan()
    other = Stream(clients, mode="receive")
    other.reader.initialOffset()
    assert sessions.get_state("s0") is None
    for state in (b"\x00seen", b"", "é", "", b"x" * 100_000, None):
        sessions.set_state("s0", state)
        stream.restart()
        assert len(stream.rows()) == 2
        assert (sessions.get_state("s0") or b"") == (state.encode() if isinstance(state, str) else state or b"")
    stream.reader.stop()


def test_a_session_that_the_application_dead_letters_does_not_stop_the_others(clients: WorkerClients) -> None:
    create(clients, requires_session=True)
    fill(clients, 3, 2)
    sessions = HeldSessions({"connectionString": HERE, "queue": "orders"})
    for is_replayed in (False, True):
        stream = Stream(clients, mode="receive")
        assert stream.plan()
        if is_replayed:
            stream.restart()
        assert len(stream.rows()) == 6
        assert sessions.dead_letter("s1", "Spoilt", "it smells") == 2
        assert by_session([row["body"].decode() for row in stream.rows()]) == {"s0": [0, 1], "s2": [0, 1]}
        stream.commit()
        assert stream.all() == []
        stream.reader.stop()
        assert left(clients) == 2 * (1 + is_replayed)  # the dead letters
        fill(clients, 3, 0 if is_replayed else 2)

    async def dead(client: ServiceBusClient) -> set[tuple[str | None, str | None]]:
        receiver = client.get_queue_receiver("orders", sub_queue="deadletter")
        return {(one.session_id, one.dead_letter_reason) for one in await receiver.peek_messages(10)}

    assert run(clients, dead) == {("s1", "Spoilt")}


def test_a_socket_that_other_users_can_open_is_refused(tmp_path: Path) -> None:
    (tmp_path / f"sbclient-{os.getuid()}").mkdir(mode=0o755)
    with pytest.raises(InvalidOperationError, match="other users"):
        HeldSessions({"connectionString": HERE, "queue": "orders"}).get_state("s0")


def test_a_socket_that_a_killed_planner_left_is_removed(tmp_path: Path) -> None:
    folder = tmp_path / f"sbclient-{os.getuid()}"
    folder.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as abandoned:
        abandoned.bind(str(folder / "1-1.sock"))
    with pytest.raises(SessionLockLostError):
        HeldSessions({"connectionString": HERE, "queue": "orders"}).get_state("s0")
    assert list(folder.iterdir()) == []


@pytest.fixture
def planner(tmp_path: Path) -> Iterator[socket.socket]:
    """The socket of a living planner, whose queue is full with the second request."""
    folder = tmp_path / f"sbclient-{os.getuid()}"
    folder.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(folder / "1-1.sock"))
        listening.listen(0)
        yield listening


def asked(session: str) -> bytes | None:
    return HeldSessions({"connectionString": HERE, "queue": "orders"}).get_state(session)


def answer(planner: socket.socket, text: bytes) -> None:
    connection, _ = planner.accept()
    with connection:
        b"".join(iter(lambda: connection.recv(65_536), b""))
        connection.sendall(text)


def test_requests_of_many_threads_wait_for_a_busy_planner(planner: socket.socket) -> None:
    with ThreadPoolExecutor(40) as pool:
        answers = [pool.submit(asked, f"s{number}") for number in range(40)]
        for _ in answers:
            answer(planner, b'{"is_held": true, "result": null}')
        assert [one.result() for one in answers] == [None] * 40
    assert Path(planner.getsockname()).exists()


def test_a_planner_that_does_not_answer_keeps_its_socket(
    planner: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two cycles: it takes no connection for the timeout, then takes them and does not answer."""
    monkeypatch.setattr(held_sessions, "TIMEOUT_S", 1.0)
    with socket.socket(socket.AF_UNIX) as first:
        first.connect(planner.getsockname())
        for _ in range(2):
            with pytest.raises(OperationTimeoutError, match="planner"):
                asked("s0")
    with ThreadPoolExecutor(1) as pool:
        planner.accept()[0].close()  # of the first
        answered = pool.submit(asked, "s0")
        answer(planner, b'{"is_held": true, "result": null}')
        assert answered.result() is None


@pytest.mark.parametrize("text", [b"", b'{"is_held": false}'])
def test_a_planner_that_ends_while_it_is_asked_is_no_planner_without_the_session(
    planner: socket.socket, text: bytes
) -> None:
    with ThreadPoolExecutor(1) as pool:
        answered = pool.submit(asked, "s0")
        answer(planner, text)
        with pytest.raises(SessionLockLostError if text else ServiceBusConnectionError):
            answered.result()
