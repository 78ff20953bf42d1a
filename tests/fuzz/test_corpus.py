"""Some hundred damaged inputs for each reader of input; more of them by `python -m tests.fuzz.corpus`."""

from __future__ import annotations

import pytest

from tests.fuzz.corpus import TARGETS, run


@pytest.mark.slow
@pytest.mark.parametrize("name", TARGETS)
def test_damaged_input_is_read_or_rejected_within_its_bounds(name: str) -> None:
    assert run(name, seed=1, first=0, count=150) is None
