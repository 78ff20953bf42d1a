"""`sbclient emulator` as a process of its own: what it prints, when it is ready, how it ends."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sbclient.rules.shared_access_signature import sign

pytestmark = pytest.mark.slow  # starts many processes

COMMAND = "from sbclient.cli import main; main()"
ROOT = Path(__file__).parents[2]
COMMANDS = ROOT / "docs" / "commands.md"

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts the command; ends what it started."""
    processes: list[subprocess.Popen[str]] = []

    def start(*arguments: str, **variables: str) -> subprocess.Popen[str]:
        environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path), "PYTHONPATH": str(ROOT)} | variables
        command = [sys.executable, "-c", COMMAND, "emulator", *arguments]
        process = subprocess.Popen(
            command, env=environment, cwd=tmp_path, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        processes.append(process)
        return process

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def printed(process: subprocess.Popen[str]) -> Any:
    """The JSON that it prints when it is ready."""
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, process.communicate()[1]
    return json.loads(line)


def health(port: int) -> Any:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as answer:
        return json.load(answer)


def test_prints_where_to_connect_and_is_ready_then(start: Start) -> None:
    process = start("--namespace", "contoso:0", "--namespace", "contoso-backup:0", "--http-port", "0", "--json")
    said = printed(process)
    for name, port in said["ports"].items():
        assert said["connection_strings"][name] == (
            f"Endpoint=sb://localhost:{port};SharedAccessKeyName=RootManageSharedAccessKey;"
            "SharedAccessKey=SAS_KEY_VALUE;UseDevelopmentEmulator=true;"
        )
        assert health(port) == {"status": "healthy", "namespaces": {name: "healthy"}}
    assert list(health(said["http_port"])["namespaces"]) == ["contoso", "contoso-backup"]
    (shown,) = re.findall(
        r"^```json\n(\{\n  \"connection_strings\".*?)^```", COMMANDS.read_text(encoding="utf-8"), re.M | re.S
    )
    assert list(said) == list(json.loads(shown))


def test_an_error_is_json_with_the_option_json(start: Start) -> None:
    out, err = start("--profile", "none", "--json").communicate()
    error = json.loads(err)["error"]
    assert (out, error["command"], error["exit_status"]) == ("", "emulator", 2)


def test_prints_for_people_too(start: Start) -> None:
    process = start("--namespace", "contoso:0", "--http-port", "0")
    assert process.stdout is not None
    first = process.stdout.readline()
    assert first.startswith("contoso  Endpoint=sb://localhost:")
    rest = "".join(process.stdout.readline() for _ in range(9))
    assert "/health" in rest
    assert "export REQUESTS_CA_BUNDLE=" in rest
    assert "export SSL_CERT_FILE=" in rest


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_ends_it_with_status_0(start: Start, number: int) -> None:
    process = start("--namespace", "contoso:0", "--http-port", "0", "--json")
    said = printed(process)
    with socket.create_connection(("127.0.0.1", said["ports"]["contoso"])):
        process.send_signal(number)
        assert process.wait(10) == 0
    assert process.communicate()[1] == ""


def test_makes_the_certificate_it_names(start: Start, tmp_path: Path) -> None:
    process = start("--namespace", "contoso:0", "--http-port", "0", "--json")
    certificate = Path(printed(process)["certificate"])
    process.send_signal(signal.SIGTERM)
    assert process.wait(10) == 0
    assert certificate.is_relative_to(tmp_path)
    assert certificate.read_text().startswith("-----BEGIN CERTIFICATE-----")


def test_key_that_was_given_is_not_printed(start: Start) -> None:
    process = start("--namespace", "contoso:0", "--http-port", "0", "--json", SBCLIENT_EMULATOR_KEY="my-own-secret")
    said = printed(process)
    assert "my-own-secret" not in json.dumps(said)
    assert "SharedAccessKey=<your key>;" in said["connection_strings"]["contoso"]


@pytest.mark.parametrize("key", ["S", "RootManageSharedAccessKey", "localhost"])
def test_a_key_is_hidden_and_nothing_else(start: Start, key: str) -> None:
    said = printed(start("--namespace", "contoso:0", "--http-port", "0", "--json", "--key", key))
    assert said["connection_strings"]["contoso"] == (
        f"Endpoint=sb://localhost:{said['ports']['contoso']};SharedAccessKeyName=RootManageSharedAccessKey;"
        "SharedAccessKey=<your key>;UseDevelopmentEmulator=true;"
    )


OWN_KEY: Any = {
    "UserConfig": {
        "Namespaces": [
            {
                "Name": "contoso",
                "AuthorizationRules": [
                    {
                        "KeyName": "RootManageSharedAccessKey",
                        "Rights": ["Manage", "Send", "Listen"],
                        "PrimaryKey": "own",
                    }
                ],
            }
        ]
    }
}


def test_root_key_of_the_configuration_replaces_the_public_one(start: Start, tmp_path: Path) -> None:
    config = tmp_path / "Config.json"
    config.write_text(json.dumps(OWN_KEY))

    said = printed(start("--config", str(config), "--first-port", "0", "--http-port", "0", "--json"))

    assert "SharedAccessKey=<your key>;" in said["connection_strings"]["contoso"]
    statuses = [status_with(said["http_port"], key) for key in ("own", "SAS_KEY_VALUE")]
    assert statuses == [200, 401]


def status_with(port: int, key: str) -> int:
    """The status of a request of the control API with a token that this key signs."""
    token = sign("sb://localhost/", "RootManageSharedAccessKey", key, time.time() + 60)
    request = urllib.request.Request(f"http://127.0.0.1:{port}/$control/state", headers={"Authorization": token})
    try:
        with urllib.request.urlopen(request, timeout=5) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_public_key_is_rejected_on_an_address_that_other_machines_can_reach(start: Start) -> None:
    out, err = start("--host", "0.0.0.0", "--namespace", "contoso:0", "--http-port", "0", "--json").communicate()

    assert out == ""
    assert "--allow-public-key" in json.loads(err)["error"]["message"]


@pytest.mark.parametrize("arguments", [["--allow-public-key"], ["--key", "own"], ["--auth", "none"]])
def test_other_address_than_loopback_is_reported(start: Start, arguments: list[str]) -> None:
    process = start("--host", "0.0.0.0", "--namespace", "contoso:0", "--http-port", "0", "--json", *arguments)
    printed(process)
    process.send_signal(signal.SIGTERM)

    assert process.communicate()[1].startswith("warning: other machines can reach")


def test_without_a_certificate_directory_it_serves_and_prints_advice(start: Start, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    arguments = ("--namespace", "contoso:0", "--http-port", "0")
    process = start(*arguments, "--json", XDG_CACHE_HOME=str(tmp_path / "file"))
    said = printed(process)
    assert said["certificate"] is None
    assert health(said["http_port"])["status"] == "healthy"
    process.send_signal(signal.SIGTERM)
    error = json.loads(process.communicate(timeout=30)[1])["error"]
    assert "XDG_CACHE_HOME" in error["message"]
    assert (error["exit_status"], process.returncode) == (0, 0)
    process = start(*arguments, XDG_CACHE_HOME=str(tmp_path / "file"))
    assert process.stdout is not None
    shown = "".join(iter(process.stdout.readline, "ready; Ctrl-C ends the emulator, and its messages are lost\n"))
    assert "SSL_CERT_FILE" not in shown


def test_serves_configured_namespaces(start: Start, tmp_path: Path) -> None:
    config = {"UserConfig": {"Namespaces": [{"Name": "shop", "Port": 0, "Queues": [{"Name": "orders"}]}]}}
    (tmp_path / "Config.json").write_text(json.dumps(config))
    process = start("--config", "Config.json", "--http-port", "0", "--auth", "none", "--json")
    (port,) = printed(process)["ports"].values()
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/$control/state", timeout=5) as answer:
        assert [entity["path"] for entity in json.load(answer)["entities"]] == ["orders"]


def test_needs_little_memory_and_loads_nothing_that_it_does_not_need(start: Start) -> None:
    process = start("--namespace", "contoso:0", "--namespace", "contoso-backup:0", "--http-port", "0", "--json")
    for port in printed(process)["ports"].values():
        health(port)
    status = Path(f"/proc/{process.pid}/status")
    if status.exists():
        resident_kb = next(line.split()[1] for line in status.read_text().splitlines() if line.startswith("VmRSS"))
        assert int(resident_kb) < 60 * 1024
    wanted = "azure.servicebus aiohttp requests cryptography trustme lark structlog tenacity rich h11 wsproto"
    loads = (
        "import sys; from sbclient.cli.app import make_app; make_app(['emulator']); "
        f"print([name for name in '{wanted}'.split() if name in sys.modules])"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    loaded = subprocess.run([sys.executable, "-c", loads], env=environment, capture_output=True, text=True, check=True)
    assert loaded.stdout.strip() == "[]"


class TestMistakes:
    def refused(self, process: subprocess.Popen[str]) -> str:
        out, text = process.communicate(timeout=30)
        assert (process.returncode, out) == (2, "")
        return text

    def test_port_in_use(self, start: Start) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            text = self.refused(start("--namespace", f"contoso:{port}", "--http-port", "0"))
            assert f"port {port} of namespace contoso is in use" in text
            assert "--namespace contoso:<port>" in text
            text = self.refused(start("--namespace", "contoso:0", "--http-port", str(port)))
            assert f"port {port} of HTTP is in use" in text

    def test_bad_configuration(self, start: Start, tmp_path: Path) -> None:
        (tmp_path / "Config.json").write_text(
            '{"UserConfig": {"Namespaces": [\n{"Name": "a", "Queues": [\n'
            '{"Name": "q", "Properties": {"LockDuration": "PT9M"}}]}]}}'
        )
        text = self.refused(start("--config", "Config.json", "--http-port", "0"))
        assert "Config.json, line 3: $.UserConfig.Namespaces[0].Queues[0].Properties.LockDuration" in text
        assert "Traceback" not in text

    def test_a_configuration_that_is_not_utf_8(self, start: Start, tmp_path: Path) -> None:
        (tmp_path / "Config.json").write_bytes(b'{"UserConfig": "\xe9"}')
        text = self.refused(start("--config", "Config.json", "--http-port", "0"))
        assert "Config.json is not UTF-8, byte 0xe9 is not valid there: save it as UTF-8" in text

    @pytest.mark.parametrize("host", ["no-such-host.invalid", "192.0.2.1"])
    def test_an_address_of_no_use_is_not_blamed_on_the_port(self, start: Start, host: str) -> None:
        text = self.refused(start("--host", host, "--key", "own", "--http-port", "0", "--namespace", "contoso:0"))
        assert f"namespace contoso cannot listen on {host}" in text
        assert "--host" in text
        assert "port" not in text

    @pytest.mark.parametrize(
        "arguments",
        [
            ("--key", ""),
            ("--key", "a;b=c"),
            ("--config", "missing.json"),
            ("--namespace", "a b"),
            ("--profile", "none"),
            ("--first-port", "0", "--namespace", "a", "--namespace", "a"),
            ("--auth", "maybe"),
            ("--host", "192.0.2.1", "--namespace", "a:0"),
        ],
    )
    def test_options_that_cannot_be_used(self, start: Start, arguments: tuple[str, ...]) -> None:
        text = self.refused(start(*arguments, "--http-port", "0"))
        assert text.startswith("sbclient emulator: ")
        assert "Traceback" not in text


def test_prints_lines_for_the_shell_although_the_default_http_port_is_in_use(start: Start) -> None:
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with contextlib.suppress(OSError):  # in use by another program
            taken.bind(("127.0.0.1", 5300))
            taken.listen()
        process = start("--namespace", "contoso:0", "--namespace", "contoso-backup:0")
        assert process.stdout is not None
        shown: list[str] = []
        for line in process.stdout:
            shown.append(line.strip())
            if line.startswith("ready"):
                break
    exported = [line for line in shown if line.startswith("export SERVICEBUS_")]
    assert [line.split("=")[0] for line in exported] == [
        "export SERVICEBUS_CONNECTION_STRING",
        "export SERVICEBUS_SECONDARY_CONNECTION_STRING",
    ]
    assert all("='Endpoint=sb://localhost:" in line and line.endswith("'") for line in exported)
    assert not any("5300" in line for line in shown)
    process.send_signal(signal.SIGINT)
    assert "warning: HTTP port 5300 is in use; the emulator uses port" in process.communicate()[1]
