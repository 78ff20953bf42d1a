"""Heartbeats keep a connection open, unless the idle timeout is too short for them."""

from __future__ import annotations

import asyncio

from sbclient import clock
from sbclient.amqp import (
    Connection,
    ConnectionClosed,
    ConnectionOptions,
)
from sbclient.emulator.amqp.connection import serve_amqp
from sbclient.emulator.context import NamespaceContext
from tests.emulator.amqp.client import wire
from tests.emulator.conftest import context, host

__all__ = ["context", "host"]


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
