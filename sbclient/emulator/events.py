"""Events of a namespace for its subscribers: entities, faults, connections and resets, but not messages."""

from __future__ import annotations

import asyncio
import json
import math
from collections import deque
from typing import Any, Final, TypeAlias

from sbclient import clock

Event: TypeAlias = dict[str, Any]

MAX_QUEUED: Final = 1_000
"""Events queued for one subscriber. The oldest ones of a slow subscriber are dropped, and it gets their number."""

MAX_RECENT: Final = 200
"""Events that are kept for later subscribers of the page."""

CONNECTION: Final = "connection."
"""Begins the names of events of connections."""

DROPPED: Final = "events.dropped"
"""Tells a slow subscriber how many events it has not got."""

MAX_SUBSCRIBERS: Final = 100
HEARTBEAT_S: Final = 15.0


class EventFeed:
    """The events of one namespace.

    Attributes:
        recent: the last events, oldest first, except those of connections.
    """

    def __init__(self) -> None:
        self.recent: deque[Event] = deque(maxlen=MAX_RECENT)
        self._subscriptions: dict[Subscription, None] = {}

    @property
    def has_room(self) -> bool:
        """Whether the number of subscribers is below the limit."""
        return len(self._subscriptions) < MAX_SUBSCRIBERS

    def publish(self, name: str, at: float, **facts: Any) -> None:
        """Send an event to all subscribers. Its facts are JSON values, without bodies, keys or tokens.

        Args:
            name: dotted: `entity.created`.
            at: seconds since 1970.
        """
        event = {"event": name, "at": at, **facts}
        if not name.startswith(CONNECTION):
            self.recent.append(event)
        for subscription in self._subscriptions:
            subscription.put(event)

    def subscribe(self) -> Subscription:
        """Subscribe to the events from now on, until the subscription is closed."""
        subscription = Subscription(self._subscriptions)
        self._subscriptions[subscription] = None
        return subscription


class Subscription:
    """The queue of events of one subscriber."""

    def __init__(self, subscriptions: dict[Subscription, None]) -> None:
        self._subscriptions = subscriptions
        self._queue: deque[Event] = deque()
        self._dropped = 0
        self._has_some = asyncio.Event()

    def put(self, event: Event) -> None:
        if len(self._queue) == MAX_QUEUED:
            self._queue.popleft()
            self._dropped += 1
        self._queue.append(event)
        self._has_some.set()

    def take_all(self) -> list[Event]:
        """The queued events, possibly none."""
        events = list(self._queue)
        self._queue.clear()
        self._has_some.clear()
        if self._dropped:
            events.insert(0, {"event": DROPPED, "count": self._dropped})
            self._dropped = 0
        return events

    async def wait(self, timeout_s: float) -> None:
        """Wait until an event is queued, at most that many seconds."""
        await clock.wait_for(self._has_some, timeout_s)

    def close(self) -> None:
        """Unsubscribe. Safe to call twice."""
        self._subscriptions.pop(self, None)


class EventStream:
    """Events as server-sent events of HTML, with regular comments that keep the connection open.

    Args:
        subscription: closed with this stream.
        ends_at: when the stream ends, in seconds since 1970; infinity = never.
    """

    def __init__(self, subscription: Subscription, ends_at: float = math.inf) -> None:
        self._subscription = subscription
        self._ends_at = ends_at

    def __aiter__(self) -> EventStream:
        return self

    async def __anext__(self) -> bytes:
        left_s = self._ends_at - clock.now()
        if left_s <= 0:
            raise StopAsyncIteration
        await self._subscription.wait(min(left_s, HEARTBEAT_S))
        lines = [f"event: {event['event']}\ndata: {json.dumps(event)}\n\n" for event in self._subscription.take_all()]
        return "".join(lines or ":\n\n").encode()

    async def aclose(self) -> None:
        """Unsubscribe."""
        self._subscription.close()
