"""Options for paired namespaces, syphons and retries, with units, defaults and sources.

Values are checked when the object is created.

Sources: "documented" means the page on paired namespaces of the retired .NET client. Everything else is our choice.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from difflib import get_close_matches
from typing import Any, Final, Literal, get_args, get_type_hints

from sbclient.errors import (
    InvalidOperationError,
    OperationTimeoutError,
    ServiceBusCommunicationError,
    ServiceBusConnectionError,
    ServiceBusError,
    ServiceBusInternalError,
    ServiceBusServerBusyError,
)

PARTNER_CLOSE_GRACE: Final = timedelta(seconds=5)
"""Time from closing one client of a pair until the other is faulted, unless it is closed too (documented)."""

BACKLOG_HEADROOM_BYTES: Final = 1024
"""The most bytes that the rewrite for a backlog queue may add to a message; it uses about 512."""

MAX_MESSAGES_IN_FLIGHT: Final = 5_000
"""The upper limit for each backlog queue: the locks of more messages cannot be renewed in time."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedNamespaceOptions:
    """How a client behaves when its primary namespace fails.

    Attributes:
        failover_interval: how long an entity must fail, without any success, before its sends are diverted. 0 to 60
            minutes, default 1 minute (documented); 0 diverts at the first outage error, including that send.
        ping_primary_interval: pause between two pings of a failed-over entity, with a jitter of ±10 %. 1 second to 30
            minutes, default 1 minute (documented).
        backlog_queue_count: number of backlog queues in the secondary. At least 1, default 10 (documented).
        enable_syphon: whether this process also drains the backlog into the primary. Default False; at least one
            process needs True (documented).
        divert_while_suspect: whether sends that fail during the failover interval are diverted at once instead of
            raising. Default False (documented behaviour).
        pings_to_recover: consecutive accepted pings that end a failover. Default 1 (documented behaviour).
        probe: the kind of ping: `"message"`, an empty message with a time to live of 1 s that the broker never delivers
            (documented), or `"link"`, which opens and closes a sender link and sends no message.
        backlog_time_to_live: how the syphon restores a finite time to live: `"remaining"`, the default, restores what
            is left of it, `"restart"` all of it, as the .NET client did.
        ordering: `"none"`, the default (documented), or `"session"`: session-enabled backlog queues keep the order
            within each session across a failover. Requires that each session has one producer.
        provision: how missing backlog queues are handled: `"create"`, the default, creates them, `"verify"` raises an
            error, `"none"` does not check, for identities without the Manage right.
        primary_name: the first segment of the backlog queues' names; None = the primary's first DNS label.
        reserve_backlog_headroom: whether messages that fit the primary, but do not fit a backlog queue after the
            rewrite, are rejected even while the primary is healthy. Default True: 1 KiB is reserved.
        missing_entity_grace: how long the syphon keeps messages for an entity that does not exist before it
            dead-letters them. Default 24 hours.
        syphon_long_poll: how long the syphon waits at an empty backlog queue. Default 15 minutes (documented).
        syphon_destinations: shell patterns of the queues and topics that the syphon may send to (`"orders"`, `"eu/*"`).
            Case is ignored. The syphon dead-letters messages for other entities. None, the default, allows all.
        is_outage: decides whether an error that remains after the retries is an outage: a function of the error, or a
            tuple of error classes, such as `ORIGINAL_OUTAGE_ERRORS`; None, the default, is the built-in rule.

    Raises:
        InvalidOperationError: a value is out of its range. The text shows the value and the range.
    """

    failover_interval: timedelta = timedelta(minutes=1)
    ping_primary_interval: timedelta = timedelta(minutes=1)
    backlog_queue_count: int = 10
    enable_syphon: bool = False
    divert_while_suspect: bool = False
    pings_to_recover: int = 1
    probe: Literal["message", "link"] = "message"
    backlog_time_to_live: Literal["remaining", "restart"] = "remaining"
    ordering: Literal["none", "session"] = "none"
    provision: Literal["create", "verify", "none"] = "create"
    primary_name: str | None = None
    reserve_backlog_headroom: bool = True
    missing_entity_grace: timedelta = timedelta(hours=24)
    syphon_long_poll: timedelta = timedelta(minutes=15)
    syphon_destinations: Sequence[str] | None = None
    is_outage: Callable[[ServiceBusError], bool] | tuple[type[ServiceBusError], ...] | None = None

    def __post_init__(self) -> None:
        _check_duration("failover_interval", self.failover_interval, timedelta(0), timedelta(minutes=60))
        _check_duration(
            "ping_primary_interval", self.ping_primary_interval, timedelta(seconds=1), timedelta(minutes=30)
        )
        _check_duration("missing_entity_grace", self.missing_entity_grace, timedelta(0), timedelta(days=3650))
        _check_duration("syphon_long_poll", self.syphon_long_poll, timedelta(seconds=1), timedelta(hours=24))
        _check_count("backlog_queue_count", self.backlog_queue_count)
        _check_count("pings_to_recover", self.pings_to_recover)
        hints = get_type_hints(type(self))
        for name in ("probe", "backlog_time_to_live", "ordering", "provision"):
            _check_choice(name, getattr(self, name), get_args(hints[name]))
        for name in ("enable_syphon", "divert_while_suspect", "reserve_backlog_headroom"):
            if not isinstance(getattr(self, name), bool):
                raise InvalidOperationError(f"{name} is {getattr(self, name)!r}: it must be True or False")
        patterns = self.syphon_destinations
        if patterns is not None and (
            isinstance(patterns, str)
            or not isinstance(patterns, Sequence)
            or not patterns
            or not all(isinstance(each, str) and each for each in patterns)
        ):
            raise InvalidOperationError(
                f"syphon_destinations is {patterns!r}: give a list with at least one name or pattern, or None for all"
            )
        if self.primary_name is not None and not (isinstance(self.primary_name, str) and self.primary_name):
            raise InvalidOperationError(f"primary_name is {self.primary_name!r}: give a name, or None for the default")
        kinds = self.is_outage if isinstance(self.is_outage, tuple) else ()
        if not (self.is_outage is None or callable(self.is_outage) or kinds) or not all(
            isinstance(kind, type) and issubclass(kind, ServiceBusError) for kind in kinds
        ):
            raise InvalidOperationError(
                f"is_outage is {self.is_outage!r}: give a function of an error, a tuple of error classes, or None"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class SyphonLimits:
    """The limits of one syphon: rates, and messages in flight.

    Attributes:
        max_messages_per_second: rate of sends to the primary, over all entities. More than 0; None, the default, is no
            limit.
        max_messages_per_second_per_destination: rate of sends to each entity. Messages for other entities wait too if
            they come after such a message in the same backlog queue. More than 0; None, the default, is no limit.
        max_queues_polled: concurrent receive calls that wait at backlog queues; further queues are polled later. At
            least 1; None, the default, is all queues.
        max_messages_in_flight: messages in flight from each backlog queue. 1 to 5,000, default 300: while some are
            sent and others completed, the next ones arrive.
        max_bytes_in_flight: encoded bytes in flight, divided equally among the backlog queues. The average message size
            is used, and one message of each queue is always allowed. At least 1, default 64 MiB.

    Raises:
        InvalidOperationError: a value is out of its range. The text shows the value and the range.
    """

    max_messages_per_second: float | None = None
    max_messages_per_second_per_destination: float | None = None
    max_queues_polled: int | None = None
    max_messages_in_flight: int = 300
    max_bytes_in_flight: int = 64 * 1024 * 1024

    def __post_init__(self) -> None:
        for name in ("max_messages_per_second", "max_messages_per_second_per_destination"):
            rate = getattr(self, name)
            if rate is not None and not (is_number(rate) and 0 < rate < math.inf):
                raise InvalidOperationError(f"{name} is {rate!r}: it must be more than 0, or None for no limit")
        if self.max_queues_polled is not None:
            _check_count("max_queues_polled", self.max_queues_polled)
        _check_count("max_messages_in_flight", self.max_messages_in_flight, most=MAX_MESSAGES_IN_FLIGHT)
        _check_count("max_bytes_in_flight", self.max_bytes_in_flight)


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryOptions:
    """The retry policy, with the names of the SDK.

    Attributes:
        retry_total: retries after the first attempt. Default 3 (as in the SDK).
        retry_backoff_factor: seconds before the first retry, doubled each time, with jitter. Default 0.8 (as in the
            SDK).
        retry_backoff_max: the longest pause in seconds. Default 30.
        timeout: seconds for one operation, including all retries and a diversion. Default 60: the service needs up to
            15 s to store a message elsewhere when a fragment of a partitioned entity does not respond.

    Raises:
        InvalidOperationError: a value is not a number or is negative, or the timeout is 0.
    """

    retry_total: int = 3
    retry_backoff_factor: float = 0.8
    retry_backoff_max: float = 30.0
    timeout: float = 60.0

    def __post_init__(self) -> None:
        if not isinstance(self.retry_total, int) or isinstance(self.retry_total, bool) or self.retry_total < 0:
            raise InvalidOperationError(f"retry_total is {self.retry_total!r}: it must be a whole number, 0 or more")
        for name in ("retry_backoff_factor", "retry_backoff_max"):
            seconds = getattr(self, name)
            if not is_number(seconds) or not seconds >= 0:  # `seconds < 0` would accept NaN
                raise InvalidOperationError(f"{name} is {seconds!r}: it must be a number of seconds, 0 or more")
        check_seconds("timeout", self.timeout)


def is_number(value: object) -> bool:
    """Return whether a value is an int or a float, and not a bool."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def check_seconds(name: str, seconds: float) -> None:
    """Check a duration.

    Raises:
        InvalidOperationError: it is not a number, not more than 0, or infinite.
    """
    if not (is_number(seconds) and 0 < seconds < math.inf):
        raise InvalidOperationError(f"{name} is {seconds!r}: it must be a number of seconds, more than 0 and finite")


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
        "a dict with `proxy_hostname`, `proxy_port` and perhaps `username` and `password`; AMQP then goes "
        "over WebSockets"
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
    "retry_total",
    "retry_backoff_factor",
    "retry_backoff_max",
    "timeout",
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


def _check_duration(name: str, value: timedelta, least: timedelta, most: timedelta) -> None:
    if not isinstance(value, timedelta):
        advice = f", such as timedelta(seconds={value})" if is_number(value) else ""
        raise InvalidOperationError(f"{name} is {value!r}: give a timedelta{advice}")
    if not least <= value <= most:
        raise InvalidOperationError(f"{name} is {value}: it must be between {least} and {most}")


def _check_count(name: str, value: int, *, most: int | None = None) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1 or (most is not None and value > most):
        limit = "of at least 1" if most is None else f"from 1 to {most}"
        raise InvalidOperationError(f"{name} is {value!r}: it must be a whole number {limit}")


def _check_choice(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise InvalidOperationError(f"{name} is {value!r}: it must be one of {', '.join(map(repr, allowed))}")
