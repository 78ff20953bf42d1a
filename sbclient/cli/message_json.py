"""Received messages as JSON objects, and options that set an attribute of a message by its name.

A received message has the members in `message_json.CONTENT`, and those in `FACTS`, which the broker adds and a send
ignores. So a message that was received can be sent again with the same body, properties, ids and schedule.
"""

from __future__ import annotations

from collections.abc import Mapping
from json.encoder import encode_basestring as quoted
from typing import Any, Final

from sbclient.errors import InvalidOperationError
from sbclient.formats.message_json import (
    ATTRIBUTES,
    PROPERTY,
    content_text,
    property_named,
    timestamp_text,
)
from sbclient.formats.message_json import message_of as read_message
from sbclient.message import (
    DEAD_LETTER_PROPERTIES,
    ServiceBusMessage,
    ServiceBusReceivedMessage,
)
from sbclient.settings.table import suggestion
from sbclient.telemetry.log import printable_line

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
)


def message_line(message: ServiceBusReceivedMessage, *, is_dead_letter: bool = False) -> str:
    """Return the attributes of a received message that are set, and the facts of the broker, as `printable` JSON.

    Args:
        is_dead_letter: leave the properties out in which the broker stores the reason and the description.
    """
    line = f'{{"sequence_number": {message.sequence_number}'
    if (original := message.enqueued_sequence_number) is not None:
        line += f', "enqueued_sequence_number": {original}'
    line += f', "enqueued_time_utc": "{timestamp_text(message.enqueued_time_utc)}"'
    if (expires := message.expires_at_utc) is not None:
        line += f', "expires_at_utc": "{timestamp_text(expires)}"'
    line += f', "delivery_count": {message.delivery_count}'
    if message.application_properties:
        for name in ("dead_letter_reason", "dead_letter_error_description"):
            if (text := getattr(message, name)) is not None:
                line += f', "{name}": {quoted(text)}'
    if (source := message.dead_letter_source) is not None:
        line += f', "dead_letter_source": {quoted(source)}'
    content = content_text(message, hidden=DEAD_LETTER_PROPERTIES if is_dead_letter else ())
    return printable_line(f'{line}, "state": "{message.state.name.lower()}", {content[1:]}')


def message_of(place: str, fields: Mapping[str, Any]) -> ServiceBusMessage:
    """Return the message that a JSON object describes.

    Args:
        place: file and line, for errors.

    Raises:
        InvalidOperationError: a member is unknown, or its value is not allowed.
    """
    try:
        return read_message(fields, ignored=FACTS)
    except InvalidOperationError as error:
        raise InvalidOperationError(f"{place}: {error.message}") from error


def named(option: str, settings: list[str]) -> list[tuple[str, str]]:
    """Split the values of a repeatable option `NAME=VALUE`, where NAME is an attribute of a message.

    Raises:
        InvalidOperationError: a value has no `=`, or a message has no such attribute.
    """
    pairs = [setting.partition("=") for setting in settings]
    for name, equals, _ in pairs:
        if not equals:
            raise InvalidOperationError(f"{option} {name!r} is not NAME=VALUE")
        if name not in ATTRIBUTES and not name.startswith(PROPERTY):
            known = suggestion(name, (*ATTRIBUTES, f"{PROPERTY}<name>"))
            raise InvalidOperationError(f"{option}: a message has no {name!r}: {known}")
    return [(name, value) for name, _, value in pairs]


def set_by_name(message: ServiceBusMessage, name: str, text: str) -> None:
    """Set an attribute or an application property by its name.

    Raises:
        InvalidOperationError: the text is not a value of the attribute.
    """
    if name.startswith(PROPERTY):
        short, value = property_named(name, text)
        message.application_properties[short] = value
        return
    try:
        setattr(message, name, ATTRIBUTES[name](text))
    except InvalidOperationError as error:
        raise InvalidOperationError(f"{name} is {text!r:.50}: {error.message}") from error
