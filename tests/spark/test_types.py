"""The table of types in docs/spark-reference.md: what becomes of a value of each type of Spark, there and back."""

# mypy: disallow-subclassing-any=False

from __future__ import annotations

import re
from datetime import time
from pathlib import Path
from typing import Any, Final

import pyspark
import pytest
from pyspark.sql import DataFrame, SparkSession, types
from pyspark.sql import functions as f
from pyspark.sql.types import DataType, StructType

from sbclient.errors import InvalidOperationError
from sbclient_spark.write.options import write_options
from sbclient_spark.write.schema import row_plan
from tests.stage.pair import EmulatedPair

PAGE: Final = (Path(__file__).parents[2] / "docs" / "spark-reference.md").read_text(encoding="utf-8")

PLACES: Final = ("body", "json", "property")
OPTIONS: Final[dict[str, dict[str, str]]] = {
    "body": {},
    "json": {"bodyFormat": "json"},
    "property": {"unknownColumns": "property"},
}

EXAMPLES: Final[dict[str, list[str]]] = {
    "boolean": ["true", "false"],
    "tinyint": ["-128Y", "127Y"],
    "smallint": ["-32768S", "5S"],
    "int": ["-2147483648", "5"],
    "bigint": ["9223372036854775807L", "5L"],
    "float": ["float(0.1)", "float('NaN')", "float('-Infinity')"],
    "double": ["double(0.1)", "double('NaN')", "double('Infinity')"],
    "decimal(38,18)": ["cast('12345678901234567890.123456789012345678' AS decimal(38,18))"],
    "decimal(10,2)": ["cast(1.10 AS decimal(10,2))"],
    "string": ["'é'", "''"],
    "string collate UTF8_LCASE": ["'A' COLLATE UTF8_LCASE"],
    "char(2)": ["cast('ab' AS char(2))"],
    "varchar(5)": ["cast('ab' AS varchar(5))"],
    "binary": ["x'00ff'", "x''"],
    "date": ["date'2024-02-29'"],
    "timestamp": ["timestamp'2024-02-29 01:02:03.004'"],
    "timestamp_ntz": ["timestamp_ntz'2024-02-29 01:02:03.004'"],
    "time": ["time'01:02:03.000004'"],
    "interval day to second": ["interval '1 02:03:04.000005' day to second"],
    "interval year to month": [],
    "interval": [],
    "array<int>": ["array(1, null)", "cast(array() AS array<int>)"],
    "map<string,double>": ["map('k', 1.5D)"],
    "map<timestamp,int>": [],
    "struct<a:int,b:array<struct<c:date>>>": [
        "named_struct('a', 1, 'b', array(named_struct('c', date'2024-01-01')))",
    ],
    "variant": ['parse_json(\'{"a":[1,null,"x"],"b":{"c":true}}\')'],
    "void": ["null"],
    "geometry(4326)": [],
    "geography(4326)": [],
    "user-defined": [],
}
"""Values of each type, as SQL; none for those that are rejected everywhere."""

SINCE_4_1: Final = {"time": "TimeType", "geometry(4326)": "GeometryType", "geography(4326)": "GeographyType"}
"""Types that older versions of PySpark lack, with their classes."""

KNOWN: Final = {name for name in EXAMPLES if name not in SINCE_4_1 or hasattr(types, SINCE_4_1[name])}


def documented() -> dict[str, dict[str, str]]:
    """The cells of the table by type and place, without comments in brackets."""
    table = PAGE.split("| type of Spark |")[1].split("\n\n")[0]
    found: dict[str, dict[str, str]] = {}
    for line in table.splitlines()[2:]:
        names, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        for name in re.findall(r"`([^`]+)`", names):
            found[name] = {place: cell.split(" (")[0] for place, cell in zip(PLACES, cells, strict=True)}
    return found


EXPECTED: Final = documented()
CASES: Final = [pytest.param(name, place, id=f"{name}-{place}") for name in EXAMPLES for place in PLACES]


class UserDefined(types.UserDefinedType):
    """A type of an application."""

    @classmethod
    def sqlType(cls) -> DataType:  # noqa: N802
        return types.StringType()


def kind_of(name: str) -> DataType:
    if name == "user-defined":
        return UserDefined()
    if name in SINCE_4_1 and name != "time":
        kind: DataType = getattr(types, SINCE_4_1[name])(4326)
        return kind
    schema = StructType.fromDDL(f"v {name}")
    assert isinstance(schema, StructType)
    return schema[0].dataType


def is_time_text(name: str) -> bool:
    """Whether `from_json` of this version cannot read the type, so that the test reads the text."""
    return name == "time" and pyspark.__version__.startswith("4.1.")


def readable(value: Any) -> str:
    """A value as text, so that NaN equals itself; a variant as its JSON."""
    return str(value) if isinstance(value, types.VariantVal) else repr(value)


def columns_of(place: str) -> dict[str, tuple[str, str]]:
    """The name of a column for each value that this place accepts, with its type and SQL."""
    accepted = [name for name in EXAMPLES if name in KNOWN and EXPECTED[name][place] != "rejected"]
    values = [(name, sql) for name in accepted for sql in EXAMPLES[name]]
    return {f"c{number}": value for number, value in enumerate(values)}


@pytest.fixture(scope="module")
def found(spark: SparkSession, emulated: EmulatedPair) -> dict[tuple[str, str], list[tuple[str, str]]]:
    """Each accepted value by type and place, as it was and as it has come back."""
    spark.conf.set("spark.sql.preserveCharVarcharTypeInfo", "true")
    try:
        results = _there_and_back(spark, emulated)
    finally:
        spark.conf.unset("spark.sql.preserveCharVarcharTypeInfo")
    return results


def _there_and_back(spark: SparkSession, emulated: EmulatedPair) -> dict[tuple[str, str], list[tuple[str, str]]]:
    queue = emulated.create_queue("types")
    results: dict[tuple[str, str], list[tuple[str, str]]] = {}

    def values(columns: dict[str, tuple[str, str]]) -> tuple[DataFrame, Any]:
        chosen = spark.range(1).selectExpr(*(f"{sql} AS {column}" for column, (_, sql) in columns.items()))
        return chosen, chosen.first()

    def write(rows: DataFrame, message_id: str, **options: str) -> None:
        writer = rows.selectExpr(f"'{message_id}' AS message_id", "*").write.format("servicebus").mode("append")
        writer.options(**emulated.options(queue=queue, **options)).save()

    def add(name: str, place: str, before: Any, after: Any) -> None:
        results.setdefault((name, place), []).append((readable(before), readable(after)))

    bodies, in_json, properties = (columns_of(place) for place in PLACES)
    for column, (_, sql) in bodies.items():
        write(spark.range(1).selectExpr(f"{sql} AS body"), column)
    json_rows, json_row = values(in_json)
    write(json_rows, "json", bodyFormat="json")
    in_columns = {column: value for column, value in properties.items() if value[0] != "variant"}
    property_rows, property_row = values(in_columns)
    write(property_rows.selectExpr("'b' AS body", "*"), "properties", unknownColumns="property")
    variants = "map('t', parse_json('\"x\"'), 'n', parse_json('1.5')) AS properties"
    write(spark.range(1).selectExpr("'b' AS body", variants), "variants")
    reading = spark.read.format("servicebus").options(**emulated.reading(queue=queue)).load()
    rows = {row.message_id: row for row in reading.collect()}

    _, body_row = values({column: (name, f"cast({sql} AS binary)") for column, (name, sql) in bodies.items()})
    for column, (name, _) in bodies.items():
        add(name, "body", bytes(body_row[column]), bytes(rows[column].body))

    schema = StructType()
    for column, (name, _) in in_json.items():
        kind = json_rows.schema[column].dataType
        if EXPECTED[name]["json"] == "seconds":
            kind = types.DecimalType(18, 6)
        schema.add(column, "string" if "char" in name or is_time_text(name) else kind)  # `from_json` rejects char
    text = spark.createDataFrame([(bytes(rows["json"].body).decode(),)], "body string")
    parsed: Any = text.select(f.from_json("body", schema).alias("o")).select("o.*").first()
    for column, (name, _) in in_json.items():
        is_seconds = EXPECTED[name]["json"] == "seconds"
        before, after = json_row[column], parsed[column]
        if is_time_text(name):
            after = time.fromisoformat(after)
        add(name, "json", before.total_seconds() if is_seconds else before, float(after) if is_seconds else after)

    row = rows["properties"]
    texts = spark.createDataFrame([row.application_properties], ", ".join(f"{one} string" for one in in_columns))
    casts = (f"cast({column} AS {name}) AS {column}" for column, (name, _) in in_columns.items())
    cast: Any = texts.selectExpr(*casts).first()
    for column, (name, _) in in_columns.items():
        amqp_type = row.property_types.get(column, "string")
        before, after = (EXPECTED[name]["property"], property_row[column]), (amqp_type, cast[column])
        add(name, "property", readable(before), readable(after))
    add("variant", "property", {"t": "x", "n": "1.5"}, rows["variants"].application_properties)
    return results


@pytest.mark.usefixtures("spark")
def test_the_table_has_every_type_of_this_version() -> None:
    covered = {type(kind_of(name)) for name in KNOWN}
    bases = {
        "DataType",
        "StructField",
        "UserDefinedType",
        "CalendarIntervalType",
        "AnsiIntervalType",
        "AnyTimeType",
        "AtomicType",
    }
    bases |= {"DatetimeType", "FractionalType", "IntegralType", "NumericType", "SpatialType"}
    classes = {value for value in vars(types).values() if isinstance(value, type) and issubclass(value, DataType)}
    assert {one.__name__ for one in classes - covered} <= bases
    assert set(EXPECTED) == set(EXAMPLES)


@pytest.mark.parametrize(("name", "place"), CASES)
def test_a_value_comes_back_equal_or_its_type_is_rejected_before_a_task(
    name: str, place: str, found: dict[tuple[str, str], list[tuple[str, str]]]
) -> None:
    if name not in KNOWN:
        pytest.skip("this version of PySpark lacks the type")
    if EXPECTED[name][place] != "rejected":
        assert found[name, place]
        assert [before for before, _ in found[name, place]] == [after for _, after in found[name, place]]
        return
    column = "body" if place == "body" else "v"
    schema = StructType().add("message_id", "string").add(column, kind_of(name))
    schema = schema.add("body", "string") if place == "property" else schema
    options = write_options({"connectionString": "memory://contoso", "queue": "orders", **OPTIONS[place]})
    with pytest.raises(InvalidOperationError, match=f"column '{column}' is of type .*(cast|drop)"):
        row_plan(schema, options, is_streaming=False)


def test_spark_itself_rejects_a_calendar_interval(spark: SparkSession, emulated: EmulatedPair) -> None:
    rows = spark.range(1).selectExpr("'id' AS message_id", "make_interval(1, 2, 3) AS v")
    with pytest.raises(Exception, match="INTERVAL"):
        rows.write.format("servicebus").mode("append").options(**emulated.options(queue="q", bodyFormat="json")).save()
