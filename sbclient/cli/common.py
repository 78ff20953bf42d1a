"""What the commands share: connection options, errors, exit statuses and output."""

from __future__ import annotations

import asyncio
import errno
import inspect
import io
import logging
import os
import re
import shlex
import signal
import stat
import sys
from array import array
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from contextvars import ContextVar
from enum import IntEnum
from functools import wraps
from random import SystemRandom
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import typer

from sbclient import clock
from sbclient.cli import startup_signals
from sbclient.cli.command import declare
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
from sbclient.options import PAIR_OPTIONS, PairedNamespaceOptions
from sbclient.rules.connection_string import parse_connection_string
from sbclient.rules.http_proxy import http_proxy_of
from sbclient.settings.durations import seconds_of
from sbclient.telemetry.log import printable, printable_json
from sbclient.transport.base import Administration, Transport
from sbclient.transport.choice import open_transport

try:
    import fcntl
    import termios
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

T = TypeVar("T")

WIDE: Final = 1000

TRANSPORT_VARIABLE: Final = "SERVICEBUS_TRANSPORT"
"""How commands reach namespaces on the network; the option `--transport` sets it."""

PROXY_VARIABLE: Final = "SERVICEBUS_HTTP_PROXY"
"""The HTTP proxy through which commands reach namespaces; the option `--http-proxy` sets it."""

READER_PAUSE_S: Final = 0.005
"""The longest pause between two looks at a pipe whose reader is slow."""

OF_FILES: Final = (errno.ENOSPC, errno.EDQUOT, errno.ENAMETOOLONG, errno.ELOOP)
"""Errors about a file that the caller named."""

# The SDK logs warnings about errors that a command reports anyway.
logging.getLogger("azure").addHandler(logging.NullHandler())


class Exit(IntEnum):
    """The exit statuses of every command, described in docs/commands.md."""

    OK = 0
    INCOMPLETE = 1
    BAD_INPUT = 2
    UNREACHABLE = 3
    NOT_ALLOWED = 4
    NOT_FOUND = 5
    EXISTS = 6
    INTERRUPTED = 130
    TERMINATED = 143


Primary = Annotated[
    str,
    typer.Option(
        "--primary",
        envvar="SERVICEBUS_CONNECTION_STRING",
        show_default=False,
        help="Connection string of the primary namespace. Never printed.",
    ),
]
Secondary = Annotated[
    str | None,
    typer.Option(
        "--secondary",
        envvar="SERVICEBUS_SECONDARY_CONNECTION_STRING",
        show_default=False,
        help="Connection string of the secondary namespace, which holds the backlog. Never printed.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print results as JSON on stdout and errors as JSON on stderr.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
BACKLOG_QUEUE_COUNT: Final[int] = PAIR_OPTIONS["backlog_queue_count"].default
QueueCount = Annotated[
    int, typer.Option("--backlog-queue-count", min=1, help=PAIR_OPTIONS["backlog_queue_count"].about)
]
PrimaryName = Annotated[str | None, typer.Option("--primary-name", help=PAIR_OPTIONS["primary_name"].about)]


def seconds(least: float = 0.0) -> Callable[[Any], float]:
    """Return the parser of an option that takes a duration: `15`, `15s`, `2h` or `PT15S`, as seconds.

    Args:
        least: the smallest value in seconds.
    """

    def parsed(text: Any) -> float:  # Typer also passes the default of the option, a number
        try:
            value = seconds_of(str(text))
        except InvalidOperationError as error:
            raise typer.BadParameter(error.message) from error
        if value < least:
            raise typer.BadParameter(f"{text!r} is too short: give at least {least:g} seconds")
        return value

    return parsed


class OutputClosed(BrokenPipeError):
    """The reader of stdout has closed it, as `head` does."""


def open_client(
    primary: str, secondary: str | None = None, options: PairedNamespaceOptions | None = None, **kwargs: Any
) -> ServiceBusClient:
    """Return a client for the namespaces of a command.

    Raises:
        InvalidOperationError: a connection string cannot be read, or there is no such transport.
    """
    return ServiceBusClient.from_connection_string(
        primary,
        secondary=secondary or None,
        options=options if secondary else None,
        transport=chosen_transport(),
        **proxy_options(),
        **kwargs,
    )


@asynccontextmanager
async def open_namespace(primary: str) -> AsyncIterator[Transport]:
    """Open the transport of a namespace.

    Raises:
        InvalidOperationError: the connection string cannot be read, or there is no such transport.
    """
    transport = open_transport(
        parse_connection_string(primary), random=SystemRandom(), transport=chosen_transport(), **proxy_options()
    )
    try:
        yield transport
    finally:
        await transport.close()


@asynccontextmanager
async def open_administration(primary: str) -> AsyncIterator[Administration]:
    """Open the administration of a namespace; raises like `open_namespace`."""
    async with open_namespace(primary) as transport:
        yield transport.administration


def chosen_transport() -> str | None:
    """Return the transport that `sbclient --transport` or the environment names, None for the default."""
    return os.environ.get(TRANSPORT_VARIABLE) or None


def proxy_options() -> dict[str, Any]:
    """Return the option of a client for the proxy that `--http-proxy` or the environment names, empty without one.

    Raises:
        InvalidOperationError: the address has another form. The text does not show it, because it may have a password.
    """
    address = os.environ.get(PROXY_VARIABLE)
    if not address:
        return {}
    proxy = {"proxy_hostname": address}
    try:
        http_proxy_of(proxy)
    except InvalidOperationError:
        raise InvalidOperationError(
            f"the HTTP proxy of --http-proxy or {PROXY_VARIABLE} is malformed: give http://[user:password@]host:port"
        ) from None
    return {"http_proxy": proxy}


_call: Final[ContextVar[typer.Context]] = ContextVar("_call")
"""The context of the command that runs."""


def command(function: Callable[..., None], *, has_json: bool = True) -> Callable[..., None]:
    """Return the command with the options of a function, of which an error ends the program; see `reported_errors`.

    Args:
        has_json: whether it also has the option `--json`, see `prints_json`.
    """

    @wraps(function)
    def call(context: typer.Context, as_json: bool = False, **given: Any) -> None:
        before = _call.set(context)
        try:
            with reported_errors():
                function(**given)
        finally:
            _call.reset(before)

    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters = [
        inspect.Parameter("context", keyword, annotation=typer.Context),
        *inspect.signature(function, eval_str=True).parameters.values(),
        inspect.Parameter("as_json", keyword, default=False, annotation=AsJson),
    ]
    return declare(call, parameters if has_json else parameters[:-1])


def prints_json() -> bool:
    """Return whether the command that runs prints results and errors as JSON."""
    return bool(_call.get().params.get("as_json"))


def _name() -> str:
    """Return the words of the command that runs, such as `admin create`."""
    return _call.get().command_path.partition(" ")[2]


def run(work: Coroutine[Any, Any, T], *, progress: Progress | None = None, handles_signals: bool = False) -> T:
    """Run a command's work; an error ends the program, see `reported_errors`.

    Args:
        progress: shown on a terminal while the work runs. Default: the command's name.
        handles_signals: the work installs its own signal handlers and then calls `startup_signals.release`.
    """

    async def watched() -> T:
        async with progress or Progress(f"{_name()} …"):
            return await (work if handles_signals else terminable(work))

    whole = watched()
    try:
        with reported_errors():
            return asyncio.run(whole)
    finally:
        for each in (whole, work):  # Ctrl-C may have come before they began
            each.close()


async def terminable(work: Awaitable[T]) -> T:
    """Await work that SIGTERM cancels, as asyncio lets Ctrl-C do. A second SIGTERM ends the process at once.

    The handler only cancels the task: an exception raised by a handler could end any callback of the loop.
    """
    loop, task = asyncio.get_running_loop(), asyncio.current_task()

    def cancel(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        assert task is not None  # a coroutine runs in a task
        task.cancel()
        loop.call_soon_threadsafe(lambda: None)  # wakes a loop that waits

    previous = signal.signal(signal.SIGTERM, cancel)
    try:
        startup_signals.release()
        return await work
    finally:
        signal.signal(signal.SIGTERM, previous)


@asynccontextmanager
async def interruptible(stop: Callable[[], object]) -> AsyncIterator[None]:
    """Let the first SIGINT or SIGTERM call `stop`, which ends the body soon. The second one cancels the body.

    Raises:
        KeyboardInterrupt: after the body, if there was a signal; `Terminated` after SIGTERM.
    """
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None  # a coroutine runs in a task
    received: list[int] = []

    def end(number: int) -> None:
        received.append(number)
        if len(received) == 1:
            stop()
        else:
            task.cancel()

    handled = [each for each in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(each) is not signal.SIG_IGN]
    with suppress(NotImplementedError):  # Windows: Ctrl-C ends the loop
        for number in handled:
            loop.add_signal_handler(number, end, number)
    startup_signals.release()
    try:
        yield
    except asyncio.CancelledError:
        if not received:
            raise
    finally:
        with suppress(NotImplementedError):
            for number in handled:
                loop.remove_signal_handler(number)
    if received:
        raise startup_signals.Terminated if received[0] == signal.SIGTERM else KeyboardInterrupt


@asynccontextmanager
async def ends_with_reader() -> AsyncIterator[None]:
    """Cancel the body when stdout is a pipe whose reader has ended, also while nothing is printed.

    Raises:
        OutputClosed: after the body, if the reader has ended.
    """
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None  # a coroutine runs in a task
    is_closed = False

    def end() -> None:
        nonlocal is_closed
        loop.remove_reader(watched)
        if _has_pipe():  # otherwise `_print` has noticed before
            is_closed = True
            task.cancel()

    watched = -1
    if _has_pipe():
        watched = os.dup(sys.stdout.fileno())  # `_discard_stdout` replaces the original
        with suppress(NotImplementedError):  # Windows
            loop.add_reader(watched, end)  # a pipe for writing is "readable" when its reader has closed it
    try:
        yield
    except asyncio.CancelledError:
        if not is_closed:
            raise
    finally:
        if watched >= 0:
            with suppress(NotImplementedError):
                loop.remove_reader(watched)
            os.close(watched)
    if is_closed:
        raise OutputClosed


async def taken_by_reader() -> None:
    """Wait until the reader of a pipe on stdout has taken everything that was written; elsewhere return at once."""
    pause_s = 0.0
    while unread_bytes():
        await clock.sleep(pause_s)  # nothing announces that a pipe became empty
        pause_s = min(pause_s + READER_PAUSE_S / 100, READER_PAUSE_S)


def unread_bytes() -> int | None:
    """Return how many bytes the reader of a pipe on stdout has not taken yet; None if it is no pipe, or not known."""
    if fcntl is None or not _has_pipe():
        return None
    unread = array("i", [0])
    try:
        fcntl.ioctl(sys.stdout.fileno(), termios.FIONREAD, unread)
    except OSError:
        return None
    return unread[0]


def _has_pipe() -> bool:
    """Return whether stdout is a pipe."""
    try:
        return stat.S_ISFIFO(os.fstat(sys.stdout.fileno()).st_mode)
    except (OSError, ValueError):  # stdout may have no file descriptor
        return False


def is_interruption(end: typer.Exit) -> bool:
    """Return whether a signal ended the command."""
    return end.exit_code in (Exit.INTERRUPTED, Exit.TERMINATED)


def resuming_line(**changed: Any) -> str:
    """Return the command line of the command that runs with other values for some parameters; None leaves one out.

    Connection strings are left out, because they contain keys.
    """
    words, context = ["sbclient"], _call.get()
    for each in (context.parent, context):
        if each is None:
            continue
        words += [each.info_name] if each is context and each.info_name else []
        for parameter in each.command.params:
            name = parameter.name or ""
            source = each.get_parameter_source(name)
            is_given = name in changed or (source is not None and source.name == "COMMANDLINE")
            value = changed.get(name, each.params.get(name))
            if is_given and name not in _SECRET and value is not None and value is not False:
                words += _words(parameter.opts[0], value)
    return shlex.join(words)


_SECRET: Final = ("primary", "secondary", "http_proxy")


def _words(option: str, value: Any) -> list[str]:
    if value is True:
        return [option]
    values = value if isinstance(value, list | tuple) else [value]
    return [word for each in values for word in (option, str(each))]


@contextmanager
def reported_errors() -> Iterator[None]:
    """Print an error of the body in one line, or as JSON.

    Raises:
        typer.Exit: with the exit status of the error.
    """
    try:
        yield
    except (KeyboardInterrupt, asyncio.CancelledError) as error:  # SIGTERM cancels, Ctrl-C ends as KeyboardInterrupt
        is_interrupt = isinstance(error, KeyboardInterrupt) and not isinstance(error, startup_signals.Terminated)
        ended = Exit.INTERRUPTED if is_interrupt else Exit.TERMINATED
        print_error(_name(), ended.name.lower(), ended.name.capitalize(), ended, as_json=prints_json())
        raise typer.Exit(ended) from None
    except OutputClosed:
        _discard_stdout()
        raise typer.Exit(Exit.INCOMPLETE) from None
    except (ServiceBusError, OSError, ValueError, TypeError, ExceptionGroup) as error:
        cause = first_cause(error)
        if (status := status_of(cause)) is None:
            raise
        print_error(_name(), str(cause), type(cause).__name__, status, as_json=prints_json())
        raise typer.Exit(status) from error


def _discard_stdout() -> None:
    """Send buffered output to /dev/null, so that Python's flush at exit does not fail."""
    with suppress(OSError, ValueError):  # stdout may have no file descriptor
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)


def first_cause(error: BaseException) -> BaseException:
    """Return the first error inside nested exception groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


_TRACKING: Final = re.compile(r"SubCode=\d+\. |\.? TrackingId:[^,]*, SystemTracker:[^,]*, Timestamp:\S+")
"""What the service adds to the text of an error for its own support."""

_ERRNO: Final = re.compile(r"\[Errno -?\d+\] ")
"""What Python puts before the text of an error of the system."""


def print_error(command: str, text: str, kind: str, status: int, *, as_json: bool) -> None:
    """Print an error on one line of stderr; `as_json` prints it as JSON, with the tracking id of the service."""
    text = _ERRNO.sub("", text)
    if as_json:
        error = {"command": command, "type": kind, "message": text, "exit_status": int(status)}
        typer.echo(printable_json({"error": error}), err=True)
    else:
        print_note(f"sbclient {command}: {_TRACKING.sub('', text)}")


def status_of(error: BaseException) -> Exit | None:
    """Return the exit status for an error; None for an unexpected one."""
    if isinstance(error, ServiceBusAuthenticationError | ServiceBusAuthorizationError):
        return Exit.NOT_ALLOWED
    if isinstance(error, MessagingEntityNotFoundError | MessageNotFoundError):
        return Exit.NOT_FOUND
    if isinstance(error, MessagingEntityAlreadyExistsError):
        return Exit.EXISTS
    if isinstance(error, ValueError | TypeError):
        return Exit.BAD_INPUT
    if isinstance(error, FileNotFoundError | PermissionError | IsADirectoryError | NotADirectoryError):
        return Exit.BAD_INPUT
    if isinstance(error, OSError) and error.errno in OF_FILES:
        return Exit.BAD_INPUT
    return Exit.UNREACHABLE if isinstance(error, ServiceBusError | OSError) else None


@contextmanager
def explained_missing(primary: str, kind: str, *names: str) -> Iterator[None]:
    """Say in the error of a missing entity what is missing, where, and what to do.

    Args:
        primary: the connection string.
        kind: `queue`, `topic` or `subscription`.
        names: of the entity, after that of its topic.
    """
    try:
        yield
    except MessagingEntityNotFoundError as error:
        namespace = parse_connection_string(primary).namespace
        given = shlex.join(names)
        raise MessagingEntityNotFoundError(
            f"there is no {kind} {'/'.join(names)!r} in {namespace}: check the name with "
            f"`{shlex.join(['sbclient', 'admin', 'list', kind, *names[:-1]])}`, or create it with "
            f"`sbclient admin create {kind} {given}`"
        ) from error


def required_secondary(secondary: str | None) -> str:
    """Return the connection string of the secondary.

    Raises:
        InvalidOperationError: it is missing.
    """
    if not secondary:
        raise InvalidOperationError(
            "the backlog is in the secondary namespace: give --secondary, or set SERVICEBUS_SECONDARY_CONNECTION_STRING"
        )
    return secondary


def confirm(question: str, *, yes: bool) -> None:
    """Ask on the terminal whether to go on with something that cannot be undone.

    Args:
        yes: whether the answer is given already.

    Raises:
        typer.Exit: the answer is no.
        InvalidOperationError: stdin is not a terminal.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise InvalidOperationError(f"{question} Stdin is not a terminal: confirm with --yes")
    startup_signals.release()
    typer.echo(f"{printable(question)} [y/N] ", err=True, nl=False)
    try:
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            raise typer.Exit(Exit.INCOMPLETE)
    except KeyboardInterrupt:
        typer.echo(err=True)
        raise


def print_result(value: Any, *lines: str) -> None:
    """Print the result of the command that runs: a value as JSON, or the lines."""
    if prints_json():
        print_json(value)
        return
    for line in lines:
        print_line(line)


def print_json(value: Any) -> None:
    """Print a JSON value on one line of stdout and flush; times and durations are in ISO 8601.

    Raises:
        OutputClosed: the reader of stdout has closed it.
    """
    _print(printable_json(value, plain))


def print_json_lines(lines: Iterable[str]) -> None:
    """Print lines of JSON in one write; like `print_json`."""
    _print("\n".join(lines))


def print_line(line: str) -> None:
    """Print one `printable` line on stdout and flush; raises `OutputClosed` like `print_json`."""
    _print(printable(line))


def print_note(line: str) -> None:
    """Print one `printable` line on stderr."""
    typer.echo(printable(line), err=True)


def print_bodies(bodies: Iterable[bytes | str]) -> None:
    """Print bodies on stdout and flush: unchanged into a file or a pipe, with their lines `printable` on a terminal."""
    encoded = b"\n".join(body.encode() if isinstance(body, str) else body for body in bodies)
    if sys.stdout.isatty():
        _print("\n".join(map(printable, encoded.decode(errors="replace").split("\n"))))
    else:
        _print(encoded)


def _print(line: str | bytes) -> None:
    output = getattr(sys.stdout, "buffer", None)
    try:
        if isinstance(output, io.RawIOBase):  # with PYTHONUNBUFFERED, which drops the rest of a partial write
            rest = memoryview((line if isinstance(line, bytes) else line.encode(sys.stdout.encoding)) + b"\n")
            while rest:
                rest = rest[output.write(rest) or 0 :]
        else:
            typer.echo(line)
    except BrokenPipeError as error:
        _discard_stdout()
        raise OutputClosed(*error.args) from error


def cell(text: str) -> Text:
    """Return a `printable` text for a table, without markup."""
    from rich.text import Text

    return Text(printable(text))


def make_console(*, stderr: bool = False) -> Console:
    """Return a console for tables: as wide as the terminal, and without wrapping into a file or a pipe."""
    from rich.console import Console

    file = sys.stderr if stderr else sys.stdout
    return Console(stderr=stderr, width=None if file.isatty() else WIDE)
