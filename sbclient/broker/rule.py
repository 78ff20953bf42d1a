"""A rule of a subscription: which messages it lets in."""

from __future__ import annotations

from sbclient.broker.entry import Entry
from sbclient.entities import FalseRuleFilter, RuleProperties, TrueRuleFilter
from sbclient.errors import InvalidOperationError


class Rule:
    """A rule, ready to be asked."""

    def __init__(self, properties: RuleProperties) -> None:
        if not isinstance(properties.filter, TrueRuleFilter | FalseRuleFilter) or properties.action is not None:
            raise InvalidOperationError(f"rule {properties.name!r}: only true and false filters are served")
        self.properties = properties

    def matches(self, entry: Entry) -> bool:
        return isinstance(self.properties.filter, TrueRuleFilter)
