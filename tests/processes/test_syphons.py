"""Drain a small backlog while syphons are stopped and killed; `.ci/proofs syphons` drains a large one."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from tests.limit import HANG_S
from tests.processes.syphons import TERMINATIONS, Syphoning, as_text

pytestmark = [
    pytest.mark.real_time,
]

MESSAGES: Final = 500
RATE: Final = 20.0
"""For each syphon: draining takes about as long as starting a syphon five times."""


async def test_syphons_that_are_stopped_and_killed_drain_the_backlog(tmp_path: Path) -> None:
    show = await Syphoning(tmp_path, messages=MESSAGES, within_s=HANG_S, rate=RATE).run()
    assert not show.violations, as_text(show)
    assert show.statuses == [0] * len(TERMINATIONS)
    assert show.killed == 1
    assert show.backlog == show.account.accepted == MESSAGES
    assert (show.account.lost, show.account.unexplained_duplicates) == (0, 0)
