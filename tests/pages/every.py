"""All generated tables."""

from __future__ import annotations

from typing import Final

from tests.pages import clients, differences, limits, options, reasons, requests
from tests.pages.table import PageTable

TABLES: Final[list[PageTable]] = [
    *options.TABLES,
    *requests.TABLES,
    reasons.TABLE,
    differences.TABLE,
    clients.TABLE,
    limits.TABLE,
]
