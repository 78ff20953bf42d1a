"""`sbclient syphon`: moves the backlog to the primary, as a service or until it is empty."""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any, Final, NoReturn

import typer

from sbclient import clock
from sbclient.cli import startup_signals
from sbclient.cli.command import declare
from sbclient.cli.common import Exit, command, open_client, print_note, print_result, run
from sbclient.cli.progress import Progress
from sbclient.client.client import ServiceBusClient
from sbclient.settings.kinds import FLAG, NAMES
from sbclient.settings.table import Setting
from sbclient.syphon.syphon import SyphonReport
from sbclient.telemetry.log import get_logger
from sbclient.worker.configuration import CONFIG_VARIABLE, Configuration, configure
from sbclient.worker.dry_run import DryRun, dry_run
from sbclient.worker.inspection import chosen_queues, sides_of
from sbclient.worker.service import SyphonWorker
from sbclient.worker.settings import SETTINGS, WorkerSettings
from sbclient.worker.settings_file import read_settings_file
from sbclient.worker.systemd import ServiceManager

log = get_logger(__name__)

REFRESH_S: Final = 1.0
EXIT_GRACE_S: Final = 2.0
"""Seconds after the shutdown timeout at which the process exits even if its event loop is blocked."""


def with_options(settings: Iterable[Setting]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that replaces `**` of a command by a parameter for each of these settings of the worker."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        *named, _ = inspect.signature(command, eval_str=True).parameters.values()
        return declare(command, [*named, *map(_parameter, settings)])

    return decorate


def _parameter(setting: Setting) -> inspect.Parameter:
    """Return the option of a setting as text; `configure` parses it together with the file and the environment."""
    shown = setting.shown(setting.default)
    note = f" [default: {shown}]" if shown else f" [env: {setting.variable}]" if setting.is_secret else ""
    is_flag = setting.kind is FLAG
    declared = setting.option + (f"/--no-{setting.option.removeprefix('--')}" if is_flag else "")
    is_repeatable = setting.kind is NAMES
    kind: Any = bool if is_flag else list[str] if is_repeatable else str
    option = typer.Option(
        declared,
        metavar=setting.kind.metavar or None,
        autocompletion=(lambda: setting.kind.metavar.split("|")) if "|" in setting.kind.metavar else None,
        show_default=False,
        help=f"{setting.about}{' Repeatable.' if is_repeatable else ''}{note}",
    )
    return inspect.Parameter(
        setting.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind | None, option]
    )


@command
@with_options(SETTINGS.values())
def syphon(
    config: Annotated[
        Path | None,
        typer.Option("--config", metavar="PATH", envvar=CONFIG_VARIABLE, help="TOML file with settings."),
    ] = None,
    check_config: Annotated[
        bool, typer.Option("--check-config", help="Print each setting and its origin; do not connect.")
    ] = False,
    is_dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Check the namespaces, rights and backlog; move nothing."),
    ] = False,
    **options: str | bool | list[str] | None,
) -> None:
    """Move the messages of the backlog queues to their destinations in the primary namespace.

    A setting is an option, an environment variable, or a line in the file of --config, in this order of precedence:
    --long-poll, SBCLIENT_SYPHON_LONG_POLL, long_poll. Any number of syphons may run at the same time. Events are logged
    to stderr as JSON, one per line.

    SIGTERM and SIGINT finish the transfers in flight and release the other messages; a second signal ends the process
    immediately. SIGUSR1 pauses, SIGUSR2 resumes, SIGHUP reads the credentials again.

    Exit status: 0 ended as asked, by a signal or a setting such as --until; 1 messages remain, would remain or be
    dead-lettered (--dry-run), or were not released in time; 2 the settings cannot be used; 3 the secondary is
    unreachable; 4 a credential lacks a right; 5 backlog queues do not exist; 130 and 143 ended by a second SIGINT or
    SIGTERM.

    Example: sbclient syphon --config syphon.toml --http-port 9464
    """
    configuration = configure(options, os.environ, read_settings_file(config) if config is not None else None)
    if check_config:
        _print_settings(configuration)
        return
    settings, progress = configuration.settings, Progress("starting")
    with _events_on_stderr(settings.log_level, progress):
        for warning in configuration.warnings:
            log.warning("worker.overridden", "{warning}", warning=warning)
        if is_dry_run:
            _print_dry_run(run(_dry_run(configuration), progress=progress))
            return
        report = run(_drain(configuration, progress), progress=progress, handles_signals=True)
    _print_report(report)
    if settings.until == "empty" and report.parked:
        raise typer.Exit(Exit.INCOMPLETE)


def _client(settings: WorkerSettings) -> ServiceBusClient:
    return open_client(settings.primary, settings.secondary, settings.pairing())


async def _dry_run(configuration: Configuration) -> DryRun:
    settings = replace(configuration.settings, provision=False)
    async with _client(settings) as client:
        return await dry_run(
            client,
            chosen_queues(client.pair, settings.queue),
            are_chosen=settings.queue is not None,
            entity=settings.probe_entity,
            sides=sides_of(client.pair, settings.primary, settings.secondary, configuration.origins),
        )


async def _drain(configuration: Configuration, progress: Progress) -> SyphonReport:
    """Run the worker to its end, and exit the process if it did not shut down in time."""
    settings, manager = configuration.settings, ServiceManager(os.environ)
    worker = SyphonWorker(settings, _client(settings), manager=manager, origins=configuration.origins)
    _handle_signals(worker, settings)
    showing = asyncio.ensure_future(_show(worker, progress))
    try:
        async with _http_port(worker, settings):
            report = await worker.run()
            if worker.is_late:
                _print_report(report)
                _exit_now(Exit.INCOMPLETE)
    finally:
        showing.cancel()
    return report


@asynccontextmanager
async def _http_port(worker: SyphonWorker, settings: WorkerSettings) -> AsyncIterator[None]:
    """Serve the HTTP endpoints of the worker if a port is set."""
    if settings.http_port is None:
        yield
        return
    from sbclient.worker.http_api import served  # loads h11

    async with served(worker, host=settings.http_host, port=settings.http_port):
        yield


async def _show(worker: SyphonWorker, progress: Progress) -> None:
    """Update the progress line."""
    drained = 0
    while True:
        await clock.sleep(REFRESH_S)
        before, drained = drained, worker.report().drained
        progress.show(f"{worker.line()}, {(drained - before) / REFRESH_S:,.0f} per second")


def _handle_signals(worker: SyphonWorker, settings: WorkerSettings) -> None:
    loop = asyncio.get_running_loop()
    received: list[signal.Signals] = []

    def end(number: signal.Signals) -> None:
        if received:
            _exit_now(128 + number)
        received.append(number)
        worker.stop(number.name)
        timer = threading.Timer(settings.shutdown_timeout + EXIT_GRACE_S, _exit_now, [int(Exit.INCOMPLETE)])
        timer.daemon = True
        timer.start()

    with suppress(NotImplementedError):  # Windows: Ctrl-C ends the loop
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, end, number)
        loop.add_signal_handler(signal.SIGHUP, worker.renew_credentials)
        loop.add_signal_handler(signal.SIGUSR1, worker.pause)
        loop.add_signal_handler(signal.SIGUSR2, worker.resume)
    startup_signals.release()


def _exit_now(status: int) -> NoReturn:
    """Exit without waiting for tasks and threads. Messages in flight are delivered again when their locks expire."""
    with suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(status)


def _print_settings(configuration: Configuration) -> None:
    rows = configuration.rows()
    for warning in configuration.warnings:
        print_note(f"warning: {warning}")
    width = max(len(one["name"]) for one in rows)
    lines = (f"{one['name']:{width}}  {one['value'] or '-':20}  {one['from']}" for one in rows)
    print_result({"settings": rows}, *lines)


def _print_dry_run(dry: DryRun) -> None:
    print_result(dry.content(), *dry.lines())
    if not dry.is_complete:
        raise typer.Exit(Exit.INCOMPLETE)


def _print_report(report: SyphonReport) -> None:
    dead = ", ".join(f"{number:,} {reason}" for reason, number in report.dead_lettered.items()) or "none"
    redirected = f" ({report.redirected:,} to the secondary)" if report.redirected else ""
    text = f"drained {report.drained:,}{redirected}   dead-lettered {dead}   parked {report.parked:,}"
    print_result(asdict(report), text)


class _Events(logging.Handler):
    """Prints each event on stderr, above the progress line."""

    def __init__(self, progress: Progress) -> None:
        super().__init__()
        self._progress = progress

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._progress.print_above(self.format(record))
        except Exception:
            self.handleError(record)  # logging must not raise


@contextmanager
def _events_on_stderr(level: str, progress: Progress) -> Iterator[None]:
    """Log events to stderr as JSON lines: time, level, event and facts."""
    import structlog  # `--help` and `--check-config` start faster without it

    handler = _Events(progress)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[
                structlog.stdlib.add_log_level,
                structlog.stdlib.ExtraAdder(),
                structlog.processors.TimeStamper(fmt="iso", utc=True),
            ],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.format_exc_info,
                structlog.processors.EventRenamer("message", replace_by="event_name"),
                structlog.processors.JSONRenderer(),
            ],
        )
    )
    logger = logging.getLogger("sbclient")
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(level.upper())
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)
