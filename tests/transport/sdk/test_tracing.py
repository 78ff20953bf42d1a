"""The tracing of azure-servicebus and ours, in one process over real sockets: nothing twice, nothing overwritten."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow  # starts many processes

ROOT = Path(__file__).parents[3]

DIVERTED = """
ServiceBus.send
  ServiceBus.message
    sbclient.divert
    sbclient.drain
    ServiceBus.receive
    ServiceBus.complete
"""
LARGE = """
ServiceBus.send
  ServiceBus.message
    ServiceBus.receive
    ServiceBus.dead-letter
"""
SCHEDULED = """
ServiceBus.schedule
  ServiceBus.message
    ServiceBus.peek
"""
BY_THE_SDK = """
ServiceBus.message
ServiceBus.send
"""


def traced(how: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.transport.sdk.traced_over_sdk", how]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=120)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize(("how", "alone"), [("ours", ""), ("sdk", BY_THE_SDK)])
def test_the_sdks_own_tracing_neither_doubles_ours_nor_overwrites_a_context(how: str, alone: str) -> None:
    found = traced(how)
    expected = {"diverted": DIVERTED, "large": LARGE, "scheduled": SCHEDULED, "by the SDK alone": alone}
    assert found["trees"] == {what: tree.strip("\n") for what, tree in expected.items()}
    for properties in found["properties"].values():
        assert properties.keys() == {"Diagnostic-Id", "traceparent"}
        assert len(set(properties.values())) == 1
