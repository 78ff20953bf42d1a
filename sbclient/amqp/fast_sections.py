"""Fast readers for the usual encodings of annotations, properties and application properties.

They return None for every other encoding and for malformed bytes, which the general readers of `sections` decode or
reject. A test compares both.
"""

from __future__ import annotations

import struct
from typing import Any, Final

from sbclient.amqp import servicebus
from sbclient.amqp.types import moment_of

_unpack_long: Final = struct.Struct(">q").unpack_from

_FIELD_COUNT: Final = 13
_TEXT_CODES: Final = tuple(
    (0xA3, 0xA1) if place in (6, 7) else () if place in (1, 8, 9, 11) else (0xA1,) for place in range(_FIELD_COUNT)
)
"""The format codes of a short text, for each field of the properties; empty for a field that is no text."""

_NAMES: Final = {
    name.encode(): name
    for name in (
        servicebus.ENQUEUED_TIME,
        servicebus.SEQUENCE_NUMBER,
        servicebus.LOCKED_UNTIL,
        servicebus.ENQUEUE_SEQUENCE_NUMBER,
        servicebus.MESSAGE_STATE,
        servicebus.PARTITION_KEY,
        servicebus.SCHEDULED_ENQUEUE_TIME,
    )
}


def read_properties(raw: bytes, at: int, stop: int) -> list[str | None] | None:
    """The 13 properties of a message if all that are set are short texts.

    Args:
        at, stop: where the list begins and ends.
    """
    values: list[str | None] = []
    try:
        if raw[at] != 0xC0 or (count := raw[at + 2]) > _FIELD_COUNT:
            return None
        at += 3
        for codes in _TEXT_CODES[:count]:
            code = raw[at]
            if code == 0x40:
                values.append(None)
                at += 1
            elif code in codes:
                end = at + 2 + raw[at + 1]
                values.append(raw[at + 2 : end].decode())
                at = end
            else:
                return None
    except (IndexError, UnicodeDecodeError):
        return None
    return values + [None] * (_FIELD_COUNT - count) if at == stop else None


def read_annotations(raw: bytes, at: int, stop: int) -> dict[Any, Any] | None:
    """The annotations of a message if all are numbers, timestamps and short texts under the names of Service Bus.

    Args:
        at, stop: where the map begins and ends.
    """
    values: dict[Any, Any] = {}
    try:
        if raw[at] != 0xC1 or (count := raw[at + 2]) & 1:
            return None
        at += 3
        for _ in range(count >> 1):
            end = at + 2 + raw[at + 1]
            name = _NAMES.get(raw[at + 2 : end])
            if raw[at] != 0xA3 or name is None:
                return None
            code = raw[end]
            if code == 0x83:
                values[name] = moment_of(_unpack_long(raw, end + 1)[0])
                at = end + 9
            elif code == 0x81:
                values[name] = _unpack_long(raw, end + 1)[0]
                at = end + 9
            elif code == 0xA1:
                at = end + 2 + raw[end + 1]
                values[name] = raw[end + 2 : at].decode()
            else:
                return None
    except (IndexError, UnicodeDecodeError, struct.error):
        return None
    return values if at == stop and len(values) << 1 == count else None


def read_texts(raw: bytes, at: int, stop: int) -> dict[str, Any] | None:
    """The application properties of a message if all values are short texts.

    Args:
        at, stop: where the map begins and ends.
    """
    values: dict[str, Any] = {}
    try:
        if raw[at] != 0xC1 or (count := raw[at + 2]) & 1:
            return None
        at += 3
        for _ in range(count >> 1):
            end = at + 2 + raw[at + 1]
            next_at = end + 2 + raw[end + 1]
            if raw[at] != 0xA1 or raw[end] != 0xA1:
                return None
            values[raw[at + 2 : end].decode()] = raw[end + 2 : next_at].decode()
            at = next_at
    except (IndexError, UnicodeDecodeError):
        return None
    return values if at == stop and len(values) << 1 == count else None
