"""A receiver that waits gets each message when one that asks all the time gets it, whatever brings the message."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from random import Random
from typing import Any
from zlib import crc32

import pytest

from sbclient import clock
from sbclient.amqp import encode_message
from sbclient.broker.faults import Call, Operation
from sbclient.delivery import Settlement
from sbclient.entities import SubscriptionProperties, TopicProperties
from sbclient.testing import run_virtual
from tests.broker.driver import (
    ABANDON,
    COMPLETE,
    DEAD_LETTER,
    DEFER,
    address,
    at,
    bodies,
    message,
    seconds,
    topic_address,
)
from tests.hosting.test_host import Running

SPAN_S = 60.0
PAUSE_S = 0.05
"""Between two requests of a receiver that asks all the time."""

SENT_TO = ("q", "p", "near", "far", "topic")
RECEIVED_AT = ("q", "q/$DeadLetterQueue", "p", "dead", "topic/Subscriptions/y")


async def build(running: Running) -> None:
    """Queues that forward, also what expires, a partitioned one, and a topic with two subscriptions."""
    life: dict[str, Any] = {
        "lock_duration": seconds(5.3),
        "max_delivery_count": 3,
        "dead_lettering_on_message_expiration": True,
    }
    running.create("dead")
    running.create("q", **life)
    running.create("p", enable_partitioning=True, forward_dead_lettered_messages_to="dead", **life)
    running.create("near", forward_to="q")
    running.create("far", forward_to="near")
    call, management = Call(Operation.MANAGE, clock.now()), running.namespace.management
    management.create(call, topic_address("topic"), TopicProperties("topic"))
    management.create(call, address("topic/Subscriptions/x"), SubscriptionProperties("x", forward_to="p"))
    dead: dict[str, Any] = {"forward_dead_lettered_messages_to": "dead", **life}
    management.create(call, address("topic/Subscriptions/y"), SubscriptionProperties("y", **dead))


def sends(random: Random) -> Iterator[tuple[float, list[tuple[str, str, float, float]], bool]]:
    """Yield when to send, what, and whether in a transaction.

    A message has a body, the path, and the seconds until it is enqueued and that it lives.
    """
    for number in range(12):
        path = random.choice(SENT_TO)
        some = [
            (f"{number}-{part}", path, random.choice((0.0, 0.0, 3.0, 9.0)), random.choice((2.0, 7.0, 100.0)))
            for part in range(random.choice((1, 1, 3)))
        ]
        yield random.uniform(0.0, 25.0), some, random.random() < 0.3


def outcome(body: str, count: int, path: str) -> Settlement | None:
    """How a receiver settles a message; None = it lets the lock expire."""
    if path.endswith("$DeadLetterQueue"):
        return COMPLETE
    return (COMPLETE, ABANDON, DEAD_LETTER, None, DEFER, COMPLETE)[crc32(f"{body} {count}".encode()) % 6]


async def arrivals(seed: int, *, is_waiting: bool) -> dict[tuple[str, int, str], float]:
    """When each message is received, by its body, its delivery count and the path."""
    random, running = Random(seed), Running()
    await build(running)
    began_at = clock.now()
    found: dict[tuple[str, int, str], float] = {}

    async def send(after_s: float, some: list[tuple[str, str, float, float]], *, together: bool) -> None:
        await asyncio.sleep(after_s)
        path = some[0][1]
        messages = []
        for body, _, later_s, life_s in some:
            due = at(clock.now() + later_s) if later_s else None
            life = seconds(life_s)
            messages.append(message(body, scheduled_enqueue_time_utc=due, time_to_live=life, partition_key="k"))
        if not together:
            await running.send(*messages, path=path)
            return
        namespace = running.namespace
        transaction = namespace.begin_transaction(Call(Operation.TRANSACTION, clock.now()))
        batch = list(map(encode_message, messages))
        namespace.send(Call(Operation.SEND, clock.now()), path, batch, transaction=transaction)
        commit = partial(namespace.commit, transaction=transaction)
        await running.host.perform(Operation.TRANSACTION, transaction.path, commit, timeout_s=60.0)

    async def receive(path: str) -> None:
        while (left_s := began_at + SPAN_S - clock.now()) > 0:
            for one in await running.taken(left_s if is_waiting else 0.0, 1, path):
                (body,) = bodies([one])
                count = one.delivery_count or 0
                found[body, count, path] = clock.now() - began_at
                if (how := outcome(body, count, path)) is not None:
                    running.settle(one, how, path)
            if not is_waiting:
                await asyncio.sleep(PAUSE_S)

    async with asyncio.TaskGroup() as group:
        for path in random.sample(RECEIVED_AT, random.randrange(1, len(RECEIVED_AT))):
            group.create_task(receive(path))
        for after_s, some, together in sends(random):
            group.create_task(send(after_s, some, together=together))
    return found


@pytest.mark.parametrize("first", range(0, 24, 8))
def test_a_receiver_that_waits_misses_nothing(first: int) -> None:
    for seed in range(first, first + 8):
        asking = run_virtual(arrivals(seed, is_waiting=False))
        waiting = run_virtual(arrivals(seed, is_waiting=True))
        assert asking
        assert waiting == pytest.approx(asking, abs=1.0), seed
