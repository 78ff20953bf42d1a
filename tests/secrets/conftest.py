"""A fixture for the tests that no output contains a secret."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.secrets.output_capture import OutputCapture, capture_output


@pytest.fixture
def capture() -> Iterator[OutputCapture]:
    """Captures what the test logs and prints, and what it adds; fails if a canary is in it."""
    with capture_output() as capture:
        yield capture
        capture.check()
