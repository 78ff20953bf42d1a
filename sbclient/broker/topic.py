"""A topic: what is sent to it is copied to its subscriptions.

Laws (source: topic filters and partitioned entities, documented):

1. The rules of a subscription that match and have no action make one copy together; each that matches and has an action
   makes one of its own, which carries the rule's name in the property `RuleName`.
2. A copy lies in the fragment with the index of the topic's, whatever an action has made of its keys.
3. Scheduled messages and the duplicate window belong to the topic; its own active count is always 0.
4. The shorter life wins, the topic's or the subscription's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import TypeAlias

from sbclient.broker.entity import Queue
from sbclient.broker.entry import Entry
from sbclient.broker.faults import Faults
from sbclient.broker.fragment import Fragment
from sbclient.broker.placement import Placement
from sbclient.broker.policy import Policy, Usage
from sbclient.broker.rule import Rule
from sbclient.message import ServiceBusMessage

Publish: TypeAlias = Callable[[Entry, float], None]


class TopicFragment(Fragment):
    """One partition of a topic: it keeps scheduled messages and ids, and passes the rest on."""

    publish: Publish

    def _store(self, entry: Entry, at: float) -> None:
        entry.enqueued_at = at
        self._begin_life(entry)
        entry.number = self.next_number()
        self.publish(entry, at)


class Subscription:
    """A queue of copies, and the rules that make them."""

    def __init__(self, queue: Queue, *, dead_letters_filter_errors: bool) -> None:
        self.queue = queue
        self.dead_letters_filter_errors = dead_letters_filter_errors
        self.rules: dict[str, Rule] = {}

    def copies_of(self, entry: Entry) -> list[tuple[ServiceBusMessage, int]]:
        """The contents, with their sizes, that come of a message here."""
        if any(rule.matches(entry) for rule in self.rules.values()):
            return [(entry.content, entry.size_bytes)]
        return []


class Topic:
    """The fragments of a topic, and its subscriptions by the keys of their names.

    Args: as `Queue`.
    """

    def __init__(self, path: str, policy: Policy, usages: Sequence[Usage], faults: Faults, random: Random) -> None:
        self.path = path
        self.policy = policy
        self.subscriptions: dict[str, Subscription] = {}
        self.fragments: list[Fragment] = []
        for index, usage in enumerate(usages):
            fragment = TopicFragment(index, path, policy, usage, random, lambda _: None, None)
            fragment.publish = self._publisher(index)
            self.fragments.append(fragment)
        self.placement = Placement(path, self.fragments, faults, random)

    @property
    def requires_session(self) -> bool:
        """Never: what is sent needs a session only where subscriptions ask for it."""
        return False

    def next_change_at(self) -> float:
        """When something happens here by time alone; infinity if nothing will."""
        return min(fragment.next_change_at() for fragment in self.fragments)

    def advance(self, now: float) -> None:
        for fragment in self.fragments:
            fragment.advance(now)

    def _publisher(self, index: int) -> Publish:
        def publish(entry: Entry, at: float) -> None:
            for subscription in self.subscriptions.values():
                for content, size_bytes in subscription.copies_of(entry):
                    copy = Entry(content, size_bytes)
                    copy.original_number = entry.number
                    copy.expires_at = entry.expires_at
                    copy.hops = entry.hops
                    subscription.queue.fragments[index].append(copy, at)

        return publish
