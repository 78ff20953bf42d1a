"""The commands by name. Only the called command is imported, so that each one starts fast."""

from __future__ import annotations

import inspect
import os
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from enum import EnumType
from functools import partial
from importlib import import_module
from itertools import takewhile
from pathlib import Path
from typing import Annotated, Any, Final, get_args

import typer

from sbclient.version import VERSION

COMMANDS: Final = {
    "demo": "Send messages through an outage and account for each one.",
    "emulator": "Serve Service Bus namespaces on local ports.",
    "syphon": "Move backlog messages to the primary, as a service or once.",
    "send": "Send lines, JSON objects or CSV rows as messages.",
    "receive": "Receive messages, print them and settle them.",
    "peek": "Print messages without receiving them.",
    "dead-letter": "List, show, resubmit or purge dead letters.",
    "backlog": "Show the backlog: numbers, destinations, ages.",
    "doctor": "Find out why messages do not move, and what to do.",
    "verify": "Check a namespace, and compare both transports on it.",
    "fault": "Add, list and remove the faults of an emulator.",
    "admin": "Create, list, show, update, delete, export and import entities.",
}
"""Short help by command, in the order of the help.

The module of that name, with `_` for `-`, has a function or an app of that name.
"""

HELP_OPTIONS: Final = ["--help", "-h"]

_VALUES: Final = {str: "TEXT", int: "N", float: "NUMBER", Path: "PATH"}
"""What the help calls a value of an option that has no name of its own."""


_EXTRA: Final = re.compile(r"Got unexpected extra argument.* \((?P<first>\S+?)(?: .*)?\)")


_CHOICE: Final = re.compile(r"'(?P<given>[^']*)' is not one of (?P<known>.+?)\.?")


_COMMAND: Final = re.compile(r"No such command '(?P<name>\w+)'\.")


class _Program(typer.core.TyperGroup):
    """The root of all commands, which makes the usage errors of Typer say what to do, in one line as every error."""

    def make_context(self, *arguments: Any, **options: Any) -> Any:
        with _explained_usage():
            return super().make_context(*arguments, **options)

    def invoke(self, ctx: Any) -> Any:
        with _explained_usage():
            return super().invoke(ctx)


@contextmanager
def _explained_usage() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        # Typer does not export the classes of its usage errors; one of them is the help of a command without arguments.
        if hasattr(error, "format_message") and type(error).__name__ != "NoArgsIsHelpError":
            _explain(error)
            vars(error)["show"] = partial(_show, error)
        raise


def _show(error: Any, file: Any = None) -> None:
    from sbclient.cli.common import print_note

    command = error.ctx.command_path if getattr(error, "ctx", None) is not None else "sbclient"
    text = " ".join(error.format_message().split()).removesuffix(".")
    print_note(f"{command}: {text}. See {command} --help")


class _Command(typer.core.TyperCommand):
    """A command whose help shows arguments without their type, which some versions of Typer add as `<str>`."""

    def get_params(self, ctx: Any) -> Any:
        parameters = super().get_params(ctx)
        for one in parameters:
            if one.param_type_name == "argument":
                vars(one)["display_type_rich"] = lambda ctx: None
        return parameters


def _name_values(command: Callable[..., Any] | None) -> None:
    """Name the values of the options in the help: upper-case words, or the choices."""
    assert command is not None  # a command of a group always has a function
    command.__annotations__ = inspect.get_annotations(command, eval_str=True)  # objects that Typer reads, not text
    for annotation in command.__annotations__.values():
        kind, *declared = get_args(annotation) or (None,)
        kinds = [each for one in get_args(kind) or (kind,) for each in get_args(one) or (one,)]
        for option in declared:
            if isinstance(option, typer.models.OptionInfo) and option.metavar is None:
                option.metavar = next(filter(None, map(_value_name, kinds)), None)


def _value_name(kind: Any) -> str | None:
    return "|".join(kind) if isinstance(kind, EnumType) else _VALUES.get(kind)


def _explain(error: Any) -> None:
    error.message = error.message.removeprefix("Value error, ")
    extra = _EXTRA.fullmatch(error.message)
    command = _COMMAND.fullmatch(error.message)
    choice = _CHOICE.fullmatch(error.message)
    if choice is not None and (near := get_close_matches(choice["given"], re.findall(r"'(.+?)'", choice["known"]), 1)):
        error.message += f" Did you mean {near[0]!r}?"
    if command is not None and error.ctx is not None and error.ctx.info_name == "fault":
        from sbclient.emulator.control.fault_json import KINDS

        if command["name"] in KINDS:
            error.message += f" Did you mean 'add {command['name']}'?"
    options = {parameter.name for parameter in error.ctx.command.params} if error.ctx is not None else set()
    if extra is not None and {"queue", "topic"} <= options:
        error.message = f"unexpected argument {extra['first']!r}: a queue is given as --queue {extra['first']}"


def make_app(arguments: Sequence[str] = ()) -> typer.Typer:
    """Return the app, with only the command that the arguments name, or with all commands."""
    app = typer.Typer(
        name="sbclient",
        cls=_Program,
        help="Paired namespaces for Azure Service Bus: failover, backlog, syphon and a local broker.",
        epilog="Example: sbclient demo",
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"max_content_width": 100, "help_option_names": HELP_OPTIONS},
    )
    app.callback()(_common)
    called = [name for name in COMMANDS if list(arguments[:1]) == [name]]
    for name in called or COMMANDS:
        module = name.replace("-", "_")
        command = getattr(import_module(f"sbclient.cli.{module}"), module)
        if isinstance(command, typer.Typer):
            for one in command.registered_commands:
                one.cls = _Command
                _name_values(one.callback)
            app.add_typer(command, name=name, short_help=COMMANDS[name])
        else:
            _name_values(command)
            app.command(name, cls=_Command, short_help=COMMANDS[name])(command)
    return app


def run_with_json_errors(app: typer.Typer, arguments: Sequence[str]) -> int:
    """Run the app, print usage errors as JSON too, and return the exit status."""
    try:
        status = app(list(arguments), prog_name="sbclient", standalone_mode=False)
    except Exception as error:
        # Typer does not export the class of its usage errors; each of them has this method.
        format_message = getattr(error, "format_message", None)
        if format_message is None:
            raise
        from sbclient.cli.common import Exit, print_error

        command = " ".join(takewhile(lambda word: not word.startswith("-"), arguments))
        print_error(command, format_message(), "UsageError", Exit.BAD_INPUT, as_json=True)
        return Exit.BAD_INPUT
    return status if isinstance(status, int) else 0


def _print_version(is_set: bool) -> None:
    if is_set:
        typer.echo(VERSION)
        raise typer.Exit


@contextmanager
def _noted_warnings() -> Iterator[None]:
    """Print each warning for users once, in one line and without a place in the code."""
    noted: set[str] = set()
    with warnings.catch_warnings():
        show = warnings.showwarning

        def note(message: Warning | str, category: type[Warning], *place: Any) -> None:
            from sbclient.cli.common import print_note

            if not issubclass(category, UserWarning):
                show(message, category, *place)
            elif str(message) not in noted:
                noted.add(str(message))
                print_note(f"sbclient: {message}")

        warnings.showwarning = note  # type: ignore[assignment]
        yield


def _common(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    transport: Annotated[
        str | None,
        typer.Option(
            envvar="SERVICEBUS_TRANSPORT",
            metavar="amqp|sdk",
            autocompletion=lambda: ["amqp", "sdk"],
            show_default="amqp",
            help="Reach namespaces over the AMQP engine of this package, or over azure-servicebus.",
        ),
    ] = None,
    http_proxy: Annotated[
        str | None,
        typer.Option(
            envvar="SERVICEBUS_HTTP_PROXY",
            metavar="http://[USER:PASSWORD@]HOST:PORT",
            show_default=False,
            help="Reach namespaces through this HTTP proxy, by AMQP over WebSockets. A password is never printed.",
        ),
    ] = None,
) -> None:
    context.with_resource(_noted_warnings())
    if transport is not None:
        os.environ["SERVICEBUS_TRANSPORT"] = transport
    if http_proxy is not None:
        os.environ["SERVICEBUS_HTTP_PROXY"] = http_proxy
