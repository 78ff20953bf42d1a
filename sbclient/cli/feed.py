"""Reads a blocking iterator in a thread, so that an event loop can await its items."""

from __future__ import annotations

import asyncio
import io
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from threading import Event, Semaphore, Thread
from typing import Final, Generic, TextIO, TypeVar

from sbclient.cli.records import limited_lines, open_text, text_of

T = TypeVar("T")

AHEAD: Final = 1000
"""How many items the thread reads before they are requested."""


class Feed(AsyncIterator[T], Generic[T]):
    """The items of an iterator that may block. Raises the iterator's error after the items before it.

    A cancelled `anext` loses nothing: the next call returns the item.
    """

    def __init__(self, items: Iterator[T]) -> None:
        loop = asyncio.get_running_loop()
        queue = self._queue = asyncio.Queue[tuple[T] | BaseException | None]()
        room = self._room = Semaphore(AHEAD)
        is_closed = self._is_closed = Event()

        def read() -> None:
            end: BaseException | None = None
            try:
                for item in items:
                    room.acquire()
                    if is_closed.is_set():
                        return
                    loop.call_soon_threadsafe(queue.put_nowait, (item,))
            except Exception as error:
                end = error
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(queue.put_nowait, end)

        # A daemon: a blocking read of a terminal or an idle pipe cannot be cancelled.
        Thread(target=read, name="feed", daemon=True).start()

    async def __anext__(self) -> T:
        if self._is_closed.is_set():
            raise StopAsyncIteration
        item = await self._queue.get()
        if isinstance(item, tuple):
            self._room.release()
            return item[0]
        self.close()
        raise StopAsyncIteration if item is None else item

    def close(self) -> None:
        """Stop after the item that the thread waits for."""
        self._is_closed.set()
        self._room.release()


class StandardInput(Iterator[str]):
    """The lines of stdin, for `records.decoded`.

    Args:
        encoding: of stdin, whatever the locale is.
    """

    def __init__(self, encoding: str) -> None:
        self._encoding = encoding
        self._lines: Iterator[str] | None = None
        self._latest: str | None = None

    def __next__(self) -> str:
        if self._lines is None:
            self._lines = limited_lines(_open_stdin(self._encoding))
        self._latest = None
        self._latest = next(self._lines)
        return self._latest

    def rest(self) -> Iterator[str]:
        """Yield the line that was read last, if any, and the lines after it."""
        if self._latest is not None:
            yield self._latest
        yield from self


def _open_stdin(encoding: str) -> TextIO:
    """Open stdin anew: a thread that blocks in `sys.stdin` would delay the exit of the process."""
    try:
        number = sys.stdin.fileno()
    except (io.UnsupportedOperation, ValueError):
        return text_of(sys.stdin.buffer, encoding)  # of a test
    return open_text(number, encoding)
