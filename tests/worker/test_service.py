"""A worker from its start to its end, in virtual time, through outages of either namespace."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from sbclient import clock
from sbclient.broker.faults import Operation
from sbclient.errors import (
    MessagingEntityNotFoundError,
    ServiceBusAuthenticationError,
    ServiceBusAuthorizationError,
    ServiceBusConnectionError,
    ServiceBusQuotaExceededError,
)
from sbclient.message import ServiceBusMessage
from sbclient.syphon import queue_source
from sbclient.syphon.syphon import SyphonReport
from sbclient.telemetry import metrics
from sbclient.testing import Fault, FaultKind, MemoryPair
from sbclient.worker.inspection import MISSING_ENTITY
from tests.client.scene import BACKLOG, QUEUE, SESSION_BACKLOG, diverted, make_queue, taken, texts, waiting
from tests.measured import values
from tests.worker.scene import Listener, Run, make_backlog

PAGE = (Path(__file__).parents[2] / "docs" / "syphon.md").read_text(encoding="utf-8")


def expected(*numbers: int) -> list[str]:
    return sorted(f"{QUEUE} {number}" for number in numbers)


# -- a quiet life ------------------------------------------------------------------------------------------------------


async def test_until_empty_it_ends_by_itself(pair: MemoryPair) -> None:
    await make_backlog(pair, *range(20))
    async with Run(pair, until="empty") as run:
        report = await run.ended(None)
    assert (report.drained, report.parked) == (20, 0)
    assert clock.monotonic() < 5.0


async def test_until_empty_reports_remaining_messages(pair: MemoryPair) -> None:
    await make_backlog(pair, *range(20))
    pair.primary.inject(Fault(FaultKind.DOWN, entity_path=QUEUE))
    async with Run(pair, until="empty") as run:
        report = await run.ended(None)
    assert report.drained == 0
    assert report.parked > 0


async def test_only_the_chosen_queues_are_asked(pair: MemoryPair) -> None:
    await make_backlog(pair)
    async with pair.unpaired_client(secondary=True) as client:
        for queue in BACKLOG[:4]:
            async with client.get_queue_sender(queue) as sender:
                await sender.send_messages(ServiceBusMessage(queue, application_properties={"x-ms-path": QUEUE}))
    async with Run(pair, queue=(0, 3)) as run:
        await clock.sleep(5.0)
        status = run.worker.syphon_status()
        assert status is not None
        assert [queue.queue for queue in status.queues] == [BACKLOG[0], BACKLOG[3]]
    assert sorted(texts(await taken(pair))) == [BACKLOG[0], BACKLOG[3]]


async def test_queues_for_sessions_are_drained_where_asked_for(pair: MemoryPair) -> None:
    await make_backlog(pair, *range(9), ordering="session")
    async with Run(pair, sessions=True, queue=tuple(range(10))) as run:
        await clock.sleep(5.0)
        assert run.reasons == []
        status = run.worker.syphon_status()
        assert status is not None
        assert [queue.queue for queue in status.queues] == BACKLOG + SESSION_BACKLOG
        assert (await run.ended()).drained == 9


async def test_missing_queues_are_made_where_asked_for(pair: MemoryPair) -> None:
    async with Run(pair, provision=True) as run:
        await clock.sleep(5.0)
        assert run.reasons == []
    assert await diverted(pair) == []


# -- the start ---------------------------------------------------------------------------------------------------------


async def test_a_secondary_that_is_down_at_the_start_is_waited_for(pair: MemoryPair) -> None:
    await make_backlog(pair, 1)
    fault = pair.secondary.inject(Fault(FaultKind.DOWN))
    async with Run(pair) as run:
        await clock.sleep(3600.0)
        assert run.state == "starting"
        first, second = run.reasons
        assert first == "the worker is starting"
        assert second.startswith("the secondary memory://contoso-backup has been unreachable for 3600 s: ")
        pair.secondary.heal(fault)
        await clock.sleep(31.0)
        assert run.reasons == []
        assert (await run.ended()).drained == 1


def state_of(instrument: metrics.Instrument, label: str) -> dict[Any, float]:
    return {dict(attributes).get(label): value for attributes, value in metrics.states(instrument)}


async def test_readiness_and_reachability_are_measured(pair: MemoryPair) -> None:
    await make_backlog(pair, 1)
    async with Run(pair, http_port=0) as run:
        await clock.sleep(5.0)
        assert state_of(metrics.WORKER_READY, metrics.REASON) == {"": 1}
        assert state_of(metrics.NAMESPACE_REACHABLE, metrics.SIDE) == {"primary": 1, "secondary": 1}
        pair.primary.inject(Fault(FaultKind.DOWN))
        await clock.sleep(200.0)
        assert state_of(metrics.WORKER_READY, metrics.REASON)["primary_unreachable"] == 0
        assert state_of(metrics.NAMESPACE_REACHABLE, metrics.SIDE) == {"primary": 0, "secondary": 1}
        assert state_of(metrics.WORKER_PAUSED, "") == {None: 0}
        run.worker.pause()
        assert state_of(metrics.WORKER_READY, metrics.REASON)["paused"] == 0
        assert state_of(metrics.WORKER_PAUSED, "") == {None: 1}
    assert state_of(metrics.WORKER_READY, metrics.REASON) == {}


async def test_a_primary_that_is_down_at_the_start_is_no_reason_to_wait(pair: MemoryPair) -> None:
    await make_backlog(pair, 1)
    fault = pair.primary.inject(Fault(FaultKind.DOWN))
    async with Run(pair, http_port=0) as run:
        await clock.sleep(100.0)
        assert run.state == "running"
        reasons = run.reasons
        assert reasons[0].startswith("the primary memory://contoso has been unreachable for 100 s")
        assert reasons[1].startswith("every destination that was tried refuses messages: orders (")
        pair.primary.heal(fault)
        await clock.sleep(100.0)
        assert run.reasons == []
        assert (await run.ended()).drained == 1


@pytest.mark.parametrize(
    ("chosen", "waits_s"), [({"start_timeout": 0.0}, 0), ({"start_timeout": 40.0}, 40), ({"until": "empty"}, 60)]
)
async def test_the_wait_at_the_start_can_be_bounded(pair: MemoryPair, chosen: dict[str, Any], waits_s: float) -> None:
    await make_backlog(pair)
    pair.secondary.inject(Fault(FaultKind.DOWN))
    run = Run(pair, **chosen)
    with pytest.raises(ServiceBusConnectionError):
        await run.ended(None)
    assert clock.monotonic() == pytest.approx(waits_s, abs=0.1)


@pytest.mark.parametrize("is_secondary_down", [True, False])
async def test_a_stop_during_the_start_ends_it_at_once(pair: MemoryPair, is_secondary_down: bool) -> None:
    await make_backlog(pair, 1)
    pair.secondary.inject(Fault(FaultKind.DOWN if is_secondary_down else FaultKind.HANG))
    async with Run(pair) as run:
        await clock.sleep(3.3)
        assert await run.ended() == SyphonReport()
        assert not run.worker.is_late
    assert clock.monotonic() == pytest.approx(3.3, abs=0.1)
    pair.secondary.heal()
    assert len(await diverted(pair)) == 1


async def test_a_credential_for_some_entities_only_needs_one_of_them_named(pair: MemoryPair) -> None:
    await make_backlog(pair, 1)
    pair.primary.inject(Fault(FaultKind.ERROR, error=ServiceBusAuthorizationError, entity_path=MISSING_ENTITY))
    with pytest.raises(ServiceBusAuthorizationError) as caught:
        await Run(pair, until="empty").ended(None)
    assert "probe_entity" in caught.value.message
    assert (await Run(pair, until="empty", probe_entity=QUEUE).ended(None)).drained == 1


@pytest.mark.parametrize("chosen", [{}, {"until": "empty"}, {"primary_name": "fabrikam"}, {"queue": (0, 5)}])
async def test_queues_that_do_not_exist_end_the_start(pair: MemoryPair, chosen: dict[str, Any]) -> None:
    if "queue" in chosen:
        await make_backlog(pair, backlog_queue_count=3)
    run = Run(pair, **chosen)
    with pytest.raises(MessagingEntityNotFoundError) as caught:
        await run.ended(None)
    assert "primary_name" in caught.value.message


async def test_some_queues_that_do_not_exist_are_reported_and_delay_no_other(pair: MemoryPair) -> None:
    await make_backlog(pair, *range(5), backlog_queue_count=3)
    async with Run(pair, backlog_queue_count=5) as run:
        await clock.sleep(5.0)
        assert run.worker.missing_queues == BACKLOG[3:5]
        assert run.worker.report().drained == 5


async def test_a_start_that_is_repeated_reports_only_what_is_missing_now(pair: MemoryPair) -> None:
    await make_backlog(pair, *range(5), backlog_queue_count=3)
    rejected = pair.primary.inject(Fault(FaultKind.ERROR, error=ServiceBusAuthenticationError))
    text = "Endpoint=sb://contoso.servicebus.windows.net/;CredentialFile=/key"
    async with Run(pair, backlog_queue_count=5, primary=text) as run:
        await clock.sleep(100.0)
        assert (run.state, run.worker.missing_queues) == ("starting", BACKLOG[3:5])
        await make_backlog(pair, backlog_queue_count=4)
        await clock.sleep(31.0)
        assert run.worker.missing_queues == BACKLOG[4:5]
        pair.primary.heal(rejected)
        await clock.sleep(31.0)
        assert (run.state, run.worker.missing_queues) == ("running", BACKLOG[4:5])
        assert run.worker.report().drained == 5


@pytest.mark.parametrize("seed", range(20))
async def test_each_attempt_to_start_is_judged_by_the_namespace_at_which_it_failed(pair: MemoryPair, seed: int) -> None:
    await make_backlog(pair, 1)
    random = Random(seed)
    text = "Endpoint=sb://contoso.servicebus.windows.net/;CredentialFile=/key"
    in_files = random.choice([["primary"], ["secondary"], ["primary", "secondary"]])
    chosen: dict[str, Any] = dict.fromkeys(in_files, text)
    async with Run(pair, **chosen) as run:
        for _ in range(8):
            down, rejected = Fault(FaultKind.DOWN), Fault(FaultKind.ERROR, error=ServiceBusAuthenticationError)
            side, fault = random.choice([("secondary", down), ("secondary", rejected), ("primary", rejected)])
            for namespace in (pair.primary, pair.secondary):
                namespace.heal()
            getattr(pair, side).inject(fault)
            await clock.sleep(31.0)
            if fault is rejected and side not in in_files:
                with pytest.raises(ServiceBusAuthenticationError):
                    await run.ended(None)
                return
            kind = "ServiceBusConnectionError" if fault is down else "ServiceBusAuthenticationError"
            assert (run.state, run.worker.line()) == ("starting", f"waits for the {side}: {kind}")


async def test_unreadable_queue_at_the_start_delays_no_other(pair: MemoryPair) -> None:
    await make_backlog(pair, *range(5), backlog_queue_count=3)
    pair.secondary.inject(Fault(FaultKind.DOWN, entity_path=BACKLOG[0]))
    async with Run(pair, backlog_queue_count=3) as run:
        await clock.sleep(100.0)
        assert run.state == "running"
        (reason,) = run.reasons
        assert reason.startswith(f"backlog queues are unavailable: {BACKLOG[0]} (")


# -- outages -----------------------------------------------------------------------------------------------------------


async def test_unavailable_secondary_is_reported_and_used_after_recovery(pair: MemoryPair) -> None:
    await make_backlog(pair, 1)
    async with Run(pair, http_port=0, long_poll=timedelta(seconds=30)) as run:
        await clock.sleep(100.0)
        assert run.reasons == []
        fault = pair.secondary.inject(Fault(FaultKind.DOWN))
        await clock.sleep(200.0)
        assert any("the secondary memory://contoso-backup" in reason for reason in run.reasons)
        pair.secondary.heal(fault)
        await clock.sleep(70.0)
        assert run.reasons == []


async def test_an_idle_worker_notices_an_outage_of_either_namespace_by_asking(pair: MemoryPair) -> None:
    await make_backlog(pair)
    async with Run(pair, http_port=0, probe_interval=30.0) as run:
        for side in ("primary", "secondary"):
            await clock.sleep(100.0)
            assert run.reasons == []
            namespace = getattr(pair, side)
            fault = namespace.inject(Fault(FaultKind.DOWN))
            await clock.sleep(35.0)
            assert any(f"the {side} memory://" in reason for reason in run.reasons)
            namespace.heal(fault)


async def test_the_named_entity_is_probed_and_what_was_found_is_that_of_now(pair: MemoryPair) -> None:
    await make_backlog(pair, *range(5))
    await make_queue(pair, "probed")
    async with Run(pair, http_port=0, probe_interval=30.0, probe_entity="probed") as run:

        def is_named() -> bool:
            return any("probed" in finding.text for finding in run.worker.findings())

        await clock.sleep(100.0)
        assert run.worker.report().drained == 5  # the last destination is another one
        for _ in range(2):
            failing = pair.primary.inject(Fault(FaultKind.ERROR, "probed", error=ServiceBusQuotaExceededError))
            await clock.sleep(60.0)
            assert (run.reasons, is_named()) == ([], True)
            down = pair.primary.inject(Fault(FaultKind.DOWN))
            pair.primary.heal(failing)
            await clock.sleep(60.0)
            assert (len(run.reasons), is_named()) == (1, False)
            pair.primary.heal(down)
            await clock.sleep(60.0)
            assert (run.reasons, is_named()) == ([], False)


@pytest.mark.parametrize("side", ["primary", "secondary"])
async def test_renewed_credentials_are_checked_at_once(pair: MemoryPair, side: str) -> None:
    await make_backlog(pair)
    async with Run(pair) as run:
        run.worker.renew_credentials()  # at the start it checks nothing
        await clock.sleep(1.0)
        assert run.reasons == []
        namespace = getattr(pair, side)
        fault = namespace.inject(Fault(FaultKind.ERROR, error=ServiceBusAuthenticationError))
        run.worker.renew_credentials()
        await clock.sleep(1.0)
        reason = run.reasons[0]
        assert reason.startswith(f"the {side} memory://")
        assert "has rejected the credential" in reason
        namespace.heal(fault)
        run.worker.renew_credentials()
        await clock.sleep(1.0)
        assert not any("rejected" in reason for reason in run.reasons)


async def test_renewed_credentials_are_tried_at_once_at_the_start(pair: MemoryPair) -> None:
    await make_backlog(pair, 1)
    fault = pair.secondary.inject(Fault(FaultKind.DOWN))
    async with Run(pair) as run:
        for _ in range(3):
            run.worker.renew_credentials()
            await clock.sleep(200.0)
            assert run.state == "starting"
        pair.secondary.heal(fault)
        run.worker.renew_credentials()
        await clock.sleep(0.5)
        assert run.state == "running"


async def test_without_a_port_no_namespace_is_probed(pair: MemoryPair) -> None:
    await make_backlog(pair)
    async with Run(pair):
        await clock.sleep(10.0)
        primary, secondary = pair.primary.namespace.operation_count, pair.secondary.namespace.operation_count
        await clock.sleep(24 * 3600.0)
    assert pair.primary.namespace.operation_count == primary
    assert pair.secondary.namespace.operation_count - secondary <= 3 * 10 * 24 * 4 + 30


async def test_cost_of_polling_is_bounded(pair: MemoryPair) -> None:
    await make_backlog(pair)
    async with Run(pair, http_port=0):
        await clock.sleep(10.0)
        before = pair.primary.namespace.operation_count
        await clock.sleep(3600.0)
        assert pair.primary.namespace.operation_count - before <= 61


async def test_until_empty_fails_when_the_secondary_becomes_unavailable(pair: MemoryPair) -> None:
    await make_backlog(pair, *range(50))
    run = Run(pair, until="empty", max_messages_per_second=5.0)
    await clock.sleep(3.0)
    pair.secondary.inject(Fault(FaultKind.DOWN))
    with pytest.raises(ServiceBusConnectionError) as caught:
        await run.ended(None)
    assert "may not be empty" in caught.value.message
    assert 60.0 <= clock.monotonic() <= 200.0


async def test_until_empty_a_short_outage_of_the_secondary_is_waited_out(pair: MemoryPair) -> None:
    await make_backlog(pair, *range(50))
    async with Run(pair, until="empty", max_messages_per_second=5.0) as run:
        await clock.sleep(3.0)
        fault = pair.secondary.inject(Fault(FaultKind.DOWN))
        await clock.sleep(30.0)
        pair.secondary.heal(fault)
        await run.ended(None)
    assert set(texts(await taken(pair))) == set(expected(*range(50)))
    assert await diverted(pair) == []


async def test_until_empty_goes_on_while_other_queues_give_messages(pair: MemoryPair) -> None:
    await make_backlog(pair, *range(100))
    (full,) = await waiting(pair)
    silent = next(queue for queue in BACKLOG if queue != full)
    fault = pair.secondary.inject(Fault(FaultKind.DOWN, silent, operations=[Operation.RECEIVE]))
    async with Run(pair, until="empty", max_messages_per_second=1.0) as run:
        await clock.sleep(90.0)
        pair.secondary.heal(fault)
        assert (await run.ended(None)).drained == 100


async def test_an_unexpected_exception_is_logged_and_the_syphon_restarted(
    pair: MemoryPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    await make_backlog(pair, 1)
    keep_locks, failures = queue_source.QueueSource.keep_locks, iter([True])

    async def broken(self: queue_source.QueueSource) -> None:
        if next(failures, False):
            raise ZeroDivisionError
        await keep_locks(self)

    monkeypatch.setattr(queue_source.QueueSource, "keep_locks", broken)
    async with Run(pair) as run:
        await clock.sleep(5.0)
        assert run.reasons[0] == "the worker is starting"
        await clock.sleep(20.0)
        assert run.reasons == []
        assert (await run.ended()).drained == 1


async def test_until_empty_an_unexpected_exception_ends_the_run(
    pair: MemoryPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    await make_backlog(pair, 1)

    async def broken(_: queue_source.QueueSource) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(queue_source.QueueSource, "keep_locks", broken)
    with pytest.raises(ZeroDivisionError):
        async with clock.timeout(60.0):
            await Run(pair, until="empty").ended(None)


# -- pause, resume and the end -----------------------------------------------------------------------------------------


async def test_while_paused_nothing_is_moved_and_nothing_is_kept(pair: MemoryPair) -> None:
    await make_backlog(pair, *range(30))
    pair.primary.inject(Fault(FaultKind.SLOW, operations=[Operation.SEND], latency_s=2.0))
    async with Run(pair) as run:
        await clock.sleep(1.0)
        assert run.worker.pause()
        assert run.worker.pause()
        await clock.sleep(5.0)
        assert run.state == "paused"
        assert run.reasons == ["the worker is paused"]
        drained = run.worker.report().drained
        assert 0 < drained < 30
        await clock.sleep(1000.0)
        assert run.worker.report().drained == drained
        pair.primary.heal()
        assert run.worker.resume()
        assert run.worker.resume()
        await clock.sleep(5.0)
        assert run.state == "running"
        assert (await run.ended()).drained == 30
    assert sorted(texts(await taken(pair))) == expected(*range(30))
    assert set(Counter(texts(await diverted(pair))).values()) <= {1}


async def test_accepted_messages_are_remembered_over_a_pause(pair: MemoryPair) -> None:
    await make_backlog(pair, *range(5))
    pair.secondary.inject(Fault(FaultKind.ERROR, operations=[Operation.SETTLE]))
    async with Run(pair) as run:
        await clock.sleep(1.0)
        run.worker.pause()
        await clock.sleep(1.0)
        pair.secondary.heal()
        run.worker.resume()
        await clock.sleep(120.0)
    assert sorted(texts(await taken(pair))) == expected(*range(5))
    assert await diverted(pair) == []


async def test_worker_can_be_paused_before_its_start(pair: MemoryPair) -> None:
    await make_backlog(pair, 1)
    async with Run(pair) as run:
        assert run.worker.pause()
        await clock.sleep(100.0)
        assert run.worker.report().drained == 0
        run.worker.resume()
        await clock.sleep(1.0)
        assert run.worker.report().drained == 1


async def test_paused_worker_can_be_stopped(pair: MemoryPair) -> None:
    await make_backlog(pair, 1)
    async with Run(pair) as run:
        run.worker.pause()
        await clock.sleep(1.0)
        assert (await run.ended()).drained in (0, 1)
        assert run.state == "stopping"
        assert not run.worker.resume()


async def test_credentials_are_not_renewed_by_a_worker_that_has_stopped(pair: MemoryPair) -> None:
    await make_backlog(pair)
    async with Run(pair) as run:
        await run.ended()
        run.worker.renew_credentials()  # SIGHUP may come at any time


async def test_stop_finishes_transfers_in_flight_and_releases_the_rest(pair: MemoryPair) -> None:
    await make_backlog(pair, *range(300), backlog_queue_count=1)
    pair.primary.inject(Fault(FaultKind.SLOW, operations=[Operation.SEND], latency_s=10.0))
    async with Run(pair, backlog_queue_count=1) as run:
        await clock.sleep(1.0)
        report = await run.ended()
        assert not run.worker.is_late
    assert 0 < report.drained < 100
    assert 10.0 <= clock.monotonic() <= 12.0
    pair.primary.heal()
    left = await diverted(pair)
    assert len(left) == 300 - report.drained
    assert {message.locked_until_utc for message in left} == {None}
    assert len(await taken(pair)) == report.drained


async def test_stop_ends_in_time_despite_hanging_calls(pair: MemoryPair) -> None:
    await make_backlog(pair, *range(100))
    pair.primary.inject(Fault(FaultKind.HANG, operations=[Operation.SEND]))
    async with Run(pair, shutdown_timeout=4.0) as run:
        await clock.sleep(3.0)
        pair.secondary.inject(Fault(FaultKind.HANG))
        await run.ended()
        assert run.worker.is_late
        assert clock.monotonic() == pytest.approx(7.0, abs=0.1)
        pair.primary.heal()
        pair.secondary.heal()
        await clock.sleep(120.0)
    async with Run(pair) as run:
        await clock.sleep(120.0)
    assert set(texts(await taken(pair))) == set(expected(*range(100)))


async def test_dead_letters_are_counted_over_pauses(pair: MemoryPair) -> None:
    await make_backlog(pair)
    async with pair.unpaired_client(secondary=True) as other, Run(pair) as run:
        for _ in range(2):
            async with other.get_queue_sender(BACKLOG[0]) as sender:
                await sender.send_messages(ServiceBusMessage("lost"))
            await clock.sleep(1.0)
            run.worker.pause()
            await clock.sleep(1.0)
            run.worker.resume()
            await clock.sleep(1.0)
        assert run.worker.report().dead_lettered == {"DestinationMissing": 2}


# -- the service manager -----------------------------------------------------------------------------------------------


async def test_the_service_manager_hears_of_start_life_and_end(pair: MemoryPair, listener: Listener) -> None:
    await make_backlog(pair, *range(5))
    environment = {"NOTIFY_SOCKET": listener.path, "WATCHDOG_USEC": "20000000"}
    async with Run(pair, environment=environment) as run:
        await clock.sleep(25.0)
        first, *beats = listener.heard()
        assert first == {"READY": "1", "STATUS": "starting, drained 0, parked 0"}
        assert [beat["WATCHDOG"] for beat in beats] == ["1", "1", "1"]
        assert beats[-1]["STATUS"] == "running, drained 5, parked 0"
        await run.ended()
    assert listener.heard() == [{"STOPPING": "1", "STATUS": "stopping, drained 5, parked 0"}]


async def test_readiness_is_notified_while_the_secondary_is_down(pair: MemoryPair, listener: Listener) -> None:
    await make_backlog(pair)
    pair.secondary.inject(Fault(FaultKind.DOWN))
    environment = {"NOTIFY_SOCKET": listener.path, "WATCHDOG_USEC": "20000000"}
    async with Run(pair, environment=environment):
        await clock.sleep(25.0)
        heard = listener.heard()
    assert heard[0]["READY"] == "1"
    assert heard[-1]["STATUS"] == "waits for the secondary: ServiceBusConnectionError"


# -- what it measures --------------------------------------------------------------------------------------------------


async def test_dead_letters_and_session_queues_are_measured_too(
    pair: MemoryPair, metric_reader: InMemoryMetricReader
) -> None:
    await make_queue(pair, "visits", requires_session=True)
    await make_backlog(pair, 1, 2, queue="visits", ordering="session")
    async with pair.unpaired_client(secondary=True) as client, client.get_queue_sender(BACKLOG[0]) as sender:
        await sender.send_messages(ServiceBusMessage("it does not say where it belongs"))
    pair.primary.inject(Fault(FaultKind.DOWN))
    async with Run(pair, sessions=True, http_port=0, survey_interval=60.0):
        await clock.sleep(70.0)
        counts = values(metric_reader, metrics.BACKLOG_DEPTH, metrics.DESTINATION, metrics.STATE)
        times = values(metric_reader, metrics.BACKLOG_AGE, metrics.DESTINATION)
    depths = {where: count for where, count in counts.items() if count}
    ages = {queue: age for queue, age in times.items() if age}
    assert depths.pop((BACKLOG[0], "dead_lettered")) == 1
    assert {queue for queue, _ in depths} <= set(SESSION_BACKLOG)
    assert sum(depths.values()) == 2
    assert ages.keys() == {queue for queue, _ in depths}
    assert all(60.0 <= age <= 80.0 for age in ages.values())


@pytest.mark.usefixtures("metric_reader")
async def test_cost_of_a_quiet_day_matches_the_documentation(pair: MemoryPair) -> None:
    """Of operations on ten empty backlog queues: receives, surveys, and the first look of the syphon."""
    link = type(pair.client().pair.state.secondary.open_receiver(BACKLOG[0]))

    async def day(**chosen: Any) -> Counter[str]:
        calls: Counter[str] = Counter()

        def counting(name: str) -> Any:
            method = getattr(link, name)

            async def counted(self: Any, *args: Any, **kwargs: Any) -> Any:
                calls[name] += 1
                return await method(self, *args, **kwargs)

            return counted

        with pytest.MonkeyPatch.context() as patch:
            for name in ("receive", "peek"):
                patch.setattr(link, name, counting(name))
            async with Run(pair, **chosen):
                await clock.sleep(86_400.0 - 1.0)
        return calls

    await make_backlog(pair)
    alone, served = await day(), await day(http_port=0)
    cost = PAGE.partition("## Cost")[2].partition("\n## ")[0]
    for number in (alone["receive"], alone["peek"], served["peek"] - alone["peek"]):
        assert f" {number:,} " in cost
