"""The writer as a program of its own, by Spark Connect; `.ci/proofs spark-cluster` runs it on a cluster."""

from __future__ import annotations

from concurrent.futures import Future

import pytest

from tests.spark.deployed import MISSING, ROWS, Ended


@pytest.mark.skipif(bool(MISSING), reason=f"needs {', '.join(MISSING)}, of the extra `connect`")
def test_the_writer_runs_over_spark_connect_and_warns_of_speculation(deployed: Future[Ended]) -> None:
    status, output, arrived = deployed.result()
    assert status == 0, output
    assert arrived == list(range(ROWS))
    assert "spark.speculation is on" in output
