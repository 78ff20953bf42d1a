"""Drives the broker core in tests: a namespace, a moment that the test moves, and short words for what is asked."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

from sbclient.amqp import EncodedMessage
from sbclient.broker.entity import PeekCursor, Queue
from sbclient.broker.faults import Call, Fault, FaultKind, Operation
from sbclient.broker.namespace import Namespace
from sbclient.broker.profile import STD_2021, Profile
from sbclient.broker.session import SessionLock
from sbclient.broker.transactions import Transaction, Via
from sbclient.delivery import (
    NEXT_AVAILABLE_SESSION,
    ServiceBusReceiveMode,
    ServiceBusSessionFilter,
    Settlement,
    SettleMode,
)
from sbclient.entities import (
    EntityAddress,
    EntityKind,
    EntityProperties,
    QueueProperties,
    RuleProperties,
    RuntimeProperties,
    SubscriptionProperties,
    TopicProperties,
)
from sbclient.message import ServiceBusMessage, ServiceBusReceivedMessage
from sbclient.rules.partition_key import fragment_of
from tests.payloads import encoded

START = 1_700_000_000.0
NO_LIFE = timedelta.max
DELETE = ServiceBusReceiveMode.RECEIVE_AND_DELETE

COMPLETE = Settlement(SettleMode.COMPLETE)
ABANDON = Settlement(SettleMode.ABANDON)
DEFER = Settlement(SettleMode.DEFER)
DEAD_LETTER = Settlement(SettleMode.DEAD_LETTER, "why", "in full")


def message(body: str = "", **attributes: Any) -> ServiceBusMessage:
    return ServiceBusMessage(body, **attributes)


def at(moment_s: float) -> datetime:
    return datetime.fromtimestamp(moment_s, UTC)


def seconds(span_s: float) -> timedelta:
    return timedelta(seconds=span_s)


def bodies(messages: Sequence[ServiceBusMessage]) -> list[str]:
    return [str(each) for each in messages]


def address(path: str) -> EntityAddress:
    """`q`, `t/Subscriptions/s` or `t/Subscriptions/s/$Rules/r`; a topic has to be named by `topic_address`."""
    names = tuple(path.replace("/Subscriptions/", "|").replace("/$Rules/", "|").split("|"))
    return EntityAddress((EntityKind.QUEUE, EntityKind.SUBSCRIPTION, EntityKind.RULE)[len(names) - 1], names)


def topic_address(path: str) -> EntityAddress:
    return EntityAddress(EntityKind.TOPIC, (path,))


def keys_of_fragments(count: int = 16) -> list[str]:
    """For each fragment a key that leads to it."""
    keys: dict[int, str] = {}
    for number in range(10_000):
        keys.setdefault(fragment_of(f"key-{number}", count), f"key-{number}")
    return [keys[index] for index in range(count)]


KEYS = keys_of_fragments()


class Driver:
    """One namespace, at a moment."""

    def __init__(self, profile: Profile = STD_2021, *, front_end_count: int = 1, seed: int = 1) -> None:
        self.now = START
        self.ready: list[tuple[str, str | ServiceBusSessionFilter | None]] = []
        self.removed: list[str] = []
        self.updated: list[str] = []
        self.waited_for: set[str] = set()
        self.namespace = Namespace(
            "contoso",
            random=Random(seed),
            profile=profile,
            on_ready=lambda queue, awaited: self.ready.append((queue.path, awaited)),
            on_removed=lambda queue: self.removed.append(queue.path),
            on_updated=self.updated.append,
            is_waited_for=lambda queue: queue.path in self.waited_for,
            front_end_count=front_end_count,
        )
        self.management = self.namespace.management

    def call(self, operation: Operation, front_end: int = 0) -> Call:
        return Call(operation, self.now, front_end=front_end)

    def wait(self, span_s: float) -> None:
        self.now += span_s

    # ------------------------------------------------------------------ entities

    def create(self, path: str, properties: EntityProperties) -> Any:
        return self.management.create(self.call(Operation.MANAGE), address(path), properties)

    def queue(self, path: str = "q", **described: Any) -> QueueProperties:
        created: QueueProperties = self.create(path, QueueProperties(path, **described))
        return created

    def partitioned(self, path: str = "q", **described: Any) -> QueueProperties:
        return self.queue(path, enable_partitioning=True, **described)

    def topic(self, path: str = "t", **described: Any) -> TopicProperties:
        created = self.management.create(
            self.call(Operation.MANAGE), topic_address(path), TopicProperties(path, **described)
        )
        assert isinstance(created, TopicProperties)
        return created

    def subscription(self, topic: str = "t", name: str = "s", **described: Any) -> SubscriptionProperties:
        path = f"{topic}/Subscriptions/{name}"
        created: SubscriptionProperties = self.create(path, SubscriptionProperties(name, **described))
        return created

    def rule(self, path: str, name: str, transaction: Transaction | None = None, **described: Any) -> RuleProperties:
        created = self.management.create(
            self.call(Operation.MANAGE),
            address(f"{path}/$Rules/{name}"),
            RuleProperties(name, **described),
            transaction=transaction,
        )
        assert isinstance(created, RuleProperties)
        return created

    def get(self, where: EntityAddress) -> Any:
        return self.management.get(self.call(Operation.MANAGE), where)

    def update(self, where: EntityAddress, properties: EntityProperties) -> Any:
        return self.management.update(self.call(Operation.MANAGE), where, properties)

    def delete(self, where: EntityAddress, transaction: Transaction | None = None) -> None:
        self.management.delete(self.call(Operation.MANAGE), where, transaction=transaction)

    def counts(self, path: str) -> RuntimeProperties:
        return self.management.runtime(self.call(Operation.MANAGE), address(path))

    def body(self, path: str = "q") -> Queue:
        return self.namespace.queue(path)

    # ------------------------------------------------------------------ faults

    def down(self, path: str | None = "q", *fragments: int, kind: FaultKind = FaultKind.DOWN, **how: Any) -> Fault:
        fault = Fault(kind, path, fragments=fragments or None, **how)
        return self.namespace.faults.inject(fault)

    def heal(self, fault: Fault | None = None) -> None:
        self.namespace.faults.heal(fault)

    # ------------------------------------------------------------------ messages

    def send(self, path: str, *messages: ServiceBusMessage | EncodedMessage, front_end: int = 0, **how: Any) -> Call:
        call = self.call(Operation.SEND, front_end)
        self.namespace.send(call, path, [encoded(message) for message in messages], **how)
        return call

    def schedule(self, path: str, *messages: ServiceBusMessage | EncodedMessage, **how: Any) -> list[int]:
        return self.namespace.schedule(
            self.call(Operation.SCHEDULE), path, [encoded(message) for message in messages], **how
        )

    def cancel(self, path: str, *numbers: int, transaction: Transaction | None = None) -> None:
        self.namespace.cancel_scheduled(self.call(Operation.CANCEL), path, numbers, transaction=transaction)

    def receive(
        self, path: str = "q", count: int = 1, *, front_end: int = 0, **how: Any
    ) -> list[ServiceBusReceivedMessage]:
        call = self.call(Operation.RECEIVE, front_end)
        return [entry.received() for entry in self.namespace.receive(call, path, max_message_count=count, **how)]

    def one(self, path: str = "q", **how: Any) -> ServiceBusReceivedMessage:
        (received,) = self.receive(path, **how)
        return received

    def drain(self, path: str = "q", **how: Any) -> list[ServiceBusReceivedMessage]:
        """Everything that can be received now, completed."""
        drained: list[ServiceBusReceivedMessage] = []
        while received := self.receive(path, 10, **how):
            for each in received:
                self.settle(path, each, lock=how.get("lock"))
            drained += received
        return drained

    def deferred(self, path: str, *numbers: int, **how: Any) -> list[ServiceBusReceivedMessage]:
        taken = self.namespace.receive_deferred(self.call(Operation.RECEIVE_DEFERRED), path, numbers, **how)
        return [entry.received() for entry in taken]

    def settle(self, path: str, *messages: ServiceBusReceivedMessage, how: Settlement = COMPLETE, **where: Any) -> None:
        tokens = [each.lock_token for each in messages if each.lock_token is not None]
        self.namespace.settle(self.call(Operation.SETTLE), path, tokens, how, **where)

    def renew(self, path: str, *messages: ServiceBusReceivedMessage) -> list[float]:
        tokens = [each.lock_token for each in messages if each.lock_token is not None]
        return self.namespace.renew_locks(self.call(Operation.RENEW), path, tokens)

    def peek(
        self,
        path: str = "q",
        count: int = 10,
        from_number: int = 0,
        cursor: PeekCursor | None = None,
        session_id: str | None = None,
    ) -> list[ServiceBusReceivedMessage]:
        found = self.namespace.peek(
            self.call(Operation.PEEK),
            path,
            cursor or PeekCursor(),
            max_message_count=count,
            from_number=from_number,
            session_id=session_id,
        )
        return [entry.peeked() for entry in found]

    def browse(self, path: str = "q", count: int = 10) -> list[ServiceBusReceivedMessage]:
        """Everything, by asking on from the last number until nothing is left."""
        cursor, found, number = PeekCursor(), list[ServiceBusReceivedMessage](), 0
        while page := self.peek(path, count, number, cursor):
            found += page
            number = page[-1].sequence_number + 1
        return found

    # ------------------------------------------------------------------ transactions and sessions

    def begin(self, via: Via | None = None) -> Transaction:
        return self.namespace.begin_transaction(self.call(Operation.TRANSACTION), via)

    def commit(self, transaction: Transaction) -> None:
        self.namespace.commit(self.call(Operation.TRANSACTION), transaction)

    def rollback(self, transaction: Transaction) -> None:
        self.namespace.rollback(self.call(Operation.TRANSACTION), transaction)

    def accept(
        self, path: str = "q", session: str | ServiceBusSessionFilter = NEXT_AVAILABLE_SESSION
    ) -> SessionLock | None:
        return self.namespace.accept_session(self.call(Operation.SESSION), path, session)

    def held(self, path: str, session: str) -> SessionLock:
        lock = self.accept(path, session)
        assert lock is not None
        return lock

    def release(self, path: str, lock: SessionLock) -> None:
        self.namespace.release_session(self.call(Operation.SESSION), path, lock)

    def state(self, path: str, lock: SessionLock) -> bytes | None:
        return self.namespace.get_session_state(self.call(Operation.SESSION), path, lock)

    def set_state(self, path: str, lock: SessionLock, state: bytes | None, **where: Any) -> None:
        self.namespace.set_session_state(self.call(Operation.SESSION), path, lock, state, **where)

    def renew_session(self, path: str, lock: SessionLock) -> float:
        return self.namespace.renew_session(self.call(Operation.RENEW), path, lock)

    def sessions(self, path: str = "q", after: float | None = None, most: int | None = None) -> list[str]:
        updated_after = None if after is None else at(after)
        return self.namespace.list_sessions(
            self.call(Operation.SESSION), path, state_updated_after=updated_after, most=most
        )
