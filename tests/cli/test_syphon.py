"""`sbclient syphon`, from its settings to its exit status, on namespaces inside this process."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sbclient import ServiceBusClient, ServiceBusMessage
from sbclient.cli.common import Exit
from sbclient.transport.memory.transport import drop_memory_host
from sbclient.worker.settings import SETTINGS
from tests import commands

PRIMARY = "memory://syphon-test"
SECONDARY = "memory://syphon-test-backup"
ENVIRONMENT = {"SERVICEBUS_CONNECTION_STRING": PRIMARY, "SERVICEBUS_SECONDARY_CONNECTION_STRING": SECONDARY}


@pytest.fixture(autouse=True)
def _namespaces() -> Iterator[None]:
    yield
    for name in (PRIMARY, SECONDARY):
        drop_memory_host(name)


def call(*arguments: str, status: int = 0, environment: dict[str, str] | None = None) -> Any:
    return commands.call("syphon", *arguments, status=status, env=ENVIRONMENT if environment is None else environment)


def test_the_help_and_the_page_have_the_same_exit_statuses() -> None:
    text = " ".join(call("--help").stdout.replace("│", " ").split())
    helped = text.partition("Exit status: ")[2].partition("SIGINT or SIGTERM")[0]
    page = (Path(__file__).parents[2] / "docs" / "syphon.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([\d, ]+) \|", page.partition("## Exit status")[2].partition("\n## ")[0], re.M)
    shown = {int(number) for row in rows for number in row.split(", ")}
    assert {int(number) for number in re.findall(r"(?:^|; |and )(\d+)\b", helped)} == shown <= set(Exit)


def error_of(result: Any) -> str:
    """The one line that says what is wrong."""
    (line,) = [line for line in result.stderr.splitlines() if not line.startswith("{")]
    assert line.startswith("sbclient syphon: ")
    assert result.stdout == ""
    return str(line)


def make_backlog(count: int, *, with_destination: bool = True) -> None:
    async def work() -> None:
        async with ServiceBusClient.from_connection_string(PRIMARY, secondary=SECONDARY) as client:
            if with_destination:
                await client.administration.create_queue("orders")
            client.pair.force_failover("orders")
            async with client.get_queue_sender("orders") as sender:
                for number in range(count):
                    await sender.send_messages(ServiceBusMessage(str(number)))

    asyncio.run(work())


def test_until_empty_drains_and_reports() -> None:
    make_backlog(5)
    assert json.loads(call("--until", "empty", "--json").stdout) == {
        "drained": 5,
        "dead_lettered": {},
        "parked": 0,
        "redirected": 0,
    }
    assert call("--until", "empty").stdout == "drained 0   dead-lettered none   parked 0\n"


def test_until_empty_has_status_1_when_messages_remain() -> None:
    make_backlog(5, with_destination=False)
    assert "drained 0" in call("--until", "empty", status=1).stdout


def test_dry_run_reports_and_moves_nothing() -> None:
    make_backlog(5)
    for _ in range(2):
        result = json.loads(call("--dry-run", "--json").stdout)
        assert (result["would_move"], result["would_stay"]) == (5, 0)
        assert result["destinations"] == {"orders": "accepts messages"}
    assert "would move 5, would leave 0; nothing was moved\n" in call("--dry-run").stdout


def test_dry_run_has_status_1_when_messages_would_remain() -> None:
    make_backlog(5, with_destination=False)
    assert "would move 0, would leave 5; nothing was moved\n" in call("--dry-run", status=1).stdout


def test_dry_run_says_what_the_run_does_with_destinations_that_are_not_allowed() -> None:
    make_backlog(5)
    options = ("--destination", "others")
    planned = call("--dry-run", *options, status=1).stdout
    assert "! 5 messages for 'orders' will be dead-lettered by the syphon: DestinationNotAllowed\n" in planned
    assert "would move 0, would dead-letter 5, would leave 0; nothing was moved\n" in planned
    done = json.loads(call("--until", "empty", "--json", *options).stdout)
    assert done == {"drained": 0, "dead_lettered": {"DestinationNotAllowed": 5}, "parked": 0, "redirected": 0}


def test_dry_run_creates_no_queues() -> None:
    assert "do not exist" in error_of(call("--dry-run", "--provision", status=5))


def test_destination_can_be_repeated() -> None:
    result = call("--check-config", "--json", "--destination", "orders", "--destination", "eu/*,us/*")
    (shown,) = [each for each in json.loads(result.stdout)["settings"] if each["name"] == "destination"]
    assert shown["value"] == "orders,eu/*,us/*"


def test_check_config_prints_settings_and_origins(tmp_path: Path) -> None:
    (tmp_path / "syphon.toml").write_text('long_poll = "5 min"\n')
    result = call("--check-config", "--json", "--config", str(tmp_path / "syphon.toml"), "--sessions")
    values = {one["name"]: (one["value"], one["from"]) for one in json.loads(result.stdout)["settings"]}
    assert list(values) == list(SETTINGS)
    assert values["primary"] == ("(hidden)", "environment variable SERVICEBUS_CONNECTION_STRING")
    assert values["long_poll"] == ("5 min", "syphon.toml, line 1")
    assert values["sessions"] == ("true", "option --sessions")
    assert values["queue"] == ("", "default")
    text = call("--check-config").stdout
    assert PRIMARY not in text
    assert len(text.splitlines()) == len(SETTINGS)


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["--queue", "10"], "queue is 10 (option --queue)"),
        (["--max-messages-in-flight", "many"], "max_messages_in_flight is 'many'"),
        (["--config", "missing.toml"], "missing.toml"),
        (["--until", "full"], "until is 'full'"),
        (["--primary", SECONDARY], "the same namespace"),
        (["--primary", "Endpoint=sb://h/;SharedAccessKey=SECRET"], "SharedAccessKeyName"),
        (["--primary-name", "-"], "primary_name is '-'"),
    ],
)
def test_invalid_settings_are_one_line_and_status_2(arguments: list[str], part: str) -> None:
    line = error_of(call(*arguments, status=2))
    assert part in line
    assert "SECRET" not in line


def test_environment_variable_names_the_config_file(tmp_path: Path) -> None:
    (tmp_path / "syphon.toml").write_text("long_pol = 5\n")
    environment = ENVIRONMENT | {"SBCLIENT_SYPHON_CONFIG": str(tmp_path / "syphon.toml")}
    assert "did you mean long_poll?" in error_of(call(status=2, environment=environment))


def test_missing_secondary_is_one_line_and_status_2() -> None:
    line = error_of(call(status=2, environment={"SERVICEBUS_CONNECTION_STRING": PRIMARY}))
    assert "SERVICEBUS_SECONDARY_CONNECTION_STRING" in line


def test_missing_queues_are_one_line_and_status_5() -> None:
    assert "primary_name" in error_of(call("--until", "empty", status=5))
    assert call("--until", "empty", "--provision").exit_code == 0


def test_port_in_use_is_one_line_and_status_2() -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        assert f"http_port {port} is in use" in error_of(call("--http-port", port, status=2))


def test_help_shows_each_setting_with_its_default() -> None:
    shown = " ".join(commands.call("syphon", "--help").output.split())
    assert "Example: sbclient syphon" in shown
    for setting in SETTINGS.values():
        assert f" {setting.option} " in shown
    assert "[default: 15 min]" in shown
    assert "[env: SERVICEBUS_CONNECTION_STRING]" in shown
