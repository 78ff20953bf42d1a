"""All generated tables and other parts of pages."""

from __future__ import annotations

from typing import Final

from tests.pages import clients, differences, json_of_queue, limits, options, reasons, requests
from tests.pages.table import Part

TABLES: Final[list[Part]] = [
    *options.TABLES,
    *requests.TABLES,
    reasons.TABLE,
    differences.TABLE,
    clients.TABLE,
    limits.TABLE,
    json_of_queue.PART,
]
