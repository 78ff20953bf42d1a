"""Frames that come before the answer to an attach: their effect is that of the same frames after it, and at once."""

from __future__ import annotations

from random import Random

import pytest

from sbclient import clock
from sbclient.amqp import ACCEPTED, Attach
from sbclient.amqp.performatives import Detach, Disposition, Flow, Transfer
from sbclient.broker.faults import Call, Operation
from sbclient.emulator import Emulator
from sbclient.emulator.context import NamespaceContext
from sbclient.entities import EntityKind
from sbclient.hosting.host import BrokerHost
from tests.emulator.amqp.client import SETTLED, create, put
from tests.emulator.amqp.raw import RECEIVER, detached, flow, raw_client, raw_socket, receiver

SESSION_FILTER = "com.microsoft:session-filter"
BODIES = ["0", "1", "2"]
PLACES = ["q", "t/Subscriptions/s", "session", "next-session", "deleting"]
ORDERS = ["before", "with", "after"]


def prepared(host: BrokerHost, place: str) -> Attach:
    """Make an entity with three messages; returns the attach that receives them."""
    if place.startswith("t/"):
        create(host, EntityKind.TOPIC, "t")
        create(host, EntityKind.SUBSCRIPTION, "t", "s")
        put(host, "t", *BODIES)
        return receiver("r", 0, place)
    if place.endswith("session"):
        create(host, EntityKind.QUEUE, "s", requires_session=True)
        put(host, "s", *BODIES, session_id="one")
        return receiver("r", 0, "s", filters={SESSION_FILTER: "one" if place == "session" else None})
    create(host, EntityKind.QUEUE, "q")
    put(host, "q", *BODIES)
    return receiver("r", 0, "q", snd_settle_mode=SETTLED if place == "deleting" else 0)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("place", PLACES)
async def test_credit_counts_in_every_order(
    context: NamespaceContext, host: BrokerHost, place: str, order: str
) -> None:
    attach = prepared(host, place)
    async with raw_client(context) as raw:
        await raw.open()
        if order == "with":  # the answer waits for a step of the event loop, in which the flow arrives
            raw.write(attach)
            raw.write(flow(0, credit=10))
        elif order == "before":
            raw.write(attach, flow(0, credit=10))
        else:
            raw.write(attach)
            await raw.next(Attach)
            raw.write(flow(0, credit=10))
        assert await raw.messages(3) == BODIES


@pytest.mark.parametrize("order", ["before", "after"])
@pytest.mark.parametrize("stored", [0, 3])
async def test_drain_is_answered_in_every_order(
    context: NamespaceContext, host: BrokerHost, order: str, stored: int
) -> None:
    create(host, EntityKind.QUEUE, "q")
    put(host, "q", *BODIES[:stored])
    async with raw_client(context) as raw:
        await raw.open()
        raw.write(receiver("r", 0, "q"), *[flow(0, credit=10, drain=True)][: order == "before"])
        await raw.next(Attach)
        if order == "after":
            raw.write(flow(0, credit=10, drain=True))
        assert await raw.messages(stored) == BODIES[:stored]
        answer = await raw.next(Flow, within_s=2)
        assert (answer.link_credit, answer.delivery_count, answer.drain) == (0, 10, True)


@pytest.mark.parametrize("order", ["before", "after"])
async def test_last_of_several_flows_counts(context: NamespaceContext, host: BrokerHost, order: str) -> None:
    create(host, EntityKind.QUEUE, "q")
    put(host, "q", *BODIES)
    flows = [flow(0, credit=0), flow(0, credit=50, drain=True), flow(0, credit=1), flow(0, credit=2)]
    async with raw_client(context) as raw:
        await raw.open()
        raw.write(receiver("r", 0, "q"), *(flows if order == "before" else []))
        await raw.next(Attach)
        if order == "after":
            raw.write(*flows)
        assert await raw.messages(2) == BODIES[:2]
        with pytest.raises(TimeoutError):
            await raw.next(Transfer, within_s=100)


async def test_echo_that_came_early_is_answered(context: NamespaceContext, host: BrokerHost) -> None:
    create(host, EntityKind.QUEUE, "q")
    async with raw_client(context) as raw:
        await raw.open()
        raw.write(receiver("r", 0, "q"), flow(0, credit=3, echo=True), flow(0, credit=4))
        assert (await raw.next(Flow, within_s=2)).link_credit == 4


async def test_credit_of_a_link_that_follows_a_detach(context: NamespaceContext, host: BrokerHost) -> None:
    create(host, EntityKind.QUEUE, "q")
    put(host, "q", *BODIES)
    async with raw_client(context) as raw:
        await raw.open()
        raw.write(receiver("one", 0, "q"), flow(0, credit=1))
        assert await raw.messages(1) == ["0"]
        raw.write(Disposition(RECEIVER, 0, state=ACCEPTED), Detach(0, closed=True))
        raw.write(receiver("two", 0, "q"), flow(0, credit=5))
        assert await raw.messages(2) == ["1", "2"]


@pytest.mark.parametrize("address", ["missing", "s"])
async def test_refused_link_with_credit_gets_the_refusal_only(
    context: NamespaceContext, host: BrokerHost, address: str
) -> None:
    create(host, EntityKind.QUEUE, "s", requires_session=True)
    put(host, "s", "x", session_id="one")
    async with raw_client(context) as raw:
        await raw.open()
        raw.write(receiver("r", 0, address), flow(0, credit=10, drain=True, echo=True))
        answer = await raw.next(Attach)
        assert (answer.source, answer.target) == (None, None)
        assert await detached(raw) == ("amqp:not-found" if address == "missing" else "amqp:not-allowed")
        for kind in (Transfer, Flow):
            with pytest.raises(TimeoutError):
                await raw.next(kind, within_s=100)


async def test_answer_that_is_too_large_ends_the_session_at_once(context: NamespaceContext, host: BrokerHost) -> None:
    """The events of that end are queued while no bytes come."""
    create(host, EntityKind.QUEUE, "s", requires_session=True)
    async with raw_client(context) as raw:
        await raw.open(max_frame_size=512)
        raw.write(receiver("r" * 600, 0, "s", filters={SESSION_FILTER: "one"}))
        began_at = clock.monotonic()
        with pytest.raises(TimeoutError):
            await raw.next(Attach, within_s=1)
        lock = host.namespace.accept_session(Call(Operation.SESSION, clock.now()), "s", "one")
        assert lock is not None  # the link has let go of it
        assert clock.monotonic() - began_at < 2


@pytest.mark.real_time
async def test_twenty_of_twenty_connections_get_their_messages(emulator: Emulator) -> None:
    host, seed = emulator.context().host, Random(1)
    for attempt in range(20):
        emulator.create_queue(f"q{attempt}")
        put(host, f"q{attempt}", *BODIES)
        async with raw_socket(emulator.ports["contoso"]) as raw:
            await raw.open()
            raw.write(receiver("r", 0, f"q{attempt}"), flow(0, credit=seed.randint(3, 300)))
            assert await raw.messages(3, within_s=2) == BODIES
            for delivery_id in range(3):
                assert (await raw.settle(delivery_id, ACCEPTED)).state == ACCEPTED
