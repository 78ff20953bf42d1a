"""The commands by name, and what they have in common."""

from __future__ import annotations

from typing import Annotated

import typer

from sbclient.cli.admin import admin
from sbclient.cli.backlog import backlog
from sbclient.cli.demo import demo
from sbclient.cli.receive import peek, receive
from sbclient.cli.send import send

app = typer.Typer(
    name="sbclient",
    help="Paired namespaces for Azure Service Bus: failover, backlog, syphon, and a broker to try them on.",
    no_args_is_help=True,
    add_completion=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


@app.callback()
def _common(version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False) -> None:
    if version:
        from importlib.metadata import version as version_of

        typer.echo(version_of("sbclient"))
        raise typer.Exit


app.command()(demo)
app.command()(send)
app.command()(receive)
app.command()(peek)
app.add_typer(backlog, name="backlog")
app.add_typer(admin, name="admin")
