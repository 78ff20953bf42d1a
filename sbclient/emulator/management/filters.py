"""The `$filter` of a list of entities.

Laws (source: `NamespaceManager` of .NET and Service Bus Explorer, which send these forms, unless said otherwise):

1. A condition is `startswith(property, 'text')`, perhaps with `eq true` or `eq false`, or compares a property with a
   text in quotes, a number, true or false by `eq`, `ne`, `gt`, `ge`, `lt`, `le` or `like`, in which % stands for any
   text, and no other character for another one. Conditions are combined by `and`, `or`, `not` and parentheses.
2. Names of properties and texts are compared without regard to case, as paths are (our choice).
3. An unknown property, and a filter that cannot be read, are errors. They do not select everything: programs delete
   what a filter selects.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple, TypeAlias

from sbclient.broker.sql.like import Matcher, matcher
from sbclient.broker.sql.values import Steps
from sbclient.entities import EntityKind, EntityProperties, RuntimeProperties
from sbclient.errors import InvalidOperationError

MAX_DEPTH: Final = 20
"""Of parentheses and `not`."""

Test: TypeAlias = Callable[["Listed"], bool]


class ListFilterError(InvalidOperationError):
    """A filter is invalid."""


class Listed(NamedTuple):
    """An entity of a list.

    Attributes:
        description: its own.
        runtime: reads its counts and times.
    """

    description: EntityProperties
    runtime: Callable[[], RuntimeProperties]


_TIMES: Final[Mapping[str, str]] = {
    "createdat": "created_at_utc",
    "modifiedat": "updated_at_utc",
    "updatedat": "updated_at_utc",
    "accessedat": "accessed_at_utc",
}
_COUNTS: Final[Mapping[str, str]] = {"messagecount": "total_message_count", "subscriptioncount": "subscription_count"}
_NAMES: Final[Mapping[EntityKind, tuple[str, ...]]] = {
    EntityKind.QUEUE: ("path",),
    EntityKind.TOPIC: ("path",),
    EntityKind.SUBSCRIPTION: ("subscriptionname", "name"),
    EntityKind.RULE: ("name",),
}
_COMPARISONS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "gt": operator.gt,
    "ge": operator.ge,
    "lt": operator.lt,
    "le": operator.le,
}
_TOKEN: Final = re.compile(r"\s*(?:([A-Za-z]\w*)|'((?:[^']|'')*)'|(-?\d{1,18})|([(),]))", re.ASCII)


def read_filter(text: str, kind: EntityKind) -> Test:
    """Return the test that a filter makes.

    Raises:
        ListFilterError: it is invalid.
    """
    return _Reader(text, kind).read()


class _Reader:
    def __init__(self, text: str, kind: EntityKind) -> None:
        self._text = text
        self._kind = kind
        self._is_time = False
        self._tokens: list[tuple[str, Any, int]] = []
        at = 0
        while at < len(text.rstrip()):
            found = _TOKEN.match(text, at)
            if found is None:
                raise self._unreadable(at)
            word, quoted, number, sign = found.groups()
            if word is not None:
                self._tokens.append(("word", word, found.start(1)))
            elif quoted is not None:
                self._tokens.append(("text", quoted.replace("''", "'"), found.start(2)))
            elif number is not None:
                self._tokens.append(("number", int(number), found.start(3)))
            else:
                self._tokens.append((sign, sign, found.start(4)))
            at = found.end()
        self._next = 0

    def read(self) -> Test:
        test = self._either(0)
        if self._next < len(self._tokens):
            raise self._unreadable(self._place)
        return test

    def _either(self, depth: int) -> Test:
        tests = [self._both(depth)]
        while self._takes("or"):
            tests.append(self._both(depth))
        return tests[0] if len(tests) == 1 else lambda listed: any(test(listed) for test in tests)

    def _both(self, depth: int) -> Test:
        tests = [self._one(depth)]
        while self._takes("and"):
            tests.append(self._one(depth))
        return tests[0] if len(tests) == 1 else lambda listed: all(test(listed) for test in tests)

    def _one(self, depth: int) -> Test:
        if depth > MAX_DEPTH:
            raise ListFilterError(f"Invalid Filter. It is nested more than {MAX_DEPTH} times: write it more simply")
        if self._takes("not"):
            test = self._one(depth + 1)
            return lambda listed: not test(listed)
        if self._takes("("):
            test = self._either(depth + 1)
            self._require(")")
            return test
        if self._takes("startswith"):
            return self._starts_with()
        return self._compared()

    def _starts_with(self) -> Test:
        self._require("(")
        value, is_name = self._property()
        if not is_name:
            raise ListFilterError("Invalid Filter. startswith is for names: compare counts and times")
        self._require(",")
        prefix = self._literal("text").casefold()
        self._require(")")
        is_wanted = True
        if (word := self._peeked()) in ("eq", "ne"):
            self._next += 1
            is_wanted = self._truth() is (word == "eq")
        return lambda listed: value(listed).casefold().startswith(prefix) is is_wanted

    def _compared(self) -> Test:
        value, is_name = self._property()
        word = self._peeked()
        self._next += 1
        if word == "like" and is_name:
            matches = self._pattern()
            return lambda listed: matches(value(listed).casefold(), Steps())
        if word not in _COMPARISONS:
            self._next -= 1
            raise self._unreadable(self._place)
        compare = _COMPARISONS[word]
        if is_name:
            text = self._literal("text").casefold()
            return lambda listed: compare(value(listed).casefold(), text)
        wanted = self._time_or_number()
        return lambda listed: compare(value(listed), wanted)

    def _pattern(self) -> Matcher:
        text = self._literal("text").casefold()
        try:
            return matcher(text.replace("\\", "\\\\").replace("_", "\\_"), "\\")
        except ValueError as error:
            raise ListFilterError(f"Invalid Filter. {error}") from error

    def _property(self) -> tuple[Callable[[Listed], Any], bool]:
        """What reads a property, and whether it is the name of the entity."""
        name = self._literal("word")
        key = name.casefold()
        self._is_time = key in _TIMES
        if key in _NAMES[self._kind]:
            return (lambda listed: listed.description.name), True
        attribute = _TIMES.get(key) or _COUNTS.get(key)
        if attribute is None or self._kind is EntityKind.RULE:
            raise ListFilterError(
                f"Invalid Filter. The specified property '{name[:64]}' does not exist or is not allowed."
            )
        return (lambda listed: getattr(listed.runtime(), attribute)), False

    def _time_or_number(self) -> datetime | int:
        if not self._is_time:
            number: int = self._literal("number")
            return number
        text, place = self._literal("text"), self._place
        try:
            at = datetime.fromisoformat(text)
        except ValueError:
            raise self._unreadable(place) from None
        return at if at.tzinfo is not None else at.replace(tzinfo=UTC)

    def _truth(self) -> bool:
        word = self._literal("word").casefold()
        if word not in ("true", "false"):
            self._next -= 1
            raise self._unreadable(self._place)
        return bool(word == "true")

    # -- tokens ----------------------------------------------------------------------------------------------------

    @property
    def _place(self) -> int:
        return self._tokens[self._next][2] if self._next < len(self._tokens) else len(self._text)

    def _peeked(self) -> str:
        """The next word in lower case, or the next sign; empty for anything else."""
        if self._next >= len(self._tokens):
            return ""
        kind, value, _ = self._tokens[self._next]
        return value.casefold() if kind == "word" else kind if kind in "()," else ""

    def _takes(self, word: str) -> bool:
        is_next = self._peeked() == word
        self._next += is_next
        return is_next

    def _require(self, sign: str) -> None:
        if not self._takes(sign):
            raise self._unreadable(self._place)

    def _literal(self, kind: str) -> Any:
        if self._next >= len(self._tokens) or self._tokens[self._next][0] != kind:
            raise self._unreadable(self._place)
        self._next += 1
        return self._tokens[self._next - 1][1]

    def _unreadable(self, place: int) -> ListFilterError:
        shown = self._text[place : place + 20].strip()
        return ListFilterError(
            "Invalid Filter. There was an error parsing the filter expression. "
            f"[Token line=1, column={place + 1}, Token in error={shown}]"
        )
