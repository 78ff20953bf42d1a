"""Bodies in JSON, CSV and Avro, which functions of Spark parse, in a read and in a stream."""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

import pyspark
import pytest
from pyspark.sql import DataFrame, Row, SparkSession

from tests.spark.test_on_spark import write
from tests.stage.pair import EmulatedPair

NAME: Final = f"spark-avro_2.13-{pyspark.__version__}.jar"
AVRO: Final = Path.home() / ".m2/repository/org/apache/spark/spark-avro_2.13" / pyspark.__version__ / NAME
NEEDS_AVRO: Final = pytest.mark.skipif(
    not AVRO.is_file(), reason=f"{NAME} is not in the local Maven repository: run .ci/proofs spark-versions"
)


class Format(NamedTuple):
    """How SQL encodes the row ROW, and parses a body.

    Attributes:
        bad: a body that cannot be parsed.
        parsed_bad: its fields that are not null.
    """

    encode: str
    parse: str
    bad: str
    parsed_bad: dict[str, str]


SCHEMA: Final = "'amount INT, note STRING, bad STRING', map('mode', 'MODE', 'columnNameOfCorruptRecord', 'bad')"
AVRO_SCHEMA: Final = (
    '{"type": "record", "name": "order", "fields": ['
    '{"name": "amount", "type": ["int", "null"]}, {"name": "note", "type": ["string", "null"]}]}'
)
FORMATS: Final = {
    "json": Format("to_json(ROW)", f"from_json(string(body), {SCHEMA})", '{"amount": 5', {"bad": '{"amount": 5'}),
    "csv": Format("to_csv(ROW)", f"from_csv(string(body), {SCHEMA})", "x,y", {"bad": "x,y", "note": "y"}),
    "avro": Format(
        f"to_avro(ROW, '{AVRO_SCHEMA}')", f"from_avro(body, '{AVRO_SCHEMA}', map('mode', 'MODE'))", "\u0001", {}
    ),
}


def parsed(df: DataFrame, parse: str, mode: str = "PERMISSIVE") -> set[Row]:
    return set(df.selectExpr(f"{parse.replace('MODE', mode)} AS order").select("order.*").collect())


@pytest.mark.parametrize("kind", ["json", "csv", pytest.param("avro", marks=NEEDS_AVRO)])
def test_bodies_are_parsed_in_a_read_and_in_a_stream(
    spark: SparkSession, pair: EmulatedPair, tmp_path: Path, kind: str
) -> None:
    if kind == "avro":
        spark.sql(f"ADD JAR '{AVRO}'")
    one = FORMATS[kind]
    orders = pair.create_queue("orders")
    good = one.encode.replace("ROW", "named_struct('amount', int(id), 'note', 'n')")
    bodies = f"SELECT cast({good} AS binary) AS body FROM range(2) UNION ALL SELECT cast('{one.bad}' AS binary)"
    write(spark.sql(bodies), pair, queue=orders, messageIdMode="random")
    options = pair.reading(queue=orders)

    read = spark.read.format("servicebus").options(**options).load()
    expected = parsed(read, one.parse)
    found = [row.asDict() for row in expected]
    bad = dict.fromkeys(found[0]) | one.parsed_bad
    assert bad in found
    assert {(row["amount"], row["note"]) for row in found if row != bad} == {(0, "n"), (1, "n")}
    with pytest.raises(Exception, match="FAILFAST"):
        parsed(read, one.parse, "FAILFAST")

    streamed: set[Row] = set()
    stream = spark.readStream.format("servicebus").options(**options).load()
    writer = stream.writeStream.foreachBatch(lambda batch, _: streamed.update(parsed(batch, one.parse)))
    query = writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
    assert query.awaitTermination(120)
    assert streamed == expected
