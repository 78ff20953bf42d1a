"""Transactions: what is done in one is checked at once, kept back, checked again at the commit, and then done.

Laws (source: transactions and partitioned entities, documented):

1. At most 100 operations, and 2 minutes from the first of them.
2. One entity; on a partitioned entity one fragment, and everything sent carries the same key.
3. A refused operation leaves the transaction as it was. A commit that cannot do everything does nothing; after it, as
   after a rollback, messages that were settled are still locked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from sbclient.broker.fragment import Fragment
from sbclient.errors import InvalidOperationError

MAX_OPERATIONS: Final = 100
MAX_SPAN_S: Final = 120.0


class Scope(NamedTuple):
    """Where a transaction happens: the path of one entity, and its fragment."""

    path: str
    fragment_index: int


@dataclass(frozen=True, slots=True)
class Step:
    """One operation of a transaction.

    Attributes:
        check: raises what stands against doing it, at that moment.
        apply: does it; cannot fail once every check has passed.
        fragment: where.
        size_bytes: what it adds there.
    """

    check: Callable[[float], object]
    apply: Callable[[float], object]
    fragment: Fragment
    size_bytes: int = 0


class Transaction:
    """Operations that happen together or not at all."""

    def __init__(self) -> None:
        self.key: str | None = None
        self.scope: Scope | None = None
        self._count = 0
        self._ends_at: float | None = None
        self._steps: list[Step] = []
        self._tokens: set[int] = set()
        self._is_over = False

    def check_open(self, now: float) -> None:
        """
        Raises:
            InvalidOperationError: the transaction has ended, or lasted too long.
        """
        if self._is_over:
            raise InvalidOperationError("the transaction has ended: begin a new one")
        if self._ends_at is not None and now >= self._ends_at:
            raise InvalidOperationError(
                f"the transaction began {now - self._ends_at + MAX_SPAN_S:.0f} s ago, {MAX_SPAN_S:.0f} s are allowed: "
                "it is rolled back, begin a new one"
            )

    def check_scope(self, scope: Scope, operation_count: int) -> None:
        """
        Raises:
            InvalidOperationError: the transaction belongs elsewhere, or has too many operations with these.
        """
        if self.scope is not None and self.scope != scope:
            raise InvalidOperationError(
                f"the transaction is bound to fragment {self.scope.fragment_index} of {self.scope.path} and cannot "
                f"span fragment {scope.fragment_index} of {scope.path}: use one transaction for each, "
                "or send via that entity"
            )
        if self._count + operation_count > MAX_OPERATIONS:
            raise InvalidOperationError(
                f"the transaction has {self._count} operations and {operation_count} more exceed the {MAX_OPERATIONS} "
                "that are allowed: commit it and begin a new one"
            )

    def check_fragments(self, existing: Sequence[Fragment]) -> None:
        """
        Args:
            existing: the fragments that the transaction's scope has now.

        Raises:
            InvalidOperationError: operations are bound to others, since the entity was deleted and made again.
        """
        if not all(step.fragment in existing for step in self._steps):
            raise InvalidOperationError(
                "the transaction began on an entity that was deleted and made again since: it is rolled back, "
                "begin a new one"
            )

    def check_settled_once(self, token: int) -> None:
        """
        Raises:
            InvalidOperationError: the transaction settles that message already.
        """
        if token in self._tokens:
            raise InvalidOperationError("the transaction settles this message already: settle each message once")

    def add(
        self, step: Step, scope: Scope, now: float, *, operation_count: int = 1, key: str | None = None, token: int = 0
    ) -> None:
        """Keep an operation whose checks have passed."""
        if self._ends_at is None:
            self._ends_at = now + MAX_SPAN_S
        self.scope = scope
        self.key = key if key is not None else self.key
        self._count += operation_count
        self._steps.append(step)
        if token:
            self._tokens.add(token)

    def commit(self, now: float) -> None:
        """Do everything, or raise the first thing that stands against it; either way the transaction is over."""
        try:
            self.check_open(now)
            for step in self._steps:
                step.check(now)
            if self._steps:
                self._steps[0].fragment.check_room(sum(step.size_bytes for step in self._steps))
        finally:
            self._is_over = True
        for step in self._steps:
            step.apply(now)

    def rollback(self) -> None:
        """Do nothing of it. Safe to call twice."""
        self._is_over = True
