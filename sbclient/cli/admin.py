"""`sbclient admin`: creates, lists, shows, updates, deletes, exports and imports entities."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import fields, is_dataclass
from typing import Annotated, Any, Final, TypeVar

import typer

from sbclient.cli.admin_exchange import export, import_
from sbclient.cli.common import (
    Primary,
    Yes,
    cell,
    command,
    confirm,
    make_console,
    open_administration,
    print_json,
    print_note,
    print_result,
    prints_json,
    run,
)
from sbclient.cli.completion import destinations, entities, settings
from sbclient.cli.control import Control, EmulatorString, HttpPort, NamespaceName
from sbclient.cli.json_values import plain
from sbclient.cli.table import table
from sbclient.entities import SETTINGS, EntityAddress, EntityKind, EntityProperties
from sbclient.errors import InvalidOperationError, MessagingEntityAlreadyExistsError
from sbclient.formats.entity_settings import described, with_settings
from sbclient.transport.base import Administration

T = TypeVar("T")

admin = typer.Typer(
    help="Create, list, show, update, delete, export and import entities.",
    epilog="Example: sbclient admin list queue --counts",
    no_args_is_help=True,
    rich_markup_mode=None,
)
admin.command(short_help="Print all entities as a file for import.")(command(export, has_json=False))
admin.command("import", short_help="Create the entities of a file.")(command(import_))


KindArgument = Annotated[EntityKind, typer.Argument(help="Kind of entity.")]
Names = Annotated[
    list[str],
    typer.Argument(
        metavar="NAME",
        autocompletion=entities,
        help="Name; of a subscription: topic and name; of a rule: topic, subscription, name.",
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        autocompletion=settings,
        help="Setting, such as lock_duration=30s or requires_session=true. Repeatable. A rule has sql and action, or "
        "fields of a correlation filter, such as correlation_id and property.country.",
    ),
]


@admin.command()
@command
def create(
    primary: Primary,
    kind: KindArgument,
    names: Names,
    settings: Settings = None,
    if_not_exists: Annotated[
        bool, typer.Option("--if-not-exists", help="Leave an entity that exists as it is, with exit status 0.")
    ] = False,
) -> None:
    """Create an entity. Exit status 6: it exists already.

    \b
    Example: sbclient admin create queue orders --set enable_partitioning=true \\
        --set lock_duration=30s
    Example: sbclient admin create topic prices --if-not-exists
    Example: sbclient admin create subscription prices eu \\
        --set max_delivery_count=5
    Example: sbclient admin create rule prices eu cheap --set "sql=price < 10"
    Example: sbclient admin create rule prices eu irish --set property.country=IE
    """
    differing: list[str] = []

    async def work(administration: Administration) -> tuple[str, EntityProperties]:
        chosen = _pairs(settings or [])
        properties = described(kind, names[-1], chosen)
        try:
            return "created", await administration.create(_address(kind, names), properties)
        except MessagingEntityAlreadyExistsError:
            if not if_not_exists:
                raise
            present = await administration.get(_address(kind, names))
            wanted = with_settings(present, chosen)
            pairs = ((each.name, getattr(present, each.name), getattr(wanted, each.name)) for each in fields(present))
            differing.extend(name for name, is_now, should_be in pairs if is_now != should_be)
            return "exists:", present

    done, made = run(_with_administration(primary, work))
    print_result(shown(made), f"{done} {kind} {'/'.join(names)}")
    if differing and not prints_json():
        print_note(f"it has other values of {', '.join(differing)}: `sbclient admin update` changes settings")


@admin.command(short_help="Change settings of an entity.")
@command
def update(primary: Primary, kind: KindArgument, names: Names, settings: Settings = None) -> None:
    """Change settings of an entity. Other settings keep their values.

    \b
    Example: sbclient admin update queue orders --set max_delivery_count=20
    """

    async def work(administration: Administration) -> EntityProperties:
        pairs = _pairs(settings or [])
        described(kind, names[-1], pairs)  # reports an error before the first request
        properties = await administration.get(_address(kind, names))
        await administration.update(_address(kind, names), with_settings(properties, pairs))
        return await administration.get(_address(kind, names))

    changed = run(_with_administration(primary, work))
    print_result(shown(changed), f"changed {kind} {'/'.join(names)}")


@admin.command(short_help="Print the settings and counts of an entity.")
@command
def show(primary: Primary, kind: KindArgument, names: Names) -> None:
    """Print the settings of an entity and, unless it is a rule, its counts.

    \b
    Example: sbclient admin show queue orders
    """

    async def work(administration: Administration) -> dict[str, Any]:
        description = shown(await administration.get(_address(kind, names)))
        if kind is not EntityKind.RULE:
            description["runtime"] = shown(await administration.runtime(_address(kind, names)))
        return description

    description = run(_with_administration(primary, work))
    lines = _flat(description)
    width = max(len(name) for name, _ in lines)
    print_result(description, *(f"{name:{width}}  {value}" for name, value in lines))


@admin.command("list")
@command
def list_(
    primary: Primary,
    kind: KindArgument,
    parents: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME", autocompletion=entities, help="Of subscriptions: topic; of rules: both."),
    ] = None,
    counts: Annotated[bool, typer.Option("--counts", help="Print counts too; one more request per entity.")] = False,
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
        found = [shown(each) async for each in administration.list(kind, above)]
        if counts and kind is not EntityKind.RULE:
            runtimes = {each.name: shown(each) async for each in administration.list_runtime(kind, above)}
            found = [{**each, "runtime": runtimes[each["name"]]} for each in found if each["name"] in runtimes]
        return found

    found = run(_with_administration(primary, work))
    if prints_json():
        for each in found:
            print_json(each)
    else:
        print_list(str(kind), found)


@admin.command()
@command
def delete(primary: Primary, kind: KindArgument, names: Names, yes: Yes = False) -> None:
    """Delete an entity and its contents; asks first.

    \b
    Example: sbclient admin delete queue orders --yes
    """

    async def work(administration: Administration) -> None:
        await administration.delete(_address(kind, names))

    _address(kind, names)
    confirm(f"Delete {kind} {'/'.join(names)} and its contents?", yes=yes)
    run(_with_administration(primary, work))
    print_result({"deleted": "/".join(names), "kind": str(kind)}, f"deleted {kind} {'/'.join(names)}")


@admin.command(short_help="Remove the messages of an emulator.")
@command
def purge(
    entity: Annotated[
        str | None,
        typer.Argument(metavar="ENTITY", autocompletion=destinations, help="Path of a queue, topic or subscription."),
    ] = None,
    is_all: Annotated[bool, typer.Option("--all", help="Purge all entities.")] = False,
    yes: Yes = False,
    primary: EmulatorString = None,
    http_port: HttpPort = None,
    namespace: NamespaceName = None,
) -> None:
    """Remove all messages of one entity or of all, dead letters and locked messages too; asks first.

    Entities and their settings stay. A topic is purged with its subscriptions. Only for namespaces of an emulator.

    \b
    Example: sbclient admin purge orders
    Example: sbclient admin purge prices/subscriptions/eu --yes
    Example: sbclient admin purge --all --yes
    """
    if (entity is None) is not is_all:
        raise InvalidOperationError("give the path of an entity, or --all")
    where = "all entities" if entity is None else entity
    confirm(f"Remove all messages of {where}?", yes=yes)
    work = Control(primary, http_port, namespace).call("POST", "purge", {} if entity is None else {"entity": entity})
    answer = run(work)
    count = answer["purged"]
    print_result(answer, f"removed {count:,} message{'s' * (count != 1)} of {where}")


async def _with_administration(primary: str, work: Callable[[Administration], Awaitable[T]]) -> T:
    async with open_administration(primary) as administration:
        return await work(administration)


def _address(kind: EntityKind, names: list[str]) -> EntityAddress:
    if len(names) != kind.name_count:
        plural = "s" if kind.name_count > 1 else ""
        raise InvalidOperationError(f"a {kind} takes {kind.name_count} name{plural}, not {len(names)}")
    _check_names(kind, names)
    return EntityAddress(kind, tuple(names))


def _check_names(kind: EntityKind, names: Sequence[str]) -> None:
    if not all(names):
        raise InvalidOperationError(f"a name of the {kind} {'/'.join(names)!r} is empty: give each name")


def _pairs(settings: list[str]) -> list[tuple[str, str]]:
    pairs = [setting.partition("=") for setting in settings]
    for name, equals, _ in pairs:
        if not equals:
            raise InvalidOperationError(f"--set {name!r} is not NAME=VALUE")
    return [(name.strip(), value) for name, _, value in pairs]


SECRET: Final = "authorization_rules"
"""These contain keys and are never printed."""

_RULE_COLUMNS: Final = ("filter", "action")
_COUNTS: Final = ("active_message_count", "dead_letter_message_count", "scheduled_message_count")


def shown(value: Any) -> dict[str, Any]:
    """Return all fields of a description or its counts; None stands for unset, no limit and never."""
    return {field.name: _plain(getattr(value, field.name)) for field in fields(value) if field.name != SECRET}


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        kind = type(value).__name__.removesuffix("RuleFilter").removesuffix("RuleAction").lower()
        return {"type": kind} | {name: each for name, each in shown(value).items() if each is not None}
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    return value if value is None or isinstance(value, str | bool | int | float) else plain(value)


def _flat(description: dict[str, Any]) -> list[tuple[str, str]]:
    """Return name and value of each field that is set and limited, those of the runtime too."""
    lines = []
    for name, value in description.items():
        if name == "runtime":
            lines += [each for each in _flat(value) if each[0] != "name"]
        elif value is not None:
            lines.append((name, _text(value)))
    return lines


def print_list(kind: str, found: list[dict[str, Any]]) -> None:
    """Print a table with the main fields of each entity."""
    if not found:
        return
    listed = [name for name, each in SETTINGS.items() if kind in each.listed_of]
    fields = ("name", *(listed or _RULE_COLUMNS))
    counts = _COUNTS if "runtime" in found[0] else ()
    headers = [name.removesuffix("_status").removeprefix("enable_").replace("_", " ") for name in fields]
    numbers = [name.removesuffix("_message_count").replace("_", " ") for name in counts]
    rows = [
        [cell(_text(each[name])) for name in fields] + [cell(f"{each['runtime'][name]:,}") for name in counts]
        for each in found
    ]
    console = make_console()
    console.print(table([*headers, *numbers], rows, console.width, numbers=numbers))


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        if value.keys() == {"type", "sql_expression"}:
            return str(value["sql_expression"])
        return " ".join(str(each) if name == "type" else f"{name}={each!r}" for name, each in value.items())
    return "" if value is None else str(value)
