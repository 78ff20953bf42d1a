"""Variants, Spark's values of any type: in a record batch each is a struct of two binary fields.

The second of them is marked: `{"variant": "true"}` in its metadata. Source: Spark's ArrowUtils, and `is_variant` in
`pyspark.sql.pandas.types`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql.types import VariantVal

from sbclient.errors import InvalidOperationError

_FIELDS: Final = {"value", "metadata"}
_MARK: Final = {b"variant": b"true"}


def is_variant(kind: pa.DataType) -> bool:
    """Whether a column of that type, or a part of one, holds variants, and is not just a struct with such fields."""
    if not pa.types.is_struct(kind) or {kind.field(index).name for index in range(kind.num_fields)} != _FIELDS:
        return False
    found: Mapping[bytes, bytes] | None = kind.field("metadata").metadata
    return found is not None and found.items() >= _MARK.items()


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
