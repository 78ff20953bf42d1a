"""What an operation costs does not grow with what is stored; `python -m tests.benchmarks growth` measures more."""

from __future__ import annotations

import pytest

from tests.benchmarks.broker_scale import bytes_each, costs

pytestmark = pytest.mark.slow  # fills large queues


def test_depth_sessions_and_remembered_ids_do_not_slow_an_operation() -> None:
    small, large = costs(50, rounds=400), costs(5_000, rounds=400)
    slower = {name: round(large[name] / cost, 2) for name, cost in small.items() if large[name] > 4 * cost}
    assert not slower, "a hundred times the depth must not cost several times as much"


def test_queued_message_uses_less_than_a_kilobyte() -> None:
    assert bytes_each(5_000) < 1_000
