"""The attacks by name. Each takes a running server and returns what it saw; all are bounded in bytes and time."""

from __future__ import annotations

import asyncio
import select
import socket
import ssl
import struct
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import islice
from typing import Final, NamedTuple

from sbclient.amqp import IncomingLink, Properties, Source
from sbclient.amqp.frames import AMQP_HEADER, encode_frame
from sbclient.amqp.performatives import Begin, Flow
from sbclient.amqp.transfers import write_transfers
from sbclient.amqp.types import Described, Symbol
from sbclient.message import ServiceBusMessage
from sbclient.rules.shared_access_signature import sign
from tests.benchmarks.engine_client import EngineClient
from tests.hostile.key_updates import BYTES as KEY_UPDATE_BYTES
from tests.hostile.key_updates import request_new_keys
from tests.hostile.keys import KEYS, MODULUS
from tests.hostile.raw_client import RawClient, attach_frame, connected, encoded_map, link_frame, opening_frames
from tests.hostile.target import QUEUE, SELECTED, Server
from tests.payloads import encode_sections, payload_of

KIB: Final = 1024
NULL: Final = b"\x40"


class Attack(NamedTuple):
    """One attack.

    Attributes:
        run: does it, and returns a note for the report.
        settles_s: how long the server may work after the last byte.
        descriptors: the most that the server may have; None = no limit.
        sent_mib: the most that it sends, for the limit of the memory.
        options: further ones of `sbclient emulator`.
    """

    run: Callable[[Server], str]
    settles_s: float = 1.0
    descriptors: int | None = None
    sent_mib: float = 64.0
    options: tuple[str, ...] = ()


def flood_map_of_attach(kind: str) -> Callable[[Server], str]:
    """One attach with a map of 60 KiB, before any token."""

    def run(server: Server) -> str:
        keys = list(KEYS[kind](60 * KIB // (10 if kind == "numbers" else 18)))
        with connected(server.port) as (client,):
            frame = attach_frame(0, encoded_map((key, NULL) for key in keys))
            return _sent_and_answered(client, [frame], f"{len(keys)} keys")

    return run


def flood_map_of_request(kind: str) -> Callable[[Server], str]:
    """One request to `$cbs` whose body is a map of 140 KiB, before any token."""

    def run(server: Server) -> str:
        keys = list(KEYS[kind](140 * KIB // (10 if kind == "numbers" else 18)))
        body = b"\x00\x53\x77" + encoded_map((key, NULL) for key in keys)
        request = encode_sections(properties=Properties(message_id="m"), application_properties={"operation": "x"})
        with connected(server.port) as (client,):
            client.send(client.attach(0, "$cbs"))
            return _sent_and_answered(client, client.transfer(0, request + body), f"{len(keys)} keys")

    return run


def fill(frames: Callable[[RawClient], Iterable[bytes]], count: int) -> Callable[[Server], str]:
    """Connections that send what the server may keep, and then wait.

    Args:
        frames: of one connection.
        count: of connections.
    """

    def run(server: Server) -> str:
        with connected(server.port, count) as clients:
            closed = sum(not _is_accepted(client, frames(client)) for client in clients)
            time.sleep(1.0)
            return f"{count} connections, {closed} closed, {server.memory_mib():.0f} MiB resident while they are open"

    return run


def fill_opens(count: int) -> Callable[[Server], str]:
    """Connections whose open has properties of 60 KiB."""

    def run(server: Server) -> str:
        properties = encoded_map([(b"\xa3\x01p", _EMPTY_LISTS)])
        clients = [RawClient(server.port, properties) for _ in range(count)]
        time.sleep(1.0)
        note = f"{count} connections, {server.memory_mib():.0f} MiB resident while they are open"
        for client in clients:
            client.close()
        return note

    return run


def fill_requests(head: bytes, body: bytes, count: int) -> Callable[[Server], str]:
    """HTTP requests that are never complete."""

    def run(server: Server) -> str:
        sockets = [socket.create_connection(("127.0.0.1", server.http_port), timeout=20) for _ in range(count)]
        for each in sockets:
            with suppress(OSError):
                each.sendall(head + body)
        time.sleep(1.0)
        note = f"{count} connections, {server.memory_mib():.0f} MiB resident while they are open"
        for each in sockets:
            each.close()
        return note

    return run


def flood(opening: bytes, piece: bytes, count: int, lasts_s: float = 3.0) -> Callable[[Server], str]:
    """Connections that send without a pause, as fast as the server reads, and read what it answers.

    Args:
        opening: the first bytes, whose answer is awaited; empty = none.
        piece: sent again and again.
        count: of connections.
    """

    def run(server: Server) -> str:
        sockets = [socket.create_connection(("127.0.0.1", server.port), timeout=20) for _ in range(count)]
        for each in sockets:
            if opening:
                each.sendall(opening)
                each.recv(4_096)
            each.setblocking(False)
        data = memoryview(piece * max(1, 65_536 // len(piece)))
        positions = dict.fromkeys(sockets, 0)
        ends_at, sent = time.monotonic() + lasts_s, 0
        while positions and time.monotonic() < ends_at:
            readable, writable, _ = select.select(list(positions), list(positions), [], 0.1)
            for each in {*readable, *writable}:
                try:
                    if each in readable and not each.recv(65_536):
                        raise ConnectionError
                    if each in writable:
                        written = each.send(data[positions[each] :])
                        sent += written
                        positions[each] = (positions[each] + written) % len(data)
                except BlockingIOError:
                    pass
                except OSError:
                    del positions[each]
        for each in sockets:
            each.close()
        return f"{count} connections, {count - len(positions)} closed, {sent / KIB / KIB:.1f} MiB sent"

    return run


def put_entity(body: bytes) -> Callable[[Server], str]:
    """A request to create a queue, with a valid token."""

    def run(server: Server) -> str:
        token = sign(
            f"http://localhost:{server.port}/q", "RootManageSharedAccessKey", "SAS_KEY_VALUE", time.time() + 60
        )
        head = (
            f"PUT /q?api-version=2021-05 HTTP/1.1\r\nHost: localhost:{server.port}\r\nAuthorization: {token}\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        return _asked(server, head.encode() + body)

    return run


def purge_numbers(numbers: Iterable[int]) -> Callable[[Server], str]:
    """A request to remove messages by their sequence numbers, with a valid token."""

    def run(server: Server) -> str:
        token = sign(f"http://localhost:{server.port}", "RootManageSharedAccessKey", "SAS_KEY_VALUE", time.time() + 60)
        body = b'{"entity": "%s", "sequence_numbers": [%s]}' % (QUEUE.encode(), ",".join(map(str, numbers)).encode())
        head = (
            f"POST /$control/purge HTTP/1.1\r\nHost: localhost:{server.port}\r\nAuthorization: {token}\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        return _asked(server, head.encode() + body)

    return run


def put_tokens(count: int) -> Callable[[Server], str]:
    """Connections that put a token whose rule does not exist, again and again, and never a valid one."""

    def run(server: Server) -> str:
        audience = f"sb://localhost:{server.port}/{QUEUE}"
        properties = {"operation": "put-token", "type": "servicebus.windows.net:sastoken", "name": audience}
        request = encode_sections(
            properties=Properties(message_id="m", reply_to="client"),
            application_properties=properties,
            value=sign(audience, "Removed", "SAS_KEY_VALUE", time.time() + 60),
        )
        opening = opening_frames() + link_frame(0, "$cbs") + link_frame(1, "$cbs", is_receiver=True)
        transfers = (
            b"".join(write_transfers(0, 0, each, b"t", 0, request, settled=True, state=None, max_frame_size=4_096))
            for each in range(10_000)
        )
        return flood(opening, b"".join(transfers), count)(server)

    return run


def ask_for_keys(count: int) -> Callable[[Server], str]:
    """TLS connections that ask for new keys, as fast as the server reads, and read no answer."""

    def run(server: Server) -> str:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        sockets = []
        for _ in range(count):
            sockets.append(context.wrap_socket(socket.create_connection(("127.0.0.1", server.port), timeout=20)))
            sockets[-1].setblocking(False)
        ends_at, asked = time.monotonic() + 3.0, 0
        while time.monotonic() < ends_at:
            _, writable, _ = select.select([], sockets, [], 0.1)
            for each in writable:
                for _ in range(600):
                    if not request_new_keys(each):
                        break
                    asked += 1
        for each in sockets:
            each.close()
        return f"{count} connections, {asked} requests for new keys, {asked * KEY_UPDATE_BYTES / KIB:.0f} KiB"

    return run


def select_much(server: Server) -> str:
    """Receivers, with a valid token, whose selectors match none of 5,000 messages."""
    return asyncio.run(_select_much(server))


async def _select_much(server: Server) -> str:
    text = " OR ".join(f"a{number} LIKE '%b%c%'" for number in range(40))
    selector = Described(Symbol("apache.org:selector-filter:string"), text)
    message = ServiceBusMessage(b"x", application_properties={f"a{number}": "b" * 20 for number in range(40)})
    links: deque[IncomingLink] = deque()
    count, lasts_s = 0, 3.0
    async with EngineClient(server.port) as client:
        await client.send(SELECTED, [payload_of(message)] * 5_000)
        session, ends_at = client.engine.begin(), time.monotonic() + lasts_s
        while time.monotonic() < ends_at:
            link = session.attach_receiver(f"link {count}", source=Source(SELECTED, filter={"jms-selector": selector}))
            await client.attached(link)
            link.grant(1)
            links.append(link)
            if len(links) > 16:
                links.popleft().detach(closed=True)
            client.flush()
            count += 1
    return f"{count} receivers with selectors over 5,000 messages in {lasts_s:.0f} s"


def _asked(server: Server, request: bytes) -> str:
    began_at = time.perf_counter()
    with socket.create_connection(("127.0.0.1", server.port), timeout=120) as client:
        client.sendall(request)
        status = client.recv(65_536).split(b"\r\n")[0].decode()
    return f"{len(request) / KIB:.0f} KiB sent, {status} after {time.perf_counter() - began_at:.2f} s"


def attaches(client: RawClient) -> Iterable[bytes]:
    """6 MiB of attaches whose properties need most memory once they are decoded."""
    properties = encoded_map([(b"\xa3\x01p", _EMPTY_LISTS)])
    return (attach_frame(handle, properties) for handle in range(100))


def small_attaches(client: RawClient) -> Iterable[bytes]:
    """As many links as the server allows."""
    return (attach_frame(handle, b"\x40") for handle in range(10_000))


def sessions(client: RawClient) -> Iterable[bytes]:
    """As many sessions as the server allows."""
    return (encode_frame(channel, Begin(None, 0, 5_000, 5_000), 512) for channel in range(1, 256))


def partial_messages(client: RawClient) -> Iterable[bytes]:
    """Incomplete requests to `$cbs`, of 1,000 KiB each, on many links."""
    for handle in range(100):
        yield client.attach(handle, "$cbs")
        yield from list(client.transfer(handle, bytes(1_000 * KIB)))[:-1]


def unread(client: RawClient) -> Iterable[bytes]:
    """Requests for answers that are never read."""
    yield client.attach(0, "$cbs")
    yield client.attach(1, "$cbs", is_receiver=True)
    for _ in range(40):
        yield encode_frame(0, Flow(0, 5_000, 0, 5_000, echo=True), 512) * 10_000


def _is_accepted(client: RawClient, frames: Iterable[bytes]) -> bool:
    """Send frames; False if the server closes the connection, or does not read any further."""
    try:
        client.socket.settimeout(0.5)
        for frame in frames:
            client.send(frame)
    except OSError:
        return False
    return True


_EMPTY_LISTS: Final = b"\xd0" + struct.pack(">II", 60_004, 60_000) + b"\x45" * 60_000
_PUT: Final = b"PUT /q HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1048576\r\n\r\n"
_HEAD: Final = b"PUT /q HTTP/1.1\r\nHost: localhost\r\n"


_UPGRADE: Final = (
    b"GET /$servicebus/websocket HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
    b"Sec-WebSocket-Protocol: AMQPWSB10\r\n\r\n"
)
_MASK: Final = b"\0\0\0\0"
_EMPTY_FRAME: Final = b"\x82\x80" + _MASK
_PING: Final = b"\x89\x80" + _MASK
_FRAGMENTS: Final = b"\x02\x80" + _MASK + (b"\x00\x80" + _MASK) * 50 + b"\x80\x80" + _MASK
_AMQP_IN_FRAMES: Final = b"".join(b"\x82\x81" + _MASK + bytes((each,)) for each in b"AMQP\x03\1\0\0")
_GET: Final = b"GET /q HTTP/1.1\r\nHost: localhost\r\n\r\n"

_BELOW: Final = b"<a xmlns='%s'>%s</a>" % (b"u" * 950_000, b"<b/>" * 2_000)
_TEXTS: Final = b"<a>%s%s</a>" % (b"y" * 900_000, b"x<b/>" * 4_900)


def _sent_and_answered(client: RawClient, frames: Iterable[bytes], note: str) -> str:
    began_at = time.perf_counter()
    with suppress(OSError):
        client.send(*frames)
        client.send(b"\x00\x00\x00\x08\x00\x00\x00\x00")  # an invalid frame: the server closes the connection
        client.received()
    return f"{note}, answered after {time.perf_counter() - began_at:.2f} s"


ATTACKS: Final[dict[str, Attack]] = {
    **{f"attach-{kind}": Attack(flood_map_of_attach(kind)) for kind in KEYS},
    **{f"request-{kind}": Attack(flood_map_of_request(kind)) for kind in KEYS},
    "descriptors": Attack(fill(lambda client: (), 500), settles_s=2.0, descriptors=100),
    "memory-attaches": Attack(fill(attaches, 1)),
    "memory-attaches-1000": Attack(fill(lambda client: islice(attaches(client), 1), 1_000)),
    "memory-links": Attack(fill(small_attaches, 1)),
    "memory-opens-1000": Attack(fill_opens(1_000)),
    "memory-sessions-1000": Attack(fill(sessions, 1_000)),
    "memory-partial": Attack(fill(partial_messages, 1)),
    "memory-partial-1000": Attack(fill(lambda client: islice(partial_messages(client), 17), 1_000)),
    "memory-unread": Attack(fill(unread, 1)),
    "memory-bodies-1000": Attack(fill_requests(_PUT, bytes(1_000 * KIB), 1_000)),
    "memory-heads-1000": Attack(fill_requests(_HEAD, b"a: " + b"x" * 60_000, 1_000)),
    "websocket-frames": Attack(flood(_UPGRADE, _EMPTY_FRAME, 100)),
    "websocket-pings": Attack(flood(_UPGRADE, _PING, 100)),
    "websocket-fragments": Attack(flood(_UPGRADE, _FRAGMENTS, 100)),
    "websocket-bytes": Attack(flood(_UPGRADE, _AMQP_IN_FRAMES, 100)),
    "pipelined-requests": Attack(flood(b"", _GET, 100)),
    "amqp-frames": Attack(flood(AMQP_HEADER, b"\0\0\0\x08\x02\0\0\0", 100)),
    "xml-namespace": Attack(put_entity(_BELOW), sent_mib=1.0),
    "xml-texts": Attack(put_entity(_TEXTS), sent_mib=1.0),
    "tls-keys": Attack(ask_for_keys(100), sent_mib=1.0),
    "tokens": Attack(put_tokens(100)),
    "jms-selectors": Attack(select_much, sent_mib=10.0, options=("--profile", "prem-2021")),
    "json-numbers": Attack(purge_numbers([number * MODULUS for number in range(43_000)]), sent_mib=1.0),
}
