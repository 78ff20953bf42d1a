"""Brings rows into an order that a writer can keep: each session in one task, its rows one after the other."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  (Spark's own custom)

from sbclient.errors import InvalidOperationError


def prepare(df: DataFrame, *, session: str = "session_id", order_by: str | list[str], partitions: int) -> DataFrame:
    """The same rows, each session whole in one partition and sorted there.

    A data source in Python cannot ask Spark for this, and `repartition` without a number is undone by adaptive
    execution, which would leave one task.

    Args:
        session: the column of the session id.
        order_by: the column, or columns, that say which row comes first.
        partitions: how many tasks send side by side; each has connections of its own.

    Raises:
        InvalidOperationError: there is no such column, or no partition.
    """
    columns = [order_by] if isinstance(order_by, str) else list(order_by)
    known = {name.lower() for name in df.columns}
    for name in (session, *columns):
        if name.lower() not in known:
            raise InvalidOperationError(f"there is no column {name!r} to prepare by: there are {', '.join(df.columns)}")
    if not columns:
        raise InvalidOperationError("order_by is empty: name the column that says which row comes first")
    if partitions < 1:
        raise InvalidOperationError(f"partitions is {partitions}: it must be at least 1")
    return df.repartition(partitions, F.col(session)).sortWithinPartitions(F.col(session), *map(F.col, columns))
