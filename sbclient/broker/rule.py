"""A compiled rule of a subscription: a filter that selects messages, and an action that changes the copies."""

from __future__ import annotations

from copy import deepcopy
from random import Random

from sbclient.amqp import EncodedMessage
from sbclient.broker.entry import Entry, utc_datetime
from sbclient.broker.filters import SystemProperties, compile_action, compile_filter
from sbclient.broker.rule_index import Equality
from sbclient.broker.sql.values import Steps
from sbclient.entities import CorrelationRuleFilter, RuleProperties

RULE_NAME_PROPERTY = "RuleName"
"""The property with the name of the rule, on each copy that an action has made. Source: topic filters."""


class Rule:
    """One rule.

    Args:
        properties: complete. The rule keeps a copy, which the caller cannot change.

    Raises:
        InvalidOperationError: filter or action cannot be read.
    """

    def __init__(self, properties: RuleProperties) -> None:
        self.properties = deepcopy(properties)
        self._filter = compile_filter(properties.filter)
        self._action = None if properties.action is None else compile_action(properties.action)

    def described(self) -> RuleProperties:
        """Return a description that the caller may change."""
        return deepcopy(self.properties)

    @property
    def is_correlation(self) -> bool:
        """Whether it counts as a correlation filter; all others count as SQL filters."""
        return isinstance(self.properties.filter, CorrelationRuleFilter)

    @property
    def key(self) -> Equality | bool:
        """As `Filter.key`."""
        return self._filter.key

    @property
    def has_action(self) -> bool:
        return self._action is not None

    def matches(self, entry: Entry, system: SystemProperties, random: Random, steps: Steps) -> bool:
        """
        Raises:
            FilterError: the filter cannot be evaluated.
        """
        return self._filter.matches(entry.content, system, random, steps)

    def changed(self, entry: Entry, system: SystemProperties, random: Random, steps: Steps) -> EncodedMessage:
        """Apply the action to a copy; without an action return the content itself.

        Raises:
            FilterError: the action cannot be applied.
        """
        if self._action is None:
            return entry.content
        changed = self._action.apply(entry.content, system, random, steps)
        return changed.with_added({RULE_NAME_PROPERTY: self.properties.name})


def system_properties_of(entry: Entry) -> SystemProperties:
    """The system properties of a message that rules can use."""
    return SystemProperties(
        enqueued_time_utc=utc_datetime(entry.enqueued_at),
        sequence_number=entry.number,
        enqueued_sequence_number=entry.original_number,
        size_bytes=entry.size_bytes,
        dead_letter_source=entry.dead_letter_source,
    )
