"""Options that a statement does not name: those of a SQL table, and defaults from the configuration of Spark.

Spark passes the options of `CREATE TABLE` only to `schema()`, and neither to a read nor to a write of the table. They
are therefore stored as metadata of the column `message_id`, which Spark keeps with the table and does pass.

The column is a `VARCHAR(128)`. When Spark fits the rows of an `INSERT` to the table, it takes the metadata of the table
and removes the mark of that type. Rows that come unchanged from a table still have the mark: their metadata is that
of the table that was read, and says nothing about the table that is written.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

from pyspark.sql.types import StructField, StructType, VarcharType

from sbclient.errors import InvalidOperationError
from sbclient.message import MAX_ID_LENGTH
from sbclient.settings.table import Setting, suggestion
from sbclient_spark.options import CLIENT_PREFIX, SECRETS, checked_values, places_of
from sbclient_spark.read.options import READ_TABLE
from sbclient_spark.write.options import WRITE_TABLE

PREFIX: Final = "spark.servicebus."
"""Prefix of options in the configuration of Spark."""

METADATA: Final = "servicebus"
COLUMN: Final = "message_id"
VARCHAR_MARK: Final = "__CHAR_VARCHAR_TYPE_STRING"

_SOURCES: Final = ("queue", "queues", "entity", "path", "topic", "subscription", "backlog")
_GROUPS: Final = [
    {name.lower() for name in names}
    for names in (
        (*places_of("connectionString"), "fullyQualifiedNamespace"),
        (*places_of("secondaryConnectionString"), "secondaryNamespace"),
        places_of("clientSecret"),
        places_of("token"),
        _SOURCES,
    )
]
"""Options that name the same thing: one of them replaces all others of a lower layer."""

_BY_LOWER: Final = {name.lower(): name for name in (*READ_TABLE, *WRITE_TABLE)}
_OF_WRITES: Final = {name.lower() for name in WRITE_TABLE.keys() - READ_TABLE.keys()}
_OF_SPARK: Final = ("owner", "provider", "location", "external", "is_managed_location", "comment")
"""What Spark adds to the options of `CREATE TABLE`; `provider` is always there."""


def merged(*layers: Mapping[str, str]) -> dict[str, str]:
    """Return options by lower-case name; a later layer replaces an earlier one."""
    found: dict[str, str] = {}
    for layer in layers:
        names = {name.lower() for name in layer}
        replaced = {name for group in _GROUPS if group & names for name in group}
        found = {name: value for name, value in found.items() if name not in replaced}
        found |= {name.lower(): value for name, value in layer.items()}
    return found


def defaults_of(configuration: Mapping[str, str]) -> dict[str, str]:
    """Return the options that the configuration of Spark gives.

    Raises:
        InvalidOperationError: an option is unknown, is a secret, or names a queue or topic.
    """
    found = {name.removeprefix(PREFIX): value for name, value in configuration.items() if name.startswith(PREFIX)}
    for name in found:
        _check_known(name, PREFIX)
        _check_no_secret(name, PREFIX, "the configuration, which Spark's pages show")
        if name.lower() in _SOURCES:
            raise InvalidOperationError(
                f"{PREFIX}{name} would decide where every statement reads and writes: give {name} in the statement"
            )
    return found


def is_table(options: Mapping[str, str]) -> bool:
    """Whether these are the options of `CREATE TABLE`."""
    return "provider" in options


def table_schema(schema: StructType, options: Mapping[str, str]) -> StructType:
    """Return the schema of a new table, which keeps its options.

    Raises:
        InvalidOperationError: an option is unknown, invalid, a secret, or not for a table.
    """
    own = {
        name.lower(): value
        for name, value in options.items()
        if name.lower() not in _OF_SPARK and not name.lower().startswith("option.")
    }
    for name in own:
        _check_known(name, "")
        _check_no_secret(_BY_LOWER.get(name, name), "", "the catalog")
    for table in (READ_TABLE, WRITE_TABLE):
        checked_values(known_defaults(own, table), table)
    if own.get("bodyformat", "").lower() == "json":
        raise InvalidOperationError(
            "the table has a column body, so bodyFormat cannot be json: remove the option, and insert "
            "to_json(struct(…)) as the body"
        )
    metadata = {METADATA: json.dumps(own)}
    return StructType(
        [
            StructField(COLUMN, VarcharType(MAX_ID_LENGTH), metadata=metadata) if column.name == COLUMN else column
            for column in schema
        ]
    )


def options_of_table(schema: StructType, table: Mapping[str, Setting]) -> dict[str, str]:
    """Return the options of the table that a statement reads or writes; empty if there is none.

    Args:
        schema: as Spark passes it to the reader or writer.
        table: the options that the operation knows.

    Raises:
        InvalidOperationError: Spark keeps the type of the column, so that its mark is missing.
    """
    columns = [column for column in schema if column.name == COLUMN]
    metadata = columns[0].metadata if columns else {}
    if METADATA in metadata and isinstance(columns[0].dataType, VarcharType):
        raise InvalidOperationError(
            "spark.sql.preserveCharVarcharTypeInfo is true, so that a statement does not show which table it writes: "
            "unset it, or use a DataFrame in place of the table"
        )
    if METADATA not in metadata or (table is WRITE_TABLE and VARCHAR_MARK in metadata):
        return {}
    return known_defaults(json.loads(metadata[METADATA]), table)


def known_defaults(options: Mapping[str, str], table: Mapping[str, Setting]) -> dict[str, str]:
    """Return those options that an operation knows, as reads, streams and writes share their defaults."""
    names = {name.lower() for name in table}
    return {
        name: value
        for name, value in options.items()
        if name.lower() in names or name.lower().startswith(CLIENT_PREFIX)
    }


def check_given(options: Mapping[str, str]) -> None:
    """Check the options of a read or a stream when it is declared, before it is known which of the two it is.

    Raises:
        InvalidOperationError: an option is unknown or invalid.
    """
    checked_values({name: value for name, value in options.items() if name.lower() not in _OF_WRITES}, READ_TABLE)


def names_entity(options: Mapping[str, str]) -> bool:
    """Whether options name a queue or topic."""
    return any(name.lower() in _SOURCES for name in options)


def is_copied(schema: StructType) -> bool:
    """Whether rows come unchanged from a table, so that Spark passes the options of that table."""
    return any(column.name == COLUMN and {METADATA, VARCHAR_MARK} <= set(column.metadata) for column in schema)


def _check_known(name: str, prefix: str) -> None:
    if name.lower() not in _BY_LOWER and not name.lower().startswith(CLIENT_PREFIX):
        raise InvalidOperationError(
            f"there is no option {prefix + name!r}: {suggestion(name, list(_BY_LOWER.values()))}"
        )


def _check_no_secret(name: str, prefix: str, place: str) -> None:
    if name.lower() in {secret.lower() for secret in SECRETS}:
        raise InvalidOperationError(
            f"{prefix}{name} would store a secret in {place}: use {prefix}{name}Env or {prefix}{name}File, the name of "
            "a variable or file on the workers"
        )
