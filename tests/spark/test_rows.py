from __future__ import annotations

import json
from datetime import UTC, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import VariantVal

from sbclient.amqp.encode import encode_string, encode_value
from sbclient.amqp.types import Byte, Float, Int, Long, Short, ULong
from sbclient_spark.options import Destination
from sbclient_spark.write.encoded_rows import BadRow
from sbclient_spark.write.message_ids import MessageIdPlan
from sbclient_spark.write.schema import RowPlan
from tests.spark.encoding import Row, read_batch

ORDERS = Destination("orders")
RANDOM_IDS = MessageIdPlan(mode="random")
ATTRIBUTES = ("message_id", "session_id", "partition_key", "content_type", "time_to_live", "scheduled_enqueue_time")


def read(columns: dict[str, Any], **changes: Any) -> list[Row | BadRow]:
    """Rows of a batch, its columns taken by their names."""
    batch = pa.record_batch(columns)
    places = {name: place for place, name in enumerate(batch.schema.names)}
    renamed = {"scheduled_enqueue_time": "scheduled_enqueue_time_utc"}
    arguments: dict[str, Any] = {
        "ids": MessageIdPlan(mode="column") if "message_id" in places else RANDOM_IDS,
        "body": places.get("body"),
        "attributes": tuple((renamed.get(name, name), places[name]) for name in ATTRIBUTES if name in places),
        "properties": places.get("properties"),
        "destination": ORDERS,
        **changes,
    }
    plan = RowPlan(**arguments)
    return read_batch(batch, plan, 100)


def messages(columns: dict[str, Any], **changes: Any) -> list[Any]:
    rows = read(columns, **changes)
    assert all(isinstance(row, Row) for row in rows), rows
    return [row.message for row in rows if isinstance(row, Row)]


def reasons(columns: dict[str, Any], **changes: Any) -> list[str | None]:
    return [row.reason if isinstance(row, BadRow) else None for row in read(columns, **changes)]


def test_rows_become_messages_in_order_and_keep_their_place() -> None:
    rows = read({"body": ["a", "b"], "session_id": ["s", None], "message_id": ["1", "2"]})
    assert [row.position for row in rows] == [100, 101]
    first, second = (row.message for row in rows if isinstance(row, Row))
    assert (bytes(first), first.session_id, first.message_id) == (b"a", "s", "1")
    assert (bytes(second), second.session_id, second.message_id) == (b"b", None, "2")


def test_binary_and_large_columns_are_read() -> None:
    assert bytes(messages({"body": pa.array([b"\x00\xff"], pa.binary())})[0]) == b"\x00\xff"
    assert bytes(messages({"body": pa.array(["ä"], pa.large_string())})[0]) == "ä".encode()
    assert bytes(messages({"body": [""]})[0]) == b""


def test_one_bad_row_does_not_touch_the_others() -> None:
    found = reasons({"body": ["a", None, "c"], "message_id": ["1", "2", "x" * 129]})
    assert found[0] is None
    assert "body is null" in (found[1] or "")
    assert "129" in (found[2] or "")


def test_a_bad_row_is_kept_with_its_columns() -> None:
    bad = read({"body": pa.array([None], pa.binary()), "session_id": ["s"]})[0]
    assert isinstance(bad, BadRow)
    assert bad.record == {"body": None, "session_id": "s"}


def test_empty_id_with_a_prefix_is_rejected() -> None:
    prefixed = MessageIdPlan(mode="column", prefix="nightly-")
    found = reasons({"body": ["a", "b", "c"], "message_id": ["", "", "1"]}, ids=prefixed)
    assert [reason is None for reason in found] == [False, False, True]


@pytest.mark.parametrize(
    ("column", "life"),
    [
        (pa.array([90], pa.int64()), timedelta(seconds=90)),
        (pa.array(["PT1M"]), timedelta(minutes=1)),
        (pa.array([timedelta(milliseconds=1500)], pa.duration("us")), timedelta(milliseconds=1500)),
        (pa.array([None], pa.int64()), None),
    ],
)
def test_a_time_to_live_is_an_interval_seconds_or_text(column: pa.Array, life: timedelta | None) -> None:
    assert messages({"body": ["a"], "time_to_live": column})[0].time_to_live == life


@pytest.mark.parametrize("zone", [None, "UTC", "Europe/Berlin"])
def test_a_schedule_is_the_same_moment_in_every_zone(zone: str | None) -> None:
    moment = datetime(2024, 5, 31, 12, 0, 0, 123456, tzinfo=UTC)
    column = pa.array([int(moment.timestamp()) * 1_000_000 + 123456], pa.timestamp("us", zone))
    found = messages({"body": ["a"], "scheduled_enqueue_time": column})[0].scheduled_enqueue_time_utc
    assert found == moment.replace(microsecond=123000)  # AMQP has milliseconds


def test_a_map_column_becomes_the_properties_of_each_row() -> None:
    column = pa.array([[("a", 1)], None, [("b", 2), ("c", 3)], []], pa.map_(pa.string(), pa.int64()))
    found = [one.application_properties for one in messages({"body": list("wxyz"), "properties": column})]
    assert found == [{"a": 1}, {}, {"b": 2, "c": 3}, {}]


def test_a_slice_of_a_batch_reads_its_own_properties() -> None:
    column = pa.array([[("a", 1)], [("b", 2)], [("c", 3)]], pa.map_(pa.string(), pa.int64()))
    batch = pa.record_batch({"body": list("xyz"), "properties": column}).slice(1, 2)
    plan = RowPlan(ids=RANDOM_IDS, body=0, properties=1, destination=ORDERS)
    rows = read_batch(batch, plan)
    found = [row.message.application_properties for row in rows if isinstance(row, Row)]
    assert found == [{"b": 2}, {"c": 3}]


def test_kafka_headers_are_properties_and_a_repeated_name_is_rejected() -> None:
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    column = pa.array(
        [[{"key": "a", "value": b"1"}], [{"key": "a", "value": b"1"}, {"key": "a", "value": b"2"}], None], kind
    )
    rows = read({"body": list("xyz"), "properties": column})
    assert isinstance(rows[0], Row)
    assert rows[0].message.application_properties == {"a": "1"}
    assert isinstance(rows[1], BadRow)
    assert "'a'" in rows[1].reason
    assert isinstance(rows[2], Row)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [(pa.int8(), Byte), (pa.int16(), Short), (pa.int32(), Int), (pa.int64(), Long), (pa.float32(), Float)],
)
def test_a_number_has_the_amqp_type_of_its_column(kind: pa.DataType, expected: type) -> None:
    number = pa.array([5], kind)
    in_map = pa.MapArray.from_arrays([0, 1], pa.array(["n"]), number)
    (one,) = read({"body": ["a"], "properties": in_map})
    (other,) = read({"body": ["a"], "n": number}, extra_properties=(("n", 1),))
    for row in (one, other):
        assert isinstance(row, Row)
        assert encode_string("n") + encode_value(expected(5)) in row.section


def test_property_types_convert_texts_and_a_wrong_text_is_an_error_of_its_row() -> None:
    texts = pa.map_(pa.string(), pa.string())
    columns = {
        "body": list("wxyz"),
        "properties": pa.array([[("n", "5"), ("t", "5")], [("n", "five")], [("n", "5")], None], texts),
        "types": pa.array(
            [[("n", "ulong"), ("gone", "int")], [("n", "int")], [("n", "number")], [("n", "int")]], texts
        ),
    }
    typed, *bad, empty = read(columns, property_types=2)
    assert isinstance(typed, Row)
    assert typed.message.application_properties == {"n": 5, "t": "5"}
    assert encode_string("n") + encode_value(ULong(5)) in typed.section
    reasons_of = [row.reason for row in bad if isinstance(row, BadRow)]
    assert "property 'n': 'five' is not a value of the AMQP type int" in reasons_of[0]
    assert "there is no AMQP type 'number'" in reasons_of[1]
    assert isinstance(empty, Row)


def test_variants_keep_their_types() -> None:
    values = [VariantVal.parseJson("1"), VariantVal.parseJson('"x"'), VariantVal.parseJson("[1]")]
    pairs = [[("v", {"value": one.value, "metadata": one.metadata})] for one in values]
    kind = pa.map_(pa.string(), pa.struct([("value", pa.binary()), ("metadata", pa.binary())]))
    rows = read({"body": list("xyz"), "properties": pa.array(pairs, kind)})
    found = [row.message.application_properties["v"] for row in rows if isinstance(row, Row)]
    assert found == [1, "x"]
    assert isinstance(rows[2], BadRow)


LATE = 2**62
"""Microseconds after 1970 that no datetime can hold, as Spark can."""


def test_an_unreadable_variant_is_an_error_of_its_row() -> None:
    good = VariantVal.parseJson("1")
    kind = pa.map_(pa.string(), pa.struct([("value", pa.binary()), ("metadata", pa.binary())]))
    late = b"\x30" + LATE.to_bytes(8, "little")  # a timestamp, by the head of the variant's encoding
    values = (good.value, late, b"", None)
    pairs: list[Any] = [[("v", value and {"value": value, "metadata": good.metadata})] for value in values]
    pairs[2] = [("v", {"value": b"", "metadata": good.metadata})]
    found = reasons({"body": list("wxyz"), "properties": pa.array(pairs, kind)})
    assert [reason is None for reason in found] == [True, False, False, True]
    assert "'v'" in (found[1] or "")


def test_columns_become_one_json_body() -> None:
    columns = {
        "n": [1, None],
        "price": pa.array([Decimal("1.50"), Decimal("2.25")], pa.decimal128(10, 2)),
        "exact": pa.array([Decimal("1.5"), None], pa.decimal128(38, 18)),
        "at": pa.array([0, 1_500_000], pa.timestamp("us", "UTC")),
        "raw": pa.array([b"\x00", b""], pa.binary()),
        "deep": pa.array([{"a": None, "b": [1]}, None], pa.struct([("a", pa.int32()), ("b", pa.list_(pa.int32()))])),
        "map": pa.array([[("k", 1.5)], None], pa.map_(pa.string(), pa.float64())),
    }
    fields = tuple((name, place) for place, name in enumerate(columns))
    first, second = (json.loads(bytes(one)) for one in messages(columns, body=None, json_fields=fields))
    assert first == {
        "n": 1,
        "price": 1.5,
        "exact": "1.500000000000000000",
        "at": "1970-01-01T00:00:00Z",
        "raw": "AA==",
        "deep": {"b": [1]},
        "map": {"k": 1.5},
    }
    assert second == {"price": 2.25, "at": "1970-01-01T00:00:01.500000Z", "raw": ""}


def variants(*texts: str | None) -> pa.Array:
    """A column of variants, as Spark hands it over: it marks the struct's second field."""
    mark = {b"variant": b"true"}
    kind = pa.struct([pa.field("value", pa.binary()), pa.field("metadata", pa.binary(), metadata=mark)])
    values = [None if text is None else VariantVal.parseJson(text) for text in texts]
    return pa.array([one and {"value": one.value, "metadata": one.metadata} for one in values], kind)


def test_a_variant_is_written_as_its_value_to_a_body_and_a_bad_record() -> None:
    column = variants('{"a":[1,"x",null],"b":{"c":1.5}}', None, "true", "1e300")
    deep = pa.ListArray.from_arrays(pa.array([0, 1, 2, 3, 4], pa.int32()), column)
    fields = (("v", 0), ("deep", 1))
    found = [json.loads(bytes(one)) for one in messages({"v": column, "deep": deep}, body=None, json_fields=fields)]
    whole = {"a": [1, "x", None], "b": {"c": 1.5}}
    assert found == [{"v": whole, "deep": [whole]}, {"deep": [None]}, *({"v": x, "deep": [x]} for x in (True, 1e300))]
    bad = read({"body": pa.array([None], pa.string()), "v": column.slice(0, 1)})[0]
    assert isinstance(bad, BadRow)
    assert bad.record["v"] == whole


def test_a_variant_follows_the_rules_of_columns_in_json() -> None:
    at = b"\x30" + (1_500_000).to_bytes(8, "little")
    values = {
        b"\x30" + (1_500_000).to_bytes(8, "little"): "1970-01-01T00:00:01.500000Z",
        b"\x2c" + (1).to_bytes(4, "little"): "1970-01-02",
        b"\x3c" + (2).to_bytes(4, "little") + b"\x00\x01": "AAE=",
        b"\x20\x02" + (150).to_bytes(4, "little"): 1.5,
    }
    kind = variants(None).type
    metadata = VariantVal.parseJson("1").metadata
    column = pa.array([{"value": value, "metadata": metadata} for value in (*values, at[:3])], kind)
    rows = read({"v": column}, body=None, json_fields=(("v", 0),))
    assert [json.loads(bytes(row.message))["v"] for row in rows if isinstance(row, Row)] == list(values.values())
    assert isinstance(rows[-1], BadRow)
    assert "'v'" in rows[-1].reason


def test_a_time_of_day_is_a_text_in_a_body_and_in_a_bad_record() -> None:
    times = pa.array([time(1, 2, 3), time(1, 2, 3, 500_000), None], pa.time64("ns"))
    found = [json.loads(bytes(one)) for one in messages({"t": times}, body=None, json_fields=(("t", 0),))]
    assert found == [{"t": "01:02:03"}, {"t": "01:02:03.500000"}, {}]
    bad = read({"body": pa.array([None], pa.string()), "t": times.slice(0, 1)})[0]
    assert isinstance(bad, BadRow)
    assert bad.record["t"] == "01:02:03"


def test_unknown_columns_become_properties() -> None:
    columns = {"body": ["a", "b"], "region": ["eu", None], "size": [1, 2]}
    found = [one.application_properties for one in messages(columns, extra_properties=(("region", 1), ("size", 2)))]
    assert found == [{"region": "eu", "size": 1}, {"size": 2}]


def test_a_column_names_the_destination_of_each_row() -> None:
    columns = {"body": list("wxyz"), "queue": ["a", None, "a", None], "topic": [None, "t", "t", None]}
    rows = read(columns, destination=None, queue=1, topic=2)
    assert [row.destination if isinstance(row, Row) else None for row in rows] == [
        Destination("a", "queue"),
        Destination("t", "topic"),
        None,
        None,
    ]


def test_ids_of_key_columns_are_those_of_the_values() -> None:
    columns = {"body": ["a", "b", "c"], "key": [1, 1, 2]}
    plan = MessageIdPlan(mode="keys", columns=("key",))
    first, second, third = (one.message_id for one in messages(columns, ids=plan, keys=(1,)))
    assert first == second != third


def test_json_of_a_timestamp_without_a_zone_has_none() -> None:
    moments = pa.array([datetime(2024, 5, 6, 7, 8, 9)], pa.timestamp("us"))  # noqa: DTZ001
    message = messages({"at": moments}, body=None, json_fields=(("at", 0),))[0]
    assert json.loads(bytes(message)) == {"at": "2024-05-06T07:08:09"}


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()])
def test_json_of_a_float_that_is_no_number_is_the_text_of_to_json(kind: pa.DataType) -> None:
    columns = {"x": pa.array([float("nan"), float("inf"), float("-inf")], kind)}
    found = messages(columns, body=None, json_fields=(("x", 0),))
    assert [json.loads(bytes(message))["x"] for message in found] == ["NaN", "Infinity", "-Infinity"]


def test_json_of_a_single_precision_number_is_the_shortest_one() -> None:
    numbers = pa.array([0.1, 3.0, 16777216.0, 1e-45], pa.float32())
    found = messages({"n": numbers}, body=None, json_fields=(("n", 0),))
    assert [json.loads(bytes(message))["n"] for message in found] == [0.1, 3.0, 16777216.0, 1e-45]


def test_properties_of_the_broker_are_left_out_of_rows_that_were_read() -> None:
    given = pa.array([[("DeadLetterReason", "r"), ("mine", "m")]], pa.map_(pa.string(), pa.string()))
    found = messages({"body": ["x"], "properties": given}, dropped_properties=("DeadLetterReason",))
    assert found[0].application_properties == {"mine": "m"}
