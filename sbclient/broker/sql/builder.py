"""From what the grammar recognises to the nodes of the tree."""

from __future__ import annotations

import math
from typing import Any, Final, TypeGuard

from lark import Token, Transformer, v_args

from sbclient.broker.sql.syntax import (
    And,
    Arithmetic,
    Assignment,
    Comparison,
    Constant,
    Exists,
    In,
    IsNull,
    Like,
    NamedProperty,
    NewId,
    Node,
    Not,
    Or,
    Parameter,
    Position,
    Property,
    Removal,
    Sign,
    Statements,
)
from sbclient.broker.sql.values import INTEGER_MAX, INTEGER_MIN

_BEYOND: Final = INTEGER_MAX + 1


class Refusal(Exception):
    """A part that the grammar takes and the language does not; the parser makes the caller's error of it."""

    def __init__(self, at: Token, reason: str) -> None:
        super().__init__(reason)
        self.position = _position(at)
        self.reason = reason


@v_args(inline=True)
class TreeBuilder(Transformer[Token, Node]):
    """Makes the nodes; the parser calls a method for each rule it has recognised, innermost first."""

    def action(self, *statements: Assignment | Removal) -> Node:
        return Statements(statements)

    def assignment(self, _set: Token, target: Property, value: Node) -> Node:
        return Assignment(target, value)

    def removal(self, _remove: Token, target: Property) -> Node:
        return Removal(target)

    def disjunction(self, *terms: Any) -> Node:
        return Or(terms[::2])

    def conjunction(self, *terms: Any) -> Node:
        return And(terms[::2])

    def negated(self, _not: Token, operand: Node) -> Node:
        return Not(operand)

    def compared(self, left: Node, symbol: str, right: Node) -> Node:
        return Comparison(symbol, left, right)

    def comparison(self, symbol: Token) -> str:
        return "<>" if symbol == "!=" else str(symbol)

    def is_null(self, operand: Property, _is: Token, negation: Token | None, _null: Token) -> Node:
        return IsNull(operand, negation is not None)

    def is_in(self, operand: Node, negation: Token | None, _in: Token, choices: tuple[Node, ...]) -> Node:
        return In(operand, choices, negation is not None)

    def choices(self, *choices: Node) -> tuple[Node, ...]:
        return choices

    def is_like(
        self,
        operand: Node,
        negation: Token | None,
        like: Token,
        pattern: Node,
        _escape: Token | None,
        escape: Node | None,
    ) -> Node:
        return Like(operand, pattern, escape, negation is not None, _position(like))

    def exists(self, _exists: Token, operand: Property) -> Node:
        return Exists(operand)

    def calculated(self, left: Node, symbol: Token, right: Node) -> Node:
        return Arithmetic(str(symbol), left, right)

    def signed(self, symbol: Token, operand: Node) -> Node:
        if symbol == "-" and is_beyond(operand):
            return Constant(INTEGER_MIN, _position(symbol))
        return Sign(str(symbol), operand)

    def integer(self, token: Token) -> Node:
        return _integer(token, 10)

    def hexadecimal(self, token: Token) -> Node:
        return _integer(token, 16)

    def decimal(self, token: Token) -> Node:
        value = float(token)
        if math.isinf(value):
            raise Refusal(token, f"the number {token[:40]} does not fit into a double")
        return Constant(value, _position(token))

    def text(self, token: Token) -> Node:
        return Constant(token[1:-1].replace("''", "'"), _position(token))

    def word(self, token: Token) -> Node:
        return Constant({"TRUE": True, "FALSE": False, "NULL": None}[token.type], _position(token))

    def parameter(self, token: Token) -> Node:
        return Parameter(token[1:].lower(), _position(token))

    def function(self, name: Token, *arguments: Node | None) -> Node:
        given = [argument for argument in arguments if argument is not None]
        match name.lower():
            case "newid":
                if given:
                    raise Refusal(name, f"newid() takes no argument, not {len(given)}")
                return NewId()
            case "property" | "p":
                if len(given) != 1:
                    raise Refusal(name, f"{name}(name) takes one argument, not {len(given)}")
                return NamedProperty(given[0], _position(name))
        raise Refusal(
            name, f"there is no function {name[:40]}, the functions are newid() and property(name) or p(name)"
        )

    def property(self, first: Token, second: Token | None) -> Node:
        if second is None:
            return Property(_unquoted(first), position=_position(first))
        scope = _unquoted(first).lower()
        if scope not in ("sys", "user"):
            raise Refusal(
                first, f"{first[:40]} is no scope, the scopes are sys and user; a name with a dot needs brackets"
            )
        return Property(_unquoted(second), scope == "sys", _position(first))

    def name(self, token: Token) -> Token:
        return token


def is_beyond(node: Node) -> TypeGuard[Constant]:
    """Whether this is 2^63: an integer only with a minus sign before it, which its own digits cannot know."""
    return isinstance(node, Constant) and isinstance(node.value, int) and node.value == _BEYOND


def _integer(token: Token, base: int) -> Constant:
    value = int(token, base)
    if value > _BEYOND:  # 2^63 itself may still get its minus sign
        raise Refusal(token, f"the integer {token[:40]} does not fit into 64 bits")
    return Constant(value, _position(token))


def _unquoted(token: Token) -> str:
    match token.type:
        case "BRACKETED":
            return token[1:-1].replace("]]", "]")
        case "QUOTED":
            return token[1:-1].replace('""', '"')
    return str(token)


def _position(token: Token) -> Position:
    return Position(token.line or 1, token.column or 1)
