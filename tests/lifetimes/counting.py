"""Counts what is there: objects by type, tasks and timers of the event loop, and what a broker holds."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterator, Sized
from typing import Any, Final

from sbclient import ServiceBusReceivedMessage

WARM_UP: Final = 12
"""Repetitions before the first count: caches and the like fill."""

TOLERATED: Final = 3
"""Growth that is no leak: what the last repetition has not ended yet."""

BOUNDED: Final = {
    "sbclient.pairing.status.PairEvent",  # a client keeps the last 1,000
    "sbclient.pairing.status.PairEvent.facts",
    "sbclient.broker.entity.PeekCursor",  # a node of the emulator keeps 1,000 positions of readers that peek
    "sbclient.emulator.amqp.management.ManagementNode._cursors",
    "sbclient.broker.faults.Fault",  # of the tests themselves
}

NOT_KEPT: Final = "messages that were received"
"""No call ends with one of them, and no object keeps one: also not the last one alone."""

_COUNTED: Final = ("sbclient", "asyncio", "_asyncio", "azure", "aiohttp", "tests")


def counts(broker: Callable[[], Counter[str]]) -> Counter[str]:
    """Everything that a call could leave behind, by name."""
    gc.collect()
    found: Counter[str] = Counter()
    for each in gc.get_objects():
        kind = type(each)
        module = kind.__module__
        if issubclass(kind, asyncio.Handle):
            continue  # the loop keeps cancelled ones for a while; timers are counted below
        if isinstance(module, str) and module.startswith(_COUNTED):
            name = f"{module}.{kind.__qualname__}"
            found[name] += 1
            found[NOT_KEPT] += isinstance(each, ServiceBusReceivedMessage)
            if module.startswith("sbclient.") and not module.startswith("sbclient.testing"):
                for attribute, held in _containers(each):
                    found[f"{name}.{attribute}"] += len(held)
    loop: Any = asyncio.get_running_loop()
    found["timers"] = sum(not timer.cancelled() for timer in loop._scheduled)
    found["tasks"] = len(asyncio.all_tasks())
    found.update({f"broker: {name}": count for name, count in broker().items()})
    return found


def _containers(each: object) -> Iterator[tuple[str, Sized]]:
    """The dicts, lists and so on that an object has: a leak may be texts and numbers, which nothing else counts."""
    slots = (slot for kind in type(each).__mro__ for slot in kind.__dict__.get("__slots__", ()))
    if isinstance(each, type):
        return
    for name in (*getattr(each, "__dict__", ()), *slots):
        try:
            held = object.__getattribute__(each, name)
        except AttributeError:
            continue
        if isinstance(held, dict | list | set) or (isinstance(held, deque) and held.maxlen is None):
            yield name, held


async def grown_by(
    work: Callable[[], Awaitable[object]], broker: Callable[[], Counter[str]], repeats: int
) -> dict[str, int]:
    """Repeat work; return what has grown with the repetitions, by name.

    What grew in one half only is no leak: a table that was enlarged, a time that has come.
    """
    kept = counts(broker)[NOT_KEPT]  # of other tests of this process
    for _ in range(WARM_UP):
        await work()
    await settled()
    before = counts(broker)
    for _ in range(repeats // 2):
        await work()
    await settled()
    middle = counts(broker)
    for _ in range(repeats - repeats // 2):
        await work()
    await settled()
    after = counts(broker)
    least = max(TOLERATED, repeats // 5)
    if after[NOT_KEPT] > kept:
        return {NOT_KEPT: after[NOT_KEPT] - kept}
    return {
        name.rpartition("<locals>.")[2]: after[name] - before[name]
        for name in after.keys() - BOUNDED
        if after[name] - middle[name] > least / 2 and middle[name] - before[name] > least / 2
    }


async def settled() -> None:
    """Let what has ended end."""
    for _ in range(10):
        await asyncio.sleep(0)
    if type(asyncio.get_running_loop()) is asyncio.SelectorEventLoop:  # real time: the other end ends too
        await asyncio.sleep(0.3)
