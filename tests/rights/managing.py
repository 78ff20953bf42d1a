"""The operations over HTTP: each request, the path that its token must cover, and the claim.

Those on messages need Send or Listen, all others Manage.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from tests.emulator.requests import described, request
from tests.rights.oracle import Claim
from tests.rights.world import OTHER, QUEUE, RULE, SESSIONS, SUBSCRIPTION, TOPIC, World

QUEUE_BODY: Final = described("Queue")
TOPIC_BODY: Final = described("Topic")
SUBSCRIPTION_BODY: Final = described("Subscription")
RULE_BODY: Final = described("Rule", '<Filter i:type="TrueFilter"/>')
FORWARDING_BODY: Final = described("Queue", ForwardTo=OTHER)

CHANGE_NOTHING: Final = (
    "update a subscription",
    "control: heal",
    "control: heal one fault, which does not exist",
    "messages: renew",
)
"""Operations that find nothing to change in the world, where no time passes."""

LOCKED: Final = "1/00000000-0000-0000-0000-000000000000"
"""Stands in a target for the locked message of the world."""


@dataclass(frozen=True)
class HttpOperation:
    """One request.

    Attributes:
        path: from which scopes are derived; empty = the namespace.
        also: another path that a token may cover instead, the address of a list or a rule.
        needed_on: other paths that it must cover too.
        answers: the status of success.
    """

    name: str
    method: str
    target: str
    path: str
    answers: int = 200
    body: str = ""
    also: str | None = None
    needed_on: tuple[str, ...] = ()
    claim: Claim = Claim.MANAGE
    is_update: bool = field(default=False, kw_only=True)

    def changes(self) -> bool:
        """Whether it changes something when it is allowed."""
        return self.method != "GET" and self.name not in CHANGE_NOTHING

    async def status(self, world: World, authorization: str | None) -> int:
        headers = {"if_match": "*"} if self.is_update else {}
        target = self.target.replace(LOCKED, f"{world.locked_number}/{world.locked}")
        asked = request(self.method, target, self.body, authorization=authorization or "", **headers)
        answer = await world.front.answer(asked)
        if answer.events is not None:
            await answer.events.aclose()
        assert answer.status == self.answers or b"secret" not in answer.body, "a refusal tells what it refuses"
        return answer.status


def _of(kind: str, target: str, new_target: str, path: str, new_path: str, body: str) -> Iterator[HttpOperation]:
    own, new = (f"{path}/Rules/{RULE}", f"{path}/Rules/new") if kind == "rule" else (None, None)
    yield HttpOperation(f"get a {kind}", "GET", target, path, also=own)
    yield HttpOperation(f"create a {kind}", "PUT", new_target, new_path, 201, body, also=new)
    yield HttpOperation(f"update a {kind}", "PUT", target, path, 200, body, also=own, is_update=True)
    yield HttpOperation(f"delete a {kind}", "DELETE", target, path, also=own)


def _operations() -> Iterator[HttpOperation]:
    yield from _of("queue", f"/{QUEUE}", f"/{QUEUE}new", QUEUE, f"{QUEUE}new", QUEUE_BODY)
    yield HttpOperation("create a queue below", "PUT", f"/{QUEUE}%2Fnew", f"{QUEUE}/new", 201, QUEUE_BODY)
    yield HttpOperation("delete a queue below", "DELETE", f"/{QUEUE}%2Fx", f"{QUEUE}/x")
    yield from _of("topic", f"/{TOPIC}", "/topic-new", TOPIC, "topic-new", TOPIC_BODY)
    below = f"/{TOPIC}/subscriptions"
    yield from _of(
        "subscription", f"{below}/sub", f"{below}/new", SUBSCRIPTION, f"{TOPIC}/Subscriptions/new", SUBSCRIPTION_BODY
    )
    rules = f"{below}/sub/rules"
    yield from _of("rule", f"{rules}/{RULE}", f"{rules}/new", SUBSCRIPTION, SUBSCRIPTION, RULE_BODY)
    yield HttpOperation("list queues", "GET", "/$Resources/queues", "", also="$Resources/Queues")
    yield HttpOperation("list topics", "GET", "/$Resources/topics", "", also="$Resources/Topics")
    yield HttpOperation("list subscriptions", "GET", below, TOPIC, also=f"{TOPIC}/Subscriptions")
    yield HttpOperation("list rules", "GET", rules, SUBSCRIPTION, also=f"{SUBSCRIPTION}/Rules")
    yield HttpOperation("namespace", "GET", "/$namespaceinfo", "", also="$namespaceinfo")
    yield HttpOperation(
        "forward to another", "PUT", f"/{QUEUE}", QUEUE, 200, FORWARDING_BODY, needed_on=(OTHER,), is_update=True
    )
    for name, method, target, body in (
        ("state", "GET", "state", ""),
        ("state of one", "GET", f"state?entity={QUEUE}", ""),
        ("purge", "POST", "purge", ""),
        ("purge one", "POST", "purge", f'{{"entity": "{QUEUE}"}}'),
        ("reset", "POST", "reset", ""),
        ("faults", "GET", "faults", ""),
        ("throw a fault", "POST", "faults", '{"kind": "down"}'),
        ("throw other faults", "PUT", "faults", '{"faults": [{"kind": "latency", "latency_s": 1}]}'),
        ("heal", "DELETE", "faults", ""),
        ("heal one fault, which does not exist", "DELETE", "faults/1", ""),
        ("events", "GET", "events", ""),
        ("messages", "GET", f"messages?entity={QUEUE}", ""),
        ("one message", "GET", f"messages/1?entity={QUEUE}", ""),
        ("send a message", "POST", f"messages?entity={QUEUE}", '{"body": "sent"}'),
        ("resubmit", "POST", "resubmit", f'{{"entity": "{QUEUE}/$DeadLetterQueue"}}'),
        ("sessions", "GET", f"sessions?entity={SESSIONS}", ""),
        ("show an entity", "GET", f"entities?entity={QUEUE}", ""),
        ("create an entity", "POST", "entities", '{"kind": "queue", "names": ["made"]}'),
        ("change an entity", "PUT", f"entities?entity={QUEUE}", '{"settings": {"max_delivery_count": 5}}'),
        ("delete an entity", "DELETE", f"entities?entity={QUEUE}", ""),
        ("overview", "GET", "overview", ""),
        ("watch", "GET", f"watch?namespace=contoso&entity={QUEUE}", ""),
    ):
        answers = 404 if target == "faults/1" else 200
        yield HttpOperation(f"control: {name}", method, f"/$control/{target}", "", answers, body)
    for name, method, target, path, answers, claim in (
        ("send", "POST", "messages", QUEUE, 201, Claim.SEND),
        ("send to a topic", "POST", "messages", TOPIC, 201, Claim.SEND),
        ("lock", "POST", "messages/head", QUEUE, 201, Claim.LISTEN),
        ("receive", "DELETE", "messages/head", QUEUE, 200, Claim.LISTEN),
        ("receive from a subscription", "DELETE", "messages/head", SUBSCRIPTION, 200, Claim.LISTEN),
        ("receive dead letters", "DELETE", "messages/head", f"{QUEUE}/$DeadLetterQueue", 200, Claim.LISTEN),
        ("complete", "DELETE", f"messages/{LOCKED}", QUEUE, 200, Claim.LISTEN),
        ("unlock", "PUT", f"messages/{LOCKED}", QUEUE, 200, Claim.LISTEN),
        ("renew", "POST", f"messages/{LOCKED}", QUEUE, 200, Claim.LISTEN),
    ):
        also = f"{path}/messages"
        yield HttpOperation(f"messages: {name}", method, f"/{path}/{target}", path, answers, "sent", also, claim=claim)
    yield HttpOperation("health", "GET", "/health", "", claim=Claim.NOTHING)
    yield HttpOperation("a file of the page", "GET", "/$page/main.js", "", claim=Claim.NOTHING)


OPERATIONS: Final = tuple(_operations())
