"""Records what a client sends to a namespace, as AMQP performatives, message sections and management bodies."""

from __future__ import annotations

import asyncio
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any
from uuid import UUID

from sbclient.amqp import BATCH_FORMAT, Coordinator, Sections
from sbclient.amqp.frames import TYPE_AMQP, TYPE_SASL, FrameReader
from sbclient.amqp.performatives import Attach, Begin, Detach, Disposition, Flow, Transfer
from sbclient.amqp.types import Array, Symbol, TypedInteger

COUNTERS = (
    "handle",
    "next_incoming_id",
    "next_outgoing_id",
    "delivery_id",
    "first",
    "last",
    "delivery_count",
    "initial_delivery_count",
    "remote_channel",
)
"""Fields that count, so that their values say nothing."""

MAX_FRAME_BYTES = 2**27
_VARIABLE = (
    (re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"), "<uuid>"),
    (re.compile(r"sbclient-[0-9a-f]{16}(:\d+)?"), "<name>"),
    (re.compile(r"SharedAccessSignature .*"), "<token>"),
    (re.compile(r"(azsdk-python-servicebus|sbclient)/.*|Linux-.*|Python/.*|\d+\.\d+\.\d+$"), "<version>"),
    (re.compile(r"(localhost|127\.0\.0\.1)(:\d+)?"), "<host>"),
)


class Transcript:
    """What one client sent.

    Attributes:
        step: the part of the script that runs.
        facts: by kind of frame and name of a field: the different values that were sent.
    """

    def __init__(self) -> None:
        self.step = ""
        self.facts: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))

    def note(self, kind: str, fields: Iterator[tuple[str, str]]) -> None:
        """Add what one frame said."""
        found = dict(fields)
        is_first = kind not in self.facts
        known = self.facts[kind]
        for name in known.keys() | found.keys():
            if name not in known and not is_first:
                known[name].add("absent")
            known[name].add(found.get(name, "absent"))


def differences(theirs: Transcript, ours: Transcript) -> Iterator[tuple[str, str, str, str]]:
    """Kind, field and the values of both clients, wherever they differ; no field for frames that only one sends."""
    for kind in sorted(theirs.facts.keys() | ours.facts.keys()):
        first, second = theirs.facts.get(kind, {}), ours.facts.get(kind, {})
        if kind not in theirs.facts or kind not in ours.facts:
            yield kind, "", "sent" if kind in theirs.facts else "absent", "sent" if kind in ours.facts else "absent"
            continue
        for name in sorted(first.keys() | second.keys()):
            one, other = (" | ".join(sorted(each.get(name, {"absent"}))) for each in (first, second))
            if one != other:
                yield kind, name, one, other


class Recorder:
    """A port in front of a namespace that passes bytes on and notes the frames of the client."""

    def __init__(self, transcript: Transcript, port: int) -> None:
        self._transcript = transcript
        self._target = port
        self._server: asyncio.Server | None = None
        self._passing: set[asyncio.Task[None]] = set()
        self.port = 0

    async def __aenter__(self) -> Recorder:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in list(self._passing):
            task.cancel()
        await asyncio.gather(*self._passing, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, out = await asyncio.open_connection("127.0.0.1", self._target)
        frames = Frames(self._transcript)
        for source, sink, listener in ((reader, out, frames), (there, writer, None)):
            task = asyncio.create_task(_pass(source, sink, listener))
            self._passing.add(task)
            task.add_done_callback(self._passing.discard)


async def _pass(source: asyncio.StreamReader, sink: asyncio.StreamWriter, frames: Frames | None) -> None:
    try:
        while data := await source.read(2**16):
            if frames is not None:
                frames.feed(data)
            sink.write(data)
    except ConnectionError:
        pass
    finally:
        sink.close()


class Frames:
    """Reads the frames of one connection."""

    def __init__(self, transcript: Transcript) -> None:
        self._transcript = transcript
        self._reader = FrameReader(MAX_FRAME_BYTES)
        self._expected = ["header", "sasl", "header", "amqp"]
        self._links: dict[tuple[int, int], str] = {}

    def feed(self, data: bytes) -> None:
        """Take bytes from the client."""
        self._reader.feed(data)
        while self._next():
            pass

    def _next(self) -> bool:
        match self._expected[0]:
            case "header":
                if self._reader.next_header() is None:
                    return False
            case "sasl":
                frame = self._reader.next_frame(TYPE_SASL)
                if frame is None:
                    return False
                self._transcript.note("sasl-init", _fields("", frame.performative))
            case _:
                frame = self._reader.next_frame(TYPE_AMQP)
                if frame is None:
                    return False
                if frame.performative is not None:
                    self._note(frame.channel, frame.performative, frame.payload)
                return True
        del self._expected[0]
        return True

    def _note(self, channel: int, performative: Any, payload: bytes) -> None:
        kind = type(performative).__name__.lower()
        match performative:
            case Attach():
                link = _link_of(performative)
                self._links[channel, performative.handle] = link
                kind = f"attach {link}"
            case Flow():
                performative = performative._replace(incoming_window=0, outgoing_window=0)  # they count down
                kind = "flow of a session" if performative.handle is None else ""
                kind = kind or f"flow {self._links[channel, performative.handle]}"
            case Detach():
                kind = f"{kind} {self._links[channel, performative.handle]}"
            case Transfer():
                link = self._links[channel, performative.handle]
                kind = f"transfer: {self._transcript.step}"
                if link.startswith(("$cbs", "$management")):
                    operation = Sections(payload).application_properties["operation"]
                    kind = f"request {operation}"
                self._transcript.note(kind, _message(payload, is_batch=performative.message_format == BATCH_FORMAT))
                kind = f"transfer to {link.split()[0]}"
            case Disposition():
                kind = f"disposition: {self._transcript.step}"
            case Begin():
                pass
        self._transcript.note(kind, _fields("", performative))


def _link_of(attach: Attach) -> str:
    if isinstance(attach.target, Coordinator):
        return "coordinator"
    terminus = attach.source if attach.role else attach.target
    address = "" if terminus is None else str(terminus.address)
    node = next((name for name in ("$cbs", "$management") if address.endswith(name)), None)
    if node is not None:
        return f"{node} {'replies' if attach.role else 'requests'}"
    if not attach.role:
        return "sender"
    is_session = attach.source is not None and attach.source.filter is not None
    return (
        "session receiver"
        if is_session
        else f"receiver settling {'first' if attach.rcv_settle_mode == 0 else 'second'}"
    )


def _message(payload: bytes, *, is_batch: bool = False) -> Iterator[tuple[str, str]]:
    sections = Sections(payload)
    yield from _fields("header", sections.header)
    yield from _fields("properties", sections.properties)
    for name in ("delivery_annotations", "message_annotations", "application_properties", "footer"):
        yield from _fields(name, getattr(sections, name))
    if is_batch:
        for item in sections.data():
            yield from ((f"item: {name}", shown) for name, shown in _message(item))
    elif sections.data():
        yield "data", _shown(sections.data())
    elif sections.sequences():
        yield "sequences", _shown(sections.sequences())
    else:
        yield from _fields("value", sections.value(typed=True))


def _fields(prefix: str, value: Any) -> Iterator[tuple[str, str]]:
    """The names and values in a composite or map; absent fields are left out."""
    if isinstance(value, Array):
        items = list(value.items)
        yield f"{prefix}[]", "array"
        for item in items:
            yield from _fields(f"{prefix}[]", item)
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        for item in value:
            yield from _fields(f"{prefix}[]", item)
    elif isinstance(value, Mapping):
        for name, item in value.items():
            yield from _fields(f"{prefix}.{name}".lstrip("."), item)
    elif hasattr(value, "_asdict"):
        if prefix:
            yield prefix, type(value).__name__
        for name, item in value._asdict().items():
            if item is not None and name not in COUNTERS:
                yield from _fields(f"{prefix}.{name}".lstrip("."), item)
    elif isinstance(value, bytes) and prefix.endswith(".message"):
        yield from ((f"{prefix}: {name}", shown) for name, shown in _message(value))
    else:
        yield prefix, _shown(value)


def _shown(value: Any) -> str:
    if isinstance(value, UUID):
        return "uuid"
    if isinstance(value, bytes):
        return f"{len(value)} bytes"
    if isinstance(value, TypedInteger):
        return f"{type(value).__name__.lower()} {int(value)}"
    if isinstance(value, str):
        text = str(value)
        for pattern, name in _VARIABLE:
            text = pattern.sub(name, text)
        return f"symbol {text}" if isinstance(value, Symbol) else text
    if hasattr(value, "isoformat"):
        return "timestamp"
    return repr(value)
