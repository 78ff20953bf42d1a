"""The Spark connector leaks no keys of options and no bodies of rows."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.secrets.canaries import BODY, KEY, PROPERTY, SIGNATURE, WEB_TOKEN, connection_string, found_in
from tests.secrets.output_capture import OutputCapture

if find_spec("pyspark") is None or find_spec("pyarrow") is None:
    pytest.skip("needs the extra `spark`", allow_module_level=True)

import pyarrow as pa

from sbclient.errors import ServiceBusError
from sbclient.testing import Fault, FaultKind
from sbclient.transport.memory.transport import drop_memory_host, memory_host
from sbclient_spark.clients import WorkerClients, open_client, worker_clients
from sbclient_spark.credentials import credential_of, resolve
from sbclient_spark.drain.options import drain_options
from sbclient_spark.options import Destination
from sbclient_spark.read.options import read_options
from sbclient_spark.write.message_ids import MessageIdPlan
from sbclient_spark.write.options import write_options
from sbclient_spark.write.schema import RowPlan
from sbclient_spark.write.task import TaskPlace, WritePlan, run_task

PRIMARY, SECONDARY = connection_string(), connection_string("sb://contoso-backup.servicebus.windows.net/")
READERS: list[Callable[[Mapping[str, str]], Any]] = [write_options, read_options, drain_options]


GOOD = [
    {"connectionString": PRIMARY, "secondaryConnectionString": SECONDARY, "queue": "orders"},
    {
        "fullyQualifiedNamespace": "contoso.servicebus.windows.net",
        "auth": "token",
        "token": WEB_TOKEN,
        "queue": "orders",
    },
    {
        "fullyQualifiedNamespace": "contoso.servicebus.windows.net",
        "auth": "clientSecret",
        "tenantId": "t",
        "clientId": "c",
        "clientSecret": KEY,
        "queue": "orders",
    },
    {"connectionString": f"Endpoint=sb://contoso/;SharedAccessSignature=SharedAccessSignature sig={SIGNATURE}"},
]


@pytest.mark.parametrize("options", GOOD, ids=lambda options: "+".join(options))
def test_options_show_no_key_and_pickle_only_needed_ones(capture: OutputCapture, options: dict[str, str]) -> None:
    for read in READERS:
        try:
            made = read(options)
        except ServiceBusError as error:
            capture.add_error(read.__name__, error)
            continue
        capture.add(read.__name__, repr(made))
        sent = pickle.dumps(made).decode("latin-1")
        assert list(found_in(sent)), "executors connect with it"


def test_named_key_is_not_pickled(capture: OutputCapture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text(SECONDARY)
    monkeypatch.setenv("PRIMARY", PRIMARY)
    options = {"connectionStringEnv": "PRIMARY", "secondaryConnectionStringFile": str(path), "queue": "orders"}
    made = write_options(options)
    capture.add("options", repr(made))
    capture.add("a pickle", pickle.dumps(made).decode("latin-1"))
    assert resolve(made.connection.primary.connection_string, "connectionString") == PRIMARY


BAD = [
    {"connectionString": PRIMARY, "connectionStringEnv": "A"},
    {"connectionString": PRIMARY.replace("=", ":")},
    {"connectionString": PRIMARY, "secondaryConnectionString": KEY},
    {"connectionString": PRIMARY, "queue": "orders", "sendTimeout": "soon"},
    {"connectionString": PRIMARY, "queue": "orders", "noSuchOption": "x"},
    {"connectionString": PRIMARY, "queue": "orders", "topic": "prices"},
    {"fullyQualifiedNamespace": "contoso", "auth": "clientSecret", "clientSecret": KEY},
    {"fullyQualifiedNamespace": "contoso", "auth": "token"},
]


@pytest.mark.parametrize("options", BAD, ids=lambda options: "+".join(options))
def test_errors_about_invalid_options_leak_nothing(capture: OutputCapture, options: dict[str, str]) -> None:
    for read in READERS:
        with capture.expecting(ServiceBusError, where=read.__name__):
            read(options)


async def test_reprs_of_credentials_show_nothing(capture: OutputCapture) -> None:
    for options in GOOD[1:3]:
        made = write_options(options)
        try:
            credential = credential_of(made.connection)
        except ServiceBusError as error:
            capture.add_error("credential_of", error)
            continue
        capture.add("a credential", repr(credential))
        if options["auth"] == "token":
            capture.add("a token", repr(await credential.get_token("scope")))


@pytest.fixture
def clients() -> Iterator[WorkerClients]:
    found = worker_clients()
    memory_host("secrets")

    async def create() -> None:
        options = write_options({"connectionString": "memory://secrets", "queue": "orders"})
        async with open_client(options.connection, paired=False) as client:
            await client.administration.create_queue("orders")

    found.run(create())
    yield found
    found.run(found.close())
    drop_memory_host("secrets")


@pytest.mark.parametrize("handling", ["fail", "skip", "deadletter"])
def test_errors_about_invalid_rows_leak_nothing(
    capture: OutputCapture, clients: WorkerClients, tmp_path: Path, handling: str
) -> None:
    texts = {"onRowError": handling, "maxRetries": "0", "taskDeadline": "5s", "metricsLog": "true"}
    if handling == "deadletter":
        texts["badRecordsPath"] = str(tmp_path)
    plan = WritePlan(
        options=write_options({"connectionString": "memory://secrets", "queue": "orders", **texts}),
        rows=RowPlan(
            ids=MessageIdPlan(mode="position"),
            body=0,
            attributes=(("session_id", 1),),
            destination=Destination("orders"),
        ),
        mixes_keys=False,
    )
    capture.add("a plan", repr(plan))
    place = TaskPlace(partition=0, attempt=0, attempt_id=0, query_id="q", batch_id=0)
    columns = {"body": [BODY, BODY * 10_000, BODY, None], "session_id": ["1", "2", PROPERTY * 10, PROPERTY]}
    rows = pa.record_batch(columns)
    try:
        capture.add("a result", repr(run_task(plan, [rows], place, clients=clients)))
    except ServiceBusError as error:
        capture.add_error("a task", error)
    memory_host("secrets").inject(Fault(FaultKind.DOWN))
    with capture.expecting(ServiceBusError, where="a task"):
        run_task(plan, [rows.slice(0, 1)], place, clients=clients)
