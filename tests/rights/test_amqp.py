"""Rights x scope x validity x operation over AMQP: allowed exactly where the documents allow it."""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest

from sbclient import clock
from sbclient.amqp import PlainCredentials, servicebus
from sbclient.emulator.amqp.management import ManagementNode
from sbclient.emulator.sas import AuthorizationMode
from sbclient.entities import AccessRights
from tests.emulator.amqp.client import Client, connected
from tests.rights import matrix, messaging, oracle
from tests.rights.credentials import EVERY_RIGHT, FLAWLESS, RIGHTS, scopes_of
from tests.rights.matrix import Cell
from tests.rights.messaging import MANAGEMENT, OK, OPERATIONS, AmqpOperation
from tests.rights.oracle import UNAUTHORIZED
from tests.rights.world import KEY_NAME, QUEUE, World, key_of

CHUNKS = 3
"""Tests that each set of cells is cut into."""


def expected(cell: Cell[AmqpOperation]) -> tuple[list[int], str]:
    """Return the expected status of each put, and the result of the operation."""
    operation = cell.operation
    is_allowed = oracle.allows(cell.rights, cell.scope, cell.flaw, operation.needed_on, operation.claim)
    puts = [oracle.status_of_put(cell.scope, cell.flaw, path) for path in audiences(cell)]
    return puts, OK if is_allowed else UNAUTHORIZED


def audiences(cell: Cell[AmqpOperation]) -> list[str]:
    """Return the paths for which the token is put: its own resource, and those that the operation needs."""
    return [cell.scope.path, *(path.removesuffix(MANAGEMENT) for path in cell.operation.needed_on)]


async def seen(cell: Cell[AmqpOperation], world: World) -> tuple[list[int], str]:
    token = cell.flaw.write(cell.scope, clock.now())
    async with connected(world.context) as client:
        if token is None:
            puts = [status for status, _ in zip(expected(cell)[0], audiences(cell), strict=True)]  # none is put
        else:
            puts = [await client.put_token(path, token) for path in audiences(cell)]
        outcome = await cell.operation.outcome(client, world)
        check_nothing_was_read(client, outcome)
    return puts, outcome


def check_nothing_was_read(client: Client, outcome: str) -> None:
    assert outcome == OK or b"secret" not in client.pipe.heard, "a refused operation has shown a message"


@pytest.mark.promise("emulator.rights")
@pytest.mark.deviation("emulator.schedule-right")
@pytest.mark.parametrize("part", range(CHUNKS))
@pytest.mark.parametrize("which", matrix.SETS)
async def test_operation_is_allowed_exactly_when_documented(which: str, part: int) -> None:
    cells = matrix.checked(which, OPERATIONS)[part::CHUNKS]
    await matrix.check(cells, seen, expected, lambda result: result[1] != OK)


@pytest.mark.parametrize("rights", RIGHTS, ids=lambda rights: "+".join(sorted(rights)) or "none")
async def test_sasl_plain_grants_the_rights_of_the_rule(rights: frozenset[AccessRights]) -> None:
    """SASL PLAIN with name and value of a namespace key needs no token."""
    whole = next(scope for scope in scopes_of(QUEUE) if scope.name == "the namespace")
    wrong = []
    for operation in OPERATIONS:
        world = World(rights, AuthorizationMode.SAS)
        async with connected(world.context, credentials=PlainCredentials(KEY_NAME, key_of(""))) as client:
            outcome = await operation.outcome(client, world)
        is_allowed = oracle.allows(rights, whole, FLAWLESS, operation.needed_on, operation.claim)
        if outcome != (OK if is_allowed else UNAUTHORIZED) or not (is_allowed or world.print() == world.at_first):
            wrong.append(f"{operation.name}: {outcome} came")
    assert not wrong, wrong


@pytest.mark.parametrize(
    ("name", "key"),
    [(KEY_NAME, "guess"), (KEY_NAME, ""), ("unknown", key_of("")), (KEY_NAME, key_of(QUEUE)), ("", "")],
)
async def test_sasl_plain_with_an_unknown_key_fails(name: str, key: str) -> None:
    world = World(EVERY_RIGHT, AuthorizationMode.SAS)
    async with connected(world.context, credentials=PlainCredentials(name, key)) as client:
        assert (await client.closed).error is not None
    assert world.print() == world.at_first


def test_matrix_has_enough_cells() -> None:
    assert len(matrix.distinct(OPERATIONS)) >= 1_400


def test_matrix_has_every_operation_of_the_management_node() -> None:
    no_peer: Any = None
    every = {name.removeprefix(servicebus.PREFIX) for name in ManagementNode(no_peer, QUEUE)._operations}
    left_out = every - set(re.findall(r'"([a-z-]+)"', inspect.getsource(messaging)))
    assert not left_out, "add them to tests/rights/messaging.py"
