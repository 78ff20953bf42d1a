"""A small range of seeds breaks no invariant, and a seed determines the history."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence

import pytest

from tests.simulation.__main__ import main
from tests.simulation.checkers import INVARIANTS
from tests.simulation.plan import draw_plan
from tests.simulation.run import Result, run_plan, run_seed
from tests.simulation.tally import Tally

SEEDS = 50
"""In every run of the tests; `.ci/proofs seeds` runs more."""


@pytest.fixture(scope="module")
def results() -> list[Result]:
    return [run_seed(seed) for seed in range(SEEDS)]


@pytest.fixture(scope="module")
def tally(results: list[Result]) -> Tally:
    """What the first seeds show, all together."""
    return tally_of(results)


def tally_of(results: Sequence[Result]) -> Tally:
    tally = Tally()
    for result in results:
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


def test_seed_determines_the_history_for_every_hash_seed(results: list[Result]) -> None:
    """The hash seed of this process is drawn, unless the environment states one."""
    command = [sys.executable, "-m", "tests.simulation", "--seeds", "0:3", "--json"]
    environment = {**os.environ, "PYTHONHASHSEED": "1"}
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert json.loads(run.stdout)["digest"] == tally_of(results[:3]).digest


def test_different_seeds_have_different_histories(results: list[Result]) -> None:
    assert len({result.digest for result in results}) == SEEDS


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
