"""Each limit of the broker, tried just below, at and just above it."""

from __future__ import annotations

from types import ModuleType

import pytest

from sbclient.broker import descriptions, headers
from tests.broker import limits
from tests.broker.limits import LIMITS, Limit, granted


@pytest.mark.parametrize("limit", LIMITS, ids=lambda limit: f"{limit.subject}{' at least' * limit.is_least}")
def test_limit_holds_exactly(limit: Limit) -> None:
    edge = limit.most if limit.tried is None else limit.tried
    allowed, beyond = (edge + 1, edge - 1) if limit.is_least else (edge - 1, edge + 1)
    assert [granted(limit, count) for count in (allowed, edge)] == [allowed, edge]
    assert granted(limit, beyond) < beyond


@pytest.mark.parametrize("module", [descriptions, headers], ids=lambda module: module.__name__)
def test_each_limit_of_descriptions_and_headers_has_a_row(module: ModuleType) -> None:
    numbers = {name for name in vars(module) if name.startswith("MAX_")}
    assert numbers - vars(limits).keys() == set(), "add a row to tests/broker/limits.py for each, then run tests.pages"
