"""Values that a shell completes: names of entities, of attributes, of settings. Typer drops those that do not fit."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import Any, Final

import typer

from sbclient import clock
from sbclient.cli.common import open_administration
from sbclient.entities import CORRELATION_FIELDS, EntityKind, settings_of
from sbclient.formats.message_json import ATTRIBUTES, PROPERTY

PATIENCE_S: Final = 3.0
"""A person waits for the answer; a namespace that is slower gives no names."""

_LEVELS: Final = {
    EntityKind.QUEUE: (EntityKind.QUEUE,),
    EntityKind.TOPIC: (EntityKind.TOPIC,),
    EntityKind.SUBSCRIPTION: (EntityKind.TOPIC, EntityKind.SUBSCRIPTION),
    EntityKind.RULE: (EntityKind.TOPIC, EntityKind.SUBSCRIPTION, EntityKind.RULE),
}
"""The kind of each name that `sbclient admin` takes for an entity of a kind."""


def queues(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the names of queues that begin with a text."""
    return _names(ctx, EntityKind.QUEUE, (), incomplete)


def topics(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the names of topics that begin with a text."""
    return _names(ctx, EntityKind.TOPIC, (), incomplete)


def destinations(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the names of queues and topics that begin with a text."""
    return [*queues(ctx, incomplete), *topics(ctx, incomplete)]


def subscriptions(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the names of subscriptions of the topic in --topic."""
    topic = ctx.params.get("topic")
    return _names(ctx, EntityKind.SUBSCRIPTION, (topic,), incomplete) if topic else []


def entities(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return names for the next name argument of `sbclient admin`: of the entity, or of one above it."""
    kind = _kind(ctx)
    if kind is None:
        return []
    given = tuple(ctx.params.get("names") or ctx.params.get("parents") or ())
    levels = _LEVELS[kind]
    if ctx.info_name in ("create", "list"):
        levels = levels[:-1]
    return _names(ctx, levels[len(given)], given, incomplete) if len(given) < len(levels) else []


def attributes() -> list[str]:
    """Return the names for `--set NAME=VALUE` of a message, as far as the value."""
    return [*(f"{name}=" for name in ATTRIBUTES), PROPERTY]


def settings(ctx: typer.Context) -> list[str]:
    """Return the names for `--set NAME=VALUE` of an entity, as far as the value."""
    kind = _kind(ctx)
    if kind is None:
        return []
    names = ("sql", "action", *CORRELATION_FIELDS) if kind is EntityKind.RULE else settings_of(kind)
    return [f"{name}=" for name in names]


def _kind(ctx: typer.Context) -> EntityKind | None:
    # After an option without its value the arguments are not parsed yet.
    words = [str(ctx.params["kind"])] if ctx.params.get("kind") else ctx.args
    with suppress(ValueError):  # a kind that does not exist
        return EntityKind(words[0]) if words else None
    return None


def _names(ctx: typer.Context, kind: EntityKind, parents: tuple[str, ...], incomplete: str) -> list[str]:
    """Ask the namespace of the command line. An error gives no names, because a completion cannot report it."""

    async def listed() -> list[Any]:
        async with clock.timeout(PATIENCE_S), open_administration(ctx.params["primary"]) as administration:
            return [each async for each in administration.list(kind, parents, incomplete)]

    logging.disable()
    try:
        return [each.name for each in asyncio.run(listed())]
    except Exception:
        return []
    finally:
        logging.disable(logging.NOTSET)
