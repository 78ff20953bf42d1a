"""Which fragment of an entity takes a message, and which has what a number or a token names.

Laws (source: partitioned entities, documented, unless said otherwise):

1. A key leads to its one fragment. If that cannot take the message the sender is told so; it never goes elsewhere.
2. Without a key the fragments take turns, for each front end from a random start (our choice), and those that are
   struck by a fault, or full, are passed over.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from sbclient.broker.faults import REPLACING_S, Call, FaultKind, Faults
from sbclient.broker.fragment import Fragment
from sbclient.broker.locks import TOKEN_FRAGMENT_BITS
from sbclient.broker.storage import COUNTER_BITS
from sbclient.errors import InvalidOperationError, MessageLockLostError, MessageNotFoundError
from sbclient.rules.partition_key import fragment_of


class Placement:
    """The turns of one entity's fragments.

    Args:
        path: the entity's, for errors and faults.
        fragments: of the entity.
        faults: of the namespace.
        random: for the starts.
    """

    def __init__(self, path: str, fragments: Sequence[Fragment], faults: Faults, random: Random) -> None:
        self._path = path
        self._fragments = fragments
        self._faults = faults
        self._random = random
        self._turns: dict[int, int] = {}

    def fragment_for(self, key: str) -> Fragment:
        """The one fragment of a key."""
        return self._fragments[fragment_of(key, len(self._fragments))]

    def keeper_of(self, call: Call, number: int) -> Fragment:
        """The fragment that gave out a sequence number.

        Raises:
            MessageNotFoundError: none of these did.
            ServiceBusError, NoAnswer: it cannot be reached.
        """
        index = number >> COUNTER_BITS
        if not 0 <= index < len(self._fragments):
            raise MessageNotFoundError(f"{self._path} never gave out the sequence number {number}")
        return self.reached(call, index)

    def holder_of(self, call: Call, tokens: Sequence[int]) -> Fragment:
        """The fragment that gave out some lock tokens, at least one.

        Raises:
            InvalidOperationError: they are of several fragments.
            MessageLockLostError: no fragment gave them out.
            ServiceBusError, NoAnswer: it cannot be reached.
        """
        indexes = {token & (1 << TOKEN_FRAGMENT_BITS) - 1 for token in tokens}
        if len(indexes) > 1 and len(self._fragments) > 1:
            raise InvalidOperationError(
                f"{len(tokens)} lock tokens of {self._path} come from {len(indexes)} fragments: "
                "name those of one fragment"
            )
        index = indexes.pop()
        if index >= len(self._fragments):
            raise MessageLockLostError(f"{self._path} never gave out this lock token: settle where you received")
        return self.reached(call, index)

    def reached(self, call: Call, index: int) -> Fragment:
        """A fragment that alone can do what is asked.

        Raises:
            ServiceBusError, NoAnswer: it cannot be reached.
        """
        self._faults.check_fragment(call, self._path, index)
        return self._fragments[index]

    def choose(self, call: Call, key: str | None, size_bytes: int) -> Fragment:
        """The fragment for one transfer.

        Args:
            size_bytes: of all its messages.

        Raises:
            ServiceBusQuotaExceededError, ServiceBusError, NoAnswer: no fragment that may take it does.
        """
        if key is not None or len(self._fragments) == 1:
            fragment = self.reached(call, 0 if key is None else self.fragment_for(key).index)
            fragment.check_room(size_bytes)
            return fragment
        return self._next(call, size_bytes)

    def _next(self, call: Call, size_bytes: int) -> Fragment:
        count = len(self._fragments)
        turn = self._turns.get(call.front_end)
        if turn is None:
            turn = self._random.randrange(count)
        first_fault = None
        for step in range(count):
            fragment = self._fragments[(turn + step) % count]
            fault = self._faults.stopping(call, self._path, fragment.index)
            if fault is not None:
                first_fault = first_fault or fault
                if fault.kind is FaultKind.HANG:
                    call.answer_not_before(REPLACING_S)
            elif fragment.has_room(size_bytes):
                self._turns[call.front_end] = fragment.index + 1
                self._faults.delay(call, self._path, fragment.index)
                return fragment
        if first_fault is not None:
            raise first_fault.error_at(f"every fragment of {self._path} that could take the message", call)
        raise self._fragments[turn % count].quota_error(size_bytes)
