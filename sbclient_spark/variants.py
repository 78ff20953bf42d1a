"""Variants, Spark's values of any type: in a record batch each is a struct of two binary fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql.types import VariantVal

from sbclient.errors import InvalidOperationError


def value_of(variant: Mapping[str, bytes]) -> Any:
    """What a variant holds, as a Python value.

    Args:
        variant: its fields, `value` and `metadata`.

    Raises:
        InvalidOperationError: it cannot be read, or holds what Python cannot, as a moment of the year 20000.
    """
    try:
        return VariantVal(variant["value"], variant["metadata"]).toPython()
    except (PySparkException, OverflowError, ValueError, IndexError) as error:
        raise InvalidOperationError(f"a variant cannot be read: {error}") from error
