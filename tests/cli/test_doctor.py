"""`sbclient doctor` on an emulator: its first line names the cause."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, HTTPServer
from urllib.request import Request, urlopen

import pytest
from typer.testing import Result

from sbclient import PairedNamespaceOptions, ServiceBusClient, ServiceBusMessage
from sbclient.cli.common import PROXY_VARIABLE
from sbclient.emulator.emulator import Emulator
from sbclient.entities import AccessRights, AuthorizationRule
from sbclient.errors import ServiceBusQuotaExceededError
from sbclient.testing import Fault, FaultKind, Operation, served
from sbclient.worker import diagnosis
from tests.commands import call, start

pytestmark = pytest.mark.slow  # uses sockets and processes

NAMES = ("contoso", "contoso-backup")


@dataclass
class Pair:
    """An emulator with two namespaces, and the environment of a program that uses them."""

    emulator: Emulator
    variables: dict[str, str]

    @property
    def primary(self) -> str:
        return self.variables["SERVICEBUS_CONNECTION_STRING"]

    @primary.setter
    def primary(self, value: str) -> None:
        self.variables["SERVICEBUS_CONNECTION_STRING"] = value

    def doctor(self, *arguments: str, command: str = "doctor") -> Result:
        words = [command, *arguments, "--primary-name", "contoso", "--sample", "0.1"]
        return call(*words, status=None, env=self.variables)

    @contextmanager
    def worker(self, *more: str) -> Iterator[tuple[str, Callable[[str], object]]]:
        """Run a syphon; the value is the address of its HTTP port and a function that waits for an event of its log."""
        words = ["syphon", "--http-port", "0", "--primary-name", "contoso", "--provision", *more]
        with start(*words, is_strict=False, stdout=None, env=self.variables) as process:
            assert process.stderr is not None
            lines = process.stderr

            def wait(event: str) -> dict[str, str]:
                return next(found for line in lines if (found := json.loads(line))["event"] == event)

            try:
                port = wait("worker.listening")["port"]
                wait("syphon.started")
                yield f"http://127.0.0.1:{port}", wait
            finally:
                process.kill()

    def run(self, *, diverts: bool) -> None:
        """Create the queue and the backlog queues, and send one message."""

        async def work() -> None:
            options = PairedNamespaceOptions(primary_name="contoso")
            async with ServiceBusClient.from_connection_string(
                self.primary, secondary=self.variables["SERVICEBUS_SECONDARY_CONNECTION_STRING"], options=options
            ) as client:
                await client.administration.create_queue(
                    "orders",
                    authorization_rules=[
                        AuthorizationRule(
                            key_name="reader", primary_key="k", secondary_key="l", rights=[AccessRights.LISTEN]
                        )
                    ],
                )
                if diverts:
                    client.pair.force_failover("orders")
                async with client.get_queue_sender("orders") as sender:
                    await sender.send_messages(ServiceBusMessage(b"x"))

        asyncio.run(work())


@pytest.fixture
def pair() -> Iterator[Pair]:
    with served(*NAMES) as emulator:
        strings = [emulator.connection_strings[name] for name in NAMES]
        names = ("SERVICEBUS_CONNECTION_STRING", "SERVICEBUS_SECONDARY_CONNECTION_STRING")
        yield Pair(emulator, dict(zip(names, strings, strict=True)))


@contextmanager
def refusing_proxy() -> Iterator[str]:
    """An HTTP proxy that permits nothing."""

    class Handler(BaseHTTPRequestHandler):
        def do_CONNECT(self) -> None:
            self.send_error(403)

        def log_message(self, *_: object) -> None: ...

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return int(bound.getsockname()[1])


def first_line(result: Result, status: int) -> str:
    assert result.exit_code == status, result.output
    return result.stdout.splitlines()[0]


def test_all_well(pair: Pair) -> None:
    pair.run(diverts=False)
    result = pair.doctor("--probe-entity", "orders")
    assert first_line(result, 0) == "No problem found."
    assert "TCP ok, AMQP ok, credential ok, Send on 'orders' granted" in result.stdout
    assert "10 queues have the properties that a client gives them" in result.stdout
    assert "equal to that of the secondary, within 1 s" in result.stdout


def test_primary_that_is_down(pair: Pair) -> None:
    pair.run(diverts=True)
    port = free_port()
    pair.primary = pair.primary.replace(f":{pair.emulator.ports['contoso']}", f":{port}")
    result = pair.doctor()
    assert f"primary localhost:{port} cannot be reached over TCP" in first_line(result, 3)
    assert "name ok, TCP FAILED, AMQP not tried, credential not tried, right not tried" in result.stdout
    assert "1 message waits" in result.stdout


def test_primary_whose_requests_fail(pair: Pair) -> None:
    pair.run(diverts=True)
    pair.emulator.inject(Fault(FaultKind.DOWN))
    line = first_line(pair.doctor(), 3)
    assert "accepts connections but fails: ServiceBusConnectionError: " in line
    assert "it is down" in line


@pytest.mark.parametrize("entity", [[], ["--probe-entity", "orders"]])
def test_full_destination_that_refuses_links(pair: Pair, entity: list[str]) -> None:
    pair.run(diverts=True)
    pair.emulator.inject(Fault(FaultKind.ERROR, "orders", error=ServiceBusQuotaExceededError("full")))
    line = first_line(pair.doctor(*entity), 1)
    assert "'orders' is full or has reached another quota (ServiceBusQuotaExceededError: " in line


def test_wrong_host(pair: Pair) -> None:
    pair.run(diverts=False)
    pair.primary = pair.primary.replace("localhost", "contoso.invalid")
    assert "host name of the primary contoso.invalid" in first_line(pair.doctor(), 3)


@pytest.mark.parametrize(
    ("side", "variable"),
    [("primary", "SERVICEBUS_CONNECTION_STRING"), ("secondary", "SERVICEBUS_SECONDARY_CONNECTION_STRING")],
)
def test_wrong_key(pair: Pair, side: str, variable: str) -> None:
    pair.run(diverts=False)
    pair.variables[variable] = pair.variables[variable].replace("SAS_KEY_VALUE", "TOPSECRET")
    result = pair.doctor()
    line = first_line(result, 4)
    assert line.startswith(f"The {side} localhost:")
    assert "rejects the credential" in line
    assert "unreachable" not in result.output
    assert "TOPSECRET" not in result.output


def test_missing_right(pair: Pair) -> None:
    pair.run(diverts=False)
    port = pair.emulator.ports["contoso"]
    pair.primary = (
        f"Endpoint=sb://localhost:{port};SharedAccessKeyName=reader;SharedAccessKey=k;EntityPath=orders;"
        "UseDevelopmentEmulator=true"
    )
    line = first_line(pair.doctor(), 4)
    assert "does not grant the right Send on 'orders'" in line


def test_proxy_that_refuses(pair: Pair) -> None:
    pair.run(diverts=False)
    with refusing_proxy() as address:
        pair.variables[PROXY_VARIABLE] = address.replace("http://", "http://user:TOPSECRET@")
        result = pair.doctor()
    line = first_line(result, 3)
    assert f"through the HTTP proxy: localhost:{pair.emulator.ports['contoso']}" in line
    assert f"{address.removeprefix('http://')} refuses the tunnel with status 403" in line
    assert "TOPSECRET" not in result.output


def test_no_syphon(pair: Pair) -> None:
    pair.run(diverts=True)
    assert "no syphon runs: 1 message waits" in first_line(pair.doctor(), 1).lower()
    assert "the number does not fall: no syphon runs" in pair.doctor(command="backlog").stdout


@pytest.mark.parametrize(
    ("is_one_waiting", "cause"),
    [
        (True, "No message was taken, but a syphon has parked 1"),
        (False, "A syphon has parked all messages, 1, because"),
    ],
)
def test_syphon_that_may_be_about_to_retry(pair: Pair, is_one_waiting: bool, cause: str) -> None:
    pair.run(diverts=True)

    async def park_one() -> None:
        directory = pair.emulator.context("contoso-backup").host.namespace.directory
        (path,) = [entity.path for entity in directory.all() if len(entity.body.fragments[0])]
        secondary = pair.variables["SERVICEBUS_SECONDARY_CONNECTION_STRING"]
        async with ServiceBusClient.from_connection_string(secondary) as client:
            receiver = client.get_queue_receiver(path)
            (message,) = await receiver.receive_messages()
            await receiver.defer_message(message)
            if not is_one_waiting:
                return
            diverted = ServiceBusMessage(b"x", application_properties={"x-ms-path": "orders"})
            await client.get_queue_sender(path).send_messages(diverted)

    asyncio.run(park_one())
    assert cause in first_line(pair.doctor(), 1)


def test_worker_that_does_not_run(pair: Pair) -> None:
    pair.run(diverts=True)
    address = f"http://127.0.0.1:{free_port()}"
    assert f"no syphon runs: {address} does not answer" in first_line(pair.doctor("--worker", address), 1).lower()


def test_full_queue_and_paused_worker(pair: Pair) -> None:
    pair.emulator.inject(
        Fault(FaultKind.ERROR, "orders", operations=[Operation.SEND], error=ServiceBusQuotaExceededError("full"))
    )
    with pair.worker() as (address, events):
        assert "is ready" in pair.doctor("--worker", address).stdout
        pair.run(diverts=True)
        events("syphon.destination_unavailable")
        result = pair.doctor("--worker", address)
        assert "'orders' is full or has reached another quota (ServiceBusQuotaExceededError: " in first_line(result, 1)
        assert "0 waiting and 1 parked for 'orders'" in result.stdout
        pair.emulator.heal()
        events("syphon.destination_recovered")
        with urlopen(Request(f"{address}/pause", method="POST")):
            events("worker.paused")
        result = pair.doctor("--worker", address)
        assert "is not ready: the worker is paused" in first_line(result, 1)
        assert f"curl -X POST {address}/resume" in result.stdout


def test_messages_that_go_to_the_secondary(pair: Pair) -> None:
    pair.emulator.inject(Fault(FaultKind.DOWN, "orders", operations=[Operation.OPEN, Operation.SEND]))
    secondary = pair.variables["SERVICEBUS_SECONDARY_CONNECTION_STRING"]
    call("admin", "create", "queue", "orders", env={"SERVICEBUS_CONNECTION_STRING": secondary})
    with pair.worker("--redirect-after", "0s") as (address, events):
        pair.run(diverts=True)
        events("syphon.redirected")
        for command in ("doctor", "backlog"):
            said = pair.doctor("--worker", address, command=command).stdout
            assert "'orders': delivered to the secondary since 20" in said


@pytest.mark.parametrize(
    ("made", "said"),
    [
        ([], "messages for 'orders' cannot be delivered to the secondary: "),
        (["topic", "orders"], "'orders' is a topic without a subscription, which drops messages"),
        (["queue", "orders", "--set", "requires_session=true"], "'orders' is a queue in the primary and a queue that "),
        (["queue", "orders", "--set", "status=Disabled"], "'orders' of the secondary has the status Disabled"),
        (["queue", "orders"], ""),
    ],
)
def test_the_entity_of_the_secondary_is_compared_where_messages_are_redirected(
    pair: Pair, made: list[str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair.run(diverts=False)
    if made:
        secondary = pair.variables["SERVICEBUS_SECONDARY_CONNECTION_STRING"]
        created = call("admin", "create", *made, env={"SERVICEBUS_CONNECTION_STRING": secondary})
        assert created.exit_code == 0
    assert first_line(pair.doctor("--probe-entity", "orders"), 0) == "No problem found."
    result = pair.doctor("--probe-entity", "orders", "--redirect-after", "10min")
    assert (said in result.stdout, bool(result.exit_code)) == (True, bool(said))
    if said:
        assert said[1:] in result.stdout.splitlines()[0]
        return
    monkeypatch.setattr(diagnosis, "_MIB", 0)  # every queue is full then; a real one takes 1 GB
    assert "queue 'orders' is full" in pair.doctor("--probe-entity", "orders", "--redirect-after", "10min").stdout


def test_full_backlog_queue_and_other_properties(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    pair.run(diverts=False)
    queue = "contoso/x-servicebus-transfer/3"
    secondary = pair.variables["SERVICEBUS_SECONDARY_CONNECTION_STRING"]
    words = ["admin", "update", "queue", queue, "--primary", secondary, "--set", "max_delivery_count=5"]
    call(*words)
    result = pair.doctor()
    assert first_line(result, 0) == "No problem found."
    assert "1 queues have max_delivery_count 5, not 2147483647" in result.stdout
    monkeypatch.setattr(diagnosis, "_MIB", 0)  # every queue is full then; a real one takes 1 GB
    assert "Backlog queue 'contoso/x-servicebus-transfer/0' is full" in first_line(pair.doctor(), 1)


def test_a_queue_with_room_for_no_message_is_full(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    pair.run(diverts=True)
    secondary = pair.variables["SERVICEBUS_SECONDARY_CONNECTION_STRING"]
    rows = call("admin", "list", "queue", "--counts", "--json", "--primary", secondary).stdout.splitlines()
    (size,) = [size for row in rows if (size := json.loads(row)["runtime"]["size_in_bytes"])]
    monkeypatch.setattr(diagnosis, "_MIB", size / 5119.5)  # a real one is full a little below its 5,120 MB
    assert "is full: 5,120 MB, 1 messages" in first_line(pair.doctor(), 1)
