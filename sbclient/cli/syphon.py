"""`sbclient syphon`: brings the backlog home, as a service or until nothing is left."""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any, Final, NoReturn

import structlog
import typer

from sbclient.cli import startup_signals
from sbclient.cli.common import AsJson, Exit, open_client, print_json, reported_errors, run
from sbclient.cli.progress import Progress
from sbclient.client.client import ServiceBusClient
from sbclient.clock import Clock
from sbclient.settings.table import FLAG, Setting
from sbclient.syphon.syphon import SyphonReport
from sbclient.worker.configuration import CONFIG_VARIABLE, Configuration, configure
from sbclient.worker.dry_run import DryRun, dry_run
from sbclient.worker.http_api import served
from sbclient.worker.inspection import chosen_queues
from sbclient.worker.service import SyphonWorker
from sbclient.worker.settings import SETTINGS, WorkerSettings
from sbclient.worker.settings_file import read_settings_file
from sbclient.worker.systemd import ServiceManager

SHOWN_EACH_S: Final = 1.0
LAST_RESORT_S: Final = 2.0
"""How much later than its time for the end the process ends, though its event loop does not turn any more."""


def syphon(
    config: Annotated[
        Path | None,
        typer.Option("--config", metavar="PATH", envvar=CONFIG_VARIABLE, help="A TOML file with settings."),
    ] = None,
    check_config: Annotated[
        bool, typer.Option("--check-config", help="Print the settings and where each comes from; connect to nothing.")
    ] = False,
    is_dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Look at both namespaces, the rights and the backlog; move nothing."),
    ] = False,
    as_json: AsJson = False,
    **options: str | bool | None,
) -> None:
    """Move the messages of the backlog queues to the entities they were sent to.

    Each setting is an option, an environment variable, or a line in the file named by --config, and the first of these
    holds: --long-poll is SBCLIENT_SYPHON_LONG_POLL in the environment and long_poll in the file. Any number may run
    side by side. Events are logged to stderr as JSON, one a line.

    SIGTERM and SIGINT let what is on its way arrive and give back the rest; a second one ends it at once. SIGUSR1
    pauses, SIGUSR2 resumes.

    Exit status: 0 told to end, or nothing is left; 1 something was left, would stay (--dry-run), or could not be given
    back in time; 2 the settings cannot be used; 3 the secondary cannot be reached; 4 a credential does not allow it;
    5 backlog queues do not exist; 130 and 143 ended at once by a second SIGINT or SIGTERM.

    Example: sbclient syphon --config syphon.toml --http-port 9464
    """
    with reported_errors("syphon", as_json=as_json):
        found = configure(options, os.environ, read_settings_file(config) if config is not None else None)
    if check_config:
        _tell_settings(found, as_json=as_json)
        return
    settings, progress = found.settings, Progress("starting")
    with _events_on_stderr(settings.log_level, progress):
        if is_dry_run:
            dry = run("syphon", _looked(settings), as_json=as_json, progress=progress)
            _tell_dry_run(dry, as_json=as_json)
            return
        work = _worked(settings, progress, as_json=as_json)
        report = run("syphon", work, as_json=as_json, progress=progress, handles_signals=True)
    _tell_report(report, as_json=as_json)
    if settings.until == "empty" and report.parked:
        raise typer.Exit(Exit.INCOMPLETE)


# -- the options, from the table of settings -------------------------------------------------------------------------


def _with_options_of_the_table(command: Callable[..., None]) -> None:
    """Give the command a parameter for each setting, as if they were written there."""
    written = inspect.signature(command, eval_str=True)
    parameters = [one for one in written.parameters.values() if one.kind is not inspect.Parameter.VAR_KEYWORD]
    parameters += [_parameter(setting) for setting in SETTINGS.values()]
    keywords = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in parameters]
    vars(command)["__signature__"] = written.replace(parameters=keywords)
    command.__annotations__ = {one.name: one.annotation for one in keywords}


def _parameter(setting: Setting) -> inspect.Parameter:
    """An option; its value is judged with those from elsewhere, not here."""
    shown = setting.shown(setting.default)
    note = f" [default: {shown}]" if shown else f" [env: {setting.variable}]" if setting.is_secret else ""
    is_flag = setting.kind is FLAG
    declared = setting.option + (f"/--no-{setting.option.removeprefix('--')}" if is_flag else "")
    kind: Any = bool if is_flag else str
    option = typer.Option(
        declared,
        metavar=setting.kind.metavar or None,
        show_default=False,
        help=f"{setting.about}{note}",
    )
    return inspect.Parameter(
        setting.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind | None, option]
    )


_with_options_of_the_table(syphon)


# -- what it does ----------------------------------------------------------------------------------------------------


def _client(settings: WorkerSettings) -> ServiceBusClient:
    return open_client(settings.primary, settings.secondary, settings.pairing())


async def _looked(settings: WorkerSettings) -> DryRun:
    settings = replace(settings, provision=False)
    async with _client(settings) as client:
        queues = chosen_queues(client.pair, settings.queue)
        return await dry_run(client, queues, are_chosen=settings.queue is not None, entity=settings.probe_entity)


async def _worked(settings: WorkerSettings, progress: Progress, *, as_json: bool) -> SyphonReport:
    """Run the worker to its end; ends the process if something of it still hangs then."""
    clock = Clock()
    worker = SyphonWorker(settings, _client(settings), clock=clock, manager=ServiceManager(os.environ))
    _listen_to_signals(worker, settings)
    showing = asyncio.ensure_future(_show(worker, progress, clock))
    try:
        async with served(worker, settings, clock):
            report = await worker.run()
            if worker.is_late:
                _tell_report(report, as_json=as_json)
                _leave(Exit.INCOMPLETE)
    finally:
        showing.cancel()
    return report


async def _show(worker: SyphonWorker, progress: Progress, clock: Clock) -> None:
    """Tell whoever watches how it stands."""
    drained = 0
    while True:
        await clock.sleep(SHOWN_EACH_S)
        before, drained = drained, worker.report().drained
        progress.show(f"{worker.line()}, {(drained - before) / SHOWN_EACH_S:,.0f} a second")


def _listen_to_signals(worker: SyphonWorker, settings: WorkerSettings) -> None:
    loop = asyncio.get_running_loop()
    heard: list[signal.Signals] = []

    def end(number: signal.Signals) -> None:
        if heard:
            _leave(128 + number)
        heard.append(number)
        worker.stop(number.name)
        last_resort = threading.Timer(settings.shutdown_timeout + LAST_RESORT_S, _leave, [int(Exit.INCOMPLETE)])
        last_resort.daemon = True
        last_resort.start()

    with suppress(NotImplementedError):  # Windows has no handlers; there Ctrl-C ends the loop
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, end, number)
        loop.add_signal_handler(signal.SIGUSR1, worker.pause)
        loop.add_signal_handler(signal.SIGUSR2, worker.resume)
    startup_signals.release()


def _leave(status: int) -> NoReturn:
    """End the process now, whatever still runs in it. What was not given back comes again when its lock ends."""
    with suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(status)


# -- what it tells ---------------------------------------------------------------------------------------------------


def _tell_settings(found: Configuration, *, as_json: bool) -> None:
    told = found.told()
    if as_json:
        print_json({"settings": told})
        return
    width = max(len(one["name"]) for one in told)
    for one in told:
        typer.echo(f"{one['name']:{width}}  {one['value'] or '-':20}  {one['from']}")


def _tell_dry_run(found: DryRun, *, as_json: bool) -> None:
    if as_json:
        print_json(found.told())
    else:
        for line in found.lines():
            typer.echo(line)
    if not found.is_all_well:
        raise typer.Exit(Exit.INCOMPLETE)


def _tell_report(report: SyphonReport, *, as_json: bool) -> None:
    if as_json:
        print_json(asdict(report))
        return
    dead = ", ".join(f"{number:,} {reason}" for reason, number in report.dead_lettered.items()) or "none"
    typer.echo(f"drained {report.drained:,}   dead-lettered {dead}   parked {report.parked:,}")


class _Events(logging.Handler):
    """Each event is a line on stderr, above what moves there."""

    def __init__(self, progress: Progress) -> None:
        super().__init__()
        self._progress = progress

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._progress.note(self.format(record))
        except Exception:
            self.handleError(record)  # as every handler does: nobody's work fails for a line that cannot be written


@contextmanager
def _events_on_stderr(level: str, progress: Progress) -> Iterator[None]:
    """Log events as JSON lines for as long as the context lasts: time, level, event and facts."""
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
