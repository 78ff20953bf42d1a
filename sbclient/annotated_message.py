"""A received message as AMQP 1.0 describes it, section by section, with the names of `azure.servicebus.amqp`."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID


class AmqpMessageBodyType(StrEnum):
    """How the body is encoded in AMQP 1.0. A member equals the one of `azure.servicebus.amqp`."""

    DATA = "data"
    SEQUENCE = "sequence"
    VALUE = "value"


@dataclass(slots=True, kw_only=True)
class AmqpMessageHeader:
    """The header section. `time_to_live` is in milliseconds; None = the field is not set."""

    delivery_count: int | None = None
    time_to_live: int | None = None
    durable: bool | None = None
    first_acquirer: bool | None = None
    priority: int | None = None


@dataclass(slots=True, kw_only=True)
class AmqpMessageProperties:
    """The properties section, with AMQP's names: `group_id` is the session id. None = the field is not set."""

    message_id: str | int | UUID | bytes | None = None
    user_id: bytes | None = field(default=None, repr=False)
    to: str | None = None
    subject: str | None = None
    reply_to: str | None = None
    correlation_id: str | int | UUID | bytes | None = None
    content_type: str | None = None
    content_encoding: str | None = None
    absolute_expiry_time: datetime | int | None = None
    creation_time: datetime | int | None = None
    group_id: str | None = None
    group_sequence: int | None = None
    reply_to_group_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AmqpAnnotatedMessage:
    """The sections of a received message. Changing them does not change the message. It can be sent.

    Attributes:
        content: the body as it is stored: bytes or a tuple of bytes, a list of sequences, or a value.
        annotations: of the message, by name; timestamps as `datetime`.
    """

    properties: AmqpMessageProperties
    header: AmqpMessageHeader
    footer: Mapping[str, Any] = field(default_factory=dict, repr=False)
    annotations: Mapping[str, Any] = field(repr=False)
    delivery_annotations: Mapping[str, Any] = field(default_factory=dict, repr=False)
    application_properties: Mapping[str, Any] = field(repr=False)
    content: Any = field(repr=False)
    body_type: AmqpMessageBodyType

    @property
    def body(self) -> Any:
        """An iterator over the data sections, a list of sequences, or a value, depending on `body_type`."""
        if self.body_type is not AmqpMessageBodyType.DATA:
            return self.content
        return iter((self.content,) if isinstance(self.content, bytes) else self.content)


class ApplicationProperties(dict[str, Any]):
    """The application properties of a message. A lookup by `bytes`, the names in azure-servicebus, warns."""

    __slots__ = ()

    def __missing__(self, name: object) -> Any:
        _warn_of_bytes(name)
        raise KeyError(name)

    def __contains__(self, name: object) -> bool:
        _warn_of_bytes(name)
        return super().__contains__(name)

    def get(self, name: Any, default: Any = None) -> Any:
        """Return the value of a property; the default if there is none."""
        _warn_of_bytes(name)
        return super().get(name, default)


def _warn_of_bytes(name: object) -> None:
    if isinstance(name, bytes):
        text = name.decode(errors="replace")
        warnings.warn(f"{name!r} is not found: look up {text!r}, names are of type str", UserWarning, stacklevel=3)
