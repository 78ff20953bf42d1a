"""`sbclient emulator` as a process of its own: what it prints, when it is ready, how it ends."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sbclient import ServiceBusClient
from sbclient.certificate import Certificate, is_this_machine
from sbclient.cli.emulator import _connection_strings
from sbclient.emulator import Emulator
from sbclient.errors import ServiceBusConnectionError
from sbclient.rules.shared_access_signature import sign
from tests import commands
from tests.commands import call
from tests.fresh_process import output_of
from tests.spark_options.without_spark import load_package
from tests.stage.emulators import printed

pytestmark = pytest.mark.slow  # starts many processes

ROOT = Path(__file__).parents[2]
COMMANDS = ROOT / "docs" / "commands-admin.md"

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts the command; ends what it started."""
    processes: list[subprocess.Popen[str]] = []

    def start(*arguments: str, **variables: str) -> subprocess.Popen[str]:
        environment = {"XDG_CACHE_HOME": str(tmp_path)} | variables
        process = commands.start("emulator", *arguments, is_strict=False, env=environment, cwd=tmp_path)
        processes.append(process)
        return process

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def health(port: int) -> Any:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/health") as answer:
        return json.load(answer)


@pytest.mark.deviation("emulator.root-key")
def test_prints_where_to_connect_is_ready_then_and_needs_little_memory(start: Start, tmp_path: Path) -> None:
    Certificate(tmp_path / "sbclient").make()  # a library that only the first start needs
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
    status = Path(f"/proc/{process.pid}/status")
    if status.exists():
        resident_kb = next(line.split()[1] for line in status.read_text().splitlines() if line.startswith("VmRSS"))
        assert int(resident_kb) < 60 * 1024


def test_prints_for_people_too(start: Start) -> None:
    process = start("--namespace", "contoso:0", "--http-port", "0")
    assert process.stdout is not None
    first = process.stdout.readline()
    assert first.startswith("contoso  Endpoint=sb://localhost:")
    rest = "".join(process.stdout.readline() for _ in range(9))
    assert "/health" in rest
    assert "export REQUESTS_CA_BUNDLE=" in rest
    assert "export SSL_CERT_FILE=" in rest


@pytest.mark.deviation("emulator.certificate")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_makes_the_certificate_it_names_and_a_signal_ends_it(start: Start, tmp_path: Path, number: int) -> None:
    process = start("--namespace", "contoso:0", "--http-port", "0", "--json")
    said = printed(process)
    with socket.create_connection(("127.0.0.1", said["ports"]["contoso"])):
        process.send_signal(number)
        assert process.wait() == 0
    assert process.communicate()[1] == ""
    certificate = Path(said["certificate"])
    assert certificate.is_relative_to(tmp_path)
    assert certificate.read_text().startswith("-----BEGIN CERTIFICATE-----")


@pytest.mark.promise("emulator.public-key")
def test_key_that_was_given_is_not_printed(start: Start) -> None:
    process = start("--namespace", "contoso:0", "--http-port", "0", "--json", SBCLIENT_EMULATOR_KEY="my-own-secret")
    said = printed(process)
    assert "my-own-secret" not in json.dumps(said)
    assert "SharedAccessKey=<your key>;" in said["connection_strings"]["contoso"]


@pytest.mark.real_time
@pytest.mark.parametrize("key", ["S", "RootManageSharedAccessKey", "localhost"])
async def test_a_key_is_hidden_and_nothing_else(key: str) -> None:
    async with Emulator("contoso:0", key=key) as emulator:
        assert _connection_strings(emulator)["contoso"] == (
            f"Endpoint=sb://localhost:{emulator.ports['contoso']};SharedAccessKeyName=RootManageSharedAccessKey;"
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


@pytest.mark.promise("emulator.public-key")
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
        with urllib.request.urlopen(request) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


@pytest.mark.promise("emulator.other-machines")
@pytest.mark.deviation("emulator.root-key")
def test_public_key_is_rejected_on_an_address_that_other_machines_can_reach() -> None:
    assert "--allow-public-key" in refused("--host", "0.0.0.0", "--namespace", "contoso:0")


@pytest.mark.promise("emulator.other-machines")
def test_other_address_than_loopback_is_reported(start: Start) -> None:
    everywhere = ("--host", "0.0.0.0", "--namespace", "contoso:0", "--http-port", "0")
    process = start(*everywhere, "--json", "--allow-public-key")
    printed(process)
    process.send_signal(signal.SIGTERM)
    assert process.communicate()[1].startswith("warning: other machines can reach")
    exposed: list[dict[str, Any]] = [{"allow_public_key": True}, {"key": "own"}, {"auth": "none"}]
    for options in exposed:
        assert Emulator("contoso:0", host="0.0.0.0", **options).is_exposed


def test_without_a_certificate_directory_it_serves_and_prints_advice(start: Start, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    arguments = ("--namespace", "contoso:0", "--http-port", "0")
    process = start(*arguments, "--json", XDG_CACHE_HOME=str(tmp_path / "file"))
    said = printed(process)
    assert said["certificate"] is None
    assert health(said["http_port"])["status"] == "healthy"
    process.send_signal(signal.SIGTERM)
    error = json.loads(process.communicate()[1])["error"]
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
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/$control/state") as answer:
        assert [entity["path"] for entity in json.load(answer)["entities"]] == ["orders"]


def test_loads_nothing_that_it_does_not_need() -> None:
    wanted = "azure.servicebus aiohttp requests cryptography trustme lark structlog tenacity rich h11 wsproto"
    loads = (
        "import sys; from sbclient.cli.app import make_app; make_app(['emulator']); "
        f"print([name for name in '{wanted}'.split() if name in sys.modules])"
    )
    assert output_of(loads) == "[]"


def refused(*arguments: str) -> str:
    """What it prints, and nothing else, when it ends with status 2 before it serves."""
    result = call("emulator", *arguments, status=2)
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    return result.stderr


def test_port_in_use_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        text = refused("--namespace", f"contoso:{port}", "--http-port", "0")
        assert f"port {port} of namespace contoso is in use" in text
        assert "--namespace contoso:<port>" in text
        assert f"port {port} of HTTP is in use" in refused("--namespace", "contoso:0", "--http-port", str(port))


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (
            b'{"UserConfig": {"Namespaces": [\n{"Name": "a", "Queues": [\n'
            b'{"Name": "q", "Properties": {"LockDuration": "PT9M"}}]}]}}',
            "Config.json, line 3: $.UserConfig.Namespaces[0].Queues[0].Properties.LockDuration",
        ),
        (b'{"UserConfig": "\xe9"}', "Config.json is not UTF-8, byte 0xe9 is not valid there: save it as UTF-8"),
    ],
)
def test_bad_configuration_is_refused(tmp_path: Path, content: bytes, text: str) -> None:
    config = tmp_path / "Config.json"
    config.write_bytes(content)
    assert text in refused("--config", str(config), "--http-port", "0")


@pytest.mark.parametrize("host", ["no-such-host.invalid", "192.0.2.1"])
def test_an_address_of_no_use_is_not_blamed_on_the_port(host: str) -> None:
    text = refused("--host", host, "--key", "own", "--http-port", "0", "--namespace", "contoso:0")
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
    ],
)
def test_options_that_cannot_be_used_are_refused(arguments: tuple[str, ...]) -> None:
    assert refused(*arguments, "--http-port", "0").startswith("sbclient emulator: ")


def test_an_error_is_json_with_the_option_json() -> None:
    error = json.loads(refused("--profile", "none", "--json"))["error"]
    assert (error["command"], error["exit_status"]) == ("emulator", 2)


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


LISTENING: dict[str, tuple[str, ...]] = {
    "default": (),
    "another loopback address": ("--host", "127.0.0.91"),
    "IPv6": ("--host", "::1"),
    "further name": ("--tls-name", "contoso.example"),
    "both": ("--host", "127.0.0.92", "--tls-name", "other.example"),
}


@pytest.mark.promise("client.emulator-certificate")
def test_printed_connection_strings_are_trusted_at_once(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By commands, the client and both sides of Spark, while emulators with other certificates run as well."""
    load_package()
    from sbclient_spark.clients import open_client
    from sbclient_spark.options import connection_options

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    async def queues(text: str) -> list[list[str]]:
        options = connection_options({"connectionString": text})
        clients = [ServiceBusClient.from_connection_string(text, transport=each) for each in ("amqp", "sdk")]
        found = []
        for client in (*clients, open_client(options, paired=False)):
            async with client:
                found.append([queue.name async for queue in client.administration.list_queues()])
        return found

    started = [
        start("--namespace", "contoso:0", "--http-port", "0", "--json", *options) for options in LISTENING.values()
    ]
    for name, process in zip(LISTENING, started, strict=True):
        (text,) = printed(process)["connection_strings"].values()
        call("admin", "create", "queue", "orders", "--primary", text)
        assert "certificate" not in call("doctor", "--primary", text, "--secondary", text, status=None).output, name
        assert asyncio.run(queues(text)) == [["orders"]] * 3, name


@pytest.mark.real_time
async def test_error_about_an_unknown_certificate_names_the_variable(tmp_path: Path) -> None:
    async with Emulator("contoso:0", certificate_directory=tmp_path) as emulator:
        for transport in ("amqp", "sdk"):
            text = emulator.connection_string
            async with ServiceBusClient.from_connection_string(text, transport=transport) as client:
                with pytest.raises(ServiceBusConnectionError, match="SSL_CERT_FILE"):
                    await client.administration.get_queue("orders")


@pytest.mark.promise("client.emulator-certificate")
def test_only_loopback_addresses_are_this_machine() -> None:
    hosts = ("localhost", "LOCALHOST", "127.0.0.1", "127.255.0.9", "::1")
    others = ("0.0.0.0", "::", "10.0.0.1", "127.0.0.1.example.com", "localhost.example.com", "contoso.example", "")
    assert [is_this_machine(host) for host in (*hosts, *others)] == [True] * len(hosts) + [False] * len(others)
