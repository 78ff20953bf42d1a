"""What a namespace contains, its health, and that it becomes as it was at first."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from uuid import UUID

import pytest

from sbclient import clock
from sbclient.broker.faults import Call, Fault, FaultKind, Operation
from sbclient.delivery import Settlement, SettleMode
from sbclient.emulator.control.namespace_state import TIMEOUT_S, clear, health_of, state_of
from sbclient.entities import EntityKind
from sbclient.hosting.host import BrokerHost
from tests.emulator.amqp.client import create, put


class TestClear:
    async def test_faults_and_entities_are_gone(self, host: BrokerHost) -> None:
        create(host, EntityKind.QUEUE, "q")
        create(host, EntityKind.TOPIC, "t")
        create(host, EntityKind.SUBSCRIPTION, "t", "s")
        host.inject(Fault(FaultKind.DOWN, None))
        clear(host)
        assert list(host.namespace.directory.all()) == []
        create(host, EntityKind.QUEUE, "q")
        put(host, "q", "x")

    async def test_an_entity_that_has_become_idle_is_gone_as_well(self, host: BrokerHost) -> None:
        create(host, EntityKind.QUEUE, "a")
        create(host, EntityKind.QUEUE, "b", auto_delete_on_idle=timedelta(minutes=5))
        await asyncio.sleep(400)
        clear(host)
        assert list(host.namespace.directory.all()) == []


@pytest.mark.parametrize("operation", [Operation.SEND, Operation.RECEIVE, Operation.MANAGE])
async def test_a_health_check_takes_as_long_as_what_it_does(host: BrokerHost, operation: Operation) -> None:
    for latency_s in (0.0, 2.0, TIMEOUT_S + 1):
        for each_s in (latency_s / 2, latency_s):
            host.inject(Fault(FaultKind.SLOW, latency_s=each_s, operations=[operation]))
        began_at = clock.monotonic()
        assert (await health_of(host) is None) is (latency_s < TIMEOUT_S)
        assert clock.monotonic() - began_at == pytest.approx(min(latency_s, TIMEOUT_S))
        host.heal()
        assert await health_of(host) is None
        assert list(host.namespace.directory.all()) == []


async def test_a_health_check_of_a_slow_namespace_sends_then_receives(host: BrokerHost) -> None:
    host.inject(Fault(FaultKind.SLOW, latency_s=1.0, operations=[Operation.SEND, Operation.RECEIVE]))
    began_at = clock.monotonic()
    assert await health_of(host) is None
    assert clock.monotonic() - began_at == pytest.approx(2.0)
    host.inject(Fault(FaultKind.HANG, operations=[Operation.RECEIVE]))
    assert "TimeoutError" in (await health_of(host) or "")
    assert clock.monotonic() - began_at == pytest.approx(2.0 + TIMEOUT_S)


async def test_a_deferred_message_counts_as_deferred_while_it_is_locked(host: BrokerHost) -> None:
    create(host, EntityKind.QUEUE, "q")
    put(host, "q", "a", "b", "c")
    received = await host.receive("q", max_message_count=2, max_wait_time_s=1)
    tokens = [UUID(int=one.token) for one in received]
    host.namespace.settle(Call(Operation.SETTLE, clock.now()), "q", tokens, Settlement(SettleMode.DEFER))
    for locked in range(2):
        ((fragment,),) = [one["fragments"] for one in state_of(host.namespace, clock.now())["entities"]]
        assert (fragment["message_count"], fragment["deferred_count"], fragment["locked_count"]) == (3, 2, locked)
        host.namespace.receive_deferred(Call(Operation.RECEIVE, clock.now()), "q", [received[locked].number])
