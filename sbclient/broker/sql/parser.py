"""Parses the text of a filter or an action into a tree. Errors give position, found text and expected text.

A filter is a predicate, and an action is a list of SET and REMOVE statements (documented). A predicate is not a value.
Not documented: hexadecimal integers (`0x1F`), and `,` between statements as well as `;`. There are no comments.

Source: MicrosoftDocs/azure-docs, `service-bus-messaging-sql-filter.md` and `service-bus-messaging-sql-rule-action.md`.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

from lark import Lark, UnexpectedCharacters, UnexpectedInput, UnexpectedToken

from sbclient.broker.sql.builder import RejectedPart, TreeBuilder, is_beyond
from sbclient.broker.sql.syntax import KEYWORDS, REGULAR_NAME, Node, Position, Statements, refused
from sbclient.errors import InvalidOperationError

GRAMMAR: Final = rf"""
?filter: disjunction
action: statement (","? statement)*

?statement: SET property "=" sum ";"?  -> assignment
          | REMOVE property ";"?       -> removal

?disjunction: conjunction (OR conjunction)*
?conjunction: negation (AND negation)*
?negation: NOT negation                -> negated
         | predicate
?predicate: sum comparison sum         -> compared
          | property IS [NOT] NULL     -> is_null
          | sum [NOT] IN choices       -> is_in
          | sum [NOT] LIKE sum [ESCAPE sum]  -> is_like
          | EXISTS "(" property ")"    -> exists
          | "(" disjunction ")"
!comparison: "=" | "<>" | "!=" | "<" | "<=" | ">" | ">="
choices: "(" sum ("," sum)* ")"

?sum: product
    | sum (PLUS | MINUS) product       -> calculated
?product: sign
        | product (STAR | SLASH | PERCENT) sign  -> calculated
?sign: (PLUS | MINUS) sign             -> signed
     | value
?value: INTEGER                        -> integer
      | HEXADECIMAL                    -> hexadecimal
      | DECIMAL                        -> decimal
      | TEXT                           -> text
      | (TRUE | FALSE | NULL)          -> word
      | PARAMETER                      -> parameter
      | property
      | NAME "(" [sum ("," sum)*] ")"  -> function
      | "(" sum ")"
property: name ["." name]
!name: NAME | BRACKETED | QUOTED

AND: /AND\b/i
OR: /OR\b/i
NOT: /NOT\b/i
IS: /IS\b/i
NULL: /NULL\b/i
IN: /IN\b/i
LIKE: /LIKE\b/i
ESCAPE: /ESCAPE\b/i
EXISTS: /EXISTS\b/i
TRUE: /TRUE\b/i
FALSE: /FALSE\b/i
SET: /SET\b/i
REMOVE: /REMOVE\b/i

NAME: /(?!(?:{"|".join(KEYWORDS)})\b){REGULAR_NAME}/i
BRACKETED: /\[(?:[^\]]|\]\])++\]/
QUOTED: /"(?:[^"]|"")++"/
PARAMETER: /@\w+/
TEXT: /'(?:[^']|'')*+'/
HEXADECIMAL.3: /0x[0-9a-f]+/i
DECIMAL.2: /(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]+)?|[0-9]+e[+-]?[0-9]+/i
INTEGER: /[0-9]+/
PLUS: "+"
MINUS: "-"
STAR: "*"
SLASH: "/"
PERCENT: "%"

%ignore /\s+/
"""

EXPECTED: Final[tuple[tuple[str, tuple[str, ...]], ...]] = (
    ("SET or REMOVE", ("SET", "REMOVE")),
    ("NOT", ("NOT",)),
    ("a value", ("INTEGER", "TEXT")),
    ("the name of a property", ("NAME", "BRACKETED")),
    ("EXISTS", ("EXISTS",)),
    ("a comparison (= <> < <= > >=)", ("LESSTHAN",)),
    ("'='", ("EQUAL",)),
    ("IN", ("IN",)),
    ("LIKE", ("LIKE",)),
    ("IS NULL", ("IS",)),
    ("NULL", ("NULL",)),
    ("an arithmetic operator", ("STAR",)),
    ("ESCAPE", ("ESCAPE",)),
    ("AND", ("AND",)),
    ("OR", ("OR",)),
    ("'('", ("LPAR",)),
    ("')'", ("RPAR",)),
    ("','", ("COMMA",)),
    ("';'", ("SEMICOLON",)),
    ("the end", ("$END",)),
)
"""The names of terminals, in the order of an error text."""

IMPLIED: Final = {
    "a value": ("the name of a property", "'('", "NULL"),
    "a comparison (= <> < <= > >=)": ("'='", "'('"),
    "IN": ("NOT",),
}
"""Names that are left out beside another one, which implies them."""


MAX_EXPRESSION_LENGTH: Final = 1024
"""Characters in a filter or action. Source: Service Bus quotas."""

MAX_STATEMENTS: Final = 32
"""Statements in an action. Source: Service Bus quotas."""

MAX_DEPTH: Final = 100
"""Levels of a tree. Our choice, so that no rule can exhaust the stack."""

_HINTS: Final = {
    "'": "the text that begins here is never closed",
    "[": "the name that begins here is empty or never closed",
    '"': "the name that begins here is empty or never closed",
    "_": "a name that begins with _ needs brackets",
}
"""Explanations of characters at which no token begins."""


def parse_filter(text: str) -> Node:
    """Return the tree of a predicate.

    Raises:
        InvalidOperationError: it is too long or invalid; the error gives line and column, the text found and what is
            expected.
    """
    return _parse(text, "filter")


def parse_action(text: str) -> Statements:
    """Return the statements of an action, at least one.

    Raises:
        InvalidOperationError: as `parse_filter`, or there are more than 32 statements.
    """
    statements = _parse(text, "action")
    assert isinstance(statements, Statements)
    if len(statements.statements) > MAX_STATEMENTS:
        raise InvalidOperationError(
            f"the action has {len(statements.statements)} statements, {MAX_STATEMENTS} are allowed: use several rules"
        )
    return statements


def _parse(text: str, kind: str) -> Node:
    if len(text) > MAX_EXPRESSION_LENGTH:
        raise InvalidOperationError(
            f"the {kind} has {len(text)} characters, {MAX_EXPRESSION_LENGTH} are allowed: use several rules"
        )
    try:
        tree: Any = _parser().parse(text, start=kind)
    except UnexpectedInput as error:
        raise _unexpected(error, text, kind) from None
    except RejectedPart as rejected:
        raise refused(kind, rejected.position, rejected.reason) from None
    _check(tree, kind)
    return tree  # type: ignore[no-any-return]  # lark declares its own tree, not that of the transformer


def _check(tree: Node, kind: str) -> None:
    """Check the limits that the grammar does not contain: the depth, and the integer 2^63 without a minus sign."""
    level, depth = [tree], 0
    while level:
        for node in level:
            if is_beyond(node):
                raise refused(kind, node.position, f"the integer {node} does not fit into 64 bits")
        level, depth = [part for node in level for part in node.parts()], depth + 1
    if depth > MAX_DEPTH:
        raise InvalidOperationError(f"the {kind} is {depth} levels deep, {MAX_DEPTH} are allowed: use several rules")


@lru_cache(maxsize=1)
def _parser() -> Lark:
    """Return the parser, which is built once, because that takes some ten milliseconds."""
    return Lark(GRAMMAR, start=["filter", "action"], parser="lalr", lexer="contextual", transformer=TreeBuilder())


def _unexpected(error: UnexpectedInput, text: str, kind: str) -> InvalidOperationError:
    if isinstance(error, UnexpectedToken) and error.token.type == "$END":
        lines = text.split("\n")
        position, found = Position(len(lines), len(lines[-1]) + 1), "the end"
    else:
        position = Position(error.line, error.column)
        found = repr(str(error.token)[:40] if isinstance(error, UnexpectedToken) else text[error.pos_in_stream or 0])
        if isinstance(error, UnexpectedCharacters) and error.char in _HINTS:
            return refused(kind, position, _HINTS[error.char])
    accepted = error.interactive_parser.accepts()  # type: ignore[no-untyped-call]
    words = [word for word, terminals in EXPECTED if not accepted.isdisjoint(terminals)]
    implied = {repeated for word in words for repeated in IMPLIED.get(word, ())}
    expected = [word for word in words if word not in implied]
    listed = " or ".join(filter(None, (", ".join(expected[:-1]), expected[-1])))
    return refused(kind, position, f"found {found}, expected {listed}")
