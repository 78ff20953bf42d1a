"""`sbclient admin export` and `import`: the entities of a namespace to a file and from it."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable
from dataclasses import replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from sbclient.broker.profile import PROFILES, Profile
from sbclient.cli.common import (
    Exit,
    Primary,
    open_administration,
    print_json,
    print_json_lines,
    print_line,
    print_note,
    prints_json,
    run,
)
from sbclient.emulator.config.entities import EntityConfig, NamespaceConfig
from sbclient.emulator.config.exchange import as_requested, read_exchanged, values_of, write_config, write_entities
from sbclient.emulator.config.namespace_choice import DEFAULT_NAMESPACE, read_text
from sbclient.entities import (
    DEFAULT_RULE_NAME,
    FORWARDING,
    EntityAddress,
    EntityKind,
    EntityProperties,
    RuleProperties,
    TopicProperties,
)
from sbclient.errors import InvalidOperationError, MessagingEntityAlreadyExistsError, MessagingEntityNotFoundError
from sbclient.rules.entity_path import canonical
from sbclient.transport.base import Administration

_DEFAULT: Final = canonical(DEFAULT_RULE_NAME)


class Form(StrEnum):
    """The forms of a file of entities."""

    CONFIG = "config"
    SBCLIENT = "sbclient"


def export(
    primary: Primary,
    form: Annotated[
        Form,
        typer.Option("--format", help="'config' for the Config.json of an emulator; 'sbclient' has every setting."),
    ] = Form.SBCLIENT,
) -> None:
    """Print all entities of a namespace, with their rules, as a file for `import`.

    A line on stderr names each thing that the form cannot hold, and the exit status is then 1. Keys are never exported.

    \b
    Example: sbclient admin export > entities.json
    Example: sbclient admin export --format config > Config.json
    """

    async def work() -> tuple[str, list[str]]:
        async with open_administration(primary) as administration:
            name, profile = await _namespace(administration)
            found = {address: as_requested(each, profile) for address, each in (await _found(administration)).items()}
        is_config_name = re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9-]*", name)
        name = name if is_config_name else DEFAULT_NAMESPACE
        return write_config(name, found, profile) if form is Form.CONFIG else write_entities(found)

    text, lost = run(work())
    print_json_lines(text.split("\n"))
    for each in lost:
        print_note(f"not exported: {each}")
    if lost:
        raise typer.Exit(Exit.INCOMPLETE)


def import_(
    primary: Primary,
    file: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="Config.json, or a file of `export`.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be done, and change nothing.")] = False,
) -> None:
    """Create the entities of a file that do not exist. Those that exist stay as they are.

    Exit status 1: an entity differs from the file, or was refused.

    \b
    Example: sbclient admin import entities.json --dry-run
    Example: sbclient admin import Config.json
    """
    namespaces = read_exchanged(read_text(file), file.name)

    async def work() -> bool:
        async with open_administration(primary) as administration:
            return await _Import(administration, dry_run).run(namespaces, file.name)

    if not run(work()):
        raise typer.Exit(Exit.INCOMPLETE)


class _Import:
    """One import: creates what is missing, and prints a line for each entity that it creates or that differs."""

    def __init__(self, administration: Administration, dry_run: bool) -> None:
        self._administration, self._dry_run = administration, dry_run
        self._counts = dict.fromkeys(("created", "equal", "differs", "refused"), 0)
        self._refused: set[tuple[str, ...]] = set()

    async def run(self, namespaces: list[NamespaceConfig], source: str) -> bool:
        """Import the namespace of that name, or the only one; return whether all is now as in the file."""
        name, profile = await _namespace(self._administration)
        chosen = namespaces if len(namespaces) == 1 else [each for each in namespaces if each.name == name]
        if not chosen:
            names = ", ".join(each.name for each in namespaces)
            raise InvalidOperationError(f"{source} has the namespaces {names}, none is {name!r}: leave one in the file")
        entities = sorted(chosen[0].entities, key=lambda entity: len(entity.address.names))
        wanted = {_key(entity.address): entity for entity in entities}
        there = await _found(self._administration)
        found = {_key(address): (address, as_requested(each, profile)) for address, each in there.items()}
        created = []
        for key, entity in wanted.items():
            if key in found:
                more = [found[each][0] for each in found if each[:2] == key and each not in wanted]
                self._compare(entity, *found[key], more if entity.replaces_default else [])
            elif await self._is_done(entity, partial(self._create, entity)):
                self._say("created", entity)
                created.append(entity)
        for entity in [] if self._dry_run else created:
            key = _key(entity.address)
            keeps_default = key in self._refused or (*key, _DEFAULT) in wanted
            await self._is_done(entity, partial(self._complete, entity, keeps_default))
        if not prints_json():
            counts = [f"{count} {what}" for what, count in self._counts.items() if count]
            print_line(", ".join(counts) or f"{source} has no entities")
        return not self._counts["differs"] and not self._counts["refused"]

    async def _create(self, entity: EntityConfig) -> None:
        """Create an entity, without forwarding, because its destination may not exist yet."""
        properties = entity.properties
        if not isinstance(properties, RuleProperties | TopicProperties):
            properties = replace(properties, forward_to=None, forward_dead_lettered_messages_to=None)
        try:
            await self._administration.create(entity.address, properties)
        except MessagingEntityAlreadyExistsError:
            if entity.address.names[2:] != (DEFAULT_RULE_NAME,):
                raise
            await self._administration.update(entity.address, properties)  # came with its new subscription

    async def _complete(self, entity: EntityConfig, keeps_default: bool) -> None:
        """Delete the default rule, after the other rules exist, so that no message is missed; set forwarding."""
        if entity.replaces_default and not keeps_default:
            names = (*entity.address.names, DEFAULT_RULE_NAME)
            await self._administration.delete(EntityAddress(EntityKind.RULE, names))
        destinations = {name: getattr(entity.properties, name, None) for name in FORWARDING}
        if any(destinations.values()):
            made: Any = await self._administration.get(entity.address)
            await self._administration.update(entity.address, replace(made, **destinations))

    async def _is_done(self, entity: EntityConfig, work: Callable[[], Awaitable[None]]) -> bool:
        try:
            if not self._dry_run:
                await work()
        except (InvalidOperationError, MessagingEntityNotFoundError) as error:
            self._refused.add(_key(entity.address)[:2])
            self._say("refused", entity, {"error": str(error)})
            return False
        return True

    def _compare(
        self, entity: EntityConfig, address: EntityAddress, present: EntityProperties, more: list[EntityAddress]
    ) -> None:
        differences: dict[str, Any] = (
            {"rules": f"has also {', '.join(each.names[-1] for each in more)}"} if more else {}
        )
        if address.kind is not entity.address.kind:
            differences["kind"] = f"is a {address.kind}"
        else:
            now, file = values_of(present), values_of(entity.properties)
            names = (now | file) if address.kind is EntityKind.RULE else file
            for name in names:
                if now.get(name) != file.get(name):
                    differences[name] = f"is {_shown(now.get(name))}, in the file {_shown(file.get(name))}"
        self._say("differs" if differences else "equal", entity, differences)

    def _say(self, what: str, entity: EntityConfig, details: dict[str, Any] | None = None) -> None:
        self._counts[what] += 1
        details = details or {}
        if prints_json():
            kind, names = entity.address
            print_json({"result": what, "kind": kind, "names": names, "dry_run": self._dry_run, "details": details})
        elif what != "equal":
            done = "would be created" if what == "created" and self._dry_run else what
            text = "; ".join(f"{name} {each}" for name, each in details.items())
            print_line(f"{done}: {entity.address}" + (f": {text}" if text else ""))


def _shown(value: Any) -> str:
    return "not set" if value is None else json.dumps(value, ensure_ascii=False)


def _key(address: EntityAddress) -> tuple[str, ...]:
    return tuple(map(canonical, address.names))


async def _namespace(administration: Administration) -> tuple[str, Profile]:
    """Return the name of the namespace and a profile of its tier."""
    properties = await administration.namespace()
    return properties.name, next(each for each in PROFILES.values() if each.sku == properties.messaging_sku)


async def _found(administration: Administration) -> dict[EntityAddress, EntityProperties]:
    """Return all entities, each after those above it."""
    found: dict[EntityAddress, EntityProperties] = {}

    async def add(kind: EntityKind, *parents: str) -> None:
        async for each in administration.list(kind, parents):
            found[EntityAddress(kind, (*parents, each.name))] = each
            below = {EntityKind.TOPIC: EntityKind.SUBSCRIPTION, EntityKind.SUBSCRIPTION: EntityKind.RULE}.get(kind)
            if below is not None:
                await add(below, *parents, each.name)

    await add(EntityKind.QUEUE)
    await add(EntityKind.TOPIC)
    return found
