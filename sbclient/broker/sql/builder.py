"""Builds the nodes of the tree from the rules that the parser recognises."""

from __future__ import annotations

import math
from typing import Any, Final, TypeGuard

from lark import Token, Transformer, v_args

from sbclient.broker.sql import syntax
from sbclient.broker.sql.syntax import Node, Position
from sbclient.broker.sql.values import INTEGER_MAX, INTEGER_MIN

_BEYOND: Final = INTEGER_MAX + 1


class RejectedPart(Exception):
    """A part that the grammar accepts but the language rejects; the parser converts it into the caller's error."""

    def __init__(self, at: Token, reason: str) -> None:
        super().__init__(reason)
        self.position = _position(at)
        self.reason = reason


@v_args(inline=True)
class TreeBuilder(Transformer[Token, Node]):
    """Builds the nodes; the parser calls a method for each recognised rule, innermost first."""

    def action(self, *statements: syntax.Assignment | syntax.Removal) -> Node:
        return syntax.Statements(statements)

    def assignment(self, _set: Token, target: syntax.Property, value: Node) -> Node:
        return syntax.Assignment(target, value)

    def removal(self, _remove: Token, target: syntax.Property) -> Node:
        return syntax.Removal(target)

    def disjunction(self, *terms: Any) -> Node:
        return syntax.Or(terms[::2])

    def conjunction(self, *terms: Any) -> Node:
        return syntax.And(terms[::2])

    def negated(self, _not: Token, operand: Node) -> Node:
        return syntax.Not(operand)

    def compared(self, left: Node, symbol: str, right: Node) -> Node:
        return syntax.Comparison(symbol, left, right)

    def comparison(self, symbol: Token) -> str:
        return "<>" if symbol == "!=" else str(symbol)

    def is_null(self, operand: syntax.Property, _is: Token, negation: Token | None, _null: Token) -> Node:
        return syntax.IsNull(operand, negation is not None)

    def is_in(self, operand: Node, negation: Token | None, _in: Token, choices: tuple[Node, ...]) -> Node:
        return syntax.In(operand, choices, negation is not None)

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
        return syntax.Like(operand, pattern, escape, negation is not None, _position(like))

    def exists(self, _exists: Token, operand: syntax.Property) -> Node:
        return syntax.Exists(operand)

    def calculated(self, left: Node, symbol: Token, right: Node) -> Node:
        return syntax.Arithmetic(str(symbol), left, right)

    def signed(self, symbol: Token, operand: Node) -> Node:
        if symbol == "-" and is_beyond(operand):
            return syntax.Constant(INTEGER_MIN, _position(symbol))
        return syntax.Sign(str(symbol), operand)

    def integer(self, token: Token) -> Node:
        return _integer(token, 10)

    def hexadecimal(self, token: Token) -> Node:
        return _integer(token, 16)

    def decimal(self, token: Token) -> Node:
        value = float(token)
        if math.isinf(value):
            raise RejectedPart(token, f"the number {token[:40]} does not fit into a double")
        return syntax.Constant(value, _position(token))

    def text(self, token: Token) -> Node:
        return syntax.Constant(token[1:-1].replace("''", "'"), _position(token))

    def word(self, token: Token) -> Node:
        return syntax.Constant({"TRUE": True, "FALSE": False, "NULL": None}[token.type], _position(token))

    def parameter(self, token: Token) -> Node:
        return syntax.Parameter(token[1:].lower(), _position(token))

    def function(self, name: Token, *arguments: Node | None) -> Node:
        given = [argument for argument in arguments if argument is not None]
        match name.lower():
            case "newid":
                if given:
                    raise RejectedPart(name, f"newid() takes no argument, not {len(given)}")
                return syntax.NewId()
            case "property" | "p":
                if len(given) != 1:
                    raise RejectedPart(name, f"{name}(name) takes one argument, not {len(given)}")
                return syntax.NamedProperty(given[0], _position(name))
        raise RejectedPart(
            name, f"there is no function {name[:40]}, the functions are newid() and property(name) or p(name)"
        )

    def property(self, first: Token, second: Token | None) -> Node:
        if second is None:
            return syntax.Property(_unquoted(first), position=_position(first))
        scope = _unquoted(first).lower()
        if scope not in ("sys", "user"):
            raise RejectedPart(
                first, f"{first[:40]} is no scope, the scopes are sys and user; a name with a dot needs brackets"
            )
        return syntax.Property(_unquoted(second), scope == "sys", _position(first))

    def name(self, token: Token) -> Token:
        return token


def is_beyond(node: Node) -> TypeGuard[syntax.Constant]:
    """Whether a node is 2^63, which fits into 64 bits only with a minus sign before it."""
    return isinstance(node, syntax.Constant) and isinstance(node.value, int) and node.value == _BEYOND


def _integer(token: Token, base: int) -> syntax.Constant:
    value = int(token, base)
    if value > _BEYOND:  # 2^63 itself may have a minus sign
        raise RejectedPart(token, f"the integer {token[:40]} does not fit into 64 bits")
    return syntax.Constant(value, _position(token))


def _unquoted(token: Token) -> str:
    match token.type:
        case "BRACKETED":
            return token[1:-1].replace("]]", "]")
        case "QUOTED":
            return token[1:-1].replace('""', '"')
    return str(token)


def _position(token: Token) -> Position:
    return Position(token.line or 1, token.column or 1)
