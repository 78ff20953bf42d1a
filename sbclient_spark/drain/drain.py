"""Drains the backlog on Spark, once or continuously."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from sbclient.errors import (
    ServiceBusConnectionError,
)
from sbclient_spark.drain.options import drain_options
from sbclient_spark.drain.tasks import DRAIN_SCHEMA, NO_QUEUE, SURVEY_SCHEMA, DrainSource
from sbclient_spark.jobs import described
from sbclient_spark.log import log_event


def drain(
    spark: SparkSession,
    *,
    primary: str | None = None,
    secondary: str | None = None,
    parallelism: int | None = None,
    deadline: float | str | None = None,
    max_messages_per_second: float | None = None,
    redirect_after: float | str | None = None,
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
        redirect_after: seconds, or text such as `0 s`, for which the primary must refuse an entity before its messages
            are delivered to the secondary; None = never. They count as moved.
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
    texts = _texts(primary, secondary, parallelism, deadline, max_messages_per_second, redirect_after, options)
    drain_options(texts)
    spark.dataSource.register(DrainSource)
    survey = _now(spark, texts | {"work": "survey"})
    _check_secondary(survey)
    if dry_run:
        return spark.createDataFrame(survey, SURVEY_SCHEMA)
    _check_reachable(survey, force=force or drain_options(texts).redirect_after is not None)
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
    redirect_after: float | str | None = None,
    options: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Return the arguments of `drain` as options of its data source."""
    named = {
        "connectionString": primary,
        "secondaryConnectionString": secondary,
        "parallelism": parallelism,
        "deadline": deadline,
        "maxMessagesPerSecond": max_messages_per_second,
        "redirectAfter": redirect_after,
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
