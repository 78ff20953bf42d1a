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

    Attributes:
        tally: the counts so far.
        failed: receives the messages that are not accepted; None = no file.
    """

    def __init__(self, progress: Progress, failed: FailedFile | None = None) -> None:
        self.tally = Tally()
        self.failed = failed
        self._progress = progress
        self._stopped_by: Exception | None = None
        self._held: ServiceBusMessage | None = None

    async def send(self, sender: ServiceBusSender, messages: AsyncIterator[ServiceBusMessage]) -> None:
        """Send messages until there are no more. After an error the messages in flight still complete.

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
                room.release()
                self._progress.show(f"accepted {self.tally.accepted:,}")

        async with asyncio.TaskGroup() as group:
            try:
                async for message in messages:
                    self._held = message
                    await room.acquire()
                    if self._stopped_by is not None:
                        break
                    self._held = None
                    self.tally.read += 1
                    group.create_task(send_one(self.tally.read, message))
            except (InvalidOperationError, OSError) as error:
                self._stopped_by = self._stopped_by or error
        if self._stopped_by is not None:
            raise self._stopped_by

    async def keep_rest(
        self, messages: AsyncIterator[ServiceBusMessage], lines: Iterator[str], *, is_interrupted: bool
    ) -> None:
        """Write and count the unsent rest of an input that cannot be read again.

        Args:
            messages: the iterator that `send` received.
            lines: the input from a record on that cannot be parsed; these lines are written unchanged.
            is_interrupted: stop when nothing arrives for `QUIET_S`.
        """
        if self.failed is None:
            return
        self._progress.show(f"writing the rest to {self.failed.path}")
        quiet_s = QUIET_S if is_interrupted else None
        if self._held is not None:
            self._keep_unsent(self._held)
        try:
            async for message in _until_quiet(messages, quiet_s):
                if not self._keep_unsent(message):
                    return
        except (InvalidOperationError, OSError) as error:
            self._progress.note(f"lines are kept unchanged from an invalid record on: {error}")
        left = Feed(lines)
        try:
            async for line in _until_quiet(left, quiet_s):
                if not self._keep_unsent(line):
                    return
        except (UnicodeDecodeError, OSError):
            self._progress.note("the rest cannot be read and is not kept")
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
                self.tally.failed += 1
                self.tally.in_doubt += error.is_in_doubt
                self._stopped_by = self._stopped_by or error
            self._keep(message)
        except asyncio.CancelledError:
            self.tally.failed += 1
            self.tally.in_doubt += 1
            self._keep(message)
            raise

    def _count_rejection(self, number: int, error: ServiceBusError) -> None:
        self.tally.refused += 1
        if self.tally.refused <= MAX_REPORTED:
            self._progress.note(f"record {number}: {error}")
        elif self.tally.refused == MAX_REPORTED + 1:
            self._progress.note("further rejections are counted and not printed")

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
            self._progress.note(f"{self.failed.path} cannot be written ({error.strerror}); no more messages are kept")
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
