"""Damaged inputs from a corpus, against everything that reads them: `python -m tests.fuzz.corpus --count 100000`.

`corpus/TARGET` holds valid inputs and inputs that were once a problem; files that end with `.hex` are bytes. Each input
of a run is one of them, damaged. A target accepts it or raises one of its documented errors, within `MAX_INPUT_S` of
processor time and `MAX_INPUT_BYTES` of memory. A failure names seed and number; `--first N --count 1` repeats it.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import re
import sys
import time
import tracemalloc
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any, Final, NamedTuple

from sbclient.amqp import Connection, ConnectionOptions, EncodedMessage, WireError, encode_message, split_batch
from sbclient.amqp.decode import decode_value, skip_value
from sbclient.broker.filters import FilterError, SystemProperties, compile_action, compile_filter
from sbclient.broker.profile import STD_2021
from sbclient.emulator.amqp.connection import BEFORE_TOKEN
from sbclient.emulator.config.config import read_config
from sbclient.emulator.context import NamespaceContext
from sbclient.emulator.faults import WireFaults
from sbclient.emulator.management.atom import described, read_default_rule, read_properties
from sbclient.emulator.management.atom_descriptions import read_sent
from sbclient.emulator.net.http import serve_http
from sbclient.emulator.net.http_messages import NoResponse, Request, Response
from sbclient.emulator.net.stream import ByteStream
from sbclient.emulator.net.websocket_stream import accept_websocket
from sbclient.emulator.page.namespace_registry import NamespaceRegistry
from sbclient.emulator.router import Router
from sbclient.emulator.sas import AuthorizationMode, Authorizer
from sbclient.entities import EntityKind, SqlRuleAction, SqlRuleFilter
from sbclient.errors import InvalidOperationError, ServiceBusError
from sbclient.hosting.host import BrokerHost
from sbclient.message import ServiceBusMessage, ServiceBusReceivedMessage
from sbclient.rules.connection_string import parse_connection_string
from sbclient.rules.envelope import MalformedEnvelopeError, unseal
from sbclient.testing import run_virtual
from tests.emulator.amqp.client import create, wire
from tests.emulator.requests import read_document

CORPUS: Final = Path(__file__).with_name("corpus")
MAX_INPUT_S: Final = 0.5
MAX_INPUT_BYTES: Final = 4 * 2**20
MAX_LENGTH: Final = 8_192

_TOKENS: Final = (
    *(
        b"\x00",
        b"\xff",
        b"\xc1\x01\x00",
        b"\xd1\x00\x00\x00\x04\x00\x00\x00\x00",
        b"\x7f\xff\xff\xff",
        b"\xf0",
        b"\x45",
    ),
    *(b"\r\n", b"\r\n\r\n", b"Transfer-Encoding: chunked", b"Content-Length: -1", b"%00", b"/../", b"HTTP/1.1"),
    *(b"<!DOCTYPE a [<!ENTITY b 'c'>]>", b"&amp;", b"&#x0;", b"]]>", b"<a>", b"</a>", b"xmlns:x='y'"),
    *(b"'", b'"', b"--", b"(", b")", b" AND ", b" LIKE '%_%' ", b"1e999", b"9223372036854775808", b"-1", b"null"),
    *(b"{", b"}", b"[", b"]", b",", b"\\ud800", b"\xed\xa0\x80", b"\xe2\x80\xae", b";", b"=", b"://", b"P9999999D"),
)


class Target(NamedTuple):
    """Something that reads inputs.

    Attributes:
        read: reads one.
        errors: those that it documents.
    """

    read: Callable[[bytes], object]
    errors: tuple[type[Exception], ...]


def read_stream(raw: bytes) -> None:
    """A client of the AMQP server that has shown no token."""
    engine = Connection.server(ConnectionOptions(container_id="fuzzed"), now=0.0)
    engine.limits = BEFORE_TOKEN
    for start in range(0, len(raw), 100):
        engine.receive_bytes(raw[start : start + 100], now=0.0)
        while engine.next_event() is not None:
            pass
        engine.bytes_to_send(now=0.0)


def read_value(raw: bytes) -> None:
    """A value, passed over and read in both ways."""
    with suppress(WireError):
        skip_value(raw, 0)
    with suppress(WireError):
        decode_value(raw, typed=True)
    decode_value(raw)


def read_message(raw: bytes) -> None:
    """A message, or a batch, and everything in it."""
    for payload in (raw, *_pieces(raw)):
        message = EncodedMessage.of(payload)
        _ = message.application_properties, message.body, message.message_id, message.time_to_live


def _pieces(raw: bytes) -> list[bytes]:
    with suppress(ServiceBusError):
        return split_batch(raw)
    return []


def read_http(raw: bytes) -> None:
    """A request to a namespace that checks no tokens, so that more is reached."""

    async def upgrade(stream: ByteStream, request: Any, after: bytes) -> None:
        if (websocket := await accept_websocket(stream, request, after, asyncio.Semaphore())) is not None:
            while await websocket.read():
                pass

    async def serve() -> None:
        host = BrokerHost("contoso", random=Random(1))
        create(host, EntityKind.QUEUE, "orders")
        context = NamespaceContext(host, Authorizer(AuthorizationMode.NONE), WireFaults(Random(1)))
        registry = NamespaceRegistry()
        registry.add(context, lambda: None)
        router, errors = Router(context, registry), []

        async def answer(request: Request) -> Response:
            try:
                return await router.answer(request)
            except NoResponse:
                raise
            except Exception as error:  # the client would get a 500
                errors.append(error)
                raise

        near, far = wire()
        near.write(raw)
        await near.close()
        await serve_http(far, context, b"", answer, upgrade)
        for error in errors:
            raise error

    run_virtual(serve(), horizon_s=10_000)


def read_atom(raw: bytes) -> None:
    """The description of an entity."""
    sent = read_sent(described(read_document(raw)), "2021-05")
    read_properties(sent, "orders")
    read_default_rule(sent)


MESSAGE: Final = ServiceBusMessage(
    b"x", subject="label", application_properties={"a": "a" * 300, "price": 5, "b": "%a_" * 50, "c": 1.5}
)


def read_sql(raw: bytes) -> None:
    """A filter, or an action after `SET` or `REMOVE`, evaluated for a message."""
    text = raw.decode(errors="surrogateescape")
    if text.lstrip().upper().startswith(("SET", "REMOVE")):
        compile_action(SqlRuleAction(text)).apply(encode_message(MESSAGE), SystemProperties(), Random(1))
    else:
        compile_filter(SqlRuleFilter(text)).matches(encode_message(MESSAGE), SystemProperties(), Random(1))


def read_connection_string(raw: bytes) -> None:
    """A connection string, and what is printed of it. Parts that have no effect cause a warning."""
    with warnings.catch_warnings(action="ignore"):
        repr(parse_connection_string(raw.decode(errors="surrogateescape")))


def read_configuration(raw: bytes) -> None:
    """A Config.json."""
    read_config(raw.decode(errors="replace"), "Config.json", STD_2021)


def read_backlog(raw: bytes) -> None:
    """Properties of a message in a backlog queue, as a JSON object."""
    try:
        properties: Any = json.loads(raw)
    except (ValueError, RecursionError):
        return
    if not isinstance(properties, dict):
        return
    kept = {name: value for name, value in properties.items() if not isinstance(value, list | dict)}
    message = ServiceBusMessage(b"x", application_properties=kept)
    received = ServiceBusReceivedMessage.of(
        encode_message(message), sequence_number=1, enqueued_time_utc=datetime(2026, 1, 1, tzinfo=UTC)
    )
    unseal(received, now=1_800_000_000.0, time_to_live_mode="remaining")
    unseal(received, now=1_800_000_000.0, time_to_live_mode="restart")


TARGETS: Final[dict[str, Target]] = {
    "amqp": Target(read_stream, ()),
    "value": Target(read_value, (WireError,)),
    "message": Target(read_message, (ServiceBusError,)),
    "http": Target(read_http, ()),
    "atom": Target(read_atom, (ServiceBusError,)),
    "sql": Target(read_sql, (InvalidOperationError, FilterError)),
    "connection_string": Target(read_connection_string, (InvalidOperationError,)),
    "config": Target(read_configuration, (ServiceBusError,)),
    "backlog": Target(read_backlog, (MalformedEnvelopeError, InvalidOperationError)),
}


def seeds(target: str) -> list[bytes]:
    """The corpus of a target, in the order of the names."""
    found = []
    for path in sorted((CORPUS / target).iterdir()):
        raw = path.read_bytes()
        found.append(
            bytes.fromhex(raw.decode())
            if path.suffix == ".hex"
            else raw.replace(b"\n", b"\r\n")
            if target == "http"
            else raw
        )
    return found


def damaged(random: Random, corpus: Sequence[bytes]) -> bytes:
    """An input of the corpus with some changes; sometimes with none."""
    data = bytearray(random.choice(corpus))
    for _ in range(random.choice((0, 1, 1, 2, 3, 8))):
        at = random.randrange(len(data) + 1)
        kind = random.randrange(7)
        if kind == 0 and at < len(data):
            data[at] = random.randrange(256)
        elif kind == 1:
            del data[at : at + random.randrange(1, 20)]
        elif kind == 2:
            data[at:at] = data[at : at + random.randrange(1, 65)] * random.choice((1, 2, 50))
        elif kind == 3:
            data[at:at] = random.choice(_TOKENS)
        elif kind == 4:
            other = random.choice(corpus)
            data[at:] = other[random.randrange(len(other) + 1) :]
        elif kind == 5:
            data[at : at + 4] = random.choice(_TOKENS)
        elif number := random.choice(list(re.finditer(rb"\d+", data)) or [None]):
            data[number.start() : number.end()] = random.choice((b"0", b"-1", b"1e99", b"4294967296", b"9" * 40))
    return bytes(data[:MAX_LENGTH])


def problem_of(target: Target, raw: bytes) -> str | None:
    """What is wrong with how a target reads an input; None if nothing is."""
    tracemalloc.reset_peak()
    before, began_at = tracemalloc.get_traced_memory()[0], time.thread_time()
    try:
        target.read(raw)
    except target.errors:
        pass
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    taken_s, held = time.thread_time() - began_at, tracemalloc.get_traced_memory()[1] - before
    if taken_s > MAX_INPUT_S:
        return f"takes {taken_s:.2f} s"
    return f"takes {held} bytes of memory" if held > MAX_INPUT_BYTES else None


def run(name: str, seed: int, first: int, count: int) -> str | None:
    """Try damaged inputs; returns what is wrong with the first bad one, None if nothing is."""
    target, corpus = TARGETS[name], seeds(name)
    was_tracing = tracemalloc.is_tracing()
    if not was_tracing:
        tracemalloc.start()
    try:
        for raw in corpus:
            problem_of(target, raw)  # what is loaded and cached at the first use counts for no input
        gc.collect()
        gc.freeze()  # a collection looks at nothing that other tests have left in this process
        for number in range(first, first + count):
            raw = damaged(Random(f"{name} {seed} {number}"), corpus)
            problem = problem_of(target, raw)
            if problem is not None:
                return f"{name}, seed {seed}, input {number}: {problem}\n{raw!r:.2000}"
    finally:
        gc.unfreeze()
        if not was_tracing:
            tracemalloc.stop()
    return None


def main() -> int:
    """Run the chosen targets; the exit status is 1 if one has a problem."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"{', '.join(TARGETS)}; all by default")
    parser.add_argument("--count", type=int, default=10_000, help="inputs of each target")
    parser.add_argument("--first", type=int, default=0, help="number of the first input")
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    status = 0
    for name in chosen.targets or TARGETS:
        began_at = time.perf_counter()
        problem = run(name, chosen.seed, chosen.first, chosen.count)
        print(
            f"{name:20} {chosen.count:9,} inputs in {time.perf_counter() - began_at:6.1f} s  {problem or 'ok'}",
            flush=True,
        )
        status = status or int(problem is not None)
    return status


if __name__ == "__main__":
    sys.exit(main())
