"""No value in a request of the control API has another effect than an answer, in little time."""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

import pytest

from sbclient.emulator.context import NamespaceContext
from sbclient.emulator.control.api import ITEM, ROUTES
from sbclient.emulator.net.http_messages import Request
from sbclient.entities import EntityKind
from sbclient.hosting.host import BrokerHost
from sbclient.message import ServiceBusMessage
from tests.emulator.amqp.client import create, put
from tests.emulator.control.scene import Control
from tests.emulator.requests import request
from tests.hostile.keys import MODULUS

VALUES: Final[list[Any]] = [
    *(None, True, 0, -1, 1, 2**31, 2**53, 2**63 - 1, 2**63, -(2**63) - 1, 10**4_000, 0.5, -0.5, 1e308),
    *(float("inf"), float("nan"), "", "\0", "\ud800", "٣", "1" * 5_000, "x" * 900_000),
    *([], [None], [[]], [{}], [10**4_000], [MODULUS * factor for factor in range(40_000)], ["x"] * 10_000),
    *({}, {"a": {}}, {"datetime": "x"}, {"long": "9" * 5_000}, {"timespan": "9" * 20}, {"uuid": ""}),
]
"""Edges of numbers, and values of each type of JSON."""

BODIES: Final[dict[str, list[Any]]] = {
    "POST reset": [None],
    "POST purge": [{"entity": "orders", "sequence_numbers": [1]}],
    "POST resubmit": [{"entity": "orders/$DeadLetterQueue", "sequence_numbers": [1]}],
    "POST faults": [
        {"kind": "error", "entity": "orders", "probability": 0.5, "count": 1, "duration_s": 1, "error": "x"},
        {"kind": "slow", "entity": "orders", "fragments": [0], "operations": ["send"], "latency_s": 1},
        {"kind": "detach", "entity": "orders", "condition": "amqp:not-found", "description": "x"},
    ],
    "PUT faults": [{"seed": 1, "faults": [{"kind": "down"}]}, [{"kind": "down"}]],
    "DELETE faults": [None],
    "DELETE faults/1": [None],
    "POST messages?entity=orders": [
        {
            "body": "x",
            "copies": 1,
            "message_id": "m",
            "session_id": "s",
            "time_to_live": "PT1S",
            "scheduled_enqueue_time_utc": "2030-01-01T00:00:00Z",
            "application_properties": {"a": 1},
        },
        {"body_base64": "eA=="},
        {"body_type": "value", "body": {"a": [1]}},
        {"body_type": "sequence", "body": [[1]]},
    ],
    "POST entities": [{"kind": "queue", "names": ["new"], "settings": {"lock_duration": "30s"}}],
    "PUT entities?entity=orders": [{"settings": {"max_delivery_count": "5", "default_message_time_to_live": "1d"}}],
    "DELETE entities?entity=orders": [None],
}
"""For each request that is not GET, bodies with every member that it takes; None = it takes none."""

TEXTS: Final = ("", "-1", "٣", "1" * 25, "9" * 5_000, "1_0", "1e3", "0.0", "-.-", "." * 5_000, "\0", "x" * 5_000)


def with_value(body: Any, value: Any) -> Iterator[Any]:
    """The body with the value at each of its places."""
    yield value
    if isinstance(body, dict):
        for name, inner in body.items():
            yield from ({**body, name: each} for each in with_value(inner, value))
        yield {**body, "other": value}
    elif isinstance(body, list):
        for place, inner in enumerate(body):
            yield from ([*body[:place], each, *body[place + 1 :]] for each in with_value(inner, value))


async def answered(context: NamespaceContext, asked: Request) -> None:
    """Send a request, and check the answer."""
    began_at = time.thread_time()
    answer = await Control(context).api.answer(asked)
    assert answer.status in (200, 400, 404, 409), answer.body[:300]
    assert time.thread_time() - began_at < 2.0
    if answer.status != 200:
        assert len(answer.body) < 10_000
    if answer.events is None:
        json.loads(answer.body)
    else:
        await answer.events.aclose()


class Query(dict[str, str]):
    """The parameters of a request. `read` are the names of those that its handler has looked for."""

    def __init__(self, given: Mapping[str, str]) -> None:
        super().__init__(given)
        self.read: set[str] = set()

    def get(self, name: str, default: Any = None) -> Any:
        self.read.add(name)
        return super().get(name, default)

    def __getitem__(self, name: str) -> str:
        self.read.add(name)
        return super().__getitem__(name)

    def __contains__(self, name: object) -> bool:
        self.read.add(str(name))
        return super().__contains__(name)


def route_of(target: str) -> tuple[str, str]:
    """The key of `ROUTES` and the method that a row of `BODIES` stands for."""
    method, path = target.split()
    return path.partition("?")[0].replace("/1", ITEM), method


def test_each_request_that_is_not_get_has_its_bodies() -> None:
    known = {route_of(target) for target in BODIES}
    routes = {(name, method) for name, methods in ROUTES.items() for method in methods if method != "GET"}
    assert routes - known == set(), "add them to BODIES in tests/emulator/control/test_hostile_values.py"
    assert known - routes == set(), "remove them from BODIES in tests/emulator/control/test_hostile_values.py"


@pytest.fixture
def context_with_queue(context: NamespaceContext, host: BrokerHost) -> NamespaceContext:
    create(host, EntityKind.QUEUE, "orders")
    put(host, "orders", ServiceBusMessage(b"x"))
    return context


@pytest.mark.promise("emulator.json")
@pytest.mark.parametrize("target", BODIES)
async def test_every_value_in_a_body_is_answered(
    target: str, context_with_queue: NamespaceContext, record_property: Callable[[str, object], None]
) -> None:
    sizes = []
    method, path = target.split()
    for value in VALUES:
        for template in BODIES[target]:
            for body in with_value(copy.deepcopy(template), value):
                data = json.dumps(body).encode()
                sizes.append(len(data))
                await answered(context_with_queue, request(method, f"/$control/{path}", data))
    record_property("attacks", len(sizes))
    record_property("bytes", max(sizes))


@pytest.mark.promise("emulator.json")
@pytest.mark.parametrize(("name", "method"), [(name, method) for name in ROUTES for method in ROUTES[name]])
async def test_every_value_in_the_address_is_answered(
    name: str, method: str, context_with_queue: NamespaceContext, record_property: Callable[[str, object], None]
) -> None:
    body = json.dumps(next((BODIES[each][0] for each in BODIES if route_of(each) == (name, method)), None)).encode()
    asked = request(method, f"/$control/{name.replace(ITEM, '/1')}", b"" if body == b"null" else body)
    query = Query({"entity": "orders"})
    await answered(context_with_queue, replace(asked, query=query))
    attacks = [replace(asked, query={"entity": "orders", each: text}) for each in sorted(query.read) for text in TEXTS]
    if name.endswith(ITEM):
        attacks += [replace(asked, segments=(*asked.segments[:2], text)) for text in TEXTS]
    for each in attacks:
        await answered(context_with_queue, each)
    record_property("attacks", len(attacks))
    assert ROUTES[name][method].query in {*query.read, ""}
