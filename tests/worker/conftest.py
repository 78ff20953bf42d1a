"""Fixtures for the tests of the worker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.worker.scene import Listener


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[Listener]:
    """A service manager that receives the notifications of a worker."""
    listener = Listener(tmp_path)
    yield listener
    listener.close()
