from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from random import Random
from typing import Any, Final
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbclient import ServiceBusMessage
from sbclient.errors import InvalidOperationError
from sbclient_spark.options import Destination
from sbclient_spark.write.encoder import RowEncoder
from sbclient_spark.write.message_ids import MessageIdPlan, MessageIds, Place, canonical, choose_plan
from sbclient_spark.write.schema import ATTRIBUTES, RowPlan

PLACE = Place("query", 7, 3)


def id_of(plan: MessageIdPlan, message: ServiceBusMessage, position: int = 0, keys: Any = (), **more: Any) -> str:
    """The id that the encoder makes for a row with the parts of a message."""
    names = [name for name in ATTRIBUTES.values() if getattr(message, name) is not None]
    columns: dict[str, Any] = {"body": pa.array([bytes(message)], pa.binary())}
    columns |= {name: pa.array([getattr(message, name)]) for name in names}
    columns |= {f"my {name}": pa.array([value]) for name, value in message.application_properties.items()}
    columns |= {f"key {place}": pa.array([value]) for place, value in enumerate(keys)}
    places = {name: place for place, name in enumerate(columns)}
    rows = RowPlan(
        ids=plan,
        body=0,
        attributes=tuple((name, places[name]) for name in names),
        extra_properties=tuple((name, places[f"my {name}"]) for name in message.application_properties),
        keys=tuple(places[f"key {place}"] for place in range(len(keys))),
        destination=Destination(more.get("destination", "orders")),
    )
    ids = MessageIds(plan, more.get("place", PLACE), Random(1))
    (encoded,), bad = RowEncoder(rows, ids).encode(pa.record_batch(columns), position)
    assert not bad
    return encoded.message_id()


KEYS = MessageIdPlan(mode="keys", columns=("customer", "order"))
CONTENT = MessageIdPlan(mode="content")
POSITION = MessageIdPlan(mode="position")


def test_ids_never_change_from_release_to_release() -> None:
    message = ServiceBusMessage(b"body", session_id="s", application_properties={"a": 1})
    assert id_of(KEYS, message, keys=("c", 1, Decimal("1.50"))) == "7de52d91e246c8f91e72d59be028d1c4"
    assert id_of(CONTENT, message) == "7b5b33c8ae050a07d687a245678de315"
    assert id_of(POSITION, message, 5) == "10384c884bd4e9c2a3697d70f4911320"


def test_ids_of_content_differ_for_each_part_of_a_message() -> None:
    variants = [
        ServiceBusMessage(b"a"),
        ServiceBusMessage(b"b"),
        ServiceBusMessage(b"a", session_id="1"),
        ServiceBusMessage(b"a", partition_key="1"),
        ServiceBusMessage(b"a", correlation_id="1"),
        ServiceBusMessage(b"a", subject="1"),
        ServiceBusMessage(b"a", to="1"),
        ServiceBusMessage(b"a", reply_to="1"),
        ServiceBusMessage(b"a", reply_to_session_id="1"),
        ServiceBusMessage(b"a", content_type="1"),
        ServiceBusMessage(b"a", time_to_live=timedelta(seconds=1)),
        ServiceBusMessage(b"a", scheduled_enqueue_time_utc=datetime(2030, 1, 1, tzinfo=UTC)),
        ServiceBusMessage(b"a", application_properties={"x": 1}),
        ServiceBusMessage(b"a", application_properties={"x": "1"}),
        ServiceBusMessage(b"a", application_properties={"y": 1}),
    ]
    assert len({id_of(CONTENT, message) for message in variants}) == len(variants)
    assert id_of(CONTENT, variants[0], destination="orders") != id_of(CONTENT, variants[0], destination="prices")


def test_the_order_of_properties_does_not_matter() -> None:
    one = ServiceBusMessage(b"", application_properties={"a": 1, "b": 2})
    two = ServiceBusMessage(b"", application_properties={"b": 2, "a": 1})
    assert id_of(CONTENT, one) == id_of(CONTENT, two)


def test_ids_of_position_differ_for_equal_rows_and_for_a_replay_in_another_order() -> None:
    same = ServiceBusMessage(b"a")
    first = [id_of(POSITION, same, place) for place in range(3)]
    assert len(set(first)) == 3
    assert [id_of(POSITION, same, place) for place in range(3)] == first
    rows = [ServiceBusMessage(b"a"), ServiceBusMessage(b"b")]
    before = {id_of(POSITION, row, place): bytes(row) for place, row in enumerate(rows)}
    after = {id_of(POSITION, row, place): bytes(row) for place, row in enumerate(reversed(rows))}
    assert all(after[one] == before[one] for one in before.keys() & after.keys())


@pytest.mark.parametrize("other", [Place("q2", 7, 3), Place("query", 8, 3), Place("query", 7, 4)])
def test_a_position_belongs_to_its_query_batch_and_partition(other: Place) -> None:
    message = ServiceBusMessage(b"a")
    assert id_of(POSITION, message) != id_of(POSITION, message, place=other)


def test_mode_position_without_a_known_position_is_rejected() -> None:
    with pytest.raises(InvalidOperationError):
        MessageIds(POSITION, None, Random(1))


def test_a_prefix_stands_before_every_id() -> None:
    message = ServiceBusMessage(b"", message_id="m")
    for mode, keys in (("column", ()), ("keys", ("a",)), ("content", ()), ("position", ()), ("random", ())):
        plan = MessageIdPlan(mode=mode, prefix="nightly-")  # type: ignore[arg-type]  # each mode by its name
        assert id_of(plan, message, keys=keys).startswith("nightly-")
    assert id_of(MessageIdPlan(mode="column", prefix="p-"), message) == "p-m"


def test_random_ids_differ_each_time() -> None:
    ids = MessageIds(MessageIdPlan(mode="random"), None, Random(1))
    assert len({ids.random_id() for _ in range(100)}) == 100


SCALARS: Final = (
    *(None, True, False, 0, 1, -1, 10, 2**63, 0.0, 1.0, 0.1, "", "1", "True", "a", b"", b"1", b"a"),
    *map(Decimal, ("0", "1", "10", "100", "0.1", "-1")),
    *(datetime(2024, 1, 1, 0, 0, 0, microsecond, UTC) for microsecond in (0, 1, 10)),
    *(date(2024, 1, 1), "2024-01-01", time(0), time(0, 0, 1), timedelta(0), timedelta(microseconds=1), timedelta(1)),
    *(UUID(int=number) for number in (0, 1)),
)


def test_different_values_are_different_keys_alone_and_inside_others() -> None:
    values: list[Any] = [
        *SCALARS,
        *([one] for one in SCALARS),
        *({"k": one} for one in SCALARS),
        [],
        {},
        [[]],
        [1, 1],
        {"": ""},
    ]
    assert len({canonical(value) for value in values}) == len(values)


def test_equal_values_are_one_key() -> None:
    assert canonical(Decimal("1.50")) == canonical(Decimal("1.5"))
    assert canonical(Decimal("100")) == canonical(Decimal("1E+2"))
    assert canonical(datetime(2024, 1, 1)) == canonical(datetime(2024, 1, 1, tzinfo=UTC))  # noqa: DTZ001


def test_a_value_without_canonical_form_is_rejected() -> None:
    with pytest.raises(InvalidOperationError):
        canonical(object())


@given(st.lists(st.text() | st.binary() | st.integers() | st.none()), st.lists(st.text() | st.binary() | st.none()))
def test_different_rows_have_different_canonical_bytes(one: list[Any], two: list[Any]) -> None:
    joined = [b"".join(map(canonical, row)) for row in (one, two)]
    assert (joined[0] == joined[1]) == (one == two)


def chosen(**changes: Any) -> str:
    arguments: dict[str, Any] = {
        "mode": "auto",
        "has_column": False,
        "key_columns": (),
        "prefix": "",
        "transaction": None,
        "is_streaming": False,
    }
    return choose_plan(**{**arguments, **changes}).mode


def test_auto_takes_the_column_then_the_keys_then_the_position() -> None:
    assert chosen(has_column=True, is_streaming=True) == "column"
    assert chosen(key_columns=("a",), is_streaming=True) == "keys"
    assert chosen(is_streaming=True) == "position"
    assert chosen(transaction=("nightly", 1)) == "position"


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"mode": "position"},
        {"mode": "column"},
        {"has_column": True, "key_columns": ("a",)},
        {"mode": "random", "has_column": True},
        {"mode": "content", "has_column": True},
        {"is_streaming": True, "transaction": ("nightly", 1)},
        {"is_streaming": True, "transaction": ("nightly", 1), "has_column": True},
    ],
)
def test_a_mode_without_repeatable_ids_is_rejected(changes: dict[str, Any]) -> None:
    with pytest.raises(InvalidOperationError):
        chosen(**changes)
