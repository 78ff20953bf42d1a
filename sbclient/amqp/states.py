"""Delivery states and outcomes, those of transactions included, and the two requests of a transaction coordinator.

Source: AMQP 1.0 part 3 section 3.4 and part 4 section 4.5.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple, TypeAlias

from sbclient.amqp.errors import AmqpError
from sbclient.amqp.fields import (
    ANY,
    BINARY,
    BOOLEAN,
    STRING,
    SYMBOL,
    TYPED_FIELDS,
    UINT,
    ULONG,
    composite_kind,
    define,
)

# The SDK reads all three fields of an error, and hangs if one is missing.
define(AmqpError, 0x1D, "error", SYMBOL, STRING, TYPED_FIELDS, keep_nulls=True)
ERROR: Final = composite_kind("an error", AmqpError)


class Received(NamedTuple):
    """How much of a delivery the peer has received; not an outcome."""

    section_number: int = 0
    section_offset: int = 0


define(Received, 0x23, "received", UINT, ULONG)


class _Fieldless(NamedTuple):
    """A state without fields. It equals those of its class; as tuples all of them would be equal."""

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other)

    def __ne__(self, other: object) -> bool:
        return type(self) is not type(other)

    def __hash__(self) -> int:
        return 0


class Accepted(_Fieldless):
    """The receiver has processed the message."""

    __slots__ = ()


define(Accepted, 0x24, "accepted")


class Rejected(NamedTuple):
    """The receiver rejects the message. Service Bus: dead-letter the message; in answer to a send: an error."""

    error: AmqpError | None = None


define(Rejected, 0x25, "rejected", ERROR)


class Released(_Fieldless):
    """The receiver has not processed the message; it can be delivered again."""

    __slots__ = ()


define(Released, 0x26, "released")


class Modified(NamedTuple):
    """The receiver returns the message with changes. Service Bus: abandon, or defer if `undeliverable_here`."""

    delivery_failed: bool | None = None
    undeliverable_here: bool | None = None
    message_annotations: Mapping[str, Any] | None = None


define(Modified, 0x27, "modified", BOOLEAN, BOOLEAN, TYPED_FIELDS)


class Declared(NamedTuple):
    """The coordinator has begun a transaction: the outcome of a delivery that holds a `Declare`."""

    txn_id: bytes


define(Declared, 0x33, "declared", BINARY)


OUTCOME: Final = composite_kind("an outcome", Accepted, Rejected, Released, Modified, Declared)


class TransactionalState(NamedTuple):
    """An outcome that takes effect when its transaction is committed; on a transfer it has no outcome."""

    txn_id: bytes
    outcome: Outcome | None = None


define(TransactionalState, 0x34, "transactional-state", BINARY, OUTCOME)


class Declare(NamedTuple):
    """The request to begin a transaction: the value of a message to the coordinator."""

    global_id: Any = None


define(Declare, 0x31, "declare", ANY)


class Discharge(NamedTuple):
    """The request to commit a transaction, or to roll it back if `fail`: the value of a message."""

    txn_id: bytes
    fail: bool | None = None


define(Discharge, 0x32, "discharge", BINARY, BOOLEAN)


Outcome: TypeAlias = Accepted | Rejected | Released | Modified | Declared
DeliveryState: TypeAlias = Outcome | Received | TransactionalState

ACCEPTED: Final = Accepted()
RELEASED: Final = Released()

STATE: Final = composite_kind(
    "a delivery state", Accepted, Rejected, Released, Modified, Declared, Received, TransactionalState
)


def is_terminal(state: DeliveryState | None) -> bool:
    """Whether a delivery in this state has an outcome."""
    if isinstance(state, TransactionalState):
        return state.outcome is not None
    return state is not None and not isinstance(state, Received)
