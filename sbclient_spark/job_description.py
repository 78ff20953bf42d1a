"""What the Spark UI says of the jobs that are begun here."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from pyspark.sql import SparkSession

DESCRIPTION: Final = "spark.job.description"


@contextmanager
def described(spark: SparkSession, text: str) -> Iterator[None]:
    """Let the jobs begun inside bear a text in the Spark UI, unless whoever calls has given them one.

    Over Spark Connect a client cannot: there the text is a tag, which `spark.interruptTag` takes, too.

    Args:
        text: without a comma, which no tag may have.
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
        context.setLocalProperty(DESCRIPTION, None)  # which removes it
