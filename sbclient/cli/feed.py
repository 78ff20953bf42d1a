"""What a pipe or a file holds, handed to an event loop that must not wait for it."""

from __future__ import annotations

import asyncio
import io
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from threading import Event, Semaphore, Thread
from typing import Final, Generic, TextIO, TypeVar

T = TypeVar("T")

AHEAD: Final = 1000
"""So many items are read before they are asked for."""


class Feed(AsyncIterator[T], Generic[T]):
    """The items of an iterator that may block; while it does, the loop goes on. Its error is raised here.

    Who is cancelled while it waits has lost nothing: the next one who asks gets what comes then.
    """

    def __init__(self, items: Iterator[T]) -> None:
        loop = asyncio.get_running_loop()
        handed = self._handed = asyncio.Queue[tuple[T] | BaseException | None]()
        room = self._room = Semaphore(AHEAD)
        is_closed = self._is_closed = Event()
        self._is_over = False

        def read() -> None:
            try:
                for item in items:
                    room.acquire()
                    if is_closed.is_set():
                        return
                    loop.call_soon_threadsafe(handed.put_nowait, (item,))
                last: BaseException | None = None
            except Exception as error:
                last = error
            with suppress(RuntimeError):  # the loop has ended: nobody waits for it any more
                loop.call_soon_threadsafe(handed.put_nowait, last)

        # A daemon, since a read from a terminal or an idle pipe cannot be broken off.
        Thread(target=read, name="feed", daemon=True).start()

    async def __anext__(self) -> T:
        if self._is_over:
            raise StopAsyncIteration
        handed = await self._handed.get()
        if isinstance(handed, tuple):
            self._room.release()
            return handed[0]
        self._is_over = True
        raise StopAsyncIteration if handed is None else handed

    def close(self) -> None:
        """Read no further than the item that is waited for."""
        self._is_over = True
        self._is_closed.set()
        self._room.release()


class StandardInput(Iterator[str]):
    """The lines of stdin as UTF-8, whatever the locale says; what comes from one on that cannot be used is not lost."""

    def __init__(self) -> None:
        self._text: TextIO | None = None
        self._latest: str | None = None

    def __next__(self) -> str:
        if self._text is None:
            self._text = _standard_input()
        self._latest = None
        self._latest = next(self._text)
        return self._latest

    def rest(self) -> Iterator[str]:
        """The line that was read last, unless the end came after it, and all that follow."""
        if self._latest is not None:
            yield self._latest
        yield from self


def _standard_input() -> TextIO:
    """In an object of its own: a thread that waits in it does not hold up the end of the program."""
    try:
        number = sys.stdin.fileno()
    except (io.UnsupportedOperation, ValueError):
        return sys.stdin
    return open(number, encoding="utf-8-sig", newline="", closefd=False)
