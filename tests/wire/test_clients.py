"""The table of the tested clients in the documentation."""

from __future__ import annotations

import pytest

from tests.wire.clients import TABLE, clients

pytest.importorskip("proton", reason="python-qpid-proton is not installed, so its version is not known")


def test_the_table_has_every_client_and_all_its_checks() -> None:
    TABLE.check(clients())
    assert all(each.check_count > 5 for each in clients())
