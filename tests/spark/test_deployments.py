"""The writer as a program of its own: on a cluster of processes, with speculation, and by Spark Connect."""

from __future__ import annotations

import pytest

from tests.spark.deployed import CLUSTER, CONNECT, ROWS, Deployments, missing


@pytest.mark.parametrize("master", [CLUSTER, CONNECT], ids=["cluster", "connect"])
def test_the_writer_runs_on_a_cluster_and_over_spark_connect(deployments: Deployments, master: str) -> None:
    if missing(master):
        pytest.skip(f"needs {', '.join(missing(master))}, of the extra `connect`")
    ended = deployments.ended(master)
    assert ended.status == 0, ended.output
    assert ended.arrived == list(range(ROWS))
    assert ("spark.speculation is on" in ended.output) == (master == CLUSTER)
