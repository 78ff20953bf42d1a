"""Values in the JSON that commands print and read."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from sbclient.cli.json_values import plain
from sbclient.entities import NEVER, UNLIMITED, EntityStatus


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (datetime(2030, 1, 2, 3, 4, 5, 600_000, tzinfo=UTC), "2030-01-02T03:04:05.6Z"),
        (datetime(2030, 1, 2, tzinfo=UTC), "2030-01-02T00:00:00Z"),
        (timedelta(minutes=1, seconds=30), "PT1M30S"),
        (UNLIMITED, None),
        (timedelta(days=10_675_199, hours=2), None),
        (NEVER, None),
        (EntityStatus.ACTIVE, "Active"),
        (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (Decimal("1.50"), "1.50"),
    ],
)
def test_dates_and_durations_are_written_in_iso_8601(value: Any, text: str | None) -> None:
    assert plain(value) == text


def test_type_without_a_json_form_raises() -> None:
    with pytest.raises(TypeError):
        plain(object())
