"""The example of a FastAPI application, under uvicorn on uvloop, as its users run it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final
from urllib.request import Request, urlopen

import pytest

from sbclient.emulator.emulator import Emulator
from sbclient.testing import Fault, FaultKind
from tests.conftest import REAL_LOOPS

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(None in map(find_spec, ("fastapi", "uvicorn")), reason="needs fastapi and uvicorn"),
]

ROOT: Final = Path(__file__).parents[1]
ORDERS: Final = 8


def fetch(url: str, **order: Any) -> dict[str, Any]:
    body = json.dumps(order).encode() if order else None
    with urlopen(Request(url, data=body, headers={"Content-Type": "application/json"})) as response:
        answer: dict[str, Any] = json.load(response)
        return answer


def send_orders(url: str) -> None:
    assert len({fetch(url, number=number)["id"] for number in range(ORDERS)}) == ORDERS


def wait_for(url: str, *, handled: int) -> None:
    while fetch(url)["handled"] < handled:
        time.sleep(0.05)


@pytest.mark.parametrize("loop", ["asyncio", *(name for name in REAL_LOOPS if name != "real")])
def test_an_outage_passes_and_a_busy_shutdown_leaves_no_message_locked(
    servicebus_emulator: Emulator, loop: str
) -> None:
    servicebus_emulator.create_queue("orders")
    started = subprocess.Popen(
        [sys.executable, "-m", "uvicorn", "orders_api:app", "--app-dir", "examples/web", "--port", "0", "--loop", loop],
        cwd=ROOT,
        env=os.environ | {"SERVICEBUS_CONNECTION_STRING": servicebus_emulator.connection_string},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert started.stderr is not None
    log: list[str] = []
    try:
        while (found := re.search(r"running on (http://\S+)", "".join(log))) is None:
            line = started.stderr.readline()
            assert line, "".join(log)
            log.append(line)
        url = f"{found[1]}/orders"
        send_orders(url)
        wait_for(url, handled=ORDERS)  # a message in work at the time of an outage would stay locked
        servicebus_emulator.inject(Fault(FaultKind.DOWN))
        while "cannot receive orders" not in log[-1]:
            log.append(started.stderr.readline())
            assert log[-1], "".join(log)
        servicebus_emulator.heal()
        send_orders(url)
        wait_for(url, handled=ORDERS + 2)
        started.send_signal(signal.SIGTERM)
        log.append(started.communicate()[1])
    finally:
        started.kill()
        started.wait()
    assert started.returncode in (0, -signal.SIGTERM), "".join(log)  # uvicorn raises the signal again at its end
    assert "Application shutdown complete" in log[-1]
    assert "Traceback" not in log[-1]
    # The fixture fails the test if a message stays locked: each was completed, or never received.
