"""The table of the broker's limits in docs/emulator.md."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from tests.broker.limits import LIMITS
from tests.pages.table import page_table


def rows() -> Iterable[Sequence[object]]:
    """Return a row for each limit."""
    for limit in LIMITS:
        yield (
            limit.subject,
            "at least " * limit.is_least + (limit.shown or f"{limit.most:,}"),
            limit.beyond,
            limit.source,
        )


TABLE: Final = page_table("emulator.md", "limits", ("subject", "limit", "beyond it", "source"), rows)
