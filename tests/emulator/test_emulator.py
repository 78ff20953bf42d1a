"""The whole emulator on real sockets: one port for every protocol, several namespaces, faults, and mistakes."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import sys
from collections.abc import Callable
from contextlib import suppress
from inspect import isfunction
from pathlib import Path
from random import Random
from typing import Any

import h11
import pytest
import wsproto
from azure.servicebus.aio.management import ServiceBusAdministrationClient

from sbclient import clock
from sbclient.broker.faults import Fault, FaultKind
from sbclient.broker.profile import STD_2021
from sbclient.certificate import Certificate
from sbclient.emulator import Emulator
from sbclient.emulator.config.located_json import ConfigError
from sbclient.emulator.config.namespace_choice import DEFAULT_NAMESPACE, chosen_namespaces
from sbclient.emulator.context import NamespaceContext, ServerSettings
from sbclient.emulator.faults import WireFault, WireFaultKind, WireFaults
from sbclient.emulator.listener import Listener
from sbclient.emulator.management.api import ManagementApi
from sbclient.emulator.sas import Authorizer
from sbclient.entities import EntityKind
from sbclient.errors import InvalidOperationError, MessagingEntityNotFoundError
from sbclient.hosting.host import BrokerHost
from sbclient.rules.shared_access_signature import sign
from tests.emulator.amqp.client import create
from tests.emulator.requests import FOREVER, described, request

pytestmark = [pytest.mark.real_time, pytest.mark.every_loop]

AMQP_HEADER = b"AMQP\x03\x01\x00\x00"
TOKEN = sign("https://localhost", "RootManageSharedAccessKey", "SAS_KEY_VALUE", FOREVER)


async def opened(port: int, tls: ssl.SSLContext | None = None) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host = "127.0.0.1" if tls is None else "localhost"
    return await asyncio.open_connection(host, port, ssl=tls)


async def said(port: int, data: bytes, tls: ssl.SSLContext | None = None, *, wanted: int = -1) -> bytes:
    """What the server says to some bytes until it ends the connection, or until it has said so much."""
    reader, writer = await opened(port, tls)
    try:
        writer.write(data)
        return await (reader.read() if wanted < 0 else reader.readexactly(wanted))
    finally:
        writer.close()
        with suppress(OSError, ssl.SSLError):
            await writer.wait_closed()


def http(method: str, target: str, body: bytes = b"", token: str = TOKEN) -> bytes:
    head = f"{method} {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {len(body)}\r\n"
    return f"{head}Authorization: {token}\r\n\r\n".encode() + body


async def asked(port: int, method: str, target: str, said_: Any = None, *, tls: ssl.SSLContext | None = None) -> Any:
    """The status and the JSON of an answer."""
    body = b"" if said_ is None else json.dumps(said_).encode()
    answer = await said(port, http(method, target, body), tls)
    client = h11.Connection(h11.CLIENT)
    client.send(h11.Request(method=method, target="/", headers=[("Host", "h")]))
    client.send(h11.EndOfMessage())
    client.receive_data(answer)
    response, data = client.next_event(), b""
    assert isinstance(response, h11.Response)
    while isinstance(event := client.next_event(), h11.Data):
        data += bytes(event.data)
    return response.status_code, json.loads(data)


@pytest.fixture
def port(emulator: Emulator) -> int:
    return emulator.ports["contoso"]


@pytest.fixture
def tls(trusted: str) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=trusted)


class TestOnePort:
    @pytest.mark.deviation("emulator.old-protocol")
    async def test_the_old_protocol_is_refused(self, port: int) -> None:
        via = b"net.tcp://localhost:9354/orders"
        framing = b"\x00\x01\x00\x01\x02\x02" + bytes([len(via)]) + via + b"\x03\x08\x0c"
        assert (await said(port, framing)).startswith(b"HTTP/1.1 400 ")

    async def test_takes_amqp(self, port: int) -> None:
        assert await said(port, AMQP_HEADER, wanted=8) == AMQP_HEADER

    @pytest.mark.deviation("emulator.one-port")
    async def test_takes_amqp_over_tls(self, port: int, tls: ssl.SSLContext) -> None:
        assert await said(port, AMQP_HEADER, tls, wanted=8) == AMQP_HEADER

    async def test_takes_http(self, port: int) -> None:
        assert (await asked(port, "GET", "/health"))[0] == 200

    @pytest.mark.deviation("emulator.one-port")
    async def test_takes_https(self, port: int, tls: ssl.SSLContext) -> None:
        assert (await asked(port, "GET", "/health", tls=tls))[0] == 200

    async def test_takes_websockets_that_carry_amqp(self, port: int) -> None:
        assert await self._over_websocket(port, None) == AMQP_HEADER

    @pytest.mark.deviation("emulator.one-port")
    async def test_takes_websockets_over_tls(self, port: int, tls: ssl.SSLContext) -> None:
        assert await self._over_websocket(port, tls) == AMQP_HEADER

    async def _over_websocket(self, port: int, tls: ssl.SSLContext | None) -> bytes:
        reader, writer = await opened(port, tls)
        client = wsproto.WSConnection(wsproto.ConnectionType.CLIENT)
        target = "/$servicebus/websocket"
        asking = wsproto.events.Request(host="localhost", target=target, subprotocols=["AMQPWSB10"])
        writer.write(client.send(asking))
        heard, accepted, is_ping_answered = b"", None, False
        while len(heard) < 8 or not is_ping_answered:
            client.receive_data(await reader.read(4096))
            for event in client.events():
                if isinstance(event, wsproto.events.AcceptConnection):
                    accepted = event.subprotocol
                    half = wsproto.events.BytesMessage(data=AMQP_HEADER[:3])
                    rest = wsproto.events.BytesMessage(data=AMQP_HEADER[3:])
                    writer.write(client.send(wsproto.events.Ping()) + client.send(half) + client.send(rest))
                elif isinstance(event, wsproto.events.Pong):
                    is_ping_answered = True
                elif isinstance(event, wsproto.events.BytesMessage):
                    heard += bytes(event.data)
        assert accepted == "AMQPWSB10"
        writer.close()
        with suppress(OSError, ssl.SSLError):
            await writer.wait_closed()
        return heard[:8]

    @pytest.mark.promise("emulator.bytes")
    @pytest.mark.parametrize(
        "data",
        [
            b"\x16\x03\x01\x00\x05hello",
            b"\x16" + b"\x00" * 1000,
            b"\x16\xff\xff\xff\xff" + b"x" * 70_000,
            b"\x00\x00\x00\x00",
            b"\xff" * 100_000,
            b"AMQ",
            b"AMQP\x09\x09\x09\x09",
            b"A" * 100_000,
            b"GET / HTTP/1.1\r\n\r\n",
            b"GET /$servicebus/websocket HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n\r\n",
            b"GET /$servicebus/websocket HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n\xff\xff\xff\xff",
        ],
    )
    async def test_hostile_bytes_end_their_own_connection_only(
        self, port: int, data: bytes, caplog: pytest.LogCaptureFixture
    ) -> None:
        reader, writer = await opened(port)
        writer.write(AMQP_HEADER)
        assert await reader.readexactly(8) == AMQP_HEADER
        other_reader, other = await opened(port)
        with suppress(OSError):
            other.write(data)
            other.write_eof()
            await other_reader.read()
        other.close()
        assert (await asked(port, "GET", "/health"))[0] == 200
        assert [record.message for record in caplog.records if record.levelname == "ERROR"] == []
        writer.write(AMQP_HEADER)
        writer.close()

    async def test_tls_inside_tls_is_refused(self, port: int, tls: ssl.SSLContext) -> None:
        assert await said(port, b"\x16\x03\x01\x00\x05hello", tls) == b""

    async def test_client_without_trust_in_the_certificate_does_not_affect_others(self, port: int) -> None:
        with pytest.raises(ssl.SSLError):
            await opened(port, ssl.create_default_context())
        assert (await asked(port, "GET", "/health"))[0] == 200

    async def test_text_over_a_websocket_is_refused(self, port: int) -> None:
        reader, writer = await opened(port)
        client = wsproto.WSConnection(wsproto.ConnectionType.CLIENT)
        writer.write(client.send(wsproto.events.Request(host="localhost", target="/$servicebus/websocket")))
        client.receive_data(await reader.read(4096))
        list(client.events())
        writer.write(client.send(wsproto.events.TextMessage(data="AMQP")))
        client.receive_data(await reader.read())
        (closed,) = client.events()
        assert isinstance(closed, wsproto.events.CloseConnection)
        assert closed.code == 1003
        writer.close()

    async def test_websocket_with_another_protocol_is_refused(self, port: int) -> None:
        client = wsproto.WSConnection(wsproto.ConnectionType.CLIENT)
        asking = wsproto.events.Request(host="localhost", target="/$servicebus/websocket", subprotocols=["mqtt"])
        assert (await said(port, client.send(asking))).startswith(b"HTTP/1.1 400 ")


class TestNamespaces:
    async def test_each_has_its_port_and_its_entities(self, emulator: Emulator) -> None:
        assert emulator.namespaces == ("contoso", "contoso-backup")
        assert len(set(emulator.ports.values())) == 2
        create(emulator.context("contoso-backup").host, EntityKind.QUEUE, "only-here")
        states = {
            name: (await asked(port, "GET", "/$control/state"))[1]["entities"] for name, port in emulator.ports.items()
        }
        assert states["contoso"] == []
        assert [entity["path"] for entity in states["contoso-backup"]] == ["only-here"]

    async def test_connection_strings_are_those_of_an_emulator(self, emulator: Emulator) -> None:
        expected = (
            f"Endpoint=sb://localhost:{emulator.ports['contoso-backup']};"
            "SharedAccessKeyName=RootManageSharedAccessKey;SharedAccessKey=SAS_KEY_VALUE;UseDevelopmentEmulator=true;"
        )
        assert emulator.connection_strings["contoso-backup"] == expected
        assert emulator.connection_string == emulator.connection_strings["contoso"]

    @pytest.mark.deviation("emulator.one-port")
    async def test_namespace_serves_all_protocols_on_each_of_its_ports(self, certificates: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as reserved:
            second = reserved.getsockname()[1]
        async with Emulator(f"a:0,{second}", certificate_directory=certificates) as emulator:
            create(emulator.context().host, EntityKind.QUEUE, "orders")
            assert emulator.connection_string.startswith(f"Endpoint=sb://localhost:{emulator.ports['a']};")
            for port in (emulator.ports["a"], second):
                entities = (await asked(port, "GET", "/$control/state"))[1]["entities"]
                assert [entity["path"] for entity in entities] == ["orders"]
                assert await said(port, AMQP_HEADER, wanted=8) == AMQP_HEADER
        with socket.create_server(("127.0.0.1", second)):  # it no longer listens
            pass

    async def test_default_namespace_has_the_name_of_microsofts_emulator(self, certificates: Path) -> None:
        assert Emulator(certificate_directory=certificates).namespaces == (DEFAULT_NAMESPACE,)

    async def test_configured_namespaces_are_created_at_the_requested_port(
        self, tmp_path: Path, certificates: Path
    ) -> None:
        config = tmp_path / "Config.json"
        spaces = [{"Name": "a", "Port": 1, "Queues": [{"Name": "orders"}]}, {"Name": "b"}]
        config.write_text(json.dumps({"UserConfig": {"Namespaces": spaces}}))
        async with Emulator("a:0", "c", config=config, certificate_directory=certificates) as emulator:
            assert emulator.namespaces == ("a", "b", "c")
            assert emulator.context("a").host.namespace.directory.get("orders") is not None

    def test_those_without_a_port_have_the_ones_after_the_first(self, tmp_path: Path) -> None:
        config = tmp_path / "Config.json"
        config.write_text('{"UserConfig": {"Namespaces": [{"Name": "a"}, {"Name": "b", "Port": 5673}, {"Name": "c"}]}}')

        def ports(*names: str, first_port: int) -> list[int | None]:
            return [each.port for each in chosen_namespaces(names, config, STD_2021, first_port=first_port)]

        assert ports("d:0", first_port=5672) == [5672, 5673, 5674, 0]
        assert ports(first_port=0) == [0, 5673, 0]
        assert ports(first_port=65_535) == [65_535, 5673, 0]

    async def test_unknown_one_is_refused(self, emulator: Emulator) -> None:
        with pytest.raises(InvalidOperationError, match="contoso, contoso-backup"):
            emulator.context("other")

    async def test_http_port_serves_the_first_namespace_and_the_health_of_all(self, certificates: Path) -> None:
        async with Emulator("a", "b", http_port=0, certificate_directory=certificates) as emulator:
            assert emulator.http_port
            assert await asked(emulator.http_port, "GET", "/health") == (
                200,
                {"status": "healthy", "namespaces": {"a": "healthy", "b": "healthy"}},
            )
            emulator.inject(Fault(FaultKind.DOWN), "b")
            status, health = await asked(emulator.http_port, "GET", "/health")
            assert (status, health["status"], health["namespaces"]["a"]) == (503, "unhealthy", "healthy")
            assert "refuses the connection" in health["namespaces"]["b"]
            assert (await asked(emulator.ports["a"], "GET", "/health"))[0] == 200

    @pytest.mark.parametrize("kind", ["refuse", "black_hole"])
    async def test_http_port_heals_faults_that_block_the_other_ports(self, certificates: Path, kind: str) -> None:
        async with Emulator("a", "b", http_port=0, certificate_directory=certificates) as emulator:
            own, http_port = emulator.ports["b"], emulator.http_port
            assert http_port
            thrown = await asked(http_port, "PUT", "/$control/faults?namespace=b", [{"kind": kind}])
            assert thrown[0] == 200
            with pytest.raises((ConnectionResetError, TimeoutError)):
                await asyncio.wait_for(asked(own, "DELETE", "/$control/faults"), 0.2)
            listed = await asked(http_port, "GET", "/$control/faults?namespace=b")
            assert listed == (200, {"faults": [{"id": 1, "kind": kind}]})
            assert (await asked(http_port, "GET", "/$control/faults"))[1] == {"faults": []}
            assert (await asked(http_port, "DELETE", "/$control/faults/1?namespace=b"))[0] == 200
            assert (await asked(own, "GET", "/health"))[0] == 200

    async def test_http_port_lists_the_namespaces_in_the_error(self, certificates: Path) -> None:
        async with Emulator("a", "b", http_port=0, certificate_directory=certificates) as emulator:
            assert emulator.http_port
            status, content = await asked(emulator.http_port, "GET", "/$control/state?namespace=c")
            assert status == 404
            assert "use one of a, b" in content["error"]

    async def test_health_leaves_nothing_in_the_namespace(self, emulator: Emulator, port: int) -> None:
        assert (await asked(port, "GET", "/health"))[0] == 200
        assert (await asked(port, "GET", "/$control/state"))[1]["entities"] == []

    async def test_health_that_hangs_is_unhealthy(self, emulator: Emulator, port: int) -> None:
        emulator.inject(Fault(FaultKind.HANG, count=1))
        loop = asyncio.get_running_loop()
        began_at = loop.time()
        assert (await asked_slowly(port))[0] == 503
        assert loop.time() - began_at > 4.5

    async def test_queue_named_health_is_found_by_management_clients(self, emulator: Emulator, trusted: str) -> None:
        client = ServiceBusAdministrationClient.from_connection_string(
            emulator.connection_string, connection_verify=trusted
        )
        async with client:
            await client.create_queue("health")
            assert (await client.get_queue("health")).name == "health"


async def asked_slowly(port: int) -> tuple[int, str]:
    reader, writer = await opened(port)
    writer.write(http("GET", "/health"))
    answer = await reader.read()
    writer.close()
    return int(answer.split(b" ")[1]), ""


class TestSwitches:
    async def test_reset_restores_the_configuration(self, tmp_path: Path, certificates: Path) -> None:
        config = tmp_path / "Config.json"
        config.write_text('{"UserConfig": {"Namespaces": [{"Name": "a", "Queues": [{"Name": "orders"}]}]}}')
        async with Emulator("b", config=config, certificate_directory=certificates) as emulator:
            for name in emulator.namespaces:
                create(emulator.context(name).host, EntityKind.TOPIC, "more")
                create(emulator.context(name).host, EntityKind.SUBSCRIPTION, "more", "sub")
            emulator.inject(WireFault(WireFaultKind.LATENCY, latency_s=0.0), "a")
            emulator.inject(Fault(FaultKind.DOWN, "orders"), "a")
            assert (await asked(emulator.ports["a"], "POST", "/$control/reset"))[0] == 200
            state = (await asked(emulator.ports["a"], "GET", "/$control/state"))[1]
            assert ([entity["path"] for entity in state["entities"]], state["faults"]) == (["orders"], [])
            assert emulator.context("b").host.namespace.directory.get("more") is not None
            emulator.reset()
            assert emulator.context("b").host.namespace.directory.get("more") is None

    async def test_an_injected_fault_is_returned_and_healed_alone(self, emulator: Emulator) -> None:
        first = emulator.inject(Fault(FaultKind.DOWN))
        second = emulator.inject(WireFault(WireFaultKind.LATENCY, latency_s=0.0))
        emulator.heal(first)
        assert emulator.context().active_faults() == [second]

    async def test_each_change_is_published(self, emulator: Emulator) -> None:
        fault = Fault(FaultKind.DOWN)
        changes: dict[str, tuple[Callable[[], object], list[str]]] = {
            "create_queue": (lambda: emulator.create_queue("orders"), ["entity.created"]),
            "create_topic": (lambda: emulator.create_topic("events"), ["entity.created"]),
            "create_subscription": (lambda: emulator.create_subscription("events", "all"), ["entity.created"]),
            "inject": (lambda: emulator.inject(fault), ["fault.thrown"]),
            "heal": (lambda: emulator.heal(fault), ["fault.healed"]),
            "purge": (emulator.purge, ["namespace.purged"]),
            "reset": (emulator.reset, ["namespace.reset"]),
        }
        methods = {name for name, each in vars(Emulator).items() if isfunction(each) and not name.startswith("_")}
        reads = {"context", "root_key"}
        assert methods - {"start", "close"} == changes.keys() | reads
        for change, expected in changes.values():
            before = len(emulator.context().events.recent)
            change()
            assert [event["event"] for event in emulator.context().events.recent][before:] == expected
        emulator.heal()
        assert emulator.context().events.recent[-1]["event"] == "fault.all_healed"

    async def test_purge(self, emulator: Emulator) -> None:
        create(emulator.context().host, EntityKind.QUEUE, "orders")
        assert emulator.purge("orders") == emulator.purge() == 0
        with pytest.raises(MessagingEntityNotFoundError):
            emulator.purge("other")

    async def test_faults_are_thrown_and_healed_by_namespace(self, emulator: Emulator, port: int) -> None:
        fault = WireFault(WireFaultKind.REFUSE)
        emulator.inject(fault)
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await said(port, AMQP_HEADER, wanted=8)
        assert await said(emulator.ports["contoso-backup"], AMQP_HEADER, wanted=8) == AMQP_HEADER
        emulator.heal(fault)
        assert await said(port, AMQP_HEADER, wanted=8) == AMQP_HEADER
        emulator.inject(Fault(FaultKind.DOWN))
        emulator.inject(WireFault(WireFaultKind.BLACK_HOLE))
        emulator.heal()
        assert (await asked(port, "GET", "/health"))[0] == 200

    async def test_fault_with_an_end_lets_connections_go_on_by_itself(self, emulator: Emulator, port: int) -> None:
        reader, writer = await opened(port)
        now = clock.now()
        emulator.inject(WireFault(WireFaultKind.BLACK_HOLE, until_at=now + 0.2))
        writer.write(AMQP_HEADER)
        began_at = asyncio.get_running_loop().time()
        assert await reader.readexactly(8) == AMQP_HEADER
        assert asyncio.get_running_loop().time() - began_at > 0.15
        writer.close()

    async def test_closing_ends_connections_in_a_black_hole(self, certificates: Path) -> None:
        async with Emulator("contoso", certificate_directory=certificates) as emulator:
            reader, writer = await opened(emulator.ports["contoso"])
            writer.write(AMQP_HEADER)
            assert await reader.readexactly(8) == AMQP_HEADER
            emulator.inject(WireFault(WireFaultKind.BLACK_HOLE))
        with pytest.raises(ConnectionResetError):
            await reader.read()
        writer.close()

    async def test_events_come_as_a_stream(self, emulator: Emulator, port: int) -> None:
        reader, writer = await opened(port)
        writer.write(http("GET", "/$control/events"))
        assert b"text/event-stream" in await reader.readuntil(b"watching\n\n")
        await said(port, AMQP_HEADER, wanted=8)
        heard = b""
        while b"connection.closed" not in heard:
            heard += await reader.read(1000)
        assert b'"protocol": "amqp"' in heard
        writer.close()

    async def test_switches_are_thrown_from_any_thread(self, emulator: Emulator, port: int) -> None:
        reader, writer = await opened(port)

        def elsewhere() -> None:
            emulator.inject(WireFault(WireFaultKind.BLACK_HOLE))
            emulator.inject(Fault(FaultKind.DOWN))
            emulator.heal()
            emulator.reset()
            assert emulator.purge() == 0
            emulator.inject(WireFault(WireFaultKind.RESET, count=1))

        await asyncio.to_thread(elsewhere)
        with pytest.raises(ConnectionResetError):
            await asyncio.wait_for(reader.read(), 1)
        writer.close()

    async def test_same_seed_same_tokens(self, certificates: Path) -> None:
        async def drawn() -> float:
            emulator = Emulator("a", seed=7, certificate_directory=certificates)
            return emulator.context().random.random()

        assert await drawn() == await drawn()


class TestMistakes:
    async def test_error_for_a_port_in_use_has_the_port_and_advice(self, emulator: Emulator, port: int) -> None:
        other = Emulator(f"late:{port}")
        with pytest.raises(InvalidOperationError) as caught:
            await other.start()
        text = caught.value.message
        assert f"port {port} of namespace late is in use on 127.0.0.1" in text
        assert "--namespace late:<port>" in text
        with pytest.raises(InvalidOperationError, match="--http-port"):
            await Emulator("late", http_port=port).start()

    async def test_an_http_port_in_use_is_replaced_if_it_was_not_asked_for(
        self, port: int, caplog: pytest.LogCaptureFixture
    ) -> None:
        async with Emulator("late", http_port=port, needs_http_port=False) as other:
            assert other.http_port not in (port, None)
        assert f"HTTP port {port} is in use" in caplog.text

    @pytest.mark.parametrize(
        ("make", "named"),
        [
            (lambda: Emulator("a b"), "a b"),
            (lambda: Emulator("a:x"), "a:x"),
            (lambda: Emulator("a:70000"), "a:70000"),
            (lambda: Emulator("a:5671,0"), "several from 1"),
            (lambda: Emulator("a:5671,443", "b:443"), "port 443 is given twice"),
            (lambda: Emulator("a:" + "9" * 5000), "is not a namespace"),
            (lambda: Emulator(""), "is not a namespace"),
            (lambda: Emulator("a", "a"), "twice"),
            (lambda: Emulator("a:5672", "b:5672"), "5672"),
            (lambda: Emulator(profile="std-1999"), "std-2021"),
            (lambda: Emulator(auth="password"), "jwt-any"),
        ],
    )
    def test_option_that_cannot_be_used_is_named(self, make: Callable[[], Emulator], named: str) -> None:
        with pytest.raises(InvalidOperationError, match=named):
            make()

    def test_configuration_that_cannot_be_used_is_named(self, tmp_path: Path) -> None:
        config = tmp_path / "Config.json"
        config.write_text('{"UserConfig":\n {}}')
        with pytest.raises(ConfigError, match=r"^Config\.json, line 2: \$\.UserConfig "):
            Emulator(config=config)
        with pytest.raises(OSError, match="missing"):
            Emulator(config=tmp_path / "missing.json")


class TestCertificate:
    @pytest.mark.deviation("emulator.certificate")
    async def test_is_made_once_and_kept(self, tmp_path: Path) -> None:
        first = Emulator(certificate_directory=tmp_path).certificate_path
        text = first.read_text()
        assert Emulator(certificate_directory=tmp_path).certificate_path.read_text() == text
        assert "PRIVATE KEY" not in text
        (server,) = first.parent.glob("server.pem")
        assert server.stat().st_mode & 0o077 == 0

    async def test_certificate_has_the_given_names(self, tmp_path: Path) -> None:
        async with Emulator("a", certificate_names=["broker.test"], certificate_directory=tmp_path) as emulator:
            trusting = ssl.create_default_context(cafile=str(emulator.certificate_path))
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", emulator.ports["a"], ssl=trusting, server_hostname="broker.test"
            )
            writer.write(AMQP_HEADER)
            assert await reader.readexactly(8) == AMQP_HEADER
            writer.close()

    async def test_without_a_certificate_plain_connections_work(self, tmp_path: Path) -> None:
        blocked = tmp_path / "file"
        blocked.write_text("not a directory")
        async with Emulator("a", certificate_directory=blocked) as emulator:
            with suppress(OSError, ssl.SSLError):
                await opened(emulator.ports["a"], ssl.create_default_context())
            assert (await asked(emulator.ports["a"], "GET", "/health"))[0] == 200


async def test_closing_ends_every_connection_and_frees_the_port(certificates: Path) -> None:
    emulator = Emulator("a", certificate_directory=certificates)
    await emulator.start()
    port = emulator.ports["a"]
    reader, writer = await opened(port)
    writer.write(AMQP_HEADER)
    assert await reader.readexactly(8) == AMQP_HEADER
    silent_reader, silent = await opened(port)
    await emulator.close()
    await emulator.close()
    for each in (reader, silent_reader):
        with suppress(ConnectionError):
            await each.read()
    for each_writer in (writer, silent):
        each_writer.close()
        with suppress(ConnectionError):
            await each_writer.wait_closed()
    async with Emulator(f"again:{port}", certificate_directory=certificates) as again:
        assert await said(again.ports["again"], AMQP_HEADER, wanted=8) == AMQP_HEADER


@pytest.mark.parametrize("profile", ["prem-2017", "prem-2021"])
async def test_profile_and_front_ends_are_those_of_the_broker(profile: str) -> None:
    async with Emulator("contoso", profile=profile, front_end_count=2) as emulator:
        emulator.create_queue("queue", enable_partitioning=True)
        emulator.create_topic("topic")
        host = emulator.context().host
        assert {host.namespace.is_partitioned(name) for name in ("queue", "topic")} == {profile == "prem-2017"}
        assert {host.connect() for _ in range(50)} == {0, 1}


@pytest.mark.deviation("broker.front-ends")
async def test_a_namespace_has_one_front_end_by_default() -> None:
    async with Emulator("contoso") as emulator:
        assert {emulator.context().host.connect() for _ in range(50)} == {0}


@pytest.mark.deviation("emulator.ignored-elements")
async def test_elements_out_of_order_are_kept_until_the_emulator_ends(tmp_path: Path) -> None:
    body = described("Queue", "<UserMetadata>m</UserMetadata>", "<MaxDeliveryCount>7</MaxDeliveryCount>")
    for is_kept in (True, False):
        async with Emulator("contoso", http_port=None, data=tmp_path) as emulator:
            api = ManagementApi(emulator.context())
            if is_kept:
                assert (await api.answer(request("PUT", "/q", body))).status == 201
            assert (b">7</MaxDeliveryCount>" in (await api.answer(request("GET", "/q"))).body) is is_kept


async def is_answered(reader: asyncio.StreamReader, within_s: float) -> bool:
    with suppress(TimeoutError):
        await asyncio.wait_for(reader.readexactly(8), within_s)
        return True
    return False


async def test_the_limit_of_connections_holds_after_connections_have_ended() -> None:
    context = NamespaceContext(
        host=BrokerHost("contoso"),
        authorizer=Authorizer(),
        wire_faults=WireFaults(Random(1)),
        settings=ServerSettings(max_connections=2),
    )
    listener = Listener(context, no_http, None)
    for _ in range(2):
        await listener.start("127.0.0.1", 0)
    ports = [listening.getsockname()[1] for listening in listener._sockets]

    async def client(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await opened(port)
        writer.write(AMQP_HEADER)
        return reader, writer

    try:
        for _ in range(3):
            clients = [await client(ports[0]), await client(ports[0])]
            assert [await is_answered(reader, 5) for reader, _ in clients] == [True, True]
            # The socket of the other port waits for a client already, so that it accepts one too many.
            clients.append(await client(ports[1]))
            assert await is_answered(clients[2][0], 5)
            clients += [await client(port) for port in ports]
            clients[0][1].close()
            assert not any([await is_answered(reader, 0.05) for reader, _ in clients[3:]])
            for _, writer in clients[1:3]:
                writer.close()
            assert [await is_answered(reader, 5) for reader, _ in clients[3:]] == [True, True]
            for _, writer in clients[3:]:
                writer.close()
            await asyncio.sleep(0.2)
    finally:
        await listener.close()


async def no_http(*_: Any) -> Any:
    raise NotImplementedError("this test speaks AMQP only")


def test_certificate_without_trustme_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "trustme", None)
    with pytest.raises(ModuleNotFoundError, match=r"package trustme: install the extra `emulator`"):
        Certificate(tmp_path / "new").make()
