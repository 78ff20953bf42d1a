"""Programs of others take minutes, and their package managers fetch them."""

from __future__ import annotations

import os

import pytest


@pytest.fixture(autouse=True)
def _only_as_proof() -> None:
    if "SBCLIENT_PROGRAMS" not in os.environ:
        pytest.skip("takes minutes: run .ci/proofs programs")
