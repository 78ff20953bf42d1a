from __future__ import annotations

import sys
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from sbclient import clock
from sbclient.errors import InvalidOperationError, MessagingEntityNotFoundError
from sbclient.testing import Fault, FaultKind
from sbclient.transport.memory.transport import drop_memory_host, memory_host
from sbclient_spark.clients import open_client
from sbclient_spark.write.destination_check import CACHE_S, UNKNOWN, DestinationFacts, check_destination, look_at
from sbclient_spark.write.options import WriteOptions, write_options

GOOD = DestinationFacts(
    word="queue",
    is_partitioned=False,
    requires_session=False,
    detects_duplicates=True,
    duplicate_window=timedelta(hours=2),
)


def options(**changes: str) -> WriteOptions:
    return write_options({"connectionString": "memory://checked", "queue": "orders", **changes})


def check(facts: DestinationFacts = GOOD, *, sessions: bool = False, random: bool = False, **changes: str) -> Any:
    return check_destination(options(**changes), has_sessions=sessions, makes_random_ids=random, look=lambda _: facts)


def test_a_suitable_destination_passes() -> None:
    assert check() == GOOD
    assert check(requireDuplicateDetection="error") == GOOD


@pytest.mark.parametrize(
    ("facts", "changes"),
    [
        (DestinationFacts(word="topic"), {}),
        (DestinationFacts(word="queue", requires_session=True), {}),
        (DestinationFacts(word="queue", detects_duplicates=False), {"requireDuplicateDetection": "error"}),
        (DestinationFacts(), {"requireDuplicateDetection": "error"}),
        (GOOD, {"requireDuplicateDetection": "error", "duplicateDetectionWindow": "3 h"}),
        (GOOD, {"requireDuplicateDetection": "error", "random": True}),
    ],
)
def test_an_unsuitable_destination_is_rejected(facts: DestinationFacts, changes: dict[str, Any]) -> None:
    with pytest.raises(InvalidOperationError):
        check(facts, **changes)


@pytest.mark.parametrize(
    ("facts", "demand", "is_logged"),
    [
        (GOOD, "warn", False),
        (DestinationFacts(detects_duplicates=False), "warn", True),
        (DestinationFacts(detects_duplicates=False), "off", False),
        (DestinationFacts(), "warn", True),
    ],
)
def test_a_destination_that_may_keep_duplicates_is_logged_once(
    facts: DestinationFacts,
    demand: str,
    is_logged: bool,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(f"{check_destination.__module__}._warned", set())
    for _ in range(2):  # a stream is checked for each micro-batch
        check(facts, requireDuplicateDetection=demand)
    assert [vars(record)["event_name"] for record in caplog.records] == ["destination.may_duplicate"] * is_logged


def test_a_queue_with_sessions_accepts_rows_with_a_session() -> None:
    assert check(DestinationFacts(word="queue", requires_session=True), sessions=True)


@pytest.fixture
async def checked() -> Any:
    """A namespace with a queue and a topic."""
    host = memory_host("checked")
    async with open_client(options().connection, paired=False) as client:
        await client.administration.create_queue(
            "orders", requires_duplicate_detection=True, requires_session=True, enable_partitioning=True
        )
        await client.administration.create_topic("prices")
    yield host
    drop_memory_host("checked")


async def test_the_facts_come_from_the_service(checked: Any) -> None:
    facts = await look_at(options())
    assert (facts.word, facts.is_partitioned, facts.requires_session) == ("queue", True, True)
    assert facts.duplicate_window == timedelta(minutes=10)
    given = write_options({"connectionString": "memory://checked", "path": "prices"})
    assert (await look_at(given)).word == "topic"


async def test_a_missing_destination_is_an_error_with_the_nearest_name(checked: Any) -> None:
    with pytest.raises(MessagingEntityNotFoundError) as caught:
        await look_at(options(queue="order"))
    assert "'orders'" in str(caught.value)


async def test_a_primary_that_is_down_is_logged_and_not_checked(checked: Any, caplog: pytest.LogCaptureFixture) -> None:
    checked.inject(Fault(FaultKind.DOWN))
    assert await look_at(options()) == DestinationFacts()
    assert "destination.not_checked" in [vars(record)["event_name"] for record in caplog.records]


BY_NAME = {"fullyQualifiedNamespace": "contoso.servicebus.windows.net", "tenantId": "t", "clientId": "c"}


@pytest.mark.parametrize(
    "secret",
    [
        {"connectionStringEnv": "ONLY_ON_EXECUTORS"},
        {"connectionStringFile": "/only/on/executors"},
        {**BY_NAME, "auth": "clientSecret", "clientSecretEnv": "ONLY_ON_EXECUTORS"},
        {**BY_NAME, "auth": "clientSecret", "clientSecretFile": "/only/on/executors"},
        {**BY_NAME, "auth": "token", "tokenEnv": "ONLY_ON_EXECUTORS"},
        {**BY_NAME, "auth": "token", "tokenFile": "/only/on/executors"},
    ],
)
async def test_a_destination_whose_secret_only_the_executors_know_is_not_checked(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, secret: dict[str, str]
) -> None:
    monkeypatch.setitem(sys.modules, "azure.identity.aio", SimpleNamespace())
    given = write_options({**secret, "queue": "orders"})
    assert await look_at(given) == DestinationFacts()
    assert [vars(record)["event_name"] for record in caplog.records] == ["destination.not_checked"]


async def test_an_older_answer_holds_while_the_service_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    module = "sbclient_spark.write.destination_check"
    answers = [UNKNOWN, GOOD, UNKNOWN]
    monkeypatch.setattr(f"{module}._answers", {})
    monkeypatch.setattr(f"{module}.worker_clients", lambda: SimpleNamespace(run=lambda answer: answer))
    monkeypatch.setattr(f"{module}.look_at", lambda *_: answers.pop(0))
    found = []
    while answers:
        found.append(check_destination(options(), has_sessions=False, makes_random_ids=False))
        await clock.sleep(CACHE_S + 1)
    assert found == [UNKNOWN, GOOD, GOOD]
