"""Many messages to one entity, a bounded number on their way at once, and an account of each."""

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
MAX_TOLD: Final = 20
"""So many refusals are told one by one."""

QUIET_S: Final = 1.0
"""After an interruption the rest has come when nothing has come for so long: whoever writes may have no end."""


@dataclass
class Tally:
    """Messages: how many were read, and what became of them.

    Attributes:
        accepted: stored, by the primary or by a backlog queue.
        diverted: of those, the ones a backlog queue took.
        refused: the message itself was at fault.
        failed: not accepted for another reason; after the first of them nothing more is read.
        in_doubt: of those, the ones that may have been stored all the same.
        unsent: not read to be sent any more, and kept.
    """

    read: int = 0
    accepted: int = 0
    diverted: int = 0
    refused: int = 0
    failed: int = 0
    in_doubt: int = 0
    unsent: int = 0
    seconds: float = 0.0


class Shipment:
    """Sends what it is handed.

    Args:
        progress: is told how far it is.

    Attributes:
        failed: keeps what was not accepted; None = nothing does.
    """

    def __init__(self, progress: Progress, failed: FailedFile | None = None) -> None:
        self.tally = Tally()
        self.failed = failed
        self._progress = progress
        self._stopped_by: Exception | None = None
        self._held: ServiceBusMessage | None = None

    async def send(self, sender: ServiceBusSender, messages: AsyncIterator[ServiceBusMessage]) -> None:
        """Send messages until there are no more. What is on its way when something goes wrong still arrives.

        Raises:
            ServiceBusError: the entity, or the way to it, is at fault; the rest was not read. What is wrong with a
                single message is only told and counted.
            OSError, InvalidOperationError: what cannot be read, or not be kept.
        """
        room = asyncio.Semaphore(IN_FLIGHT)

        async def send_one(number: int, message: ServiceBusMessage) -> None:
            try:
                await self._send_one(sender, number, message)
            finally:
                room.release()
                self._progress.tell(f"accepted {self.tally.accepted:,}")

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
        """Keep and count what was not sent of something that cannot be read a second time, up to its end.

        Args:
            messages: the rest, the same that `send` was handed.
            lines: what is left from a record on that cannot be read: kept as it is.
            is_interrupted: whether to wait no longer than `QUIET_S` for more.
        """
        if self.failed is None:
            return
        self._progress.tell(f"keeping the rest in {self.failed.path}")
        quiet_s = QUIET_S if is_interrupted else None
        if self._held is not None:
            self._keep_unsent(self._held)
        try:
            async for message in _until_quiet(messages, quiet_s):
                if not self._keep_unsent(message):
                    return
        except (InvalidOperationError, OSError) as error:
            self._progress.note(f"from a record on that cannot be read the lines are kept as they are: {error}")
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
                self._refused(number, error)
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

    def _refused(self, number: int, error: ServiceBusError) -> None:
        self.tally.refused += 1
        if self.tally.refused <= MAX_TOLD:
            self._progress.note(f"record {number}: {error}")
        elif self.tally.refused == MAX_TOLD + 1:
            self._progress.note("more are refused; they are counted")

    def _keep_unsent(self, unsent: ServiceBusMessage | str) -> bool:
        is_kept = self._keep(unsent)
        self.tally.unsent += is_kept
        return is_kept

    def _keep(self, unaccepted: ServiceBusMessage | str) -> bool:
        """Keep it; where that fails nothing more is sent. Returns whether it is kept."""
        if self.failed is None:
            return False
        try:
            if isinstance(unaccepted, str):
                self.failed.keep_line(unaccepted)
            else:
                self.failed.keep(unaccepted)
        except OSError as error:
            self._progress.note(f"{self.failed.path} cannot be written ({error.strerror}), and nothing more is kept")
            self.failed = None
            self._stopped_by = self._stopped_by or error
            return False
        return True


async def _until_quiet(items: AsyncIterator[T], quiet_s: float | None) -> AsyncGenerator[T, None]:
    """The items, to the end or, unless `quiet_s` is None, until nothing has come for so long."""
    clock = Clock()
    while True:
        try:
            async with clock.timeout(quiet_s):
                item = await anext(items)
        except (StopAsyncIteration, TimeoutError):
            return
        yield item
