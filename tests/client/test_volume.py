"""Thousands of messages through a pair, an outage and a syphon; the benchmark takes a hundred thousand."""

from __future__ import annotations

import tracemalloc

import pytest

from sbclient.testing import run_virtual
from tests.benchmarks.failover import passed_through

pytestmark = pytest.mark.slow  # sends thousands of messages


def test_an_outage_loses_none_of_2000_messages() -> None:
    result = run_virtual(passed_through(2000))
    assert (result.delivered, result.lost, result.duplicates) == (2000, 0, 0)
    assert result.diverted == result.drained == 1000


def test_draining_takes_bounded_memory() -> None:
    tracemalloc.start()
    try:
        growth = [run_virtual(passed_through(messages)).drain_growth_bytes for messages in (1000, 3000)]
    finally:
        tracemalloc.stop()
    assert growth[1] < growth[0] + 2_000_000
