"""`sbclient demo`: shows an outage, a failover and a recovery, and accounts for every message."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from random import Random
from typing import Annotated, Final

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.text import Text

from sbclient.cli import startup_signals
from sbclient.cli.common import Exit, cell, command, make_console, print_json, prints_json, terminable
from sbclient.cli.outage import (
    EPOCH,
    OUTAGE_AT_S,
    RECOVERY_AT_S,
    TRAFFIC_S,
    Account,
    Lane,
    OutageRun,
    file_lane,
    sample_lanes,
)
from sbclient.cli.records import Columns, read_records
from sbclient.cli.table import table
from sbclient.pairing.status import PairEvent
from sbclient.rules.failover import FailoverState
from sbclient.testing import run_virtual

MESSAGES = 2000

WATCHING_SPEED = 90.0
"""Virtual seconds per real second on a terminal."""

PAGE_SPEED = 6.0
"""Virtual seconds per real second with a page."""

_STATES: Final = {
    FailoverState.HEALTHY: ("to primary", "green"),
    FailoverState.SUSPECT: ("nowhere", "yellow"),
    FailoverState.FAILED_OVER: ("to backlog", "red"),
}
"""Where sends go in each state, and its colour."""

_PHASES: Final = {
    "primary down": "the primary goes down",
    "primary back": "the primary is back",
    "redirecting": "a syphon delivers the messages from the backlog to the queues of the same name in the secondary",
    "draining": "a syphon moves the messages from the backlog to the primary",
}
_EVENTS: Final = {
    "failover.suspected": "{}: the primary does not answer; if this lasts a minute, messages are diverted",
    "failover.engaged": "{}: a minute without an answer; messages go to the backlog",
    "failover.recovered": "{}: the primary answers pings; messages go to it again",
}

NEXT: Final = """
to go on:
  sbclient demo --page                     the same in a browser
  sbclient demo --input FILE.csv           your own data; --session-column NAME, --ordering session
  sbclient emulator                        this broker, for your own programs"""


@command
def demo(
    input_file: Annotated[
        Path | None,
        typer.Option("--input", help="Send the records of this file: lines, JSON Lines (.jsonl) or CSV (.csv)."),
    ] = None,
    body_column: Annotated[str | None, typer.Option(help="Column of the body. Default: the whole row.")] = None,
    session_column: Annotated[str | None, typer.Option(help="Column of the session id.")] = None,
    key_column: Annotated[str | None, typer.Option(help="Column of the partition key.")] = None,
    messages: Annotated[
        int | None,
        typer.Option(min=4, max=1_000_000, show_default=str(MESSAGES), help="Number of messages without --input."),
    ] = None,
    ordering: Annotated[
        str,
        typer.Option(
            metavar="none|session",
            autocompletion=lambda: ["none", "session"],
            help="Whether the order within sessions is kept.",
        ),
    ] = "none",
    lost_primary: Annotated[
        bool,
        typer.Option("--lost-primary", help="The primary never comes back: messages are delivered in the secondary."),
    ] = False,
    seed: Annotated[int, typer.Option(help="Seed that repeats a run exactly.")] = 1,
    page: Annotated[
        bool, typer.Option("--page", help="Serve a web page that shows the run at a slower speed, until Ctrl-C.")
    ] = False,
    page_port: Annotated[
        int | None,
        typer.Option(min=0, max=65_535, show_default="0", help="With --page: port of the page; 0 = any free one."),
    ] = None,
    speed: Annotated[
        float | None,
        typer.Option(
            min=1, max=1000, show_default=str(PAGE_SPEED), help="With --page: virtual seconds per real second."
        ),
    ] = None,
) -> None:
    """Send messages through an outage of the primary namespace and account for each one.

    Two namespaces of the bundled broker run in this process on virtual time. Exit status: 0 no message was lost; 1 a
    message was lost; 2 invalid input, or the port is in use; 130 interrupted before the end.

    Example: sbclient demo --input orders.csv --session-column OrderNo
    """
    startup_signals.release()
    if ordering not in ("none", "session"):
        raise typer.BadParameter(f"{ordering!r} is not one of 'none', 'session'", param_hint="--ordering")
    for name, given in (("--page-port", page_port), ("--speed", speed)):
        if given is not None and not page:
            raise typer.BadParameter("the option requires --page", param_hint=name)
    if page and lost_primary:
        raise typer.BadParameter("the option excludes --page", param_hint="--lost-primary")
    lanes = _lanes(input_file, Columns(body_column, session_column, key_column), messages, seed)
    if lost_primary:
        lanes = [lane for lane in lanes if not lane.is_transactional]
    outage = OutageRun(
        lanes,
        seed=seed,
        ordering="session" if ordering == "session" else "none",
        is_lost=lost_primary,
    )
    if page:
        account = _on_page(outage, page_port or 0, speed or PAGE_SPEED)
    elif prints_json():
        account = run_virtual(terminable(outage.run()), epoch=EPOCH)
        print_json(asdict(account))
    else:
        account = show(outage, make_console())
    if account.lost or account.altered or account.unexpected:
        raise typer.Exit(Exit.INCOMPLETE)


def _lanes(path: Path | None, columns: Columns, count: int | None, seed: int) -> list[Lane]:
    if path is None:
        if columns.any_named:
            raise typer.BadParameter("columns require a file: add --input", param_hint="--input")
        return sample_lanes(Random(seed), count or MESSAGES)
    if count is not None:
        raise typer.BadParameter(f"has no effect with --input {path}: leave it out", param_hint="--messages")
    records = list(read_records(path, columns))
    if not records:
        raise typer.BadParameter(f"{path} contains no message", param_hint="--input")
    return [file_lane(records)]


def _on_page(outage: OutageRun, port: int, speed: float) -> Account:
    """Run at a slower speed, show the run on a page, and keep the page until Ctrl-C."""
    from sbclient.cli.demo_page import DemoPage  # imports a server, which only --page needs

    console = make_console(stderr=prints_json())

    async def watched() -> Account:
        pair = outage.make_pair()
        async with DemoPage(outage, pair, speed, port) as shown:
            console.print(_story(outage))
            console.print(f"[bold]watch the run at http://localhost:{shown.port}/[/]   Ctrl-C ends it")
            account = await outage.run(pair=pair)
            if prints_json():
                print_json(asdict(account))
            _print_result(console, outage, account)
            console.print("the page shows the result; Ctrl-C ends it")
            await shown.until_interrupted()
        return account

    return run_virtual(terminable(watched()), speed=speed, epoch=EPOCH)


def show(outage: OutageRun, console: Console) -> Account:
    """Run and show the events: live on a terminal, else line by line."""
    seen = entered = 0
    console.print(_story(outage))
    with Live(console=console, auto_refresh=False, transient=True) as live:

        def watch() -> None:
            nonlocal seen, entered
            events, phases = outage.events()[seen:], outage.phases[entered:]
            lines = [(at_s, _PHASES[phase]) for at_s, phase in phases if phase in _PHASES]
            lines += [(event.at_utc.timestamp() - EPOCH, _event_text(event)) for event in events]
            for at_s, line in sorted(lines):
                console.print(Text.assemble((f"{_time(at_s)}  ", "dim"), cell(line)), highlight=False)
            seen, entered = seen + len(events), entered + len(phases)
            if console.is_terminal:
                live.update(Group(*_stage(outage, console.width)), refresh=True)

        speed = WATCHING_SPEED if console.is_terminal else None
        account = run_virtual(terminable(outage.run(watch=watch)), speed=speed, epoch=EPOCH)
    _print_result(console, outage, account)
    console.print(NEXT, highlight=False)
    return account


def _story(outage: OutageRun) -> Text:
    sent, queues = sum(len(lane.records) for lane in outage.lanes), len(outage.lanes)
    if outage.is_lost:
        return Text(
            f"{sent:,} messages go to {queues} queue{'s' * (queues > 1)} of a primary namespace, which is down from "
            f"{_time(OUTAGE_AT_S)} on and never comes back.\n"
            "The client sends them to backlog queues in a second namespace; a syphon moves them to queues of the same "
            "name there,\nand receivers take messages from both namespaces. Transactions, which are not diverted, are "
            "left out.\n"
        )
    return Text(
        f"{sent:,} messages go to {queues} queue{'s' * (queues > 1)} of a primary namespace, which is down from "
        f"{_time(OUTAGE_AT_S)} to {_time(RECOVERY_AT_S)}.\n"
        "Meanwhile the client sends them to backlog queues in a second namespace; afterwards a syphon moves them to "
        "the queues they were sent to.\n"
    )


def _event_text(event: PairEvent) -> str:
    known = _EVENTS.get(event.name)
    facts = ", ".join(f"{name} {value}" for name, value in event.facts.items())
    return known.format(event.path) if known else f"{event.path}: {event.name} {facts}"


def _print_result(console: Console, outage: OutageRun, account: Account) -> None:
    console.print()
    console.print(_table(outage, console.width))
    console.print(_verdict(account))


_NUMBERS: Final = ("sent", "accepted", "diverted", "waiting in backlog", "delivered", "refused", "refused tries")


def _stage(outage: OutageRun, width: int) -> list[Padding | Text]:
    until = "on" if outage.is_lost else f"to {_time(RECOVERY_AT_S)}"
    phases = f"outage from {_time(OUTAGE_AT_S)} {until}, virtual time"
    return [
        Text.assemble((f"{_time(outage.elapsed_s)} ", "bold"), (outage.phase, "bold magenta"), f"   {phases}"),
        Padding(ProgressBar(total=TRAFFIC_S, completed=min(outage.elapsed_s, TRAFFIC_S), width=72), (0, 0)),
        _table(outage, width),
    ]


def _table(outage: OutageRun, width: int) -> Text:
    rows = []
    waiting = outage.waiting()
    for lane in outage.lanes:
        tally = outage.tallies[lane.queue]
        words, colour = _STATES[outage.states.get(lane.queue, FailoverState.HEALTHY)]
        numbers = (
            len(tally.sent),
            len(tally.accepted),
            outage.diverted.get(lane.queue, 0),
            waiting[lane.queue],
            len(tally.delivered),
            tally.refused_messages.total(),
            tally.refused_tries.total(),
        )
        texts = [cell(lane.queue), cell(lane.label), Text(words, style=colour)]
        rows.append(texts + [Text(f"{each:,}") for each in numbers])
    return table(("queue", "traffic", "sends go", *_NUMBERS), rows, width, numbers=_NUMBERS)


def _verdict(account: Account) -> Text:
    good = not (account.lost or account.altered or account.unexpected)
    return Text.assemble(
        f"\nsent {account.sent:,}   accepted {account.accepted:,}   diverted {account.diverted:,}   "
        f"drained {account.drained:,}   delivered {account.delivered:,}   duplicates {account.duplicates:,}   ",
        (f"lost {account.lost:,}", "bold green" if good else "bold red"),
        f"\nrefused messages, which are invalid: {_by_class(account.refused_messages)}"
        f"\nrefused tries, which the senders repeated: {_by_class(account.refused_tries)}"
        f"\nseed {account.seed} repeats this run of {_time(account.virtual_seconds)} virtual minutes",
    )


def _by_class(counts: dict[str, int]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in counts.items()) or "none"


def _time(seconds: float) -> str:
    return f"{int(seconds) // 60:02}:{int(seconds) % 60:02}"
