"""A namespace becomes as it was at first."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from sbclient.broker.faults import Fault, FaultKind
from sbclient.emulator.control.namespace_state import clear
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
