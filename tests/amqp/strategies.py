"""Arbitrary AMQP values and messages."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from typing import Any

from hypothesis import strategies as st

from sbclient.amqp.types import (
    EPOCH,
    Byte,
    Char,
    Decimal32,
    Decimal64,
    Described,
    Float,
    Long,
    Short,
    Symbol,
    UByte,
    UInt,
    ULong,
    UShort,
)
from sbclient.message import ServiceBusMessage

text = st.text(st.characters(codec="utf-8"), max_size=40)
moments = st.integers(0, 253_402_300_799_999).map(lambda value: EPOCH + timedelta(milliseconds=value))


def _decimals(digits: int, lowest: int, highest: int) -> st.SearchStrategy[Decimal]:
    return st.builds(
        lambda sign, coefficient, power: Decimal((sign, tuple(map(int, str(coefficient))), power)),
        st.integers(0, 1),
        st.integers(0, 10**digits - 1),
        st.integers(lowest, highest),
    )


LARGE_DECIMALS = st.one_of(_decimals(34, -6000, -4671), _decimals(34, -4607, 6000))
"""Decimals of 128 bits. Exponents between can be those of the form of the service, also after zeros at the end."""


keys = st.one_of(text, st.integers(-(2**31), 2**31 - 1), st.uuids(), text.map(Symbol))
scalars: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.integers(0, 255).map(UByte),
    st.integers(0, 2**16 - 1).map(UShort),
    st.integers(0, 2**32 - 1).map(UInt),
    st.integers(0, 2**64 - 1).map(ULong),
    st.integers(-128, 127).map(Byte),
    st.integers(-(2**15), 2**15 - 1).map(Short),
    st.integers(-(2**31), 2**31 - 1).map(Long),
    st.floats(allow_nan=False),
    st.floats(allow_nan=False, width=32).map(Float),
    st.characters(codec="utf-8").map(Char),
    _decimals(7, -90, 90).map(Decimal32),
    _decimals(16, -300, 300).map(Decimal64),
    LARGE_DECIMALS,
    moments,
    st.uuids(),
    st.binary(max_size=300),
    text,
    text.map(Symbol),
)
protocol_keys = st.one_of(text, st.integers(-128, 127), text.map(Symbol))


def _values(allowed_keys: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.recursive(
        scalars,
        lambda inner: st.one_of(
            st.lists(inner, max_size=6),
            st.dictionaries(allowed_keys, inner, max_size=6),
            st.builds(Described, st.one_of(st.integers(0, 2**64 - 1).map(ULong), text.map(Symbol)), inner),
        ),
        max_leaves=20,
    )


values = _values(keys)
protocol_values = _values(protocol_keys)
"""Values whose maps have only the keys that the protocol uses."""

short_ids = st.one_of(st.none(), st.text(st.characters(codec="utf-8"), max_size=128))
properties = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
    text,
    moments,
    st.uuids(),
    LARGE_DECIMALS,
    st.text(st.characters(codec="utf-8"), min_size=200, max_size=300),
)
messages = st.builds(
    ServiceBusMessage,
    st.one_of(st.binary(max_size=600), st.lists(st.binary(max_size=300), max_size=3)),
    application_properties=st.dictionaries(text, properties, max_size=8),
    session_id=short_ids,
    message_id=short_ids,
    partition_key=short_ids,
    scheduled_enqueue_time_utc=st.one_of(st.none(), moments),
    time_to_live=st.one_of(st.none(), st.timedeltas(timedelta(0), timedelta(days=60))),
    content_type=st.one_of(st.none(), text),
    correlation_id=short_ids,
    subject=st.one_of(st.none(), text),
    to=st.one_of(st.none(), text),
    reply_to=st.one_of(st.none(), text),
    reply_to_session_id=short_ids,
)
