"""The Spark connector: options that hold keys, rows that hold bodies, and what is told of them."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.secrets.canaries import BODY, KEY, PROPERTY, SIGNATURE, WEB_TOKEN, connection_string, found_in
from tests.secrets.ear import Ear, listening

if find_spec("pyspark") is None or find_spec("pyarrow") is None:
    pytest.skip("needs the extra `spark`", allow_module_level=True)

import pyarrow as pa

from sbclient.clock import Clock
from sbclient.errors import ServiceBusError
from sbclient.testing import Fault, FaultKind
from sbclient.transport.memory.transport import drop_memory_host, memory_host
from sbclient_spark.credentials import credential_of, resolve
from sbclient_spark.drain import drain_options
from sbclient_spark.message_ids import MessageIdPlan
from sbclient_spark.read_options import read_options
from sbclient_spark.rows import Destination, RowPlan
from sbclient_spark.worker_clients import WorkerClients, open_client, worker_clients
from sbclient_spark.write_options import write_options
from sbclient_spark.write_task import TaskPlace, WritePlan, run_task

PRIMARY, SECONDARY = connection_string(), connection_string("sb://contoso-backup.servicebus.windows.net/")
READERS: list[Callable[[Mapping[str, str]], Any]] = [write_options, read_options, drain_options]


@pytest.fixture
def ear() -> Iterator[Ear]:
    with listening() as ear:
        yield ear
        ear.check()


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
def test_options_show_no_key_and_what_is_pickled_for_the_executors_holds_only_its_own(
    ear: Ear, options: dict[str, str]
) -> None:
    for read in READERS:
        try:
            made = read(options)
        except ServiceBusError as error:
            ear.hear_error(read.__name__, error)
            continue
        ear.hear(read.__name__, repr(made))
        sent = pickle.dumps(made).decode("latin-1")
        assert list(found_in(sent)), "executors connect with it"


def test_a_key_that_is_named_is_in_no_pickle(ear: Ear, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text(SECONDARY)
    monkeypatch.setenv("PRIMARY", PRIMARY)
    options = {"connectionStringEnv": "PRIMARY", "secondaryConnectionStringFile": str(path), "queue": "orders"}
    made = write_options(options)
    ear.hear("options", repr(made))
    ear.hear("a pickle", pickle.dumps(made).decode("latin-1"))
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
def test_options_that_cannot_be_used(ear: Ear, options: dict[str, str]) -> None:
    for read in READERS:
        with ear.expecting(ServiceBusError, where=read.__name__):
            read(options)


async def test_credentials_show_nothing(ear: Ear) -> None:
    for options in GOOD[1:3]:
        made = write_options(options)
        try:
            credential = credential_of(made.connection, Clock())
        except ServiceBusError as error:
            ear.hear_error("credential_of", error)
            continue
        ear.hear("a credential", repr(credential))
        if options["auth"] == "token":
            ear.hear("a token", repr(await credential.get_token("scope")))


@pytest.fixture
def clients() -> Iterator[WorkerClients]:
    found = worker_clients()
    memory_host("secrets", clock=found.clock)

    async def create() -> None:
        options = write_options({"connectionString": "memory://secrets", "queue": "orders"})
        async with open_client(options.connection, paired=False, clock=found.clock) as client:
            await client.administration.create_queue("orders")

    found.run(create())
    yield found
    found.run(found.close())
    drop_memory_host("secrets")


@pytest.mark.parametrize("handling", ["fail", "skip", "deadletter"])
def test_rows_that_cannot_be_sent(ear: Ear, clients: WorkerClients, tmp_path: Path, handling: str) -> None:
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
    ear.hear("a plan", repr(plan))
    place = TaskPlace(partition=0, attempt=0, attempt_id=0, query_id="q", batch_id=0)
    columns = {"body": [BODY, BODY * 10_000, BODY, None], "session_id": ["1", "2", PROPERTY * 10, PROPERTY]}
    rows = pa.record_batch(columns)
    try:
        ear.hear("a result", repr(run_task(plan, [rows], place, clients=clients)))
    except ServiceBusError as error:
        ear.hear_error("a task", error)
    memory_host("secrets").inject(Fault(FaultKind.DOWN))
    with ear.expecting(ServiceBusError, where="a task"):
        run_task(plan, [rows.slice(0, 1)], place, clients=clients)
