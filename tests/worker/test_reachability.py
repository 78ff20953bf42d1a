from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from sbclient import clock
from sbclient.errors import (
    MessagingEntityNotFoundError,
    ServiceBusAuthorizationError,
    ServiceBusConnectionError,
    ServiceBusError,
    ServiceBusServerBusyError,
)
from sbclient.worker.inspection import Side
from sbclient.worker.reachability import UNREACHABLE_PROBE_INTERVAL_S, Reachability

PRIMARY = Side("primary", "contoso")


class Namespace:
    """Answers as the test says, and counts the questions."""

    def __init__(self) -> None:
        self.error: ServiceBusError | None = None
        self.reached_at: float | None = None
        self.asked_at: list[float] = []

    async def ask(self) -> None:
        self.asked_at.append(clock.monotonic())
        if self.error is not None:
            raise self.error


@pytest.fixture
def namespace() -> Namespace:
    return Namespace()


@pytest.fixture
async def reachability(namespace: Namespace) -> AsyncIterator[Reachability]:
    made = Reachability(PRIMARY, probe=namespace.ask, reached_at=lambda: namespace.reached_at, interval_s=60.0)
    keeping = asyncio.ensure_future(made.probe_forever())
    yield made
    keeping.cancel()


async def test_a_namespace_is_asked_once_in_each_interval(reachability: Reachability, namespace: Namespace) -> None:
    await clock.sleep(200.0)
    assert namespace.asked_at == [0.0, 60.0, 120.0, 180.0]
    assert reachability.health().reached_at == 180.0


async def test_namespace_is_not_probed_while_the_syphon_gets_responses(
    reachability: Reachability, namespace: Namespace
) -> None:
    for second in range(20):
        await clock.sleep(10.0)
        namespace.reached_at = clock.monotonic()
        assert reachability.health().reached_at == 10.0 * (second + 1)
    assert namespace.asked_at == [0.0]


async def test_while_it_cannot_be_reached_it_is_asked_more_often(
    reachability: Reachability, namespace: Namespace
) -> None:
    await clock.sleep(1.0)
    namespace.error = ServiceBusConnectionError("it is down")
    await clock.sleep(100.0)
    error = reachability.health().error
    assert error is not None
    assert (error.since_at, error.text) == (60.0, "ServiceBusConnectionError: it is down")
    assert namespace.asked_at[-4:] == [70.0, 80.0, 90.0, 100.0]
    namespace.error = None
    await clock.sleep(UNREACHABLE_PROBE_INTERVAL_S)
    assert reachability.health().error is None


async def test_response_to_the_syphon_clears_the_error(reachability: Reachability, namespace: Namespace) -> None:
    namespace.error = ServiceBusConnectionError("it is down")
    await clock.sleep(75.0)
    namespace.reached_at = 69.0
    assert reachability.health().error is not None
    namespace.reached_at = 72.0
    assert reachability.health().error is None


async def test_time_of_an_answer_to_the_syphon_is_reported(namespace: Namespace) -> None:
    reachability = Reachability(PRIMARY, probe=namespace.ask, reached_at=lambda: namespace.reached_at, interval_s=60.0)
    await clock.sleep(10.0)
    reachability.failed(ServiceBusConnectionError("it is down"))
    namespace.reached_at = 12.0
    await clock.sleep(490.0)
    for _ in range(2):
        health = reachability.health()
        assert (health.reached_at, health.error) == (12.0, None)


async def test_log_reports_the_time_until_the_syphon_got_an_answer(
    reachability: Reachability, namespace: Namespace, caplog: pytest.LogCaptureFixture
) -> None:
    await clock.sleep(1.0)
    namespace.error = ServiceBusConnectionError("it is down")
    with caplog.at_level("INFO", logger="sbclient"):
        await clock.sleep(60.0)
        namespace.reached_at = 60.5
        assert reachability.health().error is None
        assert [record.levelname for record in caplog.records] == ["WARNING"]
        await clock.sleep(30.0)
    assert caplog.records[-1].getMessage() == "the primary contoso is reachable again after 0.5 s"
    assert namespace.asked_at == [0.0, 60.0]


@pytest.mark.parametrize("error", [MessagingEntityNotFoundError, ServiceBusServerBusyError])
async def test_an_answer_of_the_service_is_an_answer(
    reachability: Reachability, namespace: Namespace, error: type[ServiceBusError]
) -> None:
    namespace.error = error("no")
    await clock.sleep(61.0)
    assert reachability.health().error is None
    assert reachability.health().reached_at == 60.0


async def test_a_refused_credential_counts_as_not_reachable(reachability: Reachability, namespace: Namespace) -> None:
    namespace.error = ServiceBusAuthorizationError("no")
    await clock.sleep(61.0)
    assert reachability.health().error is not None


def test_changes_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    times: Iterator[None] = iter(())

    async def ask() -> None:
        next(times, None)

    async def talk() -> None:
        made = Reachability(PRIMARY, probe=ask, reached_at=lambda: None, interval_s=60.0)
        for _ in range(3):
            made.record_result(ServiceBusConnectionError("it is down"))
        for _ in range(3):
            made.record_result()
        for _ in range(3):
            made.record_result(ServiceBusAuthorizationError("no"))
        made.record_result()

    with caplog.at_level("INFO", logger="sbclient"):
        asyncio.run(talk())
    assert [vars(record)["event_name"] for record in caplog.records] == [
        "worker.unreachable",
        "worker.reachable",
        "worker.rejected",
        "worker.accepted",
    ]
    assert not any("reachable" in record.getMessage() for record in caplog.records[2:])
