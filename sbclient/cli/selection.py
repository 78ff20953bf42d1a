"""Selects messages by the options `--where`, `--reason`, `--since`, `--before` and `--session`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import typer

from sbclient import clock
from sbclient.broker.filters import Filter, FilterError, SystemProperties, compile_filter
from sbclient.entities import SqlRuleFilter
from sbclient.errors import InvalidOperationError
from sbclient.message import ServiceBusReceivedMessage
from sbclient.settings.durations import seconds_of

Where = Annotated[
    str | None,
    typer.Option(
        metavar="SQL",
        help="Only messages that this SQL filter selects, as in rules: \"sys.Label = 'new' AND price > 5\".",
    ),
]


def time(text: Any) -> datetime:
    """Return the time of an option: ISO 8601, in UTC unless it says otherwise, or a duration such as 2h before now."""
    try:
        found = datetime.fromisoformat(str(text))
    except ValueError:
        try:
            return datetime.fromtimestamp(clock.now(), UTC) - timedelta(seconds=seconds_of(str(text)))
        except (InvalidOperationError, OverflowError) as error:
            raise typer.BadParameter(
                f"{text!r} is not a time: give one such as 2030-01-01T12:00Z, or a duration such as 2h for 2 hours ago"
            ) from error
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


Since = Annotated[
    datetime | None,
    typer.Option(parser=time, metavar="TIME", help="Only messages enqueued since then: a time, or 2h = 2 hours ago."),
]
Before = Annotated[
    datetime | None, typer.Option(parser=time, metavar="TIME", help="Only messages enqueued before then.")
]


@dataclass(frozen=True, kw_only=True)
class MessageSelection:
    """Selects messages that match every criterion; None = any.

    Attributes:
        where: an SQL filter.
        reason: the dead-letter reason.
        since, before: limits of the time at which the message was enqueued.
        session: the session id.
        numbers: sequence numbers.
    """

    where: Filter | None = None
    reason: str | None = None
    since: datetime | None = None
    before: datetime | None = None
    session: str | None = None
    numbers: frozenset[int] | None = None

    def __call__(self, message: ServiceBusReceivedMessage) -> bool:
        """Whether a message is selected. A filter that cannot be evaluated for a message does not select it."""
        enqueued = message.enqueued_time_utc
        return (
            (self.reason is None or (message.dead_letter_reason or "") == self.reason)
            and (self.session is None or message.session_id == self.session)
            and (self.numbers is None or message.sequence_number in self.numbers)
            and (self.since is None or (enqueued is not None and enqueued >= self.since))
            and (self.before is None or (enqueued is not None and enqueued < self.before))
            and (self.where is None or _matches(self.where, message))
        )


def sql_filter(where: str | None) -> Filter | None:
    """Return the compiled filter of `--where`.

    Raises:
        InvalidOperationError: the expression is invalid.
    """
    return None if where is None else compile_filter(SqlRuleFilter(where))


def selector(where: str | None) -> Callable[[ServiceBusReceivedMessage], bool] | None:
    """Return the test of `--where`; None without it.

    Raises:
        InvalidOperationError: the expression is invalid.
    """
    return None if where is None else MessageSelection(where=sql_filter(where))


def _matches(where: Filter, message: ServiceBusReceivedMessage) -> bool:
    system = SystemProperties(
        enqueued_time_utc=message.enqueued_time_utc,
        sequence_number=message.sequence_number,
        enqueued_sequence_number=message.enqueued_sequence_number,
        delivery_count=message.delivery_count or 0,
        expires_at_utc=message.expires_at_utc,
        locked_until_utc=message.locked_until_utc,
        state=message.state,
        size_bytes=message.size_bytes,
        dead_letter_source=message.dead_letter_source,
    )
    try:
        return where.matches(message, system)
    except FilterError:
        return False
