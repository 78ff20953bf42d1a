"""Rights that end while they are used: a token that expires, or is replaced by a lesser one, under an open link."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from sbclient.amqp import ACCEPTED, LinkDetached, TransactionalState, encode_message
from sbclient.broker.faults import Call, Operation
from sbclient.clock import VirtualClock
from sbclient.emulator.sas import AuthorizationMode
from sbclient.entities import AccessRights, EntityAddress, EntityKind, QueueProperties
from sbclient.rules.shared_access_signature import sign
from tests.emulator.amqp.client import Client, connected, create
from tests.emulator.requests import request
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
from tests.rights.oracle import UNAUTHORIZED
from tests.rights.world import KEY_NAME, QUEUE, SESSION, SESSIONS, World, key_of, rule_of

SESSION_FILTER = "com.microsoft:session-filter"

LIFE_S = 30
"""Of tokens; shorter than a lock, whose end would be a change as well."""


@pytest.fixture
async def world(clock: VirtualClock) -> World:
    return World(clock, EVERY_RIGHT, AuthorizationMode.SAS)


async def put(
    client: Client, path: str, *, lives_s: float = LIFE_S, key: str | None = None, name: str = KEY_NAME
) -> None:
    key = key_of("") if key is None else key
    assert await client.put_token(path, sign(f"sb://{HOST}/{path}", name, key, client.clock.now() + lives_s)) == 202


async def ended(client: Client, link: object) -> str:
    """The condition with which a link ended."""
    detached = await client.event(LinkDetached, link)
    assert detached.error is not None
    return detached.error.condition


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
async def test_what_is_asked_after_the_end_is_refused_and_changes_nothing(
    world: World, clock: VirtualClock, operation: AmqpOperation
) -> None:
    async with connected(world.context) as client:
        for path in operation.needed_on:
            await put(client, path.removesuffix("/$management"), lives_s=LIFE_S)
        await asyncio.sleep(LIFE_S - 1)
        before = world.print()
        await asyncio.sleep(1)
        assert await operation.outcome(client, world) == UNAUTHORIZED
        assert before == world.print()


class TestAnOpenLinkEndsWithItsToken:
    async def test_of_a_sender(self, world: World) -> None:
        async with connected(world.context) as client:
            await put(client, QUEUE)
            link = await sender(client, QUEUE)
            await asyncio.sleep(LIFE_S + 0.1)
            assert await ended(client, link) == UNAUTHORIZED

    async def test_of_a_receiver_that_waits_and_it_is_given_nothing_more(self, world: World) -> None:
        async with connected(world.context) as client, connected(world.context) as other:
            await put(client, "other")
            await put(other, "other", lives_s=LIFE_S + 60)
            link = await receiver(client, "other")
            link.grant(10)
            client.flush()
            await asyncio.sleep(LIFE_S + 0.1)
            check(await other.send(await sender(other, "other"), MESSAGE))
            assert await ended(client, link) == UNAUTHORIZED
            delivery = await received(other, "other")
            assert delivery.payload

    async def test_of_a_receiver_whose_message_is_not_settled_any_more(self, world: World) -> None:
        async with connected(world.context) as client:
            await put(client, QUEUE)
            delivery = await received(client, QUEUE)
            await asyncio.sleep(LIFE_S - 0.1)
            before = world.print()
            await asyncio.sleep(0.2)
            assert await ended(client, delivery.link) == UNAUTHORIZED
            assert world.print() == before

    async def test_of_a_session_which_is_free_then(self, world: World) -> None:
        async with connected(world.context) as client, connected(world.context) as other:
            await put(client, SESSIONS, lives_s=30)
            await put(other, SESSIONS, lives_s=60)
            link = await receiver(client, SESSIONS, filters={SESSION_FILTER: SESSION})
            await asyncio.sleep(30.1)
            assert await ended(client, link) == UNAUTHORIZED
            await receiver(other, SESSIONS, filters={SESSION_FILTER: SESSION})

    async def test_of_one_that_still_waits_for_a_session(self, world: World) -> None:
        async with connected(world.context) as client, connected(world.context) as other:
            await put(other, SESSIONS, lives_s=3600)
            for session in (SESSION, "b"):
                await receiver(other, SESSIONS, filters={SESSION_FILTER: session})
            await put(client, SESSIONS, lives_s=10)
            with pytest.raises(Refused, match=UNAUTHORIZED):
                await receiver(client, SESSIONS, filters={SESSION_FILTER: None}, timeout_s=300)

    async def test_of_a_control_link_whose_transaction_is_rolled_back(self, world: World) -> None:
        async with connected(world.context) as client:
            await put(client, QUEUE)
            link = await sender(client, QUEUE)
            coordinator, txn_id = await transaction(client)
            before = world.print()
            check(
                await client.send(link, MESSAGE, state=TransactionalState(txn_id)), TransactionalState(txn_id, ACCEPTED)
            )
            await asyncio.sleep(LIFE_S + 0.1)
            assert await ended(client, coordinator) == UNAUTHORIZED
        assert world.print() == before

    async def test_of_requests(self, world: World) -> None:
        async with connected(world.context) as client:
            await put(client, QUEUE)
            await ask(client, QUEUE, "peek-message", {})
            links = await client.node(QUEUE + MANAGEMENT)
            await asyncio.sleep(LIFE_S + 0.1)
            assert [await ended(client, link) for link in links] == [UNAUTHORIZED, UNAUTHORIZED]

    async def test_of_a_watch_over_everything(self, world: World, clock: VirtualClock) -> None:
        token = sign(f"https://{HOST}/", KEY_NAME, key_of(""), clock.now() + LIFE_S)
        answer = await world.front.answer(request("GET", "/$control/watch", authorization=token))
        assert answer.events is not None
        async with asyncio.timeout(LIFE_S + 2):
            pieces = [piece async for piece in answer.events]
        assert len(pieces) > LIFE_S
        await answer.events.aclose()

    async def test_of_events_that_are_watched(self, world: World, clock: VirtualClock) -> None:
        token = sign(f"https://{HOST}/", KEY_NAME, key_of(""), clock.now() + LIFE_S)
        answer = await world.front.answer(request("GET", "/$control/events", authorization=token))
        assert answer.events is not None
        async with asyncio.timeout(LIFE_S + 1):
            pieces = [piece async for piece in answer.events]
        assert pieces
        assert set(pieces) == {b":\n\n"}
        await answer.events.aclose()


class SkewedClock(VirtualClock):
    """A wall clock that somebody sets forward; the timers do not know."""

    ahead_s = 0.0

    def now(self) -> float:
        return super().now() + self.ahead_s


class TestWhatComesAtTheEnd:
    """Bytes that are read when the token has ended and its timer has not run."""

    @pytest.fixture
    async def skewed(self) -> SkewedClock:
        return SkewedClock()

    async def test_is_not_stored(self, skewed: SkewedClock) -> None:
        world = World(skewed, EVERY_RIGHT, AuthorizationMode.SAS)
        async with connected(world.context) as client:
            await put(client, QUEUE)
            link = await sender(client, QUEUE)
            skewed.ahead_s = LIFE_S
            link.send(encode_message(MESSAGE), tag=b"t", needs_credit=False)
            client.flush()
            assert await ended(client, link) == UNAUTHORIZED
            assert skewed.monotonic() < 1
        assert world.print() == world.at_first

    async def test_is_not_settled(self, skewed: SkewedClock) -> None:
        world = World(skewed, EVERY_RIGHT, AuthorizationMode.SAS)
        async with connected(world.context) as client:
            await put(client, QUEUE)
            delivery = await received(client, QUEUE)
            before = world.print()
            skewed.ahead_s = LIFE_S
            delivery.settle(ACCEPTED, settled=False)
            client.flush()
            assert await ended(client, delivery.link) == UNAUTHORIZED
            assert world.print() == before

    async def test_is_not_given(self, skewed: SkewedClock) -> None:
        world = World(skewed, EVERY_RIGHT, AuthorizationMode.SAS)
        async with connected(world.context) as client:
            await put(client, QUEUE)
            link = await receiver(client, QUEUE)
            skewed.ahead_s = LIFE_S
            link.grant(10)
            client.flush()
            assert await ended(client, link) == UNAUTHORIZED
            assert b"secret" not in client.pipe.heard
        assert world.print() == world.at_first


class TestATokenThatIsReplaced:
    async def test_by_a_longer_one_lets_links_go_on(self, world: World) -> None:
        async with connected(world.context) as client:
            await put(client, QUEUE)
            link = await sender(client, QUEUE)
            await asyncio.sleep(LIFE_S - 1)
            await put(client, QUEUE)
            await asyncio.sleep(LIFE_S - 1)
            check(await client.send(link, MESSAGE))

    async def test_by_one_that_ends_sooner_ends_them_then(self, world: World) -> None:
        async with connected(world.context) as client:
            await put(client, QUEUE)
            link = await sender(client, QUEUE)
            await put(client, QUEUE, lives_s=5)
            await asyncio.sleep(5.1)
            assert await ended(client, link) == UNAUTHORIZED

    async def test_by_one_with_fewer_rights_ends_what_needs_more(self, clock: VirtualClock) -> None:
        world = World(clock, EVERY_RIGHT, AuthorizationMode.SAS)
        create(world.host, EntityKind.QUEUE, "own", authorization_rules=[rule_of("own", [AccessRights.LISTEN])])
        async with connected(world.context) as client:
            await put(client, "own")
            sending, receiving = await sender(client, "own"), await receiver(client, "own")
            await put(client, "own", key=key_of("own"))
            assert await ended(client, sending) == UNAUTHORIZED
            assert receiving.is_open

    async def test_for_another_path_changes_nothing(self, world: World) -> None:
        async with connected(world.context) as client:
            await put(client, "")
            await put(client, QUEUE, lives_s=5)
            link = await sender(client, QUEUE)
            await asyncio.sleep(10)
            check(await client.send(link, MESSAGE))


async def test_a_key_that_is_changed_stops_new_tokens_and_no_connection(world: World, clock: VirtualClock) -> None:
    """Source: "ongoing connections that are based on such tokens continue to work until the tokens expire"."""
    rule, changed = rule_of("own", [AccessRights.SEND]), rule_of("another", [AccessRights.SEND])
    create(world.host, EntityKind.QUEUE, "own", authorization_rules=[rule])
    async with connected(world.context) as client:
        await put(client, "own", key=key_of("own"))
        link = await sender(client, "own")
        call = Call(Operation.MANAGE, clock.now())
        address, description = EntityAddress(EntityKind.QUEUE, ("own",)), world.host.namespace.directory.get("own")
        assert description is not None
        assert isinstance(description.description, QueueProperties)
        update = replace(description.description, authorization_rules=[changed])
        world.host.namespace.management.update(call, address, update)
        check(await client.send(link, MESSAGE))
        old = sign(f"sb://{HOST}/own", KEY_NAME, key_of("own"), clock.now() + LIFE_S)
        assert await client.put_token("own", old) == 401
        check(await client.send(link, MESSAGE))
