"""`sbclient admin`: creates, lists, shows, updates and deletes entities."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from enum import Enum
from random import SystemRandom
from typing import Annotated, Any, TypeVar

import typer

from sbclient.cli.admin_report import print_description, print_list, shown
from sbclient.cli.common import (
    AsJson,
    Exit,
    Primary,
    Yes,
    chosen_transport,
    is_confirmed,
    print_json,
    print_line,
    reported_errors,
    run,
)
from sbclient.cli.message_json import PROPERTY, property_named
from sbclient.clock import Clock
from sbclient.entities import (
    CORRELATION_FIELDS,
    PROPERTIES_OF,
    CorrelationRuleFilter,
    EntityAddress,
    EntityKind,
    EntityProperties,
    RuleFilter,
    SqlRuleAction,
    SqlRuleFilter,
    settings_of,
)
from sbclient.errors import InvalidOperationError
from sbclient.message_json import read_duration
from sbclient.rules.connection_string import parse_connection_string
from sbclient.transport.base import Administration
from sbclient.transport.choice import open_transport

T = TypeVar("T")

admin = typer.Typer(
    help="Create, list, show, update and delete entities.",
    epilog="Example: sbclient admin list queue --counts",
    no_args_is_help=True,
    rich_markup_mode=None,
)


KindArgument = Annotated[EntityKind, typer.Argument(help="Kind of entity.")]
Names = Annotated[
    list[str],
    typer.Argument(
        metavar="NAME", help="Name; of a subscription: topic and name; of a rule: topic, subscription, name."
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="Setting, such as lock_duration=30s or requires_session=true. Repeatable. A rule has sql and action, or "
        "fields of a correlation filter, such as correlation_id and property.country.",
    ),
]


@admin.command()
def create(
    primary: Primary, kind: KindArgument, names: Names, settings: Settings = None, as_json: AsJson = False
) -> None:
    """Create an entity.

    \b
    Example: sbclient admin create queue orders --set enable_partitioning=true --set lock_duration=30s
    Example: sbclient admin create topic prices
    Example: sbclient admin create subscription prices eu --set max_delivery_count=5
    Example: sbclient admin create rule prices eu cheap --set "sql=price < 10"
    Example: sbclient admin create rule prices eu irish --set property.country=IE
    """

    async def work(administration: Administration) -> EntityProperties:
        properties = _described(kind, names, settings or [])
        return await administration.create(_address(kind, names), properties)

    made = run("admin create", _with_administration(primary, work), as_json=as_json)
    _print(f"created {kind} {'/'.join(names)}", shown(made), as_json)


@admin.command(short_help="Change settings of an entity.")
def update(
    primary: Primary, kind: KindArgument, names: Names, settings: Settings = None, as_json: AsJson = False
) -> None:
    """Change settings of an entity. Other settings keep their values.

    \b
    Example: sbclient admin update queue orders --set max_delivery_count=20
    """

    async def work(administration: Administration) -> EntityProperties:
        values = _values(kind, settings or [])
        properties = await administration.get(_address(kind, names))
        for name, value in values.items():
            setattr(properties, name, value)
        return await administration.update(_address(kind, names), properties)

    changed = run("admin update", _with_administration(primary, work), as_json=as_json)
    _print(f"changed {kind} {'/'.join(names)}", shown(changed), as_json)


@admin.command(short_help="Print the settings and counts of an entity.")
def show(primary: Primary, kind: KindArgument, names: Names, as_json: AsJson = False) -> None:
    """Print the settings of an entity and, unless it is a rule, its counts.

    \b
    Example: sbclient admin show queue orders
    """

    async def work(administration: Administration) -> dict[str, Any]:
        description = shown(await administration.get(_address(kind, names)))
        if kind is not EntityKind.RULE:
            description["runtime"] = shown(await administration.runtime(_address(kind, names)))
        return description

    description = run("admin show", _with_administration(primary, work), as_json=as_json)
    if as_json:
        print_json(description)
    else:
        print_description(description)


@admin.command("list")
def list_(
    primary: Primary,
    kind: KindArgument,
    parents: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME", help="Of subscriptions: topic; of rules: both."),
    ] = None,
    counts: Annotated[bool, typer.Option("--counts", help="Print counts too; one more request per entity.")] = False,
    as_json: AsJson = False,
) -> None:
    """Print the entities of a kind, one per line.

    \b
    Example: sbclient admin list queue --counts
    Example: sbclient admin list subscription prices
    """

    async def work(administration: Administration) -> list[dict[str, Any]]:
        above = tuple(parents or [])
        expected = kind.name_count - 1
        if len(above) != expected:
            raise InvalidOperationError(f"admin list {kind} takes {expected} names, not {len(above)}")
        _check_names(kind, above)
        found = [shown(each) for each in await administration.list(kind, above)]
        if counts and kind is not EntityKind.RULE:
            for each in found:
                each["runtime"] = shown(await administration.runtime(_address(kind, [*above, each["name"]])))
        return found

    found = run("admin list", _with_administration(primary, work), as_json=as_json)
    if as_json:
        for each in found:
            print_json(each)
    else:
        print_list(str(kind), found)


@admin.command()
def delete(primary: Primary, kind: KindArgument, names: Names, yes: Yes = False, as_json: AsJson = False) -> None:
    """Delete an entity and its contents; asks first.

    \b
    Example: sbclient admin delete queue orders --yes
    """

    async def work(administration: Administration) -> None:
        await administration.delete(_address(kind, names))

    with reported_errors("admin delete", as_json=as_json):
        _address(kind, names)
    question = f"Delete {kind} {'/'.join(names)} and its contents?"
    if not is_confirmed("admin delete", question, yes=yes, as_json=as_json):
        raise typer.Exit(Exit.INCOMPLETE)
    run("admin delete", _with_administration(primary, work), as_json=as_json)
    _print(f"deleted {kind} {'/'.join(names)}", {"deleted": "/".join(names), "kind": str(kind)}, as_json)


def _print(text: str, value: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(value)
    else:
        print_line(text)


async def _with_administration(primary: str, work: Callable[[Administration], Awaitable[T]]) -> T:
    transport = open_transport(
        parse_connection_string(primary), clock=Clock(), random=SystemRandom(), transport=chosen_transport()
    )
    try:
        return await work(transport.administration)
    finally:
        await transport.close()


def _address(kind: EntityKind, names: list[str]) -> EntityAddress:
    if len(names) != kind.name_count:
        raise InvalidOperationError(f"a {kind} has {kind.name_count} names, not {len(names)}")
    _check_names(kind, names)
    return EntityAddress(kind, tuple(names))


def _check_names(kind: EntityKind, names: Sequence[str]) -> None:
    if not all(names):
        raise InvalidOperationError(f"a name of the {kind} {'/'.join(names)!r} is empty: give each name")


def _described(kind: EntityKind, names: list[str], settings: list[str]) -> EntityProperties:
    properties: EntityProperties = PROPERTIES_OF[kind](names[-1], **_values(kind, settings))
    return properties


def _values(kind: EntityKind, settings: list[str]) -> dict[str, Any]:
    if kind is EntityKind.RULE:
        return _rule_values(settings)
    types, values = settings_of(kind), {}
    for name, text in _pairs(settings):
        if name not in types:
            raise InvalidOperationError(f"a {kind} has no setting {name!r}; it has {', '.join(types)}")
        values[name] = _value(name, text, types[name])
    return values


def _rule_values(settings: list[str]) -> dict[str, Any]:
    """Return the filter and action of `sql=…`, `action=…`, or `correlation_id=…`, `property.country=…` and so on."""
    values: dict[str, Any] = {}
    correlation: dict[str, Any] = {}
    rule_filter: RuleFilter | None = None
    for name, text in _pairs(settings):
        if name == "sql":
            rule_filter = SqlRuleFilter(text)
        elif name == "action":
            values["action"] = SqlRuleAction(text)
        elif name in CORRELATION_FIELDS:
            correlation[name] = text
        elif name.startswith(PROPERTY):
            property_name, value = property_named(name, text)
            correlation.setdefault("properties", {})[property_name] = value
        else:
            raise InvalidOperationError(
                f"a rule has no setting {name!r}; it has sql, action, {', '.join(CORRELATION_FIELDS)} "
                f"and {PROPERTY}<name>"
            )
    if correlation:
        if rule_filter is not None:
            raise InvalidOperationError("a rule has either an sql or a correlation filter: give one of them")
        rule_filter = CorrelationRuleFilter(**correlation)
    return values | ({"filter": rule_filter} if rule_filter is not None else {})


def _pairs(settings: list[str]) -> list[tuple[str, str]]:
    pairs = [setting.partition("=") for setting in settings]
    for name, equals, _ in pairs:
        if not equals:
            raise InvalidOperationError(f"--set {name!r} is not NAME=VALUE")
    return [(name.strip(), value) for name, _, value in pairs]


def _value(name: str, text: str, kind: type[Any]) -> Any:
    try:
        if kind is bool:
            return {"true": True, "false": False}[text.lower()]
        if kind is int:
            return int(text)
        if kind is timedelta:
            return read_duration(text)
        if issubclass(kind, Enum):
            return _member(kind, text)
    except (KeyError, ValueError) as error:
        wanted = {
            bool: "true or false",
            int: "a whole number",
            timedelta: "a duration such as 30s, 5m, 2h, 7d, PT30S, or unlimited",
        }.get(kind, "one of " + ", ".join(str(each.value) for each in kind))
        raise InvalidOperationError(f"{name} is {text!r}: it must be {wanted}") from error
    if kind is str:
        return text
    raise InvalidOperationError(f"{name} cannot be set from the command line")


def _member(kind: type[Enum], text: str) -> Enum:
    """Return the member with that value, as the service writes it, or with that name, as azure.servicebus does.

    Raises:
        ValueError: no member matches.
    """
    wanted = text.casefold()
    for each in kind:
        if wanted in (str(each.value).casefold(), each.name.casefold()):
            return each
    return kind(text)
