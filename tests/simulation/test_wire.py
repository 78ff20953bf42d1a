"""The simulation over the network: a small range of seeds breaks no invariant, and a seed determines the history."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from tests.simulation.cuts import cuts, run_cut
from tests.simulation.history import Outcome
from tests.simulation.moves import run_moves
from tests.simulation.network_weather import WIRE_KINDS
from tests.simulation.run import run_seed
from tests.simulation.tally import Tally

SEEDS = 25
"""In every run of the tests; `.ci/proofs wire` runs more."""

CUT_STRIDE = int(os.environ.get("CUT_STRIDE", "79"))
"""The bytes from one cut to the next; `.ci/proofs wire` takes 1."""


@pytest.fixture(scope="module")
def tally() -> Tally:
    """What the first seeds show, all together."""
    tally = Tally()
    for seed in range(SEEDS):
        tally.add(run_seed(seed, wire=True))
    return tally


def test_every_invariant_holds(tally: Tally) -> None:
    assert not tally.violations, tally.as_text()
    assert tally.sums["lost"] == tally.sums["unexpected"] == tally.sums["unexplained"] == 0


def test_runs_accept_and_divert_messages_while_some_are_in_doubt(tally: Tally) -> None:
    assert tally.sums["accepted"] > 12 * SEEDS
    assert tally.sums["diverted"] > SEEDS
    assert 0.01 < tally.share("in_doubt", "tries") < 0.10
    assert len(tally.kinds) > 0.7 * len(WIRE_KINDS)


def test_seed_determines_the_history() -> None:
    assert run_seed(3, wire=True).digest == run_seed(3, wire=True).digest


def test_transactions_over_several_entities_are_carried_out_whole_or_not_at_all() -> None:
    runs = [run_moves(seed) for seed in range(3)]
    assert not [text for moves in runs for text in moves.wrong]
    assert sum(moves.counts[Outcome.OK] for moves in runs) >= 70


@pytest.mark.promise("client.cut")
def test_a_cut_after_any_byte_loses_nothing(record_property: Callable[[str, object], None]) -> None:
    all_cuts = list(cuts(stride=CUT_STRIDE))
    for side, after in all_cuts:
        run_cut(side, after)
    record_property("attacks", len(all_cuts))
    record_property("bytes", max(after for _, after in all_cuts))


@pytest.mark.parametrize(
    ("seed", "once"),
    [(1001001345, "the checker of locks counted the late answer to a settlement as that to a second one")],
)
def test_pinned_seeds_pass(seed: int, once: str) -> None:
    assert not run_seed(seed, wire=True).violations, once
