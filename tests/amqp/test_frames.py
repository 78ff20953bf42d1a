"""Frames and performatives: `amqp.frames`, `fields`, `performatives`, `states`, `transfers`."""

from __future__ import annotations

import struct
from itertools import product
from operator import eq, ne
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbclient.amqp.encode import encode_value
from sbclient.amqp.errors import AmqpError, EncodeError, FrameTooLargeError, WireError
from sbclient.amqp.fields import LAYOUTS, STRING, decode_composite, decode_fields, define, encode_composite
from sbclient.amqp.frames import EMPTY_FRAME, Frame, FrameReader, encode_frame
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
    SaslMechanisms,
    SaslOutcome,
    Source,
    Target,
    Transfer,
)
from sbclient.amqp.states import (
    ACCEPTED,
    RELEASED,
    Accepted,
    Declare,
    Declared,
    Discharge,
    Modified,
    Received,
    Rejected,
    Released,
    TransactionalState,
    is_terminal,
)
from sbclient.amqp.transfers import (
    read_disposition,
    read_transfer,
    write_disposition,
    write_link_flow,
    write_transfers,
)

ERROR = AmqpError("amqp:not-found", "there is no q", {"a": 1})
STATES: list[Any] = [
    None,
    ACCEPTED,
    RELEASED,
    Rejected(),
    Rejected(ERROR),
    Modified(),
    Modified(True, False, {"x": 1}),
    Received(1, 2),
    Declared(b"txn"),
    TransactionalState(b"txn"),
    TransactionalState(b"txn", ACCEPTED),
]
COMPOSITES: list[Any] = [
    *STATES[1:],
    ERROR,
    AmqpError("c"),
    Declare(),
    Discharge(b"t", True),
    Source("q", filter={"f": "s"}, outcomes=("amqp:accepted:list",), default_outcome=RELEASED, capabilities=("a", "b")),
    Source(),
    Target("q", dynamic_node_properties={"x": None}),
    Coordinator(("amqp:local-transactions",)),
    Open("id", "host", 1024, 7, 60_000, ("de",), ("en",), ("o",), ("d",), {"p": 1}),
    Open("id"),
    Begin(None, 0, 1, 2),
    Begin(3, 2**32 - 1, 1, 2, 255, ("o",), ("d",), {"p": 1}),
    Attach("n", 0, True, 1, 1, Source("s"), Target("t"), {b"tag": ACCEPTED}, True, 5, 6, ("o",), ("d",), {"p": 1}),
    Attach("n", 0, False, target=Coordinator()),
    Flow(None, 1, 2, 3),
    Flow(1, 2, 3, 4, 5, 6, 7, 8, True, True, {"p": 1}),
    Transfer(0),
    Transfer(300, 70_000, b"tag", 0x80013700, True, True, 1, TransactionalState(b"t"), True, True, True),
    Disposition(True, 1),
    Disposition(False, 300, 70_000, True, Rejected(ERROR), True),
    Detach(5, True, ERROR),
    End(),
    Close(AmqpError("c")),
    SaslMechanisms(("ANONYMOUS",)),
    SaslInit("PLAIN", b"\0a\0b", "host"),
    SaslOutcome(0),
]


@pytest.mark.parametrize("value", COMPOSITES, ids=lambda value: repr(value)[:40])
def test_composite_is_decoded_as_it_was_encoded(value: Any) -> None:
    if isinstance(value, Attach) and value.unsettled:
        value = value._replace(unsettled={b"tag": None})
    encoded = encode_composite(value)
    decoded, end = decode_composite(encoded, 0)
    assert (decoded, end) == (value, len(encoded))
    assert type(decoded) is type(value)


@pytest.mark.parametrize("value", COMPOSITES, ids=lambda value: repr(value)[:40])
def test_composite_is_read_with_other_descriptors_and_widths(value: Any) -> None:
    if isinstance(value, Attach) and value.unsettled:
        value = value._replace(unsettled=None)
    encoded = encode_composite(value)
    layout = LAYOUTS[type(value)]
    for descriptor in (b"\x80" + layout.code.to_bytes(8, "big"), encode_value(layout.symbol)):
        assert decode_composite(b"\x00" + descriptor + encoded[3:], 0)[0] == value
    if encoded[3] == 0xC0:
        size, count = encoded[4] - 1, encoded[5]
        wide = b"\x00\x53" + encoded[2:3] + b"\xd0" + struct.pack(">II", size + 4, count) + encoded[6:]
        assert decode_composite(wide, 0)[0] == value


def test_error_always_has_three_fields() -> None:
    assert encode_composite(AmqpError("c")).hex() == "00531dc00603a301634040"
    assert encode_composite(Rejected(AmqpError("c"))).hex() == "005325c00c01" + "00531dc00603a301634040"


def test_trailing_nulls_of_all_others_are_left_out() -> None:
    assert encode_composite(End()).hex() == "00531745"
    assert encode_composite(Detach(1)).hex() == "005316c00402520142"


def test_absent_fields_have_the_defaults_of_the_specification() -> None:
    peer = decode_composite(b"\x00\x53\x10\xc0\x04\x01\xa1\x01x", 0)[0]
    assert (peer.max_frame_size, peer.channel_max, peer.idle_time_out) == (2**32 - 1, 65_535, None)
    attach = decode_composite(b"\x00\x53\x12\xc0\x09\x06\xa1\x01x\x43\x41\x40\x40\x40", 0)[0]
    assert (attach.snd_settle_mode, attach.rcv_settle_mode, attach.source) == (2, 0, None)


def test_symbols_are_a_single_symbol_an_array_or_null() -> None:
    assert decode_composite(b"\x00\x53\x40\xc0\x0c\x01\xa3\x09ANONYMOUS", 0)[0] == SaslMechanisms(("ANONYMOUS",))
    assert encode_composite(Coordinator(())) == b"\x00\x53\x30\xc0\x02\x01\x40"


WRONG: list[tuple[str, bytes, str]] = [
    ("not described", b"\x40", "amqp:decode-error"),
    ("nothing", b"", "amqp:decode-error"),
    ("unknown descriptor", b"\x00\x53\xff\x45", "amqp:decode-error"),
    ("descriptor of another type", b"\x00\x45\x45", "amqp:decode-error"),
    ("unknown symbol", b"\x00\xa3\x01x\x45", "amqp:decode-error"),
    ("no list", b"\x00\x53\x17\xc1\x01\x00", "amqp:decode-error"),
    ("nothing behind the descriptor", b"\x00\x53\x17", "amqp:decode-error"),
    ("too many fields", b"\x00\x53\x17\xc0\x03\x02\x40\x40", "amqp:decode-error"),
    ("size too small", b"\x00\x53\x17\xc0\x01\x01\x40", "amqp:decode-error"),
    ("size too large", b"\x00\x53\x17\xc0\x09\x01\x40", "amqp:decode-error"),
    ("mandatory field absent", b"\x00\x53\x10\x45", "amqp:invalid-field"),
    ("mandatory field null", b"\x00\x53\x10\xc0\x02\x01\x40", "amqp:invalid-field"),
    ("uint where a string belongs", b"\x00\x53\x10\xc0\x02\x01\x43", "amqp:invalid-field"),
    ("ulong where a uint belongs", b"\x00\x53\x16\xc0\x02\x01\x44", "amqp:invalid-field"),
    (
        "source where a target belongs",
        encode_composite(Attach("n", 0, True, target=Target()))[:-8] + b"",
        "amqp:decode-error",
    ),
    ("accepted where an error belongs", b"\x00\x53\x17\xc0\x05\x01\x00\x53\x24\x45", "amqp:invalid-field"),
    (
        "field map with numbers for keys",
        b"\x00\x53\x27\xc0\x09\x03\x40\x40\xc1\x04\x02\x54\x01\x40",
        "amqp:invalid-field",
    ),
    ("symbols that are numbers", b"\x00\x53\x40\xc0\x06\x01\xe0\x03\x01\x54\x01", "amqp:invalid-field"),
    ("string not UTF-8", b"\x00\x53\x10\xc0\x04\x01\xa1\x01\xff", "amqp:decode-error"),
]


@pytest.mark.parametrize(("raw", "condition"), [row[1:] for row in WRONG], ids=[row[0] for row in WRONG])
def test_wrong_composite_is_a_wire_error(raw: bytes, condition: str) -> None:
    with pytest.raises(WireError) as caught:
        decode_composite(raw, 0)
    assert caught.value.error.condition == condition


@pytest.mark.parametrize(
    "value",
    [Open(5), Attach("n", 0, True, source=Target()), Detach(-1), Begin(0, 2**32, 0, 0), Disposition(True, 0, state=5)],  # type: ignore[arg-type]  # wrong on purpose
)
def test_wrong_value_is_an_encode_error(value: Any) -> None:
    with pytest.raises(EncodeError):
        encode_composite(value)


def test_layout_with_more_types_than_fields_is_rejected() -> None:
    with pytest.raises(ValueError, match="longer"):
        define(End, 0x17, "end", STRING, STRING)


def test_states_of_different_kinds_are_not_equal() -> None:
    outcomes: list[Any] = [Accepted(), Released(), Rejected(), Modified(), Declared(b"t")]
    states = [*outcomes, Received(), *(TransactionalState(b"t", outcome) for outcome in outcomes)]
    for first, second in product(range(len(states)), repeat=2):
        assert eq(states[first], states[second]) is (first == second)
        assert ne(states[first], states[second]) is (first != second)
    assert len(set(states)) == len(states)


def test_terminal_states_have_an_outcome() -> None:
    assert [is_terminal(state) for state in STATES] == [False, *[True] * 6, False, True, False, True]
    assert Accepted() == ACCEPTED
    assert Released() == RELEASED


@given(
    st.integers(0, 300),
    st.one_of(st.none(), st.integers(0, 2**32 - 1)),
    st.one_of(st.none(), st.binary(max_size=32)),
    st.one_of(st.none(), st.integers(0, 2**32 - 1)),
    st.one_of(st.none(), st.booleans()),
    st.booleans(),
    st.sampled_from(STATES),
    st.booleans(),
)
def test_fast_reader_of_transfers_agrees_with_the_general_one(
    handle: int,
    number: int | None,
    tag: bytes | None,
    form: int | None,
    settled: bool | None,
    more: bool,
    state: Any,
    aborted: bool,
) -> None:
    encoded = (
        encode_composite(Transfer(handle, number, tag, form, settled, more, None, state, False, aborted)) + b"payload"
    )
    general = Transfer._make(decode_fields(LAYOUTS[Transfer], encoded, 3)[0])
    for _ in range(2):
        transfer, end = read_transfer(encoded, 3)
        assert (transfer, encoded[end:]) == (general, b"payload")


@given(
    st.booleans(),
    st.integers(0, 2**32 - 1),
    st.one_of(st.none(), st.integers(0, 2**32 - 1)),
    st.booleans(),
    st.sampled_from(STATES),
)
def test_fast_reader_of_dispositions_agrees_with_the_general_one(
    role: bool, first: int, end: int | None, settled: bool, state: Any
) -> None:
    written = write_disposition(3, role, first, end, settled=settled, state=state)
    general = encode_frame(3, Disposition(role, first, end, settled, state), 65_536)
    read = []
    for frame in (written, general, written, general):
        reader = FrameReader(65_536)
        reader.feed(frame)
        read.append(reader.next_frame(0))
    assert read == [Frame(3, Disposition(role, first, end, settled, state), b"")] * 4


@given(st.lists(st.integers(0, 2**32 - 1), min_size=7, max_size=7), st.booleans(), st.booleans())
def test_flow_of_a_link_reads_as_it_was_written(state: list[int], drain: bool, echo: bool) -> None:
    flow = Flow._make([*state, None, drain, echo, None])
    reader = FrameReader(65_536)
    reader.feed(write_link_flow(3, flow))
    assert reader.next_frame(0) == Frame(3, flow, b"")


def test_cached_bytes_are_never_mutable() -> None:
    state = Modified(True, True, {"a": 1})
    transfer = encode_composite(Transfer(0, 1, b"t", 0, False, False, None, state))
    disposition = encode_composite(Disposition(True, 1, None, True, state))
    for read, encoded in ((read_transfer, transfer), (read_disposition, disposition)):
        first: Any = read(encoded, 3)[0]
        second: Any = read(encoded, 3)[0]
        assert first == second
        assert first.state.message_annotations is not second.state.message_annotations


@given(st.binary(max_size=40))
def test_fast_readers_agree_with_the_general_one_about_any_bytes(raw: bytes) -> None:
    for kind in (Transfer, Disposition):
        encoded = b"\xc0" + bytes((len(raw) + 1, 5)) + raw
        for _ in range(2):
            assert found_by(kind, encoded, fast=True) == found_by(kind, encoded, fast=False)


def test_fast_readers_agree_with_the_general_one_about_each_form_of_each_field() -> None:
    """What is remembered of one frame decides nothing about another one that ends with the same bytes."""
    forms = (b"\x52\x05", b"\x43", b"\x70\x00\x00\x01\x00", b"\x40", b"\x41")
    ends = (b"", b"\x43", b"\x43\x42", b"\x43\x41\x42", b"\x42", b"\x41", b"\x41\x00\x53\x24\x45")
    heads = {
        Transfer: [b"".join(each) for each in product(forms, forms, (b"\xa0\x01t", b"\x40"))],
        Disposition: [b"".join(each) for each in product((b"\x41", b"\x42", b"\x40"), forms, forms)],
    }
    for _, (kind, starts), end, count in product(range(2), heads.items(), ends, range(2, 7)):
        for fields in [start + end for start in starts]:
            encoded = b"\xc0" + bytes((len(fields) + 1, count)) + fields
            assert found_by(kind, encoded, fast=True) == found_by(kind, encoded, fast=False), encoded


def found_by(kind: Any, encoded: bytes, *, fast: bool) -> Any:
    try:
        if fast:
            return {Transfer: read_transfer, Disposition: read_disposition}[kind](encoded, 0)[0]
        return kind._make(decode_fields(LAYOUTS[kind], encoded, 0)[0])
    except WireError as error:
        return error.error.condition


@pytest.mark.parametrize("size", [0, 1, 450, 470, 480, 1_000, 10_000])
@pytest.mark.parametrize("state", [None, TransactionalState(b"txn")])
def test_transfer_is_cut_into_frames_of_the_peers_size(size: int, state: Any) -> None:
    payload = bytes(number % 251 for number in range(size))
    frames = write_transfers(7, 3, 9, b"t" * 32, 5, payload, settled=False, state=state, max_frame_size=512)
    reader = FrameReader(512)
    reader.feed(b"".join(frames))
    read = []
    while (frame := reader.next_frame(0)) is not None:
        read.append(frame)
    assert b"".join(frame.payload for frame in read) == payload
    assert [frame.performative.more for frame in read] == [True] * (len(read) - 1) + [False]
    assert read[-1].performative.state == state
    assert all((frame.channel, frame.performative[:5]) == (7, (3, 9, b"t" * 32, 5, False)) for frame in read)


def test_transfer_without_room_for_payload_is_an_encode_error() -> None:
    with pytest.raises(EncodeError):
        list(write_transfers(0, 0, 0, b"t", 0, b"x" * 100, settled=False, state=None, max_frame_size=20))


def test_frames_are_found_in_chunks_of_any_size() -> None:
    frames = [
        encode_frame(1, Open("x" * 200), 65_536),
        EMPTY_FRAME,
        *write_transfers(2, 3, 9, b"t", 0, b"x" * 3_000, settled=False, state=None, max_frame_size=1_000),
        encode_frame(65_535, Close(ERROR), 65_536),
    ]
    stream = b"AMQP\x00\x01\x00\x00" + b"".join(frames)
    expected: list[Any] | None = None
    for size in (1, 2, 3, 7, 8, 9, 100, 999, len(stream)):
        reader = FrameReader(1_000)
        read: list[Any] = []
        for start in range(0, len(stream), size):
            reader.feed(stream[start : start + size])
            if not read and (header := reader.next_header()) is not None:
                read.append(header)
            while read and (frame := reader.next_frame(0)) is not None:
                read.append(frame)
        assert reader.buffered_bytes == 0
        expected = expected or read
        assert read == expected
    assert expected is not None
    assert len(expected) == len(frames) + 1
    assert expected[2] == Frame(0, None, b"")


def test_unread_frames_wait_in_order() -> None:
    reader = FrameReader(1_000)
    reader.feed(encode_frame(1, End(), 512) + encode_frame(2, End(), 512)[:5])
    reader.feed(encode_frame(2, End(), 512)[5:] + encode_frame(3, End(), 512))
    channels = []
    while (frame := reader.next_frame(0)) is not None:
        channels.append(frame.channel)
    assert channels == [1, 2, 3]


def test_many_small_chunks_make_one_frame() -> None:
    reader = FrameReader(2**21)
    payload = bytes(2**20)
    (frame,) = write_transfers(0, 0, 0, b"", 0, payload, settled=True, state=None, max_frame_size=2**21)
    for start in range(0, len(frame), 16):
        assert reader.next_frame(0) is None
        reader.feed(frame[start : start + 16])
    read = reader.next_frame(0)
    assert read is not None
    assert read.payload == payload


def test_extended_header_is_passed_over() -> None:
    body = encode_composite(End())
    reader = FrameReader(512)
    reader.feed(struct.pack(">IBBH", 16 + len(body), 4, 0, 1) + b"12345678" + body)
    assert reader.next_frame(0) == Frame(1, End(), b"")


@pytest.mark.parametrize(
    ("header", "condition"),
    [
        ((7, 2, 0, 0), "amqp:connection:framing-error"),
        ((8, 1, 0, 0), "amqp:connection:framing-error"),
        ((8, 3, 0, 0), "amqp:connection:framing-error"),
        ((513, 2, 0, 0), "amqp:connection:framing-error"),
        ((2**32 - 1, 2, 0, 0), "amqp:connection:framing-error"),
        ((8, 2, 1, 0), "amqp:connection:framing-error"),
        ((8, 2, 9, 0), "amqp:connection:framing-error"),
    ],
)
def test_malformed_frame_is_rejected_by_its_header(header: tuple[int, ...], condition: str) -> None:
    reader = FrameReader(512)
    reader.feed(struct.pack(">IBBH", *header))
    with pytest.raises(WireError) as caught:
        reader.next_frame(0)
    assert caught.value.error.condition == condition


def framed(body: bytes, kind: int = 0) -> bytes:
    return struct.pack(">IBBH", 8 + len(body), 2, kind, 0) + body


@pytest.mark.parametrize(
    "body",
    [
        encode_composite(Source()),
        encode_composite(SaslOutcome(0)),
        encode_composite(End()) + b"x",
        encode_composite(Disposition(True, 1)) + b"x",
        encode_composite(Transfer(1, 2, b"t"))[:-1],
        encode_composite(Disposition(True, 1))[:-1],
        b"\x00\x53\x14\xc0\x12\x03\x52\x05\x43\xa0\x0c",  # a tag that lies in the next frame
        b"\x00\x53\x17\xc0\x09\x01\x40",
        b"\x40",
    ],
    ids=lambda body: body.hex()[:30],
)
def test_frame_that_its_performative_does_not_fill_is_refused(body: bytes) -> None:
    for behind in (b"", encode_frame(0, End(), 512) * 3):
        reader = FrameReader(512)
        reader.feed(framed(body) + behind)
        with pytest.raises(WireError) as caught:
            reader.next_frame(0)
        assert caught.value.error.condition in ("amqp:decode-error", "amqp:invalid-field")


def test_performative_that_exceeds_the_peers_frames_is_not_written() -> None:
    with pytest.raises(FrameTooLargeError):
        encode_frame(0, Open("x" * 600), 512)


def test_the_reader_says_how_many_bytes_a_frame_lacks() -> None:
    frame = encode_frame(0, Open("x" * 300), 512)
    reader = FrameReader(512)
    lacking = []
    for start, stop in ((0, 4), (4, 8), (8, 100), (100, len(frame))):
        reader.feed(frame[start:stop])
        lacking.append(reader.missing_bytes)
    assert lacking == [0, len(frame) - 8, len(frame) - 100, 0]
    assert reader.next_frame(0) is not None
    assert reader.missing_bytes == 0
