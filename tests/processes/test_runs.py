"""Two configurations for a quarter of a minute each; the other ones are run by hand."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

import pytest

from tests.processes.configurations import named
from tests.processes.report import as_row
from tests.processes.run import Run

pytestmark = pytest.mark.real_time

SECONDS: Final = 15.0
SEED: Final = 1
LONGEST_S: Final = 600.0
"""Far more than it takes on a loaded machine; every wait inside is bounded, too."""


@pytest.mark.parametrize("name", ["plain", "everything"])
async def test_no_message_is_lost(name: str, tmp_path: Path) -> None:
    async with asyncio.timeout(LONGEST_S):
        result = await Run(named(name), tmp_path, seconds=SECONDS, seed=SEED).run()
    assert not result.account.violations, as_row(result)
    assert result.failovers > 0
    assert result.account.accepted > 50
    assert result.account.delivered > 50
    assert set(result.struck) - {"latency", "slices", "slow link"}
