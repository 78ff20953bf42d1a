"""`sbclient backlog`: what waits in the secondary namespace, and what to do with what cannot come home."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from sbclient.backlog import Backlog, BacklogQueueView
from sbclient.cli.common import AsJson, Exit, Primary, Secondary, Yes, open_client, print_json, run
from sbclient.clock import Clock
from sbclient.errors import InvalidOperationError
from sbclient.options import PairedNamespaceOptions

backlog = typer.Typer(help="Look into the backlog queues, and deal with their dead letters.", rich_markup_mode=None)

Queues = Annotated[int, typer.Option("--backlog-queue-count", min=1, help="How many backlog queues the pair has.")]
Name = Annotated[str | None, typer.Option("--primary-name", help="As the pair was opened with.")]
Reason = Annotated[str | None, typer.Option(help="Only those with this reason.")]
One = Annotated[str | None, typer.Option("--backlog-queue", help="Only those of this backlog queue.")]
ByName = Annotated[bool, typer.Option("--sessions", help="The queues of ordering=session too.")]

_SHOWN = (
    "queue",
    "is_present",
    "depth",
    "waiting",
    "parked",
    "dead_letters",
    "destinations",
    "oldest_utc",
    "is_complete",
)


@backlog.command()
def show(
    primary: Primary,
    secondary: Secondary = None,
    count: Queues = 10,
    name: Name = None,
    sessions: ByName = False,
    limit: Annotated[int, typer.Option(min=1, help="Look at so many messages of each queue.")] = 100_000,
    sample: Annotated[float, typer.Option(min=0, help="Watch for so many seconds, to estimate the time to drain.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Print depth, oldest age, destinations and dead letters of each backlog queue.

    Example: sbclient backlog show --sample 10
    """

    async def work() -> dict[str, Any]:
        async with open_client(primary, _needed(secondary), _options(count, name, sessions)) as client:
            surveyor = Backlog(client.pair)
            views = await surveyor.survey(limit=limit)
            report = _report(views)
            if sample:
                await Clock().sleep(sample)
                drained = report["depth"] - sum(view.depth for view in await surveyor.survey(limit=limit))
                report["seconds_to_drain"] = round(report["depth"] * sample / drained) if drained > 0 else None
            return report

    report = run("backlog show", work())
    if as_json:
        print_json(report)
    else:
        _print(report, with_estimate=bool(sample))


@backlog.command()
def resubmit(
    primary: Primary,
    secondary: Secondary = None,
    count: Queues = 10,
    name: Name = None,
    reason: Reason = None,
    queue: One = None,
    yes: Yes = False,
) -> None:
    """Put dead letters back into their backlog queue, for the syphon to try again; asks first.

    Example: sbclient backlog resubmit --reason DestinationRefused
    """
    _ask(f"Put the dead letters {_which(reason, queue)} back into the backlog?", yes)

    async def work() -> int:
        async with open_client(primary, _needed(secondary), _options(count, name, False)) as client:
            return await Backlog(client.pair).resubmit(reason=reason, queue=queue)

    typer.echo(f"put back {run('backlog resubmit', work()):,}")


@backlog.command()
def purge(
    primary: Primary,
    secondary: Secondary = None,
    count: Queues = 10,
    name: Name = None,
    sessions: ByName = False,
    reason: Reason = None,
    queue: One = None,
    yes: Yes = False,
) -> None:
    """Delete dead letters for good; asks first. What still waits is never touched.

    Example: sbclient backlog purge --reason TTLExpiredException
    """
    _ask(f"Delete the dead letters {_which(reason, queue)} for good?", yes)

    async def work() -> int:
        async with open_client(primary, _needed(secondary), _options(count, name, sessions)) as client:
            return await Backlog(client.pair).purge(reason=reason, queue=queue)

    typer.echo(f"deleted {run('backlog purge', work()):,}")


def _needed(secondary: str | None) -> str:
    if not secondary:
        raise InvalidOperationError("the backlog is in the secondary namespace: give --secondary")
    return secondary


def _options(count: int, name: str | None, with_sessions: bool) -> PairedNamespaceOptions:
    return PairedNamespaceOptions(
        backlog_queue_count=count,
        primary_name=name,
        provision="none",
        ordering="session" if with_sessions else "none",
    )


def _ask(question: str, is_answered: bool) -> None:
    if not is_answered and not typer.confirm(question, err=True):
        raise typer.Exit(Exit.INCOMPLETE)


def _which(reason: str | None, queue: str | None) -> str:
    return f"with reason {reason or 'of any kind'} of {queue or 'every backlog queue'}"


def _report(views: list[BacklogQueueView]) -> dict[str, Any]:
    oldest = min((view.oldest_utc for view in views if view.oldest_utc), default=None)
    return {
        "depth": sum(view.depth for view in views),
        "oldest_age_seconds": round((datetime.fromtimestamp(Clock().now(), UTC) - oldest).total_seconds())
        if oldest
        else None,
        "destinations": dict(sum((view.destinations for view in views), Counter[str]()).most_common()),
        "dead_letters": dict(sum((view.dead_letters for view in views), Counter[str]()).most_common()),
        "queues": [{name: getattr(view, name) for name in _SHOWN} for view in views],
    }


def _print(report: dict[str, Any], *, with_estimate: bool) -> None:
    console = Console()
    table = Table(box=None, pad_edge=False)
    table.add_column("backlog queue")
    for column in ("waiting", "parked", "dead letters"):
        table.add_column(column, justify="right")
    table.add_column("oldest since")
    for queue in report["queues"]:
        more = "" if queue["is_complete"] else "+"
        table.add_row(
            queue["queue"],
            *(
                (f"{queue['waiting']:,}{more}", f"{queue['parked']:,}", f"{sum(queue['dead_letters'].values()):,}")
                if queue["is_present"]
                else ("missing", "", "")
            ),
            f"{queue['oldest_utc']:%Y-%m-%d %H:%M:%S}" if queue["oldest_utc"] else "",
        )
    console.print(table)
    for title, counts in (("for", report["destinations"]), ("dead-lettered", report["dead_letters"])):
        for what, number in counts.items():
            console.print(f"{number:,} {title} {what}", highlight=False)
    age = report["oldest_age_seconds"]
    console.print(f"{report['depth']:,} to bring home" + (f", the oldest for {timedelta(seconds=age)}" if age else ""))
    if with_estimate:
        left = report["seconds_to_drain"]
        console.print(f"drained in about {timedelta(seconds=left)}" if left is not None else "it is not getting less")
