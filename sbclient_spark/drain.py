"""Drains the backlog on Spark: each task runs a syphon of `sbclient` over some backlog queues."""

# mypy: disallow-subclassing-any=False

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from sbclient.backlog import UNKNOWN_DESTINATION, Backlog, BacklogQueueView
from sbclient.clock import Clock
from sbclient.entities import EntityAddress, EntityKind
from sbclient.errors import (
    InvalidOperationError,
    MessagingEntityNotFoundError,
    ServiceBusConnectionError,
    ServiceBusError,
)
from sbclient.options import SyphonLimits
from sbclient.pairing.pair import Pair
from sbclient.rules.backlog import primary_name_of, session_backlog_queue_names
from sbclient.settings.table import NAMES, RATE, choice, duration, setting, whole
from sbclient.syphon.syphon import Syphon, SyphonReport
from sbclient_spark.connection_options import CONNECTION_KINDS, ConnectionOptions, connection_options
from sbclient_spark.job_description import described
from sbclient_spark.option_table import given_fields, read_options, table_of
from sbclient_spark.reports import log_event
from sbclient_spark.worker_clients import open_client, worker_clients

SURVEY_MESSAGES: Final = 1000
"""Messages of each backlog queue that a survey reads to learn their destinations."""

PROBE_S: Final = 15.0

DRAIN_SCHEMA: Final = (
    "queue string, moved long, failed long, dead_lettered long, remaining long, is_complete boolean, seconds double, "
    "attempt int, executor string, is_lower_bound boolean"
)
NO_QUEUE: Final = ""
"""The value of `queue` in the row that reports an unreachable secondary; `unreachable` has the error."""

SURVEY_SCHEMA: Final = (
    "queue string, waiting long, parked long, dead_letters long, destinations string, unreachable string"
)

DRAIN_COLUMNS: Final = tuple(part.strip().split(" ")[0] for part in DRAIN_SCHEMA.split(","))


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainOptions:
    """The options of a drain."""

    connection: ConnectionOptions = field(repr=False)
    work: str = setting(choice("survey", "drain"), "`survey` counts messages, `drain` moves them.", default="drain")
    queues: tuple[str, ...] = setting(NAMES, "The queues to drain.", default=())
    tasks: int | None = setting(whole(1), "The tasks that share the queues; None = one per queue.", name="parallelism")
    deadline_s: float | None = setting(duration(), "How long a task runs; None = until its queues are empty.")
    messages_per_second: float | None = setting(RATE, "Rate limit of all tasks together.", name="maxMessagesPerSecond")


DRAIN_TABLE: Final = table_of(DrainOptions, CONNECTION_KINDS)


def drain_options(options: Mapping[str, str]) -> DrainOptions:
    """Read the options of a drain.

    Raises:
        InvalidOperationError: an option is unknown or invalid, or no secondary is given.
    """
    given = read_options(options, DRAIN_TABLE)
    connection = connection_options(given, ordering="session")  # includes the queues for sessions
    if not connection.is_paired:
        raise InvalidOperationError("a drain requires both namespaces: give secondary=, or its options")
    # A drain creates no queues, and opens them one by one, because listing them would need another right.
    pairing = dict(connection.pairing) | {"provision": "none"}
    return DrainOptions(
        connection=replace(connection, pairing=tuple(sorted(pairing.items()))), **given_fields(DrainOptions, given)
    )


def drain(
    spark: SparkSession,
    *,
    primary: str | None = None,
    secondary: str | None = None,
    parallelism: int | None = None,
    deadline: float | str | None = None,
    max_messages_per_second: float | None = None,
    dry_run: bool = False,
    force: bool = False,
    options: Mapping[str, str] | None = None,
) -> DataFrame:
    """Move the backlog to the primary, with one task per backlog queue that is not empty.

    The drain runs at once, even if the result is not used. The primary accepts each message before the task completes
    it in the backlog, so a task may be killed at any time. Other syphons may run at the same time.

    Args:
        primary, secondary: connection strings; None = given by `options`.
        parallelism: the number of tasks; None = one per queue.
        deadline: seconds, or text such as `10 minutes`, after which each task releases its messages and ends; None =
            each task ends when its queues are empty, except for messages that their destinations reject.
        max_messages_per_second: of all tasks together; None = no limit.
        dry_run: only count the messages, and check which destinations are reachable.
        force: continue although no destination is reachable.
        options: options of the data source that name the namespaces, such as `connectionStringEnv`.

    Returns:
        One row per queue: `queue`, `moved`, `failed` (parked because the destination rejects them), `dead_lettered`,
        `remaining` (the count of the service; None without the right to read it), `is_complete`, `seconds`, `attempt`,
        `executor`, `is_lower_bound` (an earlier attempt of the task was lost together with its counts, so `moved`,
        `failed` and `dead_lettered` may be higher). With `dry_run`: `queue`, `waiting`, `parked`, `dead_letters`,
        `destinations`, `unreachable`.

    Raises:
        InvalidOperationError: an option is invalid.
        ServiceBusConnectionError: the secondary is unreachable, or no destination is reachable and `force` is False.
    """
    texts = _texts(primary, secondary, parallelism, deadline, max_messages_per_second, options)
    drain_options(texts)
    spark.dataSource.register(DrainSource)
    survey = _now(spark, texts | {"work": "survey"})
    _check_secondary(survey)
    if dry_run:
        return spark.createDataFrame(survey, SURVEY_SCHEMA)
    _check_reachable(survey, force=force)
    queues = [row.queue for row in survey if row.waiting or row.parked]
    moved = _now(spark, texts | {"work": "drain", "queues": ",".join(queues)}) if queues else []
    return spark.createDataFrame(moved, DRAIN_SCHEMA)


def drain_continuously(
    spark: SparkSession, *, every: str = "1 minute", checkpoint: str | None = None, **arguments: Any
) -> StreamingQuery:
    """Drain repeatedly until the query is stopped. An unreachable or busy namespace delays the drain.

    Permanent errors, such as a wrong credential, fail the query.

    Args:
        every: the processing time of the trigger.
        checkpoint: the checkpoint location; None = a temporary one, losing it does no harm.
        arguments: of `drain`, except `dry_run` and `force`.

    Returns:
        The query; `stop()` ends it after the current drain.

    Raises:
        InvalidOperationError: an option is invalid.
    """
    drain_options(_texts(**arguments))

    def once(batch: DataFrame, number: int) -> None:
        try:
            moved = drain(batch.sparkSession, **arguments).collect()
        except ServiceBusConnectionError as error:
            log_event("drain.waits", "run {run} cannot drain yet: {reason}", {"run": number, "reason": str(error)})
        else:
            log_event(
                "drain.ended",
                "run {run} moved {moved} messages",
                {"run": number, "moved": sum(row.moved for row in moved)},
            )

    ticks = spark.readStream.format("rate").option("rowsPerSecond", 1).load().writeStream
    if checkpoint is not None:
        ticks = ticks.option("checkpointLocation", checkpoint)
    return ticks.queryName("servicebus drain").trigger(processingTime=every).foreachBatch(once).start()


def _texts(
    primary: str | None = None,
    secondary: str | None = None,
    parallelism: int | None = None,
    deadline: float | str | None = None,
    max_messages_per_second: float | None = None,
    options: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Return the arguments of `drain` as options of its data source."""
    named = {
        "connectionString": primary,
        "secondaryConnectionString": secondary,
        "parallelism": parallelism,
        "deadline": deadline,
        "maxMessagesPerSecond": max_messages_per_second,
    }
    return {**(options or {}), **{name: str(value) for name, value in named.items() if value is not None}}


def _now(spark: SparkSession, options: Mapping[str, str]) -> list[Any]:
    """Run a survey or a drain on the executors and collect its rows."""
    with described(spark, f"servicebus: {options['work']} of the backlog"):
        rows: list[Any] = spark.read.format(DrainSource.name()).options(**options).load().collect()
        return rows


def _check_secondary(survey: Sequence[Any]) -> None:
    for row in survey:
        if row.queue == NO_QUEUE:
            raise ServiceBusConnectionError(f"the backlog cannot be surveyed: {row.unreachable}")


def _check_reachable(survey: Sequence[Any], *, force: bool) -> None:
    destinations = {name for row in survey for name in row.destinations.split(",") if name}
    unreachable = {name for row in survey for name in row.unreachable.split(",") if name}
    if destinations and destinations <= unreachable and not force:
        raise ServiceBusConnectionError(
            f"the destinations {', '.join(sorted(unreachable))} are unreachable in the primary: wait until they are "
            "reachable, or set force"
        )


class DrainSource(DataSource):
    """The data source of `drain`, which drains inside a read: only the Python tasks of reads need no pandas."""

    @classmethod
    def name(cls) -> str:
        return "servicebus_drain"

    def schema(self) -> str:
        return SURVEY_SCHEMA if drain_options(self.options).work == "survey" else DRAIN_SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        options = drain_options(self.options)
        return SurveyReader(options) if options.work == "survey" else DrainReader(options)


class SurveyReader(DataSourceReader):
    """Counts the messages of all backlog queues in one task, and checks their destinations."""

    def __init__(self, options: DrainOptions) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(0)]

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        clients = worker_clients()
        return iter(clients.run(self.survey(clients.clock)))

    async def survey(self, clock: Clock) -> list[tuple[Any, ...]]:
        """Return one row per existing queue, or one with `NO_QUEUE` if the secondary is unreachable.

        Spark would return an exception as text, from which the driver could not recognize an outage.
        """
        try:
            return await self._survey(clock)
        except ServiceBusError as error:
            if not (error.is_outage or error.is_transient):
                raise
            return [(NO_QUEUE, 0, 0, 0, "", f"{type(error).__name__}: {error}")]

    async def _survey(self, clock: Clock) -> list[tuple[Any, ...]]:
        async with open_client(_without_sessions(self._options.connection), paired=True, clock=clock) as client:
            views = await Backlog(client.pair).survey(limit=SURVEY_MESSAGES)
            views += await _session_queues(self._options.connection, client.pair)
            names = dict.fromkeys(name for view in views for name in view.destinations if name != UNKNOWN_DESTINATION)
            unreachable = [name for name in names if not await _answers(client.pair, name)]
        return [
            (
                view.queue,
                view.waiting,
                view.parked,
                view.dead_letters.total(),
                ",".join(name for name in view.destinations if name != UNKNOWN_DESTINATION),
                ",".join(name for name in view.destinations if name in unreachable),
            )
            for view in views
            if view.is_present
        ]


def _without_sessions(options: ConnectionOptions) -> ConnectionOptions:
    """Return the pair without the queues for sessions, which cannot be peeked without a session lock."""
    return replace(options, pairing=tuple(pair for pair in options.pairing if pair[0] != "ordering"))


async def _session_queues(options: ConnectionOptions, pair: Pair) -> list[BacklogQueueView]:
    """Return the message counts of the queues for sessions; without the right to read them, the number of sessions."""
    name = dict(options.pairing).get("primary_name") or primary_name_of(pair.state.primary.namespace)
    views: list[BacklogQueueView] = []
    for queue in session_backlog_queue_names(name, options.pairing_options().backlog_queue_count):
        try:
            counts = await pair.state.secondary.administration.runtime(EntityAddress(EntityKind.QUEUE, (queue,)))
            waiting = counts.active_message_count
        except MessagingEntityNotFoundError:
            continue
        except ServiceBusError:
            try:
                found = await pair.state.secondary.list_sessions(queue, state_updated_after=None, timeout_s=PROBE_S)
            except MessagingEntityNotFoundError:
                continue
            waiting = len(found)
        views.append(BacklogQueueView(queue, waiting=waiting))
    return views


async def _answers(pair: Pair, path: str) -> bool:
    """Whether an entity of the primary is reachable; a missing entity counts as reachable."""
    link = pair.state.primary.open_sender(path)
    try:
        await link.open(timeout_s=PROBE_S)
    except ServiceBusError as error:
        return not error.is_outage
    else:
        return True
    finally:
        await link.close()


@dataclass(frozen=True)
class _Share(InputPartition):
    """The queues of one task, and its rate limit."""

    queues: tuple[str, ...]
    messages_per_second: float | None


class DrainReader(DataSourceReader):
    """Drains queues; each task drains its share in sequence."""

    def __init__(self, options: DrainOptions) -> None:
        self._options = options

    def partitions(self) -> list[_Share]:
        queues, rate_of_all = self._options.queues, self._options.messages_per_second
        count = min(self._options.tasks or len(queues), len(queues))
        return [_Share(queues[number::count], rate_of_all and rate_of_all / count) for number in range(count)]

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        assert isinstance(partition, _Share)  # Spark returns the objects of `partitions`
        clients = worker_clients()
        context = TaskContext.get()
        attempt = context.attemptNumber() if context is not None else 0
        where = (attempt, platform.node(), attempt > 0)
        return iter([row + where for row in clients.run(self.drain(partition, clients.clock))])

    async def drain(self, share: _Share, clock: Clock) -> list[tuple[Any, ...]]:
        deadline_s = self._options.deadline_s
        ends_at = None if deadline_s is None else clock.monotonic() + deadline_s
        rows: list[tuple[Any, ...]] = []
        limits = SyphonLimits(max_messages_per_second=share.messages_per_second)
        async with open_client(self._options.connection, paired=True, clock=clock) as client:
            for queue in share.queues:
                began_at = clock.monotonic()
                left_s = None if ends_at is None else max(ends_at - began_at, 0.001)
                report, is_complete = await _syphon(client.pair, queue, limits, clock, left_s)
                row = (
                    queue,
                    report.drained,
                    report.parked,
                    sum(report.dead_lettered.values()),
                    await _remaining(client.pair, queue),
                    is_complete,
                    round(clock.monotonic() - began_at, 3),
                )
                facts = dict(zip(DRAIN_COLUMNS, row, strict=False))
                log_event("drain.queue", "moved {moved} messages of {queue!r}, {remaining} remain", facts)
                rows.append(row)
        return rows


async def _syphon(
    pair: Pair, queue: str, limits: SyphonLimits, clock: Clock, left_s: float | None
) -> tuple[SyphonReport, bool]:
    """Drain one queue; return the report and whether the drain ended before the deadline."""
    syphon = Syphon(pair, until="empty", queues=[queue], limits=limits)
    try:
        async with clock.timeout(left_s):
            return await syphon.run(), True
    except TimeoutError:
        return syphon.report(), False


async def _remaining(pair: Pair, queue: str) -> int | None:
    """Return the message count of a queue without dead letters; None without the right to read it."""
    try:
        counts = await pair.state.secondary.administration.runtime(EntityAddress(EntityKind.QUEUE, (queue,)))
    except ServiceBusError:
        return None
    return counts.total_message_count - counts.dead_letter_message_count
