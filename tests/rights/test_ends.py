"""Rights that end while a link is open: the token expires, or one with fewer rights replaces it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from sbclient import clock
from sbclient.amqp import ACCEPTED, LinkDetached, TransactionalState
from sbclient.emulator.sas import AuthorizationMode
from sbclient.rules.shared_access_signature import sign
from tests.emulator.amqp.client import Client, connected
from tests.emulator.requests import request
from tests.payloads import payload_of
from tests.rights.credentials import EVERY_RIGHT, HOST
from tests.rights.messaging import (
    MANAGEMENT,
    MESSAGE,
    OPERATIONS,
    AmqpOperation,
    Refused,
    ask,
    check,
    received,
    receiver,
    sender,
    transaction,
)
from tests.rights.oracle import ENDED, UNAUTHORIZED
from tests.rights.world import KEY_NAME, QUEUE, SESSION, SESSIONS, World, key_of

SESSION_FILTER = "com.microsoft:session-filter"

LIFE_S = 30
"""Lifetime of tokens; shorter than a lock, whose end would change the namespace too."""


@pytest.fixture
async def world() -> World:
    return World(EVERY_RIGHT, AuthorizationMode.SAS)


async def put(
    client: Client, path: str, *, lifetime_s: float = LIFE_S, key: str | None = None, name: str = KEY_NAME
) -> None:
    key = key_of("") if key is None else key
    assert await client.put_token(path, sign(f"sb://{HOST}/{path}", name, key, clock.now() + lifetime_s)) == 202


async def ended(client: Client, link: object) -> str:
    """Return the condition with which a link ended."""
    detached = await client.event(LinkDetached, link)
    assert detached.error is not None
    return detached.error.condition


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
async def test_operation_after_expiry_is_rejected_without_effect(world: World, operation: AmqpOperation) -> None:
    async with connected(world.context) as client:
        for path in operation.needed_on:
            await put(client, path.removesuffix("/$management"), lifetime_s=LIFE_S)
        await asyncio.sleep(LIFE_S - 1)
        before = world.print()
        await asyncio.sleep(1)
        assert await operation.outcome(client, world) == UNAUTHORIZED
        assert before == world.print()


class TestExpiry:
    async def test_detaches_a_sender(self, world: World) -> None:
        async with connected(world.context) as client:
            await put(client, QUEUE)
            link = await sender(client, QUEUE)
            await asyncio.sleep(LIFE_S + 0.1)
            assert await ended(client, link) == ENDED

    async def test_detaches_a_waiting_receiver_without_further_messages(self, world: World) -> None:
        async with connected(world.context) as client, connected(world.context) as other:
            await put(client, "other")
            await put(other, "other", lifetime_s=LIFE_S + 60)
            link = await receiver(client, "other")
            link.grant(10)
            client.flush()
            await asyncio.sleep(LIFE_S + 0.1)
            check(await other.send(await sender(other, "other"), MESSAGE))
            assert await ended(client, link) == ENDED
            delivery = await received(other, "other")
            assert delivery.payload

    async def test_detaches_a_receiver_with_an_unsettled_message(self, world: World) -> None:
        async with connected(world.context) as client:
            await put(client, QUEUE)
            delivery = await received(client, QUEUE)
            await asyncio.sleep(LIFE_S - 0.1)
            before = world.print()
            await asyncio.sleep(0.2)
            assert await ended(client, delivery.link) == ENDED
            assert world.print() == before

    async def test_releases_a_session(self, world: World) -> None:
        async with connected(world.context) as client, connected(world.context) as other:
            await put(client, SESSIONS, lifetime_s=30)
            await put(other, SESSIONS, lifetime_s=60)
            link = await receiver(client, SESSIONS, filters={SESSION_FILTER: SESSION})
            await asyncio.sleep(30.1)
            assert await ended(client, link) == ENDED
            await receiver(other, SESSIONS, filters={SESSION_FILTER: SESSION})

    async def test_ends_a_wait_for_a_session(self, world: World) -> None:
        async with connected(world.context) as client, connected(world.context) as other:
            await put(other, SESSIONS, lifetime_s=3600)
            for session in (SESSION, "b"):
                await receiver(other, SESSIONS, filters={SESSION_FILTER: session})
            await put(client, SESSIONS, lifetime_s=10)
            with pytest.raises(Refused, match=ENDED):
                await receiver(client, SESSIONS, filters={SESSION_FILTER: None}, timeout_s=300)

    async def test_rolls_a_transaction_back(self, world: World) -> None:
        async with connected(world.context) as client:
            await put(client, QUEUE)
            link = await sender(client, QUEUE)
            coordinator, txn_id = await transaction(client)
            before = world.print()
            check(
                await client.send(link, MESSAGE, state=TransactionalState(txn_id)), TransactionalState(txn_id, ACCEPTED)
            )
            await asyncio.sleep(LIFE_S + 0.1)
            assert await ended(client, coordinator) == ENDED
        assert world.print() == before

    async def test_detaches_request_links(self, world: World) -> None:
        async with connected(world.context) as client:
            await put(client, QUEUE)
            await ask(client, QUEUE, "peek-message", {})
            links = await client.node(QUEUE + MANAGEMENT)
            await asyncio.sleep(LIFE_S + 0.1)
            assert [await ended(client, link) for link in links] == [ENDED, ENDED]

    async def test_ends_a_watch_of_the_namespace(self, world: World) -> None:
        token = sign(f"https://{HOST}/", KEY_NAME, key_of(""), clock.now() + LIFE_S)
        answer = await world.front.answer(request("GET", "/$control/watch", authorization=token))
        assert answer.events is not None
        async with asyncio.timeout(LIFE_S + 2):
            pieces = [piece async for piece in answer.events]
        assert len(pieces) > LIFE_S
        await answer.events.aclose()

    async def test_ends_an_event_stream(self, world: World) -> None:
        token = sign(f"https://{HOST}/", KEY_NAME, key_of(""), clock.now() + LIFE_S)
        answer = await world.front.answer(request("GET", "/$control/events", authorization=token))
        assert answer.events is not None
        async with asyncio.timeout(LIFE_S + 1):
            pieces = [piece async for piece in answer.events]
        assert pieces
        assert set(pieces) == {b":\n\n"}
        await answer.events.aclose()


@pytest.fixture
def set_forward(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Sets the wall clock of the emulator forward without effect on the timers."""
    now = clock.now
    return lambda ahead_s: monkeypatch.setattr(clock, "now", lambda: now() + ahead_s)


class TestDataReadAfterExpiry:
    """Bytes that are read after the token has expired and before its timer runs."""

    async def test_is_not_stored(self, set_forward: Callable[[float], None]) -> None:
        world = World(EVERY_RIGHT, AuthorizationMode.SAS)
        async with connected(world.context) as client:
            await put(client, QUEUE)
            link = await sender(client, QUEUE)
            set_forward(LIFE_S)
            link.send(payload_of(MESSAGE), tag=b"t", needs_credit=False)
            client.flush()
            assert await ended(client, link) == ENDED
            assert clock.monotonic() < 1
        assert world.print() == world.at_first

    async def test_is_not_settled(self, set_forward: Callable[[float], None]) -> None:
        world = World(EVERY_RIGHT, AuthorizationMode.SAS)
        async with connected(world.context) as client:
            await put(client, QUEUE)
            delivery = await received(client, QUEUE)
            before = world.print()
            set_forward(LIFE_S)
            delivery.settle(ACCEPTED, settled=False)
            client.flush()
            assert await ended(client, delivery.link) == ENDED
            assert world.print() == before

    async def test_is_not_delivered(self, set_forward: Callable[[float], None]) -> None:
        world = World(EVERY_RIGHT, AuthorizationMode.SAS)
        async with connected(world.context) as client:
            await put(client, QUEUE)
            link = await receiver(client, QUEUE)
            set_forward(LIFE_S)
            link.grant(10)
            client.flush()
            assert await ended(client, link) == ENDED
            assert b"secret" not in client.pipe.heard
        assert world.print() == world.at_first


class TestReplacedToken:
    async def test_for_another_path_has_no_effect(self, world: World) -> None:
        async with connected(world.context) as client:
            await put(client, "")
            await put(client, QUEUE, lifetime_s=5)
            link = await sender(client, QUEUE)
            await asyncio.sleep(10)
            check(await client.send(link, MESSAGE))
