"""Options declared as dataclass fields, and the table of them that readers, help and documentation share.

    class WriterSettings:
        batch_bytes: int = setting("The largest batch.", kind=SIZE, default=262_144)

    TABLE = settings_of(WriterSettings)
    values = read_texts({"batch_bytes": "64 KiB"}, TABLE, "option")

The command line, the environment, a file and the options of a Spark data source give texts. `ValueKind.parse` checks
a text and returns its value. Help and documentation show the other fields of `Setting`.

The package pydantic-settings does not do this: its errors show values, which may be secrets, or no value at all, never
the place of a value or a similar name; it ignores unknown environment variables, and its import takes 150 ms.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from difflib import get_close_matches
from types import MappingProxyType, NoneType, UnionType
from typing import Any, Final, Literal, Union, get_args, get_origin, get_type_hints

from sbclient.errors import InvalidOperationError
from sbclient.settings import values
from sbclient.settings.durations import duration_text
from sbclient.settings.values import Parser, size_text


@dataclass(frozen=True, slots=True)
class ValueKind:
    """A kind of value.

    Attributes:
        word: describes the kind in the documentation.
        metavar: for the help; empty for a flag.
        parse: returns the value of an option's name and text, or raises `InvalidOperationError`.
        in_file: the types that the value may have in a TOML file.
        unit: of the value, unless the setting has another one; empty = none.
    """

    word: str
    metavar: str
    parse: Parser
    in_file: tuple[type, ...]
    unit: str = ""


TEXT: Final = ValueKind("text", "TEXT", values.text, (str,))
PATH: Final = ValueKind("path", "PATH", values.text, (str,))
NAMES: Final = ValueKind("names", "NAME,NAME", values.names, (str, list))
FLAG: Final = ValueKind("true or false", "", values.flag, (bool,))
RATE: Final = ValueKind("number", "NUMBER", values.rate, (int, float))
SIZE: Final = ValueKind("size", "SIZE", values.size, (int, str), "bytes")
NUMBERS: Final = ValueKind("whole numbers", "N,N", values.numbers, (int, list))


def whole(least: int, most: int | None = None) -> ValueKind:
    """Return the kind of whole numbers from `least` to `most`; None = no upper limit."""
    word = f"whole number from {least}" + ("" if most is None else f" to {most:,}")
    return ValueKind(word, "N", values.whole(least, most), (int,))


def duration(least_s: float = 0.0, most_s: float = float("inf")) -> ValueKind:
    """Return the kind of durations in seconds within a range."""
    word = f"duration from {duration_text(least_s)}" + (
        "" if most_s == float("inf") else f" to {duration_text(most_s)}"
    )
    return ValueKind(word, "DURATION", values.duration(least_s, most_s), (int, float, str), "seconds")


def choice(*words: str) -> ValueKind:
    """Return the kind of one of some words."""
    return ValueKind(" or ".join(words), "|".join(words), values.choice(*words), (str,))


@dataclass(frozen=True, slots=True)
class Setting:
    """One row of a table.

    Attributes:
        name: as in a file, an error and the options of a data source.
        attribute: the field of the dataclass.
        default: None = not set.
        about: a sentence.
        group: the heading under which it is listed.
        unit: of the value; empty where it has none.
        variable: its environment variable.
        is_secret: whether its value is never shown and does not belong in a file.
    """

    name: str
    attribute: str
    kind: ValueKind
    default: Any
    about: str
    group: str
    unit: str
    variable: str
    is_secret: bool

    @property
    def option(self) -> str:
        """The name on the command line."""
        return f"--{self.name.replace('_', '-')}"

    def shown(self, value: Any) -> str:
        """Return a value as text for people; of a secret, only that it is set."""
        if value is None or value == "":
            return ""
        if self.is_secret:
            return "(hidden)"
        if self.unit == "seconds":
            return duration_text(value)
        if self.unit == "bytes":
            return size_text(value)
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, float):
            return f"{value:g}"
        return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def setting(
    about: str,
    group: str = "",
    *,
    kind: ValueKind | None = None,
    default: Any = None,
    unit: str = "",
    name: str | None = None,
    variable: str | None = None,
    is_secret: bool = False,
) -> Any:
    """Return a dataclass field that declares an option; the arguments are those of `Setting`.

    Without a kind, it follows from the type of the field: a flag, a text, names, or one of the words of a `Literal`.
    """
    row: dict[str, Any] = {"kind": kind, "about": about, "group": group, "unit": unit}
    row |= {"name": name, "variable": variable, "is_secret": is_secret}
    return field(default=default, metadata=MappingProxyType(row), repr=not is_secret)


def settings_of(
    settings: type[Any], *, variable_prefix: str = "", name_of: Callable[[str], str] = str
) -> Mapping[str, Setting]:
    """Return the table of a dataclass, by name, in the order of its fields.

    Args:
        settings: the dataclass; fields that `setting` did not make are left out.
        variable_prefix: of the environment variables.
        name_of: makes a name of the name of a field that declares none.
    """
    hints = get_type_hints(settings)
    rows = [
        _row(each, hints[each.name], variable_prefix, name_of) for each in fields(settings) if "kind" in each.metadata
    ]
    return MappingProxyType({row.name: row for row in rows})


def kind_of(hint: Any) -> ValueKind:
    """Return the kind of the values of a type: `bool`, `str`, `tuple[str, ...]` or a `Literal`, or one of them or None.

    Raises:
        TypeError: the type does not say which values are allowed.
    """
    types = [one for one in get_args(hint) if one is not NoneType] if get_origin(hint) in (Union, UnionType) else [hint]
    if len(types) == 1 and types[0] in _KINDS:
        return _KINDS[types[0]]
    if len(types) == 1 and get_origin(types[0]) is Literal:
        return choice(*get_args(types[0]))
    raise TypeError(f"the type {hint} has no kind of its own: give setting(kind=...)")


_KINDS: Final = {bool: FLAG, str: TEXT, tuple[str, ...]: NAMES, Sequence[str]: NAMES}


def _row(declared: Field[Any], hint: Any, variable_prefix: str, name_of: Callable[[str], str]) -> Setting:
    facts = dict(declared.metadata)
    facts["kind"] = facts["kind"] or kind_of(hint)
    facts["name"] = facts["name"] or name_of(declared.name)
    facts["unit"] = facts["unit"] or facts["kind"].unit
    facts["variable"] = facts["variable"] or f"{variable_prefix}{declared.name.upper()}"
    default = None if declared.default is MISSING or facts["is_secret"] else declared.default
    return Setting(attribute=declared.name, default=default, **facts)


def read_texts(texts: Mapping[str, str], table: Mapping[str, Setting], what: str) -> dict[str, Any]:
    """Return the checked values of texts by attribute, to be given to the dataclass of the table.

    Args:
        texts: by name, in any case of letters.
        what: the noun in the error about an unknown name, such as "option".

    Raises:
        InvalidOperationError: a value is not allowed, or a name is unknown. The text of an unknown name is not shown,
            since it may be a secret.
    """
    rows = {name.lower(): row for name, row in table.items()}
    for name in texts:
        if name.lower() not in rows:
            raise InvalidOperationError(f"there is no {what} {name!r}: {suggestion(name, table)}")
    chosen = {rows[name.lower()]: text for name, text in texts.items()}
    return {row.attribute: row.kind.parse(row.name, text) for row, text in chosen.items()}


def suggestion(name: str, known: Collection[str]) -> str:
    """Return advice about an unknown name: the nearest known name, or all of them."""
    by_lower = {each.lower(): each for each in known}
    near = get_close_matches(name.lower(), by_lower, n=1, cutoff=0.5)
    return f"did you mean {by_lower[near[0]]}?" if near else f"known are {', '.join(known)}"
