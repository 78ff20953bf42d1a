"""Each limit of the broker, tried just below, at and just above it."""

from __future__ import annotations

import pytest

from tests.broker.limits import LIMITS, Limit, granted


@pytest.mark.parametrize("limit", LIMITS, ids=lambda limit: limit.subject)
def test_limit_holds_exactly(limit: Limit) -> None:
    most = limit.most if limit.tried is None else limit.tried
    assert [granted(limit, count) for count in (most - 1, most)] == [most - 1, most]
    assert granted(limit, most + 1) < most + 1
