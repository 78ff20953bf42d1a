"""Run one configuration for 8 seconds; `.ci/proofs chaos` runs all of them for a minute."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from tests.processes.configurations import named
from tests.processes.report import as_row
from tests.processes.run import Run

SECONDS: Final = 8.0
SEED: Final = 1


@pytest.mark.real_time
async def test_no_message_is_lost(tmp_path: Path) -> None:
    result = await Run(named("everything"), tmp_path, seconds=SECONDS, seed=SEED).run()
    assert not result.account.violations, as_row(result)
    assert result.failovers > 0
    assert result.account.accepted > 50
    assert result.account.delivered > 50
    assert set(result.injected) - {"latency", "slices", "slow link"}
