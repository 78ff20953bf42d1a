"""The simulation can fail: planted bugs are found. All of them are hunted by `python -m tests.simulation.mutants`."""

from __future__ import annotations

import pytest

from tests.simulation.mutants.catalogue import MUTANTS
from tests.simulation.mutants.planting import hunt, misfits
from tests.simulation.mutants.transport import TRANSPORT_MUTANTS

pytestmark = pytest.mark.timeout(180)  # each searches a range of seeds

SAMPLE = {
    "the syphon completes what the primary has not answered": "0:80",
    "half a commit": "0:80",
    "the session is lost in the backlog": "0:80",
    "a busy server is an outage": "0:200",
    "a message is given to two receivers": "0:40",
}


@pytest.mark.parametrize("name", SAMPLE)
def test_a_planted_bug_is_found(name: str) -> None:
    mutant = next(one for one in MUTANTS if one.name == name)
    assert hunt(mutant, SAMPLE[name]).seed is not None


def test_planted_bug_of_the_transport_is_found_over_the_network() -> None:
    mutant = next(one for one in TRANSPORT_MUTANTS if one.name == "a transfer in doubt is reported as not sent")
    assert hunt(mutant, "0:40", wire=True).seed is not None


def test_every_planted_bug_fits_the_current_code() -> None:
    """Who changes a line that a mutant changes says anew, in the catalogue, where the bug is planted."""
    wrong = [text for mutant in (*MUTANTS, *TRANSPORT_MUTANTS) for text in misfits(mutant)]
    assert not wrong, "\n".join(wrong)


def test_there_are_enough_planted_bugs_with_unique_names() -> None:
    assert len(MUTANTS) >= 40
    assert len(TRANSPORT_MUTANTS) >= 50
    names = {mutant.name for mutant in (*MUTANTS, *TRANSPORT_MUTANTS)}
    assert len(names) == len(MUTANTS) + len(TRANSPORT_MUTANTS)
