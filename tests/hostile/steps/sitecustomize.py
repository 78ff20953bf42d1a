"""Python imports this in the emulators under attack: it writes how much processor time long steps of the loop take."""

from __future__ import annotations

import asyncio.base_events
import os
import time
from typing import Any

LEAST_S = 0.001


def watch(path: str) -> None:
    """Write a line for each long step of each event loop of this process: when it ended, and its processor time."""
    lines = open(path, "a", buffering=1)  # noqa: SIM115 - until the process ends
    loop: Any = asyncio.base_events.BaseEventLoop
    run_once = loop._run_once

    def measured(self: Any) -> None:
        before = time.thread_time()
        run_once(self)
        if (spent := time.thread_time() - before) > LEAST_S:
            lines.write(f"{time.monotonic()} {spent}\n")

    loop._run_once = measured


if "HOSTILE_STEPS" in os.environ:
    watch(os.environ["HOSTILE_STEPS"])
