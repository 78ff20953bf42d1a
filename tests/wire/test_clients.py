"""The table of the tested clients in the documentation."""

from __future__ import annotations

import pytest

from tests.wire.clients import PAGE, clients, table

pytest.importorskip("proton", reason="python-qpid-proton is not installed, so its version is not known")


def test_the_table_has_every_client_and_all_its_checks() -> None:
    """To update the table: python -m tests.wire.clients"""
    assert table() in PAGE.read_text()
    assert all(each.check_count > 5 for each in clients())
