"""Thousands of messages through a pair, an outage and a syphon; the benchmark takes a hundred thousand."""

from __future__ import annotations

import tracemalloc

import pytest

from sbclient.testing import run_virtual
from tests.benchmarks.failover import passed_through

pytestmark = pytest.mark.slow  # sends thousands of messages


def test_an_outage_loses_none_of_5000_messages() -> None:
    result = run_virtual(passed_through(5000))
    assert (result.delivered, result.lost, result.duplicates) == (5000, 0, 0)
    assert result.diverted == result.drained == 2500


def test_draining_takes_bounded_memory() -> None:
    tracemalloc.start()
    try:
        growth = [run_virtual(passed_through(messages)).drain_growth_bytes for messages in (2000, 6000)]
    finally:
        tracemalloc.stop()
    assert growth[1] < growth[0] + 4_000_000
