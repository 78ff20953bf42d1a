"""Compiles the tree of a predicate into a Python function, which is called for each message.

Rules:

1. A predicate is True, False or None (unknown), in Kleene's logic. AND and OR evaluate their terms from left to right
   and stop at the first one that decides, so that errors in later terms do not matter.
2. The result of every operator except IS NULL and EXISTS is unknown if an operand is.
3. `x IN (a, b)` means `x = a OR x = b`, including unknown choices. NOT IN is its negation.
4. A system property always exists; its value may be null.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

from sbclient.broker.sql.binding import VARYING, Binding
from sbclient.broker.sql.expressions import expression
from sbclient.broker.sql.like import Matcher, matcher
from sbclient.broker.sql.properties import Scope, key_of
from sbclient.broker.sql.syntax import And, Comparison, Exists, In, IsNull, Like, Node, Not, Or
from sbclient.broker.sql.values import COMPARISONS, FilterError, Truth, compare, describe

Test: TypeAlias = Callable[[Scope], Truth]
"""Returns the truth of a predicate."""


def predicate(node: Node, binding: Binding) -> Test:
    """Return a function that evaluates a predicate in a scope; the function raises `FilterError`.

    Raises:
        InvalidOperationError: a system property or parameter does not exist, or a constant has the wrong type.
    """
    return _PREDICATES[type(node)](node, binding)


def _connected(node: Or | And, binding: Binding) -> Test:
    terms, decisive = [predicate(term, binding) for term in node.terms], isinstance(node, Or)

    def test(scope: Scope) -> Truth:
        result: Truth = not decisive
        for term in terms:
            truth = term(scope)
            if truth is decisive:
                return truth
            if truth is None:
                result = None
        return result

    return test


def _not(node: Not, binding: Binding) -> Test:
    operand = predicate(node.operand, binding)

    def test(scope: Scope) -> Truth:
        truth = operand(scope)
        return None if truth is None else not truth

    return test


def _comparison(node: Comparison, binding: Binding) -> Test:
    left, right = expression(node.left, binding), expression(node.right, binding)
    symbol, operation, where = node.symbol, COMPARISONS[node.symbol], str(node)
    # Two values of one of these types are compared by Python as in the language.
    plain = (int, float, str, bool) if symbol in ("=", "<>") else (int, float, str)

    def test(scope: Scope) -> Truth:
        one, other = left(scope), right(scope)
        if one is None or other is None:
            return None
        kind = type(one)
        if kind is type(other) and kind in plain:
            return operation(one, other)
        return compare(symbol, one, other, where)

    return test


def _like(node: Like, binding: Binding) -> Test:
    operand, match_of, is_negated, where = (
        expression(node.operand, binding),
        _match_of(node, binding),
        node.is_negated,
        str(node),
    )

    def test(scope: Scope) -> Truth:
        value, match = operand(scope), match_of(scope)
        if value is None or match is None:
            return None
        if not isinstance(value, str):
            raise FilterError(f"{where}: LIKE applies to text, not to {describe(value)}")
        return match(value, scope.steps) is not is_negated

    return test


def _match_of(node: Like, binding: Binding) -> Callable[[Scope], Matcher | None]:
    """Return a function that returns the matcher in a scope; constants are compiled once."""
    where = str(node)
    parts = [node.pattern] if node.escape is None else [node.pattern, node.escape]
    constants = [binding.constant(part) for part in parts]
    if VARYING not in constants:
        try:
            fixed = _matcher(constants, where)
        except FilterError as error:
            raise binding.refused(node.position, str(error)) from error
        return lambda scope: fixed
    varying = [expression(part, binding) for part in parts]
    return lambda scope: _matcher([part(scope) for part in varying], where)


def _matcher(parts: list[Any], where: str) -> Matcher | None:
    """Return the matcher of a pattern and optionally its escape; None if one of them is null."""
    for part in parts:
        if part is None:
            return None
        if not isinstance(part, str):
            raise FilterError(f"{where}: the pattern and the escape of LIKE are text, not {describe(part)}")
    try:
        return matcher(*parts)
    except ValueError as error:
        raise FilterError(f"{where}: {error}") from error


def _in(node: In, binding: Binding) -> Test:
    operand, is_negated, where = expression(node.operand, binding), node.is_negated, str(node)
    choices = [expression(choice, binding) for choice in node.choices]
    constants = [binding.constant(choice) for choice in node.choices]
    kind = type(constants[0])
    chosen = frozenset(constants) if kind in (int, str) and all(type(each) is kind for each in constants) else None

    def test(scope: Scope) -> Truth:
        value = operand(scope)
        if value is None:
            return None
        if chosen is not None and type(value) is kind:
            return (value in chosen) is not is_negated
        result: Truth = False
        for choice in choices:
            other = choice(scope)
            if other is None:
                result = None
            elif compare("=", value, other, where):
                return not is_negated
        return None if result is None else is_negated

    return test


def _is_null(node: IsNull, binding: Binding) -> Test:
    read, is_negated = expression(node.operand, binding), node.is_negated
    return lambda scope: (read(scope) is None) is not is_negated


def _exists(node: Exists, binding: Binding) -> Test:
    name = node.operand.name
    if node.operand.is_system:
        binding.system_property(node.operand)
        return lambda scope: True
    return lambda scope: key_of(scope, name) is not None


_PREDICATES: Final[dict[type[Node], Callable[[Any, Binding], Test]]] = {
    Or: _connected,
    And: _connected,
    Not: _not,
    Comparison: _comparison,
    Like: _like,
    In: _in,
    IsNull: _is_null,
    Exists: _exists,
}
