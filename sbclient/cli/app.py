"""The commands by name. Only the one that is called is imported, so that each starts as fast as it can."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from itertools import takewhile
from typing import Annotated, Final

import typer

COMMANDS: Final = {
    "demo": "Send through an outage, and account for every message.",
    "emulator": "Serve namespaces of the bundled broker.",
    "syphon": "Bring the backlog home, as a service or once.",
    "send": "Send lines, JSON objects or CSV rows as messages.",
    "receive": "Print messages, and settle them.",
    "peek": "Print messages without taking them.",
    "backlog": "Show the backlog, and deal with its dead letters.",
    "admin": "Create, list, show, change and delete entities.",
}
"""What there is and does, in the order of the help; each is found by its name in the module of its name."""


def make_app(arguments: Sequence[str] = ()) -> typer.Typer:
    """The program, with the one command that the arguments begin with, or with all of them."""
    app = typer.Typer(
        name="sbclient",
        help="Paired namespaces for Azure Service Bus: failover, backlog, syphon, and a broker to try them on.",
        epilog="Example: sbclient demo",
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"max_content_width": 100},
    )
    app.callback()(_common)
    called = [name for name in COMMANDS if list(arguments[:1]) == [name]]
    for name in called or COMMANDS:
        command = getattr(import_module(f"sbclient.cli.{name}"), name)
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name, short_help=COMMANDS[name])
        else:
            app.command(name, short_help=COMMANDS[name])(command)
    return app


def run_telling_json(app: typer.Typer, arguments: Sequence[str]) -> int:
    """Run the program so that wrong options, too, are told as JSON; returns the exit status."""
    try:
        status = app(list(arguments), prog_name="sbclient", standalone_mode=False)
    except Exception as error:
        # What typer raises for wrong options it does not name; they all know how to say what is wrong.
        say = getattr(error, "format_message", None)
        if say is None:
            raise
        from sbclient.cli.common import Exit, tell_error

        command = " ".join(takewhile(lambda word: not word.startswith("-"), arguments))
        tell_error(command, say(), "UsageError", Exit.BAD_INPUT, as_json=True)
        return Exit.BAD_INPUT
    return status if isinstance(status, int) else 0


def _print_version(is_asked: bool) -> None:
    if is_asked:
        from importlib.metadata import version

        typer.echo(version("sbclient"))
        raise typer.Exit


def _common(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass
