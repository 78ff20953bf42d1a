"""A thread that reads a blocking iterator for an event loop."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

from sbclient.cli.feed import AHEAD, Feed, StandardInput

pytestmark = pytest.mark.real_time


def lines_of(read: int) -> Iterator[str]:
    with open(read, encoding="utf-8") as pipe:
        yield from pipe


async def test_feed_returns_a_line_while_the_pipe_is_idle() -> None:
    read, write = os.pipe()
    feed = Feed(lines_of(read))
    waiting = asyncio.ensure_future(anext(feed))
    await asyncio.sleep(0)
    assert not waiting.done()  # and the loop goes on
    os.write(write, b"one\n")
    assert await waiting == "one\n"
    os.close(write)
    assert [line async for line in feed] == []


async def test_feed_limits_how_far_it_reads_ahead() -> None:
    numbers = count()
    feed = Feed(numbers)
    assert [await anext(feed) for _ in range(3)] == [0, 1, 2]
    feed.close()
    for thread in threading.enumerate():
        if thread.name == "feed":
            thread.join(5)
            assert not thread.is_alive()
    assert next(numbers) <= AHEAD + 4


async def test_feed_raises_an_error_after_the_items_before_it() -> None:
    def broken() -> Iterator[int]:
        yield 1
        raise ValueError("broken")

    feed = Feed(broken())
    assert await anext(feed) == 1
    with pytest.raises(ValueError, match="broken"):
        await anext(feed)


def test_feed_thread_ends_quietly_after_its_loop() -> None:
    read, write = os.pipe()

    async def main() -> None:
        feed = Feed(lines_of(read))
        waiting = asyncio.ensure_future(anext(feed))
        await asyncio.sleep(0.01)
        waiting.cancel()

    asyncio.run(main())
    os.write(write, b"too late\n")
    os.close(write)
    for thread in threading.enumerate():
        if thread.name == "feed":
            thread.join(5)
            assert not thread.is_alive()


async def test_cancelled_wait_loses_no_item() -> None:
    read, write = os.pipe()
    feed = Feed(lines_of(read))
    waiting = asyncio.ensure_future(anext(feed))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    os.write(write, b"one\ntwo\n")
    os.close(write)
    assert [line async for line in feed] == ["one\n", "two\n"]
    assert [line async for line in feed] == []


def test_the_rest_of_an_input_begins_with_the_line_that_was_read_last() -> None:
    lines = ["a\n", "\n", "c"]
    for taken in range(len(lines) + 1):
        source: Any = StandardInput("utf-8")
        source._lines = iter(lines)
        assert [next(source) for _ in range(taken)] == lines[:taken]
        assert list(source.rest()) == lines[max(taken - 1, 0) :]
        assert list(source.rest()) == [], "it was read to its end"
