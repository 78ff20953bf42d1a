"""What the front ends of a partitioned entity keep: answers of fragments that came beside the one that was needed.

Laws (source: partitioned entities, documented, unless said otherwise):

1. A receive asks every fragment at once and gives the first answers; the others are kept, locked, and given to later
   receives through the same front end without asking again.
2. A receive through another front end does not see them until their locks have ended.
3. A message that was kept and never given out has had no delivery (our choice).

With a single front end nothing is kept: its effect would be locks that nobody holds (our choice).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from sbclient.broker.entry import Entry
from sbclient.broker.faults import Call
from sbclient.broker.fragment import Fragment


class FrontEndCache:
    """The kept answers of one entity, for each front end in order of coming."""

    def __init__(self) -> None:
        self.store_queries = 0
        self._kept: dict[int, deque[tuple[Fragment, int]]] = {}

    def receive(
        self, call: Call, fragments: Sequence[Fragment], max_message_count: int, *, delete: bool
    ) -> list[Entry]:
        """At most that many messages, first those that are kept; what the fragments give beyond is kept."""
        kept = self._kept.setdefault(call.front_end, deque())
        taken: list[Entry] = []
        while len(taken) < max_message_count:
            if not kept and not self._ask(call, fragments, kept):
                break
            fragment, token = kept.popleft()
            entry = fragment.take_from_cache(token, call.now, delete=delete)
            if entry is not None:
                taken.append(entry)
        return taken

    def lose(self, front_end: int) -> None:
        """Forget what a front end keeps."""
        self._kept.pop(front_end, None)

    def _ask(self, call: Call, fragments: Sequence[Fragment], kept: deque[tuple[Fragment, int]]) -> bool:
        for fragment in fragments:
            self.store_queries += 1
            entry = fragment.take_for_cache(call.now)
            if entry is not None:
                kept.append((fragment, entry.token))
        return bool(kept)
