"""Links end with their tokens to within 100 ms, also on a connection on which nothing else happens."""

from __future__ import annotations

import asyncio

import pytest

from sbclient import clock
from sbclient.amqp import (
    Connection,
    ConnectionClosed,
    ConnectionOptions,
    DeliveryReceived,
    LinkDetached,
    encode_message,
)
from sbclient.broker.faults import Call, Operation
from sbclient.emulator.amqp.connection import serve_amqp
from sbclient.emulator.context import NamespaceContext
from sbclient.entities import AccessRights, AuthorizationRule, EntityKind
from sbclient.hosting.host import BrokerHost
from sbclient.message import ServiceBusMessage
from sbclient.rules.shared_access_signature import sign
from tests.emulator.amqp.client import HOST, connected, create, wire
from tests.emulator.conftest import context, host

__all__ = ["context", "host"]

LATE_S = 0.1


def put(host: BrokerHost, count: int = 1) -> None:
    """Store messages."""
    host.namespace.send(Call(Operation.SEND, clock.now()), "q", [encode_message(ServiceBusMessage(b"x"))] * count)


@pytest.mark.parametrize("settle_mode", [0, 1])
async def test_receiver_ends_when_its_token_expires(
    context: NamespaceContext, host: BrokerHost, settle_mode: int
) -> None:
    create(host, EntityKind.QUEUE, "q")
    async with connected(context) as client:
        await client.put_token("q", lives_s=1000)  # the connection then sleeps for seconds
        await asyncio.sleep(1)
        await client.put_token("q", lives_s=3.0)
        expires_at = int(clock.now() + 3.0)
        receiver = await client.receiver("q", credit=10, settle_mode=settle_mode)

        detached = await client.event(LinkDetached, receiver)

        assert detached.error is not None
        assert detached.error.condition == "amqp:link:detach-forced"
        assert clock.now() == pytest.approx(expires_at, abs=LATE_S)


async def test_nothing_is_delivered_after_the_expiry(context: NamespaceContext, host: BrokerHost) -> None:
    create(host, EntityKind.QUEUE, "q")
    async with connected(context) as client:
        await client.put_token("q", lives_s=2.0)
        receiver = await client.receiver("q", credit=10)
        expires_at = int(clock.now() + 2.0)
        await asyncio.sleep(expires_at - clock.now())
        put(host)

        with pytest.raises(TimeoutError):
            await client.event(DeliveryReceived, receiver, within_s=30)


async def test_management_links_end_with_their_token(context: NamespaceContext, host: BrokerHost) -> None:
    create(host, EntityKind.QUEUE, "q")
    async with connected(context) as client:
        await client.put_token("q", lives_s=2.0)
        expires_at = int(clock.now() + 2.0)
        for link in await client.node("q/$management"):
            assert await client.refusal(link) == "amqp:link:detach-forced"
        assert clock.now() == pytest.approx(expires_at, abs=LATE_S)


async def test_narrower_token_ends_the_links_that_it_does_not_cover(
    context: NamespaceContext, host: BrokerHost
) -> None:
    rule = AuthorizationRule(key_name="sender", rights=[AccessRights.SEND], primary_key="secret")
    create(host, EntityKind.QUEUE, "q", authorization_rules=[rule])
    async with connected(context, "q") as client:
        sender, receiver = await client.sender("q"), await client.receiver("q")
        narrower = sign(f"{HOST}/q", "sender", "secret", clock.now() + 3600)

        assert await client.put_token("q", narrower) == 202

        assert await client.refusal(receiver) == "amqp:link:detach-forced"
        assert sender.is_open


async def heard_of(context: NamespaceContext, idle_timeout_s: float) -> list[ConnectionClosed]:
    """The end of the connection of a client that sends only heartbeats for 15 s; empty if there is none.

    The client announces half of its idle timeout, as the specification recommends.
    """
    near, far = wire()
    server = asyncio.create_task(serve_amqp(far, context, b""))
    options = ConnectionOptions(container_id="c", hostname="h", idle_timeout_s=idle_timeout_s / 2)
    engine = Connection.client(options, now=clock.monotonic(), mechanism=None)
    ends: list[ConnectionClosed] = []
    near.write(engine.bytes_to_send(now=clock.monotonic()))
    until = clock.monotonic() + 15
    while not ends and clock.monotonic() < until:
        try:
            async with asyncio.timeout(0.1):
                engine.receive_bytes(await near.read(), now=clock.monotonic())
        except TimeoutError:
            engine.pass_time(now=clock.monotonic())
        while (event := engine.next_event()) is not None:
            if isinstance(event, ConnectionClosed):
                ends.append(event)
        if engine.has_output:
            near.write(engine.bytes_to_send(now=clock.monotonic()))
    await near.close()
    await server
    return ends


async def test_heartbeats_are_in_time_for_the_shortest_idle_timeout(context: NamespaceContext) -> None:
    assert await heard_of(context, 2.0) == []


async def test_idle_timeouts_under_a_second_are_rejected(context: NamespaceContext) -> None:
    (end,) = await heard_of(context, 1.9)

    assert end.by_peer
    assert end.error is not None
    assert end.error.condition == "amqp:not-allowed"
