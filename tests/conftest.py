"""What all tests share: async tests and fixtures run in virtual time unless they ask for real time.

A test asks with `@pytest.mark.real_time` (or `pytestmark` in its file). A directory in which everything needs real
time, as the network does, answers the hook below in a conftest of its own with `{"real": asyncio.new_event_loop}`; one
that returns both names runs each async test under both.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import pytest
from hypothesis import settings

from sbclient.testing import VirtualClock, VirtualLoop

settings.register_profile("shared machine", deadline=None)  # how long one example takes says nothing here
settings.load_profile("shared machine")

HORIZON_S = 2 * 366 * 86400.0
"""A test whose virtual time passes this runs away: something periodic was left behind."""


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "real_time: run this async test on a real event loop, not a virtual one")


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    if item.get_closest_marker("real_time"):
        return {"real": asyncio.new_event_loop}
    return {"virtual": lambda: VirtualLoop(horizon_s=HORIZON_S)}


@pytest.fixture
def clock() -> VirtualClock:
    """The time of the test's virtual loop; its `now()` is 1,700,000,000 s when the test begins."""
    return VirtualClock(epoch=1_700_000_000.0)
