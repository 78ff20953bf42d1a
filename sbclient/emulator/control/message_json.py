"""Messages as the control API writes and reads them: JSON, for people who look and for scripts that try things."""

from __future__ import annotations

import json
import math
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any, Final, TypeAlias

from sbclient.broker.entry import Entry
from sbclient.broker.storage import COUNTER_BITS
from sbclient.errors import InvalidOperationError
from sbclient.message import AmqpMessageBodyType, ServiceBusMessage, ServiceBusMessageState, chunks_of

Facts: TypeAlias = dict[str, Any]

MAX_SHOWN_BYTES: Final = 262_144
"""Of a body; the rest of a larger one is not shown."""

MAX_PREVIEW: Final = 160
MAX_COPIES: Final = 1_000

_TEXTS: Final = (
    "message_id",
    "session_id",
    "partition_key",
    "subject",
    "content_type",
    "correlation_id",
    "to",
    "reply_to",
    "reply_to_session_id",
)
_SENDABLE: Final = (
    *("body", "body_base64", "application_properties", "time_to_live_s", "scheduled_at", "copies"),
    *_TEXTS,
)
_LATEST_S: Final = 250_000_000_000.0
_CONTROLS: Final = frozenset(map(chr, range(32))) - {"\t", "\n", "\r"}


def line_of(entry: Entry) -> Facts:
    """What a list of messages says of one; moments are seconds since 1970."""
    content = entry.content
    schedule = content.scheduled_enqueue_time_utc
    is_scheduled = entry.state is ServiceBusMessageState.SCHEDULED
    return {
        "sequence_number": entry.number,
        "fragment": entry.number >> COUNTER_BITS,
        "state": entry.state.name.lower(),
        "is_locked": bool(entry.token),
        "locked_until": _finite(entry.locked_until),
        "enqueued_at": None if is_scheduled else entry.enqueued_at,
        "scheduled_at": schedule.timestamp() if is_scheduled and schedule is not None else None,
        "expires_at": _finite(entry.expires_at),
        "delivery_count": entry.delivery_count,
        "size_bytes": entry.size_bytes,
        "message_id": content.message_id,
        "session_id": content.session_id,
        "subject": content.subject,
        "dead_letter_reason": entry.dead_letter_reason,
        "preview": _preview(content),
    }


def whole_of(entry: Entry) -> Facts:
    """Everything that can be said of a message."""
    content = entry.content
    schedule, life = content.scheduled_enqueue_time_utc, content.time_to_live
    return {
        **line_of(entry),
        **{name: getattr(content, name) for name in _TEXTS},
        "time_to_live_s": None if life is None else life.total_seconds(),
        "scheduled_at": None if schedule is None else schedule.timestamp(),
        "original_sequence_number": entry.original_number,
        "dead_letter_description": entry.dead_letter_description,
        "dead_letter_source": entry.dead_letter_source,
        "destination": entry.destination,
        "hops": entry.hops,
        "application_properties": [
            {"name": name, "type": type(value).__name__, "value": _said(value)}
            for name, value in content.application_properties.items()
        ],
        "body": body_of(content),
    }


def body_of(content: ServiceBusMessage) -> Facts:
    """A body as text where it is text, else in base64; a value or sequence of AMQP as JSON where it can be said so."""
    if content.body_type is not AmqpMessageBodyType.DATA:
        text = _said(content.body)
        return {
            "type": content.body_type.value,
            "text": text[:MAX_SHOWN_BYTES],
            "size_bytes": len(text.encode(errors="replace")),
            "is_cut": len(text) > MAX_SHOWN_BYTES,
        }
    raw = bytes(content)
    shown = raw[:MAX_SHOWN_BYTES]
    said = {"type": "data", "size_bytes": len(raw), "is_cut": len(shown) < len(raw)}
    text_or_none = _text_of(shown, is_cut=bool(said["is_cut"]))
    return said | ({"base64": b64encode(shown).decode()} if text_or_none is None else {"text": text_or_none})


def read_messages(said: Any) -> list[ServiceBusMessage]:
    """The messages that an object describes: one, or as many as its `copies` says.

    Raises:
        InvalidOperationError: it describes none.
    """
    if not isinstance(said, Mapping):
        raise InvalidOperationError(f"a message is a {type(said).__name__}: give an object with a body")
    unknown = [str(name)[:64] for name in said if name not in _SENDABLE]
    if unknown:
        raise InvalidOperationError(f"a message has no {unknown[0]!r}: it may have {', '.join(_SENDABLE)}")
    properties = said.get("application_properties")
    if not isinstance(properties, Mapping | None):
        raise InvalidOperationError("application_properties is no object: give names and values")
    copies = said.get("copies", 1)
    if not isinstance(copies, int) or isinstance(copies, bool) or not 1 <= copies <= MAX_COPIES:
        raise InvalidOperationError(f"copies is {copies!r}: give a whole number from 1 to {MAX_COPIES}")
    if copies > 1 and said.get("message_id") is not None:
        raise InvalidOperationError(f"{copies} copies would share message_id: leave it out, each is given its own")
    life_s, schedule_s = _seconds("time_to_live_s", said), _seconds("scheduled_at", said)
    try:
        message = ServiceBusMessage(
            _body(said),
            application_properties=properties,
            time_to_live=None if life_s is None else timedelta(seconds=life_s),
            scheduled_enqueue_time_utc=None if schedule_s is None else datetime.fromtimestamp(schedule_s, UTC),
            **{name: said.get(name) for name in _TEXTS},
        )
    except TypeError as error:
        raise InvalidOperationError(f"{error}: change it") from error
    return [message, *(message.copy() for _ in range(copies - 1))]


def _body(said: Mapping[str, Any]) -> str | bytes:
    text, encoded = said.get("body"), said.get("body_base64")
    if text is not None and encoded is not None:
        raise InvalidOperationError("body and body_base64 are both given: leave one of them out")
    if encoded is None:
        if not isinstance(text, str | None):
            raise InvalidOperationError(f"body is a {type(text).__name__}: give text, or body_base64")
        return text or ""
    try:
        return b64decode(encoded, validate=True)
    except (Base64Error, TypeError, ValueError) as error:
        raise InvalidOperationError("body_base64 is no base64: encode the bytes, with padding") from error


def _seconds(name: str, said: Mapping[str, Any]) -> float | None:
    value = said.get(name)
    if value is None:
        return None
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < _LATEST_S:
        raise InvalidOperationError(f"{name} is {value!r}: give a number of seconds, not below 0")
    return float(value)


def _preview(content: ServiceBusMessage) -> str | None:
    """The beginning of a body in one line; None = it is binary."""
    if content.body_type is not AmqpMessageBodyType.DATA:
        text: str | None = _said(content.body)
    else:
        raw = b"".join(islice(chunks_of(content), 1))
        text = _text_of(raw[: 4 * MAX_PREVIEW], is_cut=len(raw) > 4 * MAX_PREVIEW)
    return None if text is None else " ".join(text.split())[:MAX_PREVIEW]


def _text_of(raw: bytes, *, is_cut: bool) -> str | None:
    """Bytes as text; None if they are none. Where they were cut off, so may be their last letter."""
    for end in (len(raw), *(range(len(raw) - 1, max(len(raw) - 4, 0), -1) if is_cut else ())):
        try:
            text = raw[:end].decode()
        except UnicodeDecodeError:
            continue
        return None if _CONTROLS.intersection(text) else text
    return None


def _said(value: Any) -> str:
    """A value of a property, or of a body, as text."""
    if isinstance(value, str):
        return value
    if not isinstance(value, int | float | list | tuple | dict | None):
        return _plainly(value)
    try:
        return json.dumps(value, default=_plainly, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        return repr(value)


def _plainly(value: Any) -> str:
    """What JSON has no word for."""
    if isinstance(value, bytes):
        return value.hex(" ")
    return value.isoformat() if isinstance(value, datetime) else str(value)


def _finite(at: float) -> float | None:
    return at if at < math.inf else None
