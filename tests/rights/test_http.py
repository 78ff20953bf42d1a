"""Rights x scope x validity x operation over HTTP: allowed exactly where the documents allow it."""

from __future__ import annotations

import json
from random import Random

import pytest

from sbclient import clock
from sbclient.emulator.context import NamespaceContext
from sbclient.emulator.control.api import ITEM, ROUTES
from sbclient.emulator.faults import WireFaults
from sbclient.emulator.messaging import api as messaging
from sbclient.emulator.page.namespace_registry import NamespaceRegistry
from sbclient.emulator.page.watch_api import RESOURCES
from sbclient.emulator.router import Router
from sbclient.emulator.sas import ROOT_KEY_NAME, Authorizer, root_rule
from sbclient.hosting.host import BrokerHost
from sbclient.rules.shared_access_signature import sign
from tests.emulator.requests import request
from tests.rights import matrix, oracle
from tests.rights.managing import OPERATIONS, HttpOperation
from tests.rights.matrix import Cell
from tests.rights.oracle import Claim
from tests.rights.world import World

CHUNKS = 2
REFUSED = 401


def expected(cell: Cell[HttpOperation]) -> int:
    operation = cell.operation

    def is_allowed(*paths: str) -> bool:
        return oracle.allows(cell.rights, cell.scope, cell.flaw, paths, operation.claim)

    paths = [operation.path] if operation.also is None else [operation.path, operation.also]
    allowed = any(is_allowed(path, *operation.needed_on) for path in paths)
    return operation.answers if allowed else REFUSED


async def seen(cell: Cell[HttpOperation], world: World) -> int:
    return await cell.operation.status(world, cell.flaw.write(cell.scope, clock.now()))


@pytest.mark.promise("emulator.rights")
@pytest.mark.parametrize("part", range(CHUNKS))
@pytest.mark.parametrize("which", matrix.SETS)
async def test_operation_is_allowed_exactly_when_documented(which: str, part: int) -> None:
    cells = matrix.checked(which, OPERATIONS)[part::CHUNKS]
    await matrix.check(cells, seen, expected, lambda result: result == REFUSED, HttpOperation.changes)


def test_matrix_has_enough_cells() -> None:
    assert len(matrix.distinct(OPERATIONS)) >= 1_400


def test_matrix_has_every_route() -> None:
    """A new route of the control API or of messages belongs into `tests/rights/managing.py`."""
    asked = [request(operation.method, operation.target) for operation in OPERATIONS]
    of_messages = {id(found[0]) for each in asked if (found := messaging.target_of(each)) is not None}
    left_out = [key for key, route in messaging.ROUTES.items() if id(route) not in of_messages]
    assert not left_out, "add them to tests/rights/managing.py"
    known = {(each.segments[1] + ITEM * (len(each.segments) == 3), each.method) for each in asked if each.segments[1:]}
    routes = {(name, method) for name, methods in ROUTES.items() for method in methods}
    assert not routes.union((name, "GET") for name in RESOURCES) - known, "add them to tests/rights/managing.py"


def test_oracle_allows_and_rejects_every_operation_except_health() -> None:
    """An oracle with a constant result would make the other tests useless."""
    for operation in OPERATIONS:
        statuses = {expected(cell) for which in matrix.SETS for cell in matrix.cells(which, [operation])}
        assert statuses == ({operation.answers} if operation.claim is Claim.NOTHING else {operation.answers, REFUSED})


async def test_key_of_one_namespace_gives_no_access_to_another_on_the_port() -> None:
    """Responses about several namespaces contain only those that the key covers."""
    registry, keys = NamespaceRegistry(), {"contoso": "first", "contoso-backup": "second"}
    contexts = []
    for name, key in keys.items():
        host = BrokerHost(name, random=Random(1))
        context = NamespaceContext(
            host=host, authorizer=Authorizer(rules=[root_rule(key)]), wire_faults=WireFaults(Random(1))
        )
        registry.add(context, lambda: None)
        contexts.append(context)
    front = Router(contexts[0], registry)

    async def status(target: str, key: str) -> int:
        authorization = sign("https://localhost/", ROOT_KEY_NAME, key, clock.now() + 60)
        return (await front.answer(request("GET", target, authorization=authorization))).status

    assert [await status("/$control/state", key) for key in keys.values()] == [200, 401]
    assert [await status("/$control/state?namespace=contoso-backup", key) for key in keys.values()] == [401, 200]
    assert [await status("/$namespaceinfo", key) for key in keys.values()] == [200, 401]
    for name, key in keys.items():
        authorization = sign("https://localhost/", ROOT_KEY_NAME, key, clock.now() + 60)
        answer = await front.answer(request("GET", "/$control/overview", authorization=authorization))
        assert [each["name"] for each in json.loads(answer.body)["namespaces"]] == [name]
