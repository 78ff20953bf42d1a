"""Options for paired namespaces, syphons and retries, with units, defaults and sources.

Values are checked when the object is created.

Sources: "documented" means the page on paired namespaces of the retired .NET client. Everything else is our choice.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from difflib import get_close_matches
from typing import Any, Final, Literal

from sbclient.errors import (
    InvalidOperationError,
    OperationTimeoutError,
    ServiceBusCommunicationError,
    ServiceBusConnectionError,
    ServiceBusError,
    ServiceBusInternalError,
    ServiceBusServerBusyError,
)
from sbclient.settings.kinds import POSITIVE_SECONDS, RATE, SIZE, ValueKind, duration, timespan, whole
from sbclient.settings.table import check_settings, documented, setting, settings_of

PARTNER_CLOSE_GRACE: Final = timedelta(seconds=5)
"""Time from closing one client of a pair until the other is faulted, unless it is closed too (documented)."""

BACKLOG_HEADROOM_BYTES: Final = 1024
"""The most bytes that the rewrite for a backlog queue may add to a message; it uses about 512."""

SERVER_BUSY_PAUSE: Final = timedelta(seconds=10)
"""How long a client waits after the service reported that it is busy (documented)."""


ORIGINAL_OUTAGE_ERRORS: Final = (
    OperationTimeoutError,
    ServiceBusConnectionError,
    ServiceBusCommunicationError,
    ServiceBusInternalError,
    ServiceBusServerBusyError,
)
"""For `is_outage`: the errors that start the failover interval of the original .NET client, as measured with it."""


def _is_outage_rule(value: Any) -> bool:
    kinds = value if isinstance(value, tuple) else ()
    return callable(value) or (
        bool(kinds) and all(isinstance(kind, type) and issubclass(kind, ServiceBusError) for kind in kinds)
    )


OUTAGE_RULE: Final = ValueKind(
    word="function or error classes",
    metavar="",
    read=str,
    allows=_is_outage_rule,
    advice="it is a function: use the client itself",
    advice_in_code="give a function of an error, or a tuple of error classes",
)


@documented
@dataclass(frozen=True, slots=True, kw_only=True)
class PairedNamespaceOptions:
    """How a client behaves when its primary namespace fails.

    Raises:
        InvalidOperationError: a value is out of its range. The text shows the value and the range.
    """

    failover_interval: timedelta = setting(
        "How long an entity must fail, without any success, before its sends are diverted; 0 diverts at the first "
        "outage error, including that send.",
        kind=timespan(timedelta(0), timedelta(minutes=60)),
        default=timedelta(minutes=1),  # documented
    )
    ping_primary_interval: timedelta = setting(
        "The pause between two pings of a failed-over entity, with a jitter of ±10 %.",
        kind=timespan(timedelta(seconds=1), timedelta(minutes=30)),
        default=timedelta(minutes=1),  # documented
    )
    backlog_queue_count: int = setting(
        "The number of backlog queues in the secondary.",
        kind=whole(1),
        default=10,
        unit="queues",  # documented
    )
    enable_syphon: bool = setting(
        "Whether this process also drains the backlog into the primary. At least one process must (documented).",
        default=False,
    )
    divert_while_suspect: bool = setting(
        "Whether sends that fail during the failover interval are diverted at once instead of raising.", default=False
    )
    pings_to_recover: int = setting("Consecutive accepted pings that end a failover.", kind=whole(1), default=1)
    probe: Literal["message", "link"] = setting(
        "The kind of ping: `message`, an empty message with a time to live of 1 s that the broker never delivers "
        "(documented), or `link`, which opens and closes a sender link and sends no message.",
        default="message",
    )
    backlog_time_to_live: Literal["remaining", "restart"] = setting(
        "How the syphon restores a finite time to live: `remaining` restores what is left of it, `restart` all of it, "
        "as the .NET client did.",
        default="remaining",
    )
    ordering: Literal["none", "session"] = setting(
        "With `session`, session-enabled backlog queues keep the order within each session across a failover. Requires "
        "that each session has one producer.",
        default="none",
    )
    provision: Literal["create", "verify", "none"] = setting(
        "How missing backlog queues are handled: `create` creates them, `verify` raises an error, `none` does not "
        "check, for identities without the Manage right.",
        default="create",
    )
    primary_name: str | None = setting(
        "The first segment of the names of the backlog queues. Default: the first DNS label of the primary."
    )
    reserve_backlog_headroom: bool = setting(
        "Whether messages that fit the primary, but do not fit a backlog queue after the rewrite, which adds up to "
        "1 KiB, are rejected even while the primary is healthy.",
        default=True,
    )
    missing_entity_grace: timedelta = setting(
        "How long the syphon keeps messages for an entity that does not exist before it dead-letters them.",
        kind=timespan(timedelta(0), timedelta(days=3650)),
        default=timedelta(hours=24),
    )
    syphon_long_poll: timedelta = setting(
        "How long one receive of the syphon waits at an empty backlog queue.",
        kind=timespan(timedelta(seconds=1), timedelta(hours=24)),
        default=timedelta(minutes=15),  # documented
    )
    syphon_destinations: Sequence[str] | None = setting(
        "The queues and topics that the syphon may send to, by name or shell pattern such as eu/*. Case is ignored. It "
        "dead-letters messages for other entities. Default: all."
    )
    receive_from: Literal["primary", "both"] = setting(
        "Whether receivers take messages from the entity of the same path in the secondary, too. A receiver can choose "
        "otherwise.",
        default="primary",
    )
    redirect_after: timedelta | None = setting(
        "How long the primary must refuse an entity with outage errors before the syphon delivers its messages to the "
        "entity of the same path in the secondary; 0 = from the first refusal. Default: never.",
        kind=timespan(timedelta(0), timedelta(days=365)),
    )
    redirect_sessions: bool = setting(
        "Whether the syphon redirects the ordered sessions of `ordering=session`, too. Their order is then not kept "
        "when the primary is back.",
        default=False,
    )
    is_outage: Callable[[ServiceBusError], bool] | tuple[type[ServiceBusError], ...] | None = setting(
        "Decides whether an error that remains after the retries is an outage: a function of the error, or a tuple of "
        "error classes, such as `ORIGINAL_OUTAGE_ERRORS`. Default: the built-in rule.",
        kind=OUTAGE_RULE,
    )

    def __post_init__(self) -> None:
        check_settings(self)


@documented
@dataclass(frozen=True, slots=True, kw_only=True)
class SyphonLimits:
    """The limits of one syphon: rates, and messages in flight.

    Raises:
        InvalidOperationError: a value is out of its range. The text shows the value and the range.
    """

    max_messages_per_second: float | None = setting(
        "The rate of sends to the primary, all entities together.", kind=RATE, unit="messages/second"
    )
    max_messages_per_second_per_destination: float | None = setting(
        "The rate of sends to each entity. Messages for other entities behind them in the same backlog queue wait too.",
        kind=RATE,
        unit="messages/second",
    )
    max_queues_polled: int | None = setting(
        "Concurrent receives at backlog queues; further queues are polled later. Default: one for each queue, and four "
        "for each session queue.",
        kind=whole(1),
        unit="receives",
    )
    max_messages_in_flight: int = setting(
        "Messages in flight from each backlog queue: while some are sent and others completed, the next ones arrive.",
        kind=whole(1, 5_000),  # the locks of more messages cannot be renewed in time
        default=300,
        unit="messages",
    )
    max_bytes_in_flight: int = setting(
        "The encoded size of all messages in flight, divided equally among the backlog queues. The average message "
        "size is used, and one message of each queue is always allowed.",
        kind=SIZE,
        default=64 * 1024 * 1024,
    )

    def __post_init__(self) -> None:
        check_settings(self)


@documented
@dataclass(frozen=True, slots=True, kw_only=True)
class RetryOptions:
    """The retry policy, with the names of the SDK.

    Raises:
        InvalidOperationError: a value is not a number or is negative, or the timeout is 0.
    """

    retry_total: int = setting("Retries after the first attempt.", kind=whole(0), default=3)  # as in the SDK
    retry_backoff_factor: float = setting(
        "The pause before the first retry, doubled each time, with jitter.",
        kind=duration(),
        default=0.8,  # as in the SDK
    )
    retry_backoff_max: float = setting("The longest pause.", kind=duration(), default=30.0)
    timeout: float = setting(
        "The time for one operation, including all retries and a diversion. The service needs up to 15 s to store a "
        "message elsewhere when a fragment of a partitioned entity does not respond.",
        kind=POSITIVE_SECONDS,
        default=60.0,
    )

    def __post_init__(self) -> None:
        check_settings(self)


PAIR_OPTIONS: Final = settings_of(PairedNamespaceOptions)
SYPHON_LIMITS: Final = settings_of(SyphonLimits)
RETRY_OPTIONS: Final = settings_of(RetryOptions)


_OF_ADMINISTRATION: Final = "administration only: "
_LINKS_ARE_SHARED: Final = "links are shared and replaced"
_TIMEOUT_OF_A_CALL: Final = "the timeout of a call limits its time"
_OWN_ENGINE: Final = "this client has its own AMQP engine"


@dataclass(frozen=True, slots=True)
class TransportOption:
    """An option of azure-servicebus that a client passes to its transport.

    Attributes:
        meaning: with its unit.
        default: as text.
        transports: the names of those that it has an effect on.
        ignored_because: the reason or the replacement where it has no effect and a `UserWarning` says so; None = a
            transport that does not take it rejects it.
        is_of_link: whether azure-servicebus accepts it for a sender or receiver too.
    """

    meaning: str
    default: str = "None"
    transports: tuple[str, ...] = ("amqp", "sdk")
    ignored_because: str | None = None
    is_of_link: bool = False


_SDK: Final = ("sdk",)

TRANSPORT_OPTIONS: Final[Mapping[str, TransportOption]] = {
    "amqp_transport": TransportOption("a class of azure-servicebus", "", _SDK, _OWN_ENGINE),
    "auth_timeout": TransportOption("seconds for the authorization", "60", _SDK, _TIMEOUT_OF_A_CALL, is_of_link=True),
    "client_identifier": TransportOption(
        "the name of the client in logs of the service",
        "a random one",
        ignored_because=_LINKS_ARE_SHARED,
        is_of_link=True,
    ),
    "connection_verify": TransportOption(
        "the path of a file with the certificates to trust, in PEM; False accepts every certificate",
        "the authorities of the system, with `sdk` those of certifi",
    ),
    "custom_endpoint_address": TransportOption(
        "`sb://host:port` to connect to, such as a gateway; the default port is 443, and the default of "
        "`transport_type` becomes AMQP over WebSockets"
    ),
    "http_proxy": TransportOption(
        "a dict with `proxy_hostname`, a name or `http://name`, `proxy_port` and perhaps `username` and `password`; "
        "AMQP then goes over WebSockets"
    ),
    "keep_alive": TransportOption(
        "seconds between two heartbeats", "30", _SDK, "connections are kept alive", is_of_link=True
    ),
    "logging_enable": TransportOption(
        "whether azure-servicebus logs AMQP frames",
        "False",
        _SDK,
        "set the level of the logger 'sbclient' instead",
        is_of_link=True,
    ),
    "proxies": TransportOption(_OF_ADMINISTRATION + "a dict of HTTP proxies by scheme", "those of `http_proxy`", _SDK),
    "retry_mode": TransportOption(
        "`fixed` or `exponential`", "", (), "retries always use exponential back-off", is_of_link=True
    ),
    "socket_timeout": TransportOption(
        "seconds for a call of the socket", "0.2; 1 over WebSockets", _SDK, _TIMEOUT_OF_A_CALL, is_of_link=True
    ),
    "ssl_context": TransportOption("an `ssl.SSLContext`, instead of `connection_verify`"),
    "transport_type": TransportOption(
        "`TransportType.Amqp`, port 5671, or `TransportType.AmqpOverWebsocket`, port 443", "TransportType.Amqp"
    ),
    "try_timeout": TransportOption("seconds for one attempt", "no limit", _SDK, _TIMEOUT_OF_A_CALL),
    "uamqp_transport": TransportOption("whether to use the library uamqp", "", (), _OWN_ENGINE),
    "use_tls": TransportOption("whether to use TLS", "True; False for an emulator", _SDK),
    "user_agent": TransportOption("a text that names the program in the logs of the service"),
}
"""The options of a client beyond the arguments of its class, with the names and meanings of azure-servicebus."""

OWN_OPTIONS: Final = (
    "transport",
    "secondary",
    "secondary_transport",
    "options",
    "enable_cross_entity_transactions",
    *RETRY_OPTIONS,
    "random",
)
"""The options in the signature of a client, here for errors."""

OF_LINKS: Final = frozenset(name for name, option in TRANSPORT_OPTIONS.items() if option.is_of_link)
"""Those that a sender or receiver accepts too, without an effect."""


def options_of(transport: str) -> frozenset[str]:
    """Return the names of the options that have an effect on a transport, `"amqp"` or `"sdk"`."""
    return frozenset(name for name, option in TRANSPORT_OPTIONS.items() if transport in option.transports)


def without_ignored(options: Mapping[str, Any], transport: object, *, stacklevel: int) -> dict[str, Any]:
    """Return options without those that have no effect. One `UserWarning` names them, unless they are off.

    Args:
        options: the options by name.
        transport: `"amqp"` or `"sdk"`; `"link"` for the options of one link, none of which has an effect. None, or an
            object, counts as `"amqp"`.
        stacklevel: as of `warnings.warn`; 1 = the caller of this function.
    """
    takes = transport if isinstance(transport, str) else "amqp"
    ignored = {
        name: option.ignored_because
        for name, option in TRANSPORT_OPTIONS.items()
        if name in options and option.ignored_because is not None and takes not in option.transports
    }
    reasons = [f"{name} ({reason})" for name, reason in ignored.items() if options[name] not in (None, False)]
    if reasons:
        text = f"options of azure-servicebus that have no effect here: {', '.join(reasons)}; remove them"
        warnings.warn(text, UserWarning, stacklevel=stacklevel + 1)
    return {name: value for name, value in options.items() if name not in ignored}


def check_known(options: Iterable[str], known: Iterable[str]) -> None:
    """Check the names of options of a client against those of its transport.

    Raises:
        InvalidOperationError: one is unknown. The text has the most similar name and all valid ones.
    """
    valid = sorted({*known, *OWN_OPTIONS})
    for name in sorted(set(options) - set(known)):
        near = get_close_matches(name, valid, n=1)
        advice = f"did you mean {near[0]!r}? The options are" if near else "use one of"
        raise InvalidOperationError(f"{name!r} is not an option of a client: {advice} {', '.join(valid)}")
