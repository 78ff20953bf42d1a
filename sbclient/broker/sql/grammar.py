"""The grammar of filters and actions, and the names of its terminals for error texts.

A filter is a predicate, and an action is a list of SET and REMOVE statements (documented). A predicate is not a value.
Not documented: hexadecimal integers (`0x1F`), and `,` between statements as well as `;`. There are no comments.

Source: MicrosoftDocs/azure-docs, `service-bus-messaging-sql-filter.md` and `service-bus-messaging-sql-rule-action.md`.
"""

from __future__ import annotations

from typing import Final

from sbclient.broker.sql.syntax import KEYWORDS, REGULAR_NAME

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
