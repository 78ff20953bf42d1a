"""The emulator in a thread of this process, for programs that block or run their own event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from sbclient.emulator.emulator import Emulator

START_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class ServedPair:
    """Two namespaces of one emulator.

    Attributes:
        emulator: serves both: `.create_queue("orders")`, `.inject(fault)`; the primary is its first namespace.
        primary, secondary: their connection strings.
    """

    emulator: Emulator
    primary: str = field(repr=False)
    secondary: str = field(repr=False)


@contextmanager
def served(*namespaces: str, **options: Any) -> Iterator[Emulator]:
    """Serve namespaces, `"contoso"` or `"contoso:5672"`, until the body ends; by default one on a free port.

    `options` are those of `Emulator`. Any thread may call those of its methods that change a namespace.

    Raises:
        InvalidOperationError: a port is in use.
    """
    from sbclient.emulator.emulator import Emulator

    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="servicebus emulator", daemon=True)
    thread.start()
    emulator = Emulator(*namespaces, **options)
    try:
        asyncio.run_coroutine_threadsafe(emulator.start(), loop).result(START_S)
        yield emulator
    finally:
        asyncio.run_coroutine_threadsafe(emulator.close(), loop).result(START_S)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
