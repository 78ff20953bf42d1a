"""The commands by name. Only the one that is called is imported, so that each starts as fast as it can."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Annotated, Final

import typer

COMMANDS: Final = ("demo", "emulator", "syphon", "send", "receive", "peek", "backlog", "admin")
"""What there is, in the order of the help; each is found by its name in the module of its name."""

_MODULES: Final = {"peek": "receive"}


def make_app(arguments: Sequence[str] = ()) -> typer.Typer:
    """The program, with the one command that the arguments begin with, or with all of them."""
    app = typer.Typer(
        name="sbclient",
        help="Paired namespaces for Azure Service Bus: failover, backlog, syphon, and a broker to try them on.",
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
    )
    app.callback()(_common)
    called = [name for name in COMMANDS if list(arguments[:1]) == [name]]
    for name in called or COMMANDS:
        command = getattr(import_module(f"sbclient.cli.{_MODULES.get(name, name)}"), name)
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name)
        else:
            app.command(name)(command)
    return app


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
