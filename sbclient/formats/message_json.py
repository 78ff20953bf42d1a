"""A message as a JSON object: the form of `sbclient send --format messages` and of the control API of the emulator.

Most values are the same in JSON. Durations and timestamps are in ISO 8601. A value of a type that JSON lacks is an
object with one member, which names the type: `{"datetime": "2030-01-01T00:00:00Z"}`, `{"uuid": …}`, `{"ulong": "5"}`,
or `{"double": "NaN"}` for the three numbers that are not JSON numbers. The names are those of `amqp.value_texts`, with
shorter ones for three of them.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from json.encoder import encode_basestring as _quoted
from operator import attrgetter
from typing import Any, Final

from sbclient.amqp.encode import MAX_DEPTH
from sbclient.amqp.value_texts import NAMES, name_of, text_of, value_of
from sbclient.entities import LEAST_UNLIMITED, UNLIMITED
from sbclient.errors import InvalidOperationError
from sbclient.formats.iso8601 import read_timestamp, write_duration
from sbclient.formats.strict_json import read_json
from sbclient.message import AmqpMessageBodyType, PropertyValue, ServiceBusMessage
from sbclient.settings.durations import seconds_of

_UNLIMITED: Final = ("none", "never", "unlimited")


def read_duration(text: str) -> timedelta:
    """A duration as people write it: `30s`, `5m`, `2h`, `7d`, `PT30S`, or `unlimited`.

    Raises:
        InvalidOperationError: the text is none of these.
    """
    if text.strip().lower() in _UNLIMITED:
        return UNLIMITED
    try:
        duration = timedelta(seconds=seconds_of(text))
    except OverflowError:
        return UNLIMITED
    return UNLIMITED if duration >= LEAST_UNLIMITED else duration


PROPERTY: Final = "property."
"""Prefix of the name of an application property in an option."""

TYPED: Final = ":"
"""Suffix of a name whose value is JSON: `property.price:=5` is a number."""

TEXTS: Final = (
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
texts_of: Final = attrgetter(*TEXTS)
ATTRIBUTES: Final[Mapping[str, Callable[[str], Any]]] = {
    **dict.fromkeys(TEXTS, str),
    "time_to_live": read_duration,
    "scheduled_enqueue_time_utc": read_timestamp,
}
"""The attributes of a message that can be set, and the function that reads the text of each."""

CONTENT: Final = (*ATTRIBUTES, "application_properties", "body", "body_base64", "body_type")


def content_text(message: ServiceBusMessage, *, hidden: Collection[str] = ()) -> str:
    """The JSON object of the attributes of a message that are set, and its body: text, or base64 if it is not UTF-8.

    Args:
        hidden: names of application properties to leave out.
    """
    members = [
        f'"{name}": {_quoted(text)}' for name, text in zip(TEXTS, texts_of(message), strict=True) if text is not None
    ]
    if (time_to_live := message.time_to_live) is not None and (text := duration_text(time_to_live)) is not None:
        members.append(f'"time_to_live": "{text}"')
    if (schedule := message.scheduled_enqueue_time_utc) is not None:
        members.append(f'"scheduled_enqueue_time_utc": "{timestamp_text(schedule)}"')
    properties = message.application_properties
    if shown := {name: property_json(value) for name, value in properties.items() if name not in hidden}:
        members.append(f'"application_properties": {_encode(shown)}')
    if message.body_type is not AmqpMessageBodyType.DATA:
        members.append(f'"body_type": "{message.body_type.value}", "body": {_encode(value_json(message.body))}')
    else:
        body = bytes(message)
        try:
            members.append(f'"body": {_quoted(body.decode())}')
        except UnicodeDecodeError:
            members.append(f'"body_base64": "{base64.b64encode(body).decode()}"')
    return f"{{{', '.join(members)}}}"


_encode: Final = json.JSONEncoder(ensure_ascii=False).encode


def value_json(value: Any) -> Any:
    """A value of a body, of which `value_of_json` makes the same. Lists and maps are arrays and objects if possible."""
    if type(value) in (list, tuple):
        return [value_json(item) for item in value]
    if type(value) is dict and all(type(name) is str for name in value) and not _is_typed(value):
        return {name: value_json(item) for name, item in value.items()}
    return property_json(value)


def value_of_json(value: Any, depth: int = 0) -> Any:
    """The value of a body that a JSON value describes.

    Raises:
        InvalidOperationError: a type has no such value, or the value is nested too deeply.
    """
    if depth > MAX_DEPTH:
        raise InvalidOperationError(f"the body is nested more than {MAX_DEPTH} deep")
    if isinstance(value, list):
        return [value_of_json(item, depth + 1) for item in value]
    if isinstance(value, dict) and not _is_typed(value):
        return {name: value_of_json(item, depth + 1) for name, item in value.items()}
    return property_of(value)


def message_of(fields: Mapping[str, Any], *, ignored: Collection[str] = ()) -> ServiceBusMessage:
    """The message that a JSON object describes.

    Args:
        fields: of those in `CONTENT`; a body that is not text is sent as JSON.
        ignored: other members that are allowed and have no effect.

    Raises:
        InvalidOperationError: a member is unknown, or its value is not allowed.
    """
    unknown = [name for name in fields if name not in CONTENT and name not in ignored]
    if unknown:
        raise InvalidOperationError(f"a message has no {unknown[0][:64]!r}: it may have {', '.join(CONTENT)}")
    body, body_type = body_of(fields)
    properties = {} if (given := fields.get("application_properties")) is None else given
    if not isinstance(properties, dict):
        raise InvalidOperationError("application_properties is not an object: give names and values")
    message = ServiceBusMessage(
        None, application_properties={name: property_of(value) for name, value in properties.items()}
    )
    message._body, message._body_type = body, body_type
    for name, read in ATTRIBUTES.items():
        if (text := fields.get(name)) is not None:
            if not isinstance(text, str):
                raise InvalidOperationError(f"{name} is a {type(text).__name__}: give a string")
            setattr(message, name, read(text))
    return message


def body_of(fields: Mapping[str, Any]) -> tuple[Any, AmqpMessageBodyType]:
    """The body that the members `body`, `body_base64` and `body_type` describe, and how it is encoded.

    Raises:
        InvalidOperationError: they describe none.
    """
    kind = fields.get("body_type", AmqpMessageBodyType.DATA)
    if kind == AmqpMessageBodyType.DATA:
        return _data_of(fields), AmqpMessageBodyType.DATA
    if kind not in tuple(AmqpMessageBodyType) or "body_base64" in fields:
        raise InvalidOperationError(
            f"body_type is {kind!r:.40}: give {', '.join(AmqpMessageBodyType)}, and body_base64 only for data"
        )
    body = value_of_json(fields.get("body"))
    if kind == AmqpMessageBodyType.SEQUENCE and not (
        isinstance(body, list) and body and all(isinstance(part, list) for part in body)
    ):
        raise InvalidOperationError("the body of an AMQP sequence is no array of arrays: give one for each section")
    return body, AmqpMessageBodyType(kind)


def _data_of(fields: Mapping[str, Any]) -> bytes:
    text, encoded = fields.get("body"), fields.get("body_base64")
    if encoded is not None:
        if text is not None:
            raise InvalidOperationError("both body and body_base64 are given: leave one out")
        try:
            return base64.b64decode(encoded, validate=True)
        except (binascii.Error, TypeError, ValueError) as error:
            raise InvalidOperationError("body_base64 is not base64: encode the bytes, with padding") from error
    if "body" not in fields:
        return b""
    try:
        return (text if isinstance(text, str) else json.dumps(text, ensure_ascii=False)).encode()
    except UnicodeEncodeError:
        raise InvalidOperationError("the body has half of a surrogate pair, which is not a character") from None


# ---------------------------------------------------------------------- values


@lru_cache(maxsize=64)
def duration_text(duration: timedelta) -> str | None:
    """`PT1M30S`; None for "no limit"."""
    return None if duration >= LEAST_UNLIMITED else write_duration(duration)


def timestamp_text(timestamp: datetime) -> str:
    """`2030-01-01T00:00:00.5Z`, in UTC."""
    return _utc_text(timestamp if timestamp.tzinfo is UTC else timestamp.astimezone(UTC))


@lru_cache(maxsize=64)
def _utc_text(timestamp: datetime) -> str:
    text = timestamp.isoformat().removesuffix("+00:00")
    return (text.rstrip("0") if "." in text else text) + "Z"


def property_json(value: Any) -> Any:
    """An application property, so that `property_of` returns the same value of the same type."""
    kind = type(value)
    if value is None or kind in (str, bool, int) or (kind is float and math.isfinite(value)):
        return value
    name = name_of(value) or ""
    text = timestamp_text(value) if kind is datetime else text_of(value)
    return {_SHORT.get(name, name): text}


def property_of(value: Any) -> PropertyValue:
    """The application property that a JSON value describes.

    Raises:
        InvalidOperationError: the value describes none.
    """
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, dict) and _is_typed(value):
        name, text = next(iter(value.items()))
        read: PropertyValue = value_of(_LONG.get(str(name), str(name)), text)
        return read
    raise InvalidOperationError(
        "a property is a string, a number, true, false, null, or an object with one of the members "
        f"{', '.join(sorted(_KNOWN))} and a string in it"
    )


def _is_typed(value: Mapping[str, Any]) -> bool:
    """Whether an object names the type of a value."""
    return len(value) == 1 and all(name in _KNOWN and isinstance(text, str) for name, text in value.items())


def property_named(name: str, text: str) -> tuple[str, PropertyValue]:
    """Return the name and value of an application property: text for `property.<name>`, JSON for `property.<name>:`.

    Raises:
        InvalidOperationError: the text is not JSON, or not the value of a property.
    """
    short = name.removeprefix(PROPERTY)
    if not short.endswith(TYPED):
        return short, text
    try:
        return short.removesuffix(TYPED), property_of(read_json(text))
    except InvalidOperationError as error:
        raise InvalidOperationError(f"{name}={text!r:.50}: {error.message}") from error


_SHORT: Final = {"timestamp": "datetime", "decimal128": "decimal", "binary": "base64"}
_LONG: Final = {short: name for name, short in _SHORT.items()}
_KNOWN: Final = frozenset((*NAMES, *_LONG))
