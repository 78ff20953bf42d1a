"""Who watches a namespace hears everything that happens from then on, in order, and cannot make it hold much."""

from __future__ import annotations

import asyncio
import json

import pytest

from sbclient import clock
from sbclient.emulator.events import MAX_QUEUED, MAX_SUBSCRIBERS, EventFeed, EventStream


async def test_every_subscriber_gets_later_events() -> None:
    feed = EventFeed()
    feed.publish("before", 1.0)
    one = feed.subscribe()
    feed.publish("a", 2.0, path="orders")
    two = feed.subscribe()
    feed.publish("b", 3.0)
    assert one.take_all() == [
        {"event": "a", "at": 2.0, "path": "orders"},
        {"event": "b", "at": 3.0},
    ]
    assert two.take_all() == [{"event": "b", "at": 3.0}]


async def test_slow_subscriber_loses_the_oldest_events_and_gets_their_number() -> None:
    feed = EventFeed()
    watcher = feed.subscribe()
    for index in range(MAX_QUEUED + 5):
        feed.publish("tick", float(index))
    dropped, oldest, *_ = watcher.take_all()
    assert (dropped, oldest["at"]) == ({"event": "events.dropped", "count": 5}, 5.0)
    assert watcher.take_all() == []


async def test_number_of_subscribers_is_bounded() -> None:
    feed = EventFeed()
    watchers = [feed.subscribe() for _ in range(MAX_SUBSCRIBERS)]
    assert not feed.has_room
    watchers[0].close()
    watchers[0].close()
    assert feed.has_room
    feed.publish("tick", 1.0)
    assert watchers[0].take_all() == [], "who has gone hears nothing"


async def test_stream_writes_server_sent_events() -> None:
    feed = EventFeed()
    stream = EventStream(feed.subscribe())
    feed.publish("entity.created", 5.0, path="a\nb")
    name, data, *rest = (await anext(stream)).split(b"\n")
    assert name == b"event: entity.created"
    assert json.loads(data.removeprefix(b"data: ")) == {"event": "entity.created", "at": 5.0, "path": "a\nb"}
    assert rest == [b"", b""]
    await stream.aclose()


async def test_silent_stream_sends_heartbeats() -> None:
    feed = EventFeed()
    stream = EventStream(feed.subscribe())
    began_at = clock.now()
    assert await anext(stream) == b":\n\n"
    assert clock.now() - began_at == 15.0
    feed.publish("late", 1.0)
    assert b"late" in await anext(stream)
    await stream.aclose()
    assert len(asyncio.all_tasks()) == 1, "nothing is left behind"


async def test_stream_ends_when_no_more_may_be_seen() -> None:
    feed = EventFeed()
    stream = EventStream(feed.subscribe(), clock.now() + 20)
    feed.publish("early", 1.0)
    pieces = [piece async for piece in stream]
    assert b"early" in pieces[0]
    assert clock.monotonic() == 20
    feed.publish("late", 2.0)
    with pytest.raises(StopAsyncIteration):
        await anext(stream)
    await stream.aclose()
