"""No value in a request of the control API has another effect than an answer, in little time."""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Callable, Iterator
from typing import Any, Final
from urllib.parse import quote

import pytest

from sbclient.emulator.context import NamespaceContext
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
}

QUERIES: Final = {
    "state": ("entity",),
    "messages": ("entity", "order", "fragment", "session", "text", "count", "places"),
    "messages/1": ("entity",),
    "sessions": ("entity", "prefix"),
    "entities": ("entity", "rule"),
}
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


async def answered(context: NamespaceContext, method: str, target: str, body: bytes) -> None:
    """Send a request, and check the answer."""
    began_at = time.process_time()
    answer = await Control(context).api.answer(request(method, f"/$control/{target}", body))
    assert answer.status in (200, 400, 404, 409), answer.body[:300]
    assert time.process_time() - began_at < 2.0
    if answer.status != 200:
        assert len(answer.body) < 10_000
    json.loads(answer.body)


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
                await answered(context_with_queue, method, path, data)
    record_property("attacks", len(sizes))
    record_property("bytes", max(sizes))


@pytest.mark.promise("emulator.json")
@pytest.mark.parametrize("path", QUERIES)
async def test_every_value_in_a_query_is_answered(path: str, context_with_queue: NamespaceContext) -> None:
    for name in QUERIES[path]:
        for text in TEXTS:
            rest = "entity=orders&" if name != "entity" else ""
            await answered(context_with_queue, "GET", f"{path}?{rest}{name}={quote(text)}", b"")
