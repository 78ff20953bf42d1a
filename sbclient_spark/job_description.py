"""Descriptions of jobs in the Spark UI."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from pyspark.sql import SparkSession

DESCRIPTION: Final = "spark.job.description"


@contextmanager
def described(spark: SparkSession, text: str) -> Iterator[None]:
    """Set the description of the jobs that the body starts, unless the caller has set one.

    A client of Spark Connect cannot set it and adds the text as a tag, which `spark.interruptTag` accepts.

    Args:
        text: without commas, which tags must not contain.
    """
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
