"""Compiles the tree of an expression into a Python function, which is called for each message."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias
from uuid import UUID

from sbclient.broker.sql.binding import VARYING, Binding
from sbclient.broker.sql.properties import SYSTEM_PROPERTIES, Scope, user_property
from sbclient.broker.sql.syntax import Arithmetic, NamedProperty, NewId, Node, Property, Sign
from sbclient.broker.sql.values import FilterError, Value, calculate, describe, signed

Evaluate: TypeAlias = Callable[[Scope], Any]
"""Returns the `Value` of an expression."""


def expression(node: Node, binding: Binding) -> Evaluate:
    """Return a function that returns the value of an expression in a scope; the function raises `FilterError`.

    Raises:
        InvalidOperationError: as `predicate`.
    """
    constant = binding.constant(node)
    if constant is not VARYING:
        return lambda scope: constant
    return _EXPRESSIONS[type(node)](node, binding)


def _property(node: Property, binding: Binding) -> Evaluate:
    return binding.system_property(node).read if node.is_system else user_property(node.name)


def _named_property(node: NamedProperty, binding: Binding) -> Evaluate:
    constant = binding.constant(node.name)
    if isinstance(constant, str):
        return _property(Property(*_scoped(constant), node.position), binding)
    if constant is not VARYING and constant is not None:
        raise binding.refused(node.position, f"the name of a property is text, not {describe(constant)}")
    name, where = expression(node.name, binding), str(node)

    def read(scope: Scope) -> Any:
        given = name(scope)
        if given is None:
            return None
        if not isinstance(given, str):
            raise FilterError(f"{where}: the name of a property is text, not {describe(given)}")
        bare, is_system = _scoped(given)
        if not is_system:
            return user_property(bare)(scope)
        found = SYSTEM_PROPERTIES.get(bare.lower())
        if found is None:
            raise FilterError(f"{where}: there is no system property of that name")
        return found.read(scope)

    return read


def _scoped(name: str) -> tuple[str, bool]:
    """Return a name without its scope, and whether the scope is `sys`; any other dot belongs to the name."""
    scope, _, bare = name.partition(".")
    return (bare, scope.lower() == "sys") if bare and scope.lower() in ("sys", "user") else (name, False)


def _new_id(node: NewId, binding: Binding) -> Evaluate:
    def new_id(scope: Scope) -> UUID:
        if scope.random is None:
            raise FilterError("newid() needs a random generator: pass one")
        return UUID(int=scope.random.getrandbits(128), version=4)

    return new_id


def _sign(node: Sign, binding: Binding) -> Evaluate:
    operand, symbol, where = expression(node.operand, binding), node.symbol, str(node)

    def evaluate(scope: Scope) -> Value:
        value = operand(scope)
        return None if value is None else signed(symbol, value, where)

    return evaluate


def _arithmetic(node: Arithmetic, binding: Binding) -> Evaluate:
    left, right, symbol, where = expression(node.left, binding), expression(node.right, binding), node.symbol, str(node)

    def evaluate(scope: Scope) -> Value:
        one, other = left(scope), right(scope)
        return None if one is None or other is None else calculate(symbol, one, other, where)

    return evaluate


_EXPRESSIONS: Final[dict[type[Node], Callable[[Any, Binding], Evaluate]]] = {
    Property: _property,
    NamedProperty: _named_property,
    NewId: _new_id,
    Sign: _sign,
    Arithmetic: _arithmetic,
}
