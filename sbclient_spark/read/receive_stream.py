"""Streams queues and subscriptions by receiving, at least once.

The driver receives the messages of a micro-batch and defers them, because locks would end before the batch does. The
offset names their sequence numbers, so that a replay finds them again. Tasks peek them, which needs no lock. When Spark
plans the next micro-batch, or starts again, the batch before it has been processed, and the driver completes it.

Messages that were deferred but are named by no offset, because the driver ended in between, are orphans: `orphans`
of the options takes them at the next start, and `find_orphans` lists them.
"""

# mypy: disallow-subclassing-any=False

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Collection, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from datetime import datetime
from itertools import groupby
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, lit
from pyspark.sql.types import StructType

from sbclient.client.client import ServiceBusClient
from sbclient.client.receiver import ServiceBusReceiver
from sbclient.errors import InvalidOperationError, MessageLockLostError, MessageNotFoundError, ServiceBusError
from sbclient.message import ServiceBusMessageState, ServiceBusReceivedMessage
from sbclient.rules.sequence_number import by_partition, partition_of
from sbclient_spark.clients import worker_clients
from sbclient_spark.log import log_event
from sbclient_spark.options import SPARK_OPTIONS
from sbclient_spark.read.browsing import TRIES, active_before, active_count, browse, open_receiver
from sbclient_spark.read.held_sessions import SessionService
from sbclient_spark.read.limits import Budget
from sbclient_spark.read.offsets import QueueOffset, StreamOffset, ranges_of
from sbclient_spark.read.options import EARLIEST, ReadOptions
from sbclient_spark.read.sessions import StreamSessions, shared_out
from sbclient_spark.read.stream import HAS_ADMISSION_CONTROL, ServiceBusStreamReader, StreamPartition

DEFAULT_LIMIT: Final = 10_000
"""Messages of a micro-batch: the driver receives them, and the offset names them."""

PAGE: Final = 500
"""Messages that are locked at the same time, which is much less than can be deferred within the shortest lock."""

WAIT_S: Final = 1.0
"""How long the driver waits for the first message."""

SURVEY_PAGES: Final = 20
"""Pages that are searched for orphans if they are only counted."""


class ReceiveStreamReader(ServiceBusStreamReader):
    """A stream that completes messages after Spark has processed them."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        self._completed: tuple[int, dict[str, tuple[int, ...]]] = (0, {})
        self._is_surveyed = False
        self._sessions: dict[str, StreamSessions] = {}
        self._service = SessionService(options.connection, self._sessions)
        self._planned: StreamOffset | None = None
        if options.starting_sequence_number != EARLIEST:
            raise InvalidOperationError(
                "startingSequenceNumber is for mode 'peek': with mode 'receive' the service chooses the messages; "
                "remove it"
            )

    def stop(self) -> None:
        worker_clients().run(self._service.close())
        super().stop()

    def _limit(self) -> int | None:
        return self._options.max_messages_per_trigger or DEFAULT_LIMIT

    async def _started(self, client: ServiceBusClient, path: str, created: str | None) -> QueueOffset:
        return QueueOffset(created)

    async def _plan(self, position: StreamOffset, most: int | None) -> StreamOffset:
        client = await self._opened()
        queues = {path: await self._checked(client, path, queue) for path, queue in position.queues.items()}
        still_open = await self._complete(client, position)
        planned: dict[str, QueueOffset] = {}
        budget = Budget(most, self._options.max_bytes_per_trigger)
        targets = self._targets
        if not HAS_ADMISSION_CONTROL:  # `availableNow` then plans one micro-batch, of all that is there now
            targets = await self._ends()
        for path, queue in queues.items():
            target = None if targets is None else targets[path]
            still = still_open.get(path, ())
            if self._requires_session[path]:
                held = await self._held(client, path)
                found = list(await held.receive(budget, still, target))
            else:
                named = {*queue.numbers, *queue.open}
                found = [] if self._is_surveyed else await self._orphans(client, path, named)
                found += await _receive_and_defer(client, path, budget, target)
            planned[path] = replace(queue, numbers=tuple(sorted(found)), open=still)
        self._is_surveyed = True
        if not any(queue.numbers for queue in planned.values()):
            return position
        self._planned = StreamOffset("receive", position.namespace, position.batch + 1, planned)
        return self._planned

    async def _held(self, client: ServiceBusClient, path: str) -> StreamSessions:
        if path not in self._sessions:
            await self._service.start()
            options = self._options
            self._sessions[path] = StreamSessions(client, path, options.sessions, options.max_sessions_per_trigger)
        return self._sessions[path]

    async def _ends(self) -> dict[str, dict[int, int]]:
        ends = await super()._ends()
        client = await self._opened()
        for path in ends:
            if self._requires_session[path]:
                await (await self._held(client, path)).set_target()
        return ends

    async def _prepare(self, end: StreamOffset) -> None:
        await super()._prepare(end)
        if end == self._planned:
            return
        client = await self._opened()  # the micro-batch is replayed after a restart
        for path, queue in end.queues.items():
            if self._requires_session[path]:
                await (await self._held(client, path)).hold(queue.numbers)
        self._planned = end

    async def _complete(self, client: ServiceBusClient, position: StreamOffset) -> dict[str, tuple[int, ...]]:
        """Complete what Spark has processed; return the numbers that are still locked, by path."""
        batch, left = self._completed
        if position.batch != batch:
            left = {path: queue.numbers + queue.open for path, queue in position.queues.items()}
        left = {path: await self._complete_in(client, path, numbers) for path, numbers in left.items() if numbers}
        self._completed = (position.batch, left)
        return left

    async def _waiting(
        self, client: ServiceBusClient, path: str, queue: QueueOffset
    ) -> tuple[int | None, datetime | None]:
        taken = {*queue.numbers, *queue.open}
        receiver = open_receiver(client, path)
        oldest: datetime | None = None
        pages = 0
        try:
            async with aclosing(browse(receiver, 1)) as found:
                async for page in found:
                    waiting = [one for one in page if not _is_deferred(one) and one.sequence_number not in taken]
                    oldest = min((one.enqueued_time_utc for one in waiting), default=None)
                    pages += 1
                    if oldest is not None or pages == SURVEY_PAGES:
                        break
        finally:
            await receiver.close()
        active = await active_count(client, path)  # the service counts deferred messages too
        return (None if active is None else max(active - len(taken), 0)), oldest

    async def _complete_in(self, client: ServiceBusClient, path: str, numbers: Sequence[int]) -> tuple[int, ...]:
        if self._requires_session[path]:
            return await (await self._held(client, path)).complete(numbers)
        return await _complete(client, path, numbers)

    async def _orphans(self, client: ServiceBusClient, path: str, named: Collection[int]) -> list[int]:
        """Return the deferred messages that no offset names, to be taken; with `orphans` leave, only report them."""
        takes = self._options.orphans == "take"
        found: list[int] = []
        pages = 0
        receiver = open_receiver(client, path)
        try:
            async for page in browse(receiver, 1):
                found += [one.sequence_number for one in page if _is_deferred(one) and one.sequence_number not in named]
                pages += 1
                if pages == SURVEY_PAGES and not takes:
                    break
        finally:
            await receiver.close()
        if found:
            facts = {"queue": path, "count": len(found), "choice": self._options.orphans}
            message = "{count} deferred messages of {queue!r} belong to no micro-batch; orphans is {choice!r}"
            log_event("stream.orphans", message, facts, level=logging.WARNING)
        return found if takes else []

    def _tasks(self, begin: StreamOffset, end: StreamOffset) -> list[StreamPartition]:
        total = sum(len(queue.numbers) for queue in end.queues.values())
        width = max(-(-total // (self._options.min_partitions or 1)), 1)
        found: list[StreamPartition] = []
        for path, queue in end.queues.items():
            has_sessions = self._requires_session[path]
            for _, of_fragment in groupby(sorted(queue.numbers), key=partition_of):
                numbers = list(of_fragment)
                parts: Sequence[Sequence[int]] = _parts(numbers, width)
                if has_sessions and len(parts) > 1:
                    parts = shared_out(self._sessions[path].by_session(numbers), len(parts))
                found += [
                    StreamPartition(path, part[0], part[-1], numbers=tuple(part), may_be_settled=has_sessions)
                    for part in parts
                ]
        return found


def _is_deferred(message: ServiceBusReceivedMessage) -> bool:
    return message.state is ServiceBusMessageState.DEFERRED


def _parts(numbers: Sequence[int], size: int) -> list[Sequence[int]]:
    return [numbers[start : start + size] for start in range(0, len(numbers), size)]


async def _receive_and_defer(
    client: ServiceBusClient, path: str, budget: Budget, target: Mapping[int, int] | None
) -> list[int]:
    """Receive messages, defer them, and return their numbers.

    Args:
        target: leave messages with this number or a higher one, by fragment, and receive all others; None = no target.
    """
    found: list[int] = []
    tries = TRIES if target is not None else 1
    receiver = open_receiver(client, path)
    try:
        while (reserved := await budget.reserve(PAGE)).messages:
            messages: list[ServiceBusReceivedMessage] = []
            try:
                messages = await receiver.receive_messages(reserved.messages, max_wait_time=WAIT_S)
            finally:
                await budget.settle(reserved, messages)
            late = [one for one in messages if target is not None and _is_late(one, target)]
            wanted = [one for one in messages if one not in late]
            await asyncio.gather(*(receiver.abandon_message(one) for one in late))
            outcomes = await asyncio.gather(*(receiver.defer_message(one) for one in wanted), return_exceptions=True)
            # After any other error the message may have been deferred: named twice is better than not at all.
            found += [
                one.sequence_number
                for one, outcome in zip(wanted, outcomes, strict=True)
                if not isinstance(outcome, MessageLockLostError)
            ]
            if late or not messages or any(isinstance(outcome, ServiceBusError) for outcome in outcomes):
                tries -= 1
                if not tries or not await _is_any_before(receiver, target or {}, found):
                    break
    except ServiceBusError:
        if not found:
            raise
    finally:
        await receiver.close()
    return found


async def _is_any_before(receiver: ServiceBusReceiver, target: Mapping[int, int], known: Collection[int]) -> bool:
    """Whether an active message is before a target."""
    async with aclosing(active_before(receiver, target, frozenset(known))) as messages:
        return await anext(messages, None) is not None


def _is_late(message: ServiceBusReceivedMessage, target: Mapping[int, int]) -> bool:
    return message.sequence_number >= target.get(partition_of(message.sequence_number), 0)


async def _complete(client: ServiceBusClient, path: str, numbers: Sequence[int]) -> tuple[int, ...]:
    """Complete deferred messages; return the numbers of those that are locked, or whose partition does not answer.

    Raises:
        ServiceBusError: no partition answers.
    """
    left: list[int] = []
    failures: list[ServiceBusError] = []
    partitions = by_partition(sorted(numbers))
    receiver = open_receiver(client, path)
    try:
        for of_partition in partitions:
            try:
                for part in _parts(of_partition, PAGE):
                    left += await _complete_part(receiver, part)
            except ServiceBusError as error:
                failures.append(error)
                if len(failures) == len(partitions) or not error.is_transient:
                    raise
                left += of_partition  # those that are completed by now are found to be gone
    finally:
        await receiver.close()
    return tuple(dict.fromkeys(left))


async def _complete_part(receiver: ServiceBusReceiver, numbers: Sequence[int]) -> list[int]:
    """Complete deferred messages of one partition; return the numbers of those that are locked."""
    try:
        messages = await receiver.receive_deferred_messages(numbers)
    except MessageNotFoundError:  # all or none: some are gone, or locked since an earlier attempt
        there: list[int] = []
        async for page in browse(receiver, numbers[0], numbers[-1], numbers=numbers):
            there += [one.sequence_number for one in page if _is_deferred(one)]
        if len(there) < len(numbers):
            return await _complete_part(receiver, there) if there else []
        if len(numbers) == 1:
            return there
        middle = len(numbers) // 2
        return [
            *await _complete_part(receiver, numbers[:middle]),
            *await _complete_part(receiver, numbers[middle:]),
        ]
    outcomes = await asyncio.gather(*(receiver.complete_message(one) for one in messages), return_exceptions=True)
    return [
        one.sequence_number
        for one, outcome in zip(messages, outcomes, strict=True)
        if isinstance(outcome, BaseException)
    ]


def find_orphans(spark: SparkSession, checkpoint: str, *, options: Mapping[str, str]) -> DataFrame:
    """Return the deferred messages of a queue that the last micro-batch in a checkpoint does not name.

    Stop the query before: a running one defers messages before it writes their numbers. To read orphans, start the
    query with the option `orphans` set to `take`; to remove one, receive it by its sequence number and complete it.

    Args:
        checkpoint: the checkpoint location, in any file system that Spark reads.
        options: of the data source: the namespace and the queue.

    Returns:
        The messages with the columns of a batch read.
    """
    lines = spark.read.text(f"{checkpoint.rstrip('/')}/offsets").select("value", "_metadata.file_name").collect()
    last = max((int(row.file_name) for row in lines if row.file_name.isdecimal()), default=None)
    named: list[int] = []
    for row in lines:
        if row.file_name == str(last) and row.value.startswith("{"):
            for queue in json.loads(row.value).get("queues", {}).values():
                offset = QueueOffset.of_json(queue)
                named += offset.numbers + offset.open
    known = {name: value for name, value in options.items() if name.lower() not in (*SPARK_OPTIONS, "mode", "orphans")}
    found = spark.read.format("servicebus").options(**known).load().where(col("state") == "deferred")
    is_named = lit(False)
    for low, high in ranges_of(named):
        is_named = is_named | col("sequence_number").between(low, high)
    return found.where(~is_named)
