from __future__ import annotations

import pytest


def test_pyspark_is_there_for_the_tests_of_the_connector() -> None:
    pytest.importorskip("pyspark", reason="needs the extra `spark`; the other tests in this folder are left out")
    pytest.importorskip("pyarrow", reason="needs the extra `spark`; the other tests in this folder are left out")
