"""The performatives: what peers tell each other in frames, as values, with the defaults of absent fields.

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
    Field,
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


class Source(NamedTuple):
    """Where the messages of a link come from."""

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


class Target(NamedTuple):
    """Where the messages of a link go."""

    address: Any = None
    durable: int = 0
    expiry_policy: str = "session-end"
    timeout: int = 0
    dynamic: bool = False
    dynamic_node_properties: Mapping[str, Any] | None = None
    capabilities: tuple[str, ...] | None = None


class Coordinator(NamedTuple):
    """The target of a link on which transactions are declared and discharged."""

    capabilities: tuple[str, ...] | None = None


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


class Begin(NamedTuple):
    remote_channel: int | None
    next_outgoing_id: int
    incoming_window: int
    outgoing_window: int
    handle_max: int = NO_LIMIT
    offered_capabilities: tuple[str, ...] | None = None
    desired_capabilities: tuple[str, ...] | None = None
    properties: Mapping[str, Any] | None = None


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


class Flow(NamedTuple):
    """Without a handle it speaks of the session only."""

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


class Transfer(NamedTuple):
    """What precedes a piece of a message. Id, tag and format stand in the first frame of a delivery."""

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


class Disposition(NamedTuple):
    """The state of deliveries `first` to `last`; `last` None means `first`. `role` is the speaker's."""

    role: bool
    first: int
    last: int | None = None
    settled: bool = False
    state: DeliveryState | None = None
    batchable: bool = False


class Detach(NamedTuple):
    handle: int
    closed: bool = False
    error: AmqpError | None = None


class End(NamedTuple):
    error: AmqpError | None = None


class Close(NamedTuple):
    error: AmqpError | None = None


class SaslMechanisms(NamedTuple):
    mechanisms: tuple[str, ...]


class SaslInit(NamedTuple):
    mechanism: str
    initial_response: bytes | None = None
    hostname: str | None = None

    def __repr__(self) -> str:
        """Without the response: that of PLAIN holds a key."""
        return f"SaslInit(mechanism={self.mechanism!r}, hostname={self.hostname!r})"


class SaslChallenge(NamedTuple):
    challenge: bytes


class SaslResponse(NamedTuple):
    response: bytes

    def __repr__(self) -> str:
        """Without the response: it may hold a key."""
        return f"SaslResponse({len(self.response)} bytes)"


class SaslOutcome(NamedTuple):
    """`code` 0 is success, 1 a refusal, 2 to 4 failures of the server."""

    code: int
    additional_data: bytes | None = None


Performative: TypeAlias = Open | Begin | Attach | Flow | Transfer | Disposition | Detach | End | Close
SaslFrame: TypeAlias = SaslMechanisms | SaslInit | SaslChallenge | SaslResponse | SaslOutcome

_TERMINUS: Final = (
    Field("address", ANY),
    Field("durable", UINT, 0),
    Field("expiry_policy", SYMBOL, "session-end"),
    Field("timeout", UINT, 0),
    Field("dynamic", BOOLEAN, False),
    Field("dynamic_node_properties", FIELDS),
)
define(
    Source,
    0x28,
    "amqp:source:list",
    *_TERMINUS,
    Field("distribution_mode", SYMBOL),
    Field("filter", FIELDS),
    Field("default_outcome", OUTCOME),
    Field("outcomes", SYMBOLS),
    Field("capabilities", SYMBOLS),
)
define(Target, 0x29, "amqp:target:list", *_TERMINUS, Field("capabilities", SYMBOLS))
define(Coordinator, 0x30, "amqp:coordinator:list", Field("capabilities", SYMBOLS))
define(
    Open,
    0x10,
    "amqp:open:list",
    Field("container_id", STRING, is_mandatory=True),
    Field("hostname", STRING),
    Field("max_frame_size", UINT, NO_LIMIT),
    Field("channel_max", USHORT, 65_535),
    Field("idle_time_out", UINT),
    Field("outgoing_locales", SYMBOLS),
    Field("incoming_locales", SYMBOLS),
    Field("offered_capabilities", SYMBOLS),
    Field("desired_capabilities", SYMBOLS),
    Field("properties", FIELDS),
)
define(
    Begin,
    0x11,
    "amqp:begin:list",
    Field("remote_channel", USHORT),
    Field("next_outgoing_id", UINT, is_mandatory=True),
    Field("incoming_window", UINT, is_mandatory=True),
    Field("outgoing_window", UINT, is_mandatory=True),
    Field("handle_max", UINT, NO_LIMIT),
    Field("offered_capabilities", SYMBOLS),
    Field("desired_capabilities", SYMBOLS),
    Field("properties", FIELDS),
)
define(
    Attach,
    0x12,
    "amqp:attach:list",
    Field("name", STRING, is_mandatory=True),
    Field("handle", UINT, is_mandatory=True),
    Field("role", BOOLEAN, is_mandatory=True),
    Field("snd_settle_mode", UBYTE, SETTLE_MIXED),
    Field("rcv_settle_mode", UBYTE, SETTLE_FIRST),
    Field("source", composite_kind("a source", Source)),
    Field("target", composite_kind("a target", Target, Coordinator)),
    Field("unsettled", MAP),
    Field("incomplete_unsettled", BOOLEAN, False),
    Field("initial_delivery_count", UINT),
    Field("max_message_size", ULONG),
    Field("offered_capabilities", SYMBOLS),
    Field("desired_capabilities", SYMBOLS),
    Field("properties", FIELDS),
)
define(
    Flow,
    0x13,
    "amqp:flow:list",
    Field("next_incoming_id", UINT),
    Field("incoming_window", UINT, is_mandatory=True),
    Field("next_outgoing_id", UINT, is_mandatory=True),
    Field("outgoing_window", UINT, is_mandatory=True),
    Field("handle", UINT),
    Field("delivery_count", UINT),
    Field("link_credit", UINT),
    Field("available", UINT),
    Field("drain", BOOLEAN, False),
    Field("echo", BOOLEAN, False),
    Field("properties", FIELDS),
)
_TRANSFER_TAIL: Final = (
    Field("message_format", UINT),
    Field("settled", BOOLEAN),
    Field("more", BOOLEAN, False),
    Field("rcv_settle_mode", UBYTE),
    Field("state", STATE),
    Field("resume", BOOLEAN, False),
    Field("aborted", BOOLEAN, False),
    Field("batchable", BOOLEAN, False),
)
define(
    Transfer,
    0x14,
    "amqp:transfer:list",
    Field("handle", UINT, is_mandatory=True),
    Field("delivery_id", UINT),
    Field("delivery_tag", BINARY),
    *_TRANSFER_TAIL,
)
define(
    Disposition,
    0x15,
    "amqp:disposition:list",
    Field("role", BOOLEAN, is_mandatory=True),
    Field("first", UINT, is_mandatory=True),
    Field("last", UINT),
    Field("settled", BOOLEAN, False),
    Field("state", STATE),
    Field("batchable", BOOLEAN, False),
)
define(
    Detach,
    0x16,
    "amqp:detach:list",
    Field("handle", UINT, is_mandatory=True),
    Field("closed", BOOLEAN, False),
    Field("error", ERROR),
)
define(End, 0x17, "amqp:end:list", Field("error", ERROR))
define(Close, 0x18, "amqp:close:list", Field("error", ERROR))
define(SaslMechanisms, 0x40, "amqp:sasl-mechanisms:list", Field("mechanisms", SYMBOLS, is_mandatory=True))
define(
    SaslInit,
    0x41,
    "amqp:sasl-init:list",
    Field("mechanism", SYMBOL, is_mandatory=True),
    Field("initial_response", BINARY),
    Field("hostname", STRING),
)
define(SaslChallenge, 0x42, "amqp:sasl-challenge:list", Field("challenge", BINARY, is_mandatory=True))
define(SaslResponse, 0x43, "amqp:sasl-response:list", Field("response", BINARY, is_mandatory=True))
define(
    SaslOutcome,
    0x44,
    "amqp:sasl-outcome:list",
    Field("code", UBYTE, is_mandatory=True),
    Field("additional_data", BINARY),
)
