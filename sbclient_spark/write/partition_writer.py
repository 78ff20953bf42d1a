"""Sends the rows of one task with several transfers in flight, and counts the result of each row.

Laws:

1. When `finish` returns, every row was acknowledged or is counted as a row error. When it raises, the report has the
   rows that were sent and those in doubt.
2. Rows with the same session id or partition key are sent in order, one transfer at a time: a key has one lane.
3. A transfer has one key if the entity is or may be partitioned.
4. After a rejection the transfer is halved until the invalid row is found. Other errors are retried here, because a
   retry by Spark repeats the whole partition. With a secondary, an outage is retried until the failover interval is
   over and the backlog accepts the rows.
5. The waiting rows are limited in number and bytes.
"""

from __future__ import annotations

import asyncio
from array import array
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final
from zlib import crc32

import pyarrow as pa

from sbclient import clock
from sbclient.client.client import ServiceBusClient
from sbclient.client.encoding import ALIAS_BYTES
from sbclient.client.sender import ServiceBusSender
from sbclient.errors import (
    BacklogUnavailableError,
    InvalidOperationError,
    MessageSizeExceededError,
    MessagingEntityNotFoundError,
    OperationTimeoutError,
    ServiceBusError,
    ServiceBusServerBusyError,
)
from sbclient.rate_limit import RateLimiter
from sbclient.retry import repeat
from sbclient.rules.backoff import growing
from sbclient.tasks import OwnedTasks
from sbclient_spark.options import Destination
from sbclient_spark.write.encoded_rows import BadRow, EncodedRows, by_value, joined
from sbclient_spark.write.options import WriteOptions
from sbclient_spark.write.reports import TaskReport
from sbclient_spark.write.row_errors import BadRecords, RowErrors, WriteFailedError

DEFAULT_BATCH_BYTES: Final = 192 * 1024
"""Size of a transfer while the limit of the entity is unknown: below the 256 KiB of the standard tier."""

ENVELOPE_BYTES: Final = 512
"""The largest overhead of a batch, which repeats the ids of its first message."""

KEYLESS_RUN: Final = 100
"""At least so many consecutive rows without a key use the same lane."""

SenderFor = Callable[[Destination], ServiceBusSender]
"""Returns the sender of a destination, always the same for a writer."""

MixesKeys = Callable[[Destination], Awaitable[bool]]
"""Returns whether rows with different keys may share a transfer, because the entity is not partitioned."""


_Group = tuple[Destination, str | None]


@dataclass(slots=True)
class _Lane:
    """Rows that are sent one transfer at a time. The rows of a group may share a transfer."""

    index: int
    groups: OrderedDict[_Group, deque[EncodedRows]] = field(default_factory=OrderedDict)
    rows: int = 0
    is_running: bool = False


class PartitionWriter:
    """Sends the rows of one task. It has one caller, in the event loop of the client.

    Args:
        client: open.
        sender_for: returns the senders.
        options: of the write.
        mixes_keys: asked once for each destination.
        report: receives the counts.
        bad_records: receives the rows that could not be sent.
    """

    def __init__(
        self,
        client: ServiceBusClient,
        sender_for: SenderFor,
        options: WriteOptions,
        *,
        mixes_keys: MixesKeys,
        report: TaskReport,
        bad_records: BadRecords,
    ) -> None:
        self._client = client
        self._sender_for = sender_for
        self._options = options
        self._mixes_keys = mixes_keys
        self._mixed: dict[Destination, bool] = {}
        self._is_ordered = options.ordering == "session"
        self._report = report
        self._errors = RowErrors(options, report, bad_records)
        self._rate_limiter = RateLimiter(options.max_messages_per_second, options.max_bytes_per_second)
        self._lanes = [_Lane(index) for index in range(options.max_in_flight_batches)]
        self._tasks = OwnedTasks(on_failure=self._fail)
        self._latencies_ms = array("d")
        self._waiting_rows = self._waiting_bytes = 0
        self._changed = asyncio.Event()
        self._failure: BaseException | None = None
        self._is_finishing = False
        self._batch_bytes: dict[str, int] = {}
        self._alone: set[str] = set()
        self._sent_to: set[str] = set()
        pair = client.pair if options.connection.is_paired and not report.is_unpaired else None
        self._pair = pair
        reserves = pair is not None and pair.state.options.reserve_backlog_headroom
        self._growth_bytes = ALIAS_BYTES if reserves else 0
        self._began_at = clock.monotonic()
        self._began_utc = datetime.fromtimestamp(clock.now(), UTC)
        self._diverted_before = self._diverted()
        self._max_messages = options.max_batch_messages
        if options.max_messages_per_second is not None:
            self._max_messages = min(self._max_messages, max(1, int(options.max_messages_per_second)))

    async def offer(self, offered: Sequence[EncodedRows]) -> None:
        """Queue rows in order, and wait until there is room for more.

        Raises:
            WriteFailedError: the task has failed; some of the earlier rows may have been sent.
        """
        for rows in offered:
            if rows.destination not in self._mixed:
                self._mixed[rows.destination] = await self._mixes_keys(rows.destination)
            self._put(rows)
        most_rows = 2 * len(self._lanes) * self._options.max_batch_messages
        most_bytes = 2 * len(self._lanes) * (self._options.max_batch_bytes or DEFAULT_BATCH_BYTES)
        await self._until(
            lambda: self._failure is not None or (self._waiting_rows <= most_rows and self._waiting_bytes <= most_bytes)
        )
        if self._failure is not None:
            raise self._failure

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._changed.clear()
            await self._changed.wait()

    def refuse(self, bad: BadRow) -> None:
        """Handle an invalid row as `onRowError` says.

        Raises:
            WriteFailedError: the row fails the task.
        """
        self._errors.add(bad.position, bad.reason, bad.record)

    def _put(self, rows: EncodedRows) -> None:
        is_mixed = self._mixed[rows.destination]
        if is_mixed and len(self._lanes) == 1:
            self._put_into(self._lanes[0], None, rows)
            return
        keys = rows.keys()
        if keys.null_count == len(keys):
            step = max(KEYLESS_RUN, -(-len(rows) // len(self._lanes)))
            for start in range(0, len(rows), step):
                self._put_into(min(self._lanes, key=lambda lane: lane.rows), None, rows.slice(start, step))
        elif is_mixed:
            # Dictionary encoding hashes each key once.
            codes = keys.dictionary_encode(null_encoding="encode")
            lanes = pa.array([_lane_of(key, len(self._lanes)) for key in codes.dictionary.to_pylist()], pa.int32())
            for index, part in by_value(rows, lanes.take(codes.indices)):
                self._put_into(self._lanes[index], None, part)
        else:
            for key, part in by_value(rows, keys):
                self._put_into(self._lanes[_lane_of(key, len(self._lanes))], key, part)

    def _put_into(self, lane: _Lane, key: str | None, rows: EncodedRows) -> None:
        group = rows.destination, key
        waiting = lane.groups.get(group)
        if waiting is None:
            waiting = lane.groups[group] = deque()
        waiting.append(rows)
        lane.rows += len(rows)
        self._waiting_rows += len(rows)
        self._waiting_bytes += self._size(rows)
        if not lane.is_running:
            lane.is_running = True
            self._tasks.start(self._send_lane(lane), name=f"lane {lane.index}")

    def _size(self, rows: EncodedRows) -> int:
        """Return the bytes of rows in a transfer, with what a diversion may add."""
        return rows.size_bytes + len(rows) * self._growth(rows.destination)

    def _growth(self, destination: Destination) -> int:
        return self._growth_bytes + len(destination.path) if self._growth_bytes else 0

    async def finish(self) -> None:
        """Wait until every row is acknowledged.

        Raises:
            WriteFailedError: the task has failed. No transfer is in flight, so the report is complete.
        """
        self._is_finishing = True
        await self._close()
        if self._failure is not None:
            raise self._failure

    async def abandon(self) -> None:
        """Wait for the transfers in flight and send no more, because the task ends for another reason."""
        self._failure = self._failure or WriteFailedError("the task was ended from outside")
        await self._close()

    async def _close(self) -> None:
        await self._until(lambda: not any(lane.is_running for lane in self._lanes))
        await self._tasks.close()
        report = self._report
        report.set_latencies(self._latencies_ms)
        report.seconds = round(clock.monotonic() - self._began_at, 3)
        report.diverted = self._diverted() - self._diverted_before
        events = [] if self._pair is None else [one for one in self._pair.events() if one.at_utc >= self._began_utc]
        report.failovers = sum(one.name == "failover.engaged" for one in events)
        report.recoveries = sum(one.name == "failover.recovered" for one in events)

    def _diverted(self) -> int:
        return 0 if self._pair is None else sum(one.diverted for one in self._pair.status().entities.values())

    def _fail(self, error: BaseException) -> None:
        self._failure = self._failure or error
        self._changed.set()

    async def _send_lane(self, lane: _Lane) -> None:
        """Send the rows of a lane until it is empty or the task has failed."""
        try:
            while lane.groups and self._failure is None:
                if self._options.linger_s and not self._is_finishing and lane.rows < self._max_messages:
                    await clock.sleep(self._options.linger_s)
                rows = await self._next_transfer(lane)
                self._changed.set()
                await self._send(rows)
        except WriteFailedError as error:
            self._fail(error)
        finally:
            lane.is_running = False
            self._changed.set()

    async def _next_transfer(self, lane: _Lane) -> EncodedRows:
        """Remove the rows of the next transfer from the group that has waited longest."""
        group = next(iter(lane.groups))
        destination = group[0]
        limit = await self._limit(destination) - ENVELOPE_BYTES
        most = 1 if destination.path in self._alone else self._max_messages
        growth = self._growth(destination)
        waiting = lane.groups[group]
        taken: list[EncodedRows] = []
        size = count = 0
        while waiting and count < most:
            first = waiting[0]
            fitting = min(first.count_within(limit - size, growth), most - count)
            if not fitting and taken:
                break
            fitting = max(fitting, 1)  # a row that is too large is sent alone, and rejected
            taken.append(first.slice(0, fitting))
            size += self._size(taken[-1])
            count += fitting
            if fitting < len(first):
                waiting[0] = first.slice(fitting)
                break
            waiting.popleft()
        lane.groups.move_to_end(group)
        if not waiting:
            del lane.groups[group]
        lane.rows -= count
        self._waiting_rows -= count
        self._waiting_bytes -= size
        return joined(taken)

    async def _limit(self, destination: Destination) -> int:
        """Return the size limit of a transfer; a safe default while the limit of the entity is unknown."""
        known = self._batch_bytes.get(destination.path)
        if known is not None:
            return known
        wanted = self._options.max_batch_bytes
        try:
            largest = (await self._sender_for(destination).create_message_batch()).max_size_in_bytes
        except ServiceBusError:
            return min(wanted or DEFAULT_BATCH_BYTES, DEFAULT_BATCH_BYTES)  # the send raises the error
        self._batch_bytes[destination.path] = min(wanted or largest, largest)
        return self._batch_bytes[destination.path]

    async def _send(self, rows: EncodedRows, *, is_in_doubt: bool = False) -> None:
        """Send rows until they are acknowledged or rejected, or the task has failed.

        Args:
            is_in_doubt: an earlier transfer of these rows is in doubt; a later rejection does not change that.
        """
        size = self._size(rows)
        self._report.paced_ms += 1000 * await self._rate_limiter.take(len(rows), size)
        began_at = clock.monotonic()

        async def is_settled(failures: int) -> bool:
            nonlocal is_in_doubt
            try:
                await self._transfer(rows)
            except (InvalidOperationError, MessageSizeExceededError) as error:
                await self._refused(rows, error, is_in_doubt=is_in_doubt or error.is_in_doubt)
            except ServiceBusError as error:
                is_in_doubt = is_in_doubt or error.is_in_doubt
                if self._may_try_again(error, rows.destination, failures + 1, began_at):
                    return False
                self._errors.not_sent(rows, error, is_in_doubt=is_in_doubt)
            else:
                self._acknowledged(rows, size, began_at)
            return True

        pause_s = growing(self._options.retry_backoff_s, self._options.retry_max_backoff_s)
        await repeat(is_settled, pause_s, clock.sleep)

    async def _transfer(self, rows: EncodedRows) -> None:
        timeout_s = self._options.connection.send_timeout_s
        if self._options.task_deadline_s is not None:
            left_s = self._began_at + self._options.task_deadline_s - clock.monotonic()
            if left_s <= 0:
                raise _DeadlineOver(f"taskDeadline of {self._options.task_deadline_s:g} s is over")
            timeout_s = min(timeout_s, left_s)
        sessions = rows.sessions() if self._is_ordered else ()
        await self._sender_for(rows.destination).send_encoded(rows.encoded(), sessions=sessions, timeout=timeout_s)

    def _acknowledged(self, rows: EncodedRows, size: int, began_at: float) -> None:
        self._report.sent += len(rows)
        self._report.bytes += size
        self._report.batches += 1
        self._sent_to.add(rows.destination.path)
        self._latencies_ms.append(1000 * (clock.monotonic() - began_at))

    def _may_try_again(self, error: ServiceBusError, destination: Destination, tries: int, began_at: float) -> bool:
        """Return whether a failed transfer is to be repeated."""
        if self._failure is not None or isinstance(error, _DeadlineOver):
            return False
        is_busy = isinstance(error, ServiceBusServerBusyError)
        vanished = isinstance(error, MessagingEntityNotFoundError) and destination.path in self._sent_to
        is_outage = error.is_outage or (vanished and self._pair is not None)
        if not (error.is_transient or is_outage or isinstance(error, BacklogUnavailableError)):
            return False
        self._report.throttled += is_busy
        elapsed_s = clock.monotonic() - began_at
        waits_for_failover = self._pair is not None and is_outage and elapsed_s < self._patience_s()
        if tries > self._options.max_retries and not waits_for_failover:
            return False
        self._report.retried += 1
        return True

    def _patience_s(self) -> float:
        """How long an outage is retried: until the entity has failed over and a send to the backlog was possible."""
        interval_s = self._pair.state.options.failover_interval.total_seconds() if self._pair is not None else 0.0
        return interval_s + self._options.retry_max_backoff_s + self._options.connection.send_timeout_s

    async def _refused(self, rows: EncodedRows, error: ServiceBusError, *, is_in_doubt: bool) -> None:
        """Halve a rejected transfer until the invalid row is found."""
        if len(rows) == 1:
            self._report.in_doubt += is_in_doubt
            self._errors.add_rows(rows, str(error), is_in_doubt=is_in_doubt)
            return
        errors_before = self._report.row_errors
        middle = len(rows) // 2
        not_repeated = len(rows)
        try:
            for half in (rows.slice(0, middle), rows.slice(middle)):
                if self._failure is None:
                    not_repeated -= len(half)
                    await self._send(half, is_in_doubt=is_in_doubt)
        finally:
            self._report.in_doubt += not_repeated if is_in_doubt else 0
        if len(rows) == 2 and self._report.row_errors == errors_before:
            self._alone.add(rows.destination.path)  # the entity accepts single messages only


def _lane_of(key: str | None, lanes: int) -> int:
    return crc32((key or "").encode()) % lanes


class _DeadlineOver(OperationTimeoutError):
    """The deadline of the task is over. It is checked before a transfer, and not retried."""

    is_in_doubt = False
