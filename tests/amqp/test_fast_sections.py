"""The fast readers of sections agree with the general ones, or read nothing."""

from __future__ import annotations

import struct

from hypothesis import given
from hypothesis import strategies as st

from sbclient.amqp.broker_annotations import BrokerAnnotations, encode_delivery
from sbclient.amqp.decode import decode_at
from sbclient.amqp.encode import encode_symbol
from sbclient.amqp.errors import WireError
from sbclient.amqp.fast_sections import read_annotations, read_properties, read_texts
from sbclient.amqp.fields import LAYOUTS, decode_fields
from sbclient.amqp.sections import Properties, Sections
from sbclient.message import ServiceBusMessage
from tests.payloads import payload_of

texts = st.text(max_size=3).map(lambda text: b"\xa1" + bytes((len(text.encode()),)) + text.encode())
fields = st.one_of(texts, st.just(b"\x40"), st.sampled_from([b"\xa3\x01x", b"\x43", b"\xa0\x01x", b"\xa1\x01\xff"]))
names = st.sampled_from(["x-opt-enqueued-time", "x-opt-sequence-number", "x-opt-partition-key", "x-opt-other"])
longs = st.integers(-(2**63), 2**63 - 1).map(lambda value: struct.pack(">q", value))
entries = st.builds(
    lambda name, value: encode_symbol(name) + value,
    names,
    st.one_of(texts, longs.map(b"\x81".__add__), longs.map(b"\x83".__add__), st.just(b"\x55\x01")),
)


def encoded(code: int, count: int, content: bytes) -> bytes:
    return bytes((code, len(content) + 1, count)) + content


@given(st.lists(fields, max_size=14), st.integers(0, 14), st.binary(max_size=2))
def test_properties_agree(parts: list[bytes], count: int, rest: bytes) -> None:
    content = b"".join(parts) + rest
    raw = encoded(0xC0, min(count, len(parts)), content)
    usual = read_properties(raw, 0, len(raw))
    if usual is not None:
        assert decode_fields(LAYOUTS[Properties], raw, 0)[0] == usual


@given(st.lists(entries, max_size=4), st.integers(0, 1), st.binary(max_size=2))
def test_annotations_agree(parts: list[bytes], more: int, rest: bytes) -> None:
    raw = encoded(0xC1, 2 * len(parts) + more, b"".join(parts) + rest)
    usual = read_annotations(raw, 0, len(raw))
    if usual is not None:
        assert decode_at(raw, 0) == (usual, len(raw))


@given(st.lists(st.one_of(texts, st.just(b"\x43"), st.just(b"\xa3\x01x")), max_size=8), st.binary(max_size=2))
def test_application_properties_agree(parts: list[bytes], rest: bytes) -> None:
    raw = encoded(0xC1, len(parts), b"".join(parts) + rest)
    usual = read_texts(raw, 0, len(raw))
    if usual is not None:
        assert decode_at(raw, 0, typed=True) == (usual, len(raw))


def test_a_section_that_ends_after_its_size_is_left_to_the_general_reader() -> None:
    assert read_properties(b"\xc0\x00", 0, 2) is None
    assert read_annotations(b"\xc1\x00", 0, 2) is None
    assert read_texts(b"\xc1\x00", 0, 2) is None


@given(st.binary(max_size=40))
def test_any_bytes_agree_or_are_left_to_the_general_reader(content: bytes) -> None:
    for code, read in ((0xC0, read_properties), (0xC1, read_annotations), (0xC1, read_texts)):
        raw = encoded(code, content[0] if content else 0, content)
        usual = read(raw, 0, len(raw))
        if usual is None:
            continue
        try:
            general = decode_fields(LAYOUTS[Properties], raw, 0)[0] if code == 0xC0 else decode_at(raw, 0)[0]
        except WireError as error:
            raise AssertionError(f"the general reader rejects {raw!r}: {error}") from error
        assert general == usual


def test_deliveries_of_the_broker_are_read_fast() -> None:
    sent = ServiceBusMessage(
        b"body", application_properties={"path": "orders"}, message_id="one", content_type="text", session_id="s"
    )
    payload = encode_delivery(Sections(payload_of(sent)), BrokerAnnotations(1, 1_700_000_000_000, 0, None, 5))
    sections = Sections(payload)
    for code, read in ((0x72, read_annotations), (0x73, read_properties), (0x74, read_texts)):
        raw = sections.raw_value(code)
        assert read(raw, 0, len(raw)) is not None
