"""What the commands share: how the namespaces are named, how an error is told, and what the exit status means."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine
from enum import IntEnum
from typing import Annotated, Any, TypeVar

import typer

from sbclient.client import ServiceBusClient
from sbclient.errors import (
    MessagingEntityNotFoundError,
    ServiceBusAuthenticationError,
    ServiceBusAuthorizationError,
    ServiceBusError,
)
from sbclient.options import PairedNamespaceOptions

T = TypeVar("T")


class Exit(IntEnum):
    """The exit statuses of every command.

    0 done; 1 done in part, or with a loss; 2 the input cannot be used; 3 the namespace cannot be reached, or answers
    with an error; 4 the credential does not allow it; 5 the entity does not exist; 130 interrupted.
    """

    OK = 0
    INCOMPLETE = 1
    BAD_INPUT = 2
    UNREACHABLE = 3
    NOT_ALLOWED = 4
    NOT_FOUND = 5
    INTERRUPTED = 130


Primary = Annotated[
    str,
    typer.Option(
        "--primary",
        envvar="SERVICEBUS_CONNECTION_STRING",
        show_default=False,
        help="Connection string of the primary namespace. It is never printed.",
    ),
]
Secondary = Annotated[
    str | None,
    typer.Option(
        "--secondary",
        envvar="SERVICEBUS_SECONDARY_CONNECTION_STRING",
        show_default=False,
        help="Connection string of the secondary namespace, where the backlog is. It is never printed.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def open_client(
    primary: str, secondary: str | None = None, options: PairedNamespaceOptions | None = None, **kwargs: Any
) -> ServiceBusClient:
    """A client for the namespaces that a command was given."""
    return ServiceBusClient.from_connection_string(
        primary, secondary=secondary, options=options if secondary else None, **kwargs
    )


def run(command: str, work: Coroutine[Any, Any, T]) -> T:
    """Run a command's work; an error ends the program with one line and the exit status that fits it."""
    try:
        return asyncio.run(work)
    except KeyboardInterrupt:
        typer.echo(f"sbclient {command}: interrupted", err=True)
        raise typer.Exit(Exit.INTERRUPTED) from None
    except (ServiceBusError, OSError, ValueError, TypeError, ExceptionGroup) as error:
        cause = error
        while isinstance(cause, ExceptionGroup):
            cause = cause.exceptions[0]
        status = status_of(cause)
        if status is None:
            raise
        typer.echo(f"sbclient {command}: {cause}", err=True)
        raise typer.Exit(status) from error


def status_of(error: BaseException) -> Exit | None:
    """The exit status for an error; None for what nobody expected."""
    if isinstance(error, ServiceBusAuthenticationError | ServiceBusAuthorizationError):
        return Exit.NOT_ALLOWED
    if isinstance(error, MessagingEntityNotFoundError):
        return Exit.NOT_FOUND
    if isinstance(error, ValueError | TypeError | FileNotFoundError | PermissionError | IsADirectoryError):
        return Exit.BAD_INPUT
    return Exit.UNREACHABLE if isinstance(error, ServiceBusError | OSError) else None


def print_json(value: Any) -> None:
    """One JSON object on one line of stdout."""
    typer.echo(json.dumps(value, ensure_ascii=False, default=str))
