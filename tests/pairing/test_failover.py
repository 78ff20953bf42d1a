"""Failover and recovery of an entity during an outage, as a caller observes it."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from sbclient import clock
from sbclient.broker.faults import Operation
from sbclient.client.client import ServiceBusClient
from sbclient.client.sender import ServiceBusSender
from sbclient.errors import (
    BacklogUnavailableError,
    InvalidOperationError,
    MessagingEntityDisabledError,
    MessagingEntityNotFoundError,
    OperationTimeoutError,
    ScheduleUnavailableError,
    ServiceBusAuthorizationError,
    ServiceBusConnectionError,
    ServiceBusError,
    ServiceBusInternalError,
    ServiceBusQuotaExceededError,
    ServiceBusServerBusyError,
)
from sbclient.message import ServiceBusMessage
from sbclient.options import PairedNamespaceOptions
from sbclient.rules.failover import FailoverState, PingKeys
from sbclient.rules.partition_key import fragment_of
from sbclient.testing import Fault, FaultKind, MemoryPair
from tests.client.scene import AT_ONCE, BACKLOG, QUEUE, diverted, make_queue, options, taken, texts, until

HEALTHY, SUSPECT, FAILED_OVER = FailoverState.HEALTHY, FailoverState.SUSPECT, FailoverState.FAILED_OVER


def state(client: ServiceBusClient, path: str = QUEUE) -> FailoverState:
    return client.pair.status().entities[path].state


def names(client: ServiceBusClient) -> list[str]:
    return [event.name for event in client.pair.events()]


async def fail(sender: ServiceBusSender, error: type[ServiceBusError] = ServiceBusConnectionError, **keys: str) -> None:
    with pytest.raises(error):
        await sender.send_messages(ServiceBusMessage("failed", **keys))  # type: ignore[arg-type]  # names of attributes


# -- the course of an outage -------------------------------------------------------------------------------------------


async def test_sends_are_diverted_during_an_outage_and_forwarded_after_it(
    pair: MemoryPair, client: ServiceBusClient
) -> None:
    async with client.get_queue_sender(QUEUE) as sender:
        await sender.send_messages(ServiceBusMessage("before"))
        pair.primary.inject(Fault(FaultKind.DOWN))
        await fail(sender)
        armed_at = clock.monotonic()
        assert state(client) is SUSPECT
        await clock.sleep(30.0)
        await fail(sender)
        await until(lambda: state(client) is FAILED_OVER, at_most_s=60.0)
        assert clock.monotonic() == pytest.approx(armed_at + 60.0, abs=0.3)
        await sender.send_messages(ServiceBusMessage("during"))
        assert texts(await diverted(pair)) == ["during"]
        pair.primary.heal()
        await until(lambda: state(client) is HEALTHY, at_most_s=66.0)
        await sender.send_messages(ServiceBusMessage("after"))
        assert (await client.run_syphon(until="empty")).drained == 1
    assert texts(await taken(pair)) == ["before", "after", "during"]
    suspected, engaged, recovered = client.pair.events()
    assert names(client) == ["failover.suspected", "failover.engaged", "failover.recovered"]
    for event in (suspected, engaged, recovered):
        assert event.facts["namespace"] == "memory://contoso"
        assert event.facts["error"] == "ServiceBusConnectionError"
    assert engaged.facts["seconds"] == pytest.approx(60.0, abs=0.3)
    assert recovered.facts["diverted"] == 1
    assert recovered.facts["seconds"] == pytest.approx((recovered.at_utc - suspected.at_utc).total_seconds(), abs=0.1)


async def test_send_to_a_failed_over_entity_does_not_wait(pair: MemoryPair, client: ServiceBusClient) -> None:
    pair.primary.inject(Fault(FaultKind.HANG))
    client.pair.mark_unhealthy(QUEUE)
    async with client.get_queue_sender(QUEUE) as sender:
        for number in range(100):
            await sender.send_messages(ServiceBusMessage(str(number)))
    assert clock.monotonic() == 0.0
    assert len(await diverted(pair)) == 100
    assert client.pair.status().entities[QUEUE].diverted == 100


async def test_a_later_failure_does_not_move_the_deadline(pair: MemoryPair, client: ServiceBusClient) -> None:
    pair.primary.inject(Fault(FaultKind.DOWN))
    async with client.get_queue_sender(QUEUE) as sender:
        await fail(sender)
        armed_at = clock.monotonic()
        while clock.monotonic() < armed_at + 50.0:
            await fail(sender)
        await until(lambda: state(client) is FAILED_OVER, at_most_s=20.0)
    assert clock.monotonic() == pytest.approx(armed_at + 60.0, abs=1.0)


async def test_a_success_cancels_the_failover_deadline(pair: MemoryPair, client: ServiceBusClient) -> None:
    async with client.get_queue_sender(QUEUE) as failing, client.get_queue_sender(QUEUE) as other:
        pair.primary.inject(Fault(FaultKind.DOWN))
        await fail(failing)
        pair.primary.heal()
        await clock.sleep(50.0)
        await other.send_messages(ServiceBusMessage("a"))
        assert state(client) is HEALTHY
        await clock.sleep(120.0)
    assert names(client) == ["failover.suspected", "failover.cleared"]


async def test_only_the_affected_entity_fails_over(pair: MemoryPair, client: ServiceBusClient) -> None:
    await make_queue(pair, "bills")
    pair.primary.inject(Fault(FaultKind.DOWN, entity_path=QUEUE))
    async with client.get_queue_sender(QUEUE) as orders, client.get_queue_sender("bills") as bills:
        await fail(orders, ServiceBusInternalError)
        await clock.sleep(61.0)
        await orders.send_messages(ServiceBusMessage("order"))
        await bills.send_messages(ServiceBusMessage("bill"))
    assert (state(client), state(client, "bills")) == (FAILED_OVER, HEALTHY)
    assert texts(await diverted(pair)) == ["order"]
    assert texts(await taken(pair, "bills")) == ["bill"]


async def test_all_senders_of_a_client_share_the_state_regardless_of_case(
    pair: MemoryPair, client: ServiceBusClient
) -> None:
    client.pair.mark_unhealthy(QUEUE)
    async with client.get_queue_sender(QUEUE.upper()) as sender:
        await sender.send_messages(ServiceBusMessage("a"))
    assert len(client.pair.status().entities) == 1
    assert len(await diverted(pair)) == 1


async def test_each_client_fails_over_on_its_own(pair: MemoryPair, client: ServiceBusClient) -> None:
    client.pair.mark_unhealthy(QUEUE)
    async with pair.client() as other, other.get_queue_sender(QUEUE) as sender:
        await sender.send_messages(ServiceBusMessage("a"))
    assert texts(await taken(pair)) == ["a"]


# -- the interval ------------------------------------------------------------------------------------------------------


async def test_an_interval_of_0_diverts_the_failed_send(pair: MemoryPair) -> None:
    pair.primary.inject(Fault(FaultKind.DOWN))
    async with pair.client(AT_ONCE) as client, client.get_queue_sender(QUEUE) as sender:
        await sender.send_messages(ServiceBusMessage("a"))
        assert state(client) is FAILED_OVER
        assert clock.monotonic() == 0.0
    assert texts(await diverted(pair)) == ["a"]


async def test_an_interval_of_0_reopens_a_stale_link_once(pair: MemoryPair) -> None:
    async with pair.client(AT_ONCE) as client, client.get_queue_sender(QUEUE) as sender:
        await sender.send_messages(ServiceBusMessage("1"))
        pair.primary.inject(Fault(FaultKind.DOWN, count=1))
        await sender.send_messages(ServiceBusMessage("2"))
        assert client.pair.events() == []
        assert clock.monotonic() == 0.0
        pair.primary.inject(Fault(FaultKind.DOWN, count=2))
        await sender.send_messages(ServiceBusMessage("3"))
        assert names(client)[0] == "failover.engaged"
    assert texts(await taken(pair)) == ["1", "2"]
    assert texts(await diverted(pair)) == ["3"]


async def test_an_interval_of_0_does_not_reopen_a_link_that_was_never_open(pair: MemoryPair) -> None:
    async with pair.client(AT_ONCE) as client, client.get_queue_sender(QUEUE) as sender:
        pair.primary.inject(Fault(FaultKind.DOWN, count=1, operations=[Operation.OPEN]))
        await sender.send_messages(ServiceBusMessage("1"))
        assert client.pair.status().entities[QUEUE].diverted == 1


async def test_a_stale_link_is_not_reopened_after_the_timeout(pair: MemoryPair) -> None:
    async with pair.client(AT_ONCE) as client, client.get_queue_sender(QUEUE) as sender:
        await sender.send_messages(ServiceBusMessage("1"))
        slow = Fault(FaultKind.SLOW, latency_s=100.0, operations=[Operation.SEND])
        pair.primary.inject(slow)
        pair.primary.inject(Fault(FaultKind.ERROR, error=ServiceBusConnectionError, operations=[Operation.SEND]))
        await sender.send_messages(ServiceBusMessage("2"), timeout=20.0)
    assert clock.monotonic() <= 20.0
    assert texts(await diverted(pair)) == ["2"]


async def test_failover_interrupts_the_back_off_of_a_send(pair: MemoryPair) -> None:
    pair.primary.inject(Fault(FaultKind.DOWN))
    async with (
        pair.client(options(failover_interval=2), retry_total=100, retry_backoff_factor=8.0) as client,
        client.get_queue_sender(QUEUE) as sender,
    ):
        other = client.get_queue_sender(QUEUE)
        waits = asyncio.ensure_future(other.send_messages(ServiceBusMessage("patient")))
        await clock.sleep(1.0)
        with pytest.raises(ServiceBusConnectionError):
            await sender.send_messages(ServiceBusMessage("hasty"), timeout=1.0)
        await waits
        assert clock.monotonic() == pytest.approx(3.0)
        await other.close()
    assert texts(await diverted(pair)) == ["patient"]


async def test_a_send_in_doubt_stays_in_doubt_when_a_failover_interrupts_it_and_no_backlog_queue_answers(
    pair: MemoryPair,
) -> None:
    pair.primary.inject(Fault(FaultKind.LOSE_ACKNOWLEDGEMENT, operations=[Operation.SEND]))
    async with (
        pair.client(options(failover_interval=60), retry_total=100, retry_backoff_factor=30.0) as client,
        client.get_queue_sender(QUEUE) as sender,
    ):
        sending = asyncio.ensure_future(sender.send_messages(ServiceBusMessage("1"), timeout=120.0))
        await clock.sleep(25.0)  # the first attempt ends after 20 s, and the pause lasts for 15 s at least
        pair.secondary.inject(Fault(FaultKind.ERROR, error=ServiceBusQuotaExceededError))
        client.pair.mark_unhealthy(QUEUE)
        with pytest.raises(BacklogUnavailableError) as caught:
            await sending
    assert caught.value.is_in_doubt
    assert texts(await taken(pair)) == ["1"]


async def test_a_send_whose_last_attempt_ends_after_the_failover_is_diverted(
    pair: MemoryPair, client: ServiceBusClient
) -> None:
    pair.primary.inject(Fault(FaultKind.HANG))
    async with client.get_queue_sender(QUEUE) as sender:
        send = asyncio.ensure_future(sender.send_messages(ServiceBusMessage("a")))
        await clock.sleep(44.0)
        client.pair.mark_unhealthy(QUEUE)
        await send
    assert texts(await diverted(pair)) == ["a"]


@pytest.mark.parametrize("interval_s", [60, 3600])
async def test_an_entity_fails_over_after_the_interval_without_another_send(pair: MemoryPair, interval_s: int) -> None:
    pair.primary.inject(Fault(FaultKind.DOWN))
    async with pair.client(options(failover_interval=interval_s)) as client:
        async with client.get_queue_sender(QUEUE) as sender:
            await fail(sender)
        await clock.sleep(interval_s - 1.0)
        assert state(client) is SUSPECT
        await clock.sleep(2.0)
        assert state(client) is FAILED_OVER


@pytest.mark.deviation("pairing.suspect-sends")
async def test_divert_while_suspect_diverts_failed_sends(pair: MemoryPair) -> None:
    pair.primary.inject(Fault(FaultKind.DOWN))
    async with (
        pair.client(options(divert_while_suspect=True)) as client,
        client.get_queue_sender(QUEUE) as sender,
    ):
        await sender.send_messages(ServiceBusMessage("a"))
        assert state(client) is SUSPECT
        pair.primary.heal()
        await sender.send_messages(ServiceBusMessage("b"))
        assert state(client) is HEALTHY
    assert texts(await diverted(pair)) == ["a"]
    assert texts(await taken(pair)) == ["b"]


# -- which errors ------------------------------------------------------------------------------------------------------


@pytest.mark.deviation("pairing.suspect-sends")
@pytest.mark.parametrize(
    "error",
    [
        OperationTimeoutError,
        ServiceBusConnectionError,
        ServiceBusQuotaExceededError,
        ServiceBusServerBusyError,
    ],
)
async def test_outage_errors_start_the_failover_deadline(
    pair: MemoryPair, client: ServiceBusClient, error: type[ServiceBusError]
) -> None:
    pair.primary.inject(Fault(FaultKind.ERROR, error=error))
    async with client.get_queue_sender(QUEUE) as sender:
        await fail(sender, error)
    assert state(client) is SUSPECT
    assert client.pair.events()[0].facts["error"] == error.__name__


@pytest.mark.parametrize("error", [InvalidOperationError, MessagingEntityNotFoundError])
async def test_other_errors_do_not_start_the_failover_deadline(pair: MemoryPair, error: type[ServiceBusError]) -> None:
    pair.primary.inject(Fault(FaultKind.ERROR, error=error))
    async with pair.client(AT_ONCE) as client, client.get_queue_sender(QUEUE) as sender:
        await fail(sender, error)
        assert state(client) is HEALTHY
    assert await diverted(pair) == []


async def test_every_answer_of_the_primary_proves_that_it_was_reached(pair: MemoryPair) -> None:
    proofs: dict[type[ServiceBusError], bool] = {
        ServiceBusConnectionError: False,
        OperationTimeoutError: False,
        ServiceBusServerBusyError: True,
        ServiceBusInternalError: True,
        ServiceBusQuotaExceededError: True,
        MessagingEntityDisabledError: True,
        MessagingEntityNotFoundError: True,
        InvalidOperationError: True,
    }
    for kind, is_proof in proofs.items():
        state = pair.client().pair.state
        state.entity(QUEUE).failed(kind("x"), PingKeys())
        assert state.is_primary_reached == is_proof, kind
        state.entity(QUEUE).failed(ServiceBusConnectionError("x"), PingKeys())
        assert state.is_primary_reached == is_proof, kind


async def test_a_deleted_entity_is_an_outage(pair: MemoryPair) -> None:
    async with pair.client(AT_ONCE) as client, client.get_queue_sender(QUEUE) as sender:
        await sender.send_messages(ServiceBusMessage("a"))
        await client.administration.delete_queue(QUEUE)
        await sender.send_messages(ServiceBusMessage("b"))
        assert state(client) is FAILED_OVER
    assert texts(await diverted(pair)) == ["b"]


async def test_is_outage_of_the_options_replaces_the_default(pair: MemoryPair) -> None:
    judged: list[ServiceBusError] = []

    def is_outage(error: ServiceBusError) -> bool:
        judged.append(error)
        return isinstance(error, ServiceBusAuthorizationError)

    async with (
        pair.client(PairedNamespaceOptions(failover_interval=timedelta(0), is_outage=is_outage)) as client,
        client.get_queue_sender(QUEUE) as sender,
    ):
        pair.primary.inject(Fault(FaultKind.DOWN, count=1))
        await fail(sender)
        pair.primary.inject(Fault(FaultKind.ERROR, error=ServiceBusAuthorizationError))
        await sender.send_messages(ServiceBusMessage("a"))
    assert [type(error) for error in judged] == [ServiceBusConnectionError, ServiceBusAuthorizationError]


async def test_a_cancelled_send_does_not_count_towards_failover(pair: MemoryPair, client: ServiceBusClient) -> None:
    pair.primary.inject(Fault(FaultKind.HANG))
    sender = client.get_queue_sender(QUEUE)
    send = asyncio.ensure_future(sender.send_messages(ServiceBusMessage("a")))
    await clock.sleep(10.0)
    send.cancel()
    await asyncio.wait([send])
    await sender.close()
    await clock.sleep(120.0)
    assert client.pair.events() == []


async def test_time_spent_behind_other_sends_does_not_count_towards_failover(
    pair: MemoryPair, client: ServiceBusClient
) -> None:
    pair.primary.inject(Fault(FaultKind.SLOW, latency_s=9.0, operations=[Operation.SEND]))
    async with client.get_queue_sender(QUEUE) as sender:
        pairs = (sender.send_messages([ServiceBusMessage("a"), ServiceBusMessage("b")], timeout=20) for _ in range(5))
        answers = await asyncio.gather(*pairs, return_exceptions=True)
    assert answers[0] is None
    assert all(isinstance(answer, OperationTimeoutError | None) for answer in answers)
    assert "failover.engaged" not in names(client)


@pytest.mark.parametrize(("timeout", "diverted_at"), [(4.0, 3.0), (8.0, 6.0), (16.0, 15.5), (20.0, 17.5), (60.0, 45.0)])
async def test_part_of_the_timeout_is_reserved_for_the_diversion(
    pair: MemoryPair, timeout: float, diverted_at: float
) -> None:
    pair.primary.inject(Fault(FaultKind.HANG))
    async with pair.client(AT_ONCE) as client, client.get_queue_sender(QUEUE) as sender:
        await sender.send_messages(ServiceBusMessage("a"), timeout=timeout)
        assert clock.monotonic() == pytest.approx(diverted_at)
    assert texts(await diverted(pair)) == ["a"]


# -- recovery ----------------------------------------------------------------------------------------------------------


async def test_a_success_of_a_send_begun_before_the_failover_is_ignored(
    pair: MemoryPair, client: ServiceBusClient
) -> None:
    pair.primary.inject(Fault(FaultKind.SLOW, latency_s=15.0, operations=[Operation.SEND], count=1))
    async with client.get_queue_sender(QUEUE) as sender:
        late = asyncio.ensure_future(sender.send_messages(ServiceBusMessage("late")))
        await clock.sleep(1.0)
        client.pair.force_failover(QUEUE)
        await late
        assert state(client) is FAILED_OVER


async def test_recovery_applies_to_every_sender_immediately(pair: MemoryPair, client: ServiceBusClient) -> None:
    async with client.get_queue_sender(QUEUE) as one, client.get_queue_sender(QUEUE) as other:
        client.pair.force_failover(QUEUE)
        await one.send_messages(ServiceBusMessage("1"))
        await other.send_messages(ServiceBusMessage("2"))
        client.pair.mark_healthy(QUEUE)
        await one.send_messages(ServiceBusMessage("3"))
        await other.send_messages(ServiceBusMessage("4"))
    assert sorted(texts(await diverted(pair))) == ["1", "2"]
    assert texts(await taken(pair)) == ["3", "4"]


async def test_a_flapping_primary_loses_no_message(pair: MemoryPair) -> None:
    accepted: list[str] = []
    async with (
        pair.client(options(failover_interval=3, ping_primary_interval=2)) as client,
        client.get_queue_sender(QUEUE) as sender,
    ):
        for number in range(200):
            if number % 20 == 5:
                pair.primary.inject(Fault(FaultKind.DOWN))
            if number % 20 == 15:
                pair.primary.heal()
            try:
                await sender.send_messages(ServiceBusMessage(str(number)), timeout=3.0)
            except ServiceBusConnectionError:
                pass
            else:
                accepted.append(str(number))
            await clock.sleep(1.0)
        pair.primary.heal()
        assert names(client).count("failover.engaged") >= 5
        assert await diverted(pair)
        await client.run_syphon(until="empty")
    assert sorted(texts(await taken(pair))) == sorted(accepted)


# -- both sides, and control by hand -----------------------------------------------------------------------------------


async def test_send_raises_when_both_namespaces_are_down(pair: MemoryPair) -> None:
    async with pair.client(AT_ONCE) as client, client.get_queue_sender(QUEUE) as sender:
        pair.primary.inject(Fault(FaultKind.DOWN))
        pair.secondary.inject(Fault(FaultKind.DOWN))
        with pytest.raises(BacklogUnavailableError) as caught:
            await sender.send_messages(ServiceBusMessage("secret body"))
        assert len(caught.value.causes) == 10
        assert "secret body" not in str(caught.value)
        assert clock.monotonic() <= 60.0
        pair.secondary.heal()
    pair.primary.heal()
    assert await taken(pair) == []
    assert await diverted(pair) == []


@pytest.mark.deviation("pairing.manual-control")
async def test_a_forced_failover_lasts_until_mark_healthy(pair: MemoryPair, client: ServiceBusClient) -> None:
    client.pair.force_failover(QUEUE)
    await clock.sleep(3600.0)
    assert state(client) is FAILED_OVER
    assert client.pair.status().entities[QUEUE].is_forced
    client.pair.mark_healthy(QUEUE)
    assert state(client) is HEALTHY


@pytest.mark.deviation("pairing.manual-control")
async def test_an_entity_marked_unhealthy_recovers_by_pings(pair: MemoryPair, client: ServiceBusClient) -> None:
    pair.primary.inject(Fault(FaultKind.DOWN))
    client.pair.mark_unhealthy(QUEUE)
    await clock.sleep(600.0)
    assert state(client) is FAILED_OVER
    pair.primary.heal()
    await until(lambda: state(client) is HEALTHY, at_most_s=66.0)


async def test_status_describes_the_pair(pair: MemoryPair, client: ServiceBusClient) -> None:
    await clock.sleep(5.0)
    client.pair.force_failover(QUEUE)
    status = client.pair.status()
    assert (status.primary, status.secondary) == ("memory://contoso", "memory://contoso-backup")
    assert len(status.backlog_queues) == 10
    assert status.entities[QUEUE].since_utc == datetime.fromtimestamp(1_700_000_005.0, UTC)
    assert [(event.name, event.path, event.facts) for event in client.pair.events()] == [
        (
            "failover.engaged",
            QUEUE,
            {"namespace": "memory://contoso", "reason": "forced", "error": None, "seconds": 0.0},
        )
    ]


@pytest.mark.parametrize("path", ["", "a//b", "contoso/x-servicebus-transfer/0"])
async def test_manual_failover_rejects_invalid_paths(client: ServiceBusClient, path: str) -> None:
    for control in (client.pair.force_failover, client.pair.mark_unhealthy, client.pair.mark_healthy):
        with pytest.raises(InvalidOperationError):
            control(path)


async def test_a_paired_client_rejects_sends_to_a_backlog_queue(client: ServiceBusClient) -> None:
    with pytest.raises(InvalidOperationError):
        client.get_queue_sender("contoso/x-servicebus-transfer/0")


@pytest.mark.deviation("pairing.schedules")
async def test_schedule_raises_while_failed_over(pair: MemoryPair, client: ServiceBusClient) -> None:
    due = datetime.fromtimestamp(clock.now() + 600, UTC)
    async with client.get_queue_sender(QUEUE) as sender:
        (number,) = await sender.schedule_messages(ServiceBusMessage("1"), due)
        client.pair.force_failover(QUEUE)
        with pytest.raises(ScheduleUnavailableError):
            await sender.schedule_messages(ServiceBusMessage("2"), due)
        with pytest.raises(ScheduleUnavailableError):
            await sender.cancel_scheduled_messages(number)
    await clock.sleep(600.0)
    assert texts(await taken(pair)) == ["1"]


async def test_schedule_errors_and_successes_count_for_failover(pair: MemoryPair, client: ServiceBusClient) -> None:
    due = datetime.fromtimestamp(clock.now() + 600, UTC)
    async with client.get_queue_sender(QUEUE) as sender:
        pair.primary.inject(Fault(FaultKind.DOWN))
        with pytest.raises(ServiceBusConnectionError):
            await sender.schedule_messages(ServiceBusMessage("1"), due)
        assert state(client) is SUSPECT
        pair.primary.heal()
        await sender.schedule_messages(ServiceBusMessage("2"), due)
        assert state(client) is HEALTHY


async def test_receives_use_only_the_primary_and_fail_with_it(pair: MemoryPair, client: ServiceBusClient) -> None:
    client.pair.force_failover(QUEUE)
    async with client.get_queue_sender(QUEUE) as sender:
        await sender.send_messages(ServiceBusMessage("a"))
    async with client.get_queue_receiver(QUEUE) as receiver:
        assert await receiver.receive_messages(max_wait_time=1) == []
        pair.primary.inject(Fault(FaultKind.DOWN))
        with pytest.raises(ServiceBusConnectionError):
            await receiver.receive_messages(max_wait_time=1)


# -- partitions -------------------------------------------------------------------------------------------------------


def keys_by_fragment(count: int = 16) -> list[str]:
    return [
        next(key for number in range(10_000) if fragment_of(key := f"key {number}", count) == fragment)
        for fragment in range(count)
    ]


async def test_one_dead_fragment_with_mixed_keys_does_not_fail_over(pair: MemoryPair, client: ServiceBusClient) -> None:
    await make_queue(pair, "wide", enable_partitioning=True)
    keys = keys_by_fragment()
    pair.primary.inject(Fault(FaultKind.DOWN, entity_path="wide", fragments=[5]))
    async with client.get_queue_sender("wide") as sender:
        for number in range(60):
            if number % 6 == 0:
                await fail(sender, ServiceBusInternalError, partition_key=keys[5])
            await sender.send_messages(ServiceBusMessage("a", partition_key=keys[number % 5] if number % 2 else None))
            await clock.sleep(3.0)
    assert state(client, "wide") is HEALTHY
    assert "failover.engaged" not in names(client)
    pair.primary.heal()
    assert len(await taken(pair, "wide")) == 60


async def test_one_dead_fragment_with_only_its_keys_fails_over_the_entity(
    pair: MemoryPair, client: ServiceBusClient
) -> None:
    await make_queue(pair, "wide", enable_partitioning=True)
    keys = keys_by_fragment()
    pair.primary.inject(Fault(FaultKind.DOWN, entity_path="wide", fragments=[5]))
    async with client.get_queue_sender("wide") as sender:
        await fail(sender, ServiceBusInternalError, partition_key=keys[5])
        await clock.sleep(61.0)
        assert state(client, "wide") is FAILED_OVER
        await sender.send_messages(ServiceBusMessage("a", partition_key=keys[0]))
    assert texts(await diverted(pair)) == ["a"]


async def test_pings_use_the_failing_key_so_the_entity_does_not_flap(
    pair: MemoryPair, client: ServiceBusClient
) -> None:
    await make_queue(pair, "wide", enable_partitioning=True)
    keys = keys_by_fragment()
    pair.primary.inject(Fault(FaultKind.DOWN, entity_path="wide", fragments=[5]))
    async with client.get_queue_sender("wide") as sender:
        await fail(sender, ServiceBusInternalError, partition_key=keys[5])
    await clock.sleep(1800.0)
    assert state(client, "wide") is FAILED_OVER
    assert names(client).count("failover.engaged") == 1
    pair.primary.heal()
    await until(lambda: state(client, "wide") is HEALTHY, at_most_s=66.0)


async def test_a_diverted_session_returns_to_its_own_fragment(pair: MemoryPair) -> None:
    await make_queue(pair, "wide", enable_partitioning=True, requires_session=True)
    async with pair.client() as client, client.get_queue_sender("wide") as sender:
        for number in range(3):
            if number == 1:
                client.pair.force_failover("wide")
            await sender.send_messages(ServiceBusMessage(str(number), session_id="s", partition_key="s"))
        (backlogged, _) = await diverted(pair)
        assert (backlogged.session_id, backlogged.partition_key) == (None, "s")
        await client.run_syphon(until="empty")
    received = await taken(pair, "wide")
    assert [(message.session_id, message.partition_key) for message in received] == [("s", "s")] * 3
    assert {message.sequence_number >> 48 for message in received} == {fragment_of("s", 16)}


@pytest.mark.parametrize("provision", ["create", "none"])
async def test_create_message_batch_works_during_failover(pair: MemoryPair, provision: str) -> None:
    if provision == "none":
        for name in BACKLOG[:2]:
            await make_queue(pair, name, secondary=True)
    chosen = options(failover_interval=0, provision=provision, backlog_queue_count=2)
    async with pair.client(chosen) as client, client.get_queue_sender(QUEUE) as sender:
        pair.primary.inject(Fault(FaultKind.DOWN))
        for number in range(3):
            batch = await sender.create_message_batch()
            batch.add_message(ServiceBusMessage(f"{number}"))
            await sender.send_messages(batch)
        assert client.pair.status().entities[QUEUE].diverted == 3
        pair.primary.heal()
        await client.run_syphon(until="empty")
    assert sorted(texts(await taken(pair))) == ["0", "1", "2"]


async def test_create_message_batch_errors_start_the_failover_deadline(pair: MemoryPair) -> None:
    async with pair.client(options(failover_interval=60)) as client, client.get_queue_sender(QUEUE) as sender:
        pair.primary.inject(Fault(FaultKind.DOWN))
        batch = await sender.create_message_batch()
        batch.add_message(ServiceBusMessage("x"))
        assert client.pair.status().entities[QUEUE].state is FailoverState.SUSPECT
        await clock.sleep(61)
        assert client.pair.status().entities[QUEUE].state is FailoverState.FAILED_OVER
        await sender.send_messages(batch)


async def test_create_message_batch_raises_for_a_missing_entity(pair: MemoryPair) -> None:
    async with pair.client(AT_ONCE) as client, client.get_queue_sender("nowhere") as sender:
        with pytest.raises(MessagingEntityNotFoundError):
            await sender.create_message_batch()


async def test_opening_and_sending_share_one_timeout(pair: MemoryPair) -> None:
    async with pair.client(AT_ONCE) as client, client.get_queue_sender(QUEUE) as sender:
        pair.primary.inject(Fault(FaultKind.SLOW, operations=[Operation.OPEN], latency_s=2.5))
        pair.primary.inject(Fault(FaultKind.HANG, operations=[Operation.SEND]))
        began_at = clock.monotonic()
        await sender.send_messages(ServiceBusMessage("x"), timeout=8)
        assert clock.monotonic() - began_at < 8
        assert client.pair.status().entities[QUEUE].diverted == 1


async def test_time_spent_queued_in_the_client_does_not_count_towards_failover(pair: MemoryPair) -> None:
    await make_queue(pair, "visits", requires_session=True)
    async with pair.client(AT_ONCE) as client, client.get_queue_sender("visits") as sender:
        await sender.send_messages(ServiceBusMessage("opens the link", session_id="k"))
        pair.primary.inject(Fault(FaultKind.SLOW, operations=[Operation.SEND], latency_s=1.0))

        async def send(message: ServiceBusMessage, timeout: float) -> BaseException | None:
            try:
                await sender.send_messages(message, timeout=timeout)
            except ServiceBusError as error:
                return error
            return None

        first = asyncio.create_task(send(ServiceBusMessage("first", session_id="k"), 60))
        await asyncio.sleep(0)
        # These two share a transfer, which is refused since one has no session; then the other one's time is over.
        late = asyncio.create_task(send(ServiceBusMessage("late", session_id="k"), 1.8))
        wrong = asyncio.create_task(send(ServiceBusMessage("wrong", partition_key="k"), 60))
        assert await first is None
        assert isinstance(await wrong, InvalidOperationError)
        error = await late
        assert isinstance(error, OperationTimeoutError)
        assert client.pair.status().entities["visits"].state is FailoverState.HEALTHY
