"""Pings of failed-over entities: their times, their keys, and the recovery."""

from __future__ import annotations

from itertools import pairwise

import pytest

from sbclient import clock
from sbclient.broker.faults import Operation
from sbclient.client.client import ServiceBusClient
from sbclient.errors import (
    InvalidOperationError,
    ServiceBusAuthorizationError,
    ServiceBusConnectionError,
    ServiceBusServerBusyError,
)
from sbclient.message import ServiceBusMessage
from sbclient.rules.failover import FailoverState
from sbclient.rules.ping import is_ping
from sbclient.testing import Fault, FaultKind, MemoryPair
from tests.client.scene import QUEUE, diverted, make_queue, options, taken, texts


class Pings:
    """Records the pings that reach the primary."""

    def __init__(self, pair: MemoryPair) -> None:
        self.pair = pair
        self.at: list[float] = []
        self.messages: list[ServiceBusMessage] = []
        namespace = pair.primary.namespace
        original = namespace.send

        def send(call, path, messages, *further):  # type: ignore[no-untyped-def]
            found = [message for message in messages if is_ping(message)]
            self.at += [clock.monotonic()] * len(found)
            self.messages += found
            return original(call, path, messages, *further)

        namespace.send = send  # type: ignore[method-assign]  # a wrapper around the method of the broker


def state(client: ServiceBusClient, path: str = QUEUE) -> FailoverState:
    return client.pair.status().entities[path].state


async def test_a_ping_is_empty_and_never_received(pair: MemoryPair, client: ServiceBusClient) -> None:
    pings = Pings(pair)
    client.pair.mark_unhealthy(QUEUE)
    await clock.sleep(1.0)
    (ping,) = pings.messages
    assert ping.content_type == "application/vnd.ms-servicebus-ping"
    assert bytes(ping) == b""
    assert ping.time_to_live is not None
    assert ping.time_to_live.total_seconds() == 1.0
    assert ping.message_id
    assert state(client) is FailoverState.HEALTHY
    assert await taken(pair) == []


@pytest.mark.deviation("pairing.first-ping")
async def test_pings_begin_immediately_and_repeat_with_jitter(pair: MemoryPair, client: ServiceBusClient) -> None:
    pair.primary.inject(Fault(FaultKind.ERROR, error=ServiceBusConnectionError, operations=[Operation.SESSION]))
    pings = Pings(pair)
    pair.primary.inject(Fault(FaultKind.LOSE_ACKNOWLEDGEMENT, operations=[Operation.SEND]))
    await clock.sleep(7.0)
    client.pair.mark_unhealthy(QUEUE)
    await clock.sleep(1200.0)
    assert pings.at[0] == 7.0
    gaps = [later - earlier for earlier, later in pairwise(pings.at)]  # though each waits 20 s for its answer
    assert len(gaps) >= 18
    assert all(54.0 <= gap <= 66.0 for gap in gaps)
    assert len({round(gap, 6) for gap in gaps}) > 5


@pytest.mark.parametrize("interval_s", [1, 1800])
async def test_the_ping_interval_is_configurable(pair: MemoryPair, interval_s: int) -> None:
    pings = Pings(pair)
    async with pair.client(options(ping_primary_interval=interval_s)) as client:
        pair.primary.inject(Fault(FaultKind.BUSY, operations=[Operation.OPEN]))
        client.pair.mark_unhealthy(QUEUE)
        pair.primary.inject(Fault(FaultKind.LOSE_ACKNOWLEDGEMENT, operations=[Operation.SEND], count=10))
        await clock.sleep(1.0)
        assert len(pings.at) == 1
        await clock.sleep(max(19.5, interval_s * 1.1))  # the next one waits for the answer, which takes 20 s
        assert len(pings.at) == 2


async def test_each_entity_has_at_most_one_ping_in_flight(pair: MemoryPair) -> None:
    await make_queue(pair, "bills")
    pings = Pings(pair)
    async with pair.client(options(ping_primary_interval=1)) as client:
        pair.primary.inject(Fault(FaultKind.LOSE_ACKNOWLEDGEMENT, operations=[Operation.SEND]))
        client.pair.mark_unhealthy(QUEUE)
        client.pair.mark_unhealthy("bills")
        for _ in range(10):
            client.pair.mark_unhealthy(QUEUE)
            await clock.sleep(1.5)
        assert pings.at == [0.0, 0.0]


async def test_recovery_needs_pings_to_recover_accepted_pings_in_a_row(pair: MemoryPair) -> None:
    pings = Pings(pair)
    async with pair.client(options(pings_to_recover=3, ping_primary_interval=10)) as client:
        client.pair.mark_unhealthy(QUEUE)
        await clock.sleep(15.0)
        assert len(pings.at) == 2
        fault = pair.primary.inject(Fault(FaultKind.DOWN))
        await clock.sleep(10.0)
        pair.primary.heal(fault)
        await clock.sleep(15.0)
        assert state(client) is FailoverState.FAILED_OVER
        await clock.sleep(20.0)
        assert state(client) is FailoverState.HEALTHY
        assert len(pings.at) == 6  # two before, one refused, three in a row


@pytest.mark.parametrize("error", [ServiceBusServerBusyError, ServiceBusAuthorizationError, ServiceBusConnectionError])
async def test_a_rejected_ping_does_not_recover_the_entity(
    pair: MemoryPair, client: ServiceBusClient, error: type[Exception]
) -> None:
    pair.primary.inject(Fault(FaultKind.ERROR, error=error))  # type: ignore[arg-type]  # one of ours
    client.pair.mark_unhealthy(QUEUE)
    await clock.sleep(300.0)
    assert state(client) is FailoverState.FAILED_OVER


@pytest.mark.deviation("pairing.first-ping")
async def test_a_ping_has_the_last_failing_key(pair: MemoryPair, client: ServiceBusClient) -> None:
    pings = Pings(pair)
    pair.primary.inject(Fault(FaultKind.ERROR, error=ServiceBusConnectionError, operations=[Operation.OPEN]))
    async with client.get_queue_sender(QUEUE) as sender:
        for message in (
            ServiceBusMessage("a", session_id="first"),
            ServiceBusMessage("b", partition_key="last"),
            ServiceBusMessage("c"),
        ):
            with pytest.raises(ServiceBusConnectionError):
                await sender.send_messages(message)
    await clock.sleep(61.0)
    assert [(ping.session_id, ping.partition_key) for ping in pings.messages] == [(None, "last")]


async def test_a_session_entity_is_pinged_with_a_random_session(pair: MemoryPair) -> None:
    await make_queue(pair, "visits", requires_session=True)
    pings = Pings(pair)
    async with pair.client(options(pings_to_recover=3, ping_primary_interval=1)) as client:
        for _ in range(2):
            client.pair.mark_unhealthy("visits")
            await clock.sleep(5.0)
            assert state(client, "visits") is FailoverState.HEALTHY
    sessions = [ping.session_id for ping in pings.messages]
    assert sessions[0] is None
    assert len(set(sessions)) == len(sessions) == 1 + 3 + 3  # only the first one is without


async def test_a_session_entity_recovers_after_a_partition_key_failed(
    pair: MemoryPair, client: ServiceBusClient
) -> None:
    await make_queue(pair, "visits", requires_session=True)
    pings = Pings(pair)
    pair.primary.inject(Fault(FaultKind.DOWN))
    async with client.get_queue_sender("visits") as sender:
        with pytest.raises(ServiceBusConnectionError):
            await sender.send_messages(ServiceBusMessage("a", partition_key="key"))
    await clock.sleep(70.0)
    pair.primary.heal()
    await clock.sleep(70.0)
    assert state(client, "visits") is FailoverState.HEALTHY
    assert (pings.messages[-1].session_id, pings.messages[-1].partition_key) == ("key", "key")


async def test_a_rejected_ping_with_a_session_does_not_recover_the_entity(
    pair: MemoryPair, client: ServiceBusClient
) -> None:
    pings = Pings(pair)
    pair.primary.inject(Fault(FaultKind.DOWN))
    async with client.get_queue_sender(QUEUE) as sender:
        with pytest.raises(ServiceBusConnectionError):
            await sender.send_messages(ServiceBusMessage("a", session_id="s"))
    pair.primary.heal()
    pair.primary.inject(Fault(FaultKind.ERROR, error=InvalidOperationError, operations=[Operation.SEND]))
    await clock.sleep(100.0)
    assert state(client) is FailoverState.FAILED_OVER
    assert {ping.session_id for ping in pings.messages} == {"s"}


async def test_a_link_probe_sends_no_message(pair: MemoryPair) -> None:
    pings = Pings(pair)
    async with pair.client(options(probe="link")) as client:
        pair.primary.inject(Fault(FaultKind.DOWN))
        client.pair.mark_unhealthy(QUEUE)
        await clock.sleep(10.0)
        assert state(client) is FailoverState.FAILED_OVER
        pair.primary.heal()
        await clock.sleep(60.0)
        assert state(client) is FailoverState.HEALTHY
    assert pings.at == []


async def test_marking_healthy_ends_the_pings(pair: MemoryPair, client: ServiceBusClient) -> None:
    pings = Pings(pair)
    pair.primary.inject(Fault(FaultKind.LOSE_ACKNOWLEDGEMENT, operations=[Operation.SEND]))
    client.pair.mark_unhealthy(QUEUE)
    await clock.sleep(10.0)
    client.pair.mark_healthy(QUEUE)
    await clock.sleep(600.0)
    assert len(pings.at) == 1
    assert state(client) is FailoverState.HEALTHY


async def test_a_ping_of_an_earlier_failover_does_not_end_the_next_one(
    pair: MemoryPair, client: ServiceBusClient
) -> None:
    pings = Pings(pair)
    pair.primary.inject(Fault(FaultKind.SLOW, operations=[Operation.SEND], latency_s=10.0, count=1))
    client.pair.mark_unhealthy(QUEUE)
    await clock.sleep(5.0)
    client.pair.mark_healthy(QUEUE)
    pair.primary.inject(Fault(FaultKind.DOWN))
    client.pair.mark_unhealthy(QUEUE)
    await clock.sleep(10.0)
    assert pings.at == [0.0, 5.0]
    assert state(client) is FailoverState.FAILED_OVER


async def test_a_forced_entity_is_not_pinged(pair: MemoryPair, client: ServiceBusClient) -> None:
    pings = Pings(pair)
    client.pair.force_failover(QUEUE)
    await clock.sleep(600.0)
    assert pings.at == []


async def test_the_pinger_sleeps_while_all_entities_are_healthy(pair: MemoryPair, client: ServiceBusClient) -> None:
    async with client.get_queue_sender(QUEUE) as sender:
        await sender.send_messages(ServiceBusMessage("a"))
    before = pair.primary.namespace.operation_count
    await clock.sleep(30 * 86400.0)
    assert pair.primary.namespace.operation_count == before
    assert texts(await taken(pair)) == ["a"]


async def test_closing_cancels_a_ping_in_flight(pair: MemoryPair) -> None:
    async with pair.client() as client:
        pair.primary.inject(Fault(FaultKind.HANG))
        client.pair.mark_unhealthy(QUEUE)
        await clock.sleep(5.0)
    assert clock.monotonic() == 5.0


async def test_mark_unhealthy_starts_pings_of_a_forced_entity(pair: MemoryPair, client: ServiceBusClient) -> None:
    client.pair.force_failover(QUEUE)
    await clock.sleep(3600)
    client.pair.mark_unhealthy(QUEUE)
    await clock.sleep(1)
    assert state(client) is FailoverState.HEALTHY


@pytest.mark.parametrize("probe", ["message", "link"])
async def test_an_entity_that_disappears_after_an_accepted_ping_is_an_outage(pair: MemoryPair, probe: str) -> None:
    async with (
        pair.client(options(failover_interval=0, probe=probe)) as client,
        client.get_queue_sender(QUEUE) as sender,
    ):
        client.pair.mark_unhealthy(QUEUE)
        await sender.send_messages(ServiceBusMessage("1"))
        await clock.sleep(1.0)
        assert state(client) is FailoverState.HEALTHY
        assert not client.pair.status().never_reached
        await client.administration.delete_queue(QUEUE)
        await sender.send_messages(ServiceBusMessage("2"))
        await clock.sleep(600.0)
        assert state(client) is FailoverState.FAILED_OVER
    assert sorted(texts(await diverted(pair))) == ["1", "2"]
