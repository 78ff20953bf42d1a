"""The session and the description of jobs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from pyspark.sql import SparkSession

DESCRIPTION: Final = "spark.job.description"


def activate(spark: SparkSession) -> None:
    """Make a session the active one of this Python thread.

    Spark looks for data sources in the active session, and a thread that has not created the session has none.
    """
    class_of = getattr(type(spark), "_get_j_spark_session_class", None)  # not with Spark Connect, which has no threads
    if class_of is not None:
        session: Any = spark
        class_of(session._jvm).setActiveSession(session._jsparkSession)


@contextmanager
def described(spark: SparkSession, text: str) -> Iterator[None]:
    """Set the description of the jobs that the body starts, unless the caller has set one, and activate the session.

    A client of Spark Connect cannot set it and adds the text as a tag, which `spark.interruptTag` accepts.

    Args:
        text: without commas, which tags must not contain.
    """
    activate(spark)
    context = getattr(spark, "sparkContext", None)
    if context is None:
        spark.addTag(text)
        try:
            yield
        finally:
            spark.removeTag(text)
        return
    if context.getLocalProperty(DESCRIPTION) is not None:
        yield
        return
    context.setLocalProperty(DESCRIPTION, text)
    try:
        yield
    finally:
        context.setLocalProperty(DESCRIPTION, None)
