"""`sbclient syphon`: brings the backlog home, as a worker or until nothing is left."""

from __future__ import annotations

import asyncio
import logging
import signal
from dataclasses import asdict
from enum import StrEnum
from typing import Annotated, Any

import structlog
import typer

from sbclient.cli.common import AsJson, Exit, Primary, Secondary, open_client, print_json, run
from sbclient.errors import InvalidOperationError
from sbclient.options import PairedNamespaceOptions
from sbclient.syphon import Syphon


class Until(StrEnum):
    EMPTY = "empty"


def syphon(
    primary: Primary,
    secondary: Secondary = None,
    until: Annotated[Until | None, typer.Option(help="End when nothing is left that can be moved.")] = None,
    count: Annotated[int, typer.Option("--backlog-queue-count", min=1, help="How many backlog queues there are.")] = 10,
    name: Annotated[str | None, typer.Option("--primary-name", help="As the senders were paired with.")] = None,
    sessions: Annotated[bool, typer.Option("--sessions", help="The queues of ordering=session too.")] = False,
    provision: Annotated[bool, typer.Option(help="Make backlog queues that are missing; needs Manage.")] = False,
    as_json: AsJson = False,
) -> None:
    """Move the messages of the backlog queues to the entities they were sent to.

    SIGTERM and SIGINT let what is on its way arrive, give back the rest and end with status 0. Any number may run side
    by side. Events are logged to stderr as JSON, one a line. Exit status 1: with --until empty, something was left.

    Example: sbclient syphon --until empty
    """
    _log_to_stderr()
    options = PairedNamespaceOptions(
        backlog_queue_count=count,
        primary_name=name,
        ordering="session" if sessions else "none",
        provision="create" if provision else "none",
    )
    report = run("syphon", _syphon(primary, secondary, options, until))
    if as_json:
        print_json(report)
    else:
        dead = ", ".join(f"{number:,} {reason}" for reason, number in report["dead_lettered"].items()) or "none"
        typer.echo(f"drained {report['drained']:,}   dead-lettered {dead}   parked {report['parked']:,}")
    if until and report["parked"]:
        raise typer.Exit(Exit.INCOMPLETE)


async def _syphon(
    primary: str, secondary: str | None, options: PairedNamespaceOptions, until: Until | None
) -> dict[str, Any]:
    if not secondary:
        raise InvalidOperationError("the backlog is in the secondary namespace: give --secondary")
    loop = asyncio.get_running_loop()
    told_to_end = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told_to_end.set)
    async with open_client(primary, secondary, options) as client:
        worker = Syphon(client.pair, until="empty" if until else None)
        working = asyncio.ensure_future(worker.run())
        ending = asyncio.ensure_future(told_to_end.wait())
        await asyncio.wait({working, ending}, return_when=asyncio.FIRST_COMPLETED)
        ending.cancel()
        if not working.done():
            working.cancel()
        await asyncio.wait({working})
        if not working.cancelled():
            working.result()
        return asdict(worker.report())


def _log_to_stderr() -> None:
    """Events as JSON lines: time, level, event and facts."""
    handler = logging.StreamHandler()
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
                structlog.processors.JSONRenderer(),
            ],
        )
    )
    logger = logging.getLogger("sbclient")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
