"""Finds the rules of a topic that a message may match, without evaluating the others.

Rules:

1. Equality of one property decides a rule: `name = 'text'`, `name IN (1, 2)`, the first term of an AND, or one property
   of a correlation filter. If a message has another value of that type, the rule does not match.
2. All other rules are candidates for every message, and so is a rule whose evaluation may end in an error: an SQL
   filter whose property has a value of another type, or an AND whose first term is unknown.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any, Final, Generic, NamedTuple, TypeVar

from sbclient.broker.sql.binding import VARYING, Binding
from sbclient.broker.sql.properties import Scope
from sbclient.broker.sql.syntax import And, Comparison, In, Node, Property

R = TypeVar("R")

_KINDS: Final = (str, int)
"""The types of the values that are indexed: Python compares two of them as the language does."""


class Equality(NamedTuple):
    """A property whose value decides that a rule does not match.

    Attributes:
        name: of the user property, or empty.
        read: reads the system property; None for a user property.
        values: all `str` or all `int`.
        is_sql: whether a value of another type is an error.
        needs_value: whether a message without a value cannot match, nor cause an error.
    """

    name: str
    read: Callable[[Scope], Any] | None
    values: tuple[str, ...] | tuple[int, ...]
    is_sql: bool
    needs_value: bool

    def __repr__(self) -> str:
        return f"Equality({self.name!r})"  # without the values, which may be those of messages


def sql_equality(node: Node, binding: Binding) -> Equality | None:
    """Return what decides an SQL filter; None if no property does."""
    first = node.terms[0] if isinstance(node, And) else node
    found: tuple[Node, tuple[Node, ...]] | None = None
    if isinstance(first, Comparison) and first.symbol == "=":
        left, right = first.left, first.right
        found = (left, (right,)) if isinstance(left, Property) else (right, (left,))
    elif isinstance(first, In) and not first.is_negated:
        found = first.operand, first.choices
    if found is None:
        return None
    operand, choices = found
    if not isinstance(operand, Property):
        return None
    values = tuple(binding.constant(choice) for choice in choices)
    kind = type(values[0])
    if VARYING in values or kind not in _KINDS or any(type(value) is not kind for value in values):
        return None
    read = binding.system_property(operand).read if operand.is_system else None
    return Equality("" if read else operand.name, read, values, is_sql=True, needs_value=first is node)


def correlation_equality(name: str, read: Callable[[Scope], Any] | None, value: Any) -> Equality | None:
    """Return one condition of a correlation filter as what decides it; None if its type is not indexed."""
    return Equality(name, read, (value,), is_sql=False, needs_value=True) if type(value) in _KINDS else None


class _Group:
    """The rules that one property decides, as positions in the order of all rules."""

    def __init__(self) -> None:
        self.of_value: dict[type, defaultdict[Any, list[int]]] = {kind: defaultdict(list) for kind in _KINDS}
        self.errors_for: dict[type, list[int]] = {kind: [] for kind in _KINDS}
        self.without_value: list[int] = []
        self.all: list[int] = []

    def add(self, position: int, equality: Equality) -> None:
        kind = type(equality.values[0])
        for value in set(equality.values):
            self.of_value[kind][value].append(position)
        if equality.is_sql:
            self.errors_for[int if kind is str else str].append(position)
        if not equality.needs_value:
            self.without_value.append(position)
        self.all.append(position)

    def find(self, value: Any, into: list[int]) -> None:
        kind = type(value)
        if value is None:
            into += self.without_value
        elif kind in self.of_value:
            into += self.of_value[kind].get(value, ())
            into += self.errors_for[kind]
        else:  # as 2.0, which equals 2
            into += self.all


class RuleIndex(Generic[R]):
    """The rules of all subscriptions of a topic.

    Args:
        rules: in order, each with what decides it; True = it is a candidate for every message, False = for none.
    """

    def __init__(self, rules: Iterable[tuple[R, Equality | bool]]) -> None:
        self._rules: list[R] = []
        self._always: list[int] = []
        self._of_system: defaultdict[Callable[[Scope], Any], _Group] = defaultdict(_Group)
        self._of_user: defaultdict[str, _Group] = defaultdict(_Group)
        for position, (rule, equality) in enumerate(rules):
            self._rules.append(rule)
            if isinstance(equality, Equality):
                group = self._of_system[equality.read] if equality.read else self._of_user[equality.name]
                group.add(position, equality)
            elif equality:
                self._always.append(position)

    def candidates(self, scope: Scope) -> list[R]:
        """The rules that may match a message or cause an error, in order."""
        found = list(self._always)
        for read, group in self._of_system.items():
            group.find(read(scope), found)
        if self._of_user:
            properties = scope.properties
            folded: dict[str, Any] = {}
            for key in properties:
                folded.setdefault(key.lower(), properties[key])
            for name, group in self._of_user.items():
                group.find(properties[name] if name in properties else folded.get(name.lower()), found)
        found.sort()
        return [self._rules[position] for position in found]
