"""The performatives, the content of frames, as named tuples with the default of each field.

Source: AMQP 1.0 part 2 section 2.7, part 3 section 3.5, part 4 section 4.5.1, part 5 section 5.3.
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
    MAP,
    STRING,
    SYMBOL,
    SYMBOLS,
    UBYTE,
    UINT,
    ULONG,
    USHORT,
    composite_kind,
    define,
)
from sbclient.amqp.states import ERROR, OUTCOME, STATE, DeliveryState, Outcome

NO_LIMIT: Final = 2**32 - 1
BATCH_FORMAT: Final = 0x80013700
"""The message format of a transfer that holds several messages (Service Bus)."""

ROLE_SENDER: Final = False
ROLE_RECEIVER: Final = True

SETTLE_UNSETTLED: Final = 0
SETTLE_SETTLED: Final = 1
SETTLE_MIXED: Final = 2
SETTLE_FIRST: Final = 0
SETTLE_SECOND: Final = 1


_ADDITIONS: Final = (SYMBOLS, SYMBOLS, FIELDS)
"""The types of the last fields of open, begin and attach: offered and desired capabilities, and properties."""


class Source(NamedTuple):
    """The node that sends the messages of a link."""

    address: Any = None
    durable: int = 0
    expiry_policy: str = "session-end"
    timeout: int = 0
    dynamic: bool = False
    dynamic_node_properties: Mapping[str, Any] | None = None
    distribution_mode: str | None = None
    filter: Mapping[str, Any] | None = None
    default_outcome: Outcome | None = None
    outcomes: tuple[str, ...] | None = None
    capabilities: tuple[str, ...] | None = None


define(Source, 0x28, "source", ANY, UINT, SYMBOL, UINT, BOOLEAN, FIELDS, SYMBOL, FIELDS, OUTCOME, SYMBOLS, SYMBOLS)


class Target(NamedTuple):
    """The node that receives the messages of a link."""

    address: Any = None
    durable: int = 0
    expiry_policy: str = "session-end"
    timeout: int = 0
    dynamic: bool = False
    dynamic_node_properties: Mapping[str, Any] | None = None
    capabilities: tuple[str, ...] | None = None


define(Target, 0x29, "target", ANY, UINT, SYMBOL, UINT, BOOLEAN, FIELDS, SYMBOLS)


class Coordinator(NamedTuple):
    """The target of a link on which transactions are declared and discharged."""

    capabilities: tuple[str, ...] | None = None


define(Coordinator, 0x30, "coordinator", SYMBOLS)


SOURCE: Final = composite_kind("a source", Source)
TARGET: Final = composite_kind("a target", Target, Coordinator)


class Open(NamedTuple):
    container_id: str
    hostname: str | None = None
    max_frame_size: int = NO_LIMIT
    channel_max: int = 65_535
    idle_time_out: int | None = None
    outgoing_locales: tuple[str, ...] | None = None
    incoming_locales: tuple[str, ...] | None = None
    offered_capabilities: tuple[str, ...] | None = None
    desired_capabilities: tuple[str, ...] | None = None
    properties: Mapping[str, Any] | None = None


define(Open, 0x10, "open", STRING, STRING, UINT, USHORT, UINT, SYMBOLS, SYMBOLS, *_ADDITIONS)


class Begin(NamedTuple):
    remote_channel: int | None
    next_outgoing_id: int
    incoming_window: int
    outgoing_window: int
    handle_max: int = NO_LIMIT
    offered_capabilities: tuple[str, ...] | None = None
    desired_capabilities: tuple[str, ...] | None = None
    properties: Mapping[str, Any] | None = None


define(Begin, 0x11, "begin", USHORT, UINT, UINT, UINT, UINT, *_ADDITIONS, optional=("remote_channel",))


class Attach(NamedTuple):
    """`role` is true for a receiver."""

    name: str
    handle: int
    role: bool
    snd_settle_mode: int = SETTLE_MIXED
    rcv_settle_mode: int = SETTLE_FIRST
    source: Source | None = None
    target: Target | Coordinator | None = None
    unsettled: Mapping[Any, Any] | None = None
    incomplete_unsettled: bool = False
    initial_delivery_count: int | None = None
    max_message_size: int | None = None
    offered_capabilities: tuple[str, ...] | None = None
    desired_capabilities: tuple[str, ...] | None = None
    properties: Mapping[str, Any] | None = None


define(
    Attach, 0x12, "attach", STRING, UINT, BOOLEAN, UBYTE, UBYTE, SOURCE, TARGET, MAP, BOOLEAN, UINT, ULONG, *_ADDITIONS
)


class Flow(NamedTuple):
    """Without a handle it has the state of the session only."""

    next_incoming_id: int | None
    incoming_window: int
    next_outgoing_id: int
    outgoing_window: int
    handle: int | None = None
    delivery_count: int | None = None
    link_credit: int | None = None
    available: int | None = None
    drain: bool = False
    echo: bool = False
    properties: Mapping[str, Any] | None = None


define(
    Flow,
    0x13,
    "flow",
    UINT,
    UINT,
    UINT,
    UINT,
    UINT,
    UINT,
    UINT,
    UINT,
    BOOLEAN,
    BOOLEAN,
    FIELDS,
    optional=("next_incoming_id",),
)


class Transfer(NamedTuple):
    """The head of a frame with a part of a message. Id, tag and format are in the first frame of a delivery."""

    handle: int
    delivery_id: int | None = None
    delivery_tag: bytes | None = None
    message_format: int | None = None
    settled: bool | None = None
    more: bool = False
    rcv_settle_mode: int | None = None
    state: DeliveryState | None = None
    resume: bool = False
    aborted: bool = False
    batchable: bool = False


define(Transfer, 0x14, "transfer", UINT, UINT, BINARY, UINT, BOOLEAN, BOOLEAN, UBYTE, STATE, BOOLEAN, BOOLEAN, BOOLEAN)


class Disposition(NamedTuple):
    """The state of deliveries `first` to `last`; `last` None means `first`. `role` is that of its sender."""

    role: bool
    first: int
    last: int | None = None
    settled: bool = False
    state: DeliveryState | None = None
    batchable: bool = False


define(Disposition, 0x15, "disposition", BOOLEAN, UINT, UINT, BOOLEAN, STATE, BOOLEAN)


class Detach(NamedTuple):
    handle: int
    closed: bool = False
    error: AmqpError | None = None


define(Detach, 0x16, "detach", UINT, BOOLEAN, ERROR)


class End(NamedTuple):
    error: AmqpError | None = None


define(End, 0x17, "end", ERROR)


class Close(NamedTuple):
    error: AmqpError | None = None


define(Close, 0x18, "close", ERROR)


class SaslMechanisms(NamedTuple):
    mechanisms: tuple[str, ...]


define(SaslMechanisms, 0x40, "sasl-mechanisms", SYMBOLS)


class SaslInit(NamedTuple):
    mechanism: str
    initial_response: bytes | None = None
    hostname: str | None = None

    def __repr__(self) -> str:
        """Hide the response: that of PLAIN contains a key."""
        return f"SaslInit(mechanism={self.mechanism!r}, hostname={self.hostname!r})"


define(SaslInit, 0x41, "sasl-init", SYMBOL, BINARY, STRING)


class SaslChallenge(NamedTuple):
    challenge: bytes


define(SaslChallenge, 0x42, "sasl-challenge", BINARY)


class SaslResponse(NamedTuple):
    response: bytes

    def __repr__(self) -> str:
        """Hide the response: it may contain a key."""
        return f"SaslResponse({len(self.response)} bytes)"


define(SaslResponse, 0x43, "sasl-response", BINARY)


class SaslOutcome(NamedTuple):
    """`code` 0 is success, 1 a failed authentication, 2 to 4 are failures of the server."""

    code: int
    additional_data: bytes | None = None


define(SaslOutcome, 0x44, "sasl-outcome", UBYTE, BINARY)


Performative: TypeAlias = Open | Begin | Attach | Flow | Transfer | Disposition | Detach | End | Close
SaslFrame: TypeAlias = SaslMechanisms | SaslInit | SaslChallenge | SaslResponse | SaslOutcome
