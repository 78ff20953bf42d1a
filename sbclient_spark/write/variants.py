"""Reads variants, Spark's values of any type: structs of two binary fields in a record batch.

The second field is marked by `{"variant": "true"}` in its metadata. Source: Spark's ArrowUtils, and `is_variant` in
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
    """Whether the type is a variant, and not another struct with the same fields."""
    if not pa.types.is_struct(kind) or {kind.field(index).name for index in range(kind.num_fields)} != _FIELDS:
        return False
    found: Mapping[bytes, bytes] | None = kind.field("metadata").metadata
    return found is not None and found.items() >= _MARK.items()


def value_of(variant: Mapping[str, bytes]) -> Any:
    """Return the Python value of a variant.

    Args:
        variant: the fields `value` and `metadata`.

    Raises:
        InvalidOperationError: the variant is invalid, or Python lacks its value, such as the year 20000.
    """
    try:
        return VariantVal(variant["value"], variant["metadata"]).toPython()
    except (PySparkException, OverflowError, ValueError, IndexError) as error:
        raise InvalidOperationError(f"a variant cannot be read: {error}") from error
