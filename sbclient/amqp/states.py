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
    FIELDS,
    STRING,
    SYMBOL,
    UINT,
    ULONG,
    Field,
    composite_kind,
    define,
)


class Received(NamedTuple):
    """How far a delivery has come; no outcome."""

    section_number: int
    section_offset: int


class Accepted(NamedTuple):
    """The receiver has taken the message."""


class Rejected(NamedTuple):
    """The receiver finds the message invalid. Service Bus: dead-letter it; as an answer to a send: refused."""

    error: AmqpError | None = None


class Released(NamedTuple):
    """The receiver has not looked at the message; it may go to anybody."""


class Modified(NamedTuple):
    """The receiver gives the message back changed. Service Bus: abandon, or defer if `undeliverable_here`."""

    delivery_failed: bool | None = None
    undeliverable_here: bool | None = None
    message_annotations: Mapping[str, Any] | None = None


class Declared(NamedTuple):
    """The coordinator has begun a transaction: the outcome of a delivery that holds a `Declare`."""

    txn_id: bytes


class TransactionalState(NamedTuple):
    """An outcome that counts once its transaction is committed; on a transfer without an outcome."""

    txn_id: bytes
    outcome: Outcome | None = None


class Declare(NamedTuple):
    """Asks the coordinator to begin a transaction; the value of a message."""

    global_id: Any = None


class Discharge(NamedTuple):
    """Asks the coordinator to end a transaction, by rolling it back if `fail`; the value of a message."""

    txn_id: bytes
    fail: bool | None = None


Outcome: TypeAlias = Accepted | Rejected | Released | Modified | Declared
DeliveryState: TypeAlias = Outcome | Received | TransactionalState

ACCEPTED: Final = Accepted()
RELEASED: Final = Released()

define(
    AmqpError,
    0x1D,
    "amqp:error:list",
    Field("condition", SYMBOL, is_mandatory=True),
    Field("description", STRING),
    Field("info", FIELDS),
    keep_nulls=True,  # the SDK indexes all three, and hangs where one is missing
)
ERROR: Final = composite_kind("an error", AmqpError)

define(Received, 0x23, "amqp:received:list", Field("section_number", UINT, 0), Field("section_offset", ULONG, 0))
define(Accepted, 0x24, "amqp:accepted:list")
define(Rejected, 0x25, "amqp:rejected:list", Field("error", ERROR))
define(Released, 0x26, "amqp:released:list")
define(
    Modified,
    0x27,
    "amqp:modified:list",
    Field("delivery_failed", BOOLEAN),
    Field("undeliverable_here", BOOLEAN),
    Field("message_annotations", FIELDS),
)
define(Declare, 0x31, "amqp:declare:list", Field("global_id", ANY))
define(Discharge, 0x32, "amqp:discharge:list", Field("txn_id", BINARY, is_mandatory=True), Field("fail", BOOLEAN))
define(Declared, 0x33, "amqp:declared:list", Field("txn_id", BINARY, is_mandatory=True))

OUTCOME: Final = composite_kind("an outcome", Accepted, Rejected, Released, Modified, Declared)
define(
    TransactionalState,
    0x34,
    "amqp:transactional-state:list",
    Field("txn_id", BINARY, is_mandatory=True),
    Field("outcome", OUTCOME),
)
STATE: Final = composite_kind(
    "a delivery state", Accepted, Rejected, Released, Modified, Declared, Received, TransactionalState
)


def is_terminal(state: DeliveryState | None) -> bool:
    """Whether a delivery in this state has an outcome."""
    if isinstance(state, TransactionalState):
        return state.outcome is not None
    return state is not None and not isinstance(state, Received)
