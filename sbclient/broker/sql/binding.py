"""What the names in an expression stand for: the parameters of its rule, and the properties of the system."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from sbclient.broker.sql.properties import SYSTEM_PROPERTIES, SystemProperty
from sbclient.broker.sql.syntax import Constant, Node, Parameter, Position, Property, Sign, refused
from sbclient.broker.sql.values import FilterError, Value, checked, signed
from sbclient.errors import InvalidOperationError

VARYING: Final = object()
"""In place of the value of an expression that is not the same for all messages."""


class Binding:
    """What the names in an expression stand for, and how an error calls the expression.

    Args:
        kind: `"filter"` or `"action"`.
        parameters: the values of its parameters; a name may be given with or without its `@`, in upper or lower case.

    Raises:
        InvalidOperationError: a value is of no type of the language, or two names differ only in spelling.
    """

    def __init__(self, kind: str, parameters: Mapping[str, Any] | None = None) -> None:
        self.kind = kind
        self._parameters: dict[str, Value] = {}
        for given, value in (parameters or {}).items():
            name = given.removeprefix("@").lower()
            if name in self._parameters:
                raise InvalidOperationError(f"the {kind} has two values for the parameter @{name}: remove one")
            try:
                self._parameters[name] = checked(value)
            except ValueError as error:
                raise InvalidOperationError(f"the parameter @{name} of the {kind} is refused: {error}") from error

    def refused(self, position: Position, reason: str) -> InvalidOperationError:
        """The error for a part of the expression that cannot be meant."""
        return refused(self.kind, position, reason)

    def parameter(self, node: Parameter) -> Value:
        """The value of a parameter; refused if it has none."""
        try:
            return self._parameters[node.name]
        except KeyError:
            given = ", ".join(f"@{name}" for name in self._parameters) or "none"
            raise self.refused(node.position, f"the parameter {node} has no value, given are: {given}") from None

    def system_property(self, node: Property) -> SystemProperty:
        """The entry of a system property; refused if there is none."""
        found = SYSTEM_PROPERTIES.get(node.name.lower())
        if found is None:
            known = ", ".join(each.name for each in SYSTEM_PROPERTIES.values())
            raise self.refused(node.position, f"there is no system property {node}, there are: {known}")
        return found

    def constant(self, node: Node) -> Any:
        """The value of an expression if it is the same for all messages, else `VARYING`."""
        match node:
            case Constant(value):
                return value
            case Parameter():
                return self.parameter(node)
            case Sign(symbol, operand):
                value = self.constant(operand)
                if value is None or value is VARYING:
                    return value
                try:
                    return signed(symbol, value, str(node))
                except FilterError:  # an error of each message, as any other of its kind
                    return VARYING
        return VARYING
