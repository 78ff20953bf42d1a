"""Sends many messages to one entity with bounded concurrency, and counts the result of each."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Final, TypeVar

from sbclient import clock
from sbclient.cli.failed_file import FailedFile
from sbclient.cli.feed import Feed
from sbclient.cli.progress import Progress
from sbclient.client.sender import ServiceBusSender
from sbclient.errors import InvalidOperationError, ServiceBusError
from sbclient.message import ServiceBusMessage

T = TypeVar("T")

IN_FLIGHT: Final = 500
MAX_REPORTED: Final = 20
"""Rejections that are printed one by one; further ones are only counted."""

QUIET_S: Final = 1.0
"""How long to wait for more input after an interruption, because a pipe may never end."""


@dataclass
class Tally:
    """Counts of messages.

    Attributes:
        accepted: stored by the primary or by a backlog queue.
        diverted: of `accepted`, those stored by a backlog queue.
        refused: rejected because of the message itself.
        failed: not accepted for another reason; after the first of them no more messages are read.
        in_doubt: of `failed`, those that may have been stored.
        unsent: not sent, and written to the file of failed messages.
    """

    read: int = 0
    accepted: int = 0
    diverted: int = 0
    refused: int = 0
    failed: int = 0
    in_doubt: int = 0
    unsent: int = 0
    seconds: float = 0.0


class BulkSender:
    """Sends messages and counts them.

    Args:
        progress: shows rejections.
        first: the number of the first record.

    Attributes:
        in_flight: messages whose outcome is not known yet.
        first_failed_record: the number of the first record counted in `tally.failed`; None = none.
        tally: the counts so far.
        failed_file: where to write the messages that are not accepted; None = nowhere, or writing has failed.
    """

    def __init__(self, progress: Progress, failed_file: FailedFile | None = None, *, first: int = 1) -> None:
        self.tally = Tally()
        self.failed_file = failed_file
        self.in_flight = 0
        self.first_failed_record: int | None = None
        self._first = first
        self._reading: asyncio.Task[None] | None = None
        self._progress = progress
        self._stopped_by: Exception | None = None
        self._read_but_not_sent: ServiceBusMessage | None = None

    async def send(self, sender: ServiceBusSender, messages: AsyncIterator[ServiceBusMessage]) -> None:
        """Send messages until there are no more, or until `stop`. The messages in flight always complete.

        The rejection of a single message does not raise: it is printed and counted.

        Raises:
            ServiceBusError: the entity or the connection failed; the remaining messages were not read.
            OSError, InvalidOperationError: the input cannot be read, or the file of failed messages cannot be written.
        """
        room = asyncio.Semaphore(IN_FLIGHT)

        async def send_one(number: int, message: ServiceBusMessage) -> None:
            try:
                await self._send_one(sender, number, message)
            finally:
                self.in_flight -= 1
                room.release()

        async def read() -> None:
            try:
                async for message in messages:
                    self._read_but_not_sent = message
                    await room.acquire()
                    if self._stopped_by is not None:
                        break
                    self._read_but_not_sent = None
                    self.in_flight += 1
                    group.create_task(send_one(self._first + self.tally.read, message))
                    self.tally.read += 1
            except (InvalidOperationError, OSError) as error:
                self._stopped_by = self._stopped_by or error

        async with asyncio.TaskGroup() as group:
            self._reading = group.create_task(read())
        if self._stopped_by is not None:
            raise self._stopped_by

    def stop(self) -> bool:
        """Stop `send` after the messages in flight; return False if it has not begun."""
        if self._reading is None:
            return False
        self._progress.show(f"stopping: waiting for {self.in_flight:,} messages; press Ctrl-C again to abandon them")
        self._reading.cancel()
        return True

    async def write_rest(
        self, messages: AsyncIterator[ServiceBusMessage], lines: Iterator[str], *, quiet_s: float | None
    ) -> None:
        """Write the rest of an input that cannot be read again to the file of failed messages, and count it.

        Args:
            messages: the iterator that `send` was called with.
            lines: the lines of the input after an invalid record, including that record; they are written unchanged.
            quiet_s: stop when nothing arrives for this many seconds; None = read to the end.
        """
        if self.failed_file is None:
            return
        self._progress.show(f"writing the rest to {self.failed_file.path}")
        if self._read_but_not_sent is not None:
            self._write_unsent(self._read_but_not_sent)
        try:
            async for message in _until_quiet(messages, quiet_s):
                if not self._write_unsent(message):
                    return
        except (InvalidOperationError, OSError) as error:
            self._progress.print_above(f"the lines from an invalid record on are written unchanged: {error}")
        left = Feed(lines)
        try:
            async for line in _until_quiet(left, quiet_s):
                if not self._write_unsent(line):
                    return
        except (UnicodeDecodeError, OSError):
            self._progress.print_above("the rest cannot be read and is not written")
        finally:
            left.close()

    async def _send_one(self, sender: ServiceBusSender, number: int, message: ServiceBusMessage) -> None:
        try:
            await sender.send_messages(message)
            self.tally.accepted += 1
        except ServiceBusError as error:
            if isinstance(error, ValueError):
                self._count_rejection(number, error)
            else:
                self._count_failure(number, is_in_doubt=error.is_in_doubt)
                self._stopped_by = self._stopped_by or error
            self._write(message)
        except asyncio.CancelledError:
            self._count_failure(number, is_in_doubt=True)
            self._write(message)
            raise

    def _count_failure(self, number: int, *, is_in_doubt: bool) -> None:
        self.tally.failed += 1
        if is_in_doubt:
            self.tally.in_doubt += 1
        self.first_failed_record = min(number, self.first_failed_record or number)

    def _count_rejection(self, number: int, error: ServiceBusError) -> None:
        self.tally.refused += 1
        if self.tally.refused <= MAX_REPORTED:
            self._progress.print_above(f"record {number}: {error}")
        elif self.tally.refused == MAX_REPORTED + 1:
            self._progress.print_above("further rejections are counted and not printed")

    def _write_unsent(self, unsent: ServiceBusMessage | str) -> bool:
        if not self._write(unsent):
            return False
        self.tally.unsent += 1
        return True

    def _write(self, unsent: ServiceBusMessage | str) -> bool:
        """Write to the file and return True; if that fails, stop sending."""
        if self.failed_file is None:
            return False
        try:
            self.failed_file.write(unsent)
        except OSError as error:
            self._progress.print_above(
                f"{self.failed_file.path} cannot be written ({error.strerror}); no more messages are written to it"
            )
            self.failed_file = None
            self._stopped_by = self._stopped_by or error
            return False
        return True


async def _until_quiet(items: AsyncIterator[T], quiet_s: float | None) -> AsyncGenerator[T, None]:
    """Yield items until the end, or until none arrives for `quiet_s` seconds; None = no such limit."""
    while True:
        try:
            async with clock.timeout(quiet_s):
                item = await anext(items)
        except (StopAsyncIteration, TimeoutError):
            return
        yield item
