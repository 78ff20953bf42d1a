"""What one operation of the broker core costs on a queue with so many messages, sessions or remembered ids.

The garbage collector is off while the clock runs: its full passes visit every living object of the process, which says
nothing about the broker.
"""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable
from random import Random
from time import process_time
from typing import Any, Final
from uuid import UUID

from sbclient.amqp import encode_message
from sbclient.broker.entity import PeekCursor
from sbclient.broker.faults import Call, Operation
from sbclient.broker.namespace import Namespace
from sbclient.delivery import Settlement, SettleMode
from sbclient.entities import EntityAddress, EntityKind, QueueProperties
from sbclient.message import ServiceBusMessage

ROUNDS: Final = 2_000
START: Final = 1_700_000_000.0

_COMPLETE = Settlement(SettleMode.COMPLETE)
_ABANDON = Settlement(SettleMode.ABANDON)


class Filled:
    """A queue with so many messages; `session_of` gives the session of each, by its number."""

    def __init__(self, count: int, *, session_of: Callable[[int], str] | None = None, **described: Any) -> None:
        self.now = START
        self.sent = 0
        self.session_of = session_of
        self.namespace = Namespace("scale", random=Random(1))
        self.namespace.management.create(
            self.call(Operation.MANAGE),
            EntityAddress(EntityKind.QUEUE, ("q",)),
            QueueProperties("q", requires_session=session_of is not None, max_size_in_megabytes=5120, **described),
        )
        for _ in range(count):
            self.send()

    def call(self, operation: Operation) -> Call:
        return Call(operation, self.now)

    def send(self) -> None:
        self.sent += 1
        message = ServiceBusMessage(b"x", message_id=f"m{self.sent}")
        if self.session_of is not None:
            message.session_id = self.session_of(self.sent)
        self.namespace.send(self.call(Operation.SEND), "q", [encode_message(message)])

    def settle_one(self, how: Settlement) -> None:
        (entry,) = self.namespace.receive(self.call(Operation.RECEIVE), "q", max_message_count=1)
        token = UUID(int=entry.token)
        self.namespace.settle(self.call(Operation.SETTLE), "q", [token], how)

    def receive_and_complete(self) -> None:
        self.settle_one(_COMPLETE)

    def receive_and_abandon(self) -> None:
        self.settle_one(_ABANDON)

    def peek(self) -> None:
        number = self.sent // 2
        self.namespace.peek(self.call(Operation.PEEK), "q", PeekCursor(), max_message_count=1, from_number=number)

    def serve_next_session(self) -> None:
        lock = self.namespace.accept_session(self.call(Operation.SESSION), "q")
        assert lock is not None
        (entry,) = self.namespace.receive(self.call(Operation.RECEIVE), "q", max_message_count=1, lock=lock)
        token = UUID(int=entry.token)
        self.namespace.settle(self.call(Operation.SETTLE), "q", [token], _COMPLETE, lock=lock)
        self.namespace.release_session(self.call(Operation.SESSION), "q", lock)


def cost_us(operation: Callable[[], None], rounds: int = ROUNDS) -> float:
    """Microseconds of processor time for one operation; the best of five runs."""
    gc.collect()
    gc.disable()
    try:
        return min(_run_s(operation, max(1, rounds // 5)) for _ in range(5)) / max(1, rounds // 5) * 1e6
    finally:
        gc.enable()


def _run_s(operation: Callable[[], None], rounds: int) -> float:
    began_at = process_time()
    for _ in range(rounds):
        operation()
    return process_time() - began_at


def costs(count: int, rounds: int = ROUNDS) -> dict[str, float]:
    """Microseconds for each operation on queues with so many messages, sessions or remembered ids."""
    plain = Filled(count)
    found = {
        "send": cost_us(plain.send, rounds),
        "receive and complete": cost_us(plain.receive_and_complete, rounds // 2),
        "receive and abandon": cost_us(plain.receive_and_abandon, rounds),
        "peek": cost_us(plain.peek, rounds),
    }
    del plain
    partitioned = Filled(count, enable_partitioning=True)
    found["send, partitioned"] = cost_us(partitioned.send, rounds)
    found["receive and complete, partitioned"] = cost_us(partitioned.receive_and_complete, rounds // 2)
    del partitioned
    many = max(rounds, count // 10)
    sessions = Filled(many * 2, session_of=lambda number: f"s{number % many}")
    found["send to a session"] = cost_us(sessions.send, rounds)
    found["serve the next session"] = cost_us(sessions.serve_next_session, rounds // 2)
    del sessions
    remembering = Filled(count, requires_duplicate_detection=True)
    found["send, remembering ids"] = cost_us(remembering.send, rounds)
    return found


def bytes_each(count: int) -> float:
    """What a queued message takes beside its body, with its id, at its owner's and the broker's side together."""
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        filled = Filled(count)
        return (tracemalloc.get_traced_memory()[0] - before) / filled.sent
    finally:
        tracemalloc.stop()
