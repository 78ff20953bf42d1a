"""Checks of one kind of client, all at once: each spends most of its time waiting, so together they take little longer
than the slowest, and each is still a test of its own.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeAlias

from tests.limit import HANG_S

AsyncCheck: TypeAlias = Callable[..., Coroutine[Any, Any, None]]
Outcomes: TypeAlias = dict[str, BaseException | None]


class Checks:
    """Functions that were marked as checks, by name."""

    def __init__(self) -> None:
        self.found: dict[str, Callable[..., Any]] = {}

    def __call__(self, check: Callable[..., Any]) -> Callable[..., Any]:
        """Mark a function as a check."""
        name = check.__name__.removeprefix("check_")
        assert name not in self.found, f"two checks are named {name}"
        self.found[name] = check
        return check

    @property
    def names(self) -> list[str]:
        return list(self.found)

    def run_async(self, *arguments: Any, at_once: int = 12) -> Outcomes:
        """Run all of them on one event loop."""

        async def run() -> Outcomes:
            turns = asyncio.Semaphore(at_once)

            async def one(check: AsyncCheck) -> BaseException | None:
                async with turns:
                    return await _outcome(check(*arguments))

            tasks = {name: asyncio.ensure_future(one(check)) for name, check in self.found.items()}
            await asyncio.gather(*tasks.values())
            return {name: task.result() for name, task in tasks.items()}

        return asyncio.run(run())

    def run_threads(self, *arguments: Any, at_once: int = 12) -> Outcomes:
        """Run all of them in threads."""
        with ThreadPoolExecutor(at_once, thread_name_prefix="check") as pool:
            running = {name: pool.submit(check, *arguments) for name, check in self.found.items()}
            return {name: future.exception(HANG_S) for name, future in running.items()}


async def _outcome(check: Coroutine[Any, Any, None]) -> BaseException | None:
    try:
        async with asyncio.timeout(HANG_S):
            await check
    except Exception as error:
        return error
    return None


class Names:
    """Unique names, so that checks in one namespace do not interfere."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._count = 0
        self._lock = threading.Lock()

    def new(self) -> str:
        with self._lock:
            self._count += 1
            return f"{self._prefix}-{self._count}"
