"""Those who wait for messages, in the order of coming.

Laws:

1. A waiter is given its turn, not a message: it takes when it runs, and hands the turn on. So nothing is under way to
   one that is cancelled, and nobody is passed over.
2. A session's receivers wait in a line of their own, so that one message wakes one of ten thousand.
3. Nobody waits behind one who is looking elsewhere: a line has divisions, one for each front end that keeps answers of
   a partitioned entity, and one for each fragment where a session is held that lies in several. What comes wakes the
   first of each division, in the order of coming.
4. A waiter of a closed event loop is passed over: nobody will ever run it.
5. At most so many receivers of one entity wait, the subscriptions of a topic together. Source: Service Bus quotas.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import TypeAlias

from sbclient.delivery import ServiceBusSessionFilter
from sbclient.errors import ServiceBusQuotaExceededError
from sbclient.rules.entity_path import canonical, split_sub_queue, split_subscription

Whom: TypeAlias = str | ServiceBusSessionFilter | None
"""What is waited for at a path: a session's messages, a free session, or, where there are no sessions, messages."""


class Waiter:
    """Somebody in a line; `turn` is done when he may try, and `place` tells who came before him."""

    __slots__ = ("loop", "place", "turn")

    def __init__(self, loop: asyncio.AbstractEventLoop, place: int) -> None:
        self.loop = loop
        self.place = place
        self.turn: asyncio.Future[None] = loop.create_future()

    def give_turn(self) -> bool:
        """Let him try; False if he has his turn already, or nobody will ever run him."""
        if self.turn.done() or self.loop.is_closed():
            return False
        self.turn.set_result(None)
        return True


_Line: TypeAlias = "OrderedDict[Waiter, None]"
_Divisions: TypeAlias = "dict[int, _Line]"


class Lines:
    """The lines of one namespace, by the keys of paths.

    Args:
        limit: how many may wait for messages of one entity.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lines: dict[str, dict[Whom, _Divisions]] = {}
        self._counts: dict[str, int] = {}
        self._came = 0

    @property
    def has_anybody(self) -> bool:
        return bool(self._lines)

    def is_waited_for(self, key: str) -> bool:
        return key in self._lines

    def has_line(self, key: str, whom: Whom, division: int) -> bool:
        return division in self._lines.get(key, {}).get(whom, ())

    def join(self, path: str, whom: Whom, division: int) -> Waiter:
        """Stand at the end of a division of a line.

        Raises:
            ServiceBusQuotaExceededError: too many wait for messages of that entity.
        """
        entity = _counted_with(path)
        if self._counts.get(entity, 0) >= self._limit:
            raise ServiceBusQuotaExceededError(
                f"{self._limit} receivers wait for messages of {path}, as many as there may be: close some"
            )
        self._counts[entity] = self._counts.get(entity, 0) + 1
        self._came += 1
        waiter = Waiter(asyncio.get_running_loop(), self._came)
        divisions = self._lines.setdefault(canonical(path), {}).setdefault(whom, {})
        divisions.setdefault(division, OrderedDict())[waiter] = None
        return waiter

    def leave(self, path: str, whom: Whom, division: int, waiter: Waiter) -> None:
        """Out of the line, and the turn to the next: he finds out whether there is anything for him."""
        key, entity = canonical(path), _counted_with(path)
        self._counts[entity] -= 1
        if not self._counts[entity]:
            del self._counts[entity]
        divisions = self._lines[key][whom]
        line = divisions[division]
        del line[waiter]
        _next_turn(line)
        if not line:
            del divisions[division]
        if not divisions:
            del self._lines[key][whom]
        if not self._lines[key]:
            del self._lines[key]

    def give_turn(self, key: str, whom: Whom) -> None:
        """Let the first in each division of a line try, if anybody stands there."""
        divisions = self._lines.get(key, {}).get(whom)
        if divisions is not None:
            for line in sorted(divisions.values(), key=_first_place) if len(divisions) > 1 else divisions.values():
                _next_turn(line)

    def give_all_turns_of(self, key: str) -> None:
        """Let everybody try who waits at a path."""
        for divisions in self._lines.get(key, {}).values():
            for line in divisions.values():
                for waiter in line:
                    waiter.give_turn()

    def give_all_turns(self) -> None:
        """Let everybody try."""
        for key in self._lines:
            self.give_all_turns_of(key)


def _next_turn(line: _Line) -> None:
    for waiter in line:
        if waiter.give_turn():
            return


def _first_place(line: _Line) -> int:
    return next(iter(line)).place


def _counted_with(path: str) -> str:
    """What a receiver's path is counted with: a topic's subscriptions together, a sub-queue with its entity."""
    base, _ = split_sub_queue(path)
    subscription = split_subscription(base)
    return canonical(base if subscription is None else subscription[0])
