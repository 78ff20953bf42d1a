"""`sbclient backlog`: shows the backlog."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias

import typer

from sbclient import clock
from sbclient.backlog import Backlog, BacklogQueueView, DestinationView, together
from sbclient.cli.common import (
    BACKLOG_QUEUE_COUNT,
    Primary,
    PrimaryName,
    QueueCount,
    Secondary,
    cell,
    command,
    make_console,
    open_client,
    print_json,
    prints_json,
    proxy_options,
    required_secondary,
    run,
    seconds,
)
from sbclient.cli.progress import Progress
from sbclient.cli.table import table
from sbclient.options import PairedNamespaceOptions

if TYPE_CHECKING:
    from rich.text import Text

Sessions = Annotated[bool, typer.Option("--sessions", help="Include the queues of ordering=session.")]
Limit = Annotated[int, typer.Option(min=1, help="Largest number of messages to read from each queue.")]

LIMIT: Final = 100_000


@command
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
    worker: Annotated[
        str | None,
        typer.Option(metavar="URL", help="HTTP port of a worker, which knows what is delivered to the secondary."),
    ] = None,
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
        from sbclient.worker.inspection import SECONDARY, surveyed

        async with open_client(primary, required_secondary(secondary), _options(count, name, sessions)) as client:
            estimate = DrainEstimate()
            doctor = Doctor(client, primary, required_secondary(secondary), worker=worker, **proxy_options())
            surveyor = Backlog(client.pair, on_progress=lambda seen: progress.show(f"read {seen:,} messages"))
            with show_report(is_live=watch) as shown:
                while True:
                    views = await surveyed(client.pair, surveyor, doctor.sides[SECONDARY], limit)
                    report = estimate.report(clock.monotonic(), clock.now(), views)
                    if report["drained_per_second"] is not None and report["seconds_to_drain"] is None:
                        diagnosis = await doctor.explain(views, has_moved=False)
                        report["cause"] = diagnosis.cause
                        report["findings"] = [problem.content() for problem in diagnosis.problems]
                    report["redirected"] = await doctor.redirected()
                    is_last = not watch and (estimate.surveys > 1 or not sample or not report["depth"])
                    if watch or is_last:
                        shown(report)
                    if is_last:
                        return
                    await clock.sleep(sample or 2.0)

    run(work(), progress=progress)


def _options(count: int, name: str | None, with_sessions: bool) -> PairedNamespaceOptions:
    return PairedNamespaceOptions(
        backlog_queue_count=count,
        primary_name=name,
        provision="none",
        ordering="session" if with_sessions else "none",
    )


Report: TypeAlias = dict[str, Any]

SURVEYS_KEPT: Final = 10
"""The drain rate is measured from the first to the last of these surveys."""


class DrainEstimate:
    """Makes reports of successive surveys, with the drain rate between them."""

    def __init__(self) -> None:
        self._depths: deque[tuple[float, int]] = deque(maxlen=SURVEYS_KEPT)

    @property
    def surveys(self) -> int:
        """The number of surveys, up to `SURVEYS_KEPT`."""
        return len(self._depths)

    def report(self, at: float, now: float, views: Sequence[BacklogQueueView]) -> Report:
        """Return the report of a survey.

        Args:
            at: the monotonic time of the survey.
            now: the same time in seconds since 1970.
        """
        total = together(views)
        self._depths.append((at, total.depth))
        (began_at, before), (_, after) = self._depths[0], self._depths[-1]
        rate = (before - after) / (at - began_at) if at > began_at else None
        return {
            **_numbers(total, now),
            "is_complete": all(view.is_complete for view in views),
            "drained_per_second": None if rate is None else round(rate, 1),
            "cause": None,
            "findings": [],
            "redirected": {},
            "seconds_to_drain": 0 if not after else round(after / rate) if rate and rate > 0 else None,
            "destinations": {path: _numbers(part, now) for path, part in sorted(total.by_destination.items())},
            "queues": [
                {"queue": view.queue, "is_present": view.is_present, "is_complete": view.is_complete}
                | _numbers(view, now)
                for view in views
            ],
        }


def _numbers(view: DestinationView, now: float) -> Report:
    age = None if view.oldest_utc is None else (datetime.fromtimestamp(now, UTC) - view.oldest_utc).total_seconds()
    return {
        "depth": view.depth,
        "waiting": view.waiting,
        "parked": view.parked,
        "oldest_utc": view.oldest_utc,
        "oldest_age_seconds": None if age is None else max(0, round(age)),
        "dead_letters": dict(view.dead_letters.most_common()),
    }


@contextmanager
def show_report(*, is_live: bool) -> Iterator[Callable[[Report], None]]:
    """Yield a function that prints a report: as JSON, as tables, or as tables that update in place on a terminal."""
    if prints_json():
        yield print_json
        return
    from rich.console import Group  # only for tables: the command starts faster without them
    from rich.live import Live

    console = make_console()
    if is_live and console.is_terminal:
        with Live(console=console, auto_refresh=False) as live:
            yield lambda report: live.update(Group(*_tables(report, console.width)), refresh=True)
    else:
        yield lambda report: console.print(*_tables(report, console.width), sep="\n")


def _tables(report: Report, width: int) -> list[Text]:
    queues = [(queue["queue"], queue) for queue in report["queues"]]
    missing = sum(not queue["is_present"] for _, queue in queues)
    parts = [
        ("destination", list(report["destinations"].items())),
        ("backlog queue", [each for each in queues if _has_messages(each[1])]),
    ]
    tables = [backlog_table(title, rows, width) for title, rows in parts if rows]
    notes = [f"{path!r}: delivered to the secondary since {since}" for path, since in report["redirected"].items()]
    return [*tables, *map(cell, notes), cell(_verdict(report, len(queues), missing))]


def _has_messages(queue: Report) -> bool:
    return bool(queue["depth"] or queue["dead_letters"])


_NUMBERS: Final = ("waiting", "parked", "oldest")


def backlog_table(title: str, rows: Sequence[tuple[str, Report]], width: int) -> Text:
    """Return a table of destinations or queues."""
    cells = []
    for name, row in rows:
        more = "" if row.get("is_complete", True) else "+"
        age = row["oldest_age_seconds"]
        line = (
            name,
            f"{row['waiting']:,}{more}",
            f"{row['parked']:,}",
            "" if age is None else str(timedelta(seconds=age)),
            ", ".join(f"{number:,} {reason}" for reason, number in row["dead_letters"].items()),
        )
        cells.append([cell(each) for each in line])
    return table([title, *_NUMBERS, "dead letters"], cells, width, numbers=_NUMBERS)


def _verdict(report: Report, queues: int, missing: int) -> str:
    absent = f", {missing} of them missing" if missing else ""
    depth = f"{report['depth']:,}{'' if report['is_complete'] else ' or more'}"
    text = f"{depth} to move, in {queues} backlog queues{absent}"
    rate, left = report["drained_per_second"], report["seconds_to_drain"]
    if not report["depth"] or rate is None:
        return text
    if left is None:
        return f"{text}; the number does not fall: {report['cause']}"
    return f"{text}; falling by {rate:,.1f} per second, empty in about {timedelta(seconds=left)}"
