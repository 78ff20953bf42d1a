"""The settlement for each AMQP outcome of a receiver, and its confirmation.

    accepted                        complete
    rejected(error)                 dead-letter; the info of the error, or the error itself, has the reason
    modified, undeliverable-here    defer
    modified                        abandon, as a failed delivery for any value of delivery-failed
    released, or none               release, as if it was never delivered

The annotations of a modified outcome, and the other entries of the info, become application properties.

Source: the service's documented outcomes. The confirmation repeats the outcome, but a rejected one without its
error, because an error would mean that the settlement failed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sbclient.amqp import RELEASED, Accepted, AmqpError, Modified, Rejected, TransactionalState
from sbclient.amqp.servicebus import DEAD_LETTER
from sbclient.amqp.states import DeliveryState
from sbclient.amqp.types import Array, Described
from sbclient.delivery import Settlement, SettleMode
from sbclient.emulator.amqp.conditions import ArgumentError
from sbclient.message import DEAD_LETTER_DESCRIPTION, DEAD_LETTER_REASON

_COMPLETE = Settlement(SettleMode.COMPLETE)


def settlement_of(outcome: DeliveryState | None) -> Settlement | None:
    """The settlement for an outcome; None = release the message.

    Raises:
        ArgumentError: a property has a type that application properties cannot have.
    """
    if isinstance(outcome, Accepted):
        return _COMPLETE
    if isinstance(outcome, Modified):
        mode = SettleMode.DEFER if outcome.undeliverable_here else SettleMode.ABANDON
        return Settlement(mode, properties=properties_of(outcome.message_annotations))
    if isinstance(outcome, Rejected):
        return _dead_lettering(outcome.error)
    return None


def confirmation_of(outcome: DeliveryState | None) -> DeliveryState:
    """The state that confirms an outcome."""
    if isinstance(outcome, TransactionalState):
        inner = outcome.outcome
        return outcome._replace(outcome=Rejected() if isinstance(inner, Rejected) else inner)
    if isinstance(outcome, Rejected):
        return Rejected()
    return RELEASED if outcome is None else outcome


def _dead_lettering(error: AmqpError | None) -> Settlement:
    if error is None:
        return Settlement(SettleMode.DEAD_LETTER)
    others = dict(error.info or {})
    reason = _taken_text(others, DEAD_LETTER_REASON)
    description = _taken_text(others, DEAD_LETTER_DESCRIPTION)
    if error.condition != DEAD_LETTER and reason is None and description is None:
        reason, description = error.condition, error.description
    return Settlement(SettleMode.DEAD_LETTER, reason, description, properties_of(others))


def _taken_text(info: dict[Any, Any], name: str) -> str | None:
    """Remove and return a text. A value of another type stays: it becomes a property (seen with the service)."""
    value = info.get(name)
    if value is not None and not isinstance(value, str):
        return None
    info.pop(name, None)
    return value


def properties_of(sent: Mapping[Any, Any] | None) -> Mapping[str, Any] | None:
    """The application properties to set on a settled message.

    Raises:
        ArgumentError: a name is not a string, or a value is not simple.
    """
    if not sent:
        return None
    for name, value in sent.items():
        if not isinstance(name, str):
            raise ArgumentError(f"the name of a property is a {type(name).__name__}: give a string")
        if isinstance(value, list | dict | Array | Described):
            raise ArgumentError(f"property {name[:64]!r} is a {type(value).__name__}: give a simple value")
    return {str(name): value for name, value in sent.items()}
