"""The tree of a filter or an action. `str` of a node is a text that parses to an equal tree.

Positions are ignored when trees are compared.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Final, NamedTuple

from sbclient.errors import InvalidOperationError

KEYWORDS: Final = ("AND", "OR", "NOT", "IS", "NULL", "IN", "LIKE", "ESCAPE", "EXISTS", "TRUE", "FALSE")
"""Words that are property names only in brackets; case-insensitive."""

REGULAR_NAME: Final = r"[^\W\d_]\w*"
"""A name that needs no brackets: a letter, then letters, digits and underscores."""

_REGULAR = re.compile(rf"(?!(?:{'|'.join(KEYWORDS)})\b){REGULAR_NAME}", re.IGNORECASE)


class Position(NamedTuple):
    """The start of a node in the text; line and column count from 1."""

    line: int
    column: int

    def __str__(self) -> str:
        return f"line {self.line}, column {self.column}"


START = Position(1, 1)


def refused(kind: str, position: Position, reason: str) -> InvalidOperationError:
    """Return the error for an invalid part of a `kind` (filter or action)."""
    return InvalidOperationError(f"the {kind} is refused at {position}: {reason}")


_OR, _AND, _NOT, _PREDICATE, _SUM, _PRODUCT, _SIGN, _PRIMARY = range(8)
"""The precedence of nodes; an operand of lower precedence than its place requires is written in parentheses."""


class Node:
    """A part of an expression or statement."""

    __slots__ = ()

    tightness = _PRIMARY

    def parts(self) -> Iterator[Node]:
        """Yield the child nodes."""
        for each in fields(self):  # type: ignore[arg-type]  # every subclass is a dataclass
            value = getattr(self, each.name)
            yield from (part for part in (value if isinstance(value, tuple) else (value,)) if isinstance(part, Node))

    def inside(self, tightness: int) -> str:
        """Return the text of the node for a place that requires a precedence of at least `tightness`."""
        return str(self) if self.tightness >= tightness else f"({self})"


@dataclass(frozen=True, slots=True)
class Constant(Node):
    """A number, text, TRUE, FALSE or NULL."""

    value: str | int | float | bool | None
    position: Position = field(default=START, compare=False)

    def __str__(self) -> str:
        if isinstance(self.value, str):
            return "'" + self.value.replace("'", "''") + "'"
        if self.value is None or isinstance(self.value, bool):
            return {None: "NULL", True: "TRUE", False: "FALSE"}[self.value]
        return repr(self.value)


@dataclass(frozen=True, slots=True)
class Parameter(Node):
    """`@name`; the name without its sign, in lower case."""

    name: str
    position: Position = field(default=START, compare=False)

    def __str__(self) -> str:
        return f"@{self.name}"


@dataclass(frozen=True, slots=True)
class Property(Node):
    """A property with its name as written; `is_system` = in the scope `sys`."""

    name: str
    is_system: bool = False
    position: Position = field(default=START, compare=False)

    def __str__(self) -> str:
        name = self.name if _REGULAR.fullmatch(self.name) else f"[{self.name.replace(']', ']]')}]"
        return f"sys.{name}" if self.is_system else name


@dataclass(frozen=True, slots=True)
class NewId(Node):
    """`newid()`: a new GUID each time."""

    def __str__(self) -> str:
        return "newid()"


@dataclass(frozen=True, slots=True)
class NamedProperty(Node):
    """`property(name)`: the property whose name is the value of an expression."""

    name: Node
    position: Position = field(default=START, compare=False)

    def __str__(self) -> str:
        return f"property({self.name})"


@dataclass(frozen=True, slots=True)
class Sign(Node):
    """`-operand` or `+operand`."""

    symbol: str
    operand: Node

    tightness = _SIGN

    def __str__(self) -> str:
        return f"{self.symbol}{self.operand.inside(_SIGN)}"


@dataclass(frozen=True, slots=True)
class Arithmetic(Node):
    """`left symbol right` with one of + - * / %."""

    symbol: str
    left: Node
    right: Node

    @property
    def tightness(self) -> int:  # type: ignore[override]  # depends on the symbol
        return _SUM if self.symbol in "+-" else _PRODUCT

    def __str__(self) -> str:
        return f"{self.left.inside(self.tightness)} {self.symbol} {self.right.inside(self.tightness + 1)}"


@dataclass(frozen=True, slots=True)
class Comparison(Node):
    """`left symbol right` with one of = <> < <= > >=."""

    symbol: str
    left: Node
    right: Node

    tightness = _PREDICATE

    def __str__(self) -> str:
        return f"{self.left.inside(_SUM)} {self.symbol} {self.right.inside(_SUM)}"


@dataclass(frozen=True, slots=True)
class Like(Node):
    """`operand [NOT] LIKE pattern [ESCAPE escape]`."""

    operand: Node
    pattern: Node
    escape: Node | None = None
    is_negated: bool = False
    position: Position = field(default=START, compare=False)

    tightness = _PREDICATE

    def __str__(self) -> str:
        text = f"{self.operand.inside(_SUM)} {_not(self.is_negated)}LIKE {self.pattern.inside(_SUM)}"
        return text if self.escape is None else f"{text} ESCAPE {self.escape.inside(_SUM)}"


@dataclass(frozen=True, slots=True)
class In(Node):
    """`operand [NOT] IN (choices)`."""

    operand: Node
    choices: tuple[Node, ...]
    is_negated: bool = False

    tightness = _PREDICATE

    def __str__(self) -> str:
        return f"{self.operand.inside(_SUM)} {_not(self.is_negated)}IN ({', '.join(map(str, self.choices))})"


@dataclass(frozen=True, slots=True)
class IsNull(Node):
    """`property IS [NOT] NULL`."""

    operand: Property
    is_negated: bool = False

    tightness = _PREDICATE

    def __str__(self) -> str:
        return f"{self.operand} IS {_not(self.is_negated)}NULL"


@dataclass(frozen=True, slots=True)
class Exists(Node):
    """`EXISTS(property)`."""

    operand: Property

    tightness = _PREDICATE

    def __str__(self) -> str:
        return f"EXISTS({self.operand})"


@dataclass(frozen=True, slots=True)
class Not(Node):
    """`NOT operand`."""

    operand: Node

    tightness = _NOT

    def __str__(self) -> str:
        return f"NOT {self.operand.inside(_NOT)}"


@dataclass(frozen=True, slots=True)
class And(Node):
    """Two or more terms joined by AND."""

    terms: tuple[Node, ...]

    tightness = _AND

    def __str__(self) -> str:
        return " AND ".join(term.inside(_NOT) for term in self.terms)


@dataclass(frozen=True, slots=True)
class Or(Node):
    """Two or more terms joined by OR."""

    terms: tuple[Node, ...]

    tightness = _OR

    def __str__(self) -> str:
        return " OR ".join(term.inside(_AND) for term in self.terms)


@dataclass(frozen=True, slots=True)
class Assignment(Node):
    """`SET property = value`."""

    target: Property
    value: Node

    def __str__(self) -> str:
        return f"SET {self.target} = {self.value}"


@dataclass(frozen=True, slots=True)
class Removal(Node):
    """`REMOVE property`."""

    target: Property

    def __str__(self) -> str:
        return f"REMOVE {self.target}"


@dataclass(frozen=True, slots=True)
class Statements(Node):
    """The statements of an action, in order."""

    statements: tuple[Assignment | Removal, ...]

    def __str__(self) -> str:
        return "; ".join(map(str, self.statements))


def _not(is_negated: bool) -> str:
    return "NOT " if is_negated else ""
