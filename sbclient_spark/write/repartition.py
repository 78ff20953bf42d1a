"""Repartitions rows so that a writer can keep their order: each session in one task, its rows sorted."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  (the convention of Spark)

from sbclient.errors import InvalidOperationError


def repartition_by_session(
    df: DataFrame, *, session: str = "session_id", order_by: str | list[str], partitions: int
) -> DataFrame:
    """Return the same rows with each session in one partition and sorted there.

    A Python data source cannot request this from Spark. Adaptive execution would merge the partitions of a
    `repartition` without a number into one task.

    Args:
        session: the column of the session id.
        order_by: the column or columns that define the order.
        partitions: the number of tasks; each has its own connections.

    Raises:
        InvalidOperationError: a column does not exist, or `partitions` is less than 1.
    """
    columns = [order_by] if isinstance(order_by, str) else list(order_by)
    known = {name.lower() for name in df.columns}
    for name in (session, *columns):
        if name.lower() not in known:
            raise InvalidOperationError(f"there is no column {name!r}: the columns are {', '.join(df.columns)}")
    if not columns:
        raise InvalidOperationError("order_by is empty: name the column that defines the order")
    if partitions < 1:
        raise InvalidOperationError(f"partitions is {partitions}: it must be at least 1")
    return df.repartition(partitions, F.col(session)).sortWithinPartitions(F.col(session), *map(F.col, columns))
