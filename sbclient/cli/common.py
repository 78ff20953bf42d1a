"""What the commands share: how the namespaces are named, how an error is told, and what the exit status means."""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import os
import signal
import sys
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager, suppress
from enum import IntEnum
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import typer

from sbclient.cli import startup_signals
from sbclient.cli.json_values import plain
from sbclient.cli.progress import Progress
from sbclient.client.client import ServiceBusClient
from sbclient.errors import (
    InvalidOperationError,
    MessageNotFoundError,
    MessagingEntityAlreadyExistsError,
    MessagingEntityNotFoundError,
    ServiceBusAuthenticationError,
    ServiceBusAuthorizationError,
    ServiceBusError,
)
from sbclient.options import PairedNamespaceOptions

if TYPE_CHECKING:
    from rich.console import Console

T = TypeVar("T")

WIDE: Final = 1000

NO_SPACE: Final = (errno.ENOSPC, errno.EDQUOT)
"""What a disk says that is full, or of which no more may be taken."""

logging.getLogger("azure").addHandler(
    logging.NullHandler()
)  # what the SDK warns of becomes an error of ours, told once


class Exit(IntEnum):
    """The exit statuses of every command; docs/commands.md says when each of them comes."""

    OK = 0
    INCOMPLETE = 1
    BAD_INPUT = 2
    UNREACHABLE = 3
    NOT_ALLOWED = 4
    NOT_FOUND = 5
    INTERRUPTED = 130
    TERMINATED = 143


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
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else, errors too (those on stderr).")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


class OutputClosed(BrokenPipeError):
    """Whoever read what is printed has gone, as `head` does."""


def open_client(
    primary: str, secondary: str | None = None, options: PairedNamespaceOptions | None = None, **kwargs: Any
) -> ServiceBusClient:
    """A client for the namespaces that a command was given."""
    return ServiceBusClient.from_connection_string(
        primary, secondary=secondary or None, options=options if secondary else None, **kwargs
    )


def run(
    command: str,
    work: Coroutine[Any, Any, T],
    *,
    as_json: bool = False,
    progress: Progress | None = None,
    handles_signals: bool = False,
) -> T:
    """Run a command's work; an error ends the program with one line and the exit status of the error.

    Args:
        as_json: the line is a JSON object.
        progress: shown on a terminal while the work runs. Default: the command's name.
        handles_signals: the work installs its own signal handlers and then calls `startup_signals.release`.
    """

    async def watched() -> T:
        async with progress or Progress(f"{command} …"):
            if not handles_signals:
                _cancel_on_sigterm()
                startup_signals.release()
            return await work

    whole = watched()
    try:
        with telling_errors(command, as_json=as_json):
            try:
                return asyncio.run(whole)
            except asyncio.CancelledError:  # by SIGTERM; asyncio itself handles SIGINT
                raise startup_signals.Terminated from None
    finally:
        for each in (whole, work):  # Ctrl-C may have come before they began
            each.close()


def _cancel_on_sigterm() -> None:
    """Let SIGTERM cancel the current task, as Ctrl-C does. A second SIGTERM ends the process at once."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()

    def cancel() -> None:
        loop.remove_signal_handler(signal.SIGTERM)
        assert task is not None  # a coroutine runs in a task
        task.cancel()

    with suppress(NotImplementedError):  # Windows: SIGTERM ends the process at once
        loop.add_signal_handler(signal.SIGTERM, cancel)


@contextmanager
def telling_errors(command: str, *, as_json: bool = False) -> Iterator[None]:
    """End the program as `run` does when the body fails.

    Raises:
        typer.Exit: with the status of the error.
    """
    try:
        yield
    except KeyboardInterrupt as error:
        ended = Exit.TERMINATED if isinstance(error, startup_signals.Terminated) else Exit.INTERRUPTED
        tell_error(command, ended.name.lower(), ended.name.capitalize(), ended, as_json=as_json)
        raise typer.Exit(ended) from None
    except OutputClosed:
        _discard_stdout()
        raise typer.Exit(Exit.INCOMPLETE) from None
    except (ServiceBusError, OSError, ValueError, TypeError, ExceptionGroup) as error:
        cause = first_cause(error)
        if (status := status_of(cause)) is None:
            raise
        tell_error(command, str(cause), type(cause).__name__, status, as_json=as_json)
        raise typer.Exit(status) from error


def _discard_stdout() -> None:
    """Lead what is left in the buffer nowhere, so that the end of the program does not stumble over it."""
    with suppress(OSError, ValueError):  # no file of the system's
        number = sys.stdout.fileno()
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, number)
        os.close(nowhere)


def first_cause(error: BaseException) -> BaseException:
    """What went wrong, without the groups around it."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def tell_error(command: str, text: str, kind: str, status: int, *, as_json: bool) -> None:
    """One line on stderr: `{"error": {"command", "type", "message", "exit_status"}}` where JSON is asked for."""
    if as_json:
        told = {"command": command, "type": kind, "message": text, "exit_status": int(status)}
        typer.echo(json.dumps({"error": told}, ensure_ascii=False), err=True)
    else:
        typer.echo(f"sbclient {command}: {text}", err=True)


def status_of(error: BaseException) -> Exit | None:
    """The exit status for an error; None for what nobody expected."""
    if isinstance(error, ServiceBusAuthenticationError | ServiceBusAuthorizationError):
        return Exit.NOT_ALLOWED
    if isinstance(error, MessagingEntityNotFoundError | MessageNotFoundError):
        return Exit.NOT_FOUND
    if isinstance(error, ValueError | TypeError | MessagingEntityAlreadyExistsError):
        return Exit.BAD_INPUT
    if isinstance(error, FileNotFoundError | PermissionError | IsADirectoryError | NotADirectoryError):
        return Exit.BAD_INPUT
    if isinstance(error, OSError) and error.errno in NO_SPACE:
        return Exit.BAD_INPUT
    return Exit.UNREACHABLE if isinstance(error, ServiceBusError | OSError) else None


def needed(secondary: str | None) -> str:
    """The secondary namespace, where a command cannot do without.

    Raises:
        InvalidOperationError: it was not given.
    """
    if not secondary:
        raise InvalidOperationError("the backlog is in the secondary namespace: give --secondary")
    return secondary


def is_confirmed(command: str, question: str, *, yes: bool, as_json: bool) -> bool:
    """Ask before something that cannot be undone; without a terminal to ask on, `--yes` is needed.

    Returns:
        Whether to go on.
    """
    if yes:
        return True
    with telling_errors(command, as_json=as_json):
        if not sys.stdin.isatty():
            raise InvalidOperationError(f"{question} There is no terminal to ask on: add --yes")
        startup_signals.release()
        typer.echo(f"{question} [y/N] ", err=True, nl=False)
        try:
            return sys.stdin.readline().strip().lower() in ("y", "yes")
        except KeyboardInterrupt:
            typer.echo(err=True)
            raise


def print_json(value: Any) -> None:
    """One JSON value on one line of stdout, at once; moments and spans in ISO 8601.

    Raises:
        OutputClosed: nobody reads it any more.
    """
    print_line(json.dumps(value, ensure_ascii=False, default=plain))


def print_line(line: str | bytes) -> None:
    """One line of stdout, at once; raises as `print_json`."""
    try:
        typer.echo(line)
    except BrokenPipeError as error:
        raise OutputClosed(*error.args) from error


def stdout_console() -> Console:
    """Where tables go: as wide as the terminal, and as wide as they like into a file or a pipe."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else WIDE)


def stderr_console() -> Console:
    """The same on stderr, where stdout is for JSON."""
    from rich.console import Console

    return Console(stderr=True, width=None if sys.stderr.isatty() else WIDE)
