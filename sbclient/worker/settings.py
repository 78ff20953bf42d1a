"""What may be set about the worker: one table, which the command line, the environment and the file are read by.

Each field of `WorkerSettings` is a row. Its name is the same everywhere: `shutdown_timeout` in the file,
`--shutdown-timeout` as an option, `SBCLIENT_SYPHON_SHUTDOWN_TIMEOUT` in the environment.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from datetime import timedelta
from types import MappingProxyType
from typing import Any, Final, Literal

from sbclient.errors import InvalidOperationError
from sbclient.options import MAX_MESSAGES_IN_FLIGHT, PairedNamespaceOptions, SyphonLimits
from sbclient.settings.values import choice, flag, rate, span, text, whole

VARIABLE_PREFIX: Final = "SBCLIENT_SYPHON_"

START_UNTIL_EMPTY_S: Final = 60.0
"""How long a run `until="empty"` waits for the secondary unless it is told."""

DOCUMENTED: Final = "documented"
"""On the page about paired namespaces of the retired .NET client."""
OURS: Final = "ours"

_BYTES: Final = {"": 1, "kib": 2**10, "mib": 2**20, "gib": 2**30}


def _size(name: str, value: str) -> int:
    """Bytes: `1048576`, `64 MiB`."""
    digits = value.strip().lower().rstrip("bgikm ")
    unit = value.strip().lower()[len(digits) :].strip()
    if digits.isdecimal() and unit in _BYTES and int(digits):
        return int(digits) * _BYTES[unit]
    raise InvalidOperationError(f"option {name} is {value!r}: write bytes, as 1048576, 512 KiB or 64 MiB")


def _numbers(name: str, value: str) -> tuple[int, ...]:
    """Whole numbers with commas between them, each once, in order."""
    parts = [part.strip() for part in value.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise InvalidOperationError(f"option {name} is {value!r}: write numbers with commas between them, as 0,3")
    return tuple(sorted({int(part) for part in parts}))


def span_text(seconds: float) -> str:
    """A span as a person would write it: `90 s`, `15 min`, `24 h`, `10 d`."""
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= length and seconds % length == 0 and not (unit == "d" and seconds < 2 * length):
            return f"{seconds / length:g} {unit}"
    return f"{seconds:g} s"


def size_text(size_bytes: int) -> str:
    """A size as a person would write it: `64 MiB`."""
    for unit, length in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size_bytes >= length and size_bytes % length == 0:
            return f"{size_bytes // length} {unit}"
    return f"{size_bytes}"


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of value.

    Attributes:
        word: for the table in the documentation.
        metavar: for the help.
        parse: makes the value of its name and text.
        in_file: the types that it may have in a TOML file.
    """

    word: str
    metavar: str
    parse: Callable[[str, str], Any]
    in_file: tuple[type, ...]


_TEXT: Final = Kind("text", "TEXT", text, (str,))
_PATH: Final = Kind("path", "PATH", text, (str,))
_FLAG: Final = Kind("true or false", "", flag, (bool,))
_RATE: Final = Kind("number", "NUMBER", rate, (int, float))
_SIZE: Final = Kind("size", "SIZE", _size, (int, str))
_NUMBERS: Final = Kind("whole numbers", "N,N", _numbers, (int, list))


def _whole(least: int, most: int | None = None) -> Kind:
    word = f"whole number from {least}" + ("" if most is None else f" to {most:,}")
    return Kind(word, "N", whole(least, most), (int,))


def _span(least_s: float, most_s: float) -> Kind:
    def parse(name: str, value: str) -> float:
        seconds = span(name, value)
        if not least_s <= seconds <= most_s:
            raise InvalidOperationError(f"option {name} is {value!r}: it must be {least_s:g} to {most_s:g} seconds")
        return seconds

    return Kind(f"span from {span_text(least_s)} to {span_text(most_s)}", "SPAN", parse, (int, float, str))


def _choice(*words: str) -> Kind:
    return Kind(" or ".join(words), "|".join(words), choice(*words), (str,))


@dataclass(frozen=True, slots=True)
class Setting:
    """One row of the table.

    Attributes:
        name: as in the file.
        group: under which it is listed.
        default: None = not set.
        unit: of the value; empty where it has none.
        source: of the default: documented, or our own choice.
        about: a sentence.
        variable: its environment variable.
        is_secret: whether its value is never shown, and does not belong in a file.
    """

    name: str
    kind: Kind
    group: str
    default: Any
    unit: str
    source: str
    about: str
    variable: str
    is_secret: bool

    @property
    def option(self) -> str:
        """Its name on the command line."""
        return f"--{self.name.replace('_', '-')}"

    def shown(self, value: Any) -> str:
        """A value of it, for people; of a secret only that there is one."""
        if value is None or value == "":
            return ""
        if self.is_secret:
            return "(hidden)"
        if self.unit == "seconds":
            return span_text(value)
        if self.unit == "bytes":
            return size_text(value)
        if isinstance(value, bool):
            return "true" if value else "false"
        return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _row(
    kind: Kind,
    group: str,
    about: str,
    *,
    default: Any = None,
    unit: str = "",
    source: str = OURS,
    variable: str | None = None,
) -> Any:
    said = MappingProxyType(
        {"kind": kind, "group": group, "about": about, "unit": unit, "source": source, "variable": variable}
    )
    return field(default=default, metadata=said, repr=variable is None)


_NAMESPACES: Final = "The two namespaces"
_MESSAGES: Final = "What happens to messages"
_LIMITS: Final = "Limits"
_LIFE: Final = "Start, end and observation"

_PAIRED: Final = PairedNamespaceOptions()
_UNLIMITED: Final = SyphonLimits()


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """The settings of one worker, checked. The rows of the table say what each is for."""

    primary: str = _row(
        _TEXT,
        _NAMESPACES,
        "Connection string of the primary. Needs Send. It is never shown.",
        default="",
        variable="SERVICEBUS_CONNECTION_STRING",
    )
    primary_file: str | None = _row(_PATH, _NAMESPACES, "A file that holds nothing but that connection string.")
    secondary: str = _row(
        _TEXT,
        _NAMESPACES,
        "Connection string of the secondary, where the backlog is. Needs Listen. It is never shown.",
        default="",
        variable="SERVICEBUS_SECONDARY_CONNECTION_STRING",
    )
    secondary_file: str | None = _row(_PATH, _NAMESPACES, "A file that holds nothing but that connection string.")
    primary_name: str | None = _row(
        _TEXT,
        _NAMESPACES,
        "The first part of the backlog queues' names, if the senders were paired with one. "
        "Otherwise it is the primary's first DNS label.",
    )
    backlog_queue_count: int = _row(
        _whole(1),
        _NAMESPACES,
        "How many backlog queues there are.",
        default=_PAIRED.backlog_queue_count,
        unit="queues",
        source=DOCUMENTED,
    )
    queue: tuple[int, ...] | None = _row(
        _NUMBERS, _NAMESPACES, "Only the backlog queues with these numbers, counted from 0. Otherwise all of them."
    )
    sessions: bool = _row(_FLAG, _NAMESPACES, "The queues of senders paired with ordering=session too.", default=False)
    provision: bool = _row(
        _FLAG, _NAMESPACES, "Make backlog queues that are missing. Needs Manage on the secondary.", default=False
    )
    backlog_time_to_live: Literal["remaining", "restart"] = _row(
        _choice("remaining", "restart"),
        _MESSAGES,
        "What a message gets back of its time to live: what was left of it, or all of it.",
        default=_PAIRED.backlog_time_to_live,
    )
    missing_entity_grace: float = _row(
        _span(0, 3650 * 86_400),
        _MESSAGES,
        "How long messages are kept for an entity that does not exist, before they are dead-lettered.",
        default=_PAIRED.missing_entity_grace.total_seconds(),
        unit="seconds",
    )
    long_poll: float = _row(
        _span(1, 86_400),
        _MESSAGES,
        "How long one receive waits at an empty backlog queue.",
        default=_PAIRED.syphon_long_poll.total_seconds(),
        unit="seconds",
        source=DOCUMENTED,
    )
    max_messages_per_second: float | None = _row(
        _RATE, _LIMITS, "Messages that are sent to the primary, all entities together.", unit="messages/second"
    )
    max_messages_per_second_per_destination: float | None = _row(
        _RATE,
        _LIMITS,
        "The same for each entity alone. Messages for others behind them in the same backlog queue wait, too.",
        unit="messages/second",
    )
    max_queues_polled: int | None = _row(
        _whole(1),
        _LIMITS,
        "Receives that wait at backlog queues at once. Otherwise one for each queue, and four for each of those with "
        "sessions.",
        unit="receives",
    )
    max_messages_in_flight: int = _row(
        _whole(1, MAX_MESSAGES_IN_FLIGHT),
        _LIMITS,
        "Messages in hand of each backlog queue.",
        default=_UNLIMITED.max_messages_in_flight,
        unit="messages",
    )
    max_bytes_in_flight: int = _row(
        _SIZE,
        _LIMITS,
        "What all messages in hand may have together.",
        default=_UNLIMITED.max_bytes_in_flight,
        unit="bytes",
    )
    until: Literal["empty"] | None = _row(
        _choice("empty"), _LIFE, "End when nothing is left that can be moved, for a cron job."
    )
    start_timeout: float | None = _row(
        _span(0, 86_400),
        _LIFE,
        "How long to wait for a secondary that cannot be reached. Otherwise 60 s with --until empty, and for ever "
        "without.",
        unit="seconds",
    )
    shutdown_timeout: float = _row(
        _span(0.1, 3_600),
        _LIFE,
        "How long the end may take, after SIGTERM or SIGINT.",
        default=25.0,
        unit="seconds",
    )
    http_port: int | None = _row(
        _whole(0, 65_535),
        _LIFE,
        "Serve /healthz, /readyz, /metrics, /pause and /resume there; 0 = any free port. Otherwise there is none.",
    )
    http_host: str = _row(
        _TEXT, _LIFE, "The address to serve it on; 0.0.0.0 = all of this machine.", default="127.0.0.1"
    )
    probe_interval: float = _row(
        _span(1, 3_600),
        _LIFE,
        "How often, with an HTTP port, a namespace is asked whether it can be reached, while nothing else tells.",
        default=60.0,
        unit="seconds",
    )
    probe_entity: str | None = _row(
        _TEXT,
        _LIFE,
        "The queue or topic of the primary to open a link to for that; nothing is sent. Otherwise one that messages "
        "were brought to.",
    )
    survey_interval: float = _row(
        _span(10, 86_400),
        _LIFE,
        "How often, with an HTTP port, the dead letters and the queues for sessions are counted, for /metrics.",
        default=300.0,
        unit="seconds",
    )
    log_level: Literal["debug", "info", "warning", "error"] = _row(
        _choice("debug", "info", "warning", "error"), _LIFE, "The least important events to log.", default="info"
    )

    def pairing(self) -> PairedNamespaceOptions:
        """The options to open the pair with.

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
        )

    def limits(self) -> SyphonLimits:
        """How fast the syphon goes, and how much it has in hand."""
        return SyphonLimits(
            max_messages_per_second=self.max_messages_per_second,
            max_messages_per_second_per_destination=self.max_messages_per_second_per_destination,
            max_queues_polled=self.max_queues_polled,
            max_messages_in_flight=self.max_messages_in_flight,
            max_bytes_in_flight=self.max_bytes_in_flight,
        )

    @property
    def start_timeout_s(self) -> float | None:
        """How long to wait for the secondary at the start; None = for ever."""
        if self.start_timeout is None and self.until == "empty":
            return START_UNTIL_EMPTY_S
        return self.start_timeout


def _setting(row: Field[Any]) -> Setting:
    said = row.metadata
    return Setting(
        name=row.name,
        kind=said["kind"],
        group=said["group"],
        default=None if row.default is MISSING or said["variable"] else row.default,
        unit=said["unit"],
        source=said["source"],
        about=said["about"],
        variable=said["variable"] or f"{VARIABLE_PREFIX}{row.name.upper()}",
        is_secret=said["variable"] is not None,
    )


SETTINGS: Final[Mapping[str, Setting]] = MappingProxyType({row.name: _setting(row) for row in fields(WorkerSettings)})
"""The table, by name, in the order in which it is shown."""
