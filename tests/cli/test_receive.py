"""`sbclient receive` and `sbclient peek`: what is printed, what becomes of it, and that nothing is lost between."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from sbclient import ServiceBusClient, ServiceBusMessage, clock
from sbclient.cli import reception
from sbclient.cli.common import OutputClosed
from sbclient.cli.progress import Progress
from sbclient.cli.reception import Form, Reception, Settle
from sbclient.cli.source import ANY_SESSION, Source
from sbclient.client.receiver import ServiceBusReceiver
from sbclient.errors import MessageLockLostError
from sbclient.testing import Fault, FaultKind, MemoryPair, Operation, memory_pair
from sbclient.transport.memory.transport import memory_host
from tests.broker.driver import KEYS
from tests.cli.calling import PRIMARY, call, lines, on, sent


def make(queue: str, *messages: ServiceBusMessage, **settings: Any) -> None:
    async def work(client: ServiceBusClient) -> None:
        await client.administration.create_queue(queue, **settings)

    on(PRIMARY, work)
    sent(queue, *messages)


def bodies(*arguments: str, status: int = 0) -> list[Any]:
    return [message["body"] for message in lines(call(*arguments, status=status))]


def received(*arguments: str, status: int = 0) -> list[Any]:
    return bodies("receive", "--wait", "0.1", *arguments, status=status)


def numbered(count: int, **kwargs: Any) -> list[ServiceBusMessage]:
    return [ServiceBusMessage(str(number), **kwargs) for number in range(count)]


def test_wait_is_a_duration() -> None:
    on(PRIMARY, lambda client: client.administration.create_queue("q"))
    call("receive", "--queue", "q", "--wait", "100ms")
    assert "give at least 0.1 seconds" in call("receive", "--queue", "q", "--wait", "50 ms", status=2).stderr


def test_receive_completes_printed_messages() -> None:
    make("q", *numbered(250))
    assert received("--queue", "q", "--count", "3") == ["0", "1", "2"]
    assert received("--queue", "q") == [str(number) for number in range(3, 250)]
    assert bodies("peek", "--queue", "q") == []


@pytest.mark.promise("commands.bodies")
def test_format_lines_prints_bodies_including_binary_ones() -> None:
    make("q", ServiceBusMessage("text"), ServiceBusMessage(b"\xff"))
    assert call("receive", "--queue", "q", "--wait", "0.1", "--format", "lines").stdout_bytes == b"text\n\xff\n"


def test_abandoned_messages_are_printed_once_and_remain() -> None:
    make("q", *numbered(250))
    assert received("--queue", "q", "--settle", "abandon") == [str(number) for number in range(250)]
    assert {message["delivery_count"] for message in lines(call("peek", "--queue", "q"))} == {1}


def test_deferred_message_is_received_by_sequence_number() -> None:
    make("q", *numbered(2))
    received("--queue", "q", "--settle", "defer")
    assert received("--queue", "q") == []
    numbers = [message["sequence_number"] for message in lines(call("peek", "--queue", "q"))]
    by_number = [word for number in numbers for word in ("--sequence-number", str(number))]
    assert received("--queue", "q", *by_number) == ["0", "1"]
    received("--queue", "q", *by_number, status=5)


def test_commands_work_on_messages_of_every_partition() -> None:
    make("q", *(ServiceBusMessage(key, partition_key=key) for key in KEYS), enable_partitioning=True)
    received("--queue", "q", "--settle", "defer")
    numbers = {message["body"]: str(message["sequence_number"]) for message in lines(call("peek", "--queue", "q"))}
    by_number = [word for key in KEYS for word in ("--sequence-number", numbers[key])]
    assert received("--queue", "q", "--settle", "abandon", *by_number) == KEYS
    assert received("--queue", "q", "--settle", "dead-letter", *by_number) == KEYS
    assert sorted(bodies("peek", "--queue", "q", "--dead-letter")) == sorted(KEYS)
    dead = {message["body"]: str(message["sequence_number"]) for message in lines(call("dead-letter", "show", "q"))}
    chosen = [word for key in KEYS[4:] for word in ("--sequence-number", dead[key])]
    call("dead-letter", "resubmit", "q", *chosen, "--yes")
    assert sorted(received("--queue", "q")) == sorted(KEYS[4:])
    call("dead-letter", "purge", "q", "--yes")
    assert bodies("peek", "--queue", "q", "--dead-letter") == []


def test_dead_letter_has_its_reason_and_is_sent_again_without_it() -> None:
    make("q", ServiceBusMessage("x"))
    received("--queue", "q", "--settle", "dead-letter", "--reason", "spoilt")
    (peeked,) = lines(call("peek", "--queue", "q", "--dead-letter"))
    assert (peeked["body"], peeked["dead_letter_reason"]) == ("x", "spoilt")
    out = call("receive", "--queue", "q", "--dead-letter", "--wait", "0.1").stdout
    call("send", "--queue", "q", "--format", "messages", stdin=out)
    (again,) = lines(call("peek", "--queue", "q"))
    assert "application_properties" not in again
    assert again["message_id"] == peeked["message_id"]


def test_session_option_takes_a_name_or_a_star() -> None:
    make("s", *(message for name in "abc" for message in numbered(2, session_id=name)), requires_session=True)
    assert received("--queue", "s", "--session", "b") == ["0", "1"]
    assert received("--queue", "s", "--session", "*") == ["0", "1"] * 2


@pytest.mark.parametrize("settle", ["abandon", "defer"])
def test_star_reads_each_session_once_when_messages_remain(settle: str) -> None:
    make("s", *(ServiceBusMessage(name, session_id=name) for name in "abc"), requires_session=True)
    assert sorted(received("--queue", "s", "--session", "*", "--settle", settle)) == ["a", "b", "c"]
    assert len(bodies("peek", "--queue", "s", "--session", "a")) == 1


def test_receive_from_a_subscription() -> None:
    async def work(client: ServiceBusClient) -> None:
        await client.administration.create_topic("t")
        await client.administration.create_subscription("t", "s")
        async with client.get_topic_sender("t") as sender:
            await sender.send_messages(ServiceBusMessage("x"))

    on(PRIMARY, work)
    assert received("--topic", "t", "--subscription", "s") == ["x"]


def test_peek_prints_all_messages_from_a_sequence_number() -> None:
    later = ServiceBusMessage("later", scheduled_enqueue_time_utc=datetime.now(UTC) + timedelta(hours=1))
    make("q", *numbered(150), later)
    assert len(bodies("peek", "--queue", "q")) == 100
    assert len(bodies("peek", "--queue", "q", "--count", "1000")) == 151
    assert bodies("peek", "--queue", "q", "--from-sequence-number", "149") == ["148", "149", "later"]
    assert lines(call("peek", "--queue", "q", "--from-sequence-number", "151"))[0]["state"] == "scheduled"
    assert len(received("--queue", "q")) == 150


def test_failed_settlement_is_reported_and_redelivered() -> None:
    make("q", ServiceBusMessage("x"))
    host = memory_host(PRIMARY.removeprefix("memory://"))
    host.inject(Fault(FaultKind.ERROR, operations=[Operation.SETTLE], error=MessageLockLostError))
    result = call("receive", "--queue", "q", "--count", "1", "--wait", "0.1", status=1)
    assert len(lines(result)) == 1
    assert "message 1 was printed but not settled" in result.stderr


class _Script:
    """What a run of the command is, without the process around it."""

    def __init__(self, **settings: Any) -> None:
        given = {"count": None, "wait_s": 1.0, "settle": Settle.COMPLETE, "reason": None, "form": Form.LINES} | settings
        self.reception = Reception(source=Source("q", None, None), progress=Progress("receiving"), **given)

    async def run(self, pair: MemoryPair) -> None:
        async with pair.unpaired_client() as client:
            await self.reception.run(client, [])


async def filled(pair: MemoryPair, count: int) -> None:
    async with pair.unpaired_client() as client:
        await client.administration.create_queue("q")
        async with client.get_queue_sender("q") as sender:
            await sender.send_messages(numbered(count))


async def waiting(pair: MemoryPair) -> int:
    """Messages that can be received now."""
    async with pair.unpaired_client() as client, client.get_queue_receiver("q", max_wait_time=1) as receiver:
        return len(await receiver.receive_messages(1000))


async def test_messages_are_abandoned_when_stdout_closes(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = memory_pair(seed=1)
    await filled(pair, 10)
    printed: list[Any] = []

    def print_once(bodies: Any) -> None:
        if printed:
            raise OutputClosed
        printed.extend(bodies)

    monkeypatch.setattr(reception, "BATCH", 4)
    monkeypatch.setattr(reception, "print_bodies", print_once)
    with pytest.raises(OutputClosed):
        await _Script().run(pair)
    assert printed == [b"0", b"1", b"2", b"3"]
    assert await waiting(pair) == 6


async def test_messages_that_the_reader_of_a_pipe_has_taken_are_completed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def taken_by_reader() -> None:
        pass

    def print_some(bodies: Any) -> None:
        if len(printed) == 3:
            raise OutputClosed
        printed.extend(bodies)

    monkeypatch.setattr(reception, "unread_bytes", lambda: 0)
    monkeypatch.setattr(reception, "taken_by_reader", taken_by_reader)
    monkeypatch.setattr(reception, "print_bodies", print_some)
    pair = memory_pair(seed=1)
    await filled(pair, 10)
    printed: list[Any] = []
    with pytest.raises(OutputClosed):
        await _Script().run(pair)
    assert printed == [b"0", b"1", b"2"]
    assert await waiting(pair) == 7


async def test_interrupted_receive_leaves_nothing_locked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reception, "print_bodies", lambda bodies: None)
    pair = memory_pair(seed=1)
    await filled(pair, 3)
    script = _Script(wait_s=None, settle=Settle.ABANDON)
    running = asyncio.create_task(script.run(pair))
    await clock.sleep(30)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert script.reception.received == 3
    assert await waiting(pair) == 3


async def test_interruption_waits_for_settlements_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    printed: list[Any] = []
    monkeypatch.setattr(reception, "print_bodies", printed.extend)
    pair = memory_pair(seed=1)
    await filled(pair, 3)
    pair.primary.inject(Fault(FaultKind.SLOW, operations=[Operation.SETTLE], latency_s=10))
    script = _Script(wait_s=None)
    running = asyncio.create_task(script.run(pair))
    await clock.sleep(5)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    pair.primary.heal()
    assert (len(printed), script.reception.unsettled, await waiting(pair)) == (3, 0, 0)


async def test_follow_continues_without_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    printed: list[Any] = []
    monkeypatch.setattr(reception, "print_bodies", printed.extend)
    pair = memory_pair(seed=1)
    await filled(pair, 1)
    running = asyncio.create_task(_Script(wait_s=None).run(pair))
    await clock.sleep(3600)
    async with pair.unpaired_client() as client, client.get_queue_sender("q") as sender:
        await sender.send_messages(ServiceBusMessage("late"))
    await clock.sleep(1)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert printed == [b"0", b"late"]


@pytest.mark.parametrize(
    ("arguments", "kind", "command"),
    [
        (("receive", "--queue", "no"), "queue 'no'", "sbclient admin create queue no"),
        (("peek", "--queue", "no"), "queue 'no'", "sbclient admin create queue no"),
        (("send", "--body", "x", "--queue", "no"), "queue 'no'", "sbclient admin create queue no"),
        (("send", "--body", "x", "--topic", "no"), "topic 'no'", "sbclient admin create topic no"),
        (
            ("receive", "--topic", "t", "--subscription", "no"),
            "subscription 't/no'",
            "sbclient admin create subscription t no",
        ),
    ],
)
def test_error_of_a_missing_entity_says_what_to_do(arguments: tuple[str, ...], kind: str, command: str) -> None:
    error = call(*arguments, status=5).stderr
    assert f"there is no {kind} in {PRIMARY}: " in error
    assert command in error


@pytest.mark.parametrize("settle", list(Settle))
def test_a_receive_leaves_no_lock_and_holds_one_session_unless_it_keeps_messages(
    monkeypatch: pytest.MonkeyPatch, settle: Settle
) -> None:
    make("q", *numbered(9))
    make("s", *(message for name in "abc" for message in numbered(4, session_id=name)), requires_session=True)
    held, most = set[ServiceBusReceiver](), 0
    enter, close = ServiceBusReceiver.__aenter__, ServiceBusReceiver.close

    async def entered(self: ServiceBusReceiver) -> ServiceBusReceiver:
        nonlocal most
        receiver = await enter(self)
        held.add(self)
        most = max(most, len(held))
        return receiver

    async def closed(self: ServiceBusReceiver) -> None:
        await close(self)
        held.discard(self)

    monkeypatch.setattr(ServiceBusReceiver, "__aenter__", entered)
    monkeypatch.setattr(ServiceBusReceiver, "close", closed)
    for source in (["--queue", "q"], ["--queue", "s", "--session", "*"]):
        for more in (["--count", "1"], ["--where", "x = 1"], ["--count", "3"], []):
            received(*source, "--settle", settle, *more)
            assert locks() == []
    assert most == (3 if settle in (Settle.ABANDON, Settle.DEFER) else 1)


def locks() -> list[str]:
    """The locks of messages and sessions in the namespace."""
    bodies = [body for entity in memory_host("cli-test").namespace.directory.all() for body in entity.queues()]
    fragments = [fragment for body in bodies for fragment in body.fragments]
    of_messages = [f"{fragment.path} {number}" for fragment in fragments for number in fragment._locks.entries]
    return of_messages + [name for each in fragments for name, one in each._sessions.all() if one.token]


def test_error_of_a_session_entity_names_the_option() -> None:
    make("s", requires_session=True)
    assert "--session" in call("receive", "--queue", "s", status=2).stderr


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (("receive",), 2),
        (("receive", "--queue", "q", "--topic", "t"), 2),
        (("receive", "--topic", "t"), 2),
        (("receive", "--queue", "q", "--dead-letter", "--transfer-dead-letter"), 2),
        (("receive", "--queue", "q", "--reason", "x"), 2),
        (("receive", "--queue", "missing", "--wait", "0.1"), 5),
        (("peek", "--topic", "t"), 2),
        (("peek", "--queue", "missing"), 5),
    ],
)
def test_invalid_input_is_one_line_and_an_exit_status(arguments: tuple[str, ...], status: int) -> None:
    result = call(*arguments, status=status)
    assert result.stdout == ""
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize("count", [1, 2, 30])
@pytest.mark.parametrize("settle", [Settle.ABANDON, Settle.COMPLETE])
async def test_a_follow_ends_once_the_locks_of_messages_that_it_keeps_have_ended(
    monkeypatch: pytest.MonkeyPatch, settle: Settle, count: int
) -> None:
    """Those that are printed and then abandoned, and those that are not wanted."""
    pair = memory_pair(seed=1)
    await filled(pair, count)
    printed: list[Any] = []
    monkeypatch.setattr(reception, "print_bodies", printed.extend)
    is_kept = settle is Settle.ABANDON
    async with clock.timeout(150.0):
        await _Script(wait_s=None, settle=settle, wanted=None if is_kept else lambda _: False).run(pair)
    assert len(printed) == (count if is_kept else 0)
    assert await waiting(pair) == count


async def test_a_follow_of_all_sessions_waits_for_each_further_one(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = memory_pair(seed=1)
    printed: list[Any] = []
    monkeypatch.setattr(reception, "print_bodies", printed.extend)
    script = _Script(wait_s=None)
    script.reception.source = Source("q", None, None, ANY_SESSION)
    async with pair.unpaired_client() as client, client.get_queue_sender("q") as sender:
        await client.administration.create_queue("q", requires_session=True)
        running = asyncio.ensure_future(script.run(pair))
        for number in range(3):
            await clock.sleep(3 * reception.FOLLOWING_WAIT_S)
            await sender.send_messages(ServiceBusMessage(str(number), session_id=str(number)))
            await clock.sleep(5.0)
            assert printed == [str(each).encode() for each in range(number + 1)]
        running.cancel()
        await asyncio.wait([running])
