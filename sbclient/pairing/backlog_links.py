"""The links to the backlog queues of one pair."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final, TypeAlias

from sbclient.amqp import EncodedBatch
from sbclient.errors import (
    InvalidOperationError,
    MessageSizeExceededError,
    ServiceBusError,
    ServiceBusServerBusyError,
)
from sbclient.tasks import OwnedTasks
from sbclient.transport.base import SenderLink, Transport

Answered: TypeAlias = Callable[[str, ServiceBusError | None], None]

OF_THE_TRANSFER: Final = (InvalidOperationError, MessageSizeExceededError, ServiceBusServerBusyError)
"""Errors that are no fault of the queue or of its link."""


class BacklogLinks:
    """One link for each backlog queue. All senders of the client share it, so most diversions find it attached.

    A link that failed is not used any more. It closes when its last transfer ends, so that none fails.

    Args:
        answered: called with the queue and the error of each answer that says something about the queue; None = it has
            accepted a transfer.
    """

    def __init__(self, secondary: Transport, answered: Answered) -> None:
        self._secondary = secondary
        self._on_answer = answered
        self._tasks = OwnedTasks()
        self._links: dict[str, _Link] = {}
        self._not_closed: dict[_Link, None] = {}
        self._is_closed = False

    def send(self, queue: str, batch: EncodedBatch, *, timeout_s: float) -> asyncio.Future[None]:
        """Send a transfer to a queue; see `SenderLink.send`."""
        link = self._links.get(queue)
        if link is None:
            link = self._links[queue] = _Link(self._secondary.open_sender(queue))
            self._not_closed[link] = None
        sending = link.sender.send(batch, timeout_s=timeout_s)
        link.uses += 1
        sending.add_done_callback(partial(self._answered, queue, link))
        return sending

    def leave_loop(self) -> None:
        """Drop the transfers of an event loop that has ended. Links that failed in it are closed."""
        self._tasks.abandon()
        self._tasks = OwnedTasks()
        self._tasks.is_closed = self._is_closed
        for link in self._not_closed:
            link.uses = 0
            if link not in self._links.values() and not self._is_closed:
                self._tasks.start(self._close(link), name="close a link to a backlog queue")

    def _answered(self, queue: str, link: _Link, sending: asyncio.Future[None]) -> None:
        link.uses -= 1
        error = None if sending.cancelled() else sending.exception()
        if self._is_closed:
            return
        if isinstance(error, ServiceBusError) and not isinstance(error, OF_THE_TRANSFER):
            if self._links.get(queue) is link:
                del self._links[queue]
            self._on_answer(queue, error)
        elif error is None and not sending.cancelled():
            self._on_answer(queue, None)
        if not link.uses and self._links.get(queue) is not link:
            self._tasks.start(self._close(link), name="close a link to a backlog queue")

    async def close(self) -> None:
        """Close all links. A transfer that still uses one fails; the senders are closed before."""
        self._is_closed = True
        self._links.clear()
        for link in list(self._not_closed):
            await self._close(link)
        await self._tasks.close()

    async def _close(self, link: _Link) -> None:
        await link.sender.close()
        self._not_closed.pop(link, None)


class _Link:
    """A link, and how many transfers use it."""

    __slots__ = ("sender", "uses")

    def __init__(self, sender: SenderLink) -> None:
        self.sender = sender
        self.uses = 0
