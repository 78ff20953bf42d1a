"""Select the fragment for a message, a sequence number or a lock token.

Rules (source: partitioned entities, documented, unless said otherwise):

1. A key selects one fragment. If this fragment cannot store the message, the send fails.
2. Messages without a key go to the fragments in rotation, for each front end from a random start (our choice).
   Fragments that have a fault or are full are skipped.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from sbclient.broker.faults import REPLACING_S, Call, FaultKind, Faults
from sbclient.broker.fragment import Fragment
from sbclient.broker.locks import TOKEN_FRAGMENT_MASK
from sbclient.broker.session import SessionLock
from sbclient.broker.storage import not_found
from sbclient.errors import InvalidOperationError, MessageLockLostError
from sbclient.rules.partition_key import fragment_of
from sbclient.rules.sequence_number import partition_of


class Placement:
    """The fragment selection of one entity.

    Args:
        path: the entity's, for errors and faults.
        fragments: of the entity.
        faults: of the namespace.
        random: for the first fragment of each front end.
    """

    def __init__(self, path: str, fragments: Sequence[Fragment], faults: Faults, random: Random) -> None:
        self._path = path
        self._fragments = fragments
        self._faults = faults
        self._random = random
        self._next_indexes: dict[int, int] = {}

    def fragment_for(self, key: str) -> Fragment:
        """The fragment of a key."""
        return self._fragments[fragment_of(key, len(self._fragments))]

    def keeper_of(self, call: Call, numbers: Sequence[int], request: str) -> Fragment:
        """The fragment of one or more sequence numbers, each given once.

        Args:
            request: what the service calls the request, for the error.

        Raises:
            InvalidOperationError: they belong to several fragments, or there are none.
            MessageNotFoundError: one belongs to no fragment.
            ServiceBusError, NoAnswer: the fragment is unreachable.
        """
        if not numbers:
            raise InvalidOperationError(f"no sequence number of {self._path} is given: give at least one")
        indexes = set(map(partition_of, numbers))
        if len(indexes) > 1 and len(self._fragments) > 1:
            raise InvalidOperationError(
                f"{request} of sequence numbers from different partitions is not supported for an entity with "
                f"partitioning enabled. The numbers for {self._path} are of {len(indexes)} partitions: send one "
                "request for each, by their top 16 bits"
            )
        unknown = [number for number in numbers if not 0 <= partition_of(number) < len(self._fragments)]
        if unknown:
            raise not_found(unknown, f"{self._path} has no messages with such numbers")
        return self.reached(call, indexes.pop())

    def holder_of(self, call: Call, tokens: Sequence[int]) -> Fragment:
        """The fragment of one or more lock tokens.

        Raises:
            InvalidOperationError: they belong to several fragments, or there are none.
            MessageLockLostError: they belong to no fragment.
            ServiceBusError, NoAnswer: the fragment is unreachable.
        """
        if not tokens:
            raise InvalidOperationError(f"no lock token of {self._path} is given: give at least one")
        index = tokens[0] & TOKEN_FRAGMENT_MASK
        if len(tokens) > 1 and len(self._fragments) > 1:
            indexes = {token & TOKEN_FRAGMENT_MASK for token in tokens}
            if len(indexes) > 1:
                raise InvalidOperationError(
                    "Batching lock tokens for different partitions is not supported for an entity with partitioning "
                    f"enabled. {len(tokens)} lock tokens of {self._path} belong to {len(indexes)} partitions: send one "
                    "request for each"
                )
        if index >= len(self._fragments):
            raise MessageLockLostError(
                f"{self._path} did not issue this lock token: settle on the entity that the message came from"
            )
        return self.reached(call, index)

    def session_holder(self, call: Call, lock: SessionLock) -> Fragment:
        """The fragment of a session lock; any fragment for the lock of a deleted entity, which each reports as lost.

        Raises:
            ServiceBusError, NoAnswer: the fragment is unreachable.
        """
        return self.reached(call, min(lock.fragment_index, len(self._fragments) - 1))

    def reached(self, call: Call, index: int) -> Fragment:
        """The fragment of an index, for a request that only this fragment can serve.

        Raises:
            ServiceBusError, NoAnswer: the fragment is unreachable.
        """
        if self._faults.injected:
            self._faults.check_fragment(call, self._path, index)
        return self._fragments[index]

    def choose(self, call: Call, key: str | None, size_bytes: int, is_ping: bool = False) -> Fragment:
        """Select the fragment for one transfer.

        Args:
            size_bytes: of all its messages.
            is_ping: whether it has only pings.

        Raises:
            ServiceBusQuotaExceededError, ServiceBusError, NoAnswer: no possible fragment accepts it.
        """
        if key is not None or len(self._fragments) == 1:
            fragment = self.reached(call, 0 if key is None else self.fragment_for(key).index)
            fragment.check_room(size_bytes, is_ping)
            return fragment
        return self._next(call, size_bytes, is_ping)

    def _next(self, call: Call, size_bytes: int, is_ping: bool) -> Fragment:
        count = len(self._fragments)
        first = self._next_indexes.get(call.front_end)
        if first is None:
            first = self._random.randrange(count)
        first_fault = None
        for step in range(count):
            fragment = self._fragments[(first + step) % count]
            fault = self._faults.stopping(call, self._path, fragment.index)
            if fault is not None:
                first_fault = first_fault or fault
                if fault.kind is FaultKind.HANG:
                    call.answer_not_before(REPLACING_S)
            elif fragment.accepts(size_bytes, is_ping=is_ping):
                self._next_indexes[call.front_end] = fragment.index + 1
                self._faults.delay(call, self._path, fragment.index)
                return fragment
        if first_fault is not None:
            raise first_fault.error_at(f"every fragment of {self._path} that could take the message", call)
        raise [fragment.refusal(size_bytes) for fragment in self._fragments][first % count]


def distinct(numbers: Sequence[int]) -> list[int]:
    """The numbers in their order, each once.

    They are compared as text, because a client chooses them, and so the hashes of the numbers themselves.
    """
    return list(numbers) if len(numbers) == 1 else list({str(number): number for number in numbers}.values())
