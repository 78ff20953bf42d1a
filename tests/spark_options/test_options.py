"""What writes, reads and drains on Spark accept. Nothing here needs PySpark."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import pytest

from sbclient.errors import InvalidOperationError
from sbclient.options import PAIR_OPTIONS
from sbclient_spark.drain.options import DRAIN_TABLE, drain_options
from sbclient_spark.options import OPTIONS_OF_CLIENT, Secret
from sbclient_spark.read.options import READ_TABLE, read_options
from sbclient_spark.write.options import WRITE_TABLE, write_options
from tests.fresh_process import output_of
from tests.pages.defaults import wrong_defaults

ROOT: Final = Path(__file__).parents[2]

PRIMARY = "Endpoint=sb://contoso.servicebus.windows.net;SharedAccessKeyName=root;SharedAccessKey=s3cret="
SECONDARY = "Endpoint=sb://backup.servicebus.windows.net;SharedAccessKeyName=root;SharedAccessKey=s3cret2="
PAIR = {"connectionString": PRIMARY, "secondaryConnectionString": SECONDARY}
LEAST = {"connectionString": PRIMARY, "queue": "orders"}


def refused(**options: str) -> str:
    with pytest.raises(InvalidOperationError) as caught:
        write_options({**LEAST, **options})
    assert "s3cret" not in str(caught.value)
    return str(caught.value)


def test_names_ignore_case_and_values_are_converted() -> None:
    options = write_options(
        {
            "connectionstring": PRIMARY,
            "SECONDARYCONNECTIONSTRING": SECONDARY,
            "queue": "orders",
            "messageidcolumns": "customer, order",
            "MaxBatchMessages": "10",
            "lingerms": "20",
            "taskdeadline": "10 minutes",
            "metricsLog": "off",
            "failoverinterval": "30 s",
            "sbclient.probe": "link",
            "sbclient.pings_to_recover": "3",
            "sbclient.syphon_long_poll": "PT5M",
            "sbclient.retry_total": "7",
        }
    )
    assert (options.entity, options.entity_path) == ("queue", "orders")
    assert options.message_id_columns == ("customer", "order")
    assert (options.max_batch_messages, options.linger_s, options.task_deadline_s) == (10, 0.02, 600.0)
    assert options.metrics_log is False
    pairing = options.connection.pairing_options()
    assert (pairing.failover_interval, pairing.probe) == (timedelta(seconds=30), "link")
    assert (pairing.pings_to_recover, pairing.syphon_long_poll) == (3, timedelta(minutes=5))
    assert options.connection.retry == (("retry_total", 7),)


@pytest.mark.parametrize("name", OPTIONS_OF_CLIENT)
def test_every_option_of_the_client_can_be_set(name: str) -> None:
    row = OPTIONS_OF_CLIENT[name]
    text = row.shown(row.default) or {"DURATION": "1 min", "N": "1"}.get(row.kind.metavar, "a")
    connection = write_options({**LEAST, f"sbclient.{name}": text}).connection
    given = dict(connection.pairing) | dict(connection.retry)
    assert given == {name: row.kind.parse(name, text)}
    if name in PAIR_OPTIONS:
        assert getattr(connection.pairing_options(), name) == given[name]


def test_an_unknown_option_is_refused_with_the_nearest_known_one() -> None:
    assert "secondaryConnectionString" in refused(secondaryConectionString=SECONDARY)
    assert "maxBatchMessages" in refused(maxBatchMesages="3")
    assert "txnVersion" in refused(zzz="3")


def test_an_unknown_option_of_the_client_is_refused_with_the_known_ones() -> None:
    assert "failover_interval" in refused(**{"sbclient.failover": "1"})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("maxBatchMessages", "0"),
        ("maxBatchMessages", "many"),
        ("maxInFlightBatches", "65"),
        ("maxMessagesPerSecond", "0"),
        ("maxMessagesPerSecond", "nan"),
        ("onRowError", "ignore"),
        ("metricsLog", "perhaps"),
        ("taskDeadline", "soon"),
        ("taskDeadline", "0"),
        ("sendTimeout", "0"),
        ("messageIdColumns", " , "),
        ("queue", "a//b"),
        ("badRecordsPath", "relative/path"),
        ("badRecordsPath", "s3://bucket/path"),
        ("metricsPath", "metrics.jsonl"),
        ("messageIdPrefix", "x" * 97),
        ("failoverInterval", "2 hours"),
        ("sbclient.enable_syphon", "true"),
        ("sbclient.is_outage", "x"),
        ("sbclient.probe", "guess"),
        ("retryMaxBackoff", "100 ms"),
        ("failover", "backlog"),
        ("onRowError", "deadletter"),
        ("onSendError", "badRecords"),
        ("messageIdMode", "keys"),
        ("txnAppId", "nightly"),
        ("txnVersion", "3"),
        ("topic", "prices"),
        ("connectionStringEnv", "PRIMARY"),
        ("auth", "clientSecret"),
        ("auth", "token"),
    ],
)
def test_a_value_that_cannot_be_used_is_refused_by_its_name(name: str, value: str) -> None:
    text = refused(**{name: value})
    message = text.lower().replace("_", "")
    assert name.removeprefix("sbclient.").lower().replace("_", "") in message or repr(value) in text


def test_columns_of_keys_belong_to_the_mode_keys() -> None:
    refused(messageIdMode="content", messageIdColumns="order")
    assert write_options({**LEAST, "messageIdMode": "keys", "messageIdColumns": "order"}).message_id_mode == "keys"


def test_a_namespace_is_needed() -> None:
    with pytest.raises(InvalidOperationError):
        write_options({"queue": "orders"})
    with pytest.raises(InvalidOperationError):
        write_options({"queue": "orders", "fullyQualifiedNamespace": "contoso.servicebus.windows.net"})
    options = write_options(
        {"queue": "orders", "fullyQualifiedNamespace": "contoso.servicebus.windows.net", "auth": "managedidentity"}
    )
    assert options.connection.auth == "managedIdentity"


def test_the_secondary_is_given_by_a_variable_or_by_its_name() -> None:
    options = write_options({**LEAST, "secondaryConnectionStringEnv": "B"})
    assert options.connection.secondary.connection_string == Secret(env="B")
    hosts = {"fullyQualifiedNamespace": "a.servicebus.windows.net", "secondaryNamespace": "b.servicebus.windows.net"}
    options = write_options({"queue": "orders", "auth": "managedIdentity", **hosts})
    assert options.connection.secondary.fully_qualified_namespace == "b.servicebus.windows.net"


def test_the_path_of_save_and_of_a_connection_string_name_the_entity() -> None:
    assert write_options({"connectionString": PRIMARY, "path": "orders"}).entity_path == "orders"
    assert write_options({"connectionString": f"{PRIMARY};EntityPath=orders"}).entity_path == "orders"
    assert write_options({**LEAST, "path": "other"}).entity_path == "orders"
    assert write_options({"connectionString": PRIMARY, "path": "file:/warehouse/t"}).entity_path is None


def test_a_connection_string_that_cannot_be_read_is_refused_without_its_key() -> None:
    assert "SharedAccessKeyName" in refused(connectionString="Endpoint=sb://contoso.net;SharedAccessKey=s3cret=")


def test_no_secret_is_in_a_repr() -> None:
    options = write_options({**LEAST, "secondaryConnectionString": SECONDARY})
    assert "s3cret" not in repr(options)
    assert pickle.loads(pickle.dumps(options)) == options


def test_only_what_differs_in_its_connection_has_another_client() -> None:
    one = write_options(LEAST)
    assert one.connection == write_options({**LEAST, "queue": "other", "maxRetries": "1"}).connection
    assert one.connection != write_options({**LEAST, "sendTimeout": "5"}).connection


@pytest.mark.parametrize("table", [WRITE_TABLE, READ_TABLE, DRAIN_TABLE])
def test_option_names_differ_in_more_than_case(table: Mapping[str, object]) -> None:
    assert len(table) == len({name.lower() for name in table})


# -- reads


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"queue": "a", "queues": "b"},
        {"queue": "a", "backlog": "true"},
        {"topic": "prices"},
        {"subscription": "eu"},
        {"queue": "a", "mode": "receive"},
        {"queue": "a", "endingTime": "tomorrow"},
        {"queue": "a", "maxMessages": "0"},
        {"queue": "a", "subQueue": "dead"},
        {"queu": "a"},
        {"queue": "a", "maxMessagesPerTrigger": "5"},
        {"queue": "a", "maxMessages": "5", "minPartitions": "2"},
    ],
)
def test_a_read_that_cannot_be_meant_is_refused(options: dict[str, str]) -> None:
    with pytest.raises(InvalidOperationError):
        read_options({**PAIR, **options})


def test_a_format_of_bodies_is_refused_with_what_works() -> None:
    with pytest.raises(InvalidOperationError, match="from_json"):
        read_options({**PAIR, "queue": "a", "bodyFormat": "json"})


def test_a_backlog_needs_a_secondary() -> None:
    with pytest.raises(InvalidOperationError):
        read_options({"connectionString": PRIMARY, "backlog": "true"})


def test_a_subscription_is_read_by_its_path() -> None:
    assert read_options({**PAIR, "topic": "prices", "subscription": "eu"}).paths == ("prices/Subscriptions/eu",)


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"subQueue": "deadletter"}, "batch read"),
        ({"endingTime": "2024-01-01"}, "batch read"),
        ({"startingSequenceNumber": "soon"}, "earliest"),
        ({"maxMessagesPerTrigger": "0"}, "maxMessagesPerTrigger"),
        ({"mode": "steal"}, "receive"),
    ],
)
def test_options_that_do_not_fit_a_stream_are_refused(options: dict[str, str], word: str) -> None:
    with pytest.raises(InvalidOperationError, match=word):
        read_options({"connectionString": PRIMARY, "queue": "orders", **options}, is_streaming=True)


# -- drains


@pytest.mark.parametrize(
    "changes",
    [
        {"secondaryConnectionString": None},
        {"failover": "primary"},
        {"parallelism": "0"},
        {"deadline": "soon"},
        {"maxMessagesPerSecond": "-1"},
        {"redirectAfter": "-1 s"},
        {"queue": "orders"},
    ],
)
def test_contradicting_options_of_a_drain_are_rejected(changes: dict[str, Any]) -> None:
    with pytest.raises(InvalidOperationError):
        drain_options({name: value for name, value in {**PAIR, **changes}.items() if value is not None})


# -- all of them


@pytest.mark.parametrize("page", ["spark.md", "spark-reference.md"])
def test_a_default_in_a_sentence_is_the_declared_one(page: str) -> None:
    rows = {**DRAIN_TABLE, **WRITE_TABLE, **READ_TABLE}.values()
    defaults = {row.name: row.shown(row.default) for row in rows if row.default not in (None, False, True)}
    assert not list(wrong_defaults((ROOT / "docs" / page).read_text(encoding="utf-8"), defaults))


# -- without PySpark


@pytest.mark.slow
def test_options_are_read_without_pyspark_and_pyarrow() -> None:
    program = f"""
import sys
sys.modules["pyspark"] = sys.modules["pyarrow"] = None
from tests.spark_options.without_spark import load_package
load_package()
from sbclient_spark.drain.options import drain_options
from sbclient_spark.read.options import read_options
from sbclient_spark.write.options import write_options
write_options({LEAST}), read_options({LEAST})
print(drain_options({PAIR}).work)
"""
    assert output_of(program) == "drain"
