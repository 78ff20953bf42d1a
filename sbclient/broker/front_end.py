"""The message cache of the front ends of a partitioned entity.

Rules (source: partitioned entities, documented, unless said otherwise):

1. A receive queries all fragments at once and returns the first messages. The front end locks and caches the others,
   and returns them to later receives through the same front end without asking the fragments again.
2. Receives through another front end do not see cached messages until their locks end.
3. A cached message that was never returned does not count as delivered (our choice).

A single front end caches nothing: the only effect would be locked messages that no receiver has (our choice).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from sbclient.broker.entry import Entry
from sbclient.broker.faults import Call
from sbclient.broker.fragment import Fragment


class FrontEndCache:
    """The messages of one entity that each front end has locked and cached, in the order in which they were cached.

    Attributes:
        store_queries: the number of queries to fragments so far.
    """

    def __init__(self) -> None:
        self.store_queries = 0
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
            self.store_queries += 1
            entry = fragment.take_for_cache(call.now)
            if entry is not None:
                cached.append((fragment, entry.token))
        return bool(cached)
