"""Commands with canaries in options, environment and input leak nothing in output and errors."""

from __future__ import annotations

import json
import traceback
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import Result

from sbclient import ServiceBusClient, ServiceBusMessage
from sbclient.cli.app import COMMANDS, make_app, run_with_json_errors
from sbclient.entities import AccessRights, AuthorizationRule
from sbclient.transport.memory.transport import drop_memory_host
from tests import commands
from tests.cli.calling import PRIMARY, SECONDARY, on, sent
from tests.secrets.canaries import BODY, KEY, PROPERTY, SECOND_KEY, SIGNATURE, connection_string, found_in
from tests.secrets.output_capture import OutputCapture, capture_output

QUEUE = "orders"
NOWHERE = connection_string("sb://127.0.0.1:1", more=";UseDevelopmentEmulator=true")
SUB_COMMANDS = {
    "dead-letter": ("list", "show", "resubmit", "purge"),
    "admin": ("create", "update", "show", "list", "delete"),
    "fault": ("add", "list", "remove"),
}

BAD = [
    connection_string(more=";Extra1=1"),
    connection_string().replace("SharedAccessKey=", "SharedAccessKey:"),
    connection_string().replace(";", ","),
    connection_string(endpoint=f"sb://user:{KEY}@contoso/"),
    f"Endpoint=sb://contoso/;SharedAccessSignature={SIGNATURE};SharedAccessKey={KEY}",
    KEY,
]

ARGUMENTS = {
    "send": ("--queue", QUEUE, "--body", BODY),
    "receive": ("--queue", QUEUE),
    "peek": ("--queue", QUEUE),
    "admin list": ("queue",),
    "admin show": ("queue", QUEUE),
    "admin create": ("queue", "new"),
    "admin update": ("queue", QUEUE, "--set", "max_delivery_count=3"),
    "admin delete": ("queue", QUEUE, "--yes"),
    "backlog": (),
    "doctor": ("--sample", "0"),
    "dead-letter list": (QUEUE,),
    "dead-letter show": (QUEUE,),
    "dead-letter resubmit": (QUEUE, "--yes"),
    "dead-letter purge": (QUEUE, "--yes"),
    "syphon": ("--until", "empty"),
    "verify": ("--yes",),
    "fault add": ("down", "--entity", QUEUE),
    "fault list": (),
    "fault remove": ("--all",),
}
PAIRED = ("backlog", "doctor", "syphon")


@pytest.fixture
def capture(monkeypatch: pytest.MonkeyPatch) -> Iterator[OutputCapture]:
    for name in ("SERVICEBUS_CONNECTION_STRING", "SERVICEBUS_SECONDARY_CONNECTION_STRING"):
        monkeypatch.delenv(name, raising=False)
    with capture_output() as capture:
        yield capture
        capture.check()
    drop_memory_host(PRIMARY)
    drop_memory_host(SECONDARY)


def call(
    capture: OutputCapture, *arguments: str, stdin: str | None = None, env: dict[str, str] | None = None
) -> Result:
    """Call a command; capture its output and its error."""
    result = commands.call(*arguments, status=None, stdin=stdin, env=env)
    name = f"sbclient {' '.join(arguments[:2])}"
    capture.add(f"{name}, stdout", result.stdout)
    capture.add(f"{name}, stderr", result.stderr)
    if result.exc_info is not None:
        capture.add(f"{name}, traceback", "".join(traceback.format_exception(*result.exc_info)))
    return result


def whole(command: str, primary: str, *more: str) -> list[str]:
    secondary = ("--secondary", primary.replace("127.0.0.1:1", "127.0.0.1:2")) if command in PAIRED else ()
    return [*command.split(), *ARGUMENTS[command], "--primary", primary, *secondary, *more]


def test_every_command_is_covered() -> None:
    tried = {command.split()[0] for command in ARGUMENTS}
    assert tried | {"demo", "emulator"} == set(COMMANDS)


def test_help_shows_no_secret(capture: OutputCapture) -> None:
    env = {
        "SERVICEBUS_CONNECTION_STRING": connection_string(),
        "SERVICEBUS_SECONDARY_CONNECTION_STRING": connection_string(),
        "SBCLIENT_EMULATOR_KEY": KEY,
    }
    for command in (*COMMANDS, *(f"{name} {sub}" for name, subs in SUB_COMMANDS.items() for sub in subs)):
        assert call(capture, *command.split(), "--help", env=env).exit_code == 0
        call(capture, *command.split(), "--no-such-option", env=env)


@pytest.mark.parametrize("command", ARGUMENTS)
def test_errors_about_malformed_connection_strings_leak_nothing(capture: OutputCapture, command: str) -> None:
    for more in ((), ("--json",)):
        for text in BAD:
            assert call(capture, *whole(command, text, *more)).exit_code == 2


@pytest.mark.parametrize("command", [name for name in ARGUMENTS if name != "syphon"])
def test_errors_about_unreachable_namespaces_leak_nothing(capture: OutputCapture, command: str) -> None:
    more = ("--timeout", "1") if command == "send" else ()
    assert call(capture, *whole(command, NOWHERE, *more)).exit_code != 0


def test_json_errors_about_wrong_options_leak_nothing(
    capture: OutputCapture, capsys: pytest.CaptureFixture[str]
) -> None:
    run_with_json_errors(
        make_app(), ["send", "--primary", connection_string(), "--json", "--timeout", "soon", "--queue", QUEUE]
    )
    run_with_json_errors(make_app(), ["receive", "--primary", connection_string(), "--json", "--no-such"])
    captured = capsys.readouterr()
    capture.add("stdout", captured.out)
    capture.add("stderr", captured.err)


class TestWithMessages:
    @pytest.fixture(autouse=True)
    def _entities(self, capture: OutputCapture) -> None:
        async def make(client: ServiceBusClient) -> None:
            rule = AuthorizationRule(
                key_name="app", rights=[AccessRights.SEND], primary_key=KEY, secondary_key=SECOND_KEY
            )
            await client.administration.create_queue(QUEUE, authorization_rules=[rule])

        on(PRIMARY, make)
        sent(QUEUE, ServiceBusMessage(BODY, application_properties={"note": PROPERTY}))

    def test_entity_descriptions_show_no_key(self, capture: OutputCapture) -> None:
        for more in ((), ("--json",)):
            for command in ("admin list", "admin show", "admin update"):
                assert call(capture, *whole(command, PRIMARY, *more)).exit_code == 0

    def test_send_leaks_nothing(self, capture: OutputCapture, tmp_path: Path) -> None:
        lines = tmp_path / "lines.txt"
        lines.write_text(f"{BODY}\n" * 3)
        for more in ((), ("--json",)):
            for path in ("lines.txt",):
                arguments = ("send", "--queue", QUEUE, "--input", str(tmp_path / path), "--primary", PRIMARY, *more)
                assert call(capture, *arguments).exit_code == 0
            call(capture, "send", "--queue", "missing", "--input", str(lines), "--primary", PRIMARY, *more)
            settings = ("--set", f"property.note={PROPERTY}", "--set", "no_such=1")
            call(capture, "send", "--queue", QUEUE, "--body", BODY, "--primary", PRIMARY, *settings, *more)

    @pytest.mark.parametrize(
        ("name", "text"),
        [
            ("a.jsonl", f'{{"body": "{BODY}"\n'),
            ("a.jsonl", f'["{BODY}"]\n'),
            ("a.jsonl", f'{{"body": "{BODY}", "session_id": [1]}}\n'),
            ("a.jsonl", f'{{"body": "{BODY}", "n": {"9" * 5000}}}\n'),
            ("a.csv", f'body,note\n"{BODY}",{PROPERTY},more\n'),
            ("a.csv", f'body\n"{BODY}'),
            ("a.csv", f"{BODY}\n1\n"),
        ],
    )
    def test_errors_about_malformed_input_leak_nothing(
        self, capture: OutputCapture, tmp_path: Path, name: str, text: str
    ) -> None:
        path = tmp_path / name
        path.write_text(text)
        for more in ((), ("--json",), ("--format", "messages")):
            call(capture, "send", "--queue", QUEUE, "--input", str(path), "--primary", PRIMARY, *more)
        path.write_bytes(text.encode() + b"\xff\xfe\n")
        call(capture, "send", "--queue", QUEUE, "--input", str(path), "--primary", PRIMARY)

    def test_only_receive_and_peek_print_messages(self, capture: OutputCapture) -> None:
        for arguments in (("peek",), ("receive", "--settle", "abandon", "--count", "1"), ("receive", "--count", "1")):
            result = commands.call(*arguments, "--queue", QUEUE, "--primary", PRIMARY, status=None)
            assert set(found_in(result.stdout)) == {"the body", "a property"}, "both commands print messages"
            capture.add("stderr", result.stderr)
        call(capture, "receive", "--queue", QUEUE, "--primary", PRIMARY)

    def test_failed_messages_are_written_to_the_named_file(self, capture: OutputCapture, tmp_path: Path) -> None:
        kept = tmp_path / "failed.jsonl"
        call(
            capture,
            "send",
            "--queue",
            "missing",
            "--body",
            BODY,
            "--primary",
            PRIMARY,
            "--failed",
            str(kept),
            "--timeout",
            "1",
        )
        assert not kept.exists() or json.loads(kept.read_text().splitlines()[0])


def test_emulator_options_with_a_key_leak_nothing(capture: OutputCapture, tmp_path: Path) -> None:
    config = tmp_path / "Config.json"
    config.write_text(
        f'{{"UserConfig": {{"Namespaces": [{{"Name": "a", "AuthorizationRules": [{{"PrimaryKey": "{KEY}" }}]}}]}}}}'
    )
    assert call(capture, "emulator", "--key", KEY, "--config", str(config)).exit_code == 2
    assert call(capture, "emulator", "--key", KEY, "--profile", "none").exit_code == 2
