"""The links to the backlog queues of one pair."""

from __future__ import annotations

from collections.abc import Callable

from sbclient.amqp import EncodedBatch
from sbclient.errors import ServiceBusError
from sbclient.tasks import OwnedTasks
from sbclient.transport.base import SenderLink, Transport


class BacklogLinks:
    """One link for each backlog queue. All senders of the client share it, so most diversions find it attached."""

    def __init__(self, secondary: Transport) -> None:
        self._secondary = secondary
        self._tasks = OwnedTasks()
        self._links: dict[str, SharedLink] = {}
        self._not_closed: dict[SharedLink, None] = {}

    def of(self, queue: str) -> SharedLink:
        """Return the link to a queue."""
        link = self._links.get(queue)
        if link is None:
            link = self._links[queue] = SharedLink(self._secondary.open_sender(queue), self._close_later)
            self._not_closed[link] = None
        return link

    def drop(self, queue: str, link: SharedLink) -> None:
        """Stop using a failed link; the next transfer to its queue opens a new one."""
        if self._links.get(queue) is link:
            del self._links[queue]
        link.drop()

    async def close(self) -> None:
        """Close all links. A transfer that still uses one fails; the senders are closed before."""
        self._links.clear()
        for link in list(self._not_closed):
            await self._close(link)
        await self._tasks.close()

    def _close_later(self, link: SharedLink) -> None:
        if not self._tasks.is_closed:
            self._tasks.start(self._close(link), name="close a link to a backlog queue")

    async def _close(self, link: SharedLink) -> None:
        await link.link.close()
        self._not_closed.pop(link, None)


class SharedLink:
    """A link that concurrent transfers use. After `drop` it closes when the last transfer ends, so that none fails.

    Attributes:
        link: the link of the transport.

    Args:
        unused: called when the link was dropped and no transfer uses it.
    """

    def __init__(self, link: SenderLink, unused: Callable[[SharedLink], None]) -> None:
        self.link = link
        self._unused = unused
        self._uses = 0
        self._is_dropped = False

    def __enter__(self) -> SenderLink:
        self._uses += 1
        return self.link

    def __exit__(self, *_: object) -> None:
        self._uses -= 1
        self._check_unused()

    def start(self, batch: EncodedBatch, *, timeout_s: float, done: Callable[[ServiceBusError | None], None]) -> bool:
        """Send a transfer if it can leave without waiting; see `SenderLink.start`."""

        def answered(error: ServiceBusError | None) -> None:
            done(error)
            self.__exit__()

        has_left = False
        self._uses += 1
        try:
            has_left = self.link.start(batch, timeout_s=timeout_s, done=answered)
        finally:
            if not has_left:
                self.__exit__()
        return has_left

    def drop(self) -> None:
        """Close the link as soon as no transfer uses it."""
        if not self._is_dropped:
            self._is_dropped = True
            self._check_unused()

    def _check_unused(self) -> None:
        if self._is_dropped and not self._uses:
            self._unused(self)
