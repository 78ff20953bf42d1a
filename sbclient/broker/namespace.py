"""The data operations of one namespace of the broker: send, receive, settle, sessions and transactions.

The transport in memory and the AMQP server both call `Namespace`. Each request is a `Call`: it holds the time of the
request, and receives the time of the answer. The request gate applies faults and checks that the entity is enabled;
then the fragments do the work. Nothing here waits: a receive without a message returns an empty list, and `on_ready`
says when to try again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from datetime import datetime
from operator import attrgetter
from random import Random
from typing import Any, Final
from uuid import UUID

from sbclient.amqp import EncodedMessage
from sbclient.broker.admission import AdmittedMessages, Arrival, admit, arrivals, put, store
from sbclient.broker.changes import Changes
from sbclient.broker.directory import NAMED_ENTITY, Directory, Entity
from sbclient.broker.entity import OnQueueReady, PeekCursor, Queue, peek
from sbclient.broker.entry import Entry, Selector
from sbclient.broker.faults import Call, Faults, Operation
from sbclient.broker.forwarding import Forwarding
from sbclient.broker.fragment import Fragment
from sbclient.broker.management import Management
from sbclient.broker.pings import Pings
from sbclient.broker.placement import distinct
from sbclient.broker.profile import STD_2021, Profile
from sbclient.broker.request_gate import RequestGate
from sbclient.broker.session import SessionLock
from sbclient.broker.topic import Topic
from sbclient.broker.transactions import Scope, Step, Transaction, Via
from sbclient.delivery import (
    NEXT_AVAILABLE_SESSION,
    SenderLimits,
    ServiceBusReceiveMode,
    ServiceBusSessionFilter,
    Settlement,
    SettleMode,
)
from sbclient.errors import InvalidOperationError, MessagingEntityNotFoundError, ServiceBusError
from sbclient.rules.entity_path import canonical, split_sub_queue
from sbclient.rules.ping import is_ping
from sbclient.rules.transaction_key import transaction_key_of

MAX_DEFECTS: Final = 100

_int_of = attrgetter("int")
_DEAD_LETTER: Final = SettleMode.DEAD_LETTER  # members of an enumeration are read slowly


class Namespace:
    """The entities of a namespace, and the operations on their messages.

    Args:
        name: of the namespace.
        random: for lock tokens, fragments and faults; the same seed and the same calls give the same results.
        profile: tier and year.
        on_ready: called when a message becomes ready, during the call that caused it; see `fragment.OnReady`.
        on_removed: called with each deleted queue.
        on_updated: called with the path of each updated entity.
        is_waited_for: whether a receiver waits for messages of a queue.
        front_end_count: the number of front ends; a `Call` names one.

    Attributes:
        faults: the injected faults.
        directory: the entities by path.
        management: creates, describes and deletes entities.
        pings: the last ping to each entity.
        advance: forwards messages that are due, and deletes entities that were idle for too long.
        defects: the errors of `on_ready`, `on_removed` and `on_updated`; what they are called for is done.
    """

    def __init__(
        self,
        name: str,
        *,
        random: Random,
        profile: Profile = STD_2021,
        on_ready: OnQueueReady = lambda _queue, _awaited: None,
        on_removed: Callable[[Queue], None] = lambda _queue: None,
        on_updated: Callable[[str], None] = lambda _path: None,
        is_waited_for: Callable[[Queue], bool] = lambda _queue: False,
        front_end_count: int = 1,
    ) -> None:
        self.name = name
        self.profile = profile
        self.faults = Faults(name, random)
        self.directory = Directory(self._removing, self._removed)
        self.defects: deque[Exception] = deque(maxlen=MAX_DEFECTS)
        self.pings = Pings()
        self._random = random
        self._on_ready, self._notify_removed = on_ready, self._guarded(on_removed)
        self._forwarding = Forwarding(
            self.directory, self.faults, profile.max_hops, profile.max_batch_size_bytes, random
        )
        self._gate = RequestGate(self.directory, self.faults, self._forwarding, profile.fragment_count, is_waited_for)
        self.advance = self._gate.advance
        self.management = Management(
            name, profile, self._gate, random, self._on_queue_ready, self._guarded(on_updated), front_end_count
        )

    @property
    def operation_count(self) -> int:
        """Requests to entities that passed the gate."""
        return self._gate.operation_count

    def queue(self, path: str) -> Queue:
        """The queue, subscription or sub-queue of a path.

        Raises:
            MessagingEntityNotFoundError: there is none.
            InvalidOperationError: it is a topic.
        """
        return self._readable(path, self.directory.find(path)[1])

    def is_partitioned(self, path: str) -> bool:
        """Whether a path names a partitioned entity or one of its sub-queues; False if there is no such entity."""
        entity = self.directory.get(split_sub_queue(path)[0])
        return entity is not None and entity.is_partitioned

    def sources(self, path: str) -> list[Entity]:
        """The entities whose timed changes may bring a message to a path: its own, and those that forward to it."""
        entity = self.directory.get(split_sub_queue(path)[0])
        if entity is None:
            return []
        own = [entity] if entity.topic is None else [entity, entity.topic]
        return own + self._gate.feeding(path)

    def record_changes(self, on_change: Callable[[], None]) -> Changes:
        """Record what changes from now on.

        Args:
            on_change: called when there is a change to store, perhaps several times.
        """
        self._gate.changes = Changes(on_change)
        for entity in self.directory.all():
            for name, body in [("", entity.body), *entity.sub_queues.items()]:
                self._gate.record(entity.path, name, body)
        return self._gate.changes

    def lose_front_end(self, front_end: int) -> None:
        """Drop the cache of a front end, as if it had crashed."""
        for entity in self.directory.all():
            for queue in entity.queues():
                if isinstance(queue, Queue):
                    queue.lose_front_end(front_end)

    def _on_queue_ready(self, queue: Queue, awaited: str | ServiceBusSessionFilter | None) -> None:
        if queue.forward_to is not None or queue.is_transfer:
            self._forwarding.mark(queue)
            return
        try:
            self._on_ready(queue, awaited)
        except Exception as error:
            self._note_defect(error)

    def _guarded(self, callback: Callable[..., None]) -> Callable[..., None]:
        def call(*arguments: Any) -> None:
            try:
                callback(*arguments)
            except Exception as error:
                self._note_defect(error)

        return call

    def _note_defect(self, error: Exception) -> None:
        self.defects.append(error.with_traceback(None))

    def _removing(self, entity: Entity) -> None:
        if self._gate.changes is not None:
            self._gate.changes.remove(canonical(entity.path))

    def _removed(self, entity: Entity) -> None:
        if self._gate.changes is not None:
            for fragment in [fragment for body in entity.queues() for fragment in body.fragments]:
                if fragment.log is not None:
                    fragment.log.drop()
                    fragment.log = None  # what happens to it later does not exist for others
        for queue in entity.queues():
            for fragment in queue.fragments:
                fragment.detach()
            if isinstance(queue, Queue):
                self._forwarding.direct(queue, None)
                self._notify_removed(queue)

    # ------------------------------------------------------------------ send

    def open_sender(self, call: Call, path: str) -> SenderLimits:
        """Check that an entity exists and accepts messages, and return its size limits."""
        entity, target = self._gate.check(call, path, as_operation=Operation.SEND)
        self._writable(entity, target, path)
        return SenderLimits(entity.body.policy.max_message_size_bytes, self.profile.max_batch_size_bytes)

    def send(
        self,
        call: Call,
        path: str,
        messages: Sequence[EncodedMessage],
        transaction: Transaction | None = None,
        via_partition_key: str | None = None,
        via: str | None = None,
    ) -> None:
        """Store one transfer: all messages or none.

        Args:
            via: a queue or topic that stores the messages first and then forwards them; None = that of the
                transaction. A transaction is bound to this entity.
            via_partition_key: selects the fragment of the `via` entity. Messages that are sent directly, and have no
                other key, are placed by it too, so that a transaction can later include them (seen).
        """
        if via is None and transaction is not None:
            via = transaction.via_to(path)
        if via is not None:
            self._send_via(call, path, messages, via, via_partition_key, transaction)
        elif messages and messages[0].content_type is not None and is_ping(messages[0]):
            with self.pings.noted(path, call):
                self._send(call, path, messages, via_partition_key, transaction)
        else:
            self._send(call, path, messages, via_partition_key, transaction)

    def _send(
        self,
        call: Call,
        path: str,
        messages: Sequence[EncodedMessage],
        via_partition_key: str | None,
        transaction: Transaction | None,
    ) -> None:
        entity, target = self._gate.check(call, path)
        self._writable(entity, target, path)
        transfer = admit(target, messages, self._random, self.profile.max_batch_size_bytes)
        if transaction is None:
            key = via_partition_key if transfer.key is None else transfer.key
            fragment = target.placement.choose(call, key, transfer.size_bytes, transfer.is_ping)
            store(fragment, transfer.entries, None, call.now, transfer.is_partitioned)
        else:
            self._send_later(call, entity, messages, transfer, None, transaction, via_partition_key)

    def _send_via(
        self,
        call: Call,
        path: str,
        messages: Sequence[EncodedMessage],
        via: str,
        key: str | None,
        transaction: Transaction | None,
    ) -> None:
        destination, target = self.directory.find(path)
        self._writable(destination, target, path)
        transfer = admit(target, messages, self._random, self.profile.max_batch_size_bytes)
        entity, _ = self._gate.check(call, via)
        store_between = entity.sub_queue("transfer")
        if store_between is None or entity.topic is not None:
            raise InvalidOperationError(f"{via} cannot forward messages to {path}: use a queue or topic as via")
        if transaction is not None:
            transaction.check_open(call.now)
            if entity.is_partitioned:  # without partitions the key has no effect
                transaction.check_via_key(entity.path, key)
        fragment = store_between.placement.choose(call, key, transfer.size_bytes)
        entries = [entry for entry in transfer.entries if not is_ping(entry.content)]
        for entry in entries:
            entry.destination = destination.path

        def keep(now: float) -> None:
            for entry, copies in [(entry, fragment.decide(entry, now)) for entry in entries]:
                fragment.put(entry, copies)

        if transaction is None:
            keep(call.now)
            return
        scope = Scope(entity.path, fragment.index)
        transaction.check_scope(scope, len(messages))
        step = Step(check=lambda _: None, apply=keep, fragment=fragment, size_bytes=transfer.size_bytes)
        pinned = key if entity.is_partitioned else None
        transaction.add(step, scope, call.now, operation_count=len(messages), key=pinned)

    def schedule(
        self, call: Call, path: str, messages: Sequence[EncodedMessage], *, transaction: Transaction | None = None
    ) -> list[int]:
        """Store scheduled messages, and return their sequence numbers in order."""
        entity, target = self._gate.check(call, path)
        self._writable(entity, target, path)
        for message in messages:
            if message.scheduled_enqueue_time_utc is None:
                raise InvalidOperationError(
                    f"message {message.message_id!r} for {path} has no scheduled_enqueue_time_utc: "
                    "set it, or send the message without scheduling"
                )
        transfer = admit(target, messages, self._random, self.profile.max_batch_size_bytes)
        if transaction is None:
            fragment = target.placement.choose(call, transfer.key, transfer.size_bytes)
            fragment.advance(call.now)
            numbers = [fragment.next_number() for _ in messages]
            store(fragment, transfer.entries, numbers, call.now, transfer.is_partitioned)
            return numbers
        return self._send_later(call, entity, messages, transfer, [], transaction)

    def cancel_scheduled(
        self, call: Call, path: str, numbers: Sequence[int], *, transaction: Transaction | None = None
    ) -> None:
        """Remove scheduled messages of one fragment: all or none."""
        entity, _ = self._gate.check(call, path)
        asked = distinct(numbers)
        fragment = entity.body.placement.keeper_of(call, asked, "CancelScheduledMessage")
        fragment.check_scheduled(asked, call.now)
        if transaction is not None:
            transaction.add_cancellations(Scope(entity.path, fragment.index), fragment, asked, call.now)
            return
        for number in asked:
            fragment.cancel(number)

    def _send_later(
        self,
        call: Call,
        entity: Entity,
        messages: Sequence[EncodedMessage],
        transfer: AdmittedMessages,
        numbers: list[int] | None,
        transaction: Transaction,
        via_partition_key: str | None = None,
    ) -> list[int]:
        """Add a transfer to a transaction, and return the sequence numbers of scheduled messages."""
        transaction.check_open(call.now)
        policy, key = entity.body.policy, None
        if entity.is_partitioned and transfer.key is None and via_partition_key is not None:
            transaction.check_via_key(entity.path, via_partition_key)
            key = via_partition_key
        elif entity.is_partitioned:
            key = transaction_key_of(
                messages,
                pinned=transaction.key,
                requires_session=entity.body.requires_session,
                requires_duplicate_detection=policy.requires_duplicate_detection,
            )
        fragment = entity.body.placement.choose(call, key, transfer.size_bytes)
        decided: list[Arrival] = []

        def decide(now: float) -> None:
            decided[:] = arrivals(fragment, transfer.entries, numbers, now, entity.is_partitioned)

        scope = Scope(entity.path, fragment.index)
        transaction.check_scope(scope, len(messages))
        if numbers is not None:
            numbers.extend(fragment.next_number() for _ in messages)
        step = Step(
            check=decide,
            apply=lambda now: put(fragment, decided, now),
            fragment=fragment,
            size_bytes=transfer.size_bytes,
        )
        transaction.add(step, scope, call.now, operation_count=len(messages), key=key)
        return numbers or []

    # ------------------------------------------------------------------ receive

    def open_receiver(self, call: Call, path: str, *, with_session: bool) -> None:
        """Check that an entity exists and that messages can be received from it, with or without a session."""
        queue = self._receivable(call, path, as_operation=Operation.RECEIVE)
        queue.check_receiver(with_session=with_session)

    def receive(
        self,
        call: Call,
        path: str,
        max_message_count: int,
        mode: ServiceBusReceiveMode = ServiceBusReceiveMode.PEEK_LOCK,
        lock: SessionLock | None = None,
        selector: Selector | None = None,
    ) -> list[Entry]:
        """Take the messages that are available now.

        Args:
            lock: of the session to receive from, None for an entity without sessions.
            selector: takes only messages for which it returns True.

        Returns: the stored entries. Read them before the next call, and do not change them.
        """
        queue = self._receivable(call, path)
        if queue.requires_session is (lock is None):
            queue.check_receiver(with_session=lock is not None)
        return queue.receive(call, max_message_count, mode, lock, selector)

    def receive_deferred(
        self,
        call: Call,
        path: str,
        numbers: Sequence[int],
        *,
        mode: ServiceBusReceiveMode = ServiceBusReceiveMode.PEEK_LOCK,
        lock: SessionLock | None = None,
    ) -> list[Entry]:
        """Take deferred messages of one fragment: all or none. The entries are as for `receive`."""
        queue = self._entered_queue(call, path)
        queue.check_receiver(with_session=lock is not None)
        if lock is not None:
            _check_held(queue, call, lock)
        asked = distinct(numbers)
        fragment = queue.placement.keeper_of(call, asked, "ReceiveBatch")
        found = fragment.check_deferred(asked, call.now, lock)
        for entry in found:
            fragment.hand_out(entry, call.now, mode is ServiceBusReceiveMode.RECEIVE_AND_DELETE)
        return found

    def release(self, call: Call, path: str, tokens: Sequence[UUID]) -> None:
        """Release messages that no application has seen; tokens of ended locks, or of a deleted entity, are ignored."""
        try:
            queue = self.queue(path)
        except MessagingEntityNotFoundError:
            return
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
        lock: SessionLock | None = None,
    ) -> list[Entry]:
        """Read messages from a sequence number on without taking them; of a topic only scheduled ones. See `receive`.

        Args:
            cursor: the position of this reader, which the caller keeps between calls.
            session_id: only messages of this session.
            lock: only messages of this session, whose lock must not have ended.
        """
        _, target = self._gate.check(call, path)
        if lock is not None:
            _check_held(self._readable(path, target), call, lock)
            session_id = lock.session_id
        return peek(target, self.faults, self._random, call, cursor, max_message_count, from_number, session_id)

    # ------------------------------------------------------------------ settle

    def settle(
        self,
        call: Call,
        path: str,
        tokens: Sequence[UUID],
        settlement: Settlement,
        lock: SessionLock | None = None,
        transaction: Transaction | None = None,
    ) -> None:
        """Settle locked messages, all or none; on a partitioned entity all must be in one fragment.

        Duplicate tokens are ignored.
        """
        entity, target = self._gate.check(call, path)
        queue = self._settleable(path, target, settlement)
        held = distinct(list(map(_int_of, tokens)))
        fragment = queue.placement.holder_of(call, held)
        for token in held:
            fragment.check_lock(token, call.now, lock)
        if transaction is None:
            for token in held:
                fragment.settle(token, settlement, call.now)
            return
        path = (entity.topic or entity).path
        transaction.add_settlements(Scope(path, fragment.index), fragment, held, settlement, lock, call.now)

    def locked(self, call: Call, path: str, token: UUID) -> Entry | None:
        """Return the message with a lock token; None if there is none.

        Raises:
            SessionUseError: the entity requires sessions.
        """
        queue = self.queue(path)
        queue.check_receiver(with_session=False)
        try:
            return queue.placement.holder_of(call, (token.int,)).check_lock(token.int, call.now)
        except ServiceBusError:
            return None

    def settle_each(
        self, call: Call, path: str, tokens: Sequence[UUID], settlement: Settlement, *, lock: SessionLock | None = None
    ) -> dict[UUID, ServiceBusError]:
        """Settle locked messages as if each had a request of its own, in their order.

        Call it only without faults: a fault may affect some of the requests.

        Args:
            tokens: different lock tokens of any fragments.

        Returns: the errors of those that could not be settled, by token.

        Raises:
            ServiceBusError: none was settled.
        """
        _, target = self._gate.check(call, path, operation_count=len(tokens))
        queue = self._settleable(path, target, settlement)
        return queue.settle_each(call, tokens, settlement, lock)

    def renew_locks(self, call: Call, path: str, tokens: Sequence[UUID]) -> list[float]:
        """Renew the locks of messages, all or none, and return the new end of each."""
        queue = self._entered_queue(call, path)
        if queue.requires_session:
            raise InvalidOperationError(f"messages of {path} are locked with their session: renew the session lock")
        fragment = queue.placement.holder_of(call, [token.int for token in tokens])
        entries = [fragment.check_lock(token.int, call.now) for token in tokens]
        return [fragment.renew(entry, call.now) for entry in entries]

    def check_via(self, via: Via, path: str, *, receives: bool) -> None:
        """Note a link to an entity; one that does not exist is ignored.

        Raises:
            InvalidOperationError: the link receives from another entity than that of `via`.
        """
        if self.directory.get(split_sub_queue(path)[0]) is not None:
            via.use(path, receives=receives)

    def begin_transaction(self, call: Call, via: Via | None = None) -> Transaction:
        """Begin a transaction; its first operation binds it to an entity, or to that of `via`."""
        self._gate.check_namespace(call)
        return Transaction(via)

    def commit(self, call: Call, transaction: Transaction) -> None:
        """Apply all operations of a transaction, or none if one fails. The transaction is over in both cases."""
        scope = transaction.scope
        try:
            if scope is None:
                self._gate.check_namespace(call)
            else:
                entity, _ = self._gate.check(call, scope.path)
                below = [entity, *self.directory.subscriptions_of(entity)]
                transaction.check_fragments(
                    [fragment for each in below for fragment in each.fragments_at(scope.fragment_index)]
                )
                entity.body.placement.reached(call, scope.fragment_index)
            transaction.commit(call.now)
        finally:
            transaction.rollback()

    def rollback(self, call: Call, transaction: Transaction) -> None:
        """End a transaction without applying its operations."""
        transaction.rollback()
        self._gate.check_namespace(call)

    # ------------------------------------------------------------------ sessions

    def accept_session(
        self, call: Call, path: str, session: str | ServiceBusSessionFilter = NEXT_AVAILABLE_SESSION
    ) -> SessionLock | None:
        """Lock a session; None if the next available session is requested and there is none."""
        queue = self._receivable(call, path)
        queue.check_receiver(with_session=True)
        if isinstance(session, str):
            return queue.accept_session(call, session)
        return queue.accept_next_session(call)

    def renew_session(self, call: Call, path: str, lock: SessionLock) -> float:
        """Renew a session lock, and return its new end."""
        return self._session_fragment(call, path, lock).renew_session(lock, call.now)

    def release_session(self, call: Call, path: str, lock: SessionLock) -> None:
        """Release a session and its messages, as when a connection is lost; faults do not prevent it.

        A lock that has ended, or whose entity was deleted, is ignored.
        """
        entity = self.directory.get(split_sub_queue(path)[0])
        if entity is not None and lock.fragment_index < len(entity.body.fragments):
            entity.body.fragments[lock.fragment_index].release_session(lock, call.now)

    def get_session_state(self, call: Call, path: str, lock: SessionLock) -> bytes | None:
        return self._session_fragment(call, path, lock).session_state(lock, call.now)

    def set_session_state(
        self,
        call: Call,
        path: str,
        lock: SessionLock,
        state: bytes | None,
        *,
        transaction: Transaction | None = None,
    ) -> None:
        """Set or delete the state of a session, in a transaction at its commit."""
        state = state or None  # clients in Go delete a state by an empty one, which AMQP distinguishes from null
        fragment = self._session_fragment(call, path, lock)
        if transaction is None:
            fragment.set_session_state(lock, state, call.now)
            return
        entity = self._gate.check(call, path)[0]
        scope = Scope((entity.topic or entity).path, fragment.index)
        transaction.add_session_state(scope, fragment, lock, state, call.now)

    def list_sessions(
        self, call: Call, path: str, *, state_updated_after: datetime | None = None, most: int | None = None
    ) -> list[str]:
        """Return ids in order: of sessions with messages or state, or of those whose state was set after a time.

        Args:
            most: return at most so many of the first ones.
        """
        queue = self._entered_queue(call, path)
        queue.check_receiver(with_session=True)
        after = None if state_updated_after is None else state_updated_after.timestamp()
        return queue.session_ids(call, state_set_after=after, most=most)

    def _session_fragment(self, call: Call, path: str, lock: SessionLock) -> Fragment:
        return self._entered_queue(call, path).placement.session_holder(call, lock)

    # ------------------------------------------------------------------ checks of a path

    def _entered_queue(self, call: Call, path: str, as_operation: Operation | None = None) -> Queue:
        return self._readable(path, self._gate.check(call, path, as_operation)[1])

    def _readable(self, path: str, target: Queue | Topic) -> Queue:
        if isinstance(target, Topic):
            raise MessagingEntityNotFoundError(
                f"{NAMED_ENTITY}{path}' could not be found. It is a topic: receive from one of its subscriptions"
            )
        return target

    def _receivable(self, call: Call, path: str, as_operation: Operation | None = None) -> Queue:
        queue = self._readable(path, self._gate.check(call, path, as_operation)[1])
        if queue.forward_to is not None:
            raise InvalidOperationError(
                f"{path} forwards its messages to {queue.forward_to}: receive from {queue.forward_to}"
            )
        return queue

    def _settleable(self, path: str, target: Queue | Topic, settlement: Settlement) -> Queue:
        queue = self._readable(path, target)
        if settlement.mode is _DEAD_LETTER and queue.dead_letters is None:
            raise InvalidOperationError(f"a message of {path} cannot be dead-lettered: complete or defer it")
        return queue

    def _writable(self, entity: Entity, target: Queue | Topic, path: str) -> None:
        if target is not entity.body or entity.topic is not None:
            raise InvalidOperationError(f"{path} cannot be sent to directly: send to {(entity.topic or entity).path}")


def _check_held(queue: Queue, call: Call, lock: SessionLock) -> None:
    holder = queue.placement.session_holder(call, lock)
    holder.advance(call.now)
    holder.check_session(lock)
