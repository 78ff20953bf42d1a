"""Rights that end and begin while links are open: a token expires, another one replaces it, a rule changes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from sbclient import clock
from sbclient.amqp import ACCEPTED, LinkDetached, TransactionalState
from sbclient.broker.faults import Call, Operation
from sbclient.emulator.sas import AuthorizationMode
from sbclient.entities import AccessRights, AuthorizationRule, EntityAddress, EntityKind, QueueProperties
from sbclient.rules.shared_access_signature import sign
from tests.emulator.amqp.client import Client, connected, create
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
from tests.rights.world import DESTINATION, KEY_NAME, QUEUE, SESSION, SESSIONS, World, key_of, rule_of

SESSION_FILTER = "com.microsoft:session-filter"

OWN = "own"
LATE_S = 0.1
LIFE_S = 30
"""Lifetime of tokens; shorter than a lock, whose end would change the namespace too."""


@pytest.fixture
async def world() -> World:
    return World(EVERY_RIGHT, AuthorizationMode.SAS)


async def put(
    client: Client, path: str, *, lifetime_s: float = LIFE_S, key: str | None = None, name: str = KEY_NAME
) -> None:
    assert await client.put_token(path, token(path, lifetime_s, key, name)) == 202


def token(path: str, lifetime_s: float, key: str | None = None, name: str = KEY_NAME) -> str:
    return sign(f"sb://{HOST}/{path}", name, key_of("") if key is None else key, clock.now() + lifetime_s)


async def ends_at(client: Client, link: object) -> float:
    """Return the time at which a link ended for lack of a right."""
    assert await ended(client, link, within_s=100.0) == ENDED
    return clock.monotonic()


async def ended(client: Client, link: object, *, within_s: float = 30.0) -> str:
    """Return the condition with which a link ended."""
    detached = await client.event(LinkDetached, link, within_s=within_s)
    assert detached.error is not None
    return detached.error.condition


@pytest.mark.promise("emulator.token-end")
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

    @pytest.mark.parametrize("stream", ["watch", "events"])
    async def test_ends_a_stream_of_the_namespace(self, world: World, stream: str) -> None:
        token = sign(f"https://{HOST}/", KEY_NAME, key_of(""), clock.now() + LIFE_S)
        answer = await world.front.answer(request("GET", f"/$control/{stream}", authorization=token))
        assert answer.events is not None
        async with asyncio.timeout(LIFE_S + (2 if stream == "watch" else 1)):
            pieces = [piece async for piece in answer.events]
        if stream == "watch":
            assert len(pieces) > LIFE_S
        else:
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


def set_rules(world: World, rules: Sequence[AuthorizationRule]) -> None:
    """Replace the rules of the queue `OWN`."""
    entity = world.host.namespace.directory.get(OWN)
    assert entity is not None
    assert isinstance(entity.description, QueueProperties)
    update = replace(entity.description, authorization_rules=list(rules))
    call = Call(Operation.MANAGE, clock.now())
    world.host.namespace.management.update(call, EntityAddress(EntityKind.QUEUE, (OWN,)), update)


async def test_every_renewal_keeps_the_link_open_and_the_last_token_ends_it(world: World) -> None:
    async with connected(world.context) as client:
        await put(client, QUEUE, lifetime_s=30)
        link = await sender(client, QUEUE)
        for _ in range(3):
            await asyncio.sleep(29)
            await put(client, QUEUE, lifetime_s=30)
            check(await client.send(link, MESSAGE))
        assert await ends_at(client, link) == pytest.approx(117.0, abs=LATE_S)


async def test_second_token_ends_new_links_at_its_expiry_as_the_first_did(world: World) -> None:
    async with connected(world.context) as client, connected(world.context) as other:
        await put(other, "", lifetime_s=1_000)
        for _ in range(3):
            began_at = clock.monotonic()
            await put(client, "other", lifetime_s=10)
            link = await receiver(client, "other")
            link.grant(10)
            client.flush()
            assert await ends_at(client, link) == pytest.approx(began_at + 10.0, abs=LATE_S)
            with pytest.raises(Refused, match=UNAUTHORIZED):
                await receiver(client, "other")
        check(await other.send(await sender(other, "other"), MESSAGE))
        await asyncio.sleep(1)
        assert str(MESSAGE).encode() not in client.pipe.heard


async def test_all_links_of_a_connection_end_with_their_token(world: World) -> None:
    async with connected(world.context) as client, connected(world.context) as other:
        await put(client, QUEUE, lifetime_s=10)
        await put(other, QUEUE, lifetime_s=20)
        links = [await sender(client, QUEUE), await receiver(client, QUEUE), await sender(client, QUEUE)]
        later = await sender(other, QUEUE)
        assert [await ends_at(client, link) for link in links] == pytest.approx([10.0] * 3, abs=LATE_S)
        check(await other.send(later, MESSAGE))
        assert await ends_at(other, later) == pytest.approx(20.0, abs=LATE_S)


async def test_links_end_one_by_one_with_the_last_token_that_covers_them(world: World) -> None:
    async with connected(world.context) as client:
        await put(client, "", lifetime_s=10)
        await put(client, QUEUE, lifetime_s=20)
        await put(client, DESTINATION, lifetime_s=30)
        links = [await sender(client, path) for path in ("other", QUEUE, DESTINATION)]
        assert [await ends_at(client, link) for link in links] == pytest.approx([10.0, 20.0, 30.0], abs=LATE_S)


@pytest.mark.promise("emulator.token-end")
async def test_token_with_fewer_rights_ends_the_links_opened_since_the_last_one(world: World) -> None:
    create(world.host, EntityKind.QUEUE, OWN, authorization_rules=[rule_of(OWN, [AccessRights.LISTEN])])
    async with connected(world.context) as client:
        for _ in range(2):
            await put(client, OWN, lifetime_s=100)
            sending = [await sender(client, OWN) for _ in range(2)]
            receiving = [await receiver(client, OWN) for _ in range(2)]
            await put(client, OWN, lifetime_s=100, key=key_of(OWN))
            for link in sending:
                assert await ends_at(client, link) < 1
            assert [link.is_open for link in receiving] == [True, True]


async def test_shorter_token_after_a_longer_one_counts(world: World) -> None:
    async with connected(world.context) as client:
        await put(client, QUEUE, lifetime_s=20)
        link = await sender(client, QUEUE)
        for lifetime_s in (90, 10):
            await put(client, QUEUE, lifetime_s=lifetime_s)
        assert await ends_at(client, link) == pytest.approx(10.0, abs=LATE_S)


@pytest.mark.promise("emulator.token-replay")
async def test_rule_that_was_removed_and_put_back_signs_again(world: World) -> None:
    rule = rule_of(OWN, [AccessRights.SEND])
    create(world.host, EntityKind.QUEUE, OWN, authorization_rules=[rule])
    async with connected(world.context) as client:
        for _ in range(2):
            await put(client, OWN, lifetime_s=100, key=key_of(OWN))
            link = await sender(client, OWN)
            set_rules(world, [])
            assert await client.put_token(OWN, token(OWN, 100, key_of(OWN))) == 401
            check(await client.send(link, MESSAGE))  # its token is valid until the expiry
            set_rules(world, [rule])
        changed = replace(rule, primary_key="new", secondary_key="newer")
        set_rules(world, [changed])
        statuses = [await client.put_token(OWN, token(OWN, 100, key)) for key in (key_of(OWN), "new", "newer")]
        assert statuses == [401, 202, 202]


@pytest.mark.promise("emulator.token-replay")
async def test_rule_put_back_with_fewer_rights_grants_only_those(world: World) -> None:
    create(world.host, EntityKind.QUEUE, OWN, authorization_rules=[rule_of(OWN, EVERY_RIGHT)])
    async with connected(world.context) as client:
        await put(client, OWN, lifetime_s=100, key=key_of(OWN))
        sending, receiving = await sender(client, OWN), await receiver(client, OWN)
        set_rules(world, [])
        set_rules(world, [rule_of(OWN, [AccessRights.SEND])])
        assert (sending.is_open, receiving.is_open) == (True, True)
        await put(client, OWN, lifetime_s=100, key=key_of(OWN))
        assert await ends_at(client, receiving) < 1
        check(await client.send(sending, MESSAGE))
        with pytest.raises(Refused, match=UNAUTHORIZED):
            await receiver(client, OWN)


@pytest.mark.promise("emulator.token-replay")
async def test_each_request_is_judged_by_the_rules_of_its_time(world: World) -> None:
    rule = rule_of(OWN, EVERY_RIGHT)
    create(world.host, EntityKind.QUEUE, OWN, authorization_rules=[rule])
    signed, statuses = token(OWN, 100, key_of(OWN)), []
    for rules in ([rule], [], [rule], [rule_of(OWN, [AccessRights.LISTEN])], [rule], []):
        set_rules(world, rules)
        answer = await world.front.answer(request("GET", f"/{OWN}", authorization=signed))
        statuses.append(answer.status)
    assert statuses == [200, 401, 200, 401, 200, 401]
