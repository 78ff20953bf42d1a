"""What a pipe or a file holds, handed to an event loop that must not wait for it."""

from __future__ import annotations

import asyncio
import io
import sys
from collections.abc import AsyncGenerator, Iterator
from contextlib import suppress
from threading import Event, Semaphore, Thread
from typing import Final, TextIO, TypeVar

T = TypeVar("T")

AHEAD: Final = 1000
"""So many items are read before they are asked for."""


async def fed(items: Iterator[T]) -> AsyncGenerator[T, None]:
    """The items of an iterator that may block; while it does, the loop goes on. Its error is raised here."""
    loop = asyncio.get_running_loop()
    handed: asyncio.Queue[T | BaseException | None] = asyncio.Queue()
    room = Semaphore(AHEAD)
    is_ended = Event()

    def read() -> None:
        try:
            for item in items:
                room.acquire()
                if is_ended.is_set():
                    return
                loop.call_soon_threadsafe(handed.put_nowait, item)
            last: BaseException | None = None
        except Exception as error:
            last = error
        with suppress(RuntimeError):  # the loop has ended: nobody waits for it any more
            loop.call_soon_threadsafe(handed.put_nowait, last)

    # A daemon, since a read from a terminal or an idle pipe cannot be broken off.
    Thread(target=read, name="feed", daemon=True).start()
    try:
        while (item := await handed.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item
            room.release()
    finally:
        is_ended.set()
        room.release()


def standard_input() -> TextIO:
    """Stdin as UTF-8, whatever the locale says, in an object of its own: a thread that waits in it does not hold up the
    end of the program."""
    try:
        number = sys.stdin.fileno()
    except (io.UnsupportedOperation, ValueError):
        return sys.stdin
    return open(number, encoding="utf-8-sig", newline="", closefd=False)
