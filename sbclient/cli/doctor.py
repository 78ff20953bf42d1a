"""`sbclient doctor`: finds out why the messages of a pair do not move, and what to do next."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from sbclient.cli.common import (
    Exit,
    command,
    open_client,
    print_note,
    print_result,
    proxy_options,
    run,
    seconds,
    status_of,
)
from sbclient.cli.progress import Progress
from sbclient.cli.syphon import with_options
from sbclient.worker.configuration import CONFIG_VARIABLE, Configuration, configure
from sbclient.worker.settings import SETTINGS
from sbclient.worker.settings_file import read_settings_file

if TYPE_CHECKING:
    from sbclient.worker.diagnosis import Diagnosis

SETTINGS_USED: Final = (
    "primary",
    "primary_file",
    "secondary",
    "secondary_file",
    "primary_name",
    "backlog_queue_count",
    "sessions",
    "probe_entity",
    "redirect_after",
)


@command
@with_options([SETTINGS[name] for name in SETTINGS_USED])
def doctor(
    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            metavar="PATH",
            envvar=CONFIG_VARIABLE,
            help="Settings of a worker. Without it, the credentials are checked as those of an application that sends.",
        ),
    ] = None,
    worker: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="HTTP port of a worker, such as http://127.0.0.1:9464. Default: that of the settings.",
        ),
    ] = None,
    sample: Annotated[
        float,
        typer.Option(
            parser=seconds(),
            metavar="DURATION",
            show_default="2s",
            help="How long to watch whether messages leave the backlog.",
        ),
    ] = 2.0,
    **options: str | bool | list[str] | None,
) -> None:
    """Find out why the messages of a pair do not move. The first line is the cause; the last ones say what to do.

    Checks both namespaces step by step, the rights, the backlog queues, the destinations, the syphon and the clocks.
    Sends and receives no message.

    Exit status: 0 no problem found; 1 a problem; 3 a namespace is unreachable; 4 a credential is rejected or lacks a
    right; 5 an entity does not exist.

    \b
    Example: sbclient doctor
    Example: sbclient doctor --json --probe-entity orders
    """
    configuration = configure(options, os.environ, read_settings_file(config) if config is not None else None)
    settings = configuration.settings
    if worker is None and settings.http_port:
        host = settings.http_host if settings.http_host not in ("0.0.0.0", "::") else "127.0.0.1"
        worker = f"http://{host}:{settings.http_port}"
    for warning in configuration.warnings:
        print_note(f"warning: {warning}")
    work = _examine(configuration, worker, sample, is_sender=config is None)
    found = run(work, progress=Progress("examining the pair"))
    print_result(found.content(), *found.lines())
    if found.problems:
        error = found.problems[0].error
        raise typer.Exit(Exit.INCOMPLETE if error is None else status_of(error) or Exit.INCOMPLETE)


async def _examine(configuration: Configuration, worker: str | None, sample_s: float, *, is_sender: bool) -> Diagnosis:
    from sbclient.worker.diagnosis import Doctor  # loads the AMQP transport

    settings = configuration.settings
    async with open_client(settings.primary, settings.secondary, settings.pairing()) as client:
        examined = Doctor(
            client,
            settings.primary,
            settings.secondary,
            entity=settings.probe_entity,
            worker=worker,
            is_sender=is_sender,
            http_proxy=proxy_options().get("http_proxy"),
            origins={side: configuration.origins[side] for side in ("primary", "secondary")},
        )
        return await examined.examine(sample_s=sample_s)
