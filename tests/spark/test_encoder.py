"""Columns are encoded as the messages that are made of each row, for any columns."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbclient.amqp.encoded import encode_body
from sbclient.amqp.value_texts import typed
from sbclient.errors import InvalidOperationError
from sbclient.message import AmqpMessageBodyType, ServiceBusMessage
from sbclient.rules.partition_key import check_keys
from sbclient.rules.ping import check_not_ping
from sbclient.settings.durations import seconds_of
from sbclient_spark.options import Destination
from sbclient_spark.write import amqp_columns, columns, encoder
from sbclient_spark.write.encoded_rows import EncodedRows
from sbclient_spark.write.encoder import RowEncoder, converted
from sbclient_spark.write.json_values import json_text
from sbclient_spark.write.message_ids import MessageIdMode, MessageIdPlan, MessageIds, Place, canonical
from sbclient_spark.write.schema import ATTRIBUTES, RowPlan
from tests.spark.encoding import EncodedRow, encoded_row

ORDERS = Destination("orders")
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
TEXTS = ("correlation_id", "subject", "content_type", "reply_to", "to")
IDS = ("session_id", "partition_key", "reply_to_session_id")

words = st.text(st.characters(codec="utf-8"), max_size=5) | st.sampled_from(["x" * 255, "é" * 128, "y" * 300])
ids = st.text(st.characters(codec="utf-8"), max_size=5) | st.sampled_from(["i" * 128, "é" * 128])
whole = st.integers(-(2**63), 2**63 - 1) | st.integers(-130, 130) | st.sampled_from([2**31 - 1, 2**31, -(2**31) - 1])
moments = st.integers(-62_135_424_000_000_000, 253_402_128_000_000_000).map(
    lambda us: EPOCH + timedelta(microseconds=us)
)

VALUES: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "string": (pa.string(), words),
    "long": (pa.int64(), whole),
    "int": (pa.int32(), st.integers(-(2**31), 2**31 - 1) | st.integers(-130, 130)),
    "short": (pa.int16(), st.integers(-(2**15), 2**15 - 1)),
    "byte": (pa.int8(), st.integers(-128, 127)),
    "double": (pa.float64(), st.floats()),
    "float": (pa.float32(), st.floats(width=32)),
    "boolean": (pa.bool_(), st.booleans()),
    "timestamp": (pa.timestamp("us", "UTC"), moments),
    "timestamp_ntz": (pa.timestamp("us"), moments.map(lambda moment: moment.replace(tzinfo=None))),
}


def column(count: int, values: st.SearchStrategy[Any], *, nulls: bool = True) -> st.SearchStrategy[list[Any]]:
    return st.lists(st.none() | values if nulls else values, min_size=count, max_size=count)


@st.composite
def batches(draw: st.DrawFn) -> tuple[pa.RecordBatch, RowPlan]:
    """A batch and the use of its columns; most rows are valid."""
    count = draw(st.integers(1, 6))
    arrays: dict[str, pa.Array] = {}

    def add(name: str, kind: pa.DataType, values: st.SearchStrategy[Any], *, nulls: bool = True) -> None:
        arrays[name] = pa.array(draw(column(count, values, nulls=nulls)), kind)

    body_kind, bodies = draw(
        st.sampled_from([(pa.string(), words), (pa.binary(), st.binary(max_size=9) | st.just(b"b" * 256))])
    )
    is_json = draw(st.booleans())
    add("body", body_kind, bodies, nulls=draw(st.sampled_from([False, False, False, True])))
    mode: MessageIdMode = draw(st.sampled_from(["column", "random", "content", "position", "keys"]))
    if mode == "column":
        add("message_id", pa.string(), ids.filter(bool))
    for name in draw(st.sets(st.sampled_from(TEXTS))):
        add(name, pa.string(), words)
    for name in draw(st.sets(st.sampled_from(IDS))):
        add(name, pa.string(), ids)
    if "session_id" in arrays and "partition_key" in arrays and draw(st.booleans()):
        arrays["partition_key"] = arrays["session_id"]
    if draw(st.booleans()):
        kind, lives = draw(
            st.sampled_from(
                [
                    (pa.duration("us"), st.integers(0, 2**60)),
                    (pa.int64(), st.integers(0, 10**9) | st.sampled_from([0, 255, 256, 4_294_967])),
                    (pa.string(), st.sampled_from(["PT1H", "PT0.255S", "90 s"])),
                ]
            )
        )
        add("time_to_live", kind, lives)
    if draw(st.booleans()):
        add("scheduled_enqueue_time_utc", pa.timestamp("us", "UTC"), moments)
    attributes = tuple(name for name in arrays if name != "body")
    properties: str | None = None
    extra: list[str] = []
    shape = draw(st.sampled_from(["none", "map", "headers", "columns"]))
    if shape in ("map", "headers"):
        kind, values = VALUES[draw(st.sampled_from(sorted(VALUES)))]
        if shape == "headers":
            kind, values = draw(st.sampled_from([(pa.string(), words), (pa.binary(), st.binary(max_size=4))]))
        keys = words.filter(bool)
        entries = st.dictionaries(keys, st.none() | values, max_size=3).map(lambda found: list(found.items()))
        if draw(st.integers(0, 9)) == 0:
            entries = st.lists(st.tuples(keys, values), max_size=3)  # may have a key twice
        if shape == "map":
            add("properties", pa.map_(pa.string(), kind), entries)
        else:
            headers = pa.list_(pa.struct([("key", pa.string()), ("value", kind)]))
            as_structs = entries.map(lambda found: [{"key": key, "value": value} for key, value in found])
            add("properties", headers, as_structs)
        properties = "properties"
        if shape == "map" and kind == pa.string():
            types = st.dictionaries(keys, st.sampled_from(["string", "symbol", "int"]), max_size=1)
            add("property_types", pa.map_(pa.string(), pa.string()), types.map(lambda found: list(found.items())))
    elif shape == "columns":
        for name in draw(st.sets(st.sampled_from(sorted(VALUES)), min_size=1)):
            add(f"my_{name}", *VALUES[name])
            extra.append(f"my_{name}")
    keys_of_id: tuple[str, ...] = ()
    if mode == "keys":
        add("key", pa.int64(), whole)
        keys_of_id = ("key",)
    destination: Destination | None = ORDERS
    if draw(st.booleans()):
        destination = None
        add("queue", pa.string(), st.sampled_from(["a", "b/c", "a"]), nulls=draw(st.sampled_from([False, False, True])))
    batch = pa.record_batch(arrays)
    places = {name: place for place, name in enumerate(arrays)}
    plan = RowPlan(
        ids=MessageIdPlan(mode=mode, prefix=draw(st.sampled_from(["", "p-"])), columns=keys_of_id),
        body=None if is_json and body_kind == pa.string() else places["body"],
        json_fields=(("b", places["body"]),) if is_json and body_kind == pa.string() else (),
        attributes=tuple((name, places[name]) for name in attributes),
        properties=places[properties] if properties else None,
        property_types=places.get("property_types"),
        extra_properties=tuple((name, places[name]) for name in extra),
        keys=tuple(places[name] for name in keys_of_id),
        destination=destination,
        queue=places.get("queue"),
    )
    start = draw(st.integers(0, count - 1))
    return batch.slice(start, draw(st.integers(1, count - start))), plan


def message_ids(plan: RowPlan) -> MessageIds:
    return MessageIds(plan.ids, Place("query", 3, 1), Random(1))


def by_rows(batch: pa.RecordBatch, plan: RowPlan) -> tuple[dict[str, list[EncodedRow]], int]:
    """The rows that a message made of each row gives, by their destination, and the number of invalid rows."""
    found: dict[str, list[EncodedRow]] = {}
    bad = 0
    ids = message_ids(plan)
    for place in range(batch.num_rows):
        try:
            path, message = message_of(batch.slice(place, 1), plan, 7 + place, ids)
            found.setdefault(path, []).append(encoded_row(7 + place, message))
        except (InvalidOperationError, TypeError):
            bad += 1
    return found, bad


def message_of(row: pa.RecordBatch, plan: RowPlan, position: int, ids: MessageIds) -> tuple[str, ServiceBusMessage]:
    """The destination and the message of a row, without any column."""
    values = {place: columns.plain(row.column(place))[0] for place in range(row.num_columns)}
    given = {name: values[place] for name, place in plan.attributes}
    life = given.get("time_to_live")
    if life is not None and not isinstance(life, timedelta):
        given["time_to_live"] = timedelta(seconds=seconds_of(life) if isinstance(life, str) else life)
    for value in given.values():
        if isinstance(value, InvalidOperationError):
            raise value
    body = values[plan.body] if plan.body is not None else json_text({plan.json_fields[0][0]: values[0]})
    path = plan.destination.path if plan.destination is not None else values[plan.queue or 0]
    if body is None or path is None or (plan.ids.mode == "column" and not given["message_id"]):
        raise InvalidOperationError("a value is missing")
    message = ServiceBusMessage(body, application_properties=properties_of(row, plan), **given)
    check_keys(message)
    check_not_ping(message)
    message.message_id = id_of(ids, plan, message, position, [values[place] for place in plan.keys], path)
    return path, message


def properties_of(row: pa.RecordBatch, plan: RowPlan) -> dict[str, Any] | None:
    if plan.properties is None:
        found = {name: columns.property_values(row.column(place))[0] for name, place in plan.extra_properties}
        return {name: value for name, value in found.items() if value is not None}
    (properties,) = columns.properties(row.column(plan.properties))
    if isinstance(properties, InvalidOperationError):
        raise properties
    types = None if plan.property_types is None else columns.properties(row.column(plan.property_types))[0]
    return typed(properties, types) if properties and types else properties


def id_of(ids: MessageIds, plan: RowPlan, message: ServiceBusMessage, position: int, keys: list[Any], path: str) -> str:
    """The message id, from the parts of the message."""
    if plan.ids.mode == "column":
        return plan.ids.prefix + (message.message_id or "")
    if plan.ids.mode == "random":
        return ids.random_id()
    if plan.ids.mode == "keys":
        return ids.digest(b"".join(map(canonical, keys)))
    texts = message.session_id, message.partition_key, message.correlation_id, message.subject, message.content_type
    others = message.to, message.reply_to, message.reply_to_session_id
    times = message.time_to_live, message.scheduled_enqueue_time_utc
    parts = path.casefold(), bytes(message), *texts, *others, *times, message.application_properties or None
    return ids.digest(b"".join(map(canonical, parts if plan.ids.mode == "content" else (position, *parts))))


def as_rows(encoded: list[EncodedRows]) -> dict[str, list[EncodedRow]]:
    found: dict[str, list[EncodedRow]] = {}
    for rows in encoded:
        found.setdefault(rows.destination.path, []).extend(tuple(row.values()) for row in rows.columns.to_pylist())
    return found


@given(batches())
def test_columns_are_encoded_as_messages_made_of_each_row(given_batch: tuple[pa.RecordBatch, RowPlan]) -> None:
    batch, plan = given_batch
    expected, bad = by_rows(batch, plan)
    rows, refused = RowEncoder(plan, message_ids(plan)).encode(batch, 7)
    assert len(refused) == bad
    if plan.ids.mode != "random":  # the ids of the rows before an error differ
        assert as_rows(rows) == expected


def batch_of(count: int, **more: Any) -> tuple[pa.RecordBatch, RowPlan]:
    columns = {
        "body": pa.array([f"body {number}" for number in range(count)]),
        "message_id": pa.array([f"id {number}" for number in range(count)]),
        **more,
    }
    names = list(columns)
    attributes = tuple((name, place) for place, name in enumerate(names) if name in ATTRIBUTES.values())
    plan = RowPlan(
        ids=MessageIdPlan(mode="column"),
        body=0,
        body_type=names.index("body_type") if "body_type" in names else None,
        attributes=attributes,
        properties=names.index("properties") if "properties" in names else None,
        destination=ORDERS,
    )
    return pa.record_batch(columns), plan


PROPERTIES = pa.array([[("tenant", "t"), ("kind", "k")]] * 4, pa.map_(pa.string(), pa.string()))


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"session_id": pa.array(["s", "", None, "é" * 128])},
        {"properties": PROPERTIES, "subject": pa.array(["a", None, "b", "c"]), "to": pa.array([None, "x", None, "y"])},
        {"time_to_live": pa.array([0, 255_000, None, 2**54], pa.duration("us"))},
    ],
)
def test_usual_columns_are_encoded_as_a_whole(more: dict[str, pa.Array], monkeypatch: pytest.MonkeyPatch) -> None:
    batch, plan = batch_of(4, **more)
    expected, _ = by_rows(batch, plan)
    monkeypatch.setattr(encoder, "_section", None)  # what encodes the properties of one row
    rows, refused = RowEncoder(plan, message_ids(plan)).encode(batch, 7)
    assert not refused
    assert as_rows(rows) == expected


@pytest.mark.parametrize(
    "more",
    [
        {"session_id": pa.array(["s", "s", "s", "i" * 129])},
        {"session_id": pa.array(["a"] * 4), "partition_key": pa.array(["a", "a", "a", "b"])},
        {"content_type": pa.array([None, None, "Application/vnd.ms-servicebus-ping", None])},
        {"subject": pa.array([b"a", b"b", b"\xff", b"c"], pa.binary()).view(pa.string())},
        {"time_to_live": pa.array([1, 2, -3, 4], pa.int64())},
        {"properties": pa.array([[("a", "1"), ("a", "2")]] * 4, pa.map_(pa.string(), pa.string()))},
    ],
)
def test_an_invalid_row_is_found_among_valid_ones(more: dict[str, pa.Array]) -> None:
    batch, plan = batch_of(4, **more)
    expected, bad = by_rows(batch, plan)
    assert bad >= 1
    rows, refused = RowEncoder(plan, message_ids(plan)).encode(batch, 7)
    assert [row.position for row in refused]
    assert len(refused) == bad
    assert as_rows(rows) == expected


def test_an_invalid_value_is_found_with_few_conversions() -> None:
    texts = pa.array([None] * 1200 + [b"\xff"] + [None] * 2299, pa.binary()).view("string")
    sizes: list[int] = []

    def whole(column: pa.Array) -> pa.Array:
        sizes.append(len(column))
        return amqp_columns.text_bytes(column, None)

    errors: dict[int, str] = {}
    found = converted(texts, pa.binary(), whole, lambda column: columns.text_bytes("subject", column), errors)
    assert list(errors) == [1200]
    assert "cannot be read" in errors[1200]
    assert (len(found), found.null_count) == (3500, 3500)
    assert len(sizes) < 30


@pytest.mark.parametrize(
    ("kind", "body", "reason"),
    [
        ("values", b"1", "'values': give data, text, value or sequence"),
        ("value", b"{", "not JSON"),
        ("value", b"[" * 100_000, "not JSON"),
        ("value", b"\xff", "not JSON"),
        ("text", b"\xff", "not UTF-8"),
        ("sequence", b"[1]", "no array of arrays"),
        ("value", b'{"ubyte": "256"}', "ubyte"),
    ],
)
def test_a_body_that_is_not_of_its_type_is_an_error_of_its_row(kind: str, body: bytes, reason: str) -> None:
    batch, plan = batch_of(
        3, body=pa.array([b"1", body, b"\xff"], pa.binary()), body_type=pa.array(["value", kind, None])
    )
    rows, (bad,) = RowEncoder(plan, message_ids(plan)).encode(batch, 7)
    assert bad.position == 8
    assert reason in bad.reason
    ends = encode_body(1, AmqpMessageBodyType.VALUE), encode_body(b"\xff", AmqpMessageBodyType.DATA)
    assert all(row[0].endswith(end) for row, end in zip(as_rows(rows)["orders"], ends, strict=True))


@pytest.mark.parametrize(
    ("column", "values", "reason"),
    [
        ("body", pa.array(["a", None]), "body is null"),
        ("session_id", pa.array(["a", "x" * 129]), "session_id has 129 characters"),
        ("subject", pa.array([b"a", b"\xff"]), "subject holds bytes"),
        ("time_to_live", pa.array([1, -5], pa.duration("us")), "column 'time_to_live'"),
        ("properties", PROPERTIES.from_arrays([0, 1, 3], list("kaa"), list("vvw")), "property 'a' has two values"),
    ],
)
def test_the_error_of_a_row_names_the_row_and_the_column(column: str, values: pa.Array, reason: str) -> None:
    batch, plan = batch_of(2, **{column: values})
    _, (bad,) = RowEncoder(plan, message_ids(plan)).encode(batch, 7)
    assert bad.position == 8
    assert reason in bad.reason


def test_bodies_of_different_types_have_different_ids_of_content() -> None:
    kinds = [None, "data", "text", "value"]
    batch, plan = batch_of(4, body=pa.array(["1"] * 4), body_type=pa.array(kinds))
    plan = replace(plan, ids=MessageIdPlan(mode="content"), attributes=())
    (rows,), _ = RowEncoder(plan, message_ids(plan)).encode(batch, 7)
    (plain,), _ = RowEncoder(replace(plan, body_type=None), message_ids(plan)).encode(batch.slice(0, 1), 7)
    ids = [rows.message_id(place) for place in range(4)]
    assert ids[:2] == [plain.message_id()] * 2
    assert len(set(ids)) == 3
