"""The clients of a worker process: who opens, keeps and closes them, without a namespace."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any, cast

import pytest

from sbclient import clock
from sbclient.errors import BacklogUnavailableError, ServiceBusAuthorizationError, ServiceBusError
from sbclient_spark import clients
from sbclient_spark.clients import Connection, WorkerClients
from sbclient_spark.read.options import read_options

IDLE_S = 30.0


class World:
    """Clients that are opened, and what the namespaces answer.

    Attributes:
        made: all clients so far.
    """

    def __init__(self) -> None:
        self.made: list[Client] = []
        self.is_secondary_down = self.is_refused = False

    def open_client(self, _: object, *, paired: bool) -> Any:
        self.made.append(Client(self, paired))
        return self.made[-1]


class Client:
    def __init__(self, world: World, paired: bool) -> None:
        self._world = world
        self.is_paired = paired
        self.is_closed = False
        self.pair = self.state = self.backlog = self  # for the one call that is made of them

    async def __aenter__(self) -> Client:
        await clock.sleep(1.0)
        if self._world.is_refused:
            raise ServiceBusAuthorizationError("refused")
        return self

    async def wait(self, timeout_s: float) -> None:
        await clock.sleep(1.0)
        if self._world.is_secondary_down:
            raise BacklogUnavailableError("the secondary is down")

    async def close(self) -> None:
        self.is_closed = True


async def test_each_client_is_leased_known_or_closed_whatever_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(60):
        world = World()
        monkeypatch.setattr(clients, "open_client", world.open_client)
        await lease_and_give_back(Random(seed), world)


async def lease_and_give_back(random: Random, world: World) -> None:
    texts = {"connectionString": "memory://a", "queue": "q", "secondaryConnectionString": "memory://b"}
    texts["idleTimeout"] = str(IDLE_S)
    several = [read_options({**texts, "sendTimeout": each}).connection for each in ("60", "61")]
    found = WorkerClients()
    leased: list[tuple[int, Connection]] = []
    for _ in range(25):
        which = random.randrange(2)
        match random.randrange(6):
            case 0:
                world.is_secondary_down = random.random() < 0.5
            case 1:
                world.is_refused = random.random() < 0.3
            case 2 if leased:
                which, _ = leased.pop(random.randrange(len(leased)))
                await found.give_back(several[which])
            case 3:
                await clock.sleep(random.choice([1.0, IDLE_S - 2.0, IDLE_S + 2.0]))
            case _:
                leasing = [asyncio.ensure_future(found.lease(several[which])) for _ in range(random.choice([1, 1, 2]))]
                if random.random() < 0.3:
                    await clock.sleep(random.choice([0.0, 0.5, 1.5, 2.5]))
                    leasing[0].cancel()
                outcomes = await asyncio.gather(*leasing, return_exceptions=True)
                assert all(isinstance(one, Connection | ServiceBusError | asyncio.CancelledError) for one in outcomes)
                leased += [(which, one) for one in outcomes if isinstance(one, Connection)]
        known = list(found._connections.values())
        assert {client for client in world.made if not client.is_closed} == {cast(Any, one.client) for one in known}
        assert [one.leases for one in known] == [sum(one is connection for _, connection in leased) for one in known]
        assert {connection for _, connection in leased} <= set(known)
    while leased:
        await found.give_back(several[leased.pop()[0]])
    await clock.sleep(IDLE_S + 1.0)
    assert all(client.is_closed for client in world.made)
    found._loop.call_soon_threadsafe(found._loop.stop)
    found._thread.join()
    found._loop.close()
