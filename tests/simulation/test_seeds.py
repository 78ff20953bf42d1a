"""A small range of seeds breaks no invariant, and a seed determines the history."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest

from tests.simulation.__main__ import main
from tests.simulation.checkers import INVARIANTS
from tests.simulation.plan import draw_plan
from tests.simulation.run import run_plan, run_seed
from tests.simulation.tally import Tally
from tests.simulation.weather import KINDS

SEEDS = 50
"""In every run of the tests; `.ci/proofs seeds` runs more."""


@pytest.fixture(scope="module")
def tally() -> Tally:
    """What the first seeds show, all together."""
    tally = Tally()
    with ProcessPoolExecutor(2, get_context("spawn")) as pool:
        for result in pool.map(run_seed, range(SEEDS), chunksize=10):
            tally.add(result)
    return tally


@pytest.mark.parametrize("invariant", INVARIANTS)
def test_every_invariant_holds(tally: Tally, invariant: str) -> None:
    assert not tally.violations[invariant], tally.as_text()


def test_runs_have_losses_doubts_and_failovers(tally: Tally) -> None:
    """There was much to lose, enough of it in doubt, and hardly a run without a failover."""
    assert tally.runs == SEEDS
    assert tally.sums["accepted"] > 30 * SEEDS
    assert tally.sums["diverted"] > 8 * SEEDS
    assert tally.sums["lost"] == tally.sums["unexpected"] == tally.sums["unexplained"] == 0
    assert 0.02 < tally.share("in_doubt", "tries") < 0.10
    assert tally.calm_runs < 0.10 * SEEDS
    assert tally.share("excused", "accepted") < 0.02


def test_seed_determines_the_history_for_every_hash_seed() -> None:
    command = [sys.executable, "-m", "tests.simulation", "--seeds", "100:105", "--json"]
    reports = [
        subprocess.run(
            command, env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        ).stdout
        for seed in ("1", "2")
    ]
    assert '"digest"' in reports[0]
    assert reports[0] == reports[1]


def test_different_seeds_have_different_histories() -> None:
    assert len({run_seed(seed).digest for seed in range(8)}) == 8


def test_every_pair_of_weather_kinds_occurs_in_few_seeds(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "0:4000", "--pairs"]) == 0
    pairs = len(KINDS) * (len(KINDS) - 1) // 2
    assert capsys.readouterr().out.startswith(f"{pairs} pairs of {len(KINDS)} kinds meet, each 1 times at least")


def test_pairs_of_kinds_that_never_occur_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "0:10", "--pairs"]) == 1
    assert "never: backlog_reset and both_down" in capsys.readouterr().out


def test_removing_all_weather_leaves_a_calm_run() -> None:
    plan = draw_plan(3)
    calm = plan.without(range(len(plan.lanes), plan.part_count))
    assert calm.lanes == plan.lanes
    assert not calm.incidents
    assert not calm.deaths
    result = run_plan(calm)
    assert not result.violations
    assert not result.diverted


def test_a_replay_prints_the_history(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--replay", "5"]) == 0
    output = capsys.readouterr().out
    assert "weather ends" in output
    assert f"history {run_seed(5).digest}" in output
