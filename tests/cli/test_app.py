"""The program as a whole: its help and its examples, its errors, its exit statuses, its completion."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from typer.testing import CliRunner

import sbclient
from sbclient import ServiceBusAuthenticationError, ServiceBusAuthorizationError
from sbclient.cli.app import COMMANDS, make_app, run_with_json_errors
from sbclient.cli.common import Exit, print_error, status_of
from sbclient.errors import (
    InvalidOperationError,
    MessagingEntityAlreadyExistsError,
    MessagingEntityNotFoundError,
    OperationTimeoutError,
    ServiceBusConnectionError,
)
from sbclient.testing import served
from sbclient.version import VERSION
from tests.cli.calling import PRIMARY, SECONDARY, call, run_line
from tests.commands import STRICT_SBCLIENT
from tests.fresh_process import output_of

ROOT: Final = Path(__file__).parents[2]
SUBCOMMANDS: Final = {
    "dead-letter": ("list", "show", "resubmit", "purge"),
    "fault": ("add", "list", "remove"),
    "admin": ("create", "update", "show", "list", "delete", "purge", "export", "import"),
}
ALL: Final = [
    tuple(command.split())
    for name in COMMANDS
    for command in [f"{name} {each}" for each in SUBCOMMANDS.get(name, [""])]
]
UNREACHABLE: Final = "Endpoint=sb://localhost:1;SharedAccessKeyName=n;SharedAccessKey=k;UseDevelopmentEmulator=true"
STAYS: Final = ("emulator", "syphon", "demo", "verify", "fault")
"""Run until a signal, take long or need a network: each has tests of its own."""

NOT_AT_START: Final = {
    "aiohttp",
    "azure.servicebus",
    "cryptography",
    "lark",
    "opentelemetry",
    "pyspark",
    "requests",
    "rich",
    "structlog",
    "trustme",
    "wsproto.connection",
}
"""Modules that take long to import, and that a command imports when it first needs them."""


def program(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*STRICT_SBCLIENT, *arguments],
        capture_output=True,
        encoding="utf-8",
        check=False,
        stdin=subprocess.DEVNULL,
        env=os.environ | {"PYTHONPATH": str(ROOT)} | variables,
    )


def help_of(*command: str) -> str:
    result = CliRunner().invoke(make_app(command), [*command, "--help"], terminal_width=80)
    assert result.exit_code == 0
    return result.output


def examples(*command: str) -> list[str]:
    lines = re.sub(r" \\\n +", " ", help_of(*command))
    return re.findall(r"^ *Example: (.+)$", lines, re.M)


@pytest.mark.parametrize("command", [(), *((name,) for name in SUBCOMMANDS), *ALL], ids=" ".join)
def test_help_fits_a_terminal_of_80_columns_and_names_values_in_one_style(command: tuple[str, ...]) -> None:
    shown = help_of(*command)
    assert [line for line in shown.splitlines() if len(line) > 80] == []
    assert re.findall(r" <\w+", shown) == []


@pytest.mark.parametrize("command", ALL, ids=" ".join)
def test_help_of_each_command_has_an_example(command: tuple[str, ...]) -> None:
    found = examples(*command)
    assert found
    assert all(f"sbclient {' '.join(command)}" in example or command[-1] == "show" for example in found)


@pytest.mark.parametrize("group", [(), *((name,) for name in SUBCOMMANDS)], ids=" ".join)
def test_help_of_a_group_describes_each_command(group: tuple[str, ...]) -> None:
    """On a narrow terminal too, where what is too long is cut."""
    result = CliRunner().invoke(make_app(), [*group, "--help"], terminal_width=80)
    assert re.search(rf"^ *Example: {' '.join(('sbclient', *group))}", result.output, re.M)
    listed = result.output.partition("Commands:\n")[2].partition("\n\n")[0]
    described = dict(line.split(maxsplit=1) for line in listed.splitlines())
    assert set(described) == set(SUBCOMMANDS[group[0]] if group else COMMANDS)
    assert [line for line in described.values() if line.endswith("...")] == []


RUNNABLE: Final = [command for command in ALL if command[0] not in STAYS and command != ("admin", "purge")]


@pytest.mark.parametrize("command", RUNNABLE, ids=" ".join)
@pytest.mark.usefixtures("_what_readers_have")
def test_each_example_of_the_help_runs(command: tuple[str, ...]) -> None:
    for example in examples(*command):
        run_line(example)


@pytest.mark.parametrize("command", [(), ("dead-letter",), ("dead-letter", "show"), ("send",)], ids=" ".join)
def test_short_option_shows_the_help(command: tuple[str, ...]) -> None:
    short = CliRunner().invoke(make_app(command), [*command, "-h"], terminal_width=80)
    assert (short.exit_code, short.output) == (0, help_of(*command))


def test_help_is_equal_with_one_command_and_with_all() -> None:
    for name in COMMANDS:
        every = CliRunner().invoke(make_app(), [name, "--help"]).output
        one = CliRunner().invoke(make_app([name, "--help"]), [name, "--help"]).output
        assert one == every
    assert all(name in CliRunner().invoke(make_app(), ["--help"]).output for name in COMMANDS)


@pytest.mark.slow
def test_commands_start_without_slow_modules() -> None:
    loading = (
        "import sys; from sbclient.cli.app import COMMANDS, make_app; "
        "[make_app([name]) for name in COMMANDS if name != 'demo']; print(*sys.modules)"
    )
    loaded = {name for name in output_of(loading).split() if name in NOT_AT_START}
    assert not loaded


def test_version_is_printed() -> None:
    result = CliRunner().invoke(make_app(), ["--version"])
    assert (result.exit_code, result.stdout) == (0, f"{VERSION}\n")
    assert sbclient.__version__ == VERSION


def test_a_secret_in_a_bad_connection_string_is_not_repeated() -> None:
    result = CliRunner().invoke(
        make_app(),
        ["admin", "list", "queue"],
        env={"SERVICEBUS_CONNECTION_STRING": "Endpoint=sb://h/;SharedAccessKey=SECRET"},
    )
    assert result.exit_code == 2
    assert "SECRET" not in result.output


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ServiceBusAuthenticationError("x"), Exit.NOT_ALLOWED),
        (ServiceBusAuthorizationError("x"), Exit.NOT_ALLOWED),
        (MessagingEntityNotFoundError("x"), Exit.NOT_FOUND),
        (MessagingEntityAlreadyExistsError("x"), Exit.EXISTS),
        (InvalidOperationError("x"), Exit.BAD_INPUT),
        (FileNotFoundError("x"), Exit.BAD_INPUT),
        (IsADirectoryError("x"), Exit.BAD_INPUT),
        (ServiceBusConnectionError("x"), Exit.UNREACHABLE),
        (OperationTimeoutError("x"), Exit.UNREACHABLE),
        (ConnectionRefusedError("x"), Exit.UNREACHABLE),
        (RuntimeError("x"), None),
    ],
)
def test_exit_status_of_each_error(error: Exception, status: Exit | None) -> None:
    assert status_of(error) is status


@pytest.mark.parametrize(
    ("arguments", "kind", "status"),
    [
        (("send", "--colour"), "UsageError", 2),
        (("send", "--queue", "q"), "UsageError", 2),  # no --primary
        (("admin", "create", "planet", "x", "--primary", "memory://a"), "UsageError", 2),
        (("nonsense",), "UsageError", 2),
        (("peek", "--primary", "memory://a"), "InvalidOperationError", 2),
        (("peek", "--primary", "memory://a", "--queue", "q"), "MessagingEntityNotFoundError", 5),
        (("peek", "--primary", UNREACHABLE, "--queue", "q"), "ServiceBusConnectionError", 3),
        (("receive", "--primary", "memory://a", "--queue", "q"), "MessagingEntityNotFoundError", 5),
        (("send", "--primary", "memory://a", "--queue", "q", "--input", "missing"), "FileNotFoundError", 2),
        (("send", "--primary", "memory://a", "--queue", "q", "--set", "x"), "InvalidOperationError", 2),
        (("admin", "show", "queue", "q", "--primary", "memory://a"), "MessagingEntityNotFoundError", 5),
        (("admin", "delete", "queue", "q", "--primary", "memory://a"), "InvalidOperationError", 2),  # no terminal
        (("admin", "list", "queue", "--primary", UNREACHABLE), "ServiceBusConnectionError", 3),
        (("backlog", "--primary", "memory://a"), "InvalidOperationError", 2),  # no --secondary
        (("backlog", "--primary", "memory://a", "--secondary", "memory://a"), "InvalidOperationError", 2),
        (("backlog", "--primary", "memory://a", "--secondary", "memory://b"), "MessagingEntityNotFoundError", 5),
        (("syphon",), "InvalidOperationError", 2),
        (("syphon", "--config", "missing.toml"), "InvalidOperationError", 2),
        (("syphon", "--primary", "memory://a", "--secondary", "memory://b"), "MessagingEntityNotFoundError", 5),
        (("emulator", "--profile", "gold"), "InvalidOperationError", 2),
        (("emulator", "--config", "missing.json"), "FileNotFoundError", 2),
        (("demo", "--input", "missing.csv"), "FileNotFoundError", 2),
        (("demo", "--input", str(Path(__file__).parent)), "IsADirectoryError", 2),
        (("demo", "--session-column", "x"), "UsageError", 2),
        (("demo", "--ordering", "alphabetical"), "UsageError", 2),
        (("demo", "--messages", "0"), "UsageError", 2),
    ],
)
def test_errors_are_json_with_json_option(
    arguments: tuple[str, ...], kind: str, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_with_json_errors(make_app(arguments), [*arguments, "--json"]) == status
    out, err = capsys.readouterr()
    assert not out
    (result,) = [line for line in map(json.loads, err.splitlines()) if "event" not in line]  # what it logs
    error = result["error"]
    assert (error["type"], error["exit_status"]) == (kind, status)
    assert arguments[0] in error["command"]
    assert error["message"]


@pytest.mark.slow
@pytest.mark.parametrize("command", [("admin", "list", "queue"), ("emulator", "--deviations")])
def test_only_json_is_printed_with_json_option(command: tuple[str, ...]) -> None:
    run = program(
        *command, "--json", SERVICEBUS_CONNECTION_STRING=PRIMARY, SERVICEBUS_SECONDARY_CONNECTION_STRING=SECONDARY
    )
    assert (run.returncode, run.stderr) == (0, "")
    assert all(json.loads(line) for line in run.stdout.splitlines())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shell", "variables", "expected"),
    [
        ("zsh", {"_TYPER_COMPLETE_ARGS": "sbclient re"}, "receive"),
        (
            "fish",
            {"_TYPER_COMPLETE_ARGS": "sbclient admin cr", "_TYPER_COMPLETE_FISH_ACTION": "get-args"},
            "create",
        ),
    ],
)
def test_shell_completion_of_a_word(shell: str, variables: dict[str, str], expected: str) -> None:
    run = program(_SBCLIENT_COMPLETE=f"complete_{shell}", **variables)
    assert expected in run.stdout
    assert "Traceback" not in run.stderr


@pytest.fixture(scope="module")
def filled() -> Iterator[str]:
    """The connection string of an emulator with a few entities."""
    with served("contoso:0") as emulator:
        for name in ("orders", "orders-old", "visits"):
            emulator.create_queue(name)
        emulator.create_topic("prices")
        emulator.create_subscription("prices", "eu")
        yield emulator.connection_string


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("re", ["receive"]),
        ("dead-letter pu", ["purge"]),
        ("backlog --sample 5 --wa", ["--watch"]),
        ("syphon --max-b", ["--max-bytes-in-flight"]),
        ("send --queue ord", ["orders", "orders-old"]),
        ("peek --topic ", ["prices"]),
        ("receive --topic prices --subscription ", ["eu"]),
        ("admin show queue v", ["visits"]),
        ("admin delete subscription prices ", ["eu"]),
        ("admin create subscription p", ["prices"]),
        ("admin create queue ", []),
        ("admin create queue new --set requires_s", ["requires_session="]),
        ("admin create rule prices eu cheap --set sq", ["sql="]),
        ("admin create pl", []),
        ("send --set time", ["time_to_live="]),
        ("receive --settle de", ["defer", "dead-letter"]),
        ("syphon --log-level d", ["debug"]),
        ("emulator --profile prem", ["prem-2017", "prem-2021"]),
        ("--transport s", ["sdk"]),
    ],
)
def test_values_are_completed(line: str, expected: list[str], filled: str) -> None:
    words = f"sbclient {line}".split(" ")
    result = CliRunner().invoke(
        make_app(),
        env={
            "_SBCLIENT_COMPLETE": "complete_bash",
            "COMP_WORDS": " ".join(words),
            "COMP_CWORD": str(len(words) - 1),
            "SERVICEBUS_CONNECTION_STRING": filled,
        },
        prog_name="sbclient",
    )
    assert (result.stdout.split(), result.stderr) == (expected, "")


@pytest.mark.slow
def test_completion_of_an_unreachable_namespace_is_empty() -> None:
    run = program(
        SERVICEBUS_CONNECTION_STRING=UNREACHABLE,
        _SBCLIENT_COMPLETE="complete_bash",
        COMP_WORDS="sbclient send --queue ",
        COMP_CWORD="3",
    )
    assert (run.stdout.strip(), run.stderr) == ("", "")


@pytest.mark.slow
@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_completion_script_of_each_shell(shell: str) -> None:
    run = program("--show-completion", shell, _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1")
    assert run.returncode == 0
    assert "_SBCLIENT_COMPLETE" in run.stdout


@pytest.mark.slow
def test_invalid_page_port_of_the_demo_is_bad_input() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        run = program("demo", "--page", "--page-port", str(taken.getsockname()[1]), "--json")
    assert (run.returncode, run.stdout) == (2, "")
    assert json.loads(run.stderr)["error"]["type"] == "InvalidOperationError"


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash here")
def test_bash_completes_with_the_printed_script(tmp_path: Path) -> None:
    shown = program("--show-completion", "bash", _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1").stdout
    (tmp_path / "completion.sh").write_text(shown)
    (tmp_path / "sbclient").write_text(f'#!/bin/sh\nexec {shlex.join(STRICT_SBCLIENT)} "$@"\n')
    (tmp_path / "sbclient").chmod(0o755)
    run = subprocess.run(
        [
            "bash",
            "-c",
            "source completion.sh; complete -p sbclient; COMP_WORDS=(sbclient ba); COMP_CWORD=1; "
            '_sbclient_completion "$PWD/sbclient"; echo "${COMPREPLY[@]}"',
        ],
        cwd=tmp_path,
        capture_output=True,
        encoding="utf-8",
        check=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert run.stdout.splitlines() == ["complete -o default -F _sbclient_completion sbclient", "backlog"]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["admin", "list", "queues"], "'queues' is not one of 'queue', 'topic', 'subscription', 'rule'"),
        (["admin", "list", "queues"], "Did you mean 'queue'?"),
        (["peek", "orders"], "unexpected argument 'orders': a queue is given as --queue orders"),
        (["send", "orders", "more"], "unexpected argument 'orders': a queue is given as --queue orders"),
        (["admin", "list", "queues"], "'kind': 'queues' is not one of 'queue', 'topic', 'subscription', 'rule'."),
        (["receive", "--settle", "x"], "'--settle': 'x' is not one of 'complete', "),
        (["send", "--queue", "q", "--input", "missing.csv"], "sbclient send: No such file or directory: 'missing.csv'"),
    ],
)
def test_an_error_of_the_arguments_says_what_to_do(arguments: list[str], text: str) -> None:
    assert text in call(*arguments, status=2).stderr


@pytest.mark.parametrize(("as_json", "is_shown"), [(False, False), (True, True)])
def test_the_tracking_id_of_the_service_is_shown_in_json_only(
    as_json: bool, is_shown: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    facts = "TrackingId:d13_G5_B2, SystemTracker:contoso:Queue:orders, Timestamp:2026-11-23T06:45:38"
    text = f"SubCode=40900. 'orders' exists. {facts}"
    print_error("admin create", text, "MessagingEntityAlreadyExistsError", 2, as_json=as_json)
    shown = capsys.readouterr().err
    assert ("TrackingId" in shown) is is_shown
    assert is_shown or shown == "sbclient admin create: 'orders' exists\n"


@pytest.mark.slow
def test_missing_library_of_the_commands_is_named_with_its_extra() -> None:
    code = "import sys, runpy; sys.modules['typer'] = None; runpy.run_module('sbclient', run_name='__main__')"
    ended = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 1
    assert "requires the package typer: install the extra `cli`" in ended.stderr
    assert "Traceback" not in ended.stderr
