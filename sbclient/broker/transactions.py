"""Transactions: an operation is checked at once and stored; the commit checks all operations again and applies them.

Rules (source: transactions and partitioned entities, documented):

1. A transaction has at most 100 operations, and ends 2 minutes after the first one.
2. A transaction is bound to one queue or topic with its subscriptions and sub-queues; on a partitioned entity to one
   fragment, and all sent messages have the same key.
3. With a `Via`, messages to other entities are stored at its entity first and forwarded after the commit (source: the
   behaviour of the .NET and Java clients for transactions over several entities).
4. A rejected operation does not change the transaction. A commit applies all operations or none. After a failed commit,
   and after a rollback, settled messages are still locked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from sbclient.broker.fragment import Fragment
from sbclient.broker.session import SessionLock
from sbclient.delivery import Settlement
from sbclient.errors import InvalidOperationError
from sbclient.rules.entity_path import entity_of
from sbclient.rules.transaction_key import MAX_DURATION_S, MAX_OPERATIONS


class Scope(NamedTuple):
    """The queue or topic, and the fragment, that a transaction is bound to."""

    path: str
    fragment_index: int


@dataclass(frozen=True, slots=True)
class Step:
    """One operation of a transaction.

    Attributes:
        check: raises an error if the operation is not possible now.
        apply: does the operation; cannot fail after all checks have passed. If it changes rules, it is applied as soon
            as it is checked, because later checks depend on it, and returns a function that undoes it.
        fragment: of the operation.
        size_bytes: the bytes that it adds to the fragment.
        changes_rules: whether it changes what later messages of the transaction are copied to.
    """

    check: Callable[[float], object]
    apply: Callable[[float], Any]
    fragment: Fragment
    size_bytes: int = 0
    changes_rules: bool = False


class Via:
    """The entity by which the transactions of one client span entities: the first one that the client opens.

    Attributes:
        path: the canonical path of the queue or topic; None before the first link.
    """

    def __init__(self) -> None:
        self.path: str | None = None

    def use(self, path: str, *, receives: bool) -> None:
        """Note a link to an entity.

        Raises:
            InvalidOperationError: the link receives from another queue or topic.
        """
        entity = entity_of(path)
        if self.path is None:
            self.path = entity
        elif receives and self.path != entity:
            raise InvalidOperationError(
                f"Local transactions cannot span multiple top-level entities such as queue or topic: {self.path!r} is "
                f"the first entity of this client with cross-entity transactions, so it cannot receive from {path!r}. "
                "Open another client"
            )


class Transaction:
    """Operations of which all or none are applied.

    Args:
        via: the entity by which the transaction spans others; None = it is bound to one entity.
    """

    def __init__(self, via: Via | None = None) -> None:
        self._via = via
        self.key: str | None = None
        self.scope: Scope | None = None
        self._count = 0
        self._ends_at: float | None = None
        self._steps: list[Step] = []
        self._tokens: set[int] = set()
        self._is_over = False

    @property
    def path(self) -> str | None:
        """Of the entity that it is bound to, the only one where it can schedule; None before its first operation."""
        return None if self.scope is None else self.scope.path

    def check_open(self, now: float) -> None:
        """Check that the transaction accepts operations.

        Raises:
            InvalidOperationError: it has ended, or has exceeded its maximum duration.
        """
        if self._is_over:
            raise InvalidOperationError("the transaction has ended: begin a new one")
        if self._ends_at is not None and now >= self._ends_at:
            raise InvalidOperationError(
                f"the transaction began {now - self._ends_at + MAX_DURATION_S:.0f} s ago and is rolled back: "
                f"the maximum duration is {MAX_DURATION_S:.0f} s. Begin a new one"
            )

    def via_to(self, path: str) -> str | None:
        """The entity that messages to a path go through; None if they go there directly."""
        via = None if self._via is None else self._via.path
        return None if via == entity_of(path) else via

    def check_scope(self, scope: Scope, operation_count: int) -> None:
        """Check that operations on a fragment belong to the transaction.

        Raises:
            InvalidOperationError: the transaction is bound to another fragment, or has too many operations.
        """
        if self.via_to(scope.path) is not None:
            raise InvalidOperationError(
                f"the transaction spans entities by {self.via_to(scope.path)}: of {scope.path} it can only include "
                "sends that are not scheduled"
            )
        if self.scope is not None and self.scope != scope:
            raise InvalidOperationError(
                "Local transactions cannot span multiple entities or partitions. "
                f"The transaction is bound to fragment {self.scope.fragment_index} of {self.scope.path} and cannot "
                f"span fragment {scope.fragment_index} of {scope.path}: use one transaction for each, "
                "or a client with enable_cross_entity_transactions and messages of one key"
            )
        if self._count + operation_count > MAX_OPERATIONS:
            raise InvalidOperationError(
                f"the transaction has {self._count} operations and {operation_count} more exceed the {MAX_OPERATIONS} "
                "that are allowed: commit it and begin a new one"
            )

    def check_via_key(self, via: str, key: str | None) -> None:
        """Check the key of a send via a partitioned entity.

        Raises:
            InvalidOperationError: there is none, or it differs from that of the transaction.
        """
        if key is None:
            raise InvalidOperationError(
                f"a transaction sends via {via}, which is partitioned, without a via-partition-key: "
                "set the partition_key of the transaction"
            )
        if self.key is not None and key != self.key:
            raise InvalidOperationError(
                f"via_partition_key {key!r} differs from the key {self.key!r} of the transaction: make them equal"
            )

    def check_fragments(self, existing: Sequence[Fragment]) -> None:
        """Check that the fragments of all operations still exist.

        Args:
            existing: the present fragments of the transaction's scope.

        Raises:
            InvalidOperationError: the entity was deleted and created again.
        """
        if not all(step.fragment in existing for step in self._steps):
            raise InvalidOperationError(
                "the entity of the transaction was deleted and created again: the transaction is rolled back, "
                "begin a new one"
            )

    def check_settled_once(self, token: int) -> None:
        """Check that the transaction does not settle a message twice.

        Raises:
            InvalidOperationError: it does.
        """
        if token in self._tokens:
            raise InvalidOperationError("the transaction settles this message already: settle each message once")

    def add(
        self, step: Step, scope: Scope, now: float, *, operation_count: int = 1, key: str | None = None, token: int = 0
    ) -> None:
        """Store an operation whose checks have passed."""
        if self._ends_at is None:
            self._ends_at = now + MAX_DURATION_S
        self.scope = scope
        self.key = key if key is not None else self.key
        self._count += operation_count
        self._steps.append(step)
        if token:
            self._tokens.add(token)

    def add_settlements(
        self,
        scope: Scope,
        fragment: Fragment,
        tokens: Sequence[int],
        settlement: Settlement,
        lock: SessionLock | None,
        now: float,
    ) -> None:
        """Store the settlement of messages whose locks were checked.

        Raises:
            InvalidOperationError: the transaction cannot include it.
        """
        self.check_open(now)
        self.check_scope(scope, len(tokens))
        for token in tokens:
            self.check_settled_once(token)
        for token in tokens:
            step = Step(
                check=partial(fragment.check_lock, token, lock=lock),
                apply=partial(fragment.settle, token, settlement),
                fragment=fragment,
            )
            self.add(step, scope, now, token=token)

    def add_cancellations(self, scope: Scope, fragment: Fragment, numbers: Sequence[int], now: float) -> None:
        """Store the cancellation of scheduled messages that were checked.

        Raises:
            InvalidOperationError: the transaction cannot include it.
        """
        self.check_open(now)
        self.check_scope(scope, len(numbers))
        for number in numbers:
            self.check_settled_once(number)
        for number in numbers:
            step = Step(
                check=partial(fragment.check_scheduled, [number]),
                apply=partial(_cancel, fragment, number),
                fragment=fragment,
            )
            self.add(step, scope, now, token=number)

    def add_session_state(
        self, scope: Scope, fragment: Fragment, lock: SessionLock, state: bytes | None, now: float
    ) -> None:
        """Store the change of a session's state, which was checked.

        Raises:
            InvalidOperationError: the transaction cannot include it.
        """
        self.check_open(now)
        self.check_scope(scope, 1)
        growth = fragment.check_session_state(lock, state, now)
        check = partial(fragment.check_session_state, lock, state)
        self.add(Step(check, partial(fragment.set_session_state, lock, state), fragment, max(growth, 0)), scope, now)

    def commit(self, now: float) -> None:
        """Apply all operations, or raise the first error; the transaction is over in both cases."""
        undo: list[Callable[[], None]] = []
        try:
            self.check_open(now)
            for step in self._steps:
                step.check(now)
                if step.changes_rules:
                    undo.append(step.apply(now))
            if self._steps:
                self._steps[0].fragment.check_room(sum(step.size_bytes for step in self._steps))
                self._steps[0].fragment.mark()
        except BaseException:
            for take_back in reversed(undo):
                take_back()
            raise
        finally:
            self._is_over = True
        for step in self._steps:
            if not step.changes_rules:
                step.apply(now)

    def rollback(self) -> None:
        """End the transaction without applying anything. Safe to call twice."""
        self._is_over = True


def _cancel(fragment: Fragment, number: int, _: float) -> None:
    fragment.cancel(number)
