"""Received messages as JSON objects, and options that set an attribute of a message by its name.

A received message has the members in `message_json.CONTENT`, and those in `FACTS`, which the broker adds and a send
ignores. So a message that was received can be sent again with the same body, properties, ids and schedule.
"""

from __future__ import annotations

from collections.abc import Mapping
from json.encoder import encode_basestring as quoted
from operator import attrgetter
from typing import Any, Final

from sbclient.cli.json_values import plain
from sbclient.errors import InvalidOperationError
from sbclient.formats.message_json import (
    ATTRIBUTES,
    PROPERTY,
    TEXTS,
    content_json,
    duration_text,
    property_named,
    texts_of,
    timestamp_text,
)
from sbclient.formats.message_json import message_of as read_message
from sbclient.message import (
    DEAD_LETTER_DESCRIPTION,
    DEAD_LETTER_REASON,
    AmqpMessageBodyType,
    ServiceBusMessage,
    ServiceBusReceivedMessage,
)
from sbclient.settings.table import suggestion
from sbclient.telemetry.log import printable_json, printable_line

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
_TIMES: Final = ("enqueued_time_utc", "expires_at_utc")
_PLAIN_FACTS: Final = tuple(name for name in FACTS if name != "state")
_plain_facts_of: Final = attrgetter(*_PLAIN_FACTS)


def message_json(message: ServiceBusReceivedMessage, *, is_dead_letter: bool = False) -> dict[str, Any]:
    """Return the attributes of a received message that are set, and the facts that the broker adds.

    Args:
        is_dead_letter: leave the properties out in which the broker stores the reason and the description.
    """
    values = zip(_PLAIN_FACTS, _plain_facts_of(message), strict=True)
    facts: dict[str, Any] = {name: value for name, value in values if value is not None}
    for name in _TIMES:
        if name in facts:
            facts[name] = timestamp_text(facts[name])
    facts["state"] = message.state.name.lower()
    content = content_json(message)
    if is_dead_letter:
        properties = content.pop("application_properties", {})
        own = (DEAD_LETTER_REASON, DEAD_LETTER_DESCRIPTION)
        if kept := {name: value for name, value in properties.items() if name not in own}:
            content["application_properties"] = kept
    return facts | content


def message_line(message: ServiceBusReceivedMessage, *, is_dead_letter: bool = False) -> str:
    """Return `message_json` as one line of JSON, whose characters are `printable`.

    A message that has only texts and times, and a body of UTF-8, is written without a dict in between.
    """
    if message.body_type is not AmqpMessageBodyType.DATA or message.application_properties:
        return printable_json(message_json(message, is_dead_letter=is_dead_letter), plain)
    try:
        body = bytes(message).decode()
    except UnicodeDecodeError:
        return printable_json(message_json(message), plain)
    line = f'{{"sequence_number": {message.sequence_number}'
    if (original := message.enqueued_sequence_number) is not None:
        line += f', "enqueued_sequence_number": {original}'
    line += f', "enqueued_time_utc": "{timestamp_text(message.enqueued_time_utc)}"'
    if (expires := message.expires_at_utc) is not None:
        line += f', "expires_at_utc": "{timestamp_text(expires)}"'
    line += f', "delivery_count": {message.delivery_count}'
    if (source := message.dead_letter_source) is not None:
        line += f', "dead_letter_source": {quoted(source)}'
    line += f', "state": "{message.state.name.lower()}"'
    for name, text in zip(TEXTS, texts_of(message), strict=True):
        if text is not None:
            line += f', "{name}": {quoted(text)}'
    if (time_to_live := message.time_to_live) is not None and (text := duration_text(time_to_live)) is not None:
        line += f', "time_to_live": "{text}"'
    if (schedule := message.scheduled_enqueue_time_utc) is not None:
        line += f', "scheduled_enqueue_time_utc": "{timestamp_text(schedule)}"'
    return printable_line(f'{line}, "body": {quoted(body)}}}')


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
