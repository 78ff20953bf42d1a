"""A queue made of fragments: a queue, a subscription, or one of their sub-queues.

Rules (source: partitioned entities, documented, unless said otherwise):

1. A receive queries every fragment and takes messages from any of them. It skips fragments with a fault.
2. A request for a session, a lock or a sequence number goes to one fragment.
3. Peek returns the oldest messages of one fragment, at most 250 and 256 KB: of the one that answers first (here: a
   random one). Further calls, each from the number after the last one, return the messages of the other fragments, each
   once.

With several front ends (source: partitioned entities, documented, unless said otherwise):

4. A receive queries all fragments at once and returns the first messages. The front end locks and caches the others,
   and returns them to later receives through the same front end without asking the fragments again.
5. Receives through another front end do not see cached messages until their locks end.
6. A cached message that was never returned does not count as delivered (our choice).

A single front end caches nothing: the only effect would be locked messages that no receiver has (our choice).
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from random import Random
from typing import TYPE_CHECKING, Final, TypeAlias
from uuid import UUID

from sbclient.broker.entry import Entry, Selector
from sbclient.broker.faults import Call, Faults
from sbclient.broker.fragment import Fragment
from sbclient.broker.locks import TOKEN_FRAGMENT_MASK
from sbclient.broker.placement import Placement
from sbclient.broker.policy import Policy, Usage
from sbclient.broker.session import SessionLock
from sbclient.delivery import ServiceBusReceiveMode, ServiceBusSessionFilter, Settlement
from sbclient.errors import InvalidOperationError, ServiceBusError
from sbclient.rules.entity_path import canonical
from sbclient.rules.sequence_number import COUNTER_BITS

if TYPE_CHECKING:
    from sbclient.broker.topic import Topic

_DELETING: Final = ServiceBusReceiveMode.RECEIVE_AND_DELETE

MAX_PEEKED: Final = 250
"""The maximum number of messages of one peek. Source: message browsing, documented."""
PEEK_LIMIT_BYTES: Final = 2**18
"""The maximum size of one peek, unless its first message alone is larger. Source: partitioned entities."""

OnQueueReady: TypeAlias = Callable[["Queue", str | ServiceBusSessionFilter | None], None]
"""As `fragment.OnReady`, with the queue."""


class SessionUseError(InvalidOperationError):
    """A receiver uses sessions on an entity without them, or none on an entity that requires them."""


class Queue:
    """Messages in fragments.

    Attributes:
        forward_to: the path that all messages are forwarded to, or None.
        is_transfer: whether each message has a destination of its own, to which it is forwarded.
        requires_session: whether its messages belong to sessions; this cannot change.

    Args:
        path: as it was created, including the sub-queue.
        policy: of the entity.
        usages: one for each fragment.
        faults, random: of the namespace.
        on_ready: called when a message becomes ready.
        dead_letters: the dead-letter queue, for a queue of transfers that of them; None if this is a dead-letter queue.
        front_end_count: with more than one, each front end caches messages.
    """

    def __init__(
        self,
        path: str,
        policy: Policy,
        usages: Sequence[Usage],
        faults: Faults,
        random: Random,
        on_ready: OnQueueReady,
        dead_letters: Queue | None = None,
        front_end_count: int = 1,
    ) -> None:
        self.path = path
        self.forward_to: str | None = None
        self.is_transfer = False
        self.key = canonical(path)
        self.policy = policy
        self.dead_letters = dead_letters
        self._faults = faults
        self._random = random
        self._first = 0
        self._cache = FrontEndCache() if front_end_count > 1 else None
        self.fragments: list[Fragment] = [
            Fragment(
                index,
                path,
                policy,
                usage,
                random,
                partial(on_ready, self),
                None if dead_letters is None else dead_letters.fragments[index],
            )
            for index, usage in enumerate(usages)
        ]
        self.requires_session = self.fragments[0].has_sessions
        self.placement = Placement(path, self.fragments, faults, random)

    def __len__(self) -> int:
        """Messages in every state, including those in unreachable fragments."""
        return sum(map(len, self.fragments))

    def lose_front_end(self, front_end: int) -> None:
        """Drop the cache of a front end; its messages return when their locks end."""
        if self._cache is not None:
            self._cache.drop(front_end)

    def next_change_at(self) -> float:
        """The time of the next timed change; infinity if there is none."""
        return min([fragment.next_change_at() for fragment in self.fragments])

    def advance(self, now: float) -> None:
        for fragment in self.fragments:
            fragment.advance(now)

    # ------------------------------------------------------------------ receive

    def receive(
        self,
        call: Call,
        max_message_count: int,
        mode: ServiceBusReceiveMode,
        lock: SessionLock | None,
        selector: Selector | None = None,
    ) -> list[Entry]:
        """Take the messages that are ready, at most that many, in the order of each fragment."""
        deletes = mode is _DELETING
        is_partitioned = len(self.fragments) > 1
        if lock is not None:
            fragments = [self.placement.session_holder(call, lock)]
        elif not is_partitioned:
            fragments = [self.placement.reached(call, 0)]
        else:
            fragments = self._reachable(call)
        if selector is not None:
            selector.start_call(sum(map(len, self.fragments)))
        is_any = lock is None and selector is None
        if is_partitioned and is_any and self._cache is not None:  # even with one reachable fragment
            taken = self._cache.receive(call, fragments, max_message_count, delete=deletes)
        else:
            taken = self._taken(call, fragments, max_message_count, lock, selector, deletes)
        if selector is not None:
            call.is_unfinished = selector.is_unfinished
        if is_partitioned and self._faults.injected:
            for index in dict.fromkeys(entry.number >> COUNTER_BITS for entry in taken):
                self._faults.delay(call, self.path, index)
        return taken

    def _reachable(self, call: Call) -> list[Fragment]:
        """The reachable fragments; each call begins with the next fragment."""
        self._first = (self._first + 1) % len(self.fragments)
        rotated = self.fragments[self._first :] + self.fragments[: self._first]
        if not self._faults.injected:
            return rotated
        return [fragment for fragment in rotated if self._faults.stopping(call, self.path, fragment.index) is None]

    def _taken(
        self,
        call: Call,
        fragments: list[Fragment],
        max_message_count: int,
        lock: SessionLock | None,
        selector: Selector | None,
        delete: bool,
    ) -> list[Entry]:
        """Take one message of each fragment in turn."""
        now = call.now
        taken: list[Entry] = []
        while fragments and len(taken) < max_message_count:
            turns, fragments = fragments, []
            for fragment in turns:
                entry = fragment.take(now, lock, delete, selector)
                if entry is not None:
                    taken.append(entry)
                    if len(taken) == max_message_count:
                        return taken
                    fragments.append(fragment)
        return taken

    def settle_each(
        self, call: Call, tokens: Sequence[UUID], settlement: Settlement, lock: SessionLock | None
    ) -> dict[UUID, ServiceBusError]:
        """Settle locked messages in their order; returns the errors of those that could not be settled."""
        errors: dict[UUID, ServiceBusError] = {}
        for token in tokens:
            number = token.int
            try:
                fragment = self.placement.holder_of(call, (number,))
                fragment.check_lock(number, call.now, lock)
            except ServiceBusError as error:
                errors[token] = error.with_traceback(None)  # which refers to this frame
            else:
                fragment.settle(number, settlement, call.now)
        return errors

    def release(self, now: float, token: int) -> None:
        """Release a message that no application has seen, even if its fragment has a fault.

        A token that this queue did not issue, because it was deleted and created again, is ignored.
        """
        index = token & TOKEN_FRAGMENT_MASK
        if index < len(self.fragments):
            self.fragments[index].release(token, now)

    # ------------------------------------------------------------------ sessions

    def accept_session(self, call: Call, session_id: str) -> SessionLock:
        """Lock a session by id.

        Raises:
            SessionCannotBeLockedError: another receiver holds it.
            ServiceBusError, NoAnswer: its fragment is unreachable.
        """
        fragment = self.placement.fragment_for(session_id)
        return self.placement.reached(call, fragment.index).accept_session(session_id, call.now)

    def accept_next_session(self, call: Call) -> SessionLock | None:
        """Lock a free session that has messages; None if there is none."""
        for fragment in self._reachable(call):
            session_id = fragment.next_session(call.now)
            if session_id is not None:
                return self.placement.reached(call, fragment.index).accept_session(session_id, call.now)
        return None

    def session_ids(self, call: Call, *, state_set_after: float | None, most: int | None = None) -> list[str]:
        """As `Sessions.ids`, of all fragments: a list without some sessions would look complete.

        Raises:
            ServiceBusError, NoAnswer: a fragment is unreachable.
        """
        reached = (self.placement.reached(call, index) for index in range(len(self.fragments)))
        found = (each.session_ids(call.now, state_set_after=state_set_after, most=most) for each in reached)
        return sorted(chain.from_iterable(found))[:most]

    def check_receiver(self, *, with_session: bool) -> None:
        """Check that a receiver uses sessions if, and only if, the entity requires them.

        Raises:
            SessionUseError: it does not.
        """
        if self.requires_session and not with_session:
            raise SessionUseError(
                "It is not possible for an entity that requires sessions to create a non-sessionful message receiver. "
                f"For {self.path}, open the receiver with a session_id or NEXT_AVAILABLE_SESSION"
            )
        if with_session and not self.requires_session:
            raise SessionUseError(
                "A sessionful message receiver cannot be created on an entity that does not require sessions. "
                f"For {self.path}, open the receiver without session_id"
            )


def peek(
    body: Queue | Topic,
    faults: Faults,
    random: Random,
    call: Call,
    cursor: PeekCursor,
    max_message_count: int,
    from_number: int,
    session_id: str | None,
) -> list[Entry]:
    """The oldest messages of one fragment, from a sequence number on."""
    if session_id is not None:
        fragments = [body.placement.reached(call, body.placement.fragment_for(session_id).index)]
    elif len(body.fragments) == 1:
        fragments = [body.placement.reached(call, 0)]
    else:
        reachable = [
            fragment.index for fragment in body.fragments if faults.stopping(call, body.path, fragment.index) is None
        ]
        fragments = [body.fragments[index] for index in cursor.order(from_number, reachable, random)]
    for fragment in fragments:
        start = from_number if from_number >> COUNTER_BITS == fragment.index else 0
        found = _browsed(fragment, call.now, max_message_count, start, session_id)
        if found:
            cursor.stopped_at(found[-1].number)
            return found
    return []


def _browsed(
    fragment: Fragment, now: float, max_message_count: int, from_number: int, session_id: str | None
) -> list[Entry]:
    found: list[Entry] = []
    size_bytes = 0
    for entry in fragment.browse(now, from_number, session_id):
        size_bytes += entry.size_bytes
        if found and (size_bytes > PEEK_LIMIT_BYTES or len(found) == min(max_message_count, MAX_PEEKED)):
            break
        found.append(entry)
    return found


MAX_SHARED_POSITIONS: Final = 1_000
"""So many positions of readers that cannot be distinguished are remembered."""


class PeekCursor:
    """The position of one reader that peeks: the order of the fragments, and the last sequence number."""

    __slots__ = ("_last_number", "_order")

    def __init__(self) -> None:
        self._order: list[int] = []
        self._last_number = 0

    def order(self, from_number: int, reachable: list[int], random: Random) -> list[int]:
        """The indexes of the fragments to query, in order.

        A number below that of any message restarts at a random fragment. The number after the last returned message
        continues there. Any other number starts at the fragment that it belongs to.
        """
        if not reachable:
            return []
        if from_number <= 1:
            self._order = random.sample(reachable, len(reachable))
        elif self._last_number >> COUNTER_BITS not in self._order or from_number != self._last_number + 1:
            self._order = [index for index in reachable if index >= from_number >> COUNTER_BITS]
        else:
            at = self._order.index(self._last_number >> COUNTER_BITS)
            self._order = self._order[at:]  # an unreachable one may be back at the next call
        return [index for index in self._order if index in reachable]

    def stopped_at(self, number: int) -> None:
        self._last_number = number


class SharedPeekCursor(PeekCursor):
    """The positions of readers that cannot be distinguished, so that those that peek in turns each get every message.

    All that begin at the start visit the fragments in one order. A sequence number after a returned message continues
    in the order of that reader; any other number starts at its fragment, as for a single reader.
    """

    __slots__ = ("_orders", "_whole")

    def __init__(self) -> None:
        super().__init__()
        self._whole: list[int] = []
        self._orders: OrderedDict[int, list[int]] = OrderedDict()

    def order(self, from_number: int, reachable: list[int], random: Random) -> list[int]:
        last = from_number - 1
        if last <= 0:
            new = [index for index in reachable if index not in self._whole]
            self._whole += random.sample(new, len(new))
            self._order = self._whole
        elif last in self._orders:
            order = self._orders[last]
            self._order = order[order.index(last >> COUNTER_BITS) :]
        else:
            self._order = [index for index in reachable if index >= from_number >> COUNTER_BITS]
        return [index for index in self._order if index in reachable]

    def stopped_at(self, number: int) -> None:
        self._orders[number] = self._order
        self._orders.move_to_end(number)
        if len(self._orders) > MAX_SHARED_POSITIONS:
            self._orders.popitem(last=False)


class FrontEndCache:
    """The messages of one entity that each front end has locked and cached, in the order in which they were cached."""

    def __init__(self) -> None:
        self._cached: dict[int, deque[tuple[Fragment, int]]] = {}

    def receive(
        self, call: Call, fragments: Sequence[Fragment], max_message_count: int, *, delete: bool
    ) -> list[Entry]:
        """Take at most `max_message_count` messages, cached ones first.

        Args:
            fragments: the reachable fragments, in the order in which to query them; `Queue.receive` chooses both.
            delete: whether the messages are deleted rather than locked.
        """
        cached = self._cached.setdefault(call.front_end, deque())
        taken: list[Entry] = []
        while len(taken) < max_message_count:
            if not cached and not self._query(call, fragments, cached):
                break
            fragment, lock_token = cached.popleft()
            entry = fragment.take_from_cache(lock_token, call.now, delete=delete)
            if entry is not None:
                taken.append(entry)
        return taken

    def drop(self, front_end: int) -> None:
        """Drop the cache of a front end."""
        self._cached.pop(front_end, None)

    def _query(self, call: Call, fragments: Sequence[Fragment], cached: deque[tuple[Fragment, int]]) -> bool:
        for fragment in fragments:
            entry = fragment.take_for_cache(call.now)
            if entry is not None:
                cached.append((fragment, entry.token))
        return bool(cached)
