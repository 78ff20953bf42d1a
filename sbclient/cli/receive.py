"""`sbclient receive`: messages to stdout, settled once they are printed."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from sbclient.cli.common import AsJson, Exit, Primary, open_client, run
from sbclient.cli.progress import Progress
from sbclient.cli.reception import Form, Reception, Settle
from sbclient.cli.source import DeadLetter, Queue, Source, Subscription, Topic, TransferDeadLetter


def receive(
    primary: Primary,
    queue: Queue = None,
    topic: Topic = None,
    subscription: Subscription = None,
    session: Annotated[
        str | None, typer.Option(help="From this session; * is each one that is available, one after another.")
    ] = None,
    dead_letter: DeadLetter = False,
    transfer_dead_letter: TransferDeadLetter = False,
    sequence_number: Annotated[
        list[int] | None, typer.Option(metavar="N", help="This deferred message. Repeatable; all of them or none.")
    ] = None,
    count: Annotated[int | None, typer.Option(min=1, help="At most so many; by default all there are.")] = None,
    wait: Annotated[float, typer.Option(min=0.1, help="Seconds without a message after which it ends.")] = 5.0,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until it is interrupted.")] = False,
    settle: Annotated[Settle, typer.Option(help="What becomes of each message once it is printed.")] = Settle.COMPLETE,
    reason: Annotated[str | None, typer.Option(help="The reason, with --settle dead-letter.")] = None,
    form: Annotated[
        Form, typer.Option("--format", help="JSON Lines that send takes, or the bodies alone.")
    ] = Form.MESSAGES,
    as_json: AsJson = False,
) -> None:
    """Receive messages and print each on a line; it is settled after it was printed, and never lost between.

    Those given back with --settle abandon are held until the end, so that each is printed once. Exit status 1: some
    could not be settled and come again.

    \b
    Example: sbclient receive --queue orders --count 10
    Example: sbclient receive --queue orders --follow --format lines
    Example: sbclient receive --queue visits --session '*'
    Example: sbclient receive --queue orders --dead-letter > dead.jsonl
    """
    progress = Progress("receiving", is_wanted=not sys.stdout.isatty())
    reception = Reception(
        source=Source(queue, topic, subscription, session, dead_letter, transfer_dead_letter),
        count=count,
        wait_s=None if follow else wait,
        settle=settle,
        reason=reason,
        form=form,
        progress=progress,
    )

    async def work() -> None:
        with reception.source.advising():
            async with open_client(primary) as client:
                await reception.run(client, sequence_number or [])

    try:
        run("receive", work(), as_json=as_json, progress=progress)
    finally:
        if sys.stderr.isatty() and not as_json:
            typer.echo(f"received {reception.received:,}", err=True)
    if reception.unsettled:
        raise typer.Exit(Exit.INCOMPLETE)
