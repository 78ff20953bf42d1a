"""The text of docs/reference.md, from the docstrings of the public names."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import is_dataclass
from enum import Enum
from functools import cache
from importlib import import_module
from typing import Annotated, Any, Final, get_args, get_origin

from sbclient.arguments.kinds import Kind
from sbclient.broker.profile import Profile
from sbclient.entities import SETTINGS, EntityKind, settings_of
from sbclient.formats.entity_settings import value_text
from tests.net_types import table
from tests.pages.table import DOCS

PAGE: Final = DOCS / "reference.md"
MODULES: Final = {
    "sbclient": "The client, messages, options, the state of a pair, and errors.",
    "sbclient.pairing.status": "What `client.pair` returns.",
    "sbclient.backlog": "The backlog in the secondary namespace.",
    "sbclient.administration": 'Entities and their settings, also by key: `queue["lock_duration"]`.',
    "sbclient.testing": "Namespaces, faults and virtual time for tests.",
    "sbclient.clock": "The time of clients and namespaces.",
    "sbclient.emulator": "The broker for clients in other processes.",
    "sbclient.prometheus": "Metrics for Prometheus.",
}
HEAD: Final = """# Reference

The classes and functions of each module, in alphabetical order. `python -m tests.pages` writes this page from their
docstrings. What types such as `Count` take is in [types of arguments](#types-of-arguments).
"""
NET_HEAD: Final = """## Types of application properties

The types that .NET clients send, and the class of the value that a receiver gets. The classes that derive from another
one are in `sbclient.amqp`; a value of such a class is sent as the same type again, also inside of a body that is a
value, a list or a map. JSON lines and the rows of Spark keep these types. A plain `int` is sent as int or long, a
`float` as double, a `timedelta` as TimeSpan, and `bytes` as a string.
"""
ARGUMENTS_HEAD: Final = """## Types of arguments

The types in the signatures that are no classes, and the values that they take. They are checked before a call does
anything. Larger counts and longer waits than a request can carry are taken as the most that it can.

| type | takes |
|---|---|"""
SETTINGS_HEAD: Final = """## Settings of entities

The settings of queues, topics and subscriptions, for `create_queue` and its siblings, `sbclient admin --set`,
Config.json and the control API of the emulator. Sizes are in the unit of the name, and a *fixed* setting cannot be
changed later. In Config.json the name has no underscores, such as `LockDuration`: the column says whether the file has
it, also in Microsoft's emulator (yes) or only here (added), and the default of the file if it has one of its own.
"""
SECTION: Final = re.compile(r"(Args|Attributes|Raises|Returns|Yields):")
ENTRY: Final = re.compile(r"    (\S[^:]*): (.*)")
CONSTANT: Final = re.compile(r"\b[A-Z]+_[A-Z_]+\b")
CODE: Final = r"`\g<0>`"
WIDE: Final = 110


class _Raw(str):
    """A part of a signature that is shown as it is, without quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def page() -> str:
    """Return the text of the page."""
    seen: dict[Any, str] = {}
    parts = [HEAD]
    for module_name, about in MODULES.items():
        parts.append(f"## {module_name}\n\n{about}\n")
        for name, value in public_names(module_name):
            if not inspect.isclass(value) and not inspect.isfunction(value):
                parts.append(f"### `{name} = {_value(value)!r}`\n")
            elif value not in seen:
                seen[value] = name
                parts.append(_class(name, value) if inspect.isclass(value) else _callable("###", name, value))
            elif name != seen[value]:
                parts.append(f"### {name}\n\nAnother name of `{seen[value]}`.\n")
    return "\n".join(
        [*parts, ARGUMENTS_HEAD, *_arguments(seen), "", SETTINGS_HEAD, *_settings(), "", NET_HEAD, *table(), ""]
    )


def _arguments(owners: Iterable[Any]) -> Iterator[str]:
    """Yield a line for each type in the signatures of classes and functions that declares which values it takes."""
    found: dict[str, Kind | None] = {}
    for owner in owners:
        members = [getattr(owner, name) for name, _ in _members(owner)] if inspect.isclass(owner) else []
        for each in (owner, *filter(callable, members)):
            with suppress(ValueError):  # a class without a signature
                annotations = [parameter.annotation for parameter in inspect.signature(each).parameters.values()]
                module = vars(sys.modules[inspect.unwrap(each).__module__])
                names = re.findall(r"\w+", " ".join(map(str, annotations)))
                found |= {name: _kind(module[name]) for name in names if name in module}
    for name, kind in sorted(found.items()):
        if kind is not None:
            yield f"| `{name}` | {CONSTANT.sub(CODE, kind.takes)} |"


def _settings() -> Iterator[str]:
    yield "| setting | of | type | default | Config.json | meaning |"
    yield "|---|---|---|---|---|---|"
    kinds = [kind for kind in EntityKind if kind is not EntityKind.RULE]
    for name, each in SETTINGS.items():
        types = {kind: settings_of(kind)[name] for kind in kinds if name in settings_of(kind)}
        config = each.in_config + (f", {value_text(each.config_default)}" if each.config_default is not None else "")
        marks = [mark for mark, holds in (("fixed", each.is_fixed), ("only returned", each.is_answer)) if holds]
        cells = [", ".join(types), next(iter(types.values())).__name__, value_text(each.default), config]
        yield f"| `{name}` | {' | '.join(cells)} | {each.about}{f' ({marks[0]})' if marks else ''} |"


def public_names(module_name: str) -> list[tuple[str, Any]]:
    """Return the names in `__all__` of a module, or without one those that it defines."""
    module = import_module(module_name)
    defined = [name for name, value in vars(module).items() if getattr(value, "__module__", None) == module_name]
    names = getattr(module, "__all__", [name for name in defined if not name.startswith("_")])
    return [(name, getattr(module, name)) for name in sorted(names, key=str.lower)]


@cache
def _listed() -> set[str]:
    return {name for module_name in MODULES for name, _ in public_names(module_name)}


def _class(name: str, value: type) -> str:
    is_enum = issubclass(value, Enum)
    found = list(dict.fromkeys(_bases(value)))
    bases = [
        base.__name__
        for base in found
        if (issubclass(base, Exception) or base.__name__ in _listed())
        and not any(base is not other and issubclass(other, base) for other in found)
    ]
    parts = [f"### {name}\n"]
    if is_dataclass(value) or not (is_enum or issubclass(value, Exception)):
        parts.append(_signature(name, value))
    if bases:
        parts.append(f"Derives from {', '.join(f'`{base}`' for base in bases)}.\n")
    parts.append(section_text(value.__dict__.get("__doc__")))
    if issubclass(value, Enum):
        parts.append("".join(f"* `{each.name} = {each.value!r}`\n" for each in value))
    for member_name, member in _members(value):
        if isinstance(member, property):
            parts.append(f"#### {name}.{member_name}\n\n{section_text(member.__doc__)}")
        else:
            parts.append(_callable("####", f"{name}.{member_name}", getattr(value, member_name)))
    return "\n".join(filter(None, parts))


def _bases(value: type) -> Iterator[type]:
    """Yield the bases of a class; for private ones, and for those that errors share with azure-servicebus, theirs."""
    for base in value.__bases__:
        if base.__name__.startswith("_") or base.__module__.startswith("azure.servicebus"):
            yield from _bases(base)
        else:
            yield base


def _members(value: type) -> Iterator[tuple[str, Any]]:
    """Yield the public methods and properties of a class and of its private bases in this package, by name."""
    bases = (base for base in value.__mro__[1:] if base.__name__.startswith("_"))
    owners = [value, *(base for base in bases if base.__module__.startswith("sbclient"))]
    found = {name: member for owner in reversed(owners) for name, member in vars(owner).items()}
    for name in sorted(found):
        if not name.startswith("_") and (
            isinstance(found[name], property | classmethod | staticmethod) or inspect.isfunction(found[name])
        ):
            yield name, found[name]


def _callable(level: str, name: str, value: Any) -> str:
    is_async = "async " if inspect.iscoroutinefunction(value) else ""
    return f"{level} {name}\n\n{_signature(is_async + name.rpartition('.')[2], value)}\n{section_text(value.__doc__)}"


def _signature(name: str, value: Any) -> str:
    """Return a block with a signature, which has one parameter per line if it is long."""
    signature = inspect.signature(value)
    found = [
        each.replace(annotation=_written(each.annotation), default=_value(each.default))
        for each in signature.parameters.values()
        if each.name != "self" and not each.name.startswith("_")
    ]
    shown = signature.replace(parameters=found, return_annotation=_written(signature.return_annotation))
    text = f"{name}{shown}".removesuffix(" -> None")
    if len(text) > WIDE:
        arrow = text.rpartition(") -> ")[2] if ") -> " in text else ""
        lines = [f"    {each}," for each in _parameters(shown)]
        text = "\n".join([f"{name}(", *lines, ")" + (f" -> {arrow}" if arrow else "")])
    return f"```py\n{text}\n```\n"


def _kind(hint: Any) -> Kind | None:
    """Return what declares the values of a type."""
    if get_origin(hint) is Annotated:
        return next((each for each in hint.__metadata__ if isinstance(each, Kind)), None)
    return next(filter(None, map(_kind, get_args(hint))), None)


def _parameters(signature: inspect.Signature) -> Iterator[str]:
    is_keyword_only = False
    for each in signature.parameters.values():
        if each.kind is each.VAR_POSITIONAL:
            is_keyword_only = True
        elif each.kind is each.KEYWORD_ONLY and not is_keyword_only:
            is_keyword_only = True
            yield "*"
        yield str(each)


def _written(annotation: Any) -> Any:
    return _Raw(annotation) if isinstance(annotation, str) else annotation


def _value(value: Any) -> Any:
    """Return what a signature shows of a default or constant: names of classes and members, the name of a profile."""
    if isinstance(value, Enum):
        return _Raw(f"{type(value).__name__}.{value.name}")
    if inspect.isclass(value) and value is not inspect.Parameter.empty:
        return _Raw(value.__name__)
    return value.name if isinstance(value, Profile) else value


def section_text(docstring: str | None) -> str:
    """Return a docstring with its sections as lists."""
    lines: list[str] = []
    is_list = False
    for line in inspect.cleandoc(docstring or "").splitlines():
        entry = ENTRY.fullmatch(line)
        if SECTION.fullmatch(line):
            is_list = True
            lines += [line, ""]
        elif is_list and entry is not None:
            lines.append(f"* `{entry[1]}`: {entry[2]}")
        elif is_list and line.startswith("    ") and lines[-1] == "":
            lines.append(f"* {line.strip()}")
        elif is_list and line.startswith("    "):
            lines[-1] += f" {line.strip()}"
        else:
            is_list = is_list and not line
            lines.append(line)
    return "\n".join(lines).strip() + "\n" if lines else ""
