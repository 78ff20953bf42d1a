"""The links to the backlog queues of one pair."""

from __future__ import annotations

from sbclient.transport.base import SenderLink, Transport


class BacklogLinks:
    """One link for each backlog queue. All senders of the client share it, so most diversions find it attached."""

    def __init__(self, secondary: Transport) -> None:
        self._secondary = secondary
        self._links: dict[str, SharedLink] = {}

    def of(self, queue: str) -> SharedLink:
        """Return the link to a queue."""
        link = self._links.get(queue)
        if link is None:
            link = self._links[queue] = SharedLink(self._secondary.open_sender(queue))
        return link

    async def drop(self, queue: str, link: SharedLink) -> None:
        """Stop using a failed link; the next transfer to its queue opens a new one."""
        if self._links.get(queue) is link:
            del self._links[queue]
        await link.drop()

    async def close(self) -> None:
        """Close the links that no transfer uses, and the others when their transfers end."""
        for queue, link in list(self._links.items()):
            await self.drop(queue, link)


class SharedLink:
    """A link that concurrent transfers use. After `drop` it closes when the last transfer ends, so that none fails."""

    def __init__(self, link: SenderLink) -> None:
        self._link = link
        self._uses = 0
        self._is_dropped = False

    async def __aenter__(self) -> SenderLink:
        self._uses += 1
        return self._link

    async def __aexit__(self, *_: object) -> None:
        self._uses -= 1
        await self._close_if_unused()

    async def drop(self) -> None:
        """Close the link as soon as no transfer uses it."""
        self._is_dropped = True
        await self._close_if_unused()

    async def _close_if_unused(self) -> None:
        if self._is_dropped and not self._uses:
            await self._link.close()
