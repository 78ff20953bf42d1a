"""`sbclient backlog`: shows the backlog."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from sbclient import clock
from sbclient.backlog import Backlog, BacklogQueueView
from sbclient.cli.backlog_report import DrainEstimate, show_report
from sbclient.cli.common import (
    BACKLOG_QUEUE_COUNT,
    AsJson,
    Primary,
    PrimaryName,
    QueueCount,
    Secondary,
    open_client,
    proxy_options,
    required_secondary,
    run,
    seconds,
)
from sbclient.cli.progress import Progress
from sbclient.errors import MessagingEntityNotFoundError
from sbclient.options import PairedNamespaceOptions

Sessions = Annotated[bool, typer.Option("--sessions", help="Include the queues of ordering=session.")]
Limit = Annotated[int, typer.Option(min=1, help="Largest number of messages to read from each queue.")]

LIMIT: Final = 100_000


def backlog(
    primary: Primary,
    secondary: Secondary = None,
    count: QueueCount = BACKLOG_QUEUE_COUNT,
    name: PrimaryName = None,
    sessions: Sessions = False,
    limit: Limit = LIMIT,
    sample: Annotated[
        float,
        typer.Option(
            parser=seconds(),
            show_default="2s",
            metavar="DURATION",
            help="Time between two surveys that estimate the time to drain; 0 = one survey.",
        ),
    ] = 2.0,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Repeat with --sample between surveys until interrupted.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Print the messages of each backlog queue by destination, their age, and an estimate of the time to drain them.

    Messages that a syphon has locked count as waiting. An empty backlog is surveyed once.

    \b
    Example: sbclient backlog
    Example: sbclient backlog --json --sample 10
    Example: sbclient backlog --watch
    """
    progress = Progress("surveying the backlog", is_wanted=not watch)

    async def work() -> None:
        from sbclient.worker.diagnosis import Doctor  # loads the AMQP transport

        async with open_client(primary, required_secondary(secondary), _options(count, name, sessions)) as client:
            estimate = DrainEstimate()
            doctor = Doctor(client, primary, required_secondary(secondary), **proxy_options())
            surveyor = Backlog(client.pair, on_progress=lambda seen: progress.show(f"read {seen:,} messages"))
            with show_report(as_json=as_json, is_live=watch) as shown:
                while True:
                    views = await _survey(surveyor, limit)
                    report = estimate.report(clock.monotonic(), clock.now(), views)
                    if report["drained_per_second"] is not None and report["seconds_to_drain"] is None:
                        report["cause"] = (await doctor.explain(views, has_moved=False)).cause
                    is_last = not watch and (estimate.surveys > 1 or not sample or not report["depth"])
                    if watch or is_last:
                        shown(report)
                    if is_last:
                        return
                    await clock.sleep(sample or 2.0)

    run("backlog", work(), as_json=as_json, progress=progress)


async def _survey(surveyor: Backlog, limit: int) -> list[BacklogQueueView]:
    """Survey the backlog.

    Raises:
        MessagingEntityNotFoundError: no backlog queue exists, so the pair's options may be wrong.
    """
    views = await surveyor.survey(limit=limit)
    if not any(view.is_present for view in views):
        raise MessagingEntityNotFoundError(
            f"none of the {len(views)} backlog queues {views[0].queue} … {views[-1].queue} exists: set --primary-name "
            "and --backlog-queue-count as in the options of the senders, whose first pairing creates the queues"
        )
    return views


def _options(count: int, name: str | None, with_sessions: bool) -> PairedNamespaceOptions:
    return PairedNamespaceOptions(
        backlog_queue_count=count,
        primary_name=name,
        provision="none",
        ordering="session" if with_sessions else "none",
    )
