"""The one limit of waits in real time."""

from __future__ import annotations

from typing import Final

HANG_S: Final = 300.0
"""As `timeout` in pyproject.toml: only a hang exceeds it, also beside other work on all processors."""
