"""The lock renewals of one receiver: those of one step of the event loop, link and partition share a request."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import TypeAlias
from uuid import UUID

from sbclient import clock
from sbclient.deadlines import Deadlines
from sbclient.errors import ServiceBusConnectionError, ServiceBusError
from sbclient.tasks import OwnedTasks
from sbclient.transport.amqp.inbox import IncomingEnd
from sbclient.transport.amqp.waiter import Waiter

RenewTokens: TypeAlias = Callable[[IncomingEnd | None, Sequence[UUID], float], Awaitable[list[datetime]]]
"""Renews locks of messages of one link and partition in one request, all or none, within some seconds; returns when
they end."""


_Group: TypeAlias = tuple[IncomingEnd | None, int]
"""A link and a partition."""


class Renewals:
    """Groups lock renewals.

    Args:
        renew_tokens: renews some locks of one link.
        path: of the entity, for errors.
        tasks: owns the requests.
        deadlines: expires callers.
    """

    def __init__(self, renew_tokens: RenewTokens, path: str, *, tasks: OwnedTasks, deadlines: Deadlines) -> None:
        self._renew_tokens = renew_tokens
        self._path = path
        self._tasks = tasks
        self._deadlines = deadlines
        self._waiting: dict[_Group, list[_Renewal]] = {}

    async def renew(self, token: UUID, end: IncomingEnd | None, partition: int, timeout_s: float) -> datetime:
        """The end of the renewed lock.

        Args:
            token: of the lock.
            end: the link that brought the message; None if it is gone.
            partition: of the message: the service refuses a request for locks of several.
            timeout_s: seconds for the call.
        """
        renewal = _Renewal(token, clock.monotonic() + timeout_s, f"renew a lock of {self._path!r}")
        waiting = self._waiting.setdefault((end, partition), [])
        if not waiting:
            self._tasks.start(self._renew_waiting((end, partition)), name=f"renew locks of {self._path}")
        waiting.append(renewal)
        self._deadlines.add(renewal)
        try:
            until: datetime = await renewal.future
            return until
        finally:
            self._deadlines.remove(renewal)

    async def _renew_waiting(self, group: _Group) -> None:
        end, waiting = group[0], self._waiting.pop(group)
        try:
            await self._renew(end, waiting)
        except ServiceBusError as error:
            if len(waiting) == 1:
                waiting[0].fail(error)
                return
            # One lost lock fails the request for all of them, so each lock gets a request of its own.
            for renewal in waiting:
                try:
                    await self._renew(end, [renewal])
                except ServiceBusError as own:
                    renewal.fail(own)
        except asyncio.CancelledError:
            for renewal in waiting:
                renewal.fail(ServiceBusConnectionError(f"{renewal.doing}: the client was closed"))
            raise

    async def _renew(self, end: IncomingEnd | None, waiting: Sequence[_Renewal]) -> None:
        timeout_s = max(max(renewal.deadline for renewal in waiting) - clock.monotonic(), 0.001)
        times = await self._renew_tokens(end, [renewal.token for renewal in waiting], timeout_s)
        for renewal, until in zip(waiting, times, strict=True):
            renewal.finish(until)


class _Renewal(Waiter):
    """A lock that is to be renewed. A renewal changes nothing that could be in doubt."""

    __slots__ = ("token",)

    def __init__(self, token: UUID, deadline: float, doing: str) -> None:
        super().__init__(deadline, doing)
        self.token = token
