"""A fixture for the tests of the control API."""

from __future__ import annotations

import pytest

from sbclient.emulator.context import NamespaceContext
from tests.emulator.control.scene import Control


@pytest.fixture
def control(context: NamespaceContext) -> Control:
    """The control API of the namespace."""
    return Control(context)
