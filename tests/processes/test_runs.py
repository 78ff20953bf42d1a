"""Run two configurations for 8 seconds each; `.ci/proofs chaos` runs all of them for a minute."""

from __future__ import annotations

import asyncio
from typing import Final

import pytest

from tests.processes.configurations import named
from tests.processes.report import as_row
from tests.processes.run import Result, Run

SECONDS: Final = 8.0
SEED: Final = 1
LONGEST_S: Final = 600.0
"""Far more than it takes on a loaded machine; every wait inside is bounded, too."""


NAMES: Final = ("plain", "everything")


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Result]:
    """Both runs, side by side: each has processes, ports and a folder of its own."""

    async def run() -> list[Result]:
        runs = (Run(named(name), tmp_path_factory.mktemp(name), seconds=SECONDS, seed=SEED) for name in NAMES)
        async with asyncio.timeout(LONGEST_S):
            return await asyncio.gather(*(one.run() for one in runs))

    return dict(zip(NAMES, asyncio.run(run()), strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_no_message_is_lost(results: dict[str, Result], name: str) -> None:
    result = results[name]
    assert not result.account.violations, as_row(result)
    assert result.failovers > 0
    assert result.account.accepted > 50
    assert result.account.delivered > 50
    assert set(result.injected) - {"latency", "slices", "slow link"}
