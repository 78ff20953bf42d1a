"""Whole connections without a socket: `amqp.connection`, `handshake`, `session`, `link`, `outgoing`, `incoming`."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any
from uuid import UUID

import pytest

from sbclient.amqp import (
    ACCEPTED,
    RELEASED,
    Accepted,
    AmqpError,
    Attach,
    AttachRequested,
    Connection,
    ConnectionClosed,
    ConnectionOpened,
    ConnectionOptions,
    Coordinator,
    CredentialsOffered,
    CreditGranted,
    DeliveryReceived,
    DispositionReceived,
    DispositionsReceived,
    DispositionWalked,
    EncodeError,
    EndAnswered,
    EndpointClosedError,
    IncomingLink,
    LinkAttached,
    LinkDetached,
    LinkDrained,
    Modified,
    OutgoingLink,
    PlainCredentials,
    Rejected,
    SessionBegun,
    SessionEnded,
    Source,
    Target,
    TransactionalState,
    WindowOpened,
)
from sbclient.amqp.frames import EMPTY_FRAME, TYPE_AMQP, FrameReader, encode_frame
from sbclient.amqp.performatives import (
    Begin,
    Close,
    Detach,
    Disposition,
    End,
    Flow,
    Open,
    SaslInit,
    SaslMechanisms,
    SaslOutcome,
    Transfer,
)
from sbclient.amqp.session import MANY_DELIVERIES
from sbclient.amqp.transfers import write_transfers
from sbclient.errors import InvalidOperationError
from tests.amqp.pipe import CLIENT, NOW, SERVER, Pipe, last, of_kind

AMQP_HEADER = b"AMQP\x00\x01\x00\x00"
SASL_HEADER = b"AMQP\x03\x01\x00\x00"

MESSAGE = b"\x00\x53\x75\xa0\x01a"
TOKEN = UUID("00112233-4455-6677-8899-aabbccddeeff")
ERROR = AmqpError("amqp:not-found", "there is no orders", {"a": 1})


class Peer:
    """A server and the frames that a test writes by hand to it."""

    def __init__(self, options: ConnectionOptions = SERVER, *, is_open: bool = True) -> None:
        self.server = Connection.server(options, now=NOW)
        self.events: list[Any] = []
        self._reader = FrameReader(2**20)
        if is_open:
            self.raw(AMQP_HEADER)
            assert self.server.bytes_to_send(now=NOW) == AMQP_HEADER
            self.send(Open("peer"))
            self.answers()

    def raw(self, chunk: bytes) -> list[Any]:
        """Send bytes; the events they caused."""
        self.server.receive_bytes(chunk, now=NOW)
        events = []
        while (event := self.server.next_event()) is not None:
            events.append(event)
        self.events += events
        return events

    def send(self, *performatives: Any, channel: int = 0) -> list[Any]:
        """Send frames; the events they caused."""
        return self.raw(b"".join(encode_frame(channel, performative, 2**20) for performative in performatives))

    def transfer(self, handle: int = 0, number: int = 0, payload: bytes = MESSAGE, **fields: Any) -> list[Any]:
        """Send one transfer frame on channel 0."""
        frame = encode_frame(0, Transfer(handle, number, b"tag", 0, False)._replace(**fields), 2**20) + payload
        return self.raw(struct.pack(">I", len(frame)) + frame[4:])

    def answers(self) -> list[Any]:
        """What the server has sent since."""
        self._reader.feed(self.server.bytes_to_send(now=NOW))
        performatives = []
        while (frame := self._reader.next_frame(0)) is not None:
            performatives.append(frame.performative)
        return performatives

    def attached(self, *, receives: bool = False, handle: int = 0, **accepted: Any) -> Any:
        """The server's end of a link that the peer sends on, or receives on."""
        if not self.server.sessions:
            self.send(Begin(None, 0, 100, 100))
        source, target = Source("s"), Target("t")
        self.send(Attach(f"l{handle}", handle, receives, 0, 0, source, target, initial_delivery_count=0))
        link = self.events[-1].link
        link.accept(**accepted)
        self.answers()
        return link

    def closed(self) -> AmqpError | None:
        """Return the error of the close; check that both sides report it."""
        event = self.events[-1]
        assert isinstance(event, ConnectionClosed)
        assert self.server.is_over
        close = self.answers()[-1]
        assert isinstance(close, Close)
        assert close.error == event.error
        return event.error


# Opening ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunk", [1, 5, 65_536])
@pytest.mark.parametrize("mechanism", [None, "ANONYMOUS", "MSSBCBS"])
def test_connection_opens_in_chunks_of_any_size(mechanism: str | None, chunk: int) -> None:
    pipe = Pipe(chunk=chunk, mechanism=mechanism)
    pipe.flow()
    assert pipe.server_events == [ConnectionOpened(Open("client", "contoso", 65_536, 255))]
    assert pipe.client_events == [ConnectionOpened(Open("server", None, 65_536, 255, 240_000))]
    assert pipe.server.mechanism == mechanism
    assert pipe.server.remote_max_frame_size == 65_536


def test_mechanisms_are_offered_as_an_array_of_symbols() -> None:
    peer = Peer(is_open=False)
    peer.raw(SASL_HEADER)
    raw = peer.server.bytes_to_send(now=NOW)
    assert raw[:8] == SASL_HEADER
    assert raw[16:] == b"\x00\x53\x40\xc0\x26\x01\xe0\x23\x04\xa3\x07MSSBCBS\x05PLAIN\x09ANONYMOUS\x08EXTERNAL"


def test_pipelined_frames_are_read_in_order() -> None:
    peer = Peer(is_open=False)
    pieces = [SASL_HEADER, encode_frame(0, SaslInit("ANONYMOUS", b"", "h"), 512, 1), AMQP_HEADER]
    pieces += [encode_frame(0, Open("c"), 512), encode_frame(1, Begin(None, 0, 9, 9), 512), encode_frame(1, End(), 512)]
    kinds = [type(event) for event in peer.raw(b"".join(pieces))]
    assert kinds == [ConnectionOpened, SessionBegun, SessionEnded]


@pytest.mark.parametrize("is_admitted", [True, False])
def test_credentials_are_checked_by_the_owner_before_more_is_read(is_admitted: bool) -> None:
    pipe = Pipe(mechanism="PLAIN", credentials=PlainCredentials("key", "secret"))
    pipe.flow()
    assert pipe.server_events == [CredentialsOffered(PlainCredentials("key", "secret"))]
    assert "secret" not in repr(pipe.server_events)
    pipe.server.admit(is_admitted=is_admitted)
    pipe.flow()
    if is_admitted:
        assert isinstance(pipe.server_events[-1], ConnectionOpened)
        assert isinstance(pipe.client_events[-1], ConnectionOpened)
    else:
        for event in (pipe.server_events[-1], pipe.client_events[-1]):
            assert isinstance(event, ConnectionClosed)
            assert event.error is not None
            assert event.error.condition == "amqp:unauthorized-access"
        assert pipe.server.is_over
        assert pipe.client.is_over
    pipe.server.admit(is_admitted=False)
    assert pipe.server.is_over is not is_admitted


def test_bytes_before_the_check_of_credentials_are_bounded() -> None:
    peer = Peer(is_open=False)
    peer.raw(SASL_HEADER + encode_frame(0, SaslInit("PLAIN", b"\0a\0b"), 512, 1))
    for _ in range(3):
        peer.raw(bytes(65_536))
    assert peer.events[-1].error.condition == "amqp:resource-limit-exceeded"


@pytest.mark.parametrize(
    "opening",
    [
        b"GET / HTTP/1.1\r\n",
        b"AMQP\x00\x00\x09\x01",
        b"AMQP\x02\x01\x00\x00",
        SASL_HEADER + AMQP_HEADER + AMQP_HEADER,
        SASL_HEADER + encode_frame(0, Open("c"), 512),
        SASL_HEADER + encode_frame(0, SaslOutcome(0), 512, 1),
        SASL_HEADER + encode_frame(0, SaslInit("SCRAM-SHA-256"), 512, 1),
        SASL_HEADER + encode_frame(0, SaslInit("PLAIN", b"a"), 512, 1),
        SASL_HEADER + encode_frame(0, SaslInit("PLAIN", b"\0\xff\0"), 512, 1),
        SASL_HEADER + encode_frame(0, SaslInit("PLAIN"), 512, 1),
        SASL_HEADER + encode_frame(0, SaslInit("ANONYMOUS"), 512, 1) + SASL_HEADER,
        AMQP_HEADER + AMQP_HEADER,
        AMQP_HEADER + encode_frame(0, Begin(None, 0, 1, 1), 512),
        AMQP_HEADER + encode_frame(0, End(), 512),
        AMQP_HEADER + encode_frame(0, Open("c", max_frame_size=511), 512),
        AMQP_HEADER + encode_frame(0, Open("c"), 512) * 2,
        AMQP_HEADER + struct.pack(">IBBH", 65_537, 2, 0, 0),
    ],
    ids=lambda opening: opening[:40].hex(),
)
def test_wrong_opening_ends_the_connection(opening: bytes) -> None:
    peer = Peer(is_open=False)
    peer.raw(opening)
    assert isinstance(peer.events[-1], ConnectionClosed)
    error = peer.events[-1].error
    assert error is not None
    assert error.condition.startswith("amqp:")
    assert not peer.events[-1].by_peer
    assert peer.server.is_over
    assert peer.raw(AMQP_HEADER) == []


def test_unsupported_header_is_answered_with_a_supported_one() -> None:
    for options, header in ((SERVER, AMQP_HEADER), (replace(SERVER, requires_sasl=True), SASL_HEADER)):
        peer = Peer(options, is_open=False)
        peer.raw(b"AMQP\x02\x01\x00\x00")
        assert peer.server.bytes_to_send(now=NOW) == header
    peer = Peer(replace(SERVER, requires_sasl=True), is_open=False)
    peer.raw(AMQP_HEADER)
    assert peer.server.bytes_to_send(now=NOW) == SASL_HEADER


def test_error_before_the_open_is_sent_after_an_open() -> None:
    peer = Peer(is_open=False)
    peer.raw(AMQP_HEADER + b"\x00\x00\x00\x08\x02\x07\x00\x00")
    peer._reader.next_header()
    raw = peer.server.bytes_to_send(now=NOW)
    reader = FrameReader(512)
    reader.feed(raw)
    assert reader.next_header() == AMQP_HEADER
    kinds = [type(frame.performative) for frame in iter(lambda: reader.next_frame(0), None)]
    assert kinds == [Open, Close]


@pytest.mark.parametrize(
    "answer",
    [
        AMQP_HEADER,
        SASL_HEADER + encode_frame(0, SaslMechanisms(("EXTERNAL",)), 512, 1),
        SASL_HEADER + encode_frame(0, SaslMechanisms(("ANONYMOUS",)), 512, 1) + encode_frame(0, SaslOutcome(1), 512, 1),
        SASL_HEADER + encode_frame(0, SaslInit("ANONYMOUS"), 512, 1),
    ],
    ids=["no SASL", "other mechanism", "refusal", "wrong frame"],
)
def test_client_ends_if_the_server_breaks_the_protocol(answer: bytes) -> None:
    client = Connection.client(CLIENT, now=NOW)
    client.receive_bytes(answer, now=NOW)
    event = client.next_event()
    assert isinstance(event, ConnectionClosed)
    assert event.error is not None
    assert client.is_over
    with pytest.raises(EndpointClosedError):
        client.begin()


def test_requests_before_the_open_are_sent_after_it() -> None:
    pipe = Pipe()
    link = pipe.client.begin().attach_sender("s", target=Target("orders"))
    assert b"orders" not in pipe.client.bytes_to_send(now=NOW)[8:]
    pipe = Pipe()
    link = pipe.client.begin().attach_sender("s", target=Target("orders"))
    pipe.flow()
    assert last(pipe.server_events, AttachRequested).attach.target == Target("orders")
    assert not link.is_open


# Links --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunk", [1, 13, 65_536])
@pytest.mark.parametrize("size", [0, 1, 1_000, 200_000])
def test_message_is_sent_and_settled(size: int, chunk: int) -> None:
    if chunk == 1 and size > 1_000:
        size = 2_000
    pipe = Pipe(chunk=chunk, client=replace(CLIENT, max_frame_size=512), server=replace(SERVER, max_frame_size=512))
    link, end = pipe.sending()
    payload = bytes(number % 253 for number in range(size))
    sent = link.send(payload, tag=b"\0\0\0\1", message_format=0x80013700)
    assert link.unsettled == {0: sent}
    pipe.flow()
    received = last(pipe.server_events, DeliveryReceived)
    assert (received.link, received.delivery.payload, received.delivery.tag) == (end, payload, b"\0\0\0\1")
    assert (received.delivery.message_format, received.delivery.is_settled) == (0x80013700, False)
    assert end.unsettled == {0: received.delivery}
    received.delivery.settle(ACCEPTED)
    received.delivery.settle(Rejected(ERROR))
    pipe.flow()
    assert of_kind(pipe.client_events, DispositionReceived) == [DispositionReceived(sent, ACCEPTED, True)]
    assert (link.unsettled, end.unsettled) == ({}, {})
    assert sent.is_settled


def test_settled_message_needs_no_answer() -> None:
    pipe = Pipe()
    link, end = pipe.sending()
    sent = link.send(MESSAGE, tag=b"t", settled=True)
    pipe.flow()
    received = last(pipe.server_events, DeliveryReceived).delivery
    assert received.is_settled
    assert sent.is_settled
    assert (link.unsettled, end.unsettled) == ({}, {})
    received.settle(ACCEPTED)
    assert pipe.server.bytes_to_send(now=NOW) == b""


def test_consecutive_accepted_deliveries_share_a_disposition() -> None:
    pipe = Pipe()
    link, _ = pipe.sending()
    sent = [link.send(MESSAGE, tag=bytes([number])) for number in range(8)]
    pipe.flow()
    received = [event.delivery for event in of_kind(pipe.server_events, DeliveryReceived)]
    for number in (0, 1, 2, 4):
        received[number].settle(ACCEPTED)
    received[3].settle(Rejected(ERROR))
    received[5].settle(ACCEPTED)
    assert dispositions(pipe.server.bytes_to_send(now=NOW)) == [(0, 2), (4, None), (3, None), (5, None)]
    received[6].settle(ACCEPTED)
    received[7].settle(ACCEPTED)
    output = pipe.server.bytes_to_send(now=NOW)
    assert dispositions(output) == [(6, 7)]  # not together with 5, which has left
    pipe.client.receive_bytes(output, now=NOW)
    assert pipe.client.next_event().deliveries == sent[6:]


def dispositions(output: bytes) -> list[tuple[int, int | None]]:
    """The first and last delivery of each disposition, which are the only frames."""
    reader, found = FrameReader(65_536), []
    reader.feed(output)
    while (frame := reader.next_frame(TYPE_AMQP)) is not None:
        assert isinstance(frame.performative, Disposition)
        found.append((frame.performative.first, frame.performative.last))
    return found


def test_outcome_of_a_receiver_is_confirmed_by_the_sender() -> None:
    pipe = Pipe()
    out, end = pipe.receiving()
    out.send(MESSAGE, tag=TOKEN.bytes_le)
    pipe.flow()
    received = last(pipe.client_events, DeliveryReceived).delivery
    assert UUID(bytes_le=received.tag) == TOKEN
    received.settle(Modified(True, False), settled=False)
    pipe.flow()
    event = last(pipe.server_events, DispositionReceived)
    assert (event.state, event.settled, event.delivery.tag) == (Modified(True, False), False, TOKEN.bytes_le)
    event.delivery.settle(event.state)
    pipe.flow()
    assert last(pipe.client_events, DispositionReceived) == (received, Modified(True, False), True)
    assert (out.unsettled, end.unsettled) == ({}, {})


def test_transactional_states_travel_both_ways() -> None:
    pipe = Pipe()
    link, _ = pipe.sending()
    link.send(MESSAGE, tag=b"t", state=TransactionalState(b"txn"))
    pipe.flow()
    received = last(pipe.server_events, DeliveryReceived).delivery
    assert received.state == TransactionalState(b"txn")
    received.settle(TransactionalState(b"txn", ACCEPTED))
    pipe.flow()
    assert last(pipe.client_events, DispositionReceived).state == TransactionalState(b"txn", ACCEPTED)


def test_link_to_a_coordinator_is_attached() -> None:
    pipe = Pipe()
    link = pipe.session().attach_sender("txn", target=Coordinator(("amqp:local-transactions",)))
    pipe.flow()
    asked = last(pipe.server_events, AttachRequested)
    assert asked.attach.target == Coordinator(("amqp:local-transactions",))
    assert isinstance(asked.link, IncomingLink)
    asked.link.accept(credit=1)
    pipe.flow()
    assert link.is_open


def test_attach_is_answered_with_the_values_of_the_peer_by_default() -> None:
    pipe = Pipe()
    address = "amqps://localhost:5672/orders"
    source = Source(address, filter={"com.microsoft:session-filter": None})
    link = pipe.session().attach_receiver("r", source=source, snd_settle_mode=0, rcv_settle_mode=1, properties={"p": 1})
    pipe.flow()
    end = last(pipe.server_events, AttachRequested).link
    assert isinstance(end, OutgoingLink)
    granted = source._replace(filter={"com.microsoft:session-filter": "s1"})
    end.accept(source=granted, max_message_size=262_144, properties={"com.microsoft:locked-until-utc": 5})
    end.owner = "anything"
    pipe.flow()
    answer = last(pipe.client_events, LinkAttached).attach
    assert answer == Attach(
        "r",
        0,
        False,
        0,
        1,
        granted,
        Target("r"),
        None,
        False,
        0,
        262_144,
        properties={"com.microsoft:locked-until-utc": 5},
    )
    assert link.is_open
    assert end.is_open
    with pytest.raises(EndpointClosedError):
        end.accept()


def test_refusal_is_an_attach_without_terminus_and_a_detach_with_the_error() -> None:
    for is_sender in (False, True):
        peer = Peer()
        peer.send(Begin(None, 0, 1, 1), Attach("n", 7, is_sender, source=Source("s"), target=Target("t")))
        peer.answers()
        link = peer.events[-1].link
        link.refuse(ERROR)
        attach, detach = peer.answers()
        assert (attach.name, attach.source, attach.target, attach.role) == ("n", None, None, not is_sender)
        assert attach.initial_delivery_count == (0 if is_sender else None)
        assert detach == Detach(7, True, ERROR)
        assert peer.send(Detach(7, True)) == []
        assert peer.server.sessions[0].links == []
        with pytest.raises(EndpointClosedError):
            link.refuse(ERROR)


def test_detach_of_the_peer_is_answered_and_reported_once() -> None:
    pipe = Pipe()
    link, end = pipe.sending()
    link.send(MESSAGE, tag=b"t")
    pipe.flow()
    link.detach(ERROR)
    pipe.flow()
    assert of_kind(pipe.server_events, LinkDetached) == [LinkDetached(end, ERROR, True)]
    assert of_kind(pipe.client_events, LinkDetached) == []
    assert len(end.unsettled) == len(link.unsettled) == 1
    assert pipe.client.sessions[0].links == pipe.server.sessions[0].links == []
    last(pipe.server_events, DeliveryReceived).delivery.settle(ACCEPTED)
    assert pipe.server.bytes_to_send(now=NOW) == b""
    for call in (lambda: link.send(MESSAGE, tag=b"t"), lambda: end.grant(1), end.accept):
        with pytest.raises(EndpointClosedError):
            call()
    link.detach()
    assert pipe.client.bytes_to_send(now=NOW) == b""


def test_detach_of_the_server_reaches_the_client_with_its_error() -> None:
    pipe = Pipe()
    out, end = pipe.receiving()
    out.detach(AmqpError("amqp:link:detach-forced"), closed=False)
    out.drained()
    pipe.flow()
    assert last(pipe.client_events, LinkDetached) == (end, AmqpError("amqp:link:detach-forced"), False)
    assert of_kind(pipe.server_events, LinkDetached) == []


def test_peer_may_give_up_before_its_attach_is_answered() -> None:
    peer = Peer()
    peer.send(Begin(None, 0, 1, 1), Attach("n", 3, True, source=Source("s"), target=Target("t")))
    peer.answers()
    link = peer.events[-1].link
    assert peer.send(Detach(3, True)) == [LinkDetached(link, None, True)]
    attach, detach = peer.answers()
    assert (attach.source, detach) == (None, Detach(3, True))
    with pytest.raises(EndpointClosedError):
        link.accept()


def test_handle_is_free_again_after_both_detaches() -> None:
    peer = Peer()
    for _ in range(3):
        peer.attached(handle=5)
        peer.send(Detach(5, True))
    assert of_kind(peer.events, SessionEnded) == []


# Credit -------------------------------------------------------------------------------------------------------------


def test_credit_is_what_the_receiver_granted_less_what_was_sent() -> None:
    pipe = Pipe()
    out, end = pipe.receiving(credit=2)
    assert last(pipe.server_events, CreditGranted) == (out, 2, False)
    out.send(MESSAGE, tag=b"1")
    out.send(MESSAGE, tag=b"2")
    assert out.credit == 0
    with pytest.raises(InvalidOperationError):
        out.send(MESSAGE, tag=b"3")
    out.send(MESSAGE, tag=b"3", needs_credit=False)
    pipe.flow()
    assert (end.credit, end.delivery_count) == (-1, 3)
    end.grant(5)
    pipe.flow()
    assert out.credit == 5


def test_credit_in_flight_is_not_granted_twice() -> None:
    pipe = Pipe()
    out, end = pipe.receiving(credit=5)
    out.send(MESSAGE, tag=b"1")
    end.grant(5)
    pipe.flow()
    assert out.credit == 4


def test_receiver_keeps_its_credit_up() -> None:
    pipe = Pipe()
    link, end = pipe.sending(credit=10)
    for number in range(100):
        link.send(MESSAGE, tag=bytes([number]))
        pipe.flow()
    assert end.delivery_count == 100
    assert 5 <= end.credit <= 10
    assert end.credit == link.credit


def test_credit_granted_before_the_attach_is_sent_with_it() -> None:
    peer = Peer()
    peer.send(Begin(None, 0, 9, 9), Attach("n", 3, True, source=Source("s"), target=Target("t")))
    link = peer.events[-1].link
    peer.send(Flow(0, 9, 0, 9, 3, None, 5, echo=True))
    peer.send(Flow(0, 9, 0, 9, 3, None, 7))
    assert link.credit == 0
    peer.answers()
    link.accept()
    assert peer.raw(EMPTY_FRAME) == [CreditGranted(link, 7, False)]
    assert [type(answer) for answer in peer.answers()] == [Attach, Flow]


def test_drain_uses_or_returns_the_credit() -> None:
    pipe = Pipe()
    out, end = pipe.receiving(credit=10)
    end.grant(10, drain=True)
    pipe.flow()
    assert last(pipe.server_events, CreditGranted) == (out, 10, True)
    out.send(MESSAGE, tag=b"1")
    out.drained()
    pipe.flow()
    assert last(pipe.client_events, LinkDrained) == (end,)
    assert (end.credit, end.delivery_count, out.delivery_count, out.credit) == (0, 10, 10, 0)
    end.grant(3)
    pipe.flow()
    assert out.credit == 3


def test_drain_that_is_answered_after_another_grant_leaves_the_rest_of_that_grant() -> None:
    pipe = Pipe()
    out, end = pipe.receiving(credit=10)
    end.grant(10, drain=True)
    pipe.flow()
    out.send(MESSAGE, tag=b"1")
    pipe.flow()
    end.grant(12)  # up to the 13th message; the peer answers the drain before it reads this
    out.drained()
    pipe.flow()
    assert (end.credit, end.delivery_count, out.delivery_count, out.credit) == (3, 10, 10, 3)
    assert of_kind(pipe.client_events, LinkDrained) == []
    for tag in (b"2", b"3", b"4"):
        out.send(MESSAGE, tag=tag)
    pipe.flow()
    assert (end.credit, out.credit) == (0, 0)


def test_drain_whose_credit_is_used_up_leaves_all_of_a_later_grant() -> None:
    pipe = Pipe()
    out, end = pipe.receiving(credit=2)
    end.grant(2, drain=True)
    pipe.flow()
    out.send(MESSAGE, tag=b"1")
    out.send(MESSAGE, tag=b"2")
    pipe.flow()
    end.grant(5)
    end.grant(5, drain=True)  # a second drain before the answer to the first one
    out.drained()
    pipe.flow()
    assert (end.credit, out.credit) == (5, 5)
    for number in range(5):
        out.send(MESSAGE, tag=bytes([number]))
    out.drained()
    pipe.flow()
    assert (end.credit, end.delivery_count) == (0, 7)
    assert len(of_kind(pipe.client_events, LinkDrained)) == 1


def test_drain_may_return_the_credit_without_using_it_up() -> None:
    peer = Peer()
    link = peer.attached()
    link.grant(5, drain=True)
    peer.answers()
    assert peer.send(Flow(0, 9, 0, 9, 0, 0, 0, drain=True)) == [LinkDrained(link)]
    assert link.credit == 0
    link.grant(2)
    link.grant(10, drain=True)  # what was granted before does not limit it
    for number in range(3):
        peer.transfer(number=number)
    assert peer.send(Flow(3, 9, 0, 9, 0, 3, 7)) == []  # no answer to a drain
    assert link.credit == 7
    assert peer.send(Flow(3, 9, 0, 9, 0, 3, 0, drain=True)) == [LinkDrained(link)]
    assert (link.credit, link.delivery_count) == (0, 3)
    link.grant(10)
    for number in range(3, 13):
        peer.transfer(number=number)
    link.grant(4, drain=True)  # nor do the drains before
    assert peer.send(Flow(13, 9, 0, 9, 0, 13, 0, drain=True)) == [LinkDrained(link)]
    assert (link.credit, link.delivery_count) == (0, 13)


def test_flow_with_echo_is_answered() -> None:
    peer = Peer()
    peer.attached(receives=True)
    peer.attached(handle=1)
    peer.send(Flow(0, 9, 0, 9, echo=True))
    assert [flow.handle for flow in peer.answers()] == [None]
    peer.send(Flow(0, 9, 0, 9, 0, 0, 5, echo=True))
    (flow,) = peer.answers()
    assert (flow.handle, flow.delivery_count, flow.link_credit) == (0, 0, 5)
    peer.send(Flow(0, 9, 0, 9, 1, 0, 5, echo=True))
    (flow,) = peer.answers()
    assert (flow.handle, flow.delivery_count, flow.link_credit) == (1, 0, 0)


def test_flow_of_a_link_always_carries_credit_and_count() -> None:
    peer = Peer()
    peer.send(
        Begin(None, 0, 9, 9), Attach("n", 3, False, source=Source("s"), target=Target("t"), initial_delivery_count=7)
    )
    peer.answers()
    peer.events[-1].link.accept(credit=50)
    _, flow = peer.answers()
    assert (flow.handle, flow.link_credit, flow.delivery_count) == (3, 50, 7)


def test_unsettled_deliveries_bound_the_credit() -> None:
    pipe = Pipe(server=replace(SERVER, max_unsettled=3))
    out, _ = pipe.receiving(credit=100)
    for number in range(3):
        out.send(MESSAGE, tag=bytes([number]))
    assert out.credit == 0
    pipe.flow()
    for received in of_kind(pipe.client_events, DeliveryReceived)[:2]:
        received.delivery.settle(ACCEPTED)
    pipe.flow()
    assert out.credit == 2


def test_tag_beyond_32_bytes_is_refused() -> None:
    pipe = Pipe()
    link, _ = pipe.sending()
    with pytest.raises(InvalidOperationError):
        link.send(MESSAGE, tag=bytes(33))
    link.send(MESSAGE, tag=bytes(32))


# Deliveries in pieces -----------------------------------------------------------------------------------------------


def test_later_transfers_may_repeat_or_omit_fields_of_the_first() -> None:
    peer = Peer()
    peer.attached()
    for number, settled_in in enumerate((None, 0, 1, 2)):  # which of the frames says that it is settled
        flags = [True if place == settled_in else None for place in range(3)]
        omitted: dict[str, Any] = {"delivery_id": None, "delivery_tag": None, "message_format": None}
        assert peer.transfer(number=number, payload=b"ab", more=True, settled=flags[0]) == []
        assert peer.transfer(payload=b"cd", more=True, settled=flags[1], **omitted) == []
        (event,) = peer.transfer(number=number, payload=b"ef", settled=flags[2])
        assert (event.delivery.payload, event.delivery.tag) == (b"abcdef", b"tag")
        assert event.delivery.is_settled == (settled_in is not None)


def test_aborted_delivery_is_forgotten_and_uses_credit() -> None:
    peer = Peer()
    link = peer.attached(credit=10)
    assert peer.transfer(payload=b"ab", more=True) == []
    assert peer.transfer(aborted=True, payload=b"") == []
    assert peer.transfer(number=1, aborted=True, payload=b"") == []
    (event,) = peer.transfer(number=2, payload=b"x")
    assert event.delivery.payload == b"x"
    assert (link.delivery_count, link.credit) == (3, 7)


def test_repeated_delivery_id_is_another_message() -> None:
    peer = Peer()
    peer.attached()
    first, second = peer.transfer(payload=b"1")[0].delivery, peer.transfer(payload=b"2")[0].delivery
    assert (first.payload, second.payload) == (b"1", b"2")
    first.settle(ACCEPTED)
    second.settle(ACCEPTED)
    assert [answer.first for answer in peer.answers()] == [0, 0]
    assert peer.server.sessions[0].links[0].unsettled == {}


@pytest.mark.parametrize(
    ("fields", "condition"),
    [
        ({"delivery_id": None}, "amqp:invalid-field"),
        ({"delivery_tag": None}, "amqp:invalid-field"),
        ({"delivery_tag": bytes(33)}, "amqp:invalid-field"),
        ({"resume": True}, "amqp:not-implemented"),
    ],
)
def test_first_transfer_without_delivery_id_or_tag_detaches_the_link(fields: dict[str, Any], condition: str) -> None:
    peer = Peer()
    link = peer.attached()
    (event,) = peer.transfer(**fields)
    assert isinstance(event, LinkDetached)
    assert event.link is link
    assert event.error is not None
    assert event.error.condition == condition
    assert peer.answers() == [Detach(0, True, event.error)]
    assert peer.transfer() == []
    assert peer.send(Detach(0, True)) == []


def test_interleaved_transfer_of_another_delivery_detaches_the_link() -> None:
    peer = Peer()
    peer.attached()
    peer.transfer(more=True)
    (event,) = peer.transfer(number=1)
    assert event.error.condition == "amqp:not-allowed"


def test_transfer_on_a_link_that_sends_or_is_not_answered_detaches_it() -> None:
    peer = Peer()
    peer.attached(receives=True)
    assert peer.transfer()[0].error.condition == "amqp:not-allowed"
    peer = Peer()
    peer.send(Begin(None, 0, 9, 9), Attach("n", 0, False, source=Source("s"), target=Target("t")))
    assert peer.transfer()[0].error.condition == "amqp:not-allowed"


@pytest.mark.parametrize("settled", [True, False])
@pytest.mark.parametrize("pieces", [[b"x" * 11], [b"x" * 6, b"x" * 6], [b"x" * 11, b"x", b"x" * 50]])
def test_message_beyond_the_limit_is_rejected_and_the_link_stays(pieces: list[bytes], settled: bool) -> None:
    peer = Peer()
    link = peer.attached(max_message_size=10, credit=100)
    for piece in pieces[:-1]:
        assert peer.transfer(payload=piece, more=True, settled=settled) == []
    assert peer.transfer(payload=pieces[-1], settled=settled) == []
    answers = peer.answers()
    if settled:
        assert answers == []
    else:
        (answer,) = answers
        assert (answer.role, answer.first, answer.settled) == (True, 0, True)
        assert answer.state.error.condition == "amqp:link:message-size-exceeded"
    assert peer.transfer(number=1, payload=b"x" * 10)[0].delivery.payload == b"x" * 10
    assert link.is_open


def test_incomplete_messages_of_all_links_share_one_limit() -> None:
    peer = Peer(replace(SERVER, max_partial_bytes=100))
    for handle in range(3):
        peer.attached(handle=handle)
        peer.transfer(handle, number=handle, payload=b"x" * 40, more=True)
    for handle in range(3):
        peer.transfer(handle, number=handle, payload=b"x")
    assert [event.delivery.delivery_id for event in of_kind(peer.events, DeliveryReceived)] == [0, 1]
    (answer,) = peer.answers()
    assert answer.state.error.condition == "amqp:resource-limit-exceeded"
    for handle in range(3):  # all room has been given back
        peer.transfer(handle, number=9, payload=b"x" * 100, more=True)
        peer.send(Detach(handle, True))
    assert peer.server.reserve(100)
    assert not peer.server.reserve(1)


def test_unsettled_deliveries_of_the_peer_are_bounded() -> None:
    peer = Peer(replace(SERVER, max_unsettled=2))
    peer.attached()
    for number in range(3):
        peer.transfer(number=number)
    assert len(of_kind(peer.events, DeliveryReceived)) == 2
    (answer,) = peer.answers()
    assert answer.state.error.condition == "amqp:resource-limit-exceeded"
    peer.transfer(number=3, settled=True)
    assert len(of_kind(peer.events, DeliveryReceived)) == 3


@pytest.mark.parametrize("count", [1, 3])
def test_settled_and_detached_deliveries_make_room_each_time(count: int) -> None:
    peer = Peer(replace(SERVER, max_unsettled=3))
    for turn in range(3):
        link = peer.attached(handle=turn)
        for number in range(6):
            peer.transfer(turn, number + 10 * turn)
            if number % count == count - 1 and number < 3:
                link.settle_many(list(link.unsettled.values()), ACCEPTED, settled=True)
        assert len(of_kind(peer.events, DeliveryReceived)) == 6 * (turn + 1)
        peer.send(Detach(turn, True))  # three of them are unsettled
        peer.answers()


# Dispositions -------------------------------------------------------------------------------------------------------


def test_range_of_a_disposition_settles_all_of_it_on_all_links() -> None:
    peer = Peer()
    links = [peer.attached(receives=True, handle=handle) for handle in range(2)]
    for handle in range(2):
        peer.send(Flow(0, 100, 0, 100, handle, 0, 50))
    deliveries = [links[number % 2].send(MESSAGE, tag=bytes([number])) for number in range(10)]
    assert peer.send(Disposition(True, 2, 5, True, ACCEPTED)) == [
        DispositionReceived(delivery, ACCEPTED, True) for delivery in deliveries[2:6]
    ]
    events = peer.send(Disposition(True, 7, 2**31 - 1, True, ACCEPTED))
    assert {event.delivery.delivery_id for event in events} == {7, 8, 9}
    events = peer.send(Disposition(True, 2**32 - 2, 6, True, ACCEPTED))
    assert {event.delivery.delivery_id for event in events} == {0, 1, 6}
    assert [link.unsettled for link in links] == [{}, {}]
    assert peer.send(Disposition(True, 0, 9, True, ACCEPTED)) == []


def test_deliveries_of_one_link_that_follow_each_other_share_an_event() -> None:
    peer = Peer()
    links = [peer.attached(receives=True, handle=handle) for handle in range(2)]
    for handle in range(2):
        peer.send(Flow(0, 1_000, 0, 1_000, handle, 0, 500))
    sent = [links[number == 3].send(MESSAGE, tag=number.to_bytes(4, "big")) for number in range(MANY_DELIVERIES + 6)]
    assert peer.send(Disposition(True, 0, 4, False, ACCEPTED)) == [
        DispositionsReceived(links[0], sent[:3], ACCEPTED, False),
        DispositionReceived(sent[3], ACCEPTED, False),
        DispositionReceived(sent[4], ACCEPTED, False),
    ]
    assert peer.send(Disposition(True, 5, MANY_DELIVERIES + 5, True, RELEASED))[1:] == [
        DispositionsReceived(links[0], sent[5 : MANY_DELIVERIES + 5], RELEASED, True),
        DispositionReceived(sent[-1], RELEASED, True),
    ]


def test_sender_confirms_deliveries_with_gaps_by_one_disposition_for_each_run() -> None:
    peer = Peer()
    link = peer.attached(receives=True)
    peer.send(Flow(0, 1_000, 0, 1_000, 0, 0, 500))
    sent = [link.send(MESSAGE, tag=bytes([number])) for number in range(6)]
    peer.answers()
    sent[4].settle(RELEASED)
    link.settle_many([sent[number] for number in (5, 0, 1, 4, 3)], ACCEPTED, settled=True)
    answers = [(answer.first, answer.last, answer.state) for answer in peer.answers()]
    assert answers == [(4, None, RELEASED), (0, 1, ACCEPTED), (3, None, ACCEPTED), (5, None, ACCEPTED)]
    assert list(link.unsettled) == [2]


@pytest.mark.parametrize("last", [None, ACCEPTED])
def test_unsettled_outcome_is_reported_once_and_then_its_settlement(last: Accepted | None) -> None:
    peer = Peer()
    link = peer.attached(receives=True)
    peer.send(Flow(0, 100, 0, 100, 0, 0, 50))
    link.send(MESSAGE, tag=b"t")
    assert len(peer.send(Disposition(True, 0, None, False, ACCEPTED))) == 1
    assert peer.send(Disposition(True, 0, None, False, ACCEPTED)) == []
    assert peer.send(Disposition(True, 0, None, False, None)) == []
    assert len(peer.send(Disposition(True, 0, None, True, last))) == 1
    assert not link.unsettled


def test_disposition_of_many_deliveries_is_reported_even_if_unchanged() -> None:
    peer = Peer()
    link = peer.attached(receives=True)
    peer.send(Flow(0, 1_000, 0, 1_000, 0, 0, 500))
    for number in range(MANY_DELIVERIES + 1):
        link.send(MESSAGE, tag=number.to_bytes(4, "big"))
    walked = DispositionWalked(link.session, MANY_DELIVERIES + 1)
    assert len(peer.send(Disposition(True, 0, 2**31 - 2, False, ACCEPTED))) == 3
    assert peer.send(Disposition(True, 0, 2**31 - 2, False, ACCEPTED)) == [walked]
    assert peer.send(Disposition(True, 0, MANY_DELIVERIES - 1, False, ACCEPTED)) == []
    assert peer.send(Disposition(True, 0, 2**31 - 2, False, None)) == []


def test_disposition_that_runs_backwards_ends_the_session() -> None:
    peer = Peer()
    peer.attached()
    detached, ended = peer.send(Disposition(True, 5, 4, True, ACCEPTED))
    assert detached.error == ended.error
    assert ended.error.condition == "amqp:invalid-field"


def test_long_error_of_a_rejection_is_cut_to_the_peers_frames() -> None:
    pipe = Pipe(client=replace(CLIENT, max_frame_size=512))
    link, _ = pipe.sending()
    link.send(MESSAGE, tag=b"t")
    pipe.flow()
    last(pipe.server_events, DeliveryReceived).delivery.settle(
        Rejected(AmqpError("c", "x" * 1_000, {"y": "z" * 1_000}))
    )
    pipe.flow()
    state = last(pipe.client_events, DispositionReceived).state
    assert isinstance(state, Rejected)
    assert state.error is not None
    assert state.error.condition == "c"
    assert (state.error.description or "").startswith("xxx")
    link.send(MESSAGE, tag=b"u")
    pipe.flow()
    delivery = last(pipe.server_events, DeliveryReceived).delivery
    with pytest.raises(EncodeError):
        delivery.settle(Modified(message_annotations={"x": "y" * 1_000}))
    delivery.settle(TransactionalState(b"t", Rejected(AmqpError("c", "x" * 1_000))))
    pipe.flow()
    assert isinstance(last(pipe.client_events, DispositionReceived).state, TransactionalState)


def test_long_error_of_a_detach_end_or_close_is_cut_to_the_peers_frames() -> None:
    pipe = Pipe(client=replace(CLIENT, max_frame_size=512))
    _, end = pipe.sending()
    long = AmqpError("amqp:internal-error", "x" * 1_000)
    ends: dict[type[Any], Callable[[], None]] = {
        LinkDetached: lambda: end.detach(long),
        SessionEnded: lambda: end.session.end(long),
        ConnectionClosed: lambda: pipe.server.close(long, now=NOW),
    }
    for kind, work in ends.items():
        work()
        pipe.flow()
        event: Any = last(pipe.client_events, kind)
        error = event.error
        assert error.condition == "amqp:internal-error"
        assert error.description.startswith("xxx")


@pytest.mark.parametrize("receives", [False, True], ids=["incoming", "outgoing"])
def test_accepting_a_link_whose_attach_is_too_long_for_the_peer_ends_the_session(*, receives: bool) -> None:
    peer = Peer(is_open=False)
    peer.raw(AMQP_HEADER)
    peer.send(Open("peer", max_frame_size=512), Begin(None, 0, 100, 100))
    asked = Attach("x" * 600, 0, receives, source=Source("s"), target=Target("t"), initial_delivery_count=0)
    (requested,) = peer.send(asked)
    peer.send(Flow(0, 100, 0, 100, 0, 0, 50))
    requested.link.accept(**({} if receives else {"credit": 10}))
    detached, ended = peer.raw(b"")
    assert isinstance(detached, LinkDetached)
    assert isinstance(ended, SessionEnded)
    assert detached.error == ended.error
    assert ended.error is not None
    assert ended.error.condition == "amqp:frame-size-too-small"
    assert not peer.server.is_over


# Windows ------------------------------------------------------------------------------------------------------------


def test_frames_beyond_the_peers_window_are_held_in_order() -> None:
    pipe = Pipe(client=replace(CLIENT, incoming_window=4, max_frame_size=512))
    out, _ = pipe.receiving(credit=100)
    for number in range(20):
        out.send(bytes([number]) * 1_000, tag=bytes([number]))
    assert out.session.held_bytes > 15_000
    pipe.flow()
    assert [event.delivery.payload[0] for event in of_kind(pipe.client_events, DeliveryReceived)] == list(range(20))
    assert out.session.held_bytes == 0


def test_answer_to_a_drain_follows_the_transfers_that_are_held() -> None:
    pipe = Pipe(client=replace(CLIENT, incoming_window=4, max_frame_size=512))
    out, end = pipe.receiving(credit=10)
    end.grant(10, drain=True)
    pipe.flow()
    for number in range(7):
        out.send(MESSAGE, tag=bytes([number]))
    out.drained()
    assert out.session.held_bytes
    pipe.flow()
    assert [type(event) for event in pipe.client_events[-8:]] == [*7 * [DeliveryReceived], LinkDrained]
    assert (end.credit, end.delivery_count, out.credit, out.delivery_count) == (0, 10, 0, 10)


def test_answer_to_a_drain_that_waits_is_given_once_and_not_after_another_grant() -> None:
    for grants_again in (True, False):
        peer = Peer()
        link = peer.attached(receives=True)
        peer.send(Flow(0, 1, 0, 9, 0, 0, 5, drain=True))
        for number in range(2):
            link.send(MESSAGE, tag=bytes([number]))
        link.drained()
        if grants_again:
            peer.send(Flow(1, 0, 0, 9, 0, 0, 7))
        peer.answers()
        peer.send(Flow(1, 1, 0, 9))  # the window opens for the other transfer
        drains = [answer.drain for answer in peer.answers() if isinstance(answer, Flow)]
        assert (drains, link.credit) == (([], 5) if grants_again else ([True], 0))
        peer.send(Flow(2, 0, 0, 9))
        link.send(MESSAGE, tag=b"b", needs_credit=False)
        peer.send(Flow(2, 1, 0, 9))  # the window opens again
        assert peer.answers() == [Transfer(0, 2, b"b", 0, False)]
        peer.send(Flow(3, 0, 0, 9, 0, link.delivery_count, 5))
        link.send(MESSAGE, tag=b"c")
        peer.send(Flow(3, 5, 0, 9))
        assert link.credit == 4  # the drain is over


def test_frames_in_flight_are_taken_off_the_window() -> None:
    peer = Peer()
    peer.send(Begin(None, 0, 2, 9))
    link = peer.attached(receives=True)
    peer.send(Flow(0, 2, 0, 9, 0, 0, 50))
    for number in range(5):
        link.send(MESSAGE, tag=bytes([number]))
    assert len(peer.answers()) == 2
    peer.send(Flow(0, 2, 0, 9))  # written before the two transfers arrived
    assert peer.answers() == []
    peer.send(Flow(1, 3, 0, 9))
    assert len(peer.answers()) == 2
    peer.send(Flow(None, 5, 0, 9))
    assert len(peer.answers()) == 1


def test_window_that_never_opens_ends_the_session_before_memory_does() -> None:
    peer = Peer(replace(SERVER, max_held_bytes=5_000))
    peer.send(Begin(None, 0, 0, 0))
    link = peer.attached(receives=True)
    peer.send(Flow(0, 0, 0, 0, 0, 0, 1_000))
    for number in range(5):
        link.send(bytes(1_000), tag=bytes([number]))
    assert not link.is_open
    with pytest.raises(EndpointClosedError):
        link.send(bytes(1_000), tag=b"t")
    assert [type(event) for event in peer.raw(EMPTY_FRAME)] == [LinkDetached, SessionEnded]
    assert link.session.held_bytes == 0


def test_peer_gets_a_new_window_before_the_old_one_is_used_up() -> None:
    pipe = Pipe(
        server=replace(SERVER, incoming_window=10, max_frame_size=512), client=replace(CLIENT, max_frame_size=512)
    )
    link, _ = pipe.sending()
    link.send(bytes(50_000), tag=b"t")
    pipe.flow()
    assert len(last(pipe.server_events, DeliveryReceived).delivery.payload) == 50_000


def test_window_and_first_id_of_the_begin_hold_until_a_flow() -> None:
    peer = Peer()
    peer.send(Begin(None, 2**32 - 1, 2, 100))
    answers = peer.attached(receives=True), peer.attached(handle=1)
    for number in range(3):
        answers[0].send(MESSAGE, tag=bytes([number]), needs_credit=False)
    assert [type(answer) for answer in peer.answers()] == [Transfer, Transfer]
    peer.send(Flow(2, 1, 0, 100))
    assert [type(answer) for answer in peer.answers()] == [Transfer]
    for expected in (0, 1):
        peer.transfer(handle=1, number=expected)
        answers[1].grant(1)
        assert peer.answers()[-1].next_incoming_id == expected


def test_accepted_deliveries_share_a_frame_only_with_their_own_kind() -> None:
    random = Random(1)
    peer = Peer()
    written = [(0, random.random() < 0.5, random.randrange(3)) for _ in range(200)]
    for channel, role, number in written:
        peer.server.write_accepted(channel, role, number)
    read = []
    for each in peer.answers():
        last_id = each.first if each.last is None else each.last
        read += [(0, each.role, number) for number in range(each.first, last_id + 1)]
    assert read == written


def test_outgoing_ids_of_the_peer_are_ignored() -> None:
    peer = Peer()
    link = peer.attached(receives=True)
    peer.send(Flow(None, 100, 4_000_000_000, 0, 0, 0, 5))
    link.send(MESSAGE, tag=b"t")
    assert [type(answer) for answer in peer.answers()] == [Transfer]


def test_delivery_ids_wrap_around() -> None:
    pipe = Pipe()
    link, _ = pipe.sending()
    session: Any = link.session
    session._next_delivery_id = 2**32 - 1
    sent = [link.send(MESSAGE, tag=bytes([number])) for number in range(2)]
    assert [delivery.delivery_id for delivery in sent] == [2**32 - 1, 0]
    pipe.flow()
    received = [event.delivery for event in of_kind(pipe.server_events, DeliveryReceived)]
    pipe.server.write(0, Disposition(True, received[0].delivery_id, received[1].delivery_id, True, ACCEPTED))
    pipe.flow()
    assert last(pipe.client_events, DispositionsReceived).deliveries == sent


# Sessions -----------------------------------------------------------------------------------------------------------


def test_server_answers_on_the_channel_of_the_client() -> None:
    peer = Peer()
    peer.send(Begin(None, 0, 5, 5), channel=7)
    raw = peer.server.bytes_to_send(now=NOW)
    reader = FrameReader(512)
    reader.feed(raw)
    frame = reader.next_frame(0)
    assert frame is not None
    assert frame.channel == 7
    assert frame.performative.remote_channel == 7
    assert frame.performative.incoming_window == SERVER.incoming_window
    assert frame.performative.handle_max == SERVER.handle_max


@pytest.mark.parametrize(("highest", "answers_on"), [(7, 7), (6, 0)])
def test_server_answers_on_a_channel_that_the_client_allows(highest: int, answers_on: int) -> None:
    peer = Peer(is_open=False)
    peer.raw(AMQP_HEADER + encode_frame(0, Open("c", channel_max=highest), 512))
    peer.send(Begin(None, 0, 5, 5), channel=7)
    assert [session.channel for session in peer.server.sessions] == [answers_on]


@pytest.mark.parametrize("offered", [512, 2**20])
def test_server_answers_with_the_smaller_frame_size(offered: int) -> None:
    peer = Peer(is_open=False)
    peer.raw(AMQP_HEADER)
    peer.server.bytes_to_send(now=NOW)
    peer.send(Open("c", max_frame_size=offered))
    (answer,) = peer.answers()
    assert answer.max_frame_size == min(offered, SERVER.max_frame_size)


def test_end_of_a_session_is_reported_to_its_links_first() -> None:
    pipe = Pipe()
    link, end = pipe.sending()
    session: Any = link.session
    session.end(ERROR)
    pipe.flow()
    assert pipe.server_events[-2:] == [LinkDetached(end, ERROR, True), SessionEnded(end.session, ERROR)]
    assert pipe.client_events[-2:] == [last(pipe.client_events, CreditGranted), EndAnswered(session)]
    assert pipe.server.sessions == pipe.client.sessions == []
    with pytest.raises(EndpointClosedError):
        session.attach_sender("x", target=Target("t"))


def test_frames_after_the_end_are_ignored_as_the_sdk_sends_them() -> None:
    peer = Peer()
    for _ in range(2):  # on the same channel
        peer.attached()
        peer.send(End())
        peer.answers()
        event_count = len(peer.events)
        peer.send(Detach(0, False), Detach(4, False), Flow(0, 1, 0, 1), End())
        peer.transfer()
        assert peer.answers() == []
        assert len(peer.events) == event_count
    peer.send(Close())
    assert peer.answers() == [Close()]
    assert peer.events[-1] == ConnectionClosed(None, True)


def test_frames_after_our_end_are_ignored_until_the_peers() -> None:
    peer = Peer()
    peer.attached()
    session = peer.server.sessions[0]
    session.end(ERROR)
    session.end()
    assert peer.answers() == [End(ERROR)]
    assert peer.transfer() == []
    assert peer.send(Attach("n", 0, False), Disposition(True, 0), End()) == [EndAnswered(session)]
    assert peer.answers() == []
    assert peer.server.sessions == []
    assert [type(event) for event in peer.send(Begin(None, 0, 1, 1))] == [SessionBegun]


@pytest.mark.parametrize(
    ("performatives", "condition"),
    [
        ([Attach("a", 1, False), Attach("b", 1, False)], "amqp:session:handle-in-use"),
        ([Transfer(9, 1, b"t")], "amqp:session:unattached-handle"),
    ],
)
def test_session_error_ends_only_the_session(performatives: list[Any], condition: str) -> None:
    peer = Peer()
    peer.send(Begin(None, 0, 1, 1), channel=1)
    peer.send(Begin(None, 0, 1, 1))
    peer.send(*performatives)
    ended = last(peer.events, SessionEnded)
    assert ended.error is not None
    assert ended.error.condition == condition
    assert peer.answers()[-1] == End(ended.error)
    assert [session.channel for session in peer.server.sessions if session.is_open] == [1]


@pytest.mark.parametrize("performative", [Detach(9, True), Flow(0, 1, 0, 1, 9, 0, 5)])
def test_detach_and_flow_of_a_free_handle_are_ignored(performative: Any) -> None:
    peer = Peer()
    peer.send(Begin(None, 0, 1, 1))
    peer.answers()
    assert peer.send(performative) == []
    assert peer.answers() == []


@pytest.mark.parametrize(
    ("channel", "performative", "condition"),
    [
        (3, Attach("n", 0, False), "amqp:not-allowed"),
        (3, End(), "amqp:not-allowed"),
        (0, Begin(None, 0, 1, 1), "amqp:not-allowed"),
        (9, Begin(5, 0, 1, 1), "amqp:not-allowed"),
        (256, Begin(None, 0, 1, 1), "amqp:connection:framing-error"),
        (0, Open("again"), "amqp:not-allowed"),
    ],
)
def test_connection_error_closes_the_connection(channel: int, performative: Any, condition: str) -> None:
    peer = Peer()
    link = peer.attached()
    peer.send(performative, channel=channel)
    error = peer.closed()
    assert error is not None
    assert error.condition == condition
    assert [type(event) for event in peer.events[-3:]] == [LinkDetached, SessionEnded, ConnectionClosed]
    assert not link.is_open


def test_links_of_all_sessions_are_bounded() -> None:
    peer = Peer(replace(SERVER, max_links=10))
    for channel in range(2):
        peer.send(Begin(None, 0, 1, 1), channel=channel)
        peer.send(*[Attach(f"n{handle}", handle, False) for handle in range(8)], channel=channel)
    (ended,) = of_kind(peer.events, SessionEnded)
    assert ended.error is not None
    assert ended.error.condition == "amqp:resource-limit-exceeded"
    assert len(of_kind(peer.events, AttachRequested)) == 10
    assert len(of_kind(peer.events, LinkDetached)) == 2
    peer.send(*[Attach(f"m{handle}", handle, False) for handle in range(8, 10)], channel=0)
    assert len(peer.server.sessions[0].links) == 10


def test_limits_hold_for_what_comes_after_they_are_set() -> None:
    peer = Peer()
    limits = peer.server.limits
    peer.attached()
    peer.send(Begin(None, 0, 100, 100), channel=1)
    peer.server.limits = limits._replace(max_sessions=2, max_links=1)
    assert len(peer.transfer()) == 1  # what is held stays
    attach = Attach("m", 1, False, properties={"x": "y" * 1_000})
    assert [type(event) for event in peer.send(attach, channel=1)] == [SessionEnded]
    peer.send(End(), channel=1)
    peer.send(Begin(None, 0, 100, 100), channel=1)  # its place is free again
    peer.server.limits = limits._replace(max_links=2)
    assert [type(event) for event in peer.send(attach, channel=1)] == [AttachRequested]
    for _ in range(3):  # also the place of each link that both sides have detached
        peer.send(Detach(1, True), channel=1)
        assert [type(event) for event in peer.send(attach, channel=1)] == [AttachRequested]
    peer.answers()
    peer.server.limits = limits._replace(max_sessions=2)
    peer.send(Begin(None, 0, 100, 100), channel=2)
    error = peer.closed()
    assert error is not None
    assert error.condition == "amqp:resource-limit-exceeded"


@pytest.mark.parametrize("is_frame", [True, False])
def test_lower_limits_of_bytes_close_the_connection(is_frame: bool) -> None:
    peer = Peer()
    peer.attached()
    large = Attach("m", 1, False, properties={"x": "y" * 1_000})
    for _ in range(3):
        peer.send(large, Detach(1, True))  # what is given back does not count
    limit = {"max_frame_bytes": 512} if is_frame else {"max_retained_bytes": 1_000}
    peer.server.limits = peer.server.limits._replace(**limit)
    peer.transfer()
    assert not peer.server.is_over
    peer.send(large)
    assert peer.closed() is not None


def test_what_is_retained_is_given_back_with_its_link_and_session() -> None:
    attach = Attach("m", 0, False, properties={"x": "y" * 1_000})
    for end in ([Detach(0, True)], [End(), Begin(None, 0, 100, 100)]):
        peer = Peer(replace(SERVER, max_retained_bytes=10_000))
        peer.send(Begin(None, 0, 100, 100))
        for _ in range(20):
            peer.send(attach, *end)
        assert not peer.server.is_over
        for handle in range(1, 10):
            peer.send(attach._replace(name=f"n{handle}", handle=handle))
        assert peer.closed() is not None  # all of them are too much


def test_probe_of_a_session_is_answered_each_time() -> None:
    pipe = Pipe()
    session = pipe.session()
    for _ in range(2):
        session.probe()
        sent = pipe.client.bytes_to_send(now=NOW)
        pipe.server.receive_bytes(sent, now=NOW)
        assert pipe.server.next_event() is None
        assert pipe.server.bytes_to_send(now=NOW)
    assert session.is_open


def test_ten_thousand_attaches_are_answered_within_bounds() -> None:
    peer = Peer()
    for handle in range(10_000):
        if peer.server.is_over:
            break
        if not [session for session in peer.server.sessions if session.is_open]:
            peer.send(End(), Begin(None, 0, 1, 1))
        peer.send(Attach("n", handle % 5_000, False, target=Target("t")))
        peer.server.bytes_to_send(now=NOW)
    assert sum(len(session.links) for session in peer.server.sessions) <= SERVER.max_links


def test_name_that_does_not_fit_the_peers_frames_ends_the_session() -> None:
    peer = Peer(is_open=False)
    peer.raw(
        AMQP_HEADER + encode_frame(0, Open("c", max_frame_size=512), 512) + encode_frame(0, Begin(None, 0, 1, 1), 512)
    )
    peer.server.bytes_to_send(now=NOW)
    peer.send(Attach("n" * 600, 0, False, target=Target("t")))
    peer.events[-1].link.refuse(ERROR)
    assert [type(event) for event in peer.raw(EMPTY_FRAME)] == [SessionEnded]
    (end,) = peer.answers()
    assert end.error.condition == "amqp:frame-size-too-small"


def test_open_that_does_not_fit_the_peers_frames_closes_the_connection() -> None:
    peer = Peer(replace(SERVER, properties={"product": "x" * 600}), is_open=False)
    peer.raw(AMQP_HEADER + encode_frame(0, Open("c", max_frame_size=512), 512))
    event = last(peer.events, ConnectionClosed)
    assert event.error is not None
    assert event.error.condition == "amqp:frame-size-too-small"


def test_sessions_of_a_client_are_bounded_by_both_sides() -> None:
    pipe = Pipe(server=replace(SERVER, channel_max=2))
    pipe.flow()
    sessions = [pipe.client.begin() for _ in range(3)]
    assert [session.channel for session in sessions] == [0, 1, 2]
    with pytest.raises(EndpointClosedError):
        pipe.client.begin()
    pipe.flow()
    assert len(of_kind(pipe.client_events, SessionBegun)) == 3


def test_handles_of_a_client_are_bounded_by_both_sides() -> None:
    pipe = Pipe(server=replace(SERVER, handle_max=1))
    session = pipe.session()
    for number in range(2):
        assert session.has_room
        session.attach_sender(f"n{number}", target=Target("t"))
    assert not session.has_room
    with pytest.raises(EndpointClosedError):
        session.attach_sender("n2", target=Target("t"))


def test_attach_that_cannot_be_encoded_changes_nothing() -> None:
    pipe = Pipe()
    session = pipe.session()
    with pytest.raises(EncodeError):
        session.attach_sender("n", target=Target("t"), properties={"x": object()})
    assert session.links == []
    assert session.attach_sender("n", target=Target("t")).handle == 0


# Closing and time ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [None, ERROR])
def test_close_is_answered_and_reported_to_both(error: AmqpError | None) -> None:
    pipe = Pipe()
    link, end = pipe.sending()
    pipe.client.close(error, now=NOW)
    assert not link.is_open
    pipe.flow()
    assert pipe.server_events[-1] == ConnectionClosed(error, True)
    assert pipe.client_events[-1] == ConnectionClosed(None, False)
    assert [type(event) for event in pipe.server_events[-3:-1]] == [LinkDetached, SessionEnded]
    assert pipe.client.is_over
    assert pipe.server.is_over
    pipe.client.close(now=NOW)
    pipe.server.close(now=NOW)
    assert pipe.client.bytes_to_send(now=NOW) == b""
    assert not end.is_open


def test_close_by_the_server_of_a_connection_just_opened() -> None:
    pipe = Pipe()
    pipe.flow()
    pipe.server.close(AmqpError("amqp:not-found", "there is no namespace contoso"), now=NOW)
    pipe.flow()
    assert pipe.client_events[-1] == ConnectionClosed(
        AmqpError("amqp:not-found", "there is no namespace contoso"), True
    )


def test_close_before_the_open_just_ends() -> None:
    server = Connection.server(SERVER, now=NOW)
    server.close(now=NOW)
    assert server.is_over
    assert server.next_event() == ConnectionClosed(None, False)


def test_end_of_the_socket_ends_sessions_and_links() -> None:
    pipe = Pipe()
    link, end = pipe.sending()
    pipe.server.receive_eof()
    pipe.server.receive_eof()
    events = []
    while (event := pipe.server.next_event()) is not None:
        events.append(event)
    assert [type(event) for event in events] == [LinkDetached, SessionEnded, ConnectionClosed]
    assert events[-1].by_peer
    end.detach()
    link.send(MESSAGE, tag=b"t")
    assert pipe.server.bytes_to_send(now=NOW) == b""


def test_frames_after_our_close_are_ignored_until_the_peers() -> None:
    peer = Peer()
    peer.attached()
    peer.server.close(ERROR, now=NOW)
    assert [type(answer) for answer in peer.answers()] == [End, Close]
    assert peer.transfer() == []
    assert peer.send(Begin(None, 0, 1, 1), channel=9) == []
    assert peer.send(Close()) == [ConnectionClosed(None, False)]


def test_silent_server_is_dropped_after_twice_the_timeout() -> None:
    pipe = Pipe(client=replace(CLIENT, idle_timeout_s=30.0))
    pipe.session()
    pipe.client.pass_time(now=NOW + 59.9)
    assert not pipe.client.is_over
    pipe.client.begin()
    assert pipe.client.bytes_to_send(now=NOW + 59.9), "what it sends itself proves nothing"
    pipe.client.pass_time(now=NOW + 60.0)
    assert pipe.client.is_over


def test_silent_client_is_dropped_after_the_timeout() -> None:
    peer = Peer(replace(SERVER, idle_timeout_s=60.0))
    assert peer.server.next_deadline() == NOW + 60
    peer.server.pass_time(now=NOW + 59)
    assert not peer.server.is_over
    peer.server.receive_bytes(EMPTY_FRAME, now=NOW + 59)
    assert peer.server.next_deadline() == NOW + 119
    peer.server.pass_time(now=NOW + 119)
    assert peer.server.is_over
    assert peer.answers()[-1].error.condition == "amqp:connection:forced"
    assert peer.server.next_deadline() is None
    peer.server.pass_time(now=NOW + 500)


def test_heartbeat_is_sent_within_half_the_timeout_of_the_peer() -> None:
    peer = Peer(replace(SERVER, idle_timeout_s=None), is_open=False)
    peer.raw(AMQP_HEADER + encode_frame(0, Open("c", idle_time_out=10_000), 512))
    assert peer.server.bytes_to_send(now=NOW) != b""
    assert peer.server.next_deadline() == NOW + 5
    peer.server.pass_time(now=NOW + 4.9)
    assert peer.server.bytes_to_send(now=NOW + 4.9) == b""
    peer.server.pass_time(now=NOW + 5)
    assert peer.server.bytes_to_send(now=NOW + 5) == EMPTY_FRAME
    assert peer.server.next_deadline() == NOW + 10


def test_output_that_waits_for_the_socket_postpones_the_heartbeat() -> None:
    peer = Peer(replace(SERVER, idle_timeout_s=None), is_open=False)
    peer.raw(AMQP_HEADER + encode_frame(0, Open("c", idle_time_out=10_000), 512))
    peer.server.pass_time(now=NOW + 5)
    assert peer.server.next_deadline() == NOW + 10
    assert EMPTY_FRAME not in peer.server.bytes_to_send(now=NOW + 6)
    assert peer.server.next_deadline() == NOW + 11


def test_peer_without_timeouts_needs_no_timer() -> None:
    peer = Peer(replace(SERVER, idle_timeout_s=None))
    assert peer.server.next_deadline() is None


@pytest.mark.parametrize("sent", [b"", SASL_HEADER, AMQP_HEADER, AMQP_HEADER + b"\x00\x00"])
def test_half_open_connection_is_dropped(sent: bytes) -> None:
    peer = Peer(is_open=False)
    peer.raw(sent)
    assert peer.server.next_deadline() == NOW + 30
    peer.server.pass_time(now=NOW + 29)
    assert not peer.server.is_over
    peer.server.pass_time(now=NOW + 30)
    assert peer.server.is_over


def test_unanswered_close_times_out() -> None:
    peer = Peer()
    peer.server.close(now=NOW + 5)
    assert peer.server.next_deadline() == NOW + 35
    peer.server.pass_time(now=NOW + 35)
    assert peer.server.is_over


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_frame_size": 511},
        {"channel_max": 65_536},
        {"max_links": 0},
        {"idle_timeout_s": 0.0},
        {"handshake_timeout_s": 0.0},
        {"incoming_window": 0},
    ],
)
def test_options_out_of_range_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidOperationError):
        ConnectionOptions(container_id="x", **wrong)


def test_no_repr_shows_a_body() -> None:
    pipe = Pipe()
    link, end = pipe.sending()
    link.send(b"\x00\x53\x75\xa0\x06secret", tag=b"t")
    pipe.flow()
    shown = repr(
        [pipe.server_events, pipe.client_events, pipe.server, pipe.client, link, end, link.session, link.unsettled]
    )
    assert "secret" not in shown


def test_frames_of_a_large_delivery_may_be_written_by_hand() -> None:
    peer = Peer()
    peer.attached()
    frames = b"".join(write_transfers(0, 0, 5, b"t", 0, bytes(9_000), settled=False, state=None, max_frame_size=512))
    (event,) = peer.raw(frames)
    assert len(event.delivery.payload) == 9_000


@pytest.mark.parametrize("count", [1, 3])
def test_a_large_message_goes_on_when_the_window_opens_and_the_output_is_limited(count: int) -> None:
    limited = ConnectionOptions(container_id="client", max_output_bytes=4096, max_frame_size=512)
    pipe = Pipe(
        server=ConnectionOptions(container_id="server", max_frame_size=512, incoming_window=100), client=limited
    )
    link, _ = pipe.sending()
    for number in range(count):
        link.send(b"x" * 70_000, tag=bytes([number]))  # about 150 frames, of which one write takes 8
    arrived = []
    for _ in range(20):
        output = b"".join(iter(lambda: pipe.client.bytes_to_send(now=NOW), b""))  # until the window is used up
        pipe.server.receive_bytes(output, now=NOW)
        arrived += of_kind(list(iter(pipe.server.next_event, None)), DeliveryReceived)
        pipe.client.receive_bytes(pipe.server.bytes_to_send(now=NOW), now=NOW)
        assert not of_kind(list(iter(pipe.client.next_event, None)), SessionEnded)
    assert link.session.held_bytes == 0
    assert [len(event.delivery.payload) for event in arrived] == [70_000] * count


def test_sessions_take_turns_where_the_output_is_limited() -> None:
    limited = ConnectionOptions(container_id="client", max_output_bytes=4096, max_frame_size=512)
    server = ConnectionOptions(container_id="server", max_frame_size=512, incoming_window=1000)
    pipe = Pipe(server=server, client=limited)
    large, _ = pipe.sending()
    small = pipe.session()
    link = small.attach_sender("t", target=Target(address="orders"))
    pipe.flow()
    end = last(pipe.server_events, AttachRequested).link
    assert isinstance(end, IncomingLink)
    end.accept(credit=10)
    pipe.flow()
    large.send(b"x" * 100_000, tag=b"1")
    link.send(b"y" * 2000, tag=b"2")
    pieces = []
    while piece := pipe.client.bytes_to_send(now=NOW):
        pieces.append(piece)
    assert max(map(len, pieces)) < 4096 + 512
    assert len(pieces) > 20
    assert any(b"y" * 100 in piece for piece in pieces[:3])
    assert large.session.held_bytes == link.session.held_bytes == 0
    opened = [event for event in iter(pipe.client.next_event, None) if isinstance(event, WindowOpened)]
    assert [event.session for event in opened] == [small, large.session]


def test_handle_above_the_maximum_ends_the_session() -> None:
    peer = Peer()
    peer.send(Begin(None, 0, 9, 9))
    peer.answers()
    (ended,) = peer.send(Attach("n", 5_000, False))
    assert isinstance(ended, SessionEnded)
    assert peer.server.sessions[0].links == []
    (answer,) = peer.answers()
    assert answer.error.condition == "amqp:resource-limit-exceeded"
    assert not peer.server.is_over
