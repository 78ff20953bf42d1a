"""What happens in a namespace, told to everybody who watches: entities, faults, connections, resets; never messages."""

from __future__ import annotations

import asyncio
import json
import math
from collections import deque
from contextlib import suppress
from typing import Any, Final, TypeAlias

from sbclient.clock import Clock

Event: TypeAlias = dict[str, Any]

MAX_WAITING: Final = 1_000
"""Events that wait for one watcher; of a slower one the oldest are dropped, and it is told how many."""

MAX_SUBSCRIBERS: Final = 100
HEARTBEAT_S: Final = 15.0


class EventFeed:
    """The events of one namespace."""

    def __init__(self) -> None:
        self._watchers: dict[Watcher, None] = {}

    @property
    def has_room(self) -> bool:
        """Whether one more may watch."""
        return len(self._watchers) < MAX_SUBSCRIBERS

    def publish(self, name: str, at: float, **facts: Any) -> None:
        """Tell everybody. Facts can be written as JSON, and hold no body, key or token.

        Args:
            name: dotted: `entity.created`.
            at: seconds since 1970.
        """
        for watcher in self._watchers:
            watcher.put({"event": name, "at": at, **facts})

    def watch(self) -> Watcher:
        """Events from now on, until the watcher is closed."""
        watcher = Watcher(self._watchers)
        self._watchers[watcher] = None
        return watcher


class Watcher:
    """One who watches, and the events that wait for him."""

    def __init__(self, all_watchers: dict[Watcher, None]) -> None:
        self._all_watchers = all_watchers
        self._waiting: deque[Event] = deque()
        self._dropped = 0
        self._has_some = asyncio.Event()

    def put(self, event: Event) -> None:
        if len(self._waiting) == MAX_WAITING:
            self._waiting.popleft()
            self._dropped += 1
        self._waiting.append(event)
        self._has_some.set()

    def taken(self) -> list[Event]:
        """The events that wait, without waiting for one."""
        events = list(self._waiting)
        self._waiting.clear()
        self._has_some.clear()
        if self._dropped:
            events.insert(0, {"event": "events.dropped", "count": self._dropped})
            self._dropped = 0
        return events

    async def next(self) -> Event:
        """The next event, after waiting for one."""
        await self._has_some.wait()
        if self._dropped:
            dropped, self._dropped = self._dropped, 0
            return {"event": "events.dropped", "count": dropped}
        event = self._waiting.popleft()
        if not self._waiting:
            self._has_some.clear()
        return event

    def close(self) -> None:
        """Watch no more. Safe to call twice."""
        self._all_watchers.pop(self, None)


class EventStream:
    """Events as the server-sent events of HTML, with a comment now and then that keeps the connection alive.

    Args:
        watcher: has them; closed with this.
        clock: for the comments and the end.
        ends_at: when no more may be seen, in seconds since 1970; infinity = never.
    """

    def __init__(self, watcher: Watcher, clock: Clock, ends_at: float = math.inf) -> None:
        self._watcher = watcher
        self._clock = clock
        self._ends_at = ends_at
        self._pending: asyncio.Task[Event] | None = None

    def __aiter__(self) -> EventStream:
        return self

    async def __anext__(self) -> bytes:
        if self._pending is None:
            self._pending = asyncio.create_task(self._watcher.next())
        left_s = self._ends_at - self._clock.now()
        if left_s <= 0:
            raise StopAsyncIteration
        if await self._clock.wait([self._pending], min(left_s, HEARTBEAT_S)):
            return b":\n\n"
        event, self._pending = self._pending.result(), None
        return f"event: {event['event']}\ndata: {json.dumps(event)}\n\n".encode()

    async def aclose(self) -> None:
        """Watch no more."""
        self._watcher.close()
        if self._pending is not None:
            self._pending.cancel()
            with suppress(asyncio.CancelledError):
                await self._pending
