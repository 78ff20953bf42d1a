"""The settings of the syphon worker: one table for the command line, the environment and the file.

Each field of `WorkerSettings` is a row; those of the pair and of the syphon are declared in `options.py`. A name is the
same everywhere: `shutdown_timeout` in the file,
`--shutdown-timeout` as an option, `SBCLIENT_SYPHON_SHUTDOWN_TIMEOUT` in the environment.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Literal

from sbclient.options import PAIR_OPTIONS, SYPHON_LIMITS, PairedNamespaceOptions, SyphonLimits
from sbclient.settings.kinds import NUMBERS, PATH, duration, whole
from sbclient.settings.table import same_as, setting, settings_of, values_of

VARIABLE_PREFIX: Final = "SBCLIENT_SYPHON_"

START_UNTIL_EMPTY_S: Final = 60.0
"""The default start timeout of a run `until="empty"`."""

_NAMESPACES: Final = "Namespaces"
_MESSAGES: Final = "Messages"
_LIMITS: Final = "Limits"
_SERVICE: Final = "Start, shutdown and monitoring"


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
    primary_file: str | None = setting(
        "A file that contains only the connection string of the primary.", _NAMESPACES, kind=PATH
    )
    secondary: str = setting(
        "Connection string of the secondary, which has the backlog. Needs Listen. It is never shown.",
        _NAMESPACES,
        default="",
        variable="SERVICEBUS_SECONDARY_CONNECTION_STRING",
        is_secret=True,
    )
    secondary_file: str | None = setting(
        "A file that contains only the connection string of the secondary.", _NAMESPACES, kind=PATH
    )
    primary_name: str | None = same_as(PAIR_OPTIONS["primary_name"], _NAMESPACES)
    backlog_queue_count: int = same_as(PAIR_OPTIONS["backlog_queue_count"], _NAMESPACES)
    queue: tuple[int, ...] | None = setting(
        "Drain only the backlog queues with these numbers, counted from 0. Default: all.", _NAMESPACES, kind=NUMBERS
    )
    sessions: bool = setting(
        "Include the session queues of senders paired with ordering=session.", _NAMESPACES, default=False
    )
    provision: bool = setting(
        "Create missing backlog queues. Needs Manage on the secondary.", _NAMESPACES, default=False
    )
    backlog_time_to_live: Literal["remaining", "restart"] = same_as(PAIR_OPTIONS["backlog_time_to_live"], _MESSAGES)
    destination: tuple[str, ...] | None = same_as(PAIR_OPTIONS["syphon_destinations"], _MESSAGES)
    missing_entity_grace: timedelta = same_as(PAIR_OPTIONS["missing_entity_grace"], _MESSAGES)
    redirect_after: timedelta | None = same_as(PAIR_OPTIONS["redirect_after"], _MESSAGES)
    redirect_sessions: bool = same_as(PAIR_OPTIONS["redirect_sessions"], _MESSAGES)
    long_poll: timedelta = same_as(PAIR_OPTIONS["syphon_long_poll"], _MESSAGES)
    max_messages_per_second: float | None = same_as(SYPHON_LIMITS["max_messages_per_second"], _LIMITS)
    max_messages_per_second_per_destination: float | None = same_as(
        SYPHON_LIMITS["max_messages_per_second_per_destination"], _LIMITS
    )
    max_queues_polled: int | None = same_as(SYPHON_LIMITS["max_queues_polled"], _LIMITS)
    max_messages_in_flight: int = same_as(SYPHON_LIMITS["max_messages_in_flight"], _LIMITS)
    max_bytes_in_flight: int = same_as(SYPHON_LIMITS["max_bytes_in_flight"], _LIMITS)
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
            ordering="session" if self.sessions else "none",
            provision="create" if self.provision else "none",
            **values_of(self, PAIR_OPTIONS),
        )

    def limits(self) -> SyphonLimits:
        """Return the limits of the syphon."""
        return SyphonLimits(**values_of(self, SYPHON_LIMITS))

    def shown(self) -> str:
        """Return the settings that differ from their defaults on one line, without the connection strings."""
        given = ((row, getattr(self, row.attribute)) for row in SETTINGS.values() if not row.is_secret)
        return ", ".join(f"{row.name}={row.shown(value)}" for row, value in given if value != row.default)

    @property
    def start_timeout_s(self) -> float | None:
        """Seconds to wait for the secondary at the start; None = no limit."""
        if self.start_timeout is None and self.until == "empty":
            return START_UNTIL_EMPTY_S
        return self.start_timeout


SETTINGS: Final = settings_of(WorkerSettings, variable_prefix=VARIABLE_PREFIX)
"""The table, by name, in display order."""
