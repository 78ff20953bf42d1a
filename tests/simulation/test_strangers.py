"""The strangers can do what they are refused: with a token that counts, the same steps succeed and are noticed."""

from __future__ import annotations

from random import Random

import pytest

from sbclient import clock
from sbclient.broker.faults import Call, Operation
from sbclient.entities import AccessRights, EntityAddress, EntityKind, QueueProperties
from sbclient.message import ServiceBusMessage
from sbclient.testing import MemoryPair, memory_pair
from tests.emulator.amqp.client import connected
from tests.simulation.edges import CHECKS, Edges
from tests.simulation.history import History
from tests.simulation.plan import draw_plan
from tests.simulation.strangers import RIGHTS, TOKENS, VANDALIZED, Forger, Vandal, own_rule


@pytest.fixture
async def pair() -> MemoryPair:
    pair = memory_pair(seed=1)
    for name in ("orders", *VANDALIZED):
        properties = QueueProperties(name, authorization_rules=[own_rule(name)])
        call = Call(Operation.MANAGE, clock.true_now())
        pair.primary.namespace.management.create(call, EntityAddress(EntityKind.QUEUE, (name,)), properties)
    return pair


def forger_in(pair: MemoryPair, history: History) -> Forger:
    return Forger(pair.primary, history, Random(3), [("orders", "orders")])


@pytest.mark.parametrize("forgery", [*TOKENS, *RIGHTS])
async def test_no_forged_token_is_accepted(pair: MemoryPair, forgery: str) -> None:
    history = History()
    forger = forger_in(pair, history)
    for _ in range(4):
        async with connected(forger.context) as client:
            await forger.attempt(client, forgery, "orders", "orders")
    assert not history.violations
    assert len(pair.primary.namespace.queue("orders")) == 0


@pytest.mark.parametrize("right", list(AccessRights))
async def test_each_step_succeeds_with_a_valid_token_and_is_noticed(pair: MemoryPair, right: AccessRights) -> None:
    history = History()
    forger = forger_in(pair, history)
    async with pair.unpaired_client() as owner, owner.get_queue_sender("orders") as sender:
        await sender.send_messages(ServiceBusMessage("one"))
    async with connected(forger.context) as client:
        assert await client.put_token("orders", forger.token("orders")) == 202
        await forger.use(client, "good", "orders", "orders", right)
    assert [violation.invariant for violation in history.violations] == ["I19"]


async def test_vandal_opens_and_closes_connections(pair: MemoryPair) -> None:
    history = History(trace=True)
    for number in range(20):
        await Vandal(pair.primary, history, Random(number)).run(10.0)
    assert not history.violations
    assert len([line for line in history.lines if "vandal" in line]) == 80


@pytest.mark.parametrize("name", CHECKS)
async def test_each_limit_is_reached_from_both_sides(name: str) -> None:
    plan = next(plan for plan in map(draw_plan, range(1000)) if plan.has_edge)
    history = History()
    edges = Edges(memory_pair(seed=1, profile=plan.profile), plan.profile, history, Random(1))
    await edges.look_at(name)
    assert not history.violations
