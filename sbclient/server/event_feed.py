"""What happens in a namespace, told to everybody who watches: entities, faults, connections, resets; never messages."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from contextlib import suppress
from typing import Any, Final, TypeAlias

from sbclient.clock import Clock

Event: TypeAlias = dict[str, Any]

MAX_WAITING: Final = 1_000
"""Events that wait for one watcher; of a slower one the oldest are dropped, and it is told how many."""

MAX_WATCHERS: Final = 100
HEARTBEAT_S: Final = 15.0


class EventFeed:
    """The events of one namespace."""

    def __init__(self) -> None:
        self._watchers: dict[Watcher, None] = {}

    @property
    def has_room(self) -> bool:
        """Whether one more may watch."""
        return len(self._watchers) < MAX_WATCHERS

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
    """Events as the server-sent events of HTML, with a comment now and then that keeps the connection alive."""

    def __init__(self, watcher: Watcher, clock: Clock) -> None:
        self._watcher = watcher
        self._clock = clock
        self._pending: asyncio.Task[Event] | None = None

    def __aiter__(self) -> EventStream:
        return self

    async def __anext__(self) -> bytes:
        if self._pending is None:
            self._pending = asyncio.create_task(self._watcher.next())
        if await self._clock.wait([self._pending], HEARTBEAT_S):
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
