"""No value of an option and no line of input leads anywhere but to a result, or to one line and the exit status 2.

A call that is refused changes nothing. An entity that does not exist, whatever its name, has the exit status 5; a send
then also prints the line that accounts for its messages.
"""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any, Final

import pytest

from sbclient import ServiceBusClient, ServiceBusMessage, ServiceBusReceivedMessage, ServiceBusSubQueue
from sbclient.transport.memory.transport import drop_memory_host
from tests import commands
from tests.cli.calling import PRIMARY, on

VALUES: Final = (
    "",
    "a\ud800",
    "a\0b",
    "\u202eabc",
    "a\r\nb",
    "a/../b",
    "x" * 300,
    "9" * 5000,
    "nan",
    "-1",
    "0001-01-01T00:00:00+14:00",
    "1e30d",
    "property.x:=1e400",
    "subject=\ud800",
    "time_to_live=99999999999d",
)
LINES: Final = (
    b"\xff",
    b"[]",
    b"{",
    b'{"body": "\\ud800"}',
    b'{"body": "x", "session_id": 5}',
    b'{"body": "x", "session_id": "' + b"x" * 129 + b'"}',
    b'{"body": "x", "time_to_live": -1}',
    b'{"body": "x", "scheduled_enqueue_time_utc": "0001-01-01T00:00:00+14:00"}',
    b'{"body": "x", "application_properties": {"a": "\\ud800"}}',
    b'{"body": "x", "application_properties": {"a": 18446744073709551616}}',
    b'{"body": "x", "application_properties": [1]}',
    b'{"body": "x", "subject": {}}',
    b'{"body": "x", "nonsense": 1}',
    b'{"body": ' + b"9" * 5000 + b"}",
    b'{"body": 1e400}',
    b'{"body": NaN}',
    b'{"body": [-Infinity]}',
    b'{"body": "x", "application_properties": {"a": 1e400}}',
    b'{"body": "x", "application_properties": {"a": NaN}}',
    b'{"body": ' + b"[" * 100_000,
)
SELECTION: Final = ("--where", "--since", "--before", "--sequence-number")
SOURCE: Final = ("--queue", "--topic", "--subscription", "--session", "--where", "--primary")
OPTIONS: Final = {
    ("send", "--queue", "orders", "--body", "x"): ("--queue", "--topic", "--set", "--failed", "--timeout", "--primary"),
    ("send", "--queue", "orders"): ("--input", "--format", "--encoding", "--skip", "--session-column", "--column"),
    ("receive", "--queue", "orders", "--wait", "0.1", "--settle", "dead-letter"): (
        *SOURCE,
        *("--sequence-number", "--count", "--wait", "--settle", "--reason", "--format"),
    ),
    ("peek", "--queue", "orders"): (*SOURCE, "--count", "--from-sequence-number"),
    ("dead-letter", "list", "orders"): (*SELECTION, "--backlog-queue-count", "orders"),
    ("dead-letter", "purge", "orders", "--yes"): SELECTION,
    ("dead-letter", "resubmit", "orders", "--yes"): SELECTION,
}


async def _make(client: ServiceBusClient) -> None:
    await client.administration.create_queue("orders")
    async with client.get_queue_sender("orders") as sender, client.get_queue_receiver("orders") as receiver:
        await sender.send_messages([ServiceBusMessage(body) for body in "abc"])
        (message,) = await receiver.receive_messages(1)
        await receiver.dead_letter_message(message, reason="broken")


async def _state(client: ServiceBusClient) -> list[Any]:
    found: list[Any] = []
    for sub_queue in (None, ServiceBusSubQueue.DEAD_LETTER):
        async with client.get_queue_receiver("orders", sub_queue=sub_queue) as receiver:
            messages = await receiver.peek_messages(50, sequence_number=1)
            found.append([(str(each), each.sequence_number, each.delivery_count) for each in messages])
    return found


def _broken_laws(arguments: list[str], stdin: bytes, *, is_refused: bool = False) -> list[str]:
    """Call a command on a new namespace; return what it did wrong."""
    drop_memory_host(PRIMARY)
    on(PRIMARY, _make)
    before = on(PRIMARY, _state)
    result = commands.call(*arguments, stdin=stdin, status=None)
    case = f"{[each[:40] for each in arguments]}, {stdin[:60]!r}: {result.exit_code}, {result.stderr[:300]!r}"
    if result.exit_code not in ((2,) if is_refused else (0, 2, 5)):
        return [f"status: {case}"]
    printed = [each for each in result.stderr.splitlines() if not each.startswith("accepted 0 ")]
    if result.exit_code and len(printed) != 1:
        return [f"not one line: {case}"]
    return [f"changed: {case}"] if result.exit_code and on(PRIMARY, _state) != before else []


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:parts of the connection string")
@pytest.mark.parametrize("command", OPTIONS, ids=lambda command: " ".join(command[:2]))
def test_a_value_of_an_option_is_taken_or_refused_in_one_line(
    command: tuple[str, ...], tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # --failed makes files
    wrong = []
    for option in OPTIONS[command]:
        for value in VALUES:
            arguments = [*command, *(() if option == "--primary" else ("--primary", PRIMARY))]
            if option in arguments:
                at = arguments.index(option)
                arguments[at : at + 2 if option.startswith("--") else at + 1] = ()
            arguments += [option, value] if option.startswith("--") else ["--", value]
            wrong += _broken_laws(arguments, b"a line\n")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("line", LINES, ids=lambda line: line[:40].decode(errors="replace"))
def test_a_hostile_line_of_json_is_refused_in_one_line(line: bytes) -> None:
    arguments = ["send", "--queue", "orders", "--format", "messages", "--primary", PRIMARY]
    assert not _broken_laws(arguments, line + b"\n", is_refused=True)


@pytest.mark.parametrize("text", ["99999999999d", "P99999999D", "9" * 300 + "d", "unlimited"])
def test_a_time_to_live_beyond_every_limit_is_none(text: str) -> None:
    drop_memory_host(PRIMARY)
    on(PRIMARY, _make)
    line = json.dumps({"body": "lasting", "time_to_live": text})
    commands.call("send", "--queue", "orders", "--format", "messages", "--primary", PRIMARY, stdin=line)

    async def look(client: ServiceBusClient) -> ServiceBusReceivedMessage:
        async with client.get_queue_receiver("orders") as receiver:
            return (await receiver.peek_messages(50, sequence_number=1))[-1]

    message = on(PRIMARY, look)
    assert str(message) == "lasting"
    assert message.time_to_live is not None
    assert message.time_to_live > timedelta(days=2_900_000)  # until the year 9999


@pytest.mark.filterwarnings("default:parts of the connection string")
def test_an_unknown_part_of_a_connection_string_is_named_in_one_line() -> None:
    unknown = "Endpoint=sb://127.0.0.1:1;SharedAccessKeyName=n;SharedAccessKey=k;TransportType=Amqp;TryTimeout=1"
    result = commands.call(
        "send", "--queue", "orders", "--body", "x", "--timeout", "0.1", "--primary", unknown, status=3
    )
    warning, *errors = result.stderr.splitlines()
    assert warning.startswith("sbclient: parts of the connection string that have no effect here: TransportType, TryT")
    assert len(errors) == 2  # the error, and the count of what was accepted
