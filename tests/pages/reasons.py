"""The reasons for which a syphon dead-letters messages, for docs/pairing.md."""

from __future__ import annotations

from typing import Final

from sbclient.rules.syphon_reason import SyphonReason
from tests.pages.table import page_table

TABLE: Final = page_table(
    "pairing.md",
    "reasons of a syphon",
    ("reason", "meaning"),
    lambda: [(f"`{each.value}`", each.meaning) for each in SyphonReason],
)
