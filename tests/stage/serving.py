"""An emulator in a thread of the test's process: clients reach it by port, tests from the inside."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from sbclient.emulator import Emulator
from sbclient.emulator.faults import WireFault, WireFaultKind, WireFaults
from tests.limit import HANG_S

T = TypeVar("T")


class ServingThread:
    """An event loop in a thread."""

    def __init__(self, loop_factory: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop) -> None:
        self.loop = loop_factory()
        self._thread = threading.Thread(target=self.loop.run_forever, name="broker", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Do something on that loop, and wait for it."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(HANG_S)

    def do(self, work: Callable[[], T]) -> T:
        """Call a function on that loop."""

        async def call() -> T:
            return work()

        return self.run(call())

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(HANG_S)
        self.loop.close()


@contextmanager
def serving(thread: ServingThread, *namespaces: str, **options: Any) -> Iterator[Emulator]:
    """Serve namespaces in a thread, which goes on afterwards."""
    emulator = Emulator(*(namespaces or ("contoso",)), **options)
    try:
        thread.run(emulator.start())
        yield emulator
    finally:
        thread.run(emulator.close())


async def reset_connections(faults: WireFaults) -> None:
    """Reset all connections, and those that are opened within 0.3 s."""
    fault = faults.inject(WireFault(WireFaultKind.RESET))
    await asyncio.sleep(0.3)
    faults.heal(fault)
