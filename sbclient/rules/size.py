"""Computes the encoded size of a message in AMQP 1.0 without encoding it.

All size limits use this number, and `sbclient.amqp` writes exactly that many bytes. The widths are those of AMQP 1.0,
parts 1.6 and 3.2, always in the most compact encoding of each type:

    value                                    constructor       bytes
    null; true, false                        40; 41, 42        1
    uint 0; to 255; above                    43; 52; 70        1; 2; 5
    int -128..127; 32 bits; 64 bits          54; 71; 81        2; 5; 9
    float                                    82                9
    Decimal; UUID                            94; 98            17
    datetime                                 83                9
    str, symbol, binary to 255 bytes; above  a1 a3 a0; b1...   2 + n; 5 + n
    list empty; to 254 bytes; more           45; c0; d0        1; 3 + n; 9 + n
    map to 254 bytes; more                   c1; d1            3 + n; 9 + n

Sections, each after a descriptor of 3 bytes (00 53 xx), in this order:

    70 header                  only with a time to live: list of null, null, ttl (uint, whole milliseconds rounded down,
                               at most 2**32 - 1)
    72 message-annotations     those that are set: x-opt-partition-key, x-opt-scheduled-enqueue-time; keys are symbols
    73 properties              if any is set: list up to the last one that is set, of message-id, user-id (null), to,
                               subject, reply-to, correlation-id, content-type (symbol), content-encoding (null),
                               absolute-expiry-time and creation-time (only for a time to live that the header cannot
                               hold), group-id = session id, group-sequence (null), reply-to-group-id
    74 application-properties  if there are any: map; bytes are sent as str
    75 data                    one for each part of the body, an empty section if there is no part; or
    76 amqp-sequence           one list for each part of a body of type SEQUENCE; or
    77 amqp-value              the body of type VALUE
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

from sbclient.annotated_message import PARTITION_KEY_ANNOTATION, SCHEDULED_ENQUEUE_TIME_ANNOTATION
from sbclient.message import AmqpMessageBodyType, PropertyValue, ServiceBusMessage

MAX_TTL_MS: Final = 2**32 - 1
"""The longest time to live that the header can hold, 49.7 days.

A longer one is sent as this value, and as the time from the creation of the message to its absolute expiry. Source: the
clients for .NET and Java.
"""

SECTION_BYTES: Final = 8
"""The most bytes that the data section around each message of a batch takes."""

_DESCRIPTOR = 3
_TIMESTAMP = 9
_MILLISECOND = timedelta(milliseconds=1)
LONGEST_HEADER_TTL: Final = MAX_TTL_MS * _MILLISECOND
_PARTITION_KEY_WIDTH = 2 + len(PARTITION_KEY_ANNOTATION)
_SCHEDULE_WIDTH = 2 + len(SCHEDULED_ENQUEUE_TIME_ANNOTATION) + _TIMESTAMP


def encoded_size(message: ServiceBusMessage) -> int:
    """Return the encoded size of a message in bytes.

    Raises:
        TypeError: a body of type VALUE or SEQUENCE contains a type that AMQP cannot encode.
    """
    # Slots are read directly: the property getters would double the cost.
    size = _property_list(
        message._message_id,
        message._to,
        message._subject,
        message._reply_to,
        message._correlation_id,
        message._content_type,
        message._session_id,
        message._reply_to_session_id,
        is_lasting=message._time_to_live is not None and message._time_to_live > LONGEST_HEADER_TTL,
    )
    if message._partition_key is not None or message._scheduled_enqueue_time_utc is not None:
        size += _annotations(message._partition_key, message._scheduled_enqueue_time_utc is not None)
    if message._time_to_live is not None:
        size += _header(message._time_to_live)
    properties = message._application_properties
    if properties:
        size += _DESCRIPTOR + _map(properties)
    if message._body_type is AmqpMessageBodyType.DATA:
        for length in message._data_sizes() or (0,):
            size += _DESCRIPTOR + _variable(length)
        return size
    encoded = message._encoded_body_size()
    if encoded is not None:
        return size + encoded
    if message._body_type is AmqpMessageBodyType.VALUE:
        return size + _DESCRIPTOR + _value(message.body)
    return size + sum(_DESCRIPTOR + _list(sum(map(_value, part))) for part in message.body)


def batch_size(messages: Sequence[ServiceBusMessage], sizes: Sequence[int] | None = None) -> int:
    """Return the encoded size of several messages in one transfer, in bytes; 0 for none.

    Each encoded message is a data section. Before these come the partition key of the first message as annotation, and
    its message id and session id as properties.

    Args:
        sizes: the `encoded_size` of each message, if already known.
    """
    if not messages:
        return 0
    first = messages[0]
    size = _annotations(first._partition_key, is_scheduled=False)
    size += _property_list(first._message_id, None, None, None, None, None, first._session_id, None)
    for length in map(encoded_size, messages) if sizes is None else sizes:
        size += length + (_DESCRIPTOR + 2 if length <= 255 else _DESCRIPTOR + 5)
    return size


def _header(time_to_live: timedelta) -> int:
    ttl_ms = time_to_live // _MILLISECOND
    return _DESCRIPTOR + _list(2 + (1 if ttl_ms == 0 else 2 if ttl_ms <= 255 else 5))


def _annotations(partition_key: str | None, is_scheduled: bool) -> int:
    if partition_key is None:
        return _DESCRIPTOR + _compound(_SCHEDULE_WIDTH) if is_scheduled else 0
    inside = _PARTITION_KEY_WIDTH + _text(partition_key)
    return _DESCRIPTOR + _compound(inside + _SCHEDULE_WIDTH if is_scheduled else inside)


def _property_list(
    message_id: str | None,
    to: str | None,
    subject: str | None,
    reply_to: str | None,
    correlation_id: str | None,
    content_type: str | None,
    session_id: str | None,
    reply_to_session_id: str | None,
    *,
    is_lasting: bool = False,
) -> int:
    """Return the size of the properties section. Each unset field before the last set one is a null of one byte.

    The loop is unrolled because this runs more than once for every message, and few fields are set."""
    inside = nulls = last = 0
    if message_id is not None:
        inside = _text(message_id)
        last = 1
    if to is not None:
        inside += _text(to)
        nulls += 2 - last
        last = 3
    if subject is not None:
        inside += _text(subject)
        nulls += 3 - last
        last = 4
    if reply_to is not None:
        inside += _text(reply_to)
        nulls += 4 - last
        last = 5
    if correlation_id is not None:
        inside += _text(correlation_id)
        nulls += 5 - last
        last = 6
    if content_type is not None:
        inside += _text(content_type)
        nulls += 6 - last
        last = 7
    if is_lasting:
        inside += 2 * _TIMESTAMP
        nulls += 8 - last
        last = 10
    if session_id is not None:
        inside += _text(session_id)
        nulls += 10 - last
        last = 11
    if reply_to_session_id is not None:
        inside += _text(reply_to_session_id)
        nulls += 12 - last
    return _DESCRIPTOR + _compound(inside + nulls) if inside else 0


def _variable(length: int) -> int:
    return length + (2 if length <= 255 else 5)


def _text(text: str) -> int:
    length = len(text) if text.isascii() else len(text.encode())
    return length + (2 if length <= 255 else 5)  # as `_variable`, without a call: this runs often for every message


def _compound(inside: int) -> int:
    """Return the size of a map or of a list that is not empty. Its size field includes one byte for the item count."""
    return inside + (3 if inside <= 254 else 9)


def _list(inside: int) -> int:
    return _compound(inside) if inside else 1


def _integer(value: int) -> int:
    return 2 if -128 <= value <= 127 else 5 if -(2**31) <= value < 2**31 else 9


def _map(items: Mapping[Any, Any]) -> int:
    inside = 0
    for key, value in items.items():
        inside += _text(key) if type(key) is str else _value(key)
        inside += _text(value) if type(value) is str else _value(value)
    return _compound(inside)


def _value(value: PropertyValue | Sequence[Any] | Mapping[Any, Any]) -> int:
    width = _WIDTH_OF.get(type(value))
    if width is not None:
        return width(value)
    for kind, width in _WIDTHS:  # a subclass of one of them, or a mapping of another kind
        if isinstance(value, kind):
            return width(value)
    raise TypeError(f"AMQP cannot encode a {type(value).__name__}: send str, int, float, bytes, lists and maps")


_WIDTHS: Final[tuple[tuple[type, Callable[[Any], int]], ...]] = (
    (str, _text),
    (bool, lambda _: 1),
    (int, _integer),
    (type(None), lambda _: 1),
    (float, lambda _: 9),
    (bytes, lambda value: _variable(len(value))),
    (datetime, lambda _: _TIMESTAMP),
    (UUID, lambda _: 17),
    (Decimal, lambda _: 17),
    (Mapping, _map),
    (list, lambda value: _list(sum(map(_value, value)))),
    (tuple, lambda value: _list(sum(map(_value, value)))),
)
"""The width of each type that can be sent. The first type that matches is used, so bool precedes int."""

_WIDTH_OF: Final[dict[type, Callable[[Any], int]]] = dict(_WIDTHS)
