"""Five hundred seeds in every run of the tests, and that a seed is a history."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import combinations

import pytest

from tests.simulation.__main__ import main
from tests.simulation.plan import draw_plan
from tests.simulation.run import run_plan, run_seed
from tests.simulation.tally import Tally
from tests.simulation.weather import KINDS

CHUNK = 50


@pytest.mark.parametrize("first", range(0, 500, CHUNK))
def test_nothing_that_must_hold_is_broken(first: int) -> None:
    tally = Tally()
    for seed in range(first, first + CHUNK):
        tally.add(run_seed(seed))
    assert not tally.violations, tally.as_text()
    assert tally.sums["accepted"] > 20 * CHUNK  # zeros mean something only where there was something to lose
    assert tally.sums["diverted"] > 2 * CHUNK
    assert tally.sums["in_doubt"] > CHUNK // 2


def test_a_seed_is_the_same_history_in_every_process_whatever_hashes_strings() -> None:
    command = [sys.executable, "-m", "tests.simulation", "--seeds", "40:60", "--json"]
    reports = [
        subprocess.run(
            command, env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        ).stdout
        for seed in ("1", "2")
    ]
    assert '"digest"' in reports[0]
    assert reports[0] == reports[1]


def test_different_seeds_are_different_histories() -> None:
    assert len({run_seed(seed).digest for seed in range(8)}) == 8


def test_every_two_kinds_of_weather_meet_in_ten_thousand_seeds() -> None:
    met: set[tuple[str, str]] = set()
    for seed in range(10_000):
        met.update(combinations(sorted(set(draw_plan(seed).kinds)), 2))
    missing = set(combinations(sorted(KINDS), 2)) - met
    assert not missing


def test_leaving_out_all_weather_leaves_a_run_without_it() -> None:
    plan = draw_plan(3)
    calm = plan.without(range(len(plan.lanes), plan.part_count))
    assert calm.lanes == plan.lanes
    assert not calm.strikes
    assert not calm.deaths
    result = run_plan(calm)
    assert not result.violations
    assert not result.diverted


def test_a_replay_tells_what_happened(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--replay", "5"]) == 0
    told = capsys.readouterr().out
    assert "weather ends" in told
    assert f"history {run_seed(5).digest}" in told
