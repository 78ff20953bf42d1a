"""The simulation can fail: planted bugs are found. All of them are hunted by `python -m tests.simulation.mutants`."""

from __future__ import annotations

import ast
import re

import pytest

from tests.simulation.mutants.catalogue import MUTANTS
from tests.simulation.mutants.change import Change, Misfit
from tests.simulation.mutants.planting import ADVICE, hunt, misfit
from tests.simulation.mutants.transport import TRANSPORT_MUTANTS

SAMPLE = {
    "the syphon completes what the primary has not answered": "0:80",
    "half a commit": "0:80",
    "a message is given to two receivers": "0:40",
}


@pytest.mark.parametrize("name", SAMPLE)
def test_a_planted_bug_is_found(name: str) -> None:
    mutant = next(one for one in MUTANTS if one.name == name)
    assert hunt(mutant, SAMPLE[name]).seed is not None


def test_planted_bug_of_the_transport_is_found_over_the_network() -> None:
    mutant = next(one for one in TRANSPORT_MUTANTS if one.name == "a transfer in doubt is reported as not sent")
    assert hunt(mutant, "70:90", wire=True).seed is not None


def test_every_planted_bug_fits_the_current_code() -> None:
    wrong = [text for mutant in (*MUTANTS, *TRANSPORT_MUTANTS) if (text := misfit(mutant))]
    assert not wrong, "\n".join([*wrong, ADVICE])


def test_there_are_enough_planted_bugs_with_unique_names() -> None:
    assert len(MUTANTS) >= 40
    assert len(TRANSPORT_MUTANTS) >= 50
    names = {mutant.name for mutant in (*MUTANTS, *TRANSPORT_MUTANTS)}
    assert len(names) == len(MUTANTS) + len(TRANSPORT_MUTANTS)


SOURCE = """
class Queue:
    def put(self, item, *, wait_s):
        if item is None:  # a comment
            raise ValueError(
                "no item")
        else:
            self.items.append(item, wait_s=wait_s, front=False)
"""


def changed(place: str, old: str, new: str) -> str:
    tree = ast.parse(SOURCE)
    Change(place, old, new).apply(tree)
    return ast.unparse(ast.fix_missing_locations(tree))


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("item is None", "not item", "if not item:"),
        ("raise ValueError('no item')", "", "if item is None:\n            pass\n"),
        (
            "self.items.append(item, front=False, **...)",
            "self.items.append(item, **...)",
            "append(item, wait_s=wait_s)",
        ),
        ("if item is None: ...\nelse: ...", "if item: ...", "if item:\n            raise ValueError('no item')"),
        ("raise ...", "print(...)", "print(ValueError('no item'))"),
    ],
)
def test_change_replaces_what_its_snippet_matches_in_any_format(old: str, new: str, expected: str) -> None:
    assert expected in changed("queue:Queue.put", old, new)


@pytest.mark.parametrize(
    ("place", "old", "said"),
    [
        ("queue:Deque.put", "item", "no function or class 'Deque.put'; similar: Queue.put"),
        ("queue:Queue.put", "item", "occurs 2 times"),
        ("queue:Queue.put", "if item is not None: ...\nelse: ...", "similar lines there:\n        if item is None:"),
    ],
)
def test_change_that_does_not_fit_says_what_is_there(place: str, old: str, said: str) -> None:
    with pytest.raises(Misfit, match=re.escape(said)):
        changed(place, old, "None")
