"""A message as a JSON object: what `receive` and `peek` print and `send --format messages` reads.

The members in `CONTENT` are the message; those in `FACTS` are what the broker says of it, and a send leaves them out.
So what was received can be sent: the body, also a binary one, the properties with their types, the ids and keys, the
life and the schedule are the same again.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from sbclient.cli.json_values import moment_of, property_json, property_of, span_of
from sbclient.errors import InvalidOperationError
from sbclient.message import (
    DEAD_LETTER_DESCRIPTION,
    DEAD_LETTER_REASON,
    AmqpMessageBodyType,
    PropertyValue,
    ServiceBusMessage,
    ServiceBusReceivedMessage,
)

ATTRIBUTES: Final[Mapping[str, Callable[[str], Any]]] = {
    **dict.fromkeys(
        (
            "message_id",
            "session_id",
            "partition_key",
            "subject",
            "content_type",
            "correlation_id",
            "to",
            "reply_to",
            "reply_to_session_id",
        ),
        str,
    ),
    "time_to_live": span_of,
    "scheduled_enqueue_time_utc": moment_of,
}
"""What can be set on a message by its name, and how its text is read."""

PROPERTY: Final = "property."
"""Begins the name of an application property where attributes are named too."""

TYPED: Final = ":"
"""Ends the name of one whose value is JSON: `property.price:=5` is a number."""

CONTENT: Final = (*ATTRIBUTES, "application_properties", "body", "body_base64")
FACTS: Final = (
    "sequence_number",
    "enqueued_sequence_number",
    "enqueued_time_utc",
    "expires_at_utc",
    "delivery_count",
    "state",
    "dead_letter_reason",
    "dead_letter_error_description",
    "dead_letter_source",
    "body_type",
)


def message_json(message: ServiceBusReceivedMessage, *, is_dead_letter: bool = False) -> dict[str, Any]:
    """What is set of a received message, and what the broker says of it.

    Args:
        is_dead_letter: the reason and the description are the broker's word, not properties of the message.
    """
    facts: dict[str, Any] = {name: getattr(message, name) for name in FACTS if name not in ("state", "body_type")}
    facts["state"] = message.state.name.lower()
    content = content_json(message)
    if is_dead_letter:
        properties = content.pop("application_properties", {})
        own = (DEAD_LETTER_REASON, DEAD_LETTER_DESCRIPTION)
        if kept := {name: value for name, value in properties.items() if name not in own}:
            content["application_properties"] = kept
    return {name: value for name, value in facts.items() if value is not None} | content


def content_json(message: ServiceBusMessage) -> dict[str, Any]:
    """What is set of a message; `body` is text, or `body_base64` where the body is not UTF-8."""
    fields: dict[str, Any] = {name: getattr(message, name) for name in ATTRIBUTES}
    fields["application_properties"] = {
        name: property_json(value) for name, value in message.application_properties.items()
    } or None
    return {name: value for name, value in fields.items() if value is not None} | _body_json(message)


def _body_json(message: ServiceBusMessage) -> dict[str, Any]:
    if message.body_type is not AmqpMessageBodyType.DATA:
        return {"body_type": message.body_type.value, "body": _value_json(message.body)}
    body = bytes(message)
    try:
        return {"body": body.decode()}
    except UnicodeDecodeError:
        return {"body_base64": base64.b64encode(body).decode()}


def _value_json(value: Any) -> Any:
    """A body that another client sent as an AMQP value, to be looked at."""
    if isinstance(value, list | tuple):
        return [_value_json(item) for item in value]
    if isinstance(value, Mapping):
        return {str(name): _value_json(item) for name, item in value.items()}
    try:
        return property_json(value)
    except TypeError:
        return str(value)


def message_of(place: str, fields: Mapping[str, Any]) -> ServiceBusMessage:
    """The message that an object stands for.

    Args:
        place: file and line, for errors.

    Raises:
        InvalidOperationError: a member is unknown, or is not what a message may have.
    """
    unknown = [name for name in fields if name not in CONTENT and name not in FACTS]
    if unknown:
        raise InvalidOperationError(f"{place}: no member {unknown[0]!r} is known; a message has {', '.join(CONTENT)}")
    if fields.get("body_type", AmqpMessageBodyType.DATA.value) != AmqpMessageBodyType.DATA.value:
        raise InvalidOperationError(f"{place}: its body is an AMQP {fields['body_type']}, only data can be sent")
    properties = {} if (given := fields.get("application_properties")) is None else given
    if not isinstance(properties, dict):
        raise InvalidOperationError(f"{place}: application_properties is no object")
    try:
        message = ServiceBusMessage(
            _body_of(fields),
            application_properties={name: property_of(value) for name, value in properties.items()},
        )
        for name, read in ATTRIBUTES.items():
            if (text := fields.get(name)) is not None:
                if not isinstance(text, str):
                    raise InvalidOperationError(f"{name} is a {type(text).__name__}, not a text")
                setattr(message, name, read(text))
    except InvalidOperationError as error:
        raise InvalidOperationError(f"{place}: {error}") from error
    return message


def _body_of(fields: Mapping[str, Any]) -> bytes:
    if "body_base64" in fields:
        if "body" in fields:
            raise InvalidOperationError("both body and body_base64 are given: leave one out")
        try:
            return base64.b64decode(fields["body_base64"], validate=True)
        except (binascii.Error, TypeError, ValueError) as error:
            raise InvalidOperationError("body_base64 is no base64") from error
    body = fields.get("body", "")
    text = body if isinstance(body, str) else json.dumps(body, ensure_ascii=False)
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise InvalidOperationError("half a surrogate pair, which is no character") from None


def named(option: str, settings: list[str]) -> list[tuple[str, str]]:
    """The pairs of a repeatable option `NAME=VALUE`, each of which names what a message has.

    Raises:
        InvalidOperationError: one does not.
    """
    pairs = [setting.partition("=") for setting in settings]
    for name, equals, _ in pairs:
        if not equals:
            raise InvalidOperationError(f"{option} {name!r} is not NAME=VALUE")
        if name not in ATTRIBUTES and not name.startswith(PROPERTY):
            known = ", ".join(ATTRIBUTES)
            raise InvalidOperationError(f"{option}: a message has no {name!r}; it has {known} and {PROPERTY}<name>")
    return [(name, value) for name, _, value in pairs]


def property_named(name: str, text: str) -> tuple[str, PropertyValue]:
    """An application property that was named among attributes: `property.<name>` is a text, `property.<name>:` JSON.

    Raises:
        InvalidOperationError: the text is not what it may be.
    """
    short = name.removeprefix(PROPERTY)
    if not short.endswith(TYPED):
        return short, text
    try:
        return short.removesuffix(TYPED), property_of(json.loads(text))
    except json.JSONDecodeError as error:
        raise InvalidOperationError(f"{name}={text!r:.50} is no JSON: {error.msg}") from error


def set_by_name(message: ServiceBusMessage, name: str, text: str) -> None:
    """Set an attribute or an application property by its name.

    Raises:
        InvalidOperationError: the text is not what it may be.
    """
    if name.startswith(PROPERTY):
        short, value = property_named(name, text)
        message.application_properties[short] = value
        return
    try:
        setattr(message, name, ATTRIBUTES[name](text))
    except InvalidOperationError as error:
        raise InvalidOperationError(f"{name} is {text!r:.50}: {error.message}") from error
