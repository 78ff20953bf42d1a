"""The commands on a terminal, as a person meets them: questions, progress, Ctrl-C, a pipe that closes."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import shlex
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sbclient import PairedNamespaceOptions, ServiceBusClient, ServiceBusMessage
from sbclient.emulator import Emulator
from sbclient.testing import Fault, FaultKind, Operation, served
from tests.cli.calling import on
from tests.commands import ROOT, STRICT_SBCLIENT, start
from tests.limit import HANG_S

pytestmark = pytest.mark.slow  # starts many processes


@pytest.fixture
def emulator() -> Iterator[Emulator]:
    with served("contoso:0", "contoso-backup:0") as emulator:

        async def work(client: ServiceBusClient) -> None:
            for name in ("orders", "visits"):
                await client.administration.create_queue(name, requires_session=name == "visits")

        on(emulator.connection_string, work)
        yield emulator


def environment(emulator: Emulator) -> dict[str, str]:
    primary, secondary = emulator.connection_strings.values()
    return {
        "SERVICEBUS_CONNECTION_STRING": primary,
        "SERVICEBUS_SECONDARY_CONNECTION_STRING": secondary,
        "TERM": "xterm",
        "COLUMNS": "120",
    }


class Terminal:
    """A command whose stdin, stdout and stderr are a terminal; stdout may be something else."""

    def __init__(self, emulator: Emulator, *arguments: str, stdout: int | None = None) -> None:
        self._master, slave = pty.openpty()
        out = slave if stdout is None else stdout
        env = environment(emulator)
        self.process = start(*arguments, stdin=slave, stdout=out, stderr=slave, env=env, start_new_session=True)
        os.close(slave)
        self.seen = ""

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def await_text(self, text: str) -> None:
        """Read until it has been printed."""
        end_at = time.monotonic() + HANG_S
        while text not in self.seen:
            assert time.monotonic() < end_at, f"never printed {text!r}, but {self.seen!r}"
            self._read()

    def _read(self) -> bool:
        ready, _, _ = select.select([self._master], [], [], 0.1)
        if not ready:
            return True
        try:
            self.seen += os.read(self._master, 65536).decode()
        except OSError:  # the other side has ended
            return False
        return True

    def ended(self) -> int:
        """Wait for its end; returns the exit status."""
        while self._read() and self.process.poll() is None:
            pass
        while self._read() and select.select([self._master], [], [], 0)[0]:
            pass
        os.close(self._master)
        return self.process.wait()


def counts(emulator: Emulator, queue: str) -> int:
    async def work(client: ServiceBusClient) -> int:
        return (await client.administration.get_queue_runtime_properties(queue)).active_message_count

    number = on(emulator.connection_string, work)
    assert isinstance(number, int)
    return number


def put(emulator: Emulator, *bodies: str) -> None:
    async def work(client: ServiceBusClient) -> None:
        async with client.get_queue_sender("orders") as sender:
            await sender.send_messages([ServiceBusMessage(body) for body in bodies])

    on(emulator.connection_string, work)


def test_typed_lines_are_sent_until_ctrl_d(emulator: Emulator) -> None:
    terminal = Terminal(emulator, "send", "--queue", "orders")
    terminal.await_text("Ctrl-D ends")
    terminal.type("one\ntwo\n")
    terminal.type("\x04")
    assert terminal.ended() == 0
    assert "accepted 2" in terminal.seen
    assert counts(emulator, "orders") == 2


@pytest.mark.parametrize(("answer", "status", "left"), [("y\n", 0, []), ("\n", 1, ["orders"])])
def test_delete_asks_for_confirmation(emulator: Emulator, answer: str, status: int, left: list[str]) -> None:
    terminal = Terminal(emulator, "admin", "delete", "queue", "orders")
    terminal.await_text("Delete queue orders and its contents? [y/N] ")
    terminal.type(answer)
    assert terminal.ended() == status

    async def names(client: ServiceBusClient) -> list[str]:
        return [queue.name async for queue in client.administration.list_queues()]

    assert on(emulator.connection_string, names) == [*left, "visits"]


def test_ctrl_c_at_a_question_has_status_130(emulator: Emulator) -> None:
    terminal = Terminal(emulator, "admin", "delete", "queue", "orders")
    terminal.await_text("[y/N] ")
    terminal.process.send_signal(signal.SIGINT)
    assert terminal.ended() == 130
    assert "Traceback" not in terminal.seen


def test_ctrl_c_ends_follow_and_releases_locks(emulator: Emulator) -> None:
    put(emulator, "one", "two")
    terminal = Terminal(emulator, "receive", "--queue", "orders", "--follow", "--format", "lines")
    terminal.await_text("two")
    terminal.process.send_signal(signal.SIGINT)
    assert terminal.ended() == 130, terminal.seen
    assert "received 2" in terminal.seen
    assert "Traceback" not in terminal.seen
    assert counts(emulator, "orders") == 0


@pytest.fixture
def numbers(tmp_path: Path) -> Path:
    path = tmp_path / "in.txt"
    path.write_text("".join(f"{number}\n" for number in range(20_000)))
    return path


def test_ctrl_c_waits_for_sends_in_flight_and_prints_where_to_resume(emulator: Emulator, numbers: Path) -> None:
    emulator.inject(Fault(FaultKind.SLOW, operations=[Operation.SEND], latency_s=0.7))
    terminal = Terminal(emulator, "send", "--queue", "orders", "--input", str(numbers))
    terminal.await_text("per second, ")
    terminal.process.send_signal(signal.SIGINT)
    assert terminal.ended() == 130
    assert "Traceback" not in terminal.seen
    (accepted,) = re.findall(r"^accepted ([\d,]+)   ", terminal.seen, re.M)
    sent = int(accepted.replace(",", ""))
    assert counts(emulator, "orders") == sent > 0
    assert f"\r\n  sbclient send --queue orders --input {numbers} --skip {sent}\r\n" in terminal.seen


def test_second_ctrl_c_does_not_wait(emulator: Emulator, numbers: Path) -> None:
    emulator.inject(Fault(FaultKind.SLOW, operations=[Operation.SEND], latency_s=0.7))
    terminal = Terminal(emulator, "send", "--queue", "orders", "--input", str(numbers))
    terminal.await_text("per second, ")
    emulator.inject(Fault(FaultKind.HANG, operations=[Operation.SEND]))
    terminal.process.send_signal(signal.SIGINT)
    terminal.await_text("press Ctrl-C again")
    began_at = time.monotonic()
    terminal.process.send_signal(signal.SIGINT)
    assert terminal.ended() == 130
    assert time.monotonic() - began_at < 50  # a send would wait for a minute
    assert f"--input {numbers} --skip " in terminal.seen


def test_interrupted_receive_prints_the_command_for_the_rest(emulator: Emulator) -> None:
    put(emulator, "one", "two")
    terminal = Terminal(emulator, "receive", "--queue", "orders", "--count", "5", "--wait", "60", "--format", "lines")
    terminal.await_text("two")
    terminal.process.send_signal(signal.SIGINT)
    assert terminal.ended() == 130
    assert "  sbclient receive --queue orders --count 3 --wait 60.0 --format lines\r\n" in terminal.seen
    assert counts(emulator, "orders") == 0


@pytest.mark.promise("commands.bodies")
@pytest.mark.parametrize("command", ["receive --format lines", "backlog --sample 0"])
def test_text_of_messages_cannot_control_the_terminal(emulator: Emulator, command: str) -> None:
    evil = "\x1b]0;title\x07\x1b[2J\u202e\x9b"

    async def work(client: ServiceBusClient) -> None:
        async with client.get_queue_sender("orders") as sender:
            await sender.send_messages(ServiceBusMessage(evil, subject=evil, application_properties={evil: evil}))
            client.pair.force_failover("orders")
            await sender.send_messages(ServiceBusMessage(evil))

    primary, secondary = emulator.connection_strings.values()
    on(primary, work, secondary=secondary, options=PairedNamespaceOptions(backlog_queue_count=1))
    words = command.split()
    options = ["--backlog-queue-count", "1"] if words[0] == "backlog" else ["--queue", "orders"]
    terminal = Terminal(emulator, *words, *options, *(["--count", "1"] if words[0] == "receive" else []))
    assert terminal.ended() == 0
    assert not set(terminal.seen.replace("\x1b[2K", "").replace("\r\x1b[K", "")) & set("\x07\u202e\x9b")
    assert "\x1b]" not in terminal.seen
    assert "\x1b[2J" not in terminal.seen


def test_progress_is_shown_after_one_second(emulator: Emulator, tmp_path: Path) -> None:
    put(emulator, "one")
    with (tmp_path / "out").open("wb") as out:
        terminal = Terminal(emulator, "receive", "--queue", "orders", "--wait", "3", stdout=out.fileno())
        terminal.await_text("received 1  ")
        assert terminal.ended() == 0
    assert (tmp_path / "out").read_bytes().count(b"\n") == 1  # and nothing of it goes where the messages go
    assert "received 1\r\n" in terminal.seen.rpartition("\x1b[K")[2]


@pytest.mark.parametrize("command", [("receive", "--wait", "2"), ("peek", "--count", "1000")])
def test_closed_pipe_ends_the_command_quietly(emulator: Emulator, command: tuple[str, ...]) -> None:
    put(emulator, *map(str, range(900)))  # more than fits into the pipe
    name, *options = command
    process = start(name, "--queue", "orders", *options, env=environment(emulator))
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr.read() == ""
    process.stderr.close()
    assert process.wait() == 1
    assert counts(emulator, "orders") > 0


def test_receive_ends_with_its_reader_while_no_message_arrives(emulator: Emulator) -> None:
    put(emulator, "one", "two", "three")
    receive = [*STRICT_SBCLIENT, "receive", "--queue", "orders", "--follow"]
    ended = subprocess.run(
        ["bash", "-c", f"{shlex.join(receive)} | head -n 1; echo ${{PIPESTATUS[@]}}"],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)} | environment(emulator),
        check=True,
    )
    first, statuses = ended.stdout.splitlines()
    assert json.loads(first)["body"] == "one"
    assert (statuses, ended.stderr) == ("1 0", "")
    assert counts(emulator, "orders") == 2  # the reader has taken one


def test_message_that_its_reader_has_not_taken_is_released(emulator: Emulator) -> None:
    put(emulator, "one", "two")
    process = start("receive", "--queue", "orders", "--follow", stderr=None, env=environment(emulator))
    assert process.stdout is not None
    os.read(process.stdout.fileno(), 1)
    process.stdout.close()
    assert process.wait() == 1
    assert counts(emulator, "orders") == 2


@pytest.mark.parametrize("unbuffered", ["", "1"], ids=["buffered", "unbuffered"])
def test_messages_that_do_not_fit_into_a_closed_pipe_are_not_completed(emulator: Emulator, unbuffered: str) -> None:
    for _ in range(5):
        put(emulator, *["x" * 5_000] * 30)
    variables = environment(emulator) | {"PYTHONUNBUFFERED": unbuffered}
    process = start("receive", "--queue", "orders", "--follow", stderr=None, env=variables)
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.wait() == 1
    assert counts(emulator, "orders") > 0


def test_backlog_watch_follows_a_syphon(emulator: Emulator) -> None:
    async def divert(client: ServiceBusClient) -> None:
        client.pair.force_failover("orders")
        async with client.get_queue_sender("orders") as sender:
            await sender.send_messages(ServiceBusMessage("x"))

    async def drain(client: ServiceBusClient) -> None:
        await client.run_syphon(until="empty")

    primary, secondary = emulator.connection_strings.values()
    one = PairedNamespaceOptions(backlog_queue_count=1)
    on(primary, divert, secondary=secondary, options=one)
    terminal = Terminal(emulator, "backlog", "--watch", "--sample", "0.2", "--backlog-queue-count", "1")
    terminal.await_text("1 to move")
    on(primary, drain, secondary=secondary, options=one)
    terminal.await_text("0 to move")
    terminal.process.send_signal(signal.SIGINT)
    assert terminal.ended() == 130
    assert "Traceback" not in terminal.seen


def test_session_queues_are_counted_without_browsing(emulator: Emulator) -> None:
    """azure-servicebus peeks into a queue for sessions only by taking a session, which would hold up the syphon."""

    async def divert(client: ServiceBusClient) -> None:
        client.pair.force_failover("visits")
        async with client.get_queue_sender("visits") as sender:
            await sender.send_messages(ServiceBusMessage("x", session_id="a"))

    primary, secondary = emulator.connection_strings.values()
    on(primary, divert, secondary=secondary, options=PairedNamespaceOptions(ordering="session", backlog_queue_count=1))
    terminal = Terminal(emulator, "backlog", "--sessions", "--sample", "0", "--backlog-queue-count", "1")
    assert terminal.ended() == 0
    assert "1 to move, in 2 backlog queues" in terminal.seen


def test_unreachable_namespace_is_one_line_without_sdk_warnings(emulator: Emulator) -> None:
    emulator.inject(Fault(FaultKind.DOWN))
    terminal = Terminal(emulator, "peek", "--queue", "orders")
    assert terminal.ended() == 3
    *drawn, error = terminal.seen.split("\x1b[K")
    assert error.startswith("sbclient peek: ")
    assert error.count("\n") == 1
    assert not any("\n" in each for each in drawn)
