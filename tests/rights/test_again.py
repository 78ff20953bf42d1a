"""Rights that end, begin and end again, and several links, tokens or connections that they apply to."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from sbclient import clock
from sbclient.amqp import LinkDetached
from sbclient.broker.faults import Call, Operation
from sbclient.emulator.sas import AuthorizationMode
from sbclient.entities import AccessRights, AuthorizationRule, EntityAddress, EntityKind, QueueProperties
from sbclient.rules.shared_access_signature import sign
from tests.emulator.amqp.client import Client, connected, create
from tests.emulator.requests import request
from tests.rights.credentials import EVERY_RIGHT, HOST
from tests.rights.messaging import MESSAGE, Refused, check, receiver, sender
from tests.rights.oracle import ENDED, UNAUTHORIZED
from tests.rights.world import DESTINATION, KEY_NAME, QUEUE, World, key_of, rule_of

OWN = "own"
LATE_S = 0.1


@pytest.fixture
async def world() -> World:
    return World(EVERY_RIGHT, AuthorizationMode.SAS)


def token(path: str, lifetime_s: float, key: str | None = None) -> str:
    return sign(f"sb://{HOST}/{path}", KEY_NAME, key_of("") if key is None else key, clock.now() + lifetime_s)


async def put(client: Client, path: str, lifetime_s: float, key: str | None = None) -> None:
    assert await client.put_token(path, token(path, lifetime_s, key)) == 202


async def ends_at(client: Client, link: object) -> float:
    """Return the time at which a link ended for lack of a right."""
    detached = await client.event(LinkDetached, link, within_s=100.0)
    assert detached.error is not None
    assert detached.error.condition == ENDED
    return clock.monotonic()


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
        await put(client, QUEUE, 30)
        link = await sender(client, QUEUE)
        for _ in range(3):
            await asyncio.sleep(29)
            await put(client, QUEUE, 30)
            check(await client.send(link, MESSAGE))
        assert await ends_at(client, link) == pytest.approx(117.0, abs=LATE_S)


async def test_second_token_ends_new_links_at_its_expiry_as_the_first_did(world: World) -> None:
    async with connected(world.context) as client, connected(world.context) as other:
        await put(other, "", 1_000)
        for _ in range(3):
            began_at = clock.monotonic()
            await put(client, "other", 10)
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
        await put(client, QUEUE, 10)
        await put(other, QUEUE, 20)
        links = [await sender(client, QUEUE), await receiver(client, QUEUE), await sender(client, QUEUE)]
        later = await sender(other, QUEUE)
        assert [await ends_at(client, link) for link in links] == pytest.approx([10.0] * 3, abs=LATE_S)
        check(await other.send(later, MESSAGE))
        assert await ends_at(other, later) == pytest.approx(20.0, abs=LATE_S)


async def test_links_end_one_by_one_with_the_last_token_that_covers_them(world: World) -> None:
    async with connected(world.context) as client:
        await put(client, "", 10)
        await put(client, QUEUE, 20)
        await put(client, DESTINATION, 30)
        links = [await sender(client, path) for path in ("other", QUEUE, DESTINATION)]
        assert [await ends_at(client, link) for link in links] == pytest.approx([10.0, 20.0, 30.0], abs=LATE_S)


async def test_token_with_fewer_rights_ends_the_links_opened_since_the_last_one(world: World) -> None:
    create(world.host, EntityKind.QUEUE, OWN, authorization_rules=[rule_of(OWN, [AccessRights.LISTEN])])
    async with connected(world.context) as client:
        for _ in range(2):
            await put(client, OWN, 100)
            sending = [await sender(client, OWN) for _ in range(2)]
            receiving = [await receiver(client, OWN) for _ in range(2)]
            await put(client, OWN, 100, key_of(OWN))
            for link in sending:
                assert await ends_at(client, link) < 1
            assert [link.is_open for link in receiving] == [True, True]


async def test_shorter_token_after_a_longer_one_counts(world: World) -> None:
    async with connected(world.context) as client:
        await put(client, QUEUE, 20)
        link = await sender(client, QUEUE)
        for lifetime_s in (90, 10):
            await put(client, QUEUE, lifetime_s)
        assert await ends_at(client, link) == pytest.approx(10.0, abs=LATE_S)


async def test_rule_that_was_removed_and_put_back_signs_again(world: World) -> None:
    rule = rule_of(OWN, [AccessRights.SEND])
    create(world.host, EntityKind.QUEUE, OWN, authorization_rules=[rule])
    async with connected(world.context) as client:
        for _ in range(2):
            await put(client, OWN, 100, key_of(OWN))
            link = await sender(client, OWN)
            set_rules(world, [])
            assert await client.put_token(OWN, token(OWN, 100, key_of(OWN))) == 401
            check(await client.send(link, MESSAGE))  # its token is valid until the expiry
            set_rules(world, [rule])
        changed = replace(rule, primary_key="new", secondary_key="newer")
        set_rules(world, [changed])
        statuses = [await client.put_token(OWN, token(OWN, 100, key)) for key in (key_of(OWN), "new", "newer")]
        assert statuses == [401, 202, 202]


async def test_rule_put_back_with_fewer_rights_grants_only_those(world: World) -> None:
    create(world.host, EntityKind.QUEUE, OWN, authorization_rules=[rule_of(OWN, EVERY_RIGHT)])
    async with connected(world.context) as client:
        await put(client, OWN, 100, key_of(OWN))
        sending, receiving = await sender(client, OWN), await receiver(client, OWN)
        set_rules(world, [])
        set_rules(world, [rule_of(OWN, [AccessRights.SEND])])
        assert (sending.is_open, receiving.is_open) == (True, True)
        await put(client, OWN, 100, key_of(OWN))
        assert await ends_at(client, receiving) < 1
        check(await client.send(sending, MESSAGE))
        with pytest.raises(Refused, match=UNAUTHORIZED):
            await receiver(client, OWN)


async def test_each_request_is_judged_by_the_rules_of_its_time(world: World) -> None:
    rule = rule_of(OWN, EVERY_RIGHT)
    create(world.host, EntityKind.QUEUE, OWN, authorization_rules=[rule])
    signed, statuses = token(OWN, 100, key_of(OWN)), []
    for rules in ([rule], [], [rule], [rule_of(OWN, [AccessRights.LISTEN])], [rule], []):
        set_rules(world, rules)
        answer = await world.front.answer(request("GET", f"/{OWN}", authorization=signed))
        statuses.append(answer.status)
    assert statuses == [200, 401, 200, 401, 200, 401]
