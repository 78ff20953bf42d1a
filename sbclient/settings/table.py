"""Options declared as dataclass fields, and the table of them that readers, checks, help and documentation share.

    @documented
    @dataclass(frozen=True)
    class WriterSettings:
        batch_bytes: int = setting("The largest batch.", kind=SIZE, default=262_144)

        def __post_init__(self) -> None:
            check_settings(self)

    TABLE = settings_of(WriterSettings)
    values = read_texts({"batch_bytes": "64 KiB"}, TABLE, "option")

A constructor gets values and checks them with `check_settings`. The command line, the environment, a file and the
options of a Spark data source give texts: `ValueKind.parse` checks a text and returns its value. Help and documentation
show the other fields of `Setting`. An option that several of these have is declared once: the others say `same_as`.

The package pydantic-settings does not do this: its errors show values, which may be secrets, or no value at all, never
the place of a value or a similar name; it ignores unknown environment variables, and its import takes 150 ms.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from difflib import get_close_matches
from inspect import cleandoc
from types import MappingProxyType
from typing import Any, Final, TypeVar, get_type_hints

from sbclient.errors import InvalidOperationError
from sbclient.settings.kinds import ValueKind, kind_of

T = TypeVar("T")


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
        origin: the row of another table that this one repeats; None = none.
    """

    name: str
    attribute: str
    kind: ValueKind
    default: Any
    about: str
    group: str = ""
    unit: str = ""
    variable: str = ""
    is_secret: bool = False
    origin: Setting | None = None

    @property
    def option(self) -> str:
        """The name on the command line."""
        return f"--{self.name.replace('_', '-')}"

    def shown(self, value: Any) -> str:
        """Return a value as text for people; of a secret, only that it is set."""
        if value is None or value == "":
            return ""
        return "(hidden)" if self.is_secret else self.kind.show(value)

    def described(self) -> str:
        """Return the sentence with the allowed values and the default."""
        default = self.shown(self.default)
        return f"{self.about} ({self.kind.word}{default and f'; default {default}'})"


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


def same_as(origin: Setting, group: str = "") -> Any:
    """Return a dataclass field that declares an option of another table again, under a name of its own."""
    row = {"kind": origin.kind, "about": origin.about, "group": group, "unit": origin.unit}
    row |= {"name": None, "variable": None, "is_secret": origin.is_secret, "origin": origin}
    return field(default=origin.default, metadata=MappingProxyType(row))


def settings_of(
    settings: type[Any], *, variable_prefix: str = "", name_of: Callable[[str], str] = str
) -> Mapping[str, Setting]:
    """Return the table of a dataclass, by name, in the order of its fields.

    Args:
        settings: the dataclass; fields that neither `setting` nor `same_as` made are left out.
        variable_prefix: of the environment variables.
        name_of: makes a name of the name of a field that declares none.
    """
    key = settings, variable_prefix, name_of
    if key not in _TABLES:
        hints = get_type_hints(settings)
        declared = [each for each in fields(settings) if "kind" in each.metadata]
        rows = [_row(each, hints[each.name], variable_prefix, name_of) for each in declared]
        _TABLES[key] = MappingProxyType({row.name: row for row in rows})
    return _TABLES[key]


_TABLES: Final[dict[tuple[type[Any], str, Callable[[str], str]], Mapping[str, Setting]]] = {}
"""The tables that were made."""


def _row(declared: Field[Any], hint: Any, variable_prefix: str, name_of: Callable[[str], str]) -> Setting:
    facts = dict(declared.metadata)
    facts["kind"] = facts["kind"] or kind_of(hint)
    facts["name"] = facts["name"] or name_of(declared.name)
    facts["unit"] = facts["unit"] or facts["kind"].unit
    facts["variable"] = facts["variable"] or f"{variable_prefix}{declared.name.upper()}"
    default = None if declared.default is MISSING or facts["is_secret"] else declared.default
    return Setting(attribute=declared.name, default=default, **facts)


def check_settings(values: Any) -> None:
    """Check the values of a dataclass whose fields are settings; None is allowed where it is the default.

    Raises:
        InvalidOperationError: a value is not allowed.
    """
    for row in settings_of(type(values)).values():
        row.kind.check(row.name, getattr(values, row.attribute), or_none=row.default is None)


def documented(settings: type[T]) -> type[T]:
    """Add the settings of a dataclass to its docstring, as attributes."""
    if settings.__doc__ is not None:  # Python may run without docstrings
        lines = [f"    {name}: {row.described()}" for name, row in settings_of(settings).items()]
        head, raises, tail = cleandoc(settings.__doc__).partition("Raises:")  # Python 3.13 removes the indentation
        settings.__doc__ = "\n".join([head.rstrip(), "", "Attributes:", *lines, "", raises + tail])
    return settings


def values_of(values: Any, table: Mapping[str, Setting]) -> dict[str, Any]:
    """Return the values of those settings of a dataclass that repeat rows of another table, by the field of that."""
    return {
        row.origin.attribute: getattr(values, row.attribute)
        for row in settings_of(type(values)).values()
        if row.origin is not None and table.get(row.origin.name) is row.origin
    }


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
            raise InvalidOperationError(f"there is no {what} {name!r:.{_LONGEST_NAME}}: {suggestion(name, table)}")
    chosen = {rows[name.lower()]: text for name, text in texts.items()}
    return {row.attribute: row.kind.parse(row.name, text) for row, text in chosen.items()}


_LONGEST_NAME: Final = 100
"""Of one that is compared, which takes time."""


def suggestion(name: str, known: Collection[str]) -> str:
    """Return advice about an unknown name: the nearest known name, or all of them."""
    by_lower = {each.lower(): each for each in known}
    near = get_close_matches(name[:_LONGEST_NAME].lower(), by_lower, n=1, cutoff=0.5)
    return f"did you mean {by_lower[near[0]]}?" if near else f"known are {', '.join(known)}"
