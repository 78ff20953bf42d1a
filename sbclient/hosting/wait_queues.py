"""Queues of receivers that wait for messages or sessions, first come, first served.

Rules:

1. A waiter is woken, and then takes the message itself. So a cancelled waiter loses no message. A waiter that leaves
   wakes the next one.
2. The receivers of each session wait in their own queue, so that one message wakes one receiver out of ten thousand.
3. A queue has divisions, because not every waiter sees every message: one division for each front end that caches
   messages of a partitioned entity, and one for each fragment of a held session. A message wakes the first waiter of
   each division, the longest-waiting first.
4. A waiter whose event loop is closed is skipped, because it never runs again.
5. The number of waiting receivers of one entity is limited; the subscriptions of a topic count together.
   Source: Service Bus quotas.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import TypeAlias

from sbclient.delivery import ServiceBusSessionFilter
from sbclient.errors import ServiceBusQuotaExceededError
from sbclient.rules.entity_path import canonical, split_sub_queue, split_subscription

Awaited: TypeAlias = str | ServiceBusSessionFilter | None
"""What receivers of a path wait for: messages of a session, any free session, or, without sessions, any message."""


class Waiter:
    """One waiting receiver.

    Attributes:
        woken: is done when the receiver may try again.
        position: rises with each waiter that joins.
    """

    __slots__ = ("loop", "position", "woken")

    def __init__(self, loop: asyncio.AbstractEventLoop, position: int) -> None:
        self.loop = loop
        self.position = position
        self.woken: asyncio.Future[None] = loop.create_future()

    def wake(self) -> bool:
        """Let the receiver try again; False if it is awake already, or its loop is closed."""
        if self.woken.done() or self.loop.is_closed():
            return False
        self.woken.set_result(None)
        return True


_Division: TypeAlias = "OrderedDict[Waiter, None]"
_Divisions: TypeAlias = "dict[int, _Division]"


class WaitQueues:
    """The waiting receivers of one namespace, by canonical path.

    Args:
        limit: the maximum number of waiting receivers of one entity.

    Attributes:
        queues: by path and by what is awaited, those with a waiter; read-only.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.queues: dict[str, dict[Awaited, _Divisions]] = {}
        self._counts: dict[str, int] = {}
        self._last_position = 0

    def is_waited_for(self, key: str) -> bool:
        return key in self.queues

    def has_division(self, key: str, awaited: Awaited, division: int) -> bool:
        queues = self.queues.get(key)
        return queues is not None and division in queues.get(awaited, ())

    def join(self, path: str, awaited: Awaited, division: int) -> Waiter:
        """Add a waiter to the end of a division.

        Raises:
            ServiceBusQuotaExceededError: too many receivers wait for messages of the entity.
        """
        entity = _counted_entity(path)
        if self._counts.get(entity, 0) >= self._limit:
            raise ServiceBusQuotaExceededError(
                f"{self._limit} receivers wait for messages of {path}, which is the maximum: close some of them"
            )
        self._counts[entity] = self._counts.get(entity, 0) + 1
        self._last_position += 1
        waiter = Waiter(asyncio.get_running_loop(), self._last_position)
        divisions = self.queues.setdefault(canonical(path), {}).setdefault(awaited, {})
        divisions.setdefault(division, OrderedDict())[waiter] = None
        return waiter

    def leave(self, path: str, awaited: Awaited, division: int, waiter: Waiter) -> None:
        """Remove a waiter, and wake the next one, which checks whether there is a message for it."""
        key, entity = canonical(path), _counted_entity(path)
        self._counts[entity] -= 1
        if not self._counts[entity]:
            del self._counts[entity]
        divisions = self.queues[key][awaited]
        waiters = divisions[division]
        del waiters[waiter]
        _wake_first(waiters)
        if not waiters:
            del divisions[division]
        if not divisions:
            del self.queues[key][awaited]
        if not self.queues[key]:
            del self.queues[key]

    def wake(self, key: str, awaited: Awaited) -> None:
        """Wake the first waiter of each division."""
        queues = self.queues.get(key)
        if queues is None:
            return
        divisions = queues.get(awaited, {}).values()
        for waiters in sorted(divisions, key=_first_position) if len(divisions) > 1 else divisions:
            _wake_first(waiters)

    def wake_all_of(self, key: str) -> None:
        """Wake every waiter of a path."""
        for divisions in self.queues.get(key, {}).values():
            for waiters in divisions.values():
                for waiter in waiters:
                    waiter.wake()

    def wake_all(self) -> None:
        """Wake every waiter."""
        for key in self.queues:
            self.wake_all_of(key)


def _wake_first(waiters: _Division) -> None:
    for waiter in waiters:
        if waiter.wake():
            return


def _first_position(waiters: _Division) -> int:
    return next(iter(waiters)).position


def _counted_entity(path: str) -> str:
    """The entity that a receiver of a path counts for: the topic of a subscription, the entity of a sub-queue."""
    base, _ = split_sub_queue(path)
    subscription = split_subscription(base)
    return canonical(base if subscription is None else subscription[0])
