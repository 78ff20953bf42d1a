"""`sbclient send`: input, rejections, counts and the file of failed messages."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any, cast

import pytest

from sbclient import ServiceBusClient, ServiceBusMessage, clock
from sbclient.administration import ServiceBusAdministrationClient
from sbclient.amqp import EncodedBatch
from sbclient.cli import bulk_sender
from sbclient.cli.bulk_sender import IN_FLIGHT, MAX_REPORTED, BulkSender
from sbclient.cli.failed_file import FailedFile
from sbclient.cli.feed import AHEAD, Feed
from sbclient.cli.message_json import message_of
from sbclient.cli.progress import Progress
from sbclient.cli.records import Format, json_objects
from sbclient.cli.send import LARGE_BYTES, Input
from sbclient.errors import MessageSizeExceededError, ServiceBusAuthorizationError, ServiceBusConnectionError
from sbclient.testing import Fault, FaultKind
from sbclient.transport.memory.administration import MemoryAdministration
from sbclient.transport.memory.sender import MemorySender
from sbclient.transport.memory.transport import MemoryTransport, memory_host
from tests.cli.calling import PRIMARY, call, lines, on, paired


def peeked(queue: str) -> list[dict[str, Any]]:
    return lines(call("peek", "--queue", queue))


def make(queue: str, **settings: Any) -> None:
    async def work(client: ServiceBusClient) -> None:
        await client.administration.create_queue(queue, **settings)

    on(PRIMARY, work)


def test_a_column_of_json_objects_keeps_the_type_of_its_value() -> None:
    make("q")
    more = ("--column", "property.sold:=sold", "--column", "property.text=sold")
    call("send", "--queue", "q", "--format", "jsonl", *more, stdin='{"sold": true}\n')
    (message,) = peeked("q")
    assert message["application_properties"] == {"sold": True, "text": "true"}


def test_columns_set_body_key_and_attributes(tmp_path: Path) -> None:
    make("q")
    path = tmp_path / "orders.csv"
    path.write_text("no,customer,text,kind\n1,ada,one,new\n2,ada,two,\n3,,three,old\n")
    columns = ("--body-column", "text", "--key-column", "customer", "--column", "message_id=no")
    more = ["--column", "subject=kind", "--column", "property.number=no", "--set", "time_to_live=1h"]
    more += ["--column", "property.price:=no"]
    (report,) = lines(call("send", "--queue", "q", "--input", str(path), *columns, *more, "--json"))
    assert report | {"seconds": 0} == {
        "read": 3,
        "accepted": 3,
        "diverted": 0,
        "refused": 0,
        "failed": 0,
        "in_doubt": 0,
        "unsent": 0,
        "seconds": 0,
    }
    first, second, third = sorted(peeked("q"), key=lambda message: str(message["message_id"]))
    assert (first["body"], first["partition_key"], first["message_id"], first["subject"]) == ("one", "ada", "1", "new")
    assert "subject" not in second
    assert "partition_key" not in third
    assert first["application_properties"] == {"number": "1", "price": 1}
    assert first["time_to_live"] == "PT1H"


def test_body_option_sends_one_message() -> None:
    make("q")
    call("send", "--queue", "q", "--body", "hello", "--set", "subject=greeting", stdin="not read\n")
    (message,) = peeked("q")
    assert (message["body"], message["subject"]) == ("hello", "greeting")


def test_send_to_a_topic() -> None:
    async def work(client: ServiceBusClient) -> None:
        await client.administration.create_topic("t")
        await client.administration.create_subscription("t", "s")

    on(PRIMARY, work)
    call("send", "--topic", "t", "--body", "hello")
    assert [message["body"] for message in lines(call("peek", "--topic", "t", "--subscription", "s"))] == ["hello"]


def test_stdin_is_utf_8_and_an_empty_line_is_an_empty_message() -> None:
    make("q")
    call("send", "--queue", "q", stdin="ü\n\nzwei\n".encode())
    assert [message["body"] for message in peeked("q")] == ["ü", "", "zwei"]


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16", "cp1252"])
def test_input_has_the_named_encoding(tmp_path: Path, encoding: str) -> None:
    make("q")
    path = tmp_path / "in.txt"
    path.write_text("ü\nzwei\n", encoding=encoding)
    call("send", "--queue", "q", "--input", str(path), "--encoding", encoding)
    call("send", "--queue", "q", "--encoding", encoding, stdin=path.read_bytes())
    assert [message["body"] for message in peeked("q")] == ["ü", "zwei"] * 2


def test_line_of_another_encoding_is_reported_after_the_lines_before_it(tmp_path: Path) -> None:
    make("q")
    path = tmp_path / "in.txt"
    path.write_bytes(b"one\ntwo\ncaf\xe9\nfour\n")
    result = call("send", "--queue", "q", "--input", str(path), status=2)
    assert "in.txt, line 3: byte 0xe9 at column 4 is not UTF-8" in result.stderr
    assert "--encoding" in result.stderr
    assert [message["body"] for message in peeked("q")] == ["one", "two"]


def test_unknown_encoding_is_bad_input() -> None:
    assert "latin-1" in call("send", "--queue", "q", "--encoding", "klingon", status=2, stdin="x\n").stderr
    call("send", "--queue", "q", "--encoding", "base64", status=2, stdin="x\n")


def test_lines_of_another_encoding_are_kept_unchanged(tmp_path: Path) -> None:
    make("q")
    kept = tmp_path / "failed.txt"
    call("send", "--queue", "q", "--failed", str(kept), status=2, stdin=b"one\ncaf\xe9\nfour\n")
    assert kept.read_bytes() == b"caf\xe9\nfour\n"


def resumption(result: Any) -> list[str]:
    """The arguments of the command that the output offers."""
    return shlex.split(re.findall(r"resume with:\n  sbclient (.+)", result.stderr)[0])


def test_command_resumes_after_an_invalid_line(tmp_path: Path) -> None:
    make("q")
    path = tmp_path / "it's.jsonl"
    path.write_text('{"n": 1}\n{"n": 2}\nnonsense\n{"n": 4}\n')
    again = resumption(call("send", "--queue", "q", "--input", str(path), "--body-column", "n", status=2))
    assert again == ["send", "--queue", "q", "--input", str(path), "--skip", "2", "--body-column", "n"]
    path.write_text(path.read_text().replace("nonsense", '{"n": 3}'))
    call(*again)
    assert [message["body"] for message in peeked("q")] == ["1", "2", "3", "4"]


def test_command_resumes_at_the_first_record_that_was_not_accepted(tmp_path: Path) -> None:
    path = tmp_path / "in.txt"
    path.write_text("".join(f"{number}\n" for number in range(3000)))
    again = resumption(call("send", "--queue", "missing", "--input", str(path), "--skip", "10", status=5))
    assert again[-2:] == ["--skip", "10"]
    assert PRIMARY not in again


def test_received_messages_can_be_sent_unchanged() -> None:
    make("a")
    make("b")
    sent: list[dict[str, Any]] = [
        {
            "body_base64": "/wA=",
            "message_id": "m",
            "session_id": "s",
            "subject": "x",
            "application_properties": {"when": {"datetime": "2030-01-01T00:00:00Z"}, "n": 1, "f": 1.0, "none": None},
        },
        {
            "body": "text",
            "message_id": "n",
            "time_to_live": "PT1H",
            "scheduled_enqueue_time_utc": "2020-01-01T00:00:00Z",
        },
    ]
    call("send", "--queue", "a", "--format", "messages", stdin="".join(json.dumps(each) + "\n" for each in sent))
    first = call("receive", "--queue", "a", "--wait", "0.1").stdout
    call("send", "--queue", "b", "--format", "messages", stdin=first)
    second = call("receive", "--queue", "b", "--wait", "0.1").stdout
    for printed in (first, second):
        for given, message in zip(sent, map(json.loads, printed.splitlines()), strict=True):
            assert {name: message[name] for name in given} == given


def test_rejected_messages_are_reported_kept_and_do_not_stop_sending(tmp_path: Path) -> None:
    make("q")
    kept = tmp_path / "refused.jsonl"
    stdin = "".join(json.dumps({"body": "x" * size, "message_id": f"m{size}"}) + "\n" for size in (1, 300_000, 2))
    result = call("send", "--queue", "q", "--format", "messages", "--failed", str(kept), status=1, stdin=stdin)
    assert "record 2: " in result.stderr
    assert "accepted 2" in result.stderr
    (refused,) = map(json.loads, kept.read_text().splitlines())
    assert refused["message_id"] == "m300000"
    call("send", "--queue", "q", "--format", "messages", "--input", str(kept), status=1)


def test_no_failed_file_remains_when_nothing_failed(tmp_path: Path) -> None:
    make("q")
    call("send", "--queue", "q", "--body", "x", "--failed", str(tmp_path / "failed.jsonl"))
    assert list(tmp_path.iterdir()) == []


def test_failed_file_must_not_be_the_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make("q")
    monkeypatch.chdir(tmp_path)
    path = Path("in.jsonl")
    path.write_text('{"body": "x"}\n')
    arguments = ("send", "--queue", "q", "--format", "messages", "--input", "in.jsonl")
    result = call(*arguments, "--failed", "./in.jsonl", status=2)
    assert "is not empty" in result.stderr
    assert path.read_text() == '{"body": "x"}\n'
    assert peeked("q") == []


def test_failed_file_with_content_is_not_overwritten(tmp_path: Path) -> None:
    make("q")
    kept = tmp_path / "failed.jsonl"
    kept.write_text("older\n")
    assert "is not empty" in call("send", "--queue", "q", "--failed", str(kept), status=2, stdin="x").stderr
    assert kept.read_text() == "older\n"
    kept.write_text("")
    call("send", "--queue", "q", "--failed", str(kept), stdin="x")
    assert kept.exists()


def test_unwritable_failed_file_is_reported_before_the_first_send(tmp_path: Path) -> None:
    make("q")
    kept = tmp_path / "no such directory" / "failed.jsonl"
    result = call("send", "--queue", "q", "--failed", str(kept), status=2, stdin="x")
    assert f"--failed {kept} cannot be written" in result.stderr
    assert peeked("q") == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a disk that is full")
def test_full_disk_does_not_hide_the_first_error() -> None:
    result = call("send", "--queue", "missing", "--failed", "/dev/full", "--json", status=5, stdin="x\n" * 3)
    assert "/dev/full cannot be written" in result.stderr
    (printed,) = (line for line in result.stderr.splitlines() if line.startswith("{"))
    assert json.loads(printed)["error"]["type"] == "MessagingEntityNotFoundError"
    make("q", requires_session=True)
    assert "No space left" in call("send", "--queue", "q", "--failed", "/dev/full", status=2, stdin="x\n" * 3).stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a disk that is full")
def test_full_disk_makes_the_printed_command_repeat_the_messages_that_failed(tmp_path: Path) -> None:
    path = tmp_path / "in.txt"
    path.write_text("x\n" * 10)
    result = call("send", "--queue", "missing", "--failed", "/dev/full", "--input", str(path), status=5)
    assert "has the messages that were not accepted" not in result.stderr
    assert "records of in.txt after 0 were not sent" in result.stderr
    assert "--skip 0" in result.stderr


def test_only_the_first_rejections_are_printed() -> None:
    make("q", requires_session=True)
    result = call("send", "--queue", "q", status=1, stdin="x\n" * 50)
    assert sum(line.startswith("record ") for line in result.stderr.splitlines()) == MAX_REPORTED
    assert "refused 50" in result.stderr


def test_missing_entity_ends_the_command_with_its_status() -> None:
    result = call("send", "--queue", "missing", "--json", status=5, stdin="x\n" * 100_000)
    (report,) = lines(result)
    assert report["accepted"] == 0
    assert report["failed"] == report["read"] < 100_000
    assert json.loads(result.stderr)["error"]["exit_status"] == 5


@pytest.mark.real_time
def test_rest_of_stdin_is_kept_after_an_error(tmp_path: Path) -> None:
    kept = tmp_path / "failed.jsonl"
    count = AHEAD + 3 * IN_FLIGHT
    stdin = "".join(json.dumps({"body": "x", "message_id": str(number)}) + "\n" for number in range(count))
    arguments = ("send", "--queue", "late", "--format", "messages")
    (report,) = lines(call(*arguments, "--failed", str(kept), "--json", status=5, stdin=stdin))
    assert report["failed"] + report["unsent"] == count
    assert report["read"] == report["failed"] < count
    make("late")
    call(*arguments, "--input", str(kept))
    found = lines(call("peek", "--queue", "late", "--count", "5000"))
    assert sorted(int(message["message_id"]) for message in found) == list(range(count))


def test_lines_from_an_invalid_line_on_are_kept_unchanged(tmp_path: Path) -> None:
    make("q")
    kept = tmp_path / "failed.jsonl"
    given = ['{"body": "1"}\n', '{"body": "2"\n', "\n", '{"body":   "3"}\n']
    arguments = ("send", "--queue", "q", "--format", "messages", "--failed", str(kept))
    result = call(*arguments, status=2, stdin="".join(given))
    assert "stdin, line 2" in result.stderr
    assert "unsent 3" in result.stderr
    assert kept.read_text().splitlines(keepends=True) == given[1:]


@pytest.mark.real_time
async def test_messages_read_before_an_interruption_are_kept(tmp_path: Path) -> None:
    kept = tmp_path / "failed.jsonl"
    read, write = os.pipe()
    os.write(write, b'{"body": "1"}\n{"body": "2"}\n')

    def messages() -> Iterator[ServiceBusMessage]:
        with open(read) as pipe:
            yield from (message_of("pipe", fields) for _, fields in json_objects("pipe", pipe))

    with FailedFile(kept) as failed:
        bulk = BulkSender(Progress("sending"), failed)
        await bulk.write_rest(Feed(messages()), iter(()), quiet_s=0.1)
    assert [json.loads(line)["body"] for line in kept.read_text().splitlines()] == ["1", "2"]
    assert bulk.tally.unsent == 2
    os.close(write)


@pytest.mark.parametrize("end", ["", " ", " \t ", "\x0b", "\u3000", "\x85", "\u2028"])
def test_a_line_that_was_not_sent_is_kept_with_its_blanks(tmp_path: Path, end: str) -> None:
    path = tmp_path / "failed.txt"
    with FailedFile(path) as kept:
        for line in (f"one{end}\n", f"  two{end}\r\n", f"three{end}"):
            kept.write(line)
    assert path.read_bytes().decode() == f"one{end}\n  two{end}\nthree{end}\n"


def test_rest_of_a_file_is_not_kept_and_the_report_names_the_last_record(tmp_path: Path) -> None:
    kept, path = tmp_path / "failed.jsonl", tmp_path / "in.txt"
    path.write_text("x\n" * 5000)
    result = call("send", "--queue", "missing", "--input", str(path), "--failed", str(kept), status=5)
    (number,) = re.findall(r"records of in.txt after ([\d,]+) were not sent", result.stderr)
    assert len(kept.read_text().splitlines()) == int(number.replace(",", ""))


def test_invalid_line_ends_sending_after_the_lines_before_it() -> None:
    make("q")
    result = call(
        "send", "--queue", "q", "--format", "jsonl", status=2, stdin='{"a": 1}\n{"a": 2}\nnonsense\n{"a": 3}\n'
    )
    assert "stdin, line 3" in result.stderr
    assert "accepted 2" in result.stderr
    assert len(peeked("q")) == 2


@pytest.fixture
def transfers(monkeypatch: pytest.MonkeyPatch) -> list[list[str | None]]:
    """The sessions of the messages of each transfer to the namespaces in memory."""
    found: list[list[str | None]] = []
    send = MemorySender.send

    def spy(self: MemorySender, batch: EncodedBatch, **options: Any) -> asyncio.Future[None]:
        found.append([message.session_id for message in batch])
        return send(self, batch, **options)

    monkeypatch.setattr(MemorySender, "send", spy)
    return found


def send_sessions(tmp_path: Path, *more: str, rows: int = 2000, sessions: int = 100) -> None:
    """Send rows of many sessions, one of which is too large, to `q`, and check the report, the file and the order."""
    path, kept = tmp_path / "in.csv", tmp_path / "failed.jsonl"
    bad = rows // 2
    bodies = [f"{number:,}".ljust(1_100_000 if number == bad else 10) for number in range(rows)]
    path.write_text("s,text\n" + "".join(f's{at % sessions},"{body}"\n' for at, body in enumerate(bodies)))
    assert path.stat().st_size > LARGE_BYTES
    columns = ("--session-column", "s", "--body-column", "text", "--failed", str(kept), "--json")
    result = call("send", "--queue", "q", "--input", str(path), *columns, *more, status=1)
    (report,) = lines(result)
    assert (report["accepted"], report["refused"], report["failed"]) == (rows - 1, 1, 0)
    assert f"record {bad + 1}: " in result.stderr
    assert [json.loads(line)["body"] for line in kept.read_text().splitlines()] == [bodies[bad]]
    arrived: dict[str, list[str]] = {}
    for message in lines(call("peek", "--queue", "q", "--count", str(rows))):
        arrived.setdefault(message["session_id"], []).append(message["body"])
    for session in range(sessions):
        expected = [bodies[at] for at in range(session, rows, sessions) if at != bad]
        assert arrived[f"s{session}"] == expected


def test_sessions_share_transfers_in_the_order_of_the_input(tmp_path: Path, transfers: list[list[str | None]]) -> None:
    make("q", requires_session=True)
    send_sessions(tmp_path)
    assert max(len(set(sessions)) for sessions in transfers) > 1  # how many depends on the speed of the machine


@pytest.mark.parametrize("is_readable", [True, False])
def test_sessions_do_not_share_transfers_where_partitions_may_exist(
    tmp_path: Path, transfers: list[list[str | None]], monkeypatch: pytest.MonkeyPatch, is_readable: bool
) -> None:
    make("q", requires_session=True, enable_partitioning=is_readable)
    if not is_readable:

        async def get(*_: object) -> None:
            raise ServiceBusAuthorizationError("the identity has no right to manage")

        monkeypatch.setattr(MemoryAdministration, "get", get)
    send_sessions(tmp_path)
    assert {len(set(sessions)) for sessions in transfers} == {1}


@pytest.mark.real_time
def test_description_is_not_waited_for_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make("q", requires_session=True)

    async def get(*_: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(MemoryAdministration, "get", get)
    monkeypatch.setattr("sbclient.cli.send.DESCRIPTION_S", 0.1)
    send_sessions(tmp_path)


def test_description_is_not_read_for_a_small_file_or_without_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make("q")
    read: list[object] = []

    async def get(*arguments: object) -> None:
        read.append(arguments)
        raise ServiceBusAuthorizationError("the identity has no right to manage")

    monkeypatch.setattr(MemoryAdministration, "get", get)
    path = tmp_path / "in.csv"
    path.write_text("s,text\na,one\n")
    call("send", "--queue", "q", "--input", str(path), "--session-column", "s")
    call("send", "--queue", "q", stdin="one\n")
    call("send", "--queue", "q", "--body", "x", "--set", "session_id=a")
    assert not read
    call("send", "--queue", "q", "--format", "csv", "--session-column", "s", stdin="s,text\na,one\n")
    call("send", "--queue", "q", "--format", "messages", stdin='{"body": "x", "session_id": "a"}\n')
    assert len(read) == 2


def test_send_diverts_while_the_primary_is_down() -> None:
    make("q")
    memory_host(PRIMARY.removeprefix("memory://")).inject(Fault(FaultKind.DOWN))
    (report,) = lines(paired("send", "--queue", "q", "--timeout", "1", "--divert-anyway", "--json", stdin="one\ntwo\n"))
    assert (report["accepted"], report["diverted"], report["failed"]) == (2, 2, 0)


def test_send_diverts_nothing_if_the_primary_never_answered() -> None:
    make("q")
    memory_host(PRIMARY.removeprefix("memory://")).inject(Fault(FaultKind.DOWN))
    result = paired("send", "--queue", "q", "--timeout", "1", status=3, stdin="one\ntwo\n")
    assert "--divert-anyway" in result.stderr
    assert lines(paired("backlog", "--json"))[0]["waiting"] == 0


def test_divert_anyway_requires_a_secondary() -> None:
    assert "--secondary" in call("send", "--queue", "q", "--body", "x", "--divert-anyway", status=2).stderr


def test_outage_without_secondary_ends_sending_and_counts_doubt() -> None:
    make("q")
    memory_host(PRIMARY.removeprefix("memory://")).inject(Fault(FaultKind.HANG))
    result = call("send", "--queue", "q", "--timeout", "0.2", "--json", status=3, stdin="one\n")
    (report,) = lines(result)
    assert (report["accepted"], report["failed"], report["in_doubt"]) == (0, 1, 1)
    assert len(result.stderr.splitlines()) == 1


async def test_first_failed_record_is_the_first_of_the_input_and_not_in_time() -> None:
    class Refusing:
        """Refuses the records in reversed order."""

        async def send_messages(self, message: ServiceBusMessage) -> None:
            await clock.sleep(10.0 - int(str(message)))
            raise ServiceBusConnectionError("lost")

    async def messages() -> AsyncIterator[ServiceBusMessage]:
        for number in range(3):
            yield ServiceBusMessage(str(number))

    bulk = BulkSender(Progress("sending"), first=7)
    refusing: Any = Refusing()
    with pytest.raises(ServiceBusConnectionError):
        await bulk.send(refusing, messages())
    assert (bulk.tally.failed, bulk.first_failed_record) == (3, 7)


async def test_each_message_is_accepted_or_in_the_file_however_the_send_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk_sender, "IN_FLIGHT", 5)
    for seed in range(100):
        await account_for_all(Random(seed), tmp_path / f"{seed}.jsonl")


async def account_for_all(random: Random, kept: Path) -> None:
    """Send while messages are rejected, the entity fails, and one signal or two come."""
    first, count = random.choice([1, 7]), random.randrange(30)
    outcomes = random.choices(["accepted", "rejected", "lost", "refused"], [30, 3, 1, random.random()], k=count)
    accepted, failures, begun, ended, most = list[str](), list[tuple[int, Exception]](), 0, 0, count

    class Sender:
        async def send_messages(self, message: ServiceBusMessage) -> None:
            nonlocal begun, ended, most
            begun += 1
            assert begun - ended <= bulk_sender.IN_FLIGHT
            number = int(str(message))
            try:
                await clock.sleep(random.choice([0.0, 1.0, 3.0]))
            finally:
                ended += 1
            if outcomes[number] == "rejected":
                raise MessageSizeExceededError("it is too large")
            if outcomes[number] != "accepted":
                error = ServiceBusConnectionError("lost")
                error.is_in_doubt = outcomes[number] == "lost"
                failures.append((first + number, error))
                most = min(most, bulk.tally.read)  # no other message is begun
                raise error
            accepted.append(str(message))

    class Messages(AsyncIterator[ServiceBusMessage]):  # as of a feed, a cancelled `anext` loses nothing
        def __init__(self) -> None:
            self.numbers = iter(range(count))

        async def __anext__(self) -> ServiceBusMessage:
            await clock.sleep(random.choice([0.0, 0.0, 0.5]))
            for number in self.numbers:
                return ServiceBusMessage(str(number))
            raise StopAsyncIteration

    given, sender = Messages(), cast(Any, Sender())
    with FailedFile(kept) as failed:
        bulk = BulkSender(Progress("sending"), failed, first=first)
        sending = asyncio.ensure_future(bulk.send(sender, given))
        if random.random() < 0.5:
            await clock.sleep(random.choice([0.0, 0.4, 2.0, 5.0]))
            if bulk.stop():
                most = min(most, bulk.tally.read)
            if random.random() < 0.3:
                await clock.sleep(0.1)
                sending.cancel()
        await asyncio.wait([sending])
        await bulk.write_rest(given, iter(()), quiet_s=None)
    tally = bulk.tally
    assert (bulk.in_flight, tally.read) == (0, begun)
    assert begun <= most
    assert tally.accepted == len(accepted)
    written = bodies_in(kept)
    assert sorted(map(int, accepted + written)) == list(range(count))
    assert len(written) == tally.refused + tally.failed + tally.unsent
    assert tally.in_doubt <= tally.failed
    if not sending.cancelled():
        assert tally.in_doubt == sum(outcomes[number - first] == "lost" for number, _ in failures)
        assert bulk.first_failed_record == min((number for number, _ in failures), default=None)
        assert sending.exception() is (failures[0][1] if failures else None)


def bodies_in(path: Path) -> list[str]:
    return [json.loads(line)["body"] for line in path.read_text().splitlines()] if path.exists() else []


@pytest.mark.real_time
async def test_interrupted_send_is_counted_in_doubt_and_kept(tmp_path: Path) -> None:
    host = memory_host(PRIMARY.removeprefix("memory://"))
    transport = MemoryTransport(host)
    await ServiceBusAdministrationClient(transport=transport).create_queue("q")
    host.inject(Fault(FaultKind.HANG))
    kept = tmp_path / "failed.jsonl"
    failed = FailedFile(kept)
    bulk = BulkSender(Progress("sending"), failed)
    async with ServiceBusClient(transport=transport) as client, client.get_queue_sender("q") as sender:

        async def messages() -> Any:
            for message in Input(body="x").messages():
                yield message

        sending = asyncio.create_task(bulk.send(sender, messages()))
        await asyncio.sleep(0.1)
        sending.cancel()
        with pytest.raises(asyncio.CancelledError), failed:
            await sending
    assert (bulk.tally.failed, bulk.tally.in_doubt) == (1, 1)
    assert json.loads(kept.read_text())["body"] == "x"


@pytest.mark.parametrize(
    "arguments",
    [
        ("--queue", "q", "--topic", "t"),
        (),
        ("--queue", "q", "--input", "no such file"),
        ("--queue", "q", "--set", "colour=red"),
        ("--queue", "q", "--body", "x", "--set", "time_to_live=soon"),
        ("--queue", "q", "--body", "x", "--input", "in.csv"),
        ("--queue", "q", "--body", "x", "--format", "csv"),
        ("--queue", "q", "--body", "x", "--body-column", "a"),
        ("--queue", "q", "--body", "x", "--session-column", "a"),
        ("--queue", "q", "--body", "x", "--column", "subject=a"),
        ("--queue", "q", "--column", "subject"),
        ("--queue", "q", "--format", "messages", "--body-column", "x"),
        ("--queue", "q", "--format", "csv", "--column", "subject=nothing"),
    ],
)
def test_invalid_input_sends_nothing(arguments: tuple[str, ...]) -> None:
    make("q")
    result = call("send", *arguments, status=2, stdin="a,b\n1,2\n")
    assert len(result.stderr.splitlines()) == 1
    assert peeked("q") == []


@pytest.mark.parametrize("name", ["time_to_live", "scheduled_enqueue_time_utc"])
def test_invalid_setting_is_named_in_the_error(name: str) -> None:
    result = call("send", "--queue", "q", "--body", "x", "--set", f"{name}=soon", status=2)
    assert f"{name} is 'soon': " in result.stderr


def test_format_comes_from_the_suffix_unless_given(tmp_path: Path) -> None:
    path = tmp_path / "orders.csv"
    path.write_text("a\n1\n")
    assert [bytes(message) for message in Input(str(path)).messages()] == [b'{"a": "1"}']
    assert [bytes(message) for message in Input(str(path), Format.LINES).messages()] == [b"a", b"1"]
    (message,) = Input(body="x", settings=[("time_to_live", "5m")]).messages()
    assert message.time_to_live == timedelta(minutes=5)
