"""Stored messages as JSON for the control API, and the messages that a request to send describes."""

from __future__ import annotations

import json
import math
from base64 import b64encode
from collections.abc import Mapping
from typing import Any, Final, TypeAlias

from sbclient.amqp import EncodedMessage
from sbclient.broker.entry import Entry
from sbclient.errors import InvalidOperationError, ServiceBusError
from sbclient.formats.message_json import TEXTS, message_of, value_json
from sbclient.message import AmqpMessageBodyType, ServiceBusMessage, ServiceBusMessageState
from sbclient.rules.sequence_number import COUNTER_BITS

Facts: TypeAlias = dict[str, Any]

MAX_SHOWN_BYTES: Final = 262_144
"""Of a body; the rest of a larger one is not shown."""

MAX_DECODED_BYTES: Final = 65_536
"""Of a body that is an AMQP value or sequence; a larger one is not shown, because decoding it takes time."""

MAX_PREVIEW: Final = 160
MAX_COPIES: Final = 1_000

_CONTROLS: Final = frozenset(map(chr, range(32))) - {"\t", "\n", "\r"}


def line_of(entry: Entry) -> Facts:
    """A message as an entry of a list; timestamps are seconds since 1970."""
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
    """All properties of a message, and its body."""
    content = entry.content
    schedule, time_to_live = content.scheduled_enqueue_time_utc, content.time_to_live
    return {
        **line_of(entry),
        **{name: getattr(content, name) for name in TEXTS},
        "time_to_live_s": None if time_to_live is None else time_to_live.total_seconds(),
        "scheduled_at": None if schedule is None else schedule.timestamp(),
        "original_sequence_number": entry.original_number,
        "dead_letter_description": entry.dead_letter_description,
        "dead_letter_source": entry.dead_letter_source,
        "destination": entry.destination,
        "hops": entry.hops,
        "application_properties": [
            {"name": name, "type": type(value).__name__, "value": _text(value)}
            for name, value in {**content.application_properties, **entry.properties}.items()
        ],
        "body": body_of(content),
    }


def has_text(entry: Entry, text: str) -> bool:
    """Whether a casefolded text is in a text property, in `name=value` of an application property, or in the body."""
    content = entry.content
    named = {**content.application_properties, **entry.properties}
    texts = (
        *(getattr(content, name) for name in TEXTS),
        content.message_id,
        entry.dead_letter_reason,
        entry.dead_letter_description,
        *(f"{name}={_text(value)}" for name, value in named.items()),
        body_of(content).get("text"),
    )
    return str(entry.number) == text or any(text in each.casefold() for each in texts if isinstance(each, str))


def body_of(content: EncodedMessage) -> Facts:
    """A body as text, or as base64 if it is not text. An AMQP value or sequence is shown as JSON."""
    if content.body_type is not AmqpMessageBodyType.DATA:
        text = _value_text(content) or "(this body is too large, or is not valid)"
        return {
            "type": content.body_type.value,
            "text": text[:MAX_SHOWN_BYTES],
            "size_bytes": len(text.encode(errors="replace")),
            "is_cut": len(text) > MAX_SHOWN_BYTES,
        }
    raw = bytes(content)
    shown = raw[:MAX_SHOWN_BYTES]
    is_cut = len(shown) < len(raw)
    decoded = _decoded(shown, is_cut=is_cut)
    body = {"base64": b64encode(shown).decode()} if decoded is None else {"text": decoded}
    return {"type": "data", "size_bytes": len(raw), "is_cut": is_cut, **body}


def read_messages(fields: Any) -> list[ServiceBusMessage]:
    """The messages that a JSON object describes: one, or as many as its member `copies`.

    Raises:
        InvalidOperationError: the object describes none.
    """
    if not isinstance(fields, Mapping):
        raise InvalidOperationError(f"a message is a {type(fields).__name__}: give an object with a body")
    copies = fields.get("copies", 1)
    if not isinstance(copies, int) or isinstance(copies, bool) or not 1 <= copies <= MAX_COPIES:
        raise InvalidOperationError(f"copies is {copies!r}: give a whole number from 1 to {MAX_COPIES}")
    if copies > 1 and fields.get("message_id") is not None:
        raise InvalidOperationError(f"{copies} copies cannot share a message_id: leave it out, each gets its own")
    message = message_of(fields, ignored=("copies",))
    return [message, *(message.copy() for _ in range(copies - 1))]


def _preview(content: EncodedMessage) -> str | None:
    """The beginning of a body in one line; None if the body is binary."""
    if content.body_type is not AmqpMessageBodyType.DATA:
        text = _value_text(content)
    else:
        raw = next(iter(content.data()), b"")
        text = _decoded(raw[: 4 * MAX_PREVIEW], is_cut=len(raw) > 4 * MAX_PREVIEW)
    return None if text is None else " ".join(text.split())[:MAX_PREVIEW]


def _value_text(content: EncodedMessage) -> str | None:
    """A body that is an AMQP value or sequence; None if it is too large to be decoded here, or malformed."""
    if len(content.raw_body) > MAX_DECODED_BYTES:
        return None
    try:
        return _text(content.body)
    except ServiceBusError:
        return None


def _decoded(raw: bytes, *, is_cut: bool) -> str | None:
    """Bytes as text; None if they are not text. The last character may be cut off as well."""
    for end in (len(raw), *(range(len(raw) - 1, max(len(raw) - 4, 0), -1) if is_cut else ())):
        try:
            text = raw[:end].decode()
        except UnicodeDecodeError:
            continue
        return None if _CONTROLS.intersection(text) else text
    return None


def _text(value: Any) -> str:
    """A value of a property or of a body, for display."""
    written = value_json(value)
    if isinstance(written, dict) and list(written) == ["encoded"]:
        return str(value)
    if isinstance(written, dict) and not isinstance(value, Mapping):  # {"uuid": "…"}
        (written,) = written.values()
    return written if isinstance(written, str) else json.dumps(written, ensure_ascii=False)


def _finite(at: float) -> float | None:
    return at if at < math.inf else None
