"""How long one client waits while another floods the broker: `python -m tests.benchmarks.fairness [--seconds 2]`.

Emulator, attacker and good client are three processes. The good client sends one message after the other; what is
printed is how long its sends took, alone and beside each attacker, and by how much the attacker slows it down. On a
machine with two cores that others use as well, a median of 0.3 ms alone, and in milliseconds beside

                                  median    worst    when a connection was read as far as it had sent
    frames that say nothing            9       27         107
    flows that want an answer         14       84         279
    tiny messages                    0.3      164         920
    links that come and go             5       27        (not measured)
    peeks of a thousand               43       51       8,602
    receivers of everything           56      123          71
    tokens of many segments            3       12        (not measured)
    requests in a row                  1      127           2
    bodies in tiny chunks              1       22         925
    headers of one letter              2       30         670
    pings over a websocket             2       79       1,688
    tls records of one byte          0.2       12           1
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import socket
import ssl
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import islice, repeat
from typing import Any, Final, TypeAlias

from sbclient import clock
from sbclient.amqp import (
    RELEASED,
    Connection,
    ConnectionOptions,
    DispositionReceived,
    LinkAttached,
    OutgoingLink,
    PlainCredentials,
    Properties,
    Source,
    Target,
    encode_message,
    encode_sections,
)
from sbclient.amqp.frames import EMPTY_FRAME, encode_frame
from sbclient.amqp.performatives import Attach, Detach, Flow
from sbclient.amqp.transfers import write_disposition, write_transfers
from sbclient.amqp.types import Int, Long
from sbclient.emulator import Emulator
from sbclient.emulator.sas import ROOT_KEY, ROOT_KEY_NAME
from sbclient.message import ServiceBusMessage
from tests.benchmarks.engine_client import EngineClient
from tests.payloads import payload_of

GOOD, FLOODED = "good", "flooded"
FULL_CHUNK: Final = 2**18
MASKED_PING: Final = b"\x89\x80\x00\x00\x00\x00"

Flood: TypeAlias = Callable[[int], Iterator[Any]]
"""Connects to a port and gives the socket, and then what is sent there, piece by piece."""


def serve(pipe: Any) -> None:
    """The emulator's process: it sends its port, and ends on request."""

    async def served() -> None:
        async with Emulator("contoso") as emulator:
            from sbclient.broker.faults import Call, Operation
            from sbclient.entities import EntityAddress, EntityKind, QueueProperties

            host = emulator.context().host
            for name in (GOOD, FLOODED):
                call = Call(Operation.MANAGE, clock.now())
                address = EntityAddress(EntityKind.QUEUE, (name,))
                host.namespace.management.create(call, address, QueueProperties(name, enable_partitioning=False))
            for _ in range(30_000):
                host.namespace.send(
                    Call(Operation.SEND, clock.now()), FLOODED, [encode_message(ServiceBusMessage(b"x"))]
                )
            pipe.send((emulator.ports["contoso"], str(emulator.certificate_path)))
            await asyncio.to_thread(pipe.recv)

    asyncio.run(served())


class Attacker:
    """The engine's client role on a blocking socket, which stays on its feet while it is not answered."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        options = ConnectionOptions(container_id="attacker", hostname="h")
        credentials = PlainCredentials(ROOT_KEY_NAME, ROOT_KEY)
        self.engine = Connection.client(options, now=0.0, mechanism="PLAIN", credentials=credentials)
        self.session = self.engine.begin()

    def until_attached(self) -> None:
        self.socket.sendall(self.engine.bytes_to_send(now=0.0))
        while True:
            self.engine.receive_bytes(self.socket.recv(65_536), now=0.0)
            while (event := self.engine.next_event()) is not None:
                if isinstance(event, LinkAttached):
                    return
            if output := self.engine.bytes_to_send(now=0.0):
                self.socket.sendall(output)

    def sender(self, path: str) -> OutgoingLink:
        link = self.session.attach_sender("attack", target=Target(address=path))
        self.until_attached()
        return link

    def transfers(self, link: OutgoingLink, payloads: Iterable[bytes]) -> Iterator[list[bytes]]:
        """The frames of each message, settled, without regard to credit."""
        for number, payload in enumerate(payloads):
            frames = write_transfers(
                self.session.channel,
                link.handle,
                number,
                number.to_bytes(4, "big"),
                0,
                payload,
                settled=True,
                state=None,
                max_frame_size=65_536,
            )
            yield list(frames)


def together(pieces: Iterator[list[bytes]], number: int) -> Iterator[bytes]:
    """Join each `number` of pieces to one."""
    while True:
        yield b"".join(frame for piece in islice(pieces, number) for frame in piece)


def request(arguments: dict[str, Any], value: Any) -> bytes:
    return encode_sections(properties=Properties(message_id="m"), application_properties=arguments, value=value)


def frames_that_say_nothing(port: int) -> Iterator[Any]:
    attacker = Attacker(port)
    attacker.sender(FLOODED)
    yield attacker.socket
    chunk = EMPTY_FRAME * (FULL_CHUNK // len(EMPTY_FRAME))
    while True:
        yield chunk


def flows_that_want_an_answer(port: int) -> Iterator[Any]:
    attacker = Attacker(port)
    attacker.sender(FLOODED)
    yield attacker.socket
    flow = encode_frame(attacker.session.channel, Flow(0, 5000, 0, 5000, echo=True), 512)
    while True:
        yield flow * (FULL_CHUNK // len(flow))


def tiny_messages(port: int) -> Iterator[Any]:
    attacker = Attacker(port)
    link = attacker.sender(FLOODED)
    yield attacker.socket
    yield from together(attacker.transfers(link, repeat(payload_of(ServiceBusMessage(b"")))), 1_000)


def links_that_come_and_go(port: int) -> Iterator[Any]:
    attacker = Attacker(port)
    attacker.sender(FLOODED)
    yield attacker.socket
    pairs = []
    for number in range(1_000):
        attach = Attach(
            f"l{number}", 7, False, source=Source(), target=Target(address=FLOODED), initial_delivery_count=0
        )
        pairs.append(encode_frame(attacker.session.channel, attach, 512))
        pairs.append(encode_frame(attacker.session.channel, Detach(7, True), 512))
    while True:
        yield b"".join(pairs)


def peeks_of_a_thousand(port: int) -> Iterator[Any]:
    attacker = Attacker(port)
    attacker.session.attach_receiver("replies", source=Source(address=f"{FLOODED}/$management"))
    attacker.until_attached()
    link = attacker.sender(f"{FLOODED}/$management")
    yield attacker.socket
    arguments = {"operation": "com.microsoft:peek-message"}
    peek = request(arguments, {"from-sequence-number": Long(0), "message-count": Int(1_000)})
    yield from together(attacker.transfers(link, repeat(peek)), 100)


def tokens_of_many_segments(port: int) -> Iterator[Any]:
    attacker = Attacker(port)
    link = attacker.sender("$cbs")
    yield attacker.socket
    resource = "sb%3A%2F%2Fh%2F" + "a%2F" * 10_000
    token = f"SharedAccessSignature sr={resource}&sig=x&se=9999999999&skn={ROOT_KEY_NAME}"
    put = request({"operation": "put-token", "name": f"sb://h/{FLOODED}"}, token)
    yield from together(attacker.transfers(link, repeat(put)), 5)


def receivers_of_everything(port: int) -> Iterator[Any]:
    attacker = Attacker(port)
    links = []
    for number in range(300):
        links.append(attacker.session.attach_receiver(f"r{number}", source=Source(address=FLOODED)))
        attacker.until_attached()
    yield attacker.socket
    channel = attacker.session.channel
    flows = [Flow(0, 2**30, 0, 5000, handle=link.handle, delivery_count=0, link_credit=2**30) for link in links]
    wants_all = b"".join(encode_frame(channel, flow, 512) for flow in flows)
    gives_back = write_disposition(channel, True, 0, 2**31 - 1, settled=True, state=RELEASED)
    while True:
        yield wants_all + gives_back
        time.sleep(0.05)


def requests_in_a_row(port: int) -> Iterator[Any]:
    yield socket.create_connection(("127.0.0.1", port))
    request = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    while True:
        yield request * (FULL_CHUNK // len(request))


def bodies_in_tiny_chunks(port: int) -> Iterator[Any]:
    yield socket.create_connection(("127.0.0.1", port))
    yield b"PUT /q HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    while True:
        yield b"1\r\nx\r\n" * (FULL_CHUNK // 6)


def headers_of_one_letter(port: int) -> Iterator[Any]:
    yield socket.create_connection(("127.0.0.1", port))
    while True:
        yield b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"a:\r\n" * 16_000 + b"\r\n"


def pings_over_a_websocket(port: int) -> Iterator[Any]:
    yield socket.create_connection(("127.0.0.1", port))
    yield (
        b"GET /$servicebus/websocket HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
        b"Sec-WebSocket-Protocol: AMQPWSB10\r\n\r\n"
    )
    while True:
        yield MASKED_PING * (FULL_CHUNK // len(MASKED_PING))


def tls_records_of_one_byte(port: int) -> Iterator[Any]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    connection = socket.create_connection(("127.0.0.1", port))
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    engine = context.wrap_bio(incoming, outgoing)
    while True:
        try:
            engine.do_handshake()
            break
        except ssl.SSLWantReadError:
            connection.sendall(outgoing.read())
            incoming.write(connection.recv(65_536))
    yield connection
    engine.write(b"PUT /q HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
    while True:
        for _ in range(2_000):
            for piece in (b"1", b"\r", b"\n", b"x", b"\r", b"\n"):
                engine.write(piece)
        yield outgoing.read()


FLOODS: Final[dict[str, Flood]] = {
    flood.__name__.replace("_", " "): flood
    for flood in (
        frames_that_say_nothing,
        flows_that_want_an_answer,
        tiny_messages,
        links_that_come_and_go,
        peeks_of_a_thousand,
        tokens_of_many_segments,
        receivers_of_everything,
        requests_in_a_row,
        bodies_in_tiny_chunks,
        headers_of_one_letter,
        pings_over_a_websocket,
        tls_records_of_one_byte,
    )
}


def attack(name: str, port: int, seconds: float, pipe: Any) -> None:
    """The attacker's process: floods for a while; a connection that the broker ends is made anew."""
    os.nice(5)  # it is the broker that is to be slow, not the machine
    ends_at = time.monotonic() + seconds
    is_told = False
    while time.monotonic() < ends_at:
        with suppress(OSError, AssertionError):
            pieces = FLOODS[name](port)
            connection = next(pieces)
            connection.setblocking(False)
            for piece in pieces:
                rest = memoryview(piece)
                while rest and time.monotonic() < ends_at:
                    try:
                        rest = rest[connection.send(rest) :]
                    except BlockingIOError:
                        with suppress(BlockingIOError):
                            if not connection.recv(2**20):
                                break
                        time.sleep(0.001)
                        if not is_told:
                            is_told = True
                            pipe.send("full")
                if time.monotonic() >= ends_at:
                    break
    if not is_told:
        pipe.send("never full")


async def latencies(client: EngineClient, link: Any, seconds: float) -> list[float]:
    """How long sends take, one after the other."""
    payload = payload_of(ServiceBusMessage(b"x" * 1_000))
    ends_at = time.perf_counter() + seconds
    taken: list[float] = []
    while (began_at := time.perf_counter()) < ends_at:
        link.send(payload, tag=len(taken).to_bytes(4, "big"), needs_credit=False)
        await client.events(lambda event: isinstance(event, DispositionReceived))
        taken.append(time.perf_counter() - began_at)
        await asyncio.sleep(0.002)
    return sorted(taken)


def line(name: str, taken: list[float], alone_ms: float | None) -> float:
    middle, nearly_all, worst = (1e3 * taken[min(len(taken) - 1, int(len(taken) * part))] for part in (0.5, 0.99, 1.0))
    ratio = "" if alone_ms is None else f"{middle / alone_ms:8.1f} x"
    print(f"{name:36} {len(taken):6} sends  {middle:9.1f} {nearly_all:9.1f} {worst:9.1f} ms {ratio}", flush=True)
    return middle


async def main(seconds: float, chosen: list[str]) -> None:
    spawn = multiprocessing.get_context("spawn")
    pipe, far = multiprocessing.Pipe()
    server = spawn.Process(target=serve, args=(far,), daemon=True)
    server.start()
    port, _ = pipe.recv()
    print(f"{'the good client, beside':36} {'':12}  {'median':>9} {'99 %':>9} {'worst':>9}")
    async with EngineClient(port) as client:
        link = client.engine.begin().attach_sender("good", target=Target(address=GOOD))
        await client.attached(link)
        for name in chosen or FLOODS:
            alone_ms = line("none", await latencies(client, link, seconds / 2), None)
            near, other = multiprocessing.Pipe()
            attacker = spawn.Process(target=attack, args=(name, port, seconds + 1.0, other), daemon=True)
            attacker.start()
            await asyncio.to_thread(near.recv)
            line(name, await latencies(client, link, seconds), alone_ms)
            await asyncio.to_thread(attacker.join)
            await asyncio.sleep(0.5)
    pipe.send(None)
    server.join(10)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=2.0, help="how long each attacker floods")
    parser.add_argument("floods", nargs="*", help="some of them, by name; all by default")
    chosen = parser.parse_args()
    asyncio.run(main(chosen.seconds, chosen.floods))
