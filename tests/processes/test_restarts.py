"""Kill an emulator with a data directory a few times; `.ci/proofs restarts` kills it a hundred times."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.processes.restarts import as_text, run

pytestmark = pytest.mark.real_time


async def test_killed_emulator_comes_back_with_what_it_acknowledged(tmp_path: Path) -> None:
    load = await run(tmp_path, kills=2, seed=1, lives_s=(0.25, 0.3), waits_for_progress=True)
    assert not load.violations, as_text(load, 2)
    assert load.acknowledged
    assert load.completed_count
