"""Each test of the broker core has a namespace of its own."""

from __future__ import annotations

import pytest

from tests.broker.driver import Driver


@pytest.fixture
def broker() -> Driver:
    return Driver()
