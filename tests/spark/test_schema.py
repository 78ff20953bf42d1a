from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql.types import StructType

from sbclient.errors import InvalidOperationError
from sbclient_spark.options import Destination
from sbclient_spark.read.columns import READ_SCHEMA
from sbclient_spark.write.options import write_options
from sbclient_spark.write.schema import RowPlan, row_plan

pytestmark = pytest.mark.usefixtures("spark")  # reads the types of columns from their names


def plan(columns: str, is_streaming: bool = True, **options: str) -> RowPlan:
    given = {"connectionString": "memory://contoso", "queue": "orders", **options}
    chosen = write_options({name: value for name, value in given.items() if value})
    schema = StructType.fromDDL(columns)
    assert isinstance(schema, StructType)
    return row_plan(schema, chosen, is_streaming=is_streaming)


def refused(columns: str, **options: Any) -> str:
    with pytest.raises(InvalidOperationError) as caught:
        plan(columns, **options)
    return str(caught.value)


def test_columns_are_found_by_name_without_case() -> None:
    found = plan("Session_ID string, BODY binary, Message_Id string, Properties map<string,long>")
    assert found.body == 1
    assert dict(found.attributes) == {"session_id": 0, "message_id": 2}
    assert found.properties == 3
    assert found.destination == Destination("orders", "queue")
    assert found.ids.mode == "column"


@pytest.mark.parametrize(
    "column",
    [
        "body string",
        "body binary",
        "body string, application_properties map<string,string>",
        "body string, properties map<string,double>",
        "body string, properties map<string,variant>",
        "body string, properties map<string,boolean>",
        "body string, properties map<string,string>, property_types map<string,string>",
        "body string, headers array<struct<key:string,value:binary>>",
        "body string, time_to_live interval day to second",
        "body string, time_to_live bigint",
        "body string, time_to_live string",
        "body string, scheduled_enqueue_time timestamp",
        "body string, scheduled_enqueue_time timestamp_ntz",
    ],
)
def test_types_that_a_message_can_hold_pass(column: str) -> None:
    plan(column)


@pytest.mark.parametrize(
    ("column", "name"),
    [
        ("body bigint", "body"),
        ("body struct<a:int>", "body"),
        ("body string, message_id bigint", "message_id"),
        ("body string, session_id int", "session_id"),
        ("body string, properties map<int,string>", "properties"),
        ("body string, application_properties map<string,array<int>>", "application_properties"),
        ("body string, headers array<string>", "headers"),
        ("body string, property_types map<string,string>", "application_properties"),
        ("body string, properties map<string,long>, property_types map<string,string>", "property_types"),
        ("body string, properties map<string,string>, property_types map<string,int>", "property_types"),
        ("body string, headers array<struct<value:binary,key:string>>", "headers"),
        ("body string, time_to_live double", "time_to_live"),
        ("body string, scheduled_enqueue_time string", "scheduled_enqueue_time"),
    ],
)
def test_another_type_is_refused_with_the_allowed_ones(column: str, name: str) -> None:
    assert name in refused(column)


def test_a_missing_body_is_refused_with_the_columns_there_are() -> None:
    assert "payload" in refused("payload string")


def test_an_unknown_column_is_refused_ignored_or_a_property() -> None:
    assert "'session_id'" in refused("body string, sesion_id string")
    assert plan("body string, region string", unknownColumns="ignore").extra_properties == ()
    assert plan("body string, Region string", unknownColumns="property").extra_properties == (("Region", 1),)
    refused("body string, region array<int>", unknownColumns="property")
    refused("body string, region string, properties map<string,string>", unknownColumns="property")


def test_key_columns_need_not_be_part_of_the_message() -> None:
    found = plan("body string, Customer string, seq bigint", messageIdColumns="customer,seq")
    assert (found.ids.mode, found.keys, found.extra_properties) == ("keys", (1, 2), ())
    for unknown, properties in (("ignore", ()), ("property", (("Customer", 1), ("seq", 2)))):
        columns = "body string, Customer string, seq bigint"
        found = plan(columns, messageIdColumns="customer,seq", unknownColumns=unknown)
        assert (found.keys, found.extra_properties) == ((1, 2), properties)
    day = "body string, day date"
    assert plan(day, messageIdColumns="day").keys == (1,)
    assert "'day'" in refused(day, messageIdColumns="day", unknownColumns="property")
    assert "order" in refused("body string", messageIdColumns="order")
    assert "map" in refused("body string, m map<string,string>", messageIdColumns="m")


def test_json_takes_every_column_that_is_not_reserved() -> None:
    found = plan("a int, session_id string, B map<string,int>, message_id string", bodyFormat="json")
    assert found.body is None
    assert found.json_fields == (("a", 0), ("B", 2))
    refused("body string", bodyFormat="json")
    refused("a int, body_type string", bodyFormat="json")
    refused("session_id string", bodyFormat="json")


def test_the_option_takes_precedence_over_the_column_of_the_destination() -> None:
    found = plan("body string, queue string")
    assert found.destination == Destination("orders")
    assert found.queue is None
    by_row = plan("body string, queue string, topic string", queue="")
    assert (by_row.destination, by_row.queue, by_row.topic) == (None, 1, 2)
    assert "queue" in refused("body string", queue="")


@pytest.mark.parametrize("unknown", ["error", "ignore", "property"])
def test_columns_that_only_a_read_has_are_left_out_of_a_write(unknown: str) -> None:
    assert plan("body string, sequence_number bigint, state string", unknownColumns=unknown).extra_properties == ()
    given = write_options({"connectionString": "memory://contoso", "queue": "orders", "unknownColumns": unknown})
    assert row_plan(READ_SCHEMA, given, is_streaming=True).extra_properties == ()


def test_a_column_of_the_application_with_the_name_of_a_read_column_is_kept() -> None:
    for columns in ("body string, state string", "body string, sequence_number bigint, state int"):
        assert "'state'" in refused(columns)
        assert dict(plan(columns, unknownColumns="property").extra_properties).keys() == {"state"}
    assert plan("state string, expires_at date, n int", bodyFormat="json").json_fields == (
        ("state", 0),
        ("expires_at", 1),
        ("n", 2),
    )
    found = plan("id int, sequence_number bigint, state string", bodyFormat="json")
    assert [name for name, _ in found.json_fields] == ["id", "sequence_number", "state"]


@pytest.mark.parametrize(
    "columns",
    [
        "body string, properties map<string,string>, headers array<struct<key:string,value:binary>>",
        "body string, Body binary",
    ],
)
def test_two_columns_for_one_thing_are_refused(columns: str) -> None:
    refused(columns)


def test_a_batch_job_without_stable_ids_is_refused() -> None:
    assert "message_id" in refused("body string", is_streaming=False)
    assert plan("body string", is_streaming=False, txnAppId="nightly", txnVersion="3").ids.transaction == ("nightly", 3)
    assert plan("body string", is_streaming=False, messageIdMode="random").ids.mode == "random"


@pytest.mark.parametrize(
    "column",
    ["v interval year", "v struct<a:array<interval month>>", "v map<struct<a:int>,string>", "v map<double,int>"],
)
def test_a_type_that_json_lacks_is_refused(column: str) -> None:
    assert "'v" in refused(column, bodyFormat="json")
    assert plan("v struct<a:array<map<int,timestamp_ntz>>,b:void,c:variant>", bodyFormat="json").body is None


def test_only_rows_that_were_read_leave_out_the_properties_of_the_broker() -> None:
    columns = "body string, properties map<string,string>"
    assert plan(columns).dropped_properties == ()
    assert "DeadLetterReason" in plan(f"{columns}, sequence_number bigint").dropped_properties
