"""The command line with canaries in its options, its environment and its input: what it prints, and how it fails."""

from __future__ import annotations

import json
import traceback
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from sbclient import ServiceBusClient, ServiceBusMessage
from sbclient.cli.app import COMMANDS, make_app, run_with_json_errors
from sbclient.entities import AccessRights, AuthorizationRule
from sbclient.transport.memory.transport import drop_memory_host
from tests.cli.calling import PRIMARY, SECONDARY, on, sent
from tests.secrets.canaries import BODY, KEY, PROPERTY, SECOND_KEY, SIGNATURE, connection_string, found_in
from tests.secrets.ear import Ear, listening

QUEUE = "orders"
NOWHERE = connection_string("sb://127.0.0.1:1", more=";UseDevelopmentEmulator=true")
SUB_COMMANDS = {
    "backlog": ("show", "resubmit", "purge"),
    "admin": ("create", "update", "show", "list", "delete"),
}

BAD = [
    connection_string(more=";Extra=1"),
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
    "backlog show": (),
    "backlog resubmit": ("--yes",),
    "backlog purge": ("--yes",),
    "syphon": ("--until", "empty"),
    "verify": ("--yes",),
}
PAIRED = ("backlog show", "backlog resubmit", "backlog purge", "syphon")


@pytest.fixture
def ear(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ear]:
    for name in ("SERVICEBUS_CONNECTION_STRING", "SERVICEBUS_SECONDARY_CONNECTION_STRING"):
        monkeypatch.delenv(name, raising=False)
    with listening() as ear:
        yield ear
        ear.check()
    drop_memory_host(PRIMARY)
    drop_memory_host(SECONDARY)


def call(ear: Ear, *arguments: str, stdin: str | None = None, env: dict[str, str] | None = None) -> Result:
    """Call a command; all that it prints is heard, and how it ends."""
    result = CliRunner().invoke(make_app(), list(arguments), input=stdin, env=env)
    name = f"sbclient {' '.join(arguments[:2])}"
    ear.hear(f"{name}, stdout", result.stdout)
    ear.hear(f"{name}, stderr", result.stderr)
    if result.exc_info is not None:
        ear.hear(f"{name}, traceback", "".join(traceback.format_exception(*result.exc_info)))
    return result


def whole(command: str, primary: str, *more: str) -> list[str]:
    secondary = ("--secondary", primary.replace("127.0.0.1:1", "127.0.0.1:2")) if command in PAIRED else ()
    return [*command.split(), *ARGUMENTS[command], "--primary", primary, *secondary, *more]


def test_every_command_is_tried() -> None:
    tried = {command.split()[0] for command in ARGUMENTS}
    assert tried | {"demo", "emulator"} == set(COMMANDS)


@pytest.mark.parametrize(
    "command", [*COMMANDS, *(f"{name} {sub}" for name, subs in SUB_COMMANDS.items() for sub in subs)]
)
def test_help(ear: Ear, command: str) -> None:
    env = {
        "SERVICEBUS_CONNECTION_STRING": connection_string(),
        "SERVICEBUS_SECONDARY_CONNECTION_STRING": connection_string(),
        "SBCLIENT_EMULATOR_KEY": KEY,
    }
    assert call(ear, *command.split(), "--help", env=env).exit_code == 0
    call(ear, *command.split(), "--no-such-option", env=env)


@pytest.mark.parametrize("more", [(), ("--json",)], ids=["words", "json"])
@pytest.mark.parametrize("command", ARGUMENTS)
def test_connection_strings_that_cannot_be_read(ear: Ear, command: str, more: tuple[str, ...]) -> None:
    for text in BAD:
        assert call(ear, *whole(command, text, *more)).exit_code == 2


@pytest.mark.parametrize("more", [(), ("--json",)], ids=["words", "json"])
@pytest.mark.parametrize("command", [name for name in ARGUMENTS if name not in ("syphon",)])
def test_namespaces_that_cannot_be_reached(ear: Ear, command: str, more: tuple[str, ...]) -> None:
    if command == "send":
        more = (*more, "--timeout", "1")
    assert call(ear, *whole(command, NOWHERE, *more)).exit_code != 0


def test_json_errors_of_wrong_options(ear: Ear, capsys: pytest.CaptureFixture[str]) -> None:
    run_with_json_errors(
        make_app(), ["send", "--primary", connection_string(), "--json", "--timeout", "soon", "--queue", QUEUE]
    )
    run_with_json_errors(make_app(), ["receive", "--primary", connection_string(), "--json", "--no-such"])
    told = capsys.readouterr()
    ear.hear("stdout", told.out)
    ear.hear("stderr", told.err)


class TestWithMessages:
    @pytest.fixture(autouse=True)
    def _entities(self, ear: Ear) -> None:
        async def make(client: ServiceBusClient) -> None:
            rule = AuthorizationRule(
                key_name="app", rights=[AccessRights.SEND], primary_key=KEY, secondary_key=SECOND_KEY
            )
            await client.administration.create_queue(QUEUE, authorization_rules=[rule])

        on(PRIMARY, make)
        sent(QUEUE, ServiceBusMessage(BODY, application_properties={"note": PROPERTY}))

    def test_descriptions_of_entities_with_keys(self, ear: Ear) -> None:
        for more in ((), ("--json",)):
            for command in ("admin list", "admin show", "admin update"):
                assert call(ear, *whole(command, PRIMARY, *more)).exit_code == 0

    def test_sends_that_are_accounted_for(self, ear: Ear, tmp_path: Path) -> None:
        lines = tmp_path / "lines.txt"
        lines.write_text(f"{BODY}\n" * 3)
        for more in ((), ("--json",)):
            for path in ("lines.txt",):
                arguments = ("send", "--queue", QUEUE, "--input", str(tmp_path / path), "--primary", PRIMARY, *more)
                assert call(ear, *arguments).exit_code == 0
            call(ear, "send", "--queue", "missing", "--input", str(lines), "--primary", PRIMARY, *more)
            settings = ("--set", f"property.note={PROPERTY}", "--set", "no_such=1")
            call(ear, "send", "--queue", QUEUE, "--body", BODY, "--primary", PRIMARY, *settings, *more)

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
    def test_input_that_cannot_be_read(self, ear: Ear, tmp_path: Path, name: str, text: str) -> None:
        path = tmp_path / name
        path.write_text(text)
        for more in ((), ("--json",), ("--format", "messages")):
            call(ear, "send", "--queue", QUEUE, "--input", str(path), "--primary", PRIMARY, *more)
        path.write_bytes(text.encode() + b"\xff\xfe\n")
        call(ear, "send", "--queue", QUEUE, "--input", str(path), "--primary", PRIMARY)

    def test_receive_and_peek_print_messages_and_nothing_else_does(self, ear: Ear) -> None:
        for arguments in (("peek",), ("receive", "--settle", "abandon", "--count", "1"), ("receive", "--count", "1")):
            result = CliRunner().invoke(make_app(), [*arguments, "--queue", QUEUE, "--primary", PRIMARY])
            assert set(found_in(result.stdout)) == {"the body", "a property"}, "which is what they are for"
            ear.hear("stderr", result.stderr)
        call(ear, "receive", "--queue", QUEUE, "--primary", PRIMARY)

    def test_failed_messages_are_kept_in_the_file_that_was_named(self, ear: Ear, tmp_path: Path) -> None:
        kept = tmp_path / "failed.jsonl"
        call(
            ear,
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


def test_an_emulator_with_a_key_of_its_own(ear: Ear, tmp_path: Path) -> None:
    config = tmp_path / "Config.json"
    config.write_text(
        f'{{"UserConfig": {{"Namespaces": [{{"Name": "a", "AuthorizationRules": [{{"PrimaryKey": "{KEY}" }}]}}]}}}}'
    )
    assert call(ear, "emulator", "--key", KEY, "--config", str(config)).exit_code == 2
    assert call(ear, "emulator", "--key", KEY, "--profile", "none").exit_code == 2
