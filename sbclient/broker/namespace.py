"""The one door to a namespace of the broker: every front, in this process or over the network, comes in here.

Each request is a `Call`, which says when it came and is told when its answer leaves. The door lets it in past the
faults, finds the entity, checks that it is enabled, and hands it to the fragments. Nothing here waits: a receive that
finds nothing returns nothing, and the host asks again when it is told that something has come.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from random import Random
from uuid import UUID

from sbclient.broker.admission import Transfer, admit, store
from sbclient.broker.directory import Directory, Entity
from sbclient.broker.entity import OnQueueReady, PeekCursor, Queue
from sbclient.broker.entry import Entry
from sbclient.broker.faults import Call, Faults, Operation
from sbclient.broker.forwarding import Forwarding
from sbclient.broker.fragment import Fragment
from sbclient.broker.management import Management
from sbclient.broker.pings import Pings
from sbclient.broker.profile import STD_2021, Profile
from sbclient.broker.request_gate import RequestGate
from sbclient.broker.session import SessionLock
from sbclient.broker.throttle import Throttle
from sbclient.broker.topic import Topic
from sbclient.broker.transactions import Scope, Step, Transaction
from sbclient.delivery import (
    NEXT_AVAILABLE_SESSION,
    SenderLimits,
    ServiceBusReceiveMode,
    ServiceBusSessionFilter,
    Settlement,
    SettleMode,
)
from sbclient.errors import InvalidOperationError
from sbclient.message import ServiceBusMessage
from sbclient.rules.entity_path import split_sub_queue
from sbclient.rules.ping import is_ping
from sbclient.rules.transaction_key import transaction_key_of


class Namespace:
    """Entities, and what can be done with them.

    Args:
        name: of the namespace.
        random: for lock tokens, turns and faults; the same seed and the same calls give the same answers.
        profile: tier and year.
        on_ready: told of each message that can be received, while the call that brought it about is still in progress;
            see `fragment.OnReady`.
        on_removed: told of each queue that is deleted.
        is_waited_for: whether somebody waits for messages of a queue.
        front_end_count: nodes that connections lead to; a `Call` says which.

    Attributes:
        faults: the switches.
        directory: the entities.
        management: the management side.
        pings: the last ones that came.
    """

    def __init__(
        self,
        name: str,
        *,
        random: Random,
        profile: Profile = STD_2021,
        on_ready: OnQueueReady = lambda _queue, _awaited: None,
        on_removed: Callable[[Queue], None] = lambda _queue: None,
        is_waited_for: Callable[[Queue], bool] = lambda _queue: False,
        front_end_count: int = 1,
    ) -> None:
        self.name = name
        self.profile = profile
        self.faults = Faults(name, random)
        self.directory = Directory(self._removed)
        self.pings = Pings()
        self._notify_ready, self._notify_removed = on_ready, on_removed
        self._forwarding = Forwarding(self.directory, self.faults, profile.max_hops, profile.max_batch_size_bytes)
        throttle = Throttle(name, profile.credits_per_second)
        self._gate = RequestGate(
            self.directory, self.faults, self._forwarding, throttle, profile.fragment_count, is_waited_for
        )
        self.management = Management(name, profile, self._gate, random, self._on_queue_ready, front_end_count)

    @property
    def operation_count(self) -> int:
        """Requests to entities that were let in."""
        return self._gate.operation_count

    def queue(self, path: str) -> Queue:
        """The queue, subscription or sub-queue of a path.

        Raises:
            MessagingEntityNotFoundError: there is none.
            InvalidOperationError: it is a topic.
        """
        return self._readable(path, self.directory.find(path)[1])

    def is_partitioned(self, path: str) -> bool:
        """Whether a path is of a partitioned entity, or of a queue behind one; False also if there is none."""
        entity = self.directory.get(split_sub_queue(path)[0])
        return entity is not None and entity.is_partitioned

    def sources(self, path: str) -> list[Entity]:
        """The entities in whose course of time something may come to a path: its own, and those that feed it."""
        entity = self.directory.get(split_sub_queue(path)[0])
        if entity is None:
            return []
        own = [entity] if entity.topic is None else [entity, entity.topic]
        return own + self._gate.feeding(path)

    def advance(self, now: float) -> None:
        """Let messages on their way arrive, and idle entities vanish."""
        self._gate.advance(now)

    def lose_front_end(self, front_end: int) -> None:
        """A front end is gone with all that it kept."""
        for entity in self.directory.all():
            for queue in entity.queues():
                if isinstance(queue, Queue):
                    queue.lose_front_end(front_end)

    def _on_queue_ready(self, queue: Queue, awaited: str | ServiceBusSessionFilter | None) -> None:
        if queue.forward_to is not None or queue.is_transfer:
            self._forwarding.mark(queue)
        else:
            self._notify_ready(queue, awaited)

    def _removed(self, entity: Entity) -> None:
        for queue in entity.queues():
            if isinstance(queue, Queue):
                self._forwarding.direct(queue, None)
                self._notify_removed(queue)

    # ------------------------------------------------------------------ send

    def open_sender(self, call: Call, path: str) -> SenderLimits:
        """Prove that an entity exists and may be sent to; returns what it accepts."""
        entity, target = self._gate.check(call, path, as_operation=Operation.SEND)
        self._writable(entity, target, path)
        return SenderLimits(entity.body.policy.max_message_size_bytes, self.profile.max_batch_size_bytes)

    def send(
        self,
        call: Call,
        path: str,
        messages: Sequence[ServiceBusMessage],
        *,
        transaction: Transaction | None = None,
        via: str | None = None,
        via_partition_key: str | None = None,
    ) -> None:
        """Store one transfer, all of it or nothing.

        Args:
            via: a queue that keeps the messages first and hands them on; a transaction is then bound to it.
            via_partition_key: places the messages there.
        """
        if via is not None:
            self._send_via(call, path, messages, via, via_partition_key, transaction)
        elif messages and is_ping(messages[0]):
            with self.pings.noted(path, call):
                self._send(call, path, messages, transaction)
        else:
            self._send(call, path, messages, transaction)

    def _send(
        self, call: Call, path: str, messages: Sequence[ServiceBusMessage], transaction: Transaction | None
    ) -> None:
        entity, target = self._gate.check(call, path, credit_count=len(messages))
        self._writable(entity, target, path)
        transfer = self._admitted(entity, target, messages)
        self._spend_on_filters(call, target, len(messages))
        if transaction is None:
            fragment = target.placement.choose(call, transfer.key, transfer.size_bytes)
            store(fragment, transfer.entries, None, call.now, is_partitioned=entity.is_partitioned)
        else:
            self._send_later(call, entity, messages, transfer, None, transaction)

    def _send_via(
        self,
        call: Call,
        path: str,
        messages: Sequence[ServiceBusMessage],
        via: str,
        key: str | None,
        transaction: Transaction | None,
    ) -> None:
        destination, target = self.directory.find(path)
        self._writable(destination, target, path)
        transfer = self._admitted(destination, target, messages)
        entity, _ = self._gate.check(call, via, credit_count=len(messages))
        store_between = entity.sub_queue("transfer")
        if store_between is None or entity.topic is not None:
            raise InvalidOperationError(f"{via} cannot be sent through: name a queue")
        if transaction is not None:
            transaction.check_open(call.now)
            if entity.is_partitioned:  # on a plain entity a key places nothing, so it binds nothing
                _check_via_key(entity, key, transaction)
        fragment = store_between.placement.choose(call, key, transfer.size_bytes)
        entries = [entry for entry in transfer.entries if not is_ping(entry.content)]
        for entry in entries:
            entry.destination = destination.path

        def keep(now: float) -> None:
            for entry in entries:
                fragment.append(entry, now)

        if transaction is None:
            keep(call.now)
            return
        scope = Scope(entity.path, fragment.index)
        transaction.check_scope(scope, len(messages))
        step = Step(check=lambda _: None, apply=keep, fragment=fragment, size_bytes=transfer.size_bytes)
        pinned = key if entity.is_partitioned else None
        transaction.add(step, scope, call.now, operation_count=len(messages), key=pinned)

    def _spend_on_filters(self, call: Call, target: Queue | Topic, message_count: int) -> None:
        if isinstance(target, Topic):
            rule_count = sum(len(subscription.rules) for subscription in target.subscriptions.values())
            self._gate.throttle.spend(call.now, rule_count * message_count)

    def schedule(
        self, call: Call, path: str, messages: Sequence[ServiceBusMessage], *, transaction: Transaction | None = None
    ) -> list[int]:
        """Store messages that each have a time to appear; returns their sequence numbers, in order."""
        entity, target = self._gate.check(call, path, credit_count=len(messages))
        self._writable(entity, target, path)
        for message in messages:
            if message.scheduled_enqueue_time_utc is None:
                raise InvalidOperationError(
                    f"message {message.message_id!r} was scheduled on {path} without scheduled_enqueue_time_utc: "
                    "set it, or send the message"
                )
        transfer = self._admitted(entity, target, messages)
        if transaction is None:
            fragment = target.placement.choose(call, transfer.key, transfer.size_bytes)
            fragment.advance(call.now)
            numbers = [fragment.next_number() for _ in messages]
            store(fragment, transfer.entries, numbers, call.now, is_partitioned=entity.is_partitioned)
            return numbers
        return self._send_later(call, entity, messages, transfer, [], transaction)

    def cancel_scheduled(self, call: Call, path: str, numbers: Sequence[int]) -> None:
        """Drop scheduled messages, all of them or none."""
        entity, _ = self._gate.check(call, path)
        placement = entity.body.placement
        keepers = [(placement.keeper_of(call, number), number) for number in dict.fromkeys(numbers)]
        for fragment, number in keepers:
            fragment.check_scheduled(number, call.now)
        for fragment, number in keepers:
            fragment.cancel(number)

    def _admitted(self, entity: Entity, target: Queue | Topic, messages: Sequence[ServiceBusMessage]) -> Transfer:
        return admit(
            target,
            messages,
            is_partitioned=entity.is_partitioned,
            max_batch_size_bytes=self.profile.max_batch_size_bytes,
        )

    def _send_later(
        self,
        call: Call,
        entity: Entity,
        messages: Sequence[ServiceBusMessage],
        transfer: Transfer,
        numbers: list[int] | None,
        transaction: Transaction,
    ) -> list[int]:
        """Keep a transfer in a transaction; returns the numbers of scheduled messages."""
        transaction.check_open(call.now)
        policy, key = entity.body.policy, None
        if entity.is_partitioned:
            key = transaction_key_of(
                messages,
                pinned=transaction.key,
                requires_session=entity.body.requires_session,
                requires_duplicate_detection=policy.requires_duplicate_detection,
            )
        fragment = entity.body.placement.choose(call, key, transfer.size_bytes)
        scope = Scope(entity.path, fragment.index)
        transaction.check_scope(scope, len(messages))
        if numbers is not None:
            numbers.extend(fragment.next_number() for _ in messages)
        step = Step(
            check=lambda _: None,
            apply=lambda now: store(fragment, transfer.entries, numbers, now, is_partitioned=entity.is_partitioned),
            fragment=fragment,
            size_bytes=transfer.size_bytes,
        )
        transaction.add(step, scope, call.now, operation_count=len(messages), key=key)
        return numbers or []

    # ------------------------------------------------------------------ receive

    def open_receiver(self, call: Call, path: str, *, with_session: bool) -> None:
        """Prove that an entity exists and may be received from, by session or without."""
        queue = self._receivable(call, path, as_operation=Operation.RECEIVE)
        queue.check_receiver(with_session=with_session)

    def receive(
        self,
        call: Call,
        path: str,
        *,
        max_message_count: int,
        mode: ServiceBusReceiveMode = ServiceBusReceiveMode.PEEK_LOCK,
        lock: SessionLock | None = None,
    ) -> list[Entry]:
        """Take the messages that are available now.

        Args:
            lock: of the session to receive from, None for an entity without sessions.

        Returns: the stored entries. Read them before the next call, and do not change them.
        """
        queue = self._receivable(call, path)
        queue.check_receiver(with_session=lock is not None)
        return queue.receive(call, max_message_count, mode, lock)

    def receive_deferred(
        self,
        call: Call,
        path: str,
        numbers: Sequence[int],
        *,
        mode: ServiceBusReceiveMode = ServiceBusReceiveMode.PEEK_LOCK,
        lock: SessionLock | None = None,
    ) -> list[Entry]:
        """Take deferred messages, all of them or none; the entries are as for `receive`."""
        queue = self._entered_queue(call, path)
        queue.check_receiver(with_session=lock is not None)
        if lock is not None:
            queue.placement.reached(call, lock.fragment_index).check_session(lock)
        keepers = [(queue.placement.keeper_of(call, number), number) for number in dict.fromkeys(numbers)]
        found = [(fragment, fragment.check_deferred(number, call.now, lock)) for fragment, number in keepers]
        deletes = mode is ServiceBusReceiveMode.RECEIVE_AND_DELETE
        for fragment, entry in found:
            fragment.take_deferred(entry, call.now, delete=deletes)
        return [entry for _, entry in found]

    def release(self, call: Call, path: str, tokens: Sequence[UUID]) -> None:
        """Put back messages that no application has seen; those whose lock has ended are back already."""
        queue = self._readable(path, self.directory.find(path)[1])
        for token in tokens:
            queue.release(call.now, token.int)

    def peek(
        self,
        call: Call,
        path: str,
        cursor: PeekCursor,
        *,
        max_message_count: int,
        from_number: int = 0,
        session_id: str | None = None,
    ) -> list[Entry]:
        """Read messages from a sequence number on without taking them; the entries are as for `receive`.

        Args:
            cursor: the position of this reader, which the caller keeps between calls.
        """
        queue = self._entered_queue(call, path)
        return queue.peek(call, cursor, max_message_count, from_number, session_id)

    # ------------------------------------------------------------------ settle

    def settle(
        self,
        call: Call,
        path: str,
        tokens: Sequence[UUID],
        settlement: Settlement,
        *,
        lock: SessionLock | None = None,
        transaction: Transaction | None = None,
    ) -> None:
        """End held messages, all of them or none; on a partitioned entity those of one fragment.

        A token that is named twice counts once.
        """
        entity, target = self._gate.check(call, path)
        queue = self._readable(path, target)
        if settlement.mode is SettleMode.DEAD_LETTER and queue.dead_letters is None:
            raise InvalidOperationError(f"a message of {path} cannot be dead-lettered again: complete or defer it")
        held = list(dict.fromkeys(token.int for token in tokens))
        fragment = queue.placement.holder_of(call, held)
        for token in held:
            fragment.check_lock(token, call.now, lock)
        if transaction is None:
            for token in held:
                fragment.settle(token, settlement, call.now)
            return
        transaction.check_open(call.now)
        scope = Scope(entity.path, fragment.index)
        transaction.check_scope(scope, len(held))
        for token in held:
            transaction.check_settled_once(token)
        for token in held:
            transaction.add(_settling(fragment, token, settlement, lock), scope, call.now, token=token)

    def renew_locks(self, call: Call, path: str, tokens: Sequence[UUID]) -> list[float]:
        """Hold messages for another lock duration, all of them or none; returns when each lock then ends."""
        queue = self._entered_queue(call, path)
        if queue.requires_session:
            raise InvalidOperationError(f"messages of {path} are held with their session: renew the session's lock")
        fragment = queue.placement.holder_of(call, [token.int for token in tokens])
        entries = [fragment.check_lock(token.int, call.now) for token in tokens]
        return [fragment.renew(entry, call.now) for entry in entries]

    def begin_transaction(self, call: Call) -> Transaction:
        """A transaction; it is bound to the entity of its first operation."""
        self._gate.check_namespace(call)
        return Transaction()

    def commit(self, call: Call, transaction: Transaction) -> None:
        """Do everything that was done in a transaction, or nothing; either way it is over."""
        scope = transaction.scope
        try:
            if scope is None:
                self._gate.check_namespace(call)
            else:
                entity, _ = self._gate.check(call, scope.path)
                transaction.check_fragments(entity.fragments_at(scope.fragment_index))
                entity.body.placement.reached(call, scope.fragment_index)
            transaction.commit(call.now)
        finally:
            transaction.rollback()

    def rollback(self, call: Call, transaction: Transaction) -> None:
        """Do nothing of it."""
        transaction.rollback()
        self._gate.check_namespace(call)

    # ------------------------------------------------------------------ sessions

    def accept_session(
        self, call: Call, path: str, session: str | ServiceBusSessionFilter = NEXT_AVAILABLE_SESSION
    ) -> SessionLock | None:
        """Hold a session; None if the next available one was asked for and there is none now."""
        queue = self._receivable(call, path)
        queue.check_receiver(with_session=True)
        if isinstance(session, str):
            return queue.accept_session(call, session)
        return queue.accept_next_session(call)

    def renew_session(self, call: Call, path: str, lock: SessionLock) -> float:
        """Hold a session for another lock duration; returns when that ends."""
        return self._session_fragment(call, path, lock).renew_session(lock, call.now)

    def release_session(self, call: Call, path: str, lock: SessionLock) -> None:
        """Let a session go, and put back what was taken under it, as when the connection is lost: no fault stops it.

        A lock that has ended, or whose entity is gone, is ignored.
        """
        entity = self.directory.get(split_sub_queue(path)[0])
        if entity is not None and lock.fragment_index < len(entity.body.fragments):
            entity.body.fragments[lock.fragment_index].release_session(lock, call.now)

    def get_session_state(self, call: Call, path: str, lock: SessionLock) -> bytes | None:
        return self._session_fragment(call, path, lock).session_state(lock, call.now)

    def set_session_state(self, call: Call, path: str, lock: SessionLock, state: bytes | None) -> None:
        self._session_fragment(call, path, lock).set_session_state(lock, state, call.now)

    def list_sessions(self, call: Call, path: str, *, state_updated_after: datetime | None = None) -> list[str]:
        """Sessions with messages or a state or, if a moment is given, those whose state was set after it; by id."""
        queue = self._entered_queue(call, path)
        queue.check_receiver(with_session=True)
        after = None if state_updated_after is None else state_updated_after.timestamp()
        return queue.session_ids(call, state_set_after=after)

    def _session_fragment(self, call: Call, path: str, lock: SessionLock) -> Fragment:
        return self._entered_queue(call, path).placement.reached(call, lock.fragment_index)

    # ------------------------------------------------------------------ what a path may be used for

    def _entered_queue(self, call: Call, path: str, *, as_operation: Operation | None = None) -> Queue:
        return self._readable(path, self._gate.check(call, path, as_operation=as_operation)[1])

    def _readable(self, path: str, target: Queue | Topic) -> Queue:
        if isinstance(target, Topic):
            raise InvalidOperationError(f"{path} is a topic and cannot be received from: name a subscription of it")
        return target

    def _receivable(self, call: Call, path: str, *, as_operation: Operation | None = None) -> Queue:
        queue = self._entered_queue(call, path, as_operation=as_operation)
        if queue.forward_to is not None:
            raise InvalidOperationError(
                f"{path} forwards to {queue.forward_to} and cannot be received from: receive there"
            )
        return queue

    def _writable(self, entity: Entity, target: Queue | Topic, path: str) -> None:
        if target is not entity.body or entity.topic is not None:
            raise InvalidOperationError(f"{path} cannot be sent to directly: send to {(entity.topic or entity).path}")


def _check_via_key(entity: Entity, key: str | None, transaction: Transaction) -> None:
    if key is None:
        raise InvalidOperationError(
            f"a transaction sends through {entity.path}, which is partitioned, without a key: set via_partition_key"
        )
    if transaction.key is not None and key != transaction.key:
        raise InvalidOperationError(
            f"via_partition_key {key!r} differs from the key {transaction.key!r} of the transaction: make them equal"
        )


def _settling(fragment: Fragment, token: int, settlement: Settlement, lock: SessionLock | None) -> Step:
    return Step(
        check=lambda now: fragment.check_lock(token, now, lock),
        apply=lambda now: fragment.settle(token, settlement, now),
        fragment=fragment,
    )
