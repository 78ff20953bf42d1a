"""Each limit of the broker, tried just below, at and just above it."""

from __future__ import annotations

import pytest

from tests.broker.limits import LIMITS, Limit, granted


@pytest.mark.parametrize("limit", LIMITS, ids=lambda limit: f"{limit.subject}{' at least' * limit.is_least}")
def test_limit_holds_exactly(limit: Limit) -> None:
    edge = limit.most if limit.tried is None else limit.tried
    allowed, beyond = (edge + 1, edge - 1) if limit.is_least else (edge - 1, edge + 1)
    assert [granted(limit, count) for count in (allowed, edge)] == [allowed, edge]
    assert granted(limit, beyond) < beyond
