"""The data source that drains the backlog: each task runs a syphon of `sbclient` over some backlog queues."""

# mypy: disallow-subclassing-any=False

from __future__ import annotations

import platform
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from pyspark import TaskContext
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from sbclient import clock
from sbclient.backlog import UNKNOWN_DESTINATION, Backlog, together
from sbclient.entities import EntityAddress, EntityKind
from sbclient.errors import ServiceBusError, ServiceBusServerBusyError
from sbclient.options import SyphonLimits
from sbclient.pairing.pair import Pair
from sbclient.syphon.syphon import Syphon, SyphonReport
from sbclient_spark.clients import open_client, worker_clients
from sbclient_spark.drain.options import DrainOptions, drain_options
from sbclient_spark.log import log_event

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
        return iter(clients.run(self.survey()))

    async def survey(self) -> list[tuple[Any, ...]]:
        """Return one row per existing queue, or one with `NO_QUEUE` if the secondary is unreachable.

        Spark would return an exception as text, from which the driver could not recognize an outage.
        """
        try:
            return await self._survey()
        except ServiceBusError as error:
            if not (error.is_outage or error.is_transient):
                raise
            return [(NO_QUEUE, 0, 0, 0, "", f"{type(error).__name__}: {error}")]

    async def _survey(self) -> list[tuple[Any, ...]]:
        async with open_client(self._options.connection, paired=True) as client:
            views = await Backlog(client.pair).survey(limit=SURVEY_MESSAGES)
            names = [name for name in together(views).sendable_to if name != UNKNOWN_DESTINATION]
            unreachable = [name for name in names if not await _answers(client.pair, name)]
        return [
            (
                view.queue,
                view.waiting,
                view.parked,
                view.dead_letters.total(),
                ",".join(name for name in view.sendable_to if name != UNKNOWN_DESTINATION),
                ",".join(name for name in view.sendable_to if name in unreachable),
            )
            for view in views
            if view.is_present
        ]


async def _answers(pair: Pair, path: str) -> bool:
    """Whether an entity of the primary is reachable; a missing entity counts as reachable."""
    link = pair.state.primary.open_sender(path)
    try:
        await link.open(timeout_s=PROBE_S)
    except ServiceBusError as error:
        return not error.is_outage or isinstance(error, ServiceBusServerBusyError)
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
        return iter([row + where for row in clients.run(self.drain(partition))])

    async def drain(self, share: _Share) -> list[tuple[Any, ...]]:
        deadline_s = self._options.deadline_s
        ends_at = None if deadline_s is None else clock.monotonic() + deadline_s
        rows: list[tuple[Any, ...]] = []
        limits = SyphonLimits(max_messages_per_second=share.messages_per_second)
        async with open_client(self._options.connection, paired=True) as client:
            for queue in share.queues:
                began_at = clock.monotonic()
                left_s = None if ends_at is None else max(ends_at - began_at, 0.001)
                report, is_complete = await _syphon(client.pair, queue, limits, left_s)
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


async def _syphon(pair: Pair, queue: str, limits: SyphonLimits, left_s: float | None) -> tuple[SyphonReport, bool]:
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
