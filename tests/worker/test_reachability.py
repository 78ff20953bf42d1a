from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from random import Random

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


async def test_an_outage_lasts_from_the_first_error_after_an_answer(
    namespace: Namespace, caplog: pytest.LogCaptureFixture
) -> None:
    """To the syphon or to a probe, whatever was before it; each outage is logged once."""
    caplog.set_level("INFO", "sbclient")
    for seed in range(100):
        random, namespace.reached_at = Random(seed), None
        made = Reachability(PRIMARY, probe=namespace.ask, reached_at=lambda: namespace.reached_at, interval_s=60.0)
        began_at: float | None = None
        reached_at: float | None = None
        outages = 0
        caplog.clear()
        for _ in range(20):
            await clock.sleep(random.randrange(1, 20))
            match random.randrange(4):
                case 0:
                    namespace.reached_at = reached_at = clock.monotonic()
                    began_at = None
                case 1:
                    made.record_result()
                    reached_at, began_at = clock.monotonic(), None
                case _:
                    made.record_result(ServiceBusConnectionError("it is down"))
                    outages += began_at is None
                    began_at = clock.monotonic() if began_at is None else began_at
            health = made.health()
            assert (health.error and health.error.since_at, health.reached_at) == (began_at, reached_at)
        assert sum(vars(record)["event_name"] == "worker.unreachable" for record in caplog.records) == outages


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
        for error in (ServiceBusConnectionError, ServiceBusAuthorizationError, ServiceBusConnectionError):
            made.record_result(error("without an answer in between"))

    with caplog.at_level("INFO", logger="sbclient"):
        asyncio.run(talk())
    assert [vars(record)["event_name"] for record in caplog.records] == [
        "worker.unreachable",
        "worker.reachable",
        "worker.rejected",
        "worker.accepted",
        "worker.unreachable",
        "worker.rejected",
        "worker.unreachable",
    ]
    assert not any("reachable" in record.getMessage() for record in caplog.records[2:4])
