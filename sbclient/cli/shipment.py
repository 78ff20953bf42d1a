"""Many messages to one entity, a bounded number on their way at once, and an account of each."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TextIO

from sbclient.cli.json_values import plain
from sbclient.cli.message_json import content_json
from sbclient.cli.progress import Progress
from sbclient.errors import InvalidOperationError, ServiceBusError
from sbclient.message import ServiceBusMessage
from sbclient.sender import ServiceBusSender

IN_FLIGHT: Final = 500
MAX_TOLD: Final = 20
"""So many refusals are told one by one."""


@dataclass
class Tally:
    """Messages: how many were read, and what became of them.

    Attributes:
        accepted: stored, by the primary or by a backlog queue.
        diverted: of those, the ones a backlog queue took.
        refused: the message itself was at fault.
        failed: not accepted for another reason; after the first of them nothing more is read.
        in_doubt: of those, the ones that may have been stored all the same.
    """

    read: int = 0
    accepted: int = 0
    diverted: int = 0
    refused: int = 0
    failed: int = 0
    in_doubt: int = 0
    seconds: float = 0.0


class Shipment:
    """Sends what it is handed.

    Args:
        progress: is told how far it is.
        keep_in: a file for what was not accepted, one JSON object a line, each with the id it went by.
    """

    def __init__(self, progress: Progress, keep_in: Path | None = None) -> None:
        self.tally = Tally()
        self._progress = progress
        self._keep_in = keep_in
        self._kept: TextIO | None = None
        self._stopped_by: Exception | None = None

    async def send(self, sender: ServiceBusSender, messages: AsyncIterator[ServiceBusMessage]) -> None:
        """Send messages until there are no more. What is on its way when something goes wrong still arrives.

        Raises:
            ServiceBusError: the entity, or the way to it, is at fault; the rest was not read. What is wrong with a
                single message is only told and counted.
            OSError, InvalidOperationError: what cannot be read.
        """
        room = asyncio.Semaphore(IN_FLIGHT)

        async def send_one(number: int, message: ServiceBusMessage) -> None:
            try:
                await self._send_one(sender, number, message)
            finally:
                room.release()
                self._progress.tell(f"accepted {self.tally.accepted:,}")

        try:
            async with asyncio.TaskGroup() as group:
                try:
                    async for message in messages:
                        await room.acquire()
                        if self._stopped_by is not None:
                            break
                        self.tally.read += 1
                        group.create_task(send_one(self.tally.read, message))
                except (InvalidOperationError, OSError) as error:
                    self._stopped_by = self._stopped_by or error
        finally:
            if self._kept is not None:
                self._kept.close()
        if self._stopped_by is not None:
            raise self._stopped_by

    async def _send_one(self, sender: ServiceBusSender, number: int, message: ServiceBusMessage) -> None:
        try:
            await sender.send_messages(message)
            self.tally.accepted += 1
        except ServiceBusError as error:
            self._keep(message)
            if isinstance(error, ValueError):
                self._refused(number, error)
                return
            self.tally.failed += 1
            self.tally.in_doubt += error.is_in_doubt
            self._stopped_by = self._stopped_by or error
        except asyncio.CancelledError:
            self._keep(message)
            self.tally.failed += 1
            self.tally.in_doubt += 1
            raise

    def _refused(self, number: int, error: ServiceBusError) -> None:
        self.tally.refused += 1
        if self.tally.refused <= MAX_TOLD:
            self._progress.note(f"record {number}: {error}")
        elif self.tally.refused == MAX_TOLD + 1:
            self._progress.note("more are refused; they are counted")

    def _keep(self, message: ServiceBusMessage) -> None:
        if self._keep_in is None:
            return
        if self._kept is None:
            self._kept = self._keep_in.open("w", encoding="utf-8")
        self._kept.write(json.dumps(content_json(message), ensure_ascii=False, default=plain) + "\n")
