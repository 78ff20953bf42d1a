"""No value in a row leads anywhere but to the message that it describes, or to an error of its row with the column.

Each value stands between two good rows. Then these are encoded, whatever it is, and no error reaches the task.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
import pytest
from pyspark.sql.types import StringType, StructField, StructType, VariantVal

from sbclient import ServiceBusClient, ServiceBusMessage
from sbclient.formats.message_json import TEXTS, message_of
from sbclient.formats.strict_json import read_json
from sbclient.testing import MemoryNamespace
from sbclient.transport.memory.transport import MemoryTransport
from sbclient_spark.options import Destination
from sbclient_spark.read.columns import READ_SCHEMA, record_batch
from sbclient_spark.write.encoded_rows import BadRow
from sbclient_spark.write.message_ids import MessageIdMode, MessageIdPlan
from sbclient_spark.write.row_errors import record_of
from sbclient_spark.write.schema import RowPlan
from tests.spark.encoding import Row, read_batch

ORDERS: Final = Destination("orders")
STRING: Final = pa.string()
SHORT: Final = 400
"""The most characters of a reason."""

RAW_TEXTS: Final = (
    *(None, b"", b"  ", b"a\0b", b"\xff", b"\xed\xa0\x80", b"\xc0\x80", b"\xf4\x90\x80\x80", b"a\r\nb", b"a/../b//c"),
    *("\u202eabc\u2066".encode(), "\U0001f600".encode() * 40, b"x" * 128, b"x" * 129, b"x" * 10**6),
    *("\u00e9".encode() * 128, "\u00e9".encode() * 129, b"application/vnd.ms-servicebus-ping", b"nan", b"-1", b"PT1S"),
    *(b"9" * 5000, b"1e400", b"P1Y", b"9" * 300 + b"d", b"-0"),
)
INT64: Final = (-(2**63), -(2**62), -1, 0, 1, 2**31, 2**62, 2**63 - 1)
FLOATS: Final = (float("nan"), float("inf"), -float("inf"), -0.0, 5e-324, 1.7976931348623157e308)
PER_SECOND: Final = {"s": 1, "ms": 10**3, "us": 10**6}
"""The units of time; Spark has microseconds."""


def texts(*raw: bytes | None, kind: pa.DataType = STRING) -> pa.Array:
    """A column of texts, which in Spark may have any bytes."""
    binary = pa.large_binary() if kind == pa.large_string() else pa.binary()
    return pa.array(raw, binary).view(kind)


def ticks(kind: pa.DataType, *numbers: int | None) -> pa.Array:
    return pa.array(numbers, pa.int64()).view(kind)


def between(good: pa.Array, value: pa.Array) -> pa.Array:
    return pa.concat_arrays([good, value, good])


def check(name: str, value: pa.Array, good: pa.Array, plan: RowPlan, expected: Callable[[Row], bool]) -> Iterator[str]:
    """Yield what is wrong with the rows of a batch whose column `name` has a value between two good ones."""
    columns = {"body": texts(b"a", b"b", b"c")} if name != "body" else {}
    case = f"{name} of type {value.type} = {_shown(value)}"
    try:
        rows = read_batch(pa.record_batch({**columns, name: between(good, value)}), plan, 7)
    except Exception as error:
        yield f"{case}: {type(error).__name__}: {str(error)[:200]}"
        return
    if [row.position for row in rows] != [7, 8, 9] or isinstance(rows[0], BadRow) or isinstance(rows[2], BadRow):
        yield f"{case} disturbs other rows: {str(rows)[:300]}"
    elif isinstance(row := rows[1], BadRow):
        if expected is not ANY and expected is not NONE:
            yield f"{case} is refused: {row.reason[:SHORT]}"
        if name.replace("_utc", "") not in row.reason or len(row.reason) > SHORT:
            yield f"{case} has the reason {row.reason[:SHORT]}"
        json.dumps(row.record, allow_nan=False).encode()
        row.reason.encode()
    elif expected is NONE or not expected(row):
        yield f"{case} becomes {row.message!r:.200}"


def ANY(row: Row) -> bool:  # noqa: N802
    """The value may be refused or taken."""
    return True


def NONE(row: Row) -> bool:  # noqa: N802
    """The value must be refused."""
    return False


def _shown(value: pa.Array) -> str:
    try:
        return f"{value.to_pylist()[0]!r:.60}"
    except (ValueError, OverflowError):
        return " ".join(str(value).split())[:60]


def plan_of(name: str, **changes: Any) -> RowPlan:
    given: dict[str, Any] = {"ids": MessageIdPlan(mode="random"), "body": 0, "destination": ORDERS, **changes}
    return RowPlan(**given)


def decoded(raw: bytes | None) -> str | None:
    return None if raw is None else raw.decode()


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
def test_a_text_sets_an_attribute_or_is_an_error_of_its_row(name: str, kind: pa.DataType) -> None:
    mode: MessageIdMode = "column" if name == "message_id" else "random"
    plan = plan_of(name, attributes=((name, 1),), ids=MessageIdPlan(mode=mode))
    wrong: list[str] = []
    for raw in RAW_TEXTS:
        try:
            given = decoded(raw)
            attributes: dict[str, Any] = {name: given}
            message = ServiceBusMessage(b"", **attributes)
            is_ping = name == "content_type" and given == "application/vnd.ms-servicebus-ping"
            is_sound = not is_ping and (name != "message_id" or bool(given))
        except ValueError:
            is_sound = False

        def expected(row: Row, message: ServiceBusMessage = message) -> bool:
            return bool(getattr(row.message, name) == getattr(message, name))

        wrong += check(name, texts(raw, kind=kind), texts(b"g", kind=kind), plan, expected if is_sound else NONE)
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary(), pa.large_binary()])
def test_a_body_is_sent_or_is_an_error_of_its_row(kind: pa.DataType) -> None:
    is_text = kind in (pa.string(), pa.large_string())
    wrong: list[str] = []
    for raw in RAW_TEXTS:

        def expected(row: Row, raw: bytes | None = raw) -> bool:
            return bytes(row.message) == raw

        is_sound = raw is not None and (not is_text or raw.decode(errors="ignore").encode() == raw)
        column, good = (texts(each, kind=kind) if is_text else pa.array([each], kind) for each in (raw, b"g"))
        wrong += check("body", column, good, plan_of("body"), expected if is_sound else NONE)
    assert not wrong, "\n".join(wrong)


def test_a_time_to_live_of_any_type_is_taken_or_is_an_error_of_its_row() -> None:
    name = "time_to_live"
    plan = plan_of(name, attributes=((name, 1),))
    wrong: list[str] = []
    for kind, unit in [(pa.duration(unit), unit) for unit in PER_SECOND] + [(pa.int64(), "s")]:
        for number in (*INT64, None):
            seconds = (
                None if number is None else number // PER_SECOND[unit] if number < 0 else number / PER_SECOND[unit]
            )
            is_sound = number is None or (number >= 0 and number / PER_SECOND[unit] < timedelta.max.total_seconds())

            def expected(row: Row, seconds: float | None = seconds) -> bool:
                found = row.message.time_to_live
                if seconds is None or found is None:
                    return found is None and seconds is None
                return abs(found.total_seconds() - seconds) <= 0.001 or seconds > 2.5e11  # until the year 9999

            wrong += check(name, ticks(kind, number), ticks(kind, 1), plan, expected if is_sound else NONE)
    for kind in (pa.int8(), pa.int16(), pa.int32()):
        for number in (-1, 0, 2 ** (kind.bit_width - 1) - 1):
            wrong += check(name, pa.array([number], kind), pa.array([1], kind), plan, ANY if number >= 0 else NONE)
    for raw in RAW_TEXTS:
        wrong += check(name, texts(raw), texts(b"1"), plan, ANY)
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("zone", [None, "UTC", "Pacific/Kiritimati"])
def test_a_schedule_of_any_unit_is_taken_or_is_an_error_of_its_row(zone: str | None) -> None:
    plan = plan_of("", attributes=(("scheduled_enqueue_time_utc", 1),))
    wrong: list[str] = []
    edges = (-62_135_596_800, -62_135_596_801, 253_402_300_799, 253_402_300_800)
    for unit in PER_SECOND:
        kind, per = pa.timestamp(unit, zone), PER_SECOND[unit]
        for number in (*INT64, *(edge * per for edge in edges if abs(edge * per) < 2**63), None):
            try:
                at = (
                    None
                    if number is None
                    else datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=number * 10**6 // per)
                )
            except OverflowError:
                expected = NONE
            else:

                def expected(row: Row, at: datetime | None = at) -> bool:
                    found = row.message.scheduled_enqueue_time_utc
                    if at is None or found is None:
                        return found is at
                    return timedelta(0) <= at - found < timedelta(milliseconds=1)

            wrong += check("scheduled_enqueue_time_utc", ticks(kind, number), ticks(kind, 1), plan, expected)
    assert not wrong, "\n".join(wrong)


def _values() -> Iterator[pa.Array]:
    """Columns of one value, of each type that a property may have."""
    for kind in (pa.int8(), pa.int16(), pa.int32(), pa.int64()):
        edge = 2 ** (kind.bit_width - 1)
        yield from (pa.array([number], kind) for number in (-edge, -1, 0, edge - 1, None))
    for kind in (pa.float32(), pa.float64()):
        yield from (pa.array([number], kind) for number in (*FLOATS, None))
    yield from (pa.array([flag], pa.bool_()) for flag in (True, False, None))
    yield from (texts(raw) for raw in RAW_TEXTS)
    for zone in (None, "UTC"):
        for number in (*INT64, -62_135_596_800_000_000, 253_402_300_799_999_999, 253_402_300_800_000_000, None):
            yield ticks(pa.timestamp("us", zone), number)


def _is_same(found: Any, value: pa.Array) -> bool:
    wanted = value.to_pylist()[0]
    if isinstance(wanted, datetime):
        wanted = wanted.replace(tzinfo=UTC) if wanted.tzinfo is None else wanted
        return bool(timedelta(0) <= wanted - found < timedelta(milliseconds=1))
    if isinstance(wanted, float) and wanted != wanted:
        return bool(found != found)
    return bool(found == wanted)


def test_a_property_of_any_type_is_sent_or_is_an_error_of_its_row() -> None:
    wrong: list[str] = []
    for value in _values():
        try:
            is_sound = value.to_pylist() is not None
            at = value.to_pylist()[0]
            is_sound = not isinstance(at, datetime) or at.replace(tzinfo=UTC) <= datetime(9999, 12, 31, tzinfo=UTC)
        except (ValueError, OverflowError):
            is_sound = False
        good = {pa.string(): texts(b"g"), pa.bool_(): pa.array([True])}.get(value.type) or pa.array(
            [1], pa.int64()
        ).cast(value.type)

        def expected(row: Row, value: pa.Array = value) -> bool:
            properties = row.message.application_properties
            if value.null_count:
                return not properties or properties == {"property": None}
            return _is_same(properties["property"], value)

        wrong += check(
            "property", value, good, plan_of("", extra_properties=(("property", 1),)), expected if is_sound else ANY
        )
        maps = [pa.MapArray.from_arrays([0, 1], pa.array(["property"]), each) for each in (value, good)]
        wrong += check("propert", maps[0], maps[1], plan_of("", properties=1), ANY)
    assert not wrong, "\n".join(wrong)


def test_a_name_of_a_property_is_sent_or_is_an_error_of_its_row() -> None:
    wrong: list[str] = []
    for raw in RAW_TEXTS[1:]:
        column, good = (pa.MapArray.from_arrays([0, 1], texts(name), pa.array(["v"])) for name in (raw, b"g"))
        wrong += check("propert", column, good, plan_of("", properties=1), ANY)
    assert not wrong, "\n".join(wrong)


def test_a_type_of_a_property_or_body_is_followed_or_is_an_error_of_its_row() -> None:
    kinds = (
        "int",
        "ulong",
        "uuid",
        "timestamp",
        "decimal128",
        "char",
        "symbol",
        "binary",
        "double",
        "encoded",
        "x",
        "",
    )
    wrong: list[str] = []
    for kind in kinds:
        for raw in RAW_TEXTS:
            if raw is None:
                continue
            properties, plain = (pa.MapArray.from_arrays([0, 1], pa.array(["p"]), texts(each)) for each in (raw, b"1"))
            types, none = (
                pa.array([[(name, each)]], pa.map_(pa.string(), pa.string()))
                for name, each in (("p", kind), ("other", "int"))
            )
            batch = pa.record_batch(
                {"body": texts(b"a", b"b", b"c"), "p": between(plain, properties), "t": between(none, types)}
            )
            wrong += _disturbed(batch, plan_of("", properties=1, property_types=2), f"{raw!r:.40} as {kind}", "'p'")
    for kind in ("data", "text", "value", "sequence", "other", "", "\U0001f600" * 500):
        for raw in RAW_TEXTS:
            batch = pa.record_batch(
                {"body": between(texts(b"[[1]]"), texts(raw)), "t": pa.array(["sequence", kind, "sequence"])}
            )
            wrong += _disturbed(batch, plan_of("", body_type=1), f"body {raw!r:.40} as {kind!r:.20}", "body")
    assert not wrong, "\n".join(wrong)


def _disturbed(batch: pa.RecordBatch, plan: RowPlan, case: str, name: str) -> Iterator[str]:
    try:
        rows = read_batch(batch, plan)
    except Exception as error:
        yield f"{case}: {type(error).__name__}: {str(error)[:200]}"
        return
    if isinstance(rows[0], BadRow) or isinstance(rows[2], BadRow) or len(rows) != 3:
        yield f"{case} disturbs other rows: {str(rows)[:300]}"
    elif isinstance(row := rows[1], BadRow) and (name not in row.reason or len(row.reason) > SHORT):
        yield f"{case} has the reason {row.reason[:SHORT]}"


def test_a_destination_in_a_row_is_used_or_is_an_error_of_its_row() -> None:
    wrong: list[str] = []
    for name in ("queue", "topic"):
        plan = plan_of("", destination=None, **{name: 1})
        for raw in RAW_TEXTS:
            wrong += check(name, texts(raw), texts(b"g"), plan, ANY)
    assert not wrong, "\n".join(wrong)


def _json_values() -> Iterator[pa.Array]:
    """Columns of one value, of types that a body of JSON may have."""
    yield from _values()
    for digits in (9, 38):
        for text in ("9" * digits, "-" + "9" * digits, "0", None):
            yield pa.array([text]).cast(pa.decimal128(digits, 0))
    yield pa.array([Decimal("1E-18")], pa.decimal128(38, 18))
    yield from (pa.array([day], pa.int32()).view(pa.date32()) for day in (-(2**31), -719_163, 0, 2**31 - 1))
    yield from (ticks(pa.duration("us"), number) for number in INT64)
    yield from (pa.array([raw], pa.binary()) for raw in (b"", b"\xff", None))
    yield pa.MapArray.from_arrays([0, 2], texts(b"a", b"a"), pa.array([1, 2]))
    yield pa.ListArray.from_arrays([0, 2], texts(b"\xff", None))
    yield pa.StructArray.from_arrays([texts(b"\xff"), ticks(pa.timestamp("us", "UTC"), 2**62)], ["a", "b"])
    mark = pa.field("metadata", pa.binary(), metadata={b"variant": b"true"})
    kind = pa.struct([pa.field("value", pa.binary()), mark])
    for value in (b"", b"\x30" + b"\xff" * 8, b"\xff", b"\x30" + (2**62).to_bytes(8, "little")):
        yield pa.array([{"value": value, "metadata": VariantVal.parseJson("1").metadata}], kind)


@pytest.mark.parametrize("ids", ["random", "keys"])
def test_a_column_of_a_json_body_or_key_is_sent_or_is_an_error_of_its_row(ids: Any) -> None:
    wrong: list[str] = []
    for value in _json_values():
        null = pa.nulls(1, value.type)
        batch = pa.record_batch({"v": between(null, value), "w": [1, 2, 3]})
        if ids == "random":
            plan = plan_of("", body=None, json_fields=(("v", 0), ("w", 1)))
        elif pa.types.is_nested(value.type) or pa.types.is_duration(value.type):
            continue
        else:
            batch = batch.append_column("body", texts(b"a", b"b", b"c"))
            plan = plan_of("", body=2, keys=(0,), ids=MessageIdPlan(mode="keys", columns=("v",)))
        case = f"{value.type} = {_shown(value) if not pa.types.is_nested(value.type) else '…'}"
        wrong += _disturbed(batch, plan, case, "'v'")
        rows = read_batch(batch, plan)
        if ids == "random" and not isinstance(rows[1], BadRow):
            read_json(bytes(rows[1].message))
    assert not wrong, "\n".join(wrong)


# -- reads

RECEIVED: Final = (
    {"body_base64": "/w=="},
    {"body": "\0\u202e"},
    {"body_type": "value", "body": None},
    {"body_type": "value", "body": {"double": "NaN"}},
    {"body_type": "value", "body": {"a": [1, {"base64": "/w=="}, {"uuid": "00000000-0000-0000-0000-000000000001"}]}},
    {"body_type": "value", "body": {"timestamp": "9999-12-31T23:59:59Z"}},
    {"body_type": "sequence", "body": [[1], [], [None, {"ulong": "18446744073709551615"}]]},
    {"time_to_live": "unlimited"},
    {"time_to_live": "P106751990D"},
    {"scheduled_enqueue_time_utc": "0001-01-01T00:00:00Z"},
    {
        "application_properties": {
            "": "",
            "a\0": None,
            "n": {"double": "-inf"},
            "at": {"datetime": "0001-01-01T00:00:00Z"},
        }
    },
    {"application_properties": {"x" * 10**4: "y" * 10**4, "c": {"char": "\U0001f600"}, "d": {"decimal": "1E+6000"}}},
    {name: "a\0\u202e" for name in TEXTS if name not in ("session_id", "partition_key")},
    dict.fromkeys(TEXTS, ""),
)


async def test_every_message_that_a_queue_can_hold_is_a_row(tmp_path: Any) -> None:
    host = MemoryNamespace("contoso")
    host.create_queue("orders")
    schemas = READ_SCHEMA, StructType([StructField("body", StringType())])
    async with ServiceBusClient(transport=MemoryTransport(host)) as client:
        sender, receiver = client.get_queue_sender("orders"), client.get_queue_receiver("orders")
        for fields in RECEIVED:
            await sender.send_messages(message_of(fields))
        found = await receiver.peek_messages(100)
    assert len(found) == len(RECEIVED)
    for message in found:
        json.dumps(record_of(message, ORDERS), allow_nan=False).encode()  # of a row that cannot be sent
        for schema in schemas:
            batch = record_batch([message], "orders", list(schema))
            batch.validate(full=True)
            assert batch.num_rows == 1
