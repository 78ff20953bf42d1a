"""Whole hostile connections against the AMQP engine: `python -m tests.fuzz.amqp_engine --count 100000 --seed 1`.

Each case is a conversation made of plausible frames, then damaged, cut into chunks, and met by an owner who answers at
random. What must hold is in `Judge`. A case is named by seed and number alone, so a failure is repeated by
`--seed S --first N --count 1`.
"""

from __future__ import annotations

import argparse
import contextlib
import struct
import sys
import time
from collections.abc import Callable
from random import Random
from typing import Any, Final

from sbclient.amqp import (
    ACCEPTED,
    BATCH_FORMAT,
    RELEASED,
    AmqpError,
    AttachRequested,
    BrokerAnnotations,
    Connection,
    ConnectionClosed,
    ConnectionOptions,
    CredentialsOffered,
    CreditGranted,
    DeliveryReceived,
    DispositionReceived,
    DispositionsReceived,
    EncodedMessage,
    EndpointClosedError,
    IncomingLink,
    LinkDetached,
    Modified,
    OutgoingLink,
    Rejected,
    SessionEnded,
    TransactionalState,
    WireError,
    encode_delivery,
    split_batch,
)
from sbclient.amqp.encode import encode_value
from sbclient.amqp.frames import AMQP_HEADER, EMPTY_FRAME, SASL_HEADER, FrameReader, encode_frame
from sbclient.amqp.performatives import (
    Attach,
    Begin,
    Close,
    Coordinator,
    Detach,
    Disposition,
    End,
    Flow,
    Open,
    SaslInit,
    Source,
    Target,
    Transfer,
)
from sbclient.amqp.sections import Header, Properties
from sbclient.amqp.transfers import write_transfers
from sbclient.amqp.types import Array, Described, Symbol, ULong
from sbclient.errors import InvalidOperationError
from tests.payloads import encode_sections

OPTIONS: Final = ConnectionOptions(
    container_id="fuzzed",
    max_frame_size=2_048,
    channel_max=4,
    handle_max=8,
    max_links=12,
    max_unsettled=10,
    incoming_window=7,
    max_message_size=3_000,
    max_partial_bytes=5_000,
    max_held_bytes=10_000,
)
MAX_OUTPUT_BYTES: Final = 2**20
MAX_CASE_S: Final = 5.0
_LARGEST: Final = 2**32 - 1


class Author:
    """Writes what a peer might send."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._roles: list[bool] = []
        self._next_id = 0

    def conversation(self) -> bytes:
        """All bytes of one peer: mostly a good beginning, then good frames with a few bad ones in between."""
        random = self._random
        is_good = random.random() < 0.8
        parts = [self.good_opening() if is_good else self.opening()]
        size = random.choice([512, 600, 65_536, _LARGEST])
        parts.append(self.frame(Open("peer", max_frame_size=size, idle_time_out=random.choice([None, 0, 5]))))
        parts.append(self.frame(Begin(None, self.number(), random.choice([0, 3, 5_000]), self.window())))
        self._roles = [random.random() < 0.5 for _ in range(random.randrange(1, 4))]
        for handle, role in enumerate(self._roles):
            parts.append(self.frame(self.attach(handle)._replace(name=f"link{handle}", role=role)))
        malice = random.choice([0.0, 0.02, 0.1, 0.5])
        count = random.randrange(40)
        parts.extend(self.any_frame() if random.random() < malice else self.good_frame() for _ in range(count))
        if random.random() < 0.3:
            parts.append(self.frame(Close()))
        stream = b"".join(parts)
        return self.damaged(stream) if random.random() < 0.25 else stream

    def good_opening(self) -> bytes:
        """Headers and SASL as they should be."""
        sasl = SASL_HEADER + encode_frame(0, SaslInit("ANONYMOUS", b""), 512, 1) + AMQP_HEADER
        return self._random.choice([AMQP_HEADER, sasl])

    def good_frame(self) -> bytes:
        """A frame that fits those before it."""
        random = self._random
        handle = random.randrange(len(self._roles))
        kind = random.random()
        if self._roles[handle] and kind < 0.5:
            credit, drain = random.choice([0, 1, 5, 100]), random.random() < 0.2
            return self.frame(Flow(0, random.choice([5, 5_000]), 0, 100, handle, 0, credit, None, drain, kind < 0.1))
        if self._roles[handle]:
            first = random.randrange(8)
            return self.frame(Disposition(True, first, random.choice([None, first + 3]), kind < 0.8, self.state()))
        if kind < 0.9:
            return self.good_delivery(handle)
        if kind < 0.95:
            return self.frame(Disposition(False, random.randrange(8), None, True, None))
        return self.frame(Detach(handle, True))

    def good_delivery(self, handle: int) -> bytes:
        """A message in one or more frames."""
        random = self._random
        payload = random.choice([self.message(), self.message(), bytes(random.randrange(4_000))])
        size = random.choice([600, 2_048])
        number, self._next_id = self._next_id, self._next_id + 1
        form = random.choice([0, 0, BATCH_FORMAT])
        tag = struct.pack(">I", number)
        settled, state = random.random() < 0.2, random.choice([None, None, TransactionalState(b"t")])
        frames = write_transfers(
            0, handle, number, tag, form, payload, settled=settled, state=state, max_frame_size=size
        )
        kept = list(frames)
        if len(kept) > 1 and random.random() < 0.1:
            kept[-1] = self.frame(Transfer(handle, number, aborted=True))
        return b"".join(kept)

    def opening(self) -> bytes:
        """Headers and SASL of all kinds."""
        random = self._random
        mechanism = random.choice(["ANONYMOUS", "MSSBCBS", "PLAIN", "PLAIN", "OTHER"])
        response = random.choice([b"", b"\0user\0key", b"\0user\0key", b"\0", None])
        sasl = SASL_HEADER + encode_frame(0, SaslInit(mechanism, response), 512, 1) + AMQP_HEADER
        return random.choice([sasl, sasl, sasl, SASL_HEADER, b"", random.randbytes(8)])

    def any_frame(self) -> bytes:
        """One frame of any kind."""
        random = self._random
        writers: list[Callable[[], Any]] = [
            lambda: Attach(str(random.randrange(4)), self.handle(), random.random() < 0.5),
            lambda: self.attach(self.handle()),
            lambda: Begin(random.choice([None, None, 0, 3]), self.number(), self.window(), self.window()),
            lambda: self.flow(),
            lambda: self.flow(),
            lambda: self.disposition(),
            lambda: Detach(self.handle(), random.random() < 0.5, random.choice([None, AmqpError("c", "d", {"x": 1})])),
            lambda: End(random.choice([None, AmqpError("c")])),
            lambda: Open("again"),
        ]  # fmt: skip
        kind = random.random()
        if kind < 0.5:
            return self.transfer()
        if kind < 0.55:
            return EMPTY_FRAME
        if kind < 0.6:
            body = b"\x00\x53" + random.randbytes(1) + self.value()
            return struct.pack(">IBBH", 8 + len(body), 2, 0, self.channel()) + body
        if kind < 0.62:
            return struct.pack(
                ">IBBH", random.choice([0, 8, 100, 3_000, _LARGEST]), random.randrange(5), random.randrange(3), 0
            )
        return self.frame(random.choice(writers)(), self.channel())

    def disposition(self) -> Disposition:
        """A range of deliveries, mostly short."""
        random = self._random
        end = random.choice([None, self.number()])
        return Disposition(random.random() < 0.5, self.number(), end, random.random() < 0.5, self.state())

    def attach(self, handle: int) -> Attach:
        """A link as the SDK asks for it."""
        random = self._random
        source = Source(
            "amqps://h/q",
            filter=random.choice([None, {"com.microsoft:session-filter": "s"}, {"f": Described("x", [1])}]),
        )
        target = random.choice([Target("t"), Target(None), Coordinator(("amqp:local-transactions",)), None])
        size = random.choice([None, 0, 100, 2**64 - 1])
        name = random.choice(["a", "b", "c", "x" * 500])
        return Attach(
            name,
            handle,
            random.random() < 0.5,
            random.randrange(3),
            random.randrange(2),
            source,
            target,
            None,
            False,
            self.number(),
            size,
        )

    def flow(self) -> Flow:
        """A flow with odd windows."""
        random = self._random
        handle = random.choice([None, self.handle()])
        count, credit = random.choice([None, self.number()]), random.choice([None, 0, 1, 5, 100, _LARGEST])
        seen = random.choice([None, self.number()])
        return Flow(
            seen,
            self.window(),
            self.number(),
            self.window(),
            handle,
            count,
            credit,
            None,
            random.random() < 0.2,
            random.random() < 0.3,
        )

    def transfer(self) -> bytes:
        """A piece of a message."""
        random = self._random
        identity = random.random() < 0.8
        transfer = Transfer(
            self.handle(),
            self.number() if identity else None,
            random.choice([b"", b"\0\0\0\1", random.randbytes(random.choice([16, 32, 40]))]) if identity else None,
            random.choice([0, BATCH_FORMAT, None, 7]),
            random.choice([None, True, False]),
            random.random() < 0.3,
            None,
            self.state() if random.random() < 0.2 else None,
            random.random() < 0.02,
            random.random() < 0.05,
        )
        payload = random.choice([b"", self.message(), self.message(), random.randbytes(random.randrange(1_500))])
        frame = encode_frame(self.channel(), transfer, _LARGEST) + payload
        return struct.pack(">I", len(frame)) + frame[4:]

    def message(self) -> bytes:
        """An encoded message, perhaps damaged."""
        random = self._random
        raw = encode_sections(
            header=random.choice([None, Header(ttl=self.number())]),
            message_annotations=random.choice([None, {"x-opt-partition-key": "k"}, {"x-opt-partition-key": 5}]),
            properties=random.choice([None, Properties("id", group_id="s"), Properties(5, to="t")]),
            application_properties=random.choice([None, {"a": 1, "b": "c"}]),
            data=random.choice([[], [b"body"], [encode_sections(data=[b"1"])] * 2]),
        )
        if random.random() < 0.2:
            raw += b"\x00\x53\x77" + self.value()
        return self.damaged(raw) if random.random() < 0.3 else raw

    def value(self, depth: int = 0) -> bytes:
        """Any AMQP value, perhaps with bytes of no meaning."""
        random = self._random
        if random.random() < 0.1:
            return random.randbytes(random.randrange(12))
        simple: list[Any] = [None, True, 5, -(2**40), "text", b"binary", Symbol("s"), ULong(7), 1.5, [], {}]
        if depth < 4 and random.random() < 0.4:
            inner = [random.choice(simple) for _ in range(random.randrange(4))]
            compounds = [
                inner,
                dict.fromkeys(range(random.randrange(4)), inner),
                Array([1, 2], 0x54),
                Described(ULong(5), inner),
            ]
            return encode_value(random.choice(compounds))
        return encode_value(random.choice(simple))

    def state(self) -> Any:
        """A delivery state."""
        rejected = Rejected(AmqpError("com.microsoft:dead-letter", "d", {"DeadLetterReason": "r"}))
        states = [None, ACCEPTED, RELEASED, Modified(True, False), rejected, TransactionalState(b"t", ACCEPTED)]
        return self._random.choice(states)

    def frame(self, performative: Any, channel: int = 0) -> bytes:
        """The frame of a performative."""
        return encode_frame(channel, performative, _LARGEST)

    def channel(self) -> int:
        return self._random.choice([0, 0, 0, 0, 0, 0, 1, 4, 5, 65_535])

    def handle(self) -> int:
        return self._random.choice([0, 0, 0, 1, 1, 2, 3, 8, 9, _LARGEST])

    def number(self) -> int:
        return self._random.choice([0, 0, 0, 1, 2, 3, 9, 2**31 - 1, 2**31, _LARGEST])

    def window(self) -> int:
        return self._random.choice([0, 1, 5, 100, 65_536, _LARGEST])

    def damaged(self, raw: bytes) -> bytes:
        """The same bytes with a few changes."""
        random = self._random
        damaged = bytearray(raw)
        for _ in range(random.randrange(1, 4)):
            at = random.randrange(len(damaged) + 1)
            kind = random.randrange(5)
            if kind == 0 and at < len(damaged):
                damaged[at] = random.randrange(256)
            elif kind == 1 and at < len(damaged):
                damaged[at] ^= 1 << random.randrange(8)
            elif kind == 2:
                damaged[at:at] = random.choice(
                    [random.randbytes(3), b"\xff\xff\xff\xff", b"\x00", b"\xd0\xff\xff\xff\xff"]
                )
            elif kind == 3:
                del damaged[at : at + random.randrange(1, 9)]
            else:
                damaged[at:at] = damaged[max(0, at - 40) : at]
        return bytes(damaged)


class Owner:
    """A server that answers at random, in any order."""

    def __init__(self, random: Random, connection: Connection) -> None:
        self._random = random
        self._connection = connection
        self._links: list[Any] = []
        self._deliveries: list[Any] = []

    def answer(self, event: Any) -> None:
        """React to an event, or to an earlier one."""
        random = self._random
        match event:
            case CredentialsOffered():
                self._connection.admit(is_admitted=random.random() < 0.8)
            case AttachRequested(link, _):
                self._links.append(link)
                if random.random() < 0.9:
                    self._decide(link)
            case DeliveryReceived(_, delivery):
                self._deliveries.append(delivery)
                read(delivery.payload, delivery.message_format)
            case DispositionReceived(delivery, _, _):
                self._deliveries.append(delivery)
            case DispositionsReceived(_, deliveries, _, _):
                self._deliveries += deliveries
            case CreditGranted(link, credit, drain):
                for _ in range(min(credit, random.randrange(6))):
                    if link.credit:
                        link.send(
                            random.randbytes(random.choice([0, 50, 2_000])),
                            tag=random.randbytes(16),
                            settled=random.random() < 0.3,
                        )
                if drain:
                    link.drained()
        if random.random() < 0.2:
            self._act()

    def _decide(self, link: Any) -> None:
        kind = self._random.random()
        if kind < 0.2:
            link.refuse(AmqpError("amqp:not-found", "no" * self._random.choice([1, 400]), {"x": "y"}))
        elif isinstance(link, IncomingLink):
            link.accept(credit=self._random.choice([0, 1, 10]), max_message_size=self._random.choice([None, 100]))
        else:
            link.accept(properties={"p": 1})

    def _act(self) -> None:
        random = self._random
        kind = random.random()
        if kind < 0.6 and self._deliveries:
            delivery = self._deliveries.pop(random.randrange(len(self._deliveries)))
            state = random.choice([ACCEPTED, Rejected(AmqpError("c", "d" * 900)), RELEASED, None])
            delivery.settle(state, settled=random.random() < 0.8)
        elif kind < 0.8 and self._links:
            link = random.choice(self._links)
            action = random.randrange(5)
            if action == 0:
                link.detach(AmqpError("amqp:link:detach-forced", "x" * random.choice([0, 900])))
            elif action == 1 and isinstance(link, OutgoingLink):
                link.send(b"", tag=b"", needs_credit=False)
            elif action == 2 and isinstance(link, IncomingLink):
                link.grant(random.randrange(5), drain=random.random() < 0.5)
            elif action == 3:
                self._decide(link)
        elif kind < 0.84 and self._connection.sessions:
            random.choice(self._connection.sessions).end(random.choice([None, AmqpError("c")]))
        elif kind < 0.86:
            self._connection.close(random.choice([None, AmqpError("c", "x" * 900)]), now=1.0)


def read(payload: bytes, message_format: int) -> None:
    """What a server does with a message; hostile ones are refused by two errors and no other."""
    try:
        for piece in split_batch(payload) if message_format == BATCH_FORMAT else [payload]:
            message = EncodedMessage.of(piece)
            _ = message.application_properties, message.body
            encode_delivery(message, BrokerAnnotations(1, 2, added_properties={"DeadLetterReason": "r"}))
    except (WireError, InvalidOperationError):
        pass


class Judge:
    """Checks the invariants of a connection for any input.

    Attributes:
        heard: all events.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._open_links: dict[int, Any] = {}
        self._is_closed = False
        self.heard: list[Any] = []

    def hear(self, event: Any) -> None:
        """One event."""
        self.heard.append(event)
        assert not self._is_closed, f"{event} came after ConnectionClosed"
        match event:
            case AttachRequested(link, _):
                assert id(link) not in self._open_links
                self._open_links[id(link)] = link
            case LinkDetached(link, _, _):
                assert id(link) in self._open_links, "LinkDetached came twice, or for a link that was not requested"
                del self._open_links[id(link)]
            case SessionEnded(session, _):
                assert not session.is_open
            case ConnectionClosed(error, by_peer):
                assert error is not None or by_peer or self._connection.is_over
                assert self._connection.is_over
                self._is_closed = True

    def look(self) -> None:
        """The bounds."""
        connection = self._connection
        links = [link for session in connection.sessions for link in session.links]
        assert len(links) <= OPTIONS.max_links
        assert len(connection.sessions) <= OPTIONS.channel_max + 1
        partials: list[Any] = [link._partial for link in links if isinstance(link, IncomingLink)]
        held = sum(len(partial.payload) for partial in partials if partial is not None)
        assert held <= connection._partial_bytes <= OPTIONS.max_partial_bytes
        for session in connection.sessions:
            assert len(session._incoming) <= OPTIONS.max_unsettled
            assert session.held_bytes <= OPTIONS.max_held_bytes
        assert connection._link_count == len(links)

    def read_output(self, output: bytes) -> None:
        """What the engine sends must itself be AMQP."""
        assert len(output) < MAX_OUTPUT_BYTES
        position = 0
        while position < len(output):
            if output[position : position + 4] == b"AMQP":
                position += 8
                continue
            size, _, kind, _ = struct.unpack_from(">IBBH", output, position)
            reader = FrameReader(_LARGEST)
            reader.feed(output[position : position + size])
            assert reader.next_frame(kind) is not None
            position += size

    def finish(self) -> None:
        """The socket has closed."""
        assert self._is_closed
        assert all(link._is_reported for link in self._open_links.values()), "a link is over and no event reported it"
        assert self._connection._partial_bytes == 0
        assert self._connection._link_count == 0


def run_case(seed: int, number: int) -> list[Any]:
    """Run one connection from its first byte to its last; return all events of its owner.

    Raises:
        AssertionError: something does not hold; any other exception has no business to come out either.
    """
    random = Random(f"{seed}/{number}")
    connection = Connection.server(OPTIONS, now=0.0)
    owner, judge = Owner(random, connection), Judge(connection)
    stream = Author(random).conversation()
    began_at = time.thread_time()
    position = 0
    while position < len(stream):
        size = random.choice([1, 7, 64, 1_000, 100_000])
        connection.receive_bytes(stream[position : position + size], now=1.0)
        position += size
        take(connection, owner, judge)
        judge.look()
        judge.read_output(connection.bytes_to_send(now=1.0))
    if random.random() < 0.3:
        connection.pass_time(now=random.choice([2.0, 40.0, 10_000.0]))
    connection.receive_eof()
    take(connection, owner, judge)
    judge.read_output(connection.bytes_to_send(now=1.0))
    judge.finish()
    assert time.thread_time() - began_at < MAX_CASE_S, "one case took too long"
    return judge.heard


def take(connection: Connection, owner: Owner, judge: Judge) -> None:
    """Yield all events; errors about the owner's own calls are no failure."""
    while (event := connection.next_event()) is not None:
        judge.hear(event)
        with contextlib.suppress(EndpointClosedError, InvalidOperationError):
            owner.answer(event)


def main() -> int:
    """Run cases; status 1 at the first failure, which is named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0)
    chosen = parser.parse_args()
    began_at = time.perf_counter()
    for number in range(chosen.first, chosen.first + chosen.count):
        try:
            run_case(chosen.seed, number)
        except Exception:
            sys.stderr.write(f"case failed: --seed {chosen.seed} --first {number} --count 1\n")
            raise
    elapsed_s = time.perf_counter() - began_at
    sys.stdout.write(f"{chosen.count} cases from seed {chosen.seed} in {elapsed_s:.1f} s, none failed\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
