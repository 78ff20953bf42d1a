"""The settings of the syphon worker: one table for the command line, the environment and the file.

Each field of `WorkerSettings` is a row. Its name is the same everywhere: `shutdown_timeout` in the file,
`--shutdown-timeout` as an option, `SBCLIENT_SYPHON_SHUTDOWN_TIMEOUT` in the environment.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Literal

from sbclient.options import MAX_MESSAGES_IN_FLIGHT, PairedNamespaceOptions, SyphonLimits
from sbclient.settings.table import (
    NUMBERS,
    PATH,
    RATE,
    SIZE,
    duration,
    setting,
    settings_of,
    whole,
)

VARIABLE_PREFIX: Final = "SBCLIENT_SYPHON_"

START_UNTIL_EMPTY_S: Final = 60.0
"""The default start timeout of a run `until="empty"`."""

_NAMESPACES: Final = "Namespaces"
_MESSAGES: Final = "Messages"
_LIMITS: Final = "Limits"
_SERVICE: Final = "Start, shutdown and monitoring"

_PAIRED: Final = PairedNamespaceOptions()
_UNLIMITED: Final = SyphonLimits()


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """The checked settings of one worker. Each row of the table documents its field."""

    primary: str = setting(
        "Connection string of the primary. Needs Send. It is never shown.",
        _NAMESPACES,
        default="",
        variable="SERVICEBUS_CONNECTION_STRING",
        is_secret=True,
    )
    primary_file: str | None = setting("A file that contains only that connection string.", _NAMESPACES, kind=PATH)
    secondary: str = setting(
        "Connection string of the secondary, which has the backlog. Needs Listen. It is never shown.",
        _NAMESPACES,
        default="",
        variable="SERVICEBUS_SECONDARY_CONNECTION_STRING",
        is_secret=True,
    )
    secondary_file: str | None = setting("A file that contains only that connection string.", _NAMESPACES, kind=PATH)
    primary_name: str | None = setting(
        "The first part of the names of the backlog queues, if the senders set one. Default: "
        "the first DNS label of the primary.",
        _NAMESPACES,
    )
    backlog_queue_count: int = setting(
        "The number of backlog queues.", _NAMESPACES, kind=whole(1), default=_PAIRED.backlog_queue_count, unit="queues"
    )
    queue: tuple[int, ...] | None = setting(
        "Drain only the backlog queues with these numbers, counted from 0. Default: all.", _NAMESPACES, kind=NUMBERS
    )
    sessions: bool = setting(
        "Include the session queues of senders paired with ordering=session.", _NAMESPACES, default=False
    )
    provision: bool = setting(
        "Create missing backlog queues. Needs Manage on the secondary.", _NAMESPACES, default=False
    )
    backlog_time_to_live: Literal["remaining", "restart"] = setting(
        "The time to live of a forwarded message: what remains of it, or all of it again.",
        _MESSAGES,
        default=_PAIRED.backlog_time_to_live,
    )
    destination: tuple[str, ...] | None = setting(
        "Send only to queues and topics that match one of these patterns, such as orders or eu/*. Dead-letter other "
        "messages. Default: all.",
        _MESSAGES,
    )
    missing_entity_grace: float = setting(
        "How long to keep messages for an entity that does not exist before they are dead-lettered.",
        _MESSAGES,
        kind=duration(0, 3650 * 86_400),
        default=_PAIRED.missing_entity_grace.total_seconds(),
    )
    long_poll: float = setting(
        "How long one receive waits at an empty backlog queue.",
        _MESSAGES,
        kind=duration(1, 86_400),
        default=_PAIRED.syphon_long_poll.total_seconds(),
    )
    max_messages_per_second: float | None = setting(
        "The rate of sends to the primary, all entities together.", _LIMITS, kind=RATE, unit="messages/second"
    )
    max_messages_per_second_per_destination: float | None = setting(
        "The same for each entity. Messages for other entities behind them in the same backlog queue wait too.",
        _LIMITS,
        kind=RATE,
        unit="messages/second",
    )
    max_queues_polled: int | None = setting(
        "Concurrent receives at backlog queues. Default: one for each queue, and four for each session queue.",
        _LIMITS,
        kind=whole(1),
        unit="receives",
    )
    max_messages_in_flight: int = setting(
        "Messages in flight for each backlog queue.",
        _LIMITS,
        kind=whole(1, MAX_MESSAGES_IN_FLIGHT),
        default=_UNLIMITED.max_messages_in_flight,
        unit="messages",
    )
    max_bytes_in_flight: int = setting(
        "The size of all messages in flight together.", _LIMITS, kind=SIZE, default=_UNLIMITED.max_bytes_in_flight
    )
    until: Literal["empty"] | None = setting(
        "Exit when no message is left that can be forwarded, for a cron job.", _SERVICE
    )
    start_timeout: float | None = setting(
        "How long to wait for an unreachable secondary at the start. Default: 60 s with --until empty, else no limit.",
        _SERVICE,
        kind=duration(0, 86_400),
    )
    shutdown_timeout: float = setting(
        "How long the shutdown may take after SIGTERM or SIGINT.", _SERVICE, kind=duration(0.1, 3_600), default=25.0
    )
    http_port: int | None = setting(
        "Serve /healthz, /readyz, /metrics, /pause and /resume on this port; 0 = any free "
        "port. Default: no HTTP server.",
        _SERVICE,
        kind=whole(0, 65_535),
    )
    http_host: str = setting(
        "The address of the HTTP server; 0.0.0.0 = all addresses of the machine.", _SERVICE, default="127.0.0.1"
    )
    probe_interval: float = setting(
        "With an HTTP port: how often to check that a namespace is reachable, while nothing else shows it.",
        _SERVICE,
        kind=duration(1, 3_600),
        default=60.0,
    )
    probe_entity: str | None = setting(
        "The queue or topic of the primary that the check opens a link to; it sends nothing. "
        "Default: the last destination.",
        _SERVICE,
    )
    survey_interval: float = setting(
        "With an HTTP port: how often to count dead letters and session queues for /metrics.",
        _SERVICE,
        kind=duration(10, 86_400),
        default=300.0,
    )
    log_level: Literal["debug", "info", "warning", "error"] = setting(
        "The lowest level of log events to write.", _SERVICE, default="info"
    )

    def pairing(self) -> PairedNamespaceOptions:
        """Return the options of the pair.

        Raises:
            InvalidOperationError: a value is out of its range.
        """
        return PairedNamespaceOptions(
            backlog_queue_count=self.backlog_queue_count,
            primary_name=self.primary_name,
            ordering="session" if self.sessions else "none",
            provision="create" if self.provision else "none",
            backlog_time_to_live=self.backlog_time_to_live,
            missing_entity_grace=timedelta(seconds=self.missing_entity_grace),
            syphon_long_poll=timedelta(seconds=self.long_poll),
            syphon_destinations=self.destination,
        )

    def limits(self) -> SyphonLimits:
        """Return the limits of the syphon."""
        return SyphonLimits(
            max_messages_per_second=self.max_messages_per_second,
            max_messages_per_second_per_destination=self.max_messages_per_second_per_destination,
            max_queues_polled=self.max_queues_polled,
            max_messages_in_flight=self.max_messages_in_flight,
            max_bytes_in_flight=self.max_bytes_in_flight,
        )

    @property
    def start_timeout_s(self) -> float | None:
        """Seconds to wait for the secondary at the start; None = no limit."""
        if self.start_timeout is None and self.until == "empty":
            return START_UNTIL_EMPTY_S
        return self.start_timeout


SETTINGS: Final = settings_of(WorkerSettings, variable_prefix=VARIABLE_PREFIX)
"""The table, by name, in display order."""
