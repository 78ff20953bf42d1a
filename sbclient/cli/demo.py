"""`sbclient demo`: an outage, a failover and a recovery, live, with a final account."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from random import Random
from typing import Annotated

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from sbclient.cli import startup_signals
from sbclient.cli.common import Exit, make_console, print_json, reported_errors
from sbclient.cli.outage import HEALED_AT_S, OUTAGE_AT_S, TRAFFIC_S, Account, Lane, Story, file_lane, sample_lanes
from sbclient.cli.records import Columns, read_records
from sbclient.options import SyphonLimits
from sbclient.rules.failover import FailoverState
from sbclient.testing import run_virtual

MESSAGES = 2000

WATCHING_SPEED = 90.0
"""Virtual seconds in a real one when somebody watches."""

PAGE_SPEED = 6.0
"""The same with a page, on which more is to be seen."""

WATCHED_DRAIN_S = 300.0
"""With a page the syphon is slow enough that the way home can be watched: it would move all messages in this time."""

_COLOURS = {FailoverState.HEALTHY: "green", FailoverState.SUSPECT: "yellow", FailoverState.FAILED_OVER: "red"}


def demo(
    input_file: Annotated[
        Path | None,
        typer.Option("--input", help="Send what is in this file: lines, JSON Lines (.jsonl) or CSV (.csv)."),
    ] = None,
    body_column: Annotated[str | None, typer.Option(help="The column that is the body, else the row.")] = None,
    session_column: Annotated[str | None, typer.Option(help="The column that is the session id.")] = None,
    key_column: Annotated[str | None, typer.Option(help="The column that is the partition key.")] = None,
    messages: Annotated[
        int | None, typer.Option(min=4, max=1_000_000, show_default=str(MESSAGES), help="How many, without --input.")
    ] = None,
    ordering: Annotated[str, typer.Option(help="'none', or 'session' to keep the order inside sessions.")] = "none",
    seed: Annotated[int, typer.Option(help="Repeats a run exactly.")] = 1,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the account as one JSON object; errors too (those on stderr).")
    ] = False,
    page: Annotated[
        bool, typer.Option("--page", help="Serve a web page to watch it on, at a pace to watch, until Ctrl-C.")
    ] = False,
    page_port: Annotated[
        int | None,
        typer.Option(min=0, max=65_535, show_default="0", help="With --page: its port; 0 = any that is free."),
    ] = None,
    speed: Annotated[
        float | None,
        typer.Option(
            min=1, max=1000, show_default=str(PAGE_SPEED), help="With --page: virtual seconds that pass in a real one."
        ),
    ] = None,
) -> None:
    """Send through an outage of the primary namespace, and account for every message.

    Two namespaces of the bundled broker run inside this process, on virtual time. Exit status: 0 nothing was lost,
    1 something was, 2 the input or the port cannot be used, 130 interrupted before the end.

    Example: sbclient demo --input orders.csv --session-column OrderNo
    """
    with reported_errors("demo", as_json=as_json):
        startup_signals.release()
        if ordering not in ("none", "session"):
            raise typer.BadParameter(f"{ordering!r} is not one of 'none', 'session'", param_hint="--ordering")
        for name, given in (("--page-port", page_port), ("--speed", speed)):
            if given is not None and not page:
                raise typer.BadParameter("it is for the page: add --page", param_hint=name)
        lanes = _lanes(input_file, Columns(body_column, session_column, key_column), messages, seed)
        story = Story(
            lanes,
            seed=seed,
            ordering="session" if ordering == "session" else "none",
            limits=_watchable(lanes) if page else None,
        )
        if page:
            account = _on_page(story, page_port or 0, speed or PAGE_SPEED, as_json=as_json)
        elif as_json:
            account = run_virtual(story.tell())
            print_json(asdict(account))
        else:
            account = _shown(story, make_console())
    if account.lost or account.altered or account.unexpected:
        raise typer.Exit(Exit.INCOMPLETE)


def _lanes(path: Path | None, columns: Columns, count: int | None, seed: int) -> list[Lane]:
    if path is None:
        if columns.any_named:
            raise typer.BadParameter("columns are those of a file: add --input", param_hint="--input")
        return sample_lanes(Random(seed), count or MESSAGES)
    if count is not None:
        raise typer.BadParameter(f"all of {path} is sent: leave it out", param_hint="--messages")
    records = list(read_records(path, columns))
    if not records:
        raise typer.BadParameter(f"{path} holds no message", param_hint="--input")
    return [file_lane(records)]


def _watchable(lanes: list[Lane]) -> SyphonLimits:
    return SyphonLimits(max_messages_per_second=sum(len(lane.records) for lane in lanes) / WATCHED_DRAIN_S)


def _on_page(story: Story, port: int, speed: float, *, as_json: bool) -> Account:
    """Run the story at a pace to watch, show it on a page, and keep that until Ctrl-C."""
    from sbclient.cli.demo_page import DemoPage  # a server, which no other demo needs

    console = make_console(stderr=as_json)

    async def told() -> Account:
        pair = story.make_pair()
        async with DemoPage(story, pair, speed, port) as shown:
            console.print(f"[bold]watch it at http://localhost:{shown.port}/[/]   Ctrl-C ends it")
            account = await story.tell(pair=pair)
            if as_json:
                print_json(asdict(account))
            console.print(_table(story))
            console.print(_verdict(account))
            console.print("the page shows how it ended; Ctrl-C ends it")
            await shown.until_interrupted()
        return account

    return run_virtual(told(), speed=speed)


def _shown(story: Story, console: Console) -> Account:
    """Run the story and show it: live on a terminal, else line by line."""
    told = 0
    with Live(console=console, auto_refresh=False, transient=True) as live:

        def watch() -> None:
            nonlocal told
            events = story.events()
            for event in events[told:]:
                facts = ", ".join(f"{name} {value}" for name, value in event.facts.items())
                console.print(f"[dim]{_time(story.elapsed_s)}[/] {event.name} [bold]{event.path}[/] {facts}")
            told = len(events)
            if console.is_terminal:
                live.update(Group(*_stage(story)), refresh=True)

        account = run_virtual(story.tell(watch=watch), speed=WATCHING_SPEED if console.is_terminal else None)
    console.print(_table(story))
    console.print(_verdict(account))
    return account


def _stage(story: Story) -> list[Table | Padding | Text]:
    phases = f"outage from {_time(OUTAGE_AT_S)} to {_time(HEALED_AT_S)}, virtual time"
    return [
        Text.assemble((f"{_time(story.elapsed_s)} ", "bold"), (story.phase, "bold magenta"), f"   {phases}"),
        Padding(ProgressBar(total=TRAFFIC_S, completed=min(story.elapsed_s, TRAFFIC_S), width=72), (0, 0)),
        _table(story),
    ]


def _table(story: Story) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("queue", "traffic", "state"):
        table.add_column(name)
    for name in ("sent", "accepted", "refused", "diverted", "delivered"):
        table.add_column(name, justify="right")
    for lane in story.lanes:
        tally = story.tallies[lane.queue]
        state = story.states.get(lane.queue, FailoverState.HEALTHY)
        table.add_row(
            lane.queue,
            lane.label,
            Text(state.value.replace("_", " "), style=_COLOURS[state]),
            f"{tally.sent:,}",
            f"{len(tally.accepted):,}",
            f"{tally.refused.total():,}",
            f"{story.diverted.get(lane.queue, 0):,}",
            f"{len(tally.delivered):,}",
        )
    return table


def _verdict(account: Account) -> Text:
    refused = ", ".join(f"{count:,} {name}" for name, count in account.refused.items()) or "none"
    good = not (account.lost or account.altered or account.unexpected)
    return Text.assemble(
        f"\nsent {account.sent:,}   accepted {account.accepted:,}   diverted {account.diverted:,}   "
        f"drained {account.drained:,}   delivered {account.delivered:,}   duplicates {account.duplicates:,}   ",
        (f"lost {account.lost:,}", "bold green" if good else "bold red"),
        f"\nrefused tries, each told to its sender, which sent again what may be accepted: {refused}"
        f"\nseed {account.seed} repeats this run of {_time(account.virtual_seconds)} virtual minutes",
    )


def _time(seconds: float) -> str:
    return f"{int(seconds) // 60:02}:{int(seconds) % 60:02}"
