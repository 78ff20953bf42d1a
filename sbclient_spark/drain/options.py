"""The options of a drain. The driver reads and checks them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Final, Literal

from sbclient.errors import InvalidOperationError
from sbclient.options import PAIR_OPTIONS
from sbclient.settings.kinds import RATE, duration, whole
from sbclient.settings.table import setting
from sbclient_spark.options import (
    ConnectionOptions,
    checked_values,
    connection_options,
    given_fields,
    table_of,
)

_REDIRECT: Final = PAIR_OPTIONS["redirect_after"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainOptions:
    """The options of a drain."""

    connection: ConnectionOptions = field(repr=False)
    work: Literal["survey", "drain"] = setting("`survey` counts messages, `drain` moves them.", default="drain")
    queues: tuple[str, ...] = setting("The queues to drain.", default=())
    tasks: int | None = setting(
        "The tasks that share the queues; None = one per queue.", kind=whole(1), name="parallelism"
    )
    deadline_s: float | None = setting("How long a task runs; None = until its queues are empty.", kind=duration())
    messages_per_second: float | None = setting(
        "Rate limit of all tasks together.", kind=RATE, name="maxMessagesPerSecond"
    )
    redirect_after: timedelta | None = setting(
        _REDIRECT.about + " A task waits for that time.", kind=_REDIRECT.kind, name="redirectAfter"
    )


DRAIN_TABLE: Final = table_of(DrainOptions)


def drain_options(options: Mapping[str, str]) -> DrainOptions:
    """Read the options of a drain.

    Raises:
        InvalidOperationError: an option is unknown or invalid, or no secondary is given.
    """
    given = checked_values(options, DRAIN_TABLE)
    connection = connection_options(given, ordering="session")  # includes the queues for sessions
    if not connection.is_paired:
        raise InvalidOperationError("a drain requires both namespaces: give secondary=, or its options")
    # A drain creates no queues, and opens them one by one, because listing them would need another right.
    pairing = dict(connection.pairing) | {"provision": "none"}
    own = given_fields(DrainOptions, given)
    if own.get("redirect_after") is not None:
        pairing["redirect_after"] = own["redirect_after"]
    return DrainOptions(connection=replace(connection, pairing=tuple(sorted(pairing.items()))), **own)
