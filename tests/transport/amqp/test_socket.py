"""Real sockets: TCP, TLS, WebSockets and a proxy, to an emulator and to what is none."""

from __future__ import annotations

import asyncio
import hashlib
import ssl
import time
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from random import Random
from typing import Any

import pytest
import pytest_asyncio

from sbclient import ServiceBusMessage, TransportType
from sbclient.emulator import Emulator
from sbclient.entities import EntityAddress, EntityKind, QueueProperties
from sbclient.errors import InvalidOperationError, ServiceBusConnectionError, ServiceBusError
from sbclient.rules.connection_string import ConnectionString, parse_connection_string
from sbclient.transport.amqp.socket import Endpoint, open_stream, proxy_of, tls_context
from sbclient.transport.amqp.transport import endpoint_of
from sbclient.transport.base import Transport
from sbclient.transport.choice import open_transport
from tests.payloads import batch_of

pytestmark = [pytest.mark.real_time, pytest.mark.every_loop]

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@pytest_asyncio.fixture
async def emulator() -> AsyncIterator[Emulator]:
    async with Emulator("contoso") as emulator:
        management = await opened(emulator.connection_string, connection_verify=str(emulator.certificate_path))
        await management.administration.create(EntityAddress(EntityKind.QUEUE, ("orders",)), QueueProperties("orders"))
        await management.close()
        yield emulator


async def opened(connection_string: str, **options: Any) -> Transport:
    connection = parse_connection_string(connection_string)
    return open_transport(connection, random=Random(1), transport="amqp", **options)


async def round_trip(connection_string: str, **options: Any) -> None:
    """Send and receive a message of several frames."""
    transport = await opened(connection_string, **options)
    body = bytes(range(256)) * 700
    try:
        await transport.open_sender("orders").send(batch_of([ServiceBusMessage(body)]), timeout_s=20)
        (message,) = await transport.open_receiver("orders").receive(max_message_count=1, max_wait_time_s=20)
        assert bytes(message) == body
    finally:
        await transport.close()


async def failure(connection_string: str, **options: Any) -> ServiceBusConnectionError:
    """The error of a send."""
    transport = await opened(connection_string, **options)
    try:
        with pytest.raises(ServiceBusConnectionError) as caught:
            await transport.open_sender("orders").send(batch_of([ServiceBusMessage("x")]), timeout_s=20)
    finally:
        await transport.close()
    assert not caught.value.is_in_doubt
    return caught.value


@asynccontextmanager
async def server(handler: Handler) -> AsyncIterator[int]:
    """Some server; its port."""
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            await handler(reader, writer)
        finally:
            tasks.discard(task)
            writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield listening.sockets[0].getsockname()[1]
    finally:
        listening.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while piece := await reader.read(65_536):
        writer.write(piece)
        await writer.drain()
    writer.close()


def without_emulator_flag(emulator: Emulator) -> str:
    return emulator.connection_string.replace(";UseDevelopmentEmulator=true", "")


async def test_plain_tcp(emulator: Emulator) -> None:
    await round_trip(emulator.connection_string)


async def test_tls_trusts_the_given_authority(emulator: Emulator) -> None:
    await round_trip(without_emulator_flag(emulator), connection_verify=str(emulator.certificate_path))
    await round_trip(
        without_emulator_flag(emulator), ssl_context=ssl.create_default_context(cafile=str(emulator.certificate_path))
    )
    await round_trip(without_emulator_flag(emulator), connection_verify=False)


@pytest.mark.promise("client.tls")
async def test_tls_refuses_an_unknown_authority(emulator: Emulator) -> None:
    error = await failure(without_emulator_flag(emulator), ssl_context=ssl.create_default_context())
    assert "certificate verify failed" in str(error)


@pytest.mark.promise("client.tls-cut")
@pytest.mark.parametrize("kind", [TransportType.Amqp, TransportType.AmqpOverWebsocket])
@pytest.mark.parametrize("is_upstream", [True, False])
async def test_tls_connection_that_is_cut_within_a_record(
    emulator: Emulator, kind: TransportType, is_upstream: bool, record_property: Callable[[str, object], None]
) -> None:
    """The send ends with an error that says whether the message is stored, and the next connection works."""
    unexpected: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unexpected.append(context))
    refused: set[str] = set()
    stored: set[str] = set()
    left = 0

    async def cut(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, is_cut: bool) -> None:
        nonlocal left
        with suppress(ConnectionError):
            while piece := await reader.read(65_536):
                writer.write(piece[:left] if is_cut else piece)
                left -= len(piece) if is_cut else 0
                if left < 0:
                    break
                await writer.drain()
        writer.close()

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", emulator.ports["contoso"])
        both = [cut(reader, inner_writer, is_upstream), cut(inner_reader, writer, not is_upstream)]
        await asyncio.wait([asyncio.ensure_future(each) for each in both], return_when=asyncio.FIRST_COMPLETED)
        inner_writer.close()

    options: dict[str, Any] = {"transport_type": kind, "connection_verify": str(emulator.certificate_path)}
    async with server(relay) as port:
        for after in range(1, 20_000, 449):
            left, name = after, f"{after}"
            transport = await opened(
                without_emulator_flag(emulator), custom_endpoint_address=f"sb://127.0.0.1:{port}", **options
            )
            try:
                await transport.open_sender("orders").send(batch_of([ServiceBusMessage(name)]), timeout_s=20)
                break
            except ServiceBusError as error:
                refused |= set() if error.is_in_doubt else {name}
            finally:
                await transport.close()
        else:
            raise AssertionError("it was cut in the last run, too")
    transport = await opened(without_emulator_flag(emulator), **options)
    receiver = transport.open_receiver("orders")
    while messages := await receiver.receive(max_message_count=100, max_wait_time_s=0.1):
        stored |= {str(message) for message in messages}
    await transport.close()
    assert not stored & refused
    assert name in stored
    record_property("attacks", after // 449)
    record_property("bytes", after)
    assert all(isinstance(each["exception"], asyncio.CancelledError) for each in unexpected)  # of the relay


@pytest.mark.parametrize("is_tls", [False, True])
async def test_websocket(emulator: Emulator, is_tls: bool) -> None:
    string = without_emulator_flag(emulator) if is_tls else emulator.connection_string
    verify = str(emulator.certificate_path)
    await round_trip(string, transport_type=TransportType.AmqpOverWebsocket, connection_verify=verify)


async def test_custom_endpoint_is_where_the_socket_goes(emulator: Emulator) -> None:
    port = emulator.ports["contoso"]
    string = emulator.connection_string.replace(f":{port}", ":1")
    await round_trip(string, custom_endpoint_address=f"sb://127.0.0.1:{port}")


@pytest.mark.parametrize("is_tls", [False, True])
async def test_tunnel_through_a_proxy(emulator: Emulator, is_tls: bool) -> None:
    heads: list[str] = []

    async def proxy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append((await reader.readuntil(b"\r\n\r\n")).decode())
        host, _, port = heads[-1].split()[1].rpartition(":")
        inner_reader, inner_writer = await asyncio.open_connection(host, int(port))
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        try:
            await asyncio.gather(pump(reader, inner_writer), pump(inner_reader, writer))
        finally:
            inner_writer.close()

    string = without_emulator_flag(emulator) if is_tls else emulator.connection_string
    async with server(proxy) as port:
        settings = {"proxy_hostname": "127.0.0.1", "proxy_port": port, "username": "u", "password": "p"}
        await round_trip(string, http_proxy=settings, connection_verify=str(emulator.certificate_path))
    assert heads[0].startswith(f"CONNECT localhost:{emulator.ports['contoso']} HTTP/1.1")
    (line,) = [line for line in heads[0].splitlines() if line.lower().startswith("proxy-authorization: basic ")]
    assert b64decode(line.split()[-1]) == b"u:p"


async def test_proxy_that_refuses_is_named_with_its_status() -> None:
    async def proxy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")

    async with server(proxy) as port:
        settings = {"proxy_hostname": "127.0.0.1", "proxy_port": port, "username": "u", "password": "SECRET"}
        error = await failure(local(1), http_proxy=settings)
    assert "407" in str(error)
    assert "SECRET" not in str(error)


def local(port: int) -> str:
    return f"Endpoint=sb://127.0.0.1:{port};SharedAccessKeyName=n;SharedAccessKey=k;UseDevelopmentEmulator=true"


class Broken:
    """A sink with a defect."""

    def __init__(self) -> None:
        self.lost: list[Exception | None] = []

    def on_bytes(self, data: bytes) -> None:
        raise KeyError("no such link")

    def on_lost(self, error: Exception | None) -> None:
        self.lost.append(error)

    def on_full(self, *, is_full: bool) -> None: ...


async def test_unexpected_error_in_a_callback_ends_the_connection_with_it() -> None:
    ended = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"bytes")
        with suppress(ConnectionError):
            await reader.read()
        ended.set()

    logged: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: logged.append(context))
    sink = Broken()
    async with server(serve) as port:
        stream = await open_stream(Endpoint(host="127.0.0.1", port=port, hostname="127.0.0.1"), sink)
        await ended.wait()
        stream.write(b"more")  # is dropped
    (error,) = sink.lost
    assert isinstance(error, KeyError)
    assert logged[0]["exception"] is error


async def test_nothing_is_written_to_a_transport_that_is_closing(caplog: pytest.LogCaptureFixture) -> None:
    received: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            received.append(await reader.read())

    sink = Broken()
    async with server(serve) as port:
        stream = await open_stream(Endpoint(host="127.0.0.1", port=port, hostname="127.0.0.1"), sink)
        stream._transport.abort()  # type: ignore[attr-defined]  # as after an error of the socket
        for _ in range(10):
            stream.write(b"late")  # both loops warn of writes to a closing transport, from the fifth on
        await asyncio.sleep(0.05)
        stream.write(b"late")
    assert sink.lost == [None]
    assert not received or received == [b""]
    assert not caplog.records


@pytest.mark.parametrize("kind", [TransportType.Amqp, TransportType.AmqpOverWebsocket])
@pytest.mark.parametrize(
    "answer", [b"", b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", b"\x15\x03\x01\x00\x02\x02\x46" * 5]
)
async def test_server_that_speaks_something_else(kind: TransportType, answer: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(8)
        writer.write(answer)

    async with server(serve) as port:
        await failure(local(port), transport_type=kind)


@pytest.mark.promise("client.limits")
@pytest.mark.parametrize(
    "sent",
    [
        b"\x02\x00" + b"\x00\x00" * 100_000,  # fragments without content
        b"\x89\x00" * 100_000,  # pings
        b"\xc2\x05hello",  # compressed, which was not agreed on
        b"\x82\x85\0\0\0\0hello",  # masked, as only clients do
        b"\x82\x7f" + (2**62).to_bytes(8) + bytes(100_000),
    ],
)
async def test_hostile_websocket_frames_end_the_connection(sent: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        key = next(line.split()[1] for line in head.splitlines() if line.lower().startswith(b"sec-websocket-key:"))
        accepted = b64encode(hashlib.sha1(key + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest())
        writer.write(
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Protocol: AMQPWSB10\r\nSec-WebSocket-Accept: " + accepted + b"\r\n\r\n" + sent
        )
        with suppress(ConnectionError):
            await reader.read()
            await reader.read()

    async with server(serve) as port:
        began_at = time.thread_time()
        await failure(local(port), transport_type=TransportType.AmqpOverWebsocket)
    assert time.thread_time() - began_at < 1.0


async def test_connection_is_refused() -> None:
    async def nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None: ...

    async with server(nothing) as port:
        pass
    assert "refused" in str(await failure(local(port))).lower()


async def test_refused_tls_connection_to_a_local_port_advises_the_emulator_flag(emulator: Emulator) -> None:
    string = f"Endpoint=sb://localhost:{emulator.ports['contoso']};SharedAccessKeyName=n;SharedAccessKey=k"
    assert "UseDevelopmentEmulator=true" in str(await failure(string, ssl_context=ssl.create_default_context()))


async def test_host_that_does_not_exist() -> None:
    string = "Endpoint=sb://no-such-host.invalid/;SharedAccessKeyName=n;SharedAccessKey=SECRET"
    assert "SECRET" not in str(await failure(string))


async def test_options_are_checked_when_the_transport_is_opened() -> None:
    with pytest.raises(InvalidOperationError):
        tls_context(ssl_context="no context")
    with pytest.raises(InvalidOperationError):
        tls_context(verify="/no/such/file")
    with pytest.raises(InvalidOperationError):
        proxy_of({"proxy_hostname": "p"})
    for options in ({"transport_type": "amqp"}, {"no_such_option": 1}, {"custom_endpoint_address": 5}):
        with pytest.raises(InvalidOperationError):
            await opened(local(1), **options)


@pytest.mark.parametrize(
    ("connection", "namespace", "options", "expected"),
    [
        (ConnectionString("h.example"), "h.example", {}, ("h.example", 5671, True, False)),
        (None, "h.example", {}, ("h.example", 5671, True, False)),
        (None, "h.example:7000", {}, ("h.example", 7000, True, False)),
        (ConnectionString("h", use_development_emulator=True), "h", {}, ("h", 5672, False, False)),
        (
            None,
            "h.example",
            {"transport_type": TransportType.AmqpOverWebsocket},
            ("h.example", 443, True, True),
        ),
        (
            None,
            "h.example",
            {"custom_endpoint_address": "sb://private.example"},
            ("private.example", 443, True, True),
        ),
        (
            None,
            "h.example",
            {"custom_endpoint_address": "sb://private.example:1234", "transport_type": TransportType.Amqp},
            ("private.example", 1234, True, False),
        ),
    ],
)
def test_endpoint(
    connection: ConnectionString | None, namespace: str, options: dict[str, Any], expected: tuple[Any, ...]
) -> None:
    endpoint = endpoint_of(connection, namespace, options)
    assert (endpoint.host, endpoint.port, endpoint.tls is not None, endpoint.is_websocket) == expected
