"""The SQL statements of docs/spark-reference.md, as they are written there."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSourceReader
from pyspark.sql.types import StringType, StructField, StructType

import sbclient_spark
from sbclient.errors import InvalidOperationError
from sbclient_spark.read.columns import READ_SCHEMA
from sbclient_spark.read.options import READ_TABLE, read_options
from sbclient_spark.source import ServiceBusDataSource
from sbclient_spark.table_options import METADATA, defaults_of, merged, names_entity
from tests.spark.versions import PARTIAL_INSERTS
from tests.stage.pair import EmulatedPair

DOCUMENT = Path(__file__).parents[2] / "docs" / "spark-reference.md"


@pytest.fixture
def configured(spark: SparkSession, pair: EmulatedPair, tmp_path: Path) -> Iterator[SparkSession]:
    """The session with the namespace in its configuration, by the name of a file."""
    secret = tmp_path / "primary"
    secret.write_text(pair.primary)
    settings = {"connectionStringFile": str(secret), "requireDuplicateDetection": "off"}
    for name, value in settings.items():
        spark.conf.set(f"spark.servicebus.{name}", value)
    sbclient_spark.register(spark)
    yield spark
    for name in settings:
        spark.conf.unset(f"spark.servicebus.{name}")
    sbclient_spark.register(spark)
    for table in spark.sql("SHOW TABLES").collect():
        spark.sql(f"DROP {'VIEW' if table.isTemporary else 'TABLE'} {table.tableName}")


def statements() -> list[str]:
    blocks = re.findall(r"^```sql\n(.*?)^```", DOCUMENT.read_text(), re.MULTILINE | re.DOTALL)
    return [one.strip() for block in blocks for one in block.split(";") if one.strip()]


@PARTIAL_INSERTS
def test_the_documented_statements_work(configured: SparkSession, pair: EmulatedPair) -> None:
    orders, invoices = pair.create_queue("orders"), pair.create_queue("invoices")
    results: list[list[Any]] = []
    for statement in statements():
        named = statement.replace("'orders'", f"'{orders}'").replace("'invoices'", f"'{invoices}'")
        results.append(configured.sql(named).collect())
    assert [[row.asDict() for row in rows] for rows in results if rows] == [
        [{"message_id": "1", "body": "first"}, {"message_id": "2", "body": "second"}],
        [{"waiting": 1}],
        [{"waiting": 3}],
        [
            {"message_id": "1", "amount": None, "bad": "first"},
            {"message_id": "2", "amount": None, "bad": "second"},
            {"message_id": "5", "amount": 5, "bad": None},
        ],
    ]
    assert [row.col_name for row in configured.sql("DESCRIBE events").collect()] == READ_SCHEMA.names
    assert sorted(str(message) for message in pair.take(invoices)) == ["first", "fourth", "second", "third"]
    assert pair.count(orders) == 3


@PARTIAL_INSERTS
def test_rows_never_go_to_the_queue_of_the_table_they_come_from(configured: SparkSession, pair: EmulatedPair) -> None:
    one, other = pair.create_queue("one"), pair.create_queue("other")
    for name, queue in (("one_table", one), ("other_table", other)):
        configured.sql(f"CREATE TABLE {name} USING servicebus OPTIONS (queue '{queue}', bodyType 'string')")
    configured.sql("INSERT INTO one_table (body, message_id) VALUES ('a', '1')")
    for copy in (
        "INSERT INTO other_table SELECT * FROM one_table",
        "CREATE TABLE copy USING servicebus AS SELECT * FROM one_table",
    ):
        with pytest.raises(AnalysisException, match="name the destination"):
            configured.sql(copy)
    with pytest.raises(AnalysisException, match="name the destination"):
        configured.table("one_table").write.format("servicebus").mode("append").save()
    assert (pair.count(one), pair.count(other)) == (1, 0)
    configured.sql("INSERT INTO other_table (body, message_id) SELECT body, message_id FROM one_table")
    configured.table("one_table").write.format("servicebus").mode("append").option("queue", other).save()
    assert (pair.count(one), pair.count(other)) == (1, 2)


@pytest.mark.parametrize(
    ("statement", "error"),
    [
        (
            "CREATE TABLE t USING servicebus OPTIONS (queue 'a', connectionString 'Endpoint=sb://x')",
            "connectionStringEnv",
        ),
        ("CREATE TABLE t USING servicebus OPTIONS (quue 'a')", "did you mean queue"),
        ("CREATE TABLE t USING servicebus OPTIONS (queue 'a', bodyType 'txt')", "binary, string"),
        ("CREATE TABLE t USING servicebus OPTIONS (queue 'a', messageIdMode 'colum')", "column, keys"),
        ("CREATE TABLE t USING servicebus OPTIONS (queue 'a', bodyFormat 'json')", "to_json"),
        pytest.param(
            "INSERT OVERWRITE emptied (body, message_id) VALUES ('a', '1')",
            "INSERT INTO in SQL|does not support",
            marks=PARTIAL_INSERTS,
        ),
        ("DELETE FROM emptied", "DELETE|does not support"),
        ("UPDATE emptied SET body = 'x'", "UPDATE|does not support"),
        ("MERGE INTO emptied USING emptied AS e ON false WHEN NOT MATCHED THEN INSERT *", "MERGE|does not support"),
        ("TRUNCATE TABLE emptied", "TRUNCATE|does not support"),
        ("CREATE TABLE t USING servicebus OPTIONS (queue 'a') AS SELECT 'b' AS body, '1' AS message_id", "destination"),
    ],
)
def test_unsupported_table_statement_raises_a_clear_error(configured: SparkSession, statement: str, error: str) -> None:
    configured.sql("CREATE TABLE emptied USING servicebus OPTIONS (queue 'a', bodyType 'string')")
    with pytest.raises(PySparkException, match=error):
        configured.sql(statement)


def test_a_table_is_rejected_while_spark_preserves_char_and_varchar(
    configured: SparkSession, pair: EmulatedPair
) -> None:
    for name in ("one", "other"):
        queue = pair.create_queue(name)
        configured.sql(f"CREATE TABLE {name} USING servicebus OPTIONS (queue '{queue}', bodyType 'string')")
    configured.conf.set("spark.sql.preserveCharVarcharTypeInfo", "true")
    try:
        for statement in ("SELECT * FROM one", "INSERT INTO other SELECT * FROM one"):
            with pytest.raises(AnalysisException, match="preserveCharVarcharTypeInfo"):
                configured.sql(statement).collect()
    finally:
        configured.conf.unset("spark.sql.preserveCharVarcharTypeInfo")


@pytest.mark.skipif(not hasattr(DataSourceReader, "pushFilters"), reason="PySpark 4.0 pushes no filters down")
def test_a_filter_decides_which_fragments_of_a_table_are_read(configured: SparkSession, pair: EmulatedPair) -> None:
    parts = pair.create_queue("parts", enable_partitioning=True)
    rows = configured.range(50).selectExpr("string(id) AS body", "string(id) AS message_id")
    rows.write.format("servicebus").mode("append").option("queue", parts).save()
    configured.sql(f"CREATE TABLE parts USING servicebus OPTIONS (queue '{parts}', bodyType 'string')")
    number = configured.sql("SELECT sequence_number FROM parts").collect()[-1].sequence_number
    statement = f"SELECT sequence_number FROM parts WHERE sequence_number = {number}"
    assert configured.sql(statement).rdd.getNumPartitions() == 16
    configured.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        sbclient_spark.register(configured)
        found = configured.sql(statement)
        assert found.rdd.getNumPartitions() == 1
        assert [row.sequence_number for row in found.collect()] == [number]
    finally:
        configured.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_a_table_with_a_list_of_columns_has_no_options(configured: SparkSession, pair: EmulatedPair) -> None:
    configured.sql("CREATE TABLE listed (body STRING) USING servicebus OPTIONS (queue 'a')")
    with pytest.raises(AnalysisException, match="no source is given"):
        configured.sql("SELECT * FROM listed").collect()


def test_a_secret_or_a_queue_is_no_default() -> None:
    for name in ("connectionString", "token", "queue", "quue"):
        with pytest.raises(InvalidOperationError, match=f"spark.servicebus.{name}"):
            defaults_of({f"spark.servicebus.{name}": "secret"})
    assert defaults_of({"spark.servicebus.tokenEnv": "T", "spark.app.name": "x"}) == {"tokenEnv": "T"}


@pytest.mark.parametrize("is_streaming", [False, True])
@pytest.mark.parametrize("where", ["the configuration", "a table"])
def test_a_default_of_the_other_kind_of_read_is_left_out(
    is_streaming: bool, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An invalid value shows which options a read takes: each of its own kind is refused, none of the other."""
    kind = "a stream" if is_streaming else "a batch read"
    groups = {name: row.group for name, row in READ_TABLE.items() if row.group and not names_entity({name: ""})}
    assert set(groups.values()) == {"a stream", "a batch read"}
    for name, group in groups.items():
        own = {name: ","}
        metadata = {METADATA: json.dumps(own if where == "a table" else {})}
        schema = StructType([StructField("message_id", StringType(), metadata=metadata)])
        monkeypatch.setattr(ServiceBusDataSource, "defaults", own if where == "the configuration" else {})
        source = ServiceBusDataSource({"connectionString": "memory://a", "queue": "q"})
        given = source.for_read(schema, is_streaming=is_streaming)
        with pytest.raises(InvalidOperationError, match=name) if group == kind else nullcontext():
            read_options(given, is_streaming=is_streaming)


def test_a_statement_replaces_defaults_that_mean_the_same() -> None:
    defaults = {"connectionStringEnv": "PRIMARY", "sendTimeout": "5 s"}
    assert merged(defaults, {"connectionString": "memory://a"}) == {
        "connectionstring": "memory://a",
        "sendtimeout": "5 s",
    }
    assert merged({"queue": "a"}, {"TOPIC": "b"}) == {"topic": "b"}
    assert json.dumps(merged({}, {})) == "{}"
