"""A topic, which copies each message to its subscriptions.

Rules (source: topic filters and partitioned entities, documented):

1. All matching rules of a subscription without an action make one copy together. Each matching rule with an action
   makes a copy of its own, with the name of the rule in the property `RuleName`.
2. A copy goes to the fragment with the same index as in the topic, even if an action changes its keys.
3. Scheduled messages and the duplicate window belong to the topic; its own active count is always 0.
4. The shorter time to live applies, that of the topic or of the subscription.
5. A rule that cannot be evaluated does not match; if the subscription is set so, the message is dead-lettered once. A
   copy is also dead-lettered if it lacks a session that the subscription requires, or if its headers are too large.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from random import Random
from typing import Final, TypeAlias

from sbclient.amqp import EncodedMessage
from sbclient.broker.entity import Queue
from sbclient.broker.entry import Entry
from sbclient.broker.faults import Faults
from sbclient.broker.filters import FilterError
from sbclient.broker.fragment import Fragment
from sbclient.broker.headers import MAX_HEADERS_BYTES
from sbclient.broker.placement import Placement
from sbclient.broker.policy import Policy, Usage
from sbclient.broker.rule import Rule, system_properties_of
from sbclient.broker.rule_index import RuleIndex
from sbclient.broker.sql.properties import Scope, SystemProperties
from sbclient.broker.sql.values import Steps, StepsOfTopic
from sbclient.broker.storage import Copies

Publish: TypeAlias = Callable[[Entry, float], Copies]
"""Makes the copies of a message for the subscriptions, with their fragments; stores nothing."""

FILTER_ERROR: Final = "FilterEvaluationException"
NO_SESSION: Final = (
    "Session ID is null.",
    "Session enabled entity doesn't allow a message whose session identifier is null.",
)
HEADERS_TOO_LARGE: Final = ("HeaderSizeExceeded", "The size quota for this stream has been exceeded.")


class TopicFragment(Fragment):
    """One partition of a topic: it stores scheduled messages and ids, and publishes all other messages."""

    publish: Publish

    def decide(self, entry: Entry, at: float) -> Copies:
        entry.enqueued_at = at
        self._set_expiry(entry)
        entry.number = self.next_number()
        return self.publish(entry, at)

    def _store(self, entry: Entry, copies: Copies) -> None:
        for fragment, copy in copies:
            fragment.put(copy, ())


class Subscription:
    """A queue with the rules that select and change its messages."""

    def __init__(self, queue: Queue, *, dead_letters_filter_errors: bool) -> None:
        self.queue = queue
        self.dead_letters_filter_errors = dead_letters_filter_errors
        self.rules: dict[str, Rule] = {}
        self.correlation_count = 0
        self.on_rules_changed: Callable[[], None] = lambda: None

    def put(self, key: str, rule: Rule) -> None:
        """Add a rule, or replace the one of that key."""
        self.drop(key)
        self.rules[key] = rule
        self.correlation_count += rule.is_correlation
        self.on_rules_changed()

    def drop(self, key: str) -> None:
        """Remove the rule of that key, if there is one."""
        rule = self.rules.pop(key, None)
        if rule is not None:
            self.correlation_count -= rule.is_correlation
            self.on_rules_changed()

    def restore(self, rules: dict[str, Rule]) -> None:
        """Replace all rules by those of an earlier moment."""
        self.rules = rules
        self.correlation_count = sum(rule.is_correlation for rule in rules.values())
        self.on_rules_changed()

    def publish(
        self,
        rules: Iterable[Rule],
        entry: Entry,
        system: SystemProperties,
        index: int,
        at: float,
        random: Random,
        steps: StepsOfTopic,
    ) -> Iterator[tuple[Fragment, Entry]]:
        """Yield the copies of a message, as its rules make them, for the fragments that store them."""
        contents: list[EncodedMessage] = []
        error: FilterError | None = None
        is_plain_due = True
        for rule in rules:
            if is_plain_due or rule.has_action:
                try:
                    if rule.matches(entry, system, random, steps.of_next_rule()):
                        contents.append(rule.changed(entry, system, random, steps.of_next_rule()))
                        is_plain_due = is_plain_due and rule.has_action
                except FilterError as reason:
                    error = error or reason
        fragment = self.queue.fragments[index]
        for content in contents:
            yield self._placed(_copy(entry, content), fragment, at)
        if error is not None and self.dead_letters_filter_errors:
            yield _refused(_copy(entry, entry.content), FILTER_ERROR, str(error), fragment, at)

    def _placed(self, copy: Entry, fragment: Fragment, at: float) -> tuple[Fragment, Entry]:
        if self.queue.requires_session and copy.content.session_id is None:
            return _refused(copy, *NO_SESSION, fragment, at)
        if copy.content.size_bytes > MAX_HEADERS_BYTES and copy.content.header_bytes > MAX_HEADERS_BYTES:
            return _refused(copy, *HEADERS_TOO_LARGE, fragment, at)
        fragment.advance(at)
        fragment.decide(copy, at)
        return fragment, copy


def _copy(entry: Entry, content: EncodedMessage) -> Entry:
    copy = Entry(content, entry.size_bytes if content is entry.content else content.size_bytes)
    copy.original_number = entry.first_number
    copy.expires_at = entry.expires_at
    copy.hops = entry.hops
    copy.enqueued_at = entry.enqueued_at
    copy.was_scheduled = entry.was_scheduled
    return copy


def _refused(copy: Entry, reason: str, description: str, fragment: Fragment, at: float) -> tuple[Fragment, Entry]:
    copy.dead_letter_reason, copy.dead_letter_description = reason, description
    copy.dead_letter_source = fragment.path
    copy.expires_at = math.inf
    behind = fragment.behind()
    behind.advance(at)
    behind.decide(copy, at)
    return behind, copy


class Topic:
    """The fragments of a topic, and its subscriptions by the keys of their names.

    Args: as `Queue`.
    """

    def __init__(self, path: str, policy: Policy, usages: Sequence[Usage], faults: Faults, random: Random) -> None:
        self.path = path
        self.policy = policy
        self.requires_session = False  # only subscriptions do
        self.subscriptions: dict[str, Subscription] = {}
        self._random = random
        self._index: RuleIndex[tuple[Subscription, Rule]] | None = None
        self.fragments: list[Fragment] = []
        for index, usage in enumerate(usages):
            fragment = TopicFragment(index, path, policy, usage, random, lambda _: None, None)
            fragment.publish = self._publisher(index)
            self.fragments.append(fragment)
        self.placement = Placement(path, self.fragments, faults, random)

    def add(self, key: str, subscription: Subscription) -> None:
        """Add a subscription."""
        self.subscriptions[key] = subscription
        subscription.on_rules_changed = self._forget_index
        self._forget_index()

    def remove(self, key: str) -> None:
        """Remove a subscription."""
        del self.subscriptions[key]
        self._forget_index()

    def next_change_at(self) -> float:
        """The time of the next timed change; infinity if there is none."""
        return min(fragment.next_change_at() for fragment in self.fragments)

    def advance(self, now: float) -> None:
        for fragment in self.fragments:
            fragment.advance(now)

    def _forget_index(self) -> None:
        self._index = None

    def _publisher(self, index: int) -> Publish:
        def publish(entry: Entry, at: float) -> Copies:
            if self._index is None:
                self._index = RuleIndex(
                    ((subscription, rule), rule.key)
                    for subscription in self.subscriptions.values()
                    for rule in subscription.rules.values()
                )
            system = system_properties_of(entry)
            scope = Scope(entry.content.application_properties, entry.content, system, self._random, Steps())
            steps = StepsOfTopic()
            copies: list[tuple[Fragment, Entry]] = []
            for subscription, found in groupby(self._index.candidates(scope), itemgetter(0)):
                rules = [rule for _, rule in found]
                copies += subscription.publish(rules, entry, system, index, at, self._random, steps)
            return copies

        return publish
