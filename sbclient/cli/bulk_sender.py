"""Sends many messages to one entity with bounded concurrency, and counts the result of each."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Final, TypeVar

from sbclient.cli.failed_file import FailedFile
from sbclient.cli.feed import Feed
from sbclient.cli.progress import Progress
from sbclient.client.sender import ServiceBusSender
from sbclient.clock import Clock
from sbclient.errors import InvalidOperationError, ServiceBusError
from sbclient.message import ServiceBusMessage

T = TypeVar("T")

IN_FLIGHT: Final = 500
MAX_REPORTED: Final = 20
"""Rejections that are printed one by one; further ones are only counted."""

QUIET_S: Final = 1.0
"""After an interruption the input counts as ended when nothing arrives for this long: a pipe may never end."""


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
        first: the number of the first record, for reports.

    Attributes:
        in_flight: messages whose outcome is not known yet.
        unaccepted: the number of the first record that was read and not accepted for another reason than the message
            itself; None = none.
        tally: the counts so far.
        failed: receives the messages that are not accepted; None = no file.
    """

    def __init__(self, progress: Progress, failed: FailedFile | None = None, *, first: int = 1) -> None:
        self.tally = Tally()
        self.failed = failed
        self.in_flight = 0
        self.unaccepted: int | None = None
        self._first = first
        self._reading: asyncio.Task[None] | None = None
        self._progress = progress
        self._stopped_by: Exception | None = None
        self._held: ServiceBusMessage | None = None

    async def send(self, sender: ServiceBusSender, messages: AsyncIterator[ServiceBusMessage]) -> None:
        """Send messages until there are no more, or until `stop`. The messages in flight always complete.

        A rejection of a single message is reported and counted; it is no error.

        Raises:
            ServiceBusError: the entity or the connection failed; the remaining messages were not read.
            OSError, InvalidOperationError: the input cannot be read, or the file of failed messages not be written.
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
                    self._held = message
                    await room.acquire()
                    if self._stopped_by is not None:
                        break
                    self._held = None
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
        """End `send` when the messages in flight have completed; return False if it has not begun."""
        if self._reading is None:
            return False
        self._progress.show(f"ending: {self.in_flight:,} in flight; Ctrl-C again does not wait for them")
        self._reading.cancel()
        return True

    async def keep_rest(
        self, messages: AsyncIterator[ServiceBusMessage], lines: Iterator[str], *, quiet_s: float | None
    ) -> None:
        """Write and count the unsent rest of an input that cannot be read again.

        Args:
            messages: the iterator that `send` received.
            lines: the input from a record on that cannot be parsed; these lines are written unchanged.
            quiet_s: stop when nothing arrives for so many seconds; None = at the end of the input.
        """
        if self.failed is None:
            return
        self._progress.show(f"writing the rest to {self.failed.path}")
        if self._held is not None:
            self._keep_unsent(self._held)
        try:
            async for message in _until_quiet(messages, quiet_s):
                if not self._keep_unsent(message):
                    return
        except (InvalidOperationError, OSError) as error:
            self._progress.print_above(f"lines are kept unchanged from an invalid record on: {error}")
        left = Feed(lines)
        try:
            async for line in _until_quiet(left, quiet_s):
                if not self._keep_unsent(line):
                    return
        except (UnicodeDecodeError, OSError):
            self._progress.print_above("the rest cannot be read and is not kept")
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
            self._keep(message)
        except asyncio.CancelledError:
            self._count_failure(number, is_in_doubt=True)
            self._keep(message)
            raise

    def _count_failure(self, number: int, *, is_in_doubt: bool) -> None:
        self.tally.failed += 1
        self.tally.in_doubt += is_in_doubt
        self.unaccepted = min(number, self.unaccepted or number)

    def _count_rejection(self, number: int, error: ServiceBusError) -> None:
        self.tally.refused += 1
        if self.tally.refused <= MAX_REPORTED:
            self._progress.print_above(f"record {number}: {error}")
        elif self.tally.refused == MAX_REPORTED + 1:
            self._progress.print_above("further rejections are counted and not printed")

    def _keep_unsent(self, unsent: ServiceBusMessage | str) -> bool:
        is_kept = self._keep(unsent)
        self.tally.unsent += is_kept
        return is_kept

    def _keep(self, unsent: ServiceBusMessage | str) -> bool:
        """Write to the file and return True; if that fails, stop sending."""
        if self.failed is None:
            return False
        try:
            self.failed.write(unsent)
        except OSError as error:
            self._progress.print_above(
                f"{self.failed.path} cannot be written ({error.strerror}); no more messages are kept"
            )
            self.failed = None
            self._stopped_by = self._stopped_by or error
            return False
        return True


async def _until_quiet(items: AsyncIterator[T], quiet_s: float | None) -> AsyncGenerator[T, None]:
    """Yield items until the end, or until none arrives for `quiet_s` seconds; None = no such limit."""
    clock = Clock()
    while True:
        try:
            async with clock.timeout(quiet_s):
                item = await anext(items)
        except (StopAsyncIteration, TimeoutError):
            return
        yield item
