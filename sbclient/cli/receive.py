"""`sbclient receive`: prints messages and settles them."""

from __future__ import annotations

import asyncio
import sys
from typing import Annotated

import typer

from sbclient.cli.common import (
    Exit,
    Primary,
    command,
    ends_with_reader,
    interruptible,
    is_interruption,
    open_client,
    print_note,
    prints_json,
    resuming_line,
    run,
    seconds,
)
from sbclient.cli.progress import Progress
from sbclient.cli.reception import Form, Reception, Settle
from sbclient.cli.selection import Where, selector
from sbclient.cli.source import DeadLetter, Queue, Source, Subscription, Topic, TransferDeadLetter


@command
def receive(
    primary: Primary,
    queue: Queue = None,
    topic: Topic = None,
    subscription: Subscription = None,
    session: Annotated[
        str | None, typer.Option(help="Read this session; * reads all available sessions in sequence.")
    ] = None,
    dead_letter: DeadLetter = False,
    transfer_dead_letter: TransferDeadLetter = False,
    sequence_number: Annotated[
        list[int] | None,
        typer.Option(metavar="N", help="Receive this deferred message. Repeatable."),
    ] = None,
    count: Annotated[int | None, typer.Option(min=1, help="Largest number of messages. Default: no limit.")] = None,
    wait: Annotated[
        float,
        typer.Option(
            parser=seconds(0.1), metavar="DURATION", show_default="5s", help="End after this time without a message."
        ),
    ] = 5.0,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Continue until interrupted.")] = False,
    settle: Annotated[Settle, typer.Option(help="How to settle each message after printing.")] = Settle.COMPLETE,
    reason: Annotated[str | None, typer.Option(help="Dead-letter reason, with --settle dead-letter.")] = None,
    where: Where = None,
    form: Annotated[
        Form, typer.Option("--format", help="Print JSON Lines for send, or only the bodies.")
    ] = Form.MESSAGES,
) -> None:
    """Receive messages and print one per line. Each message is settled after it is printed.

    With --settle abandon, messages stay locked until the end, so that each one is printed once. Exit status 1: some
    messages could not be settled and will be delivered again. With --where the other messages stay locked until the
    end and are then released, which counts as a delivery of them. Into a pipe, a message is settled when it was read.

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
        wanted=selector(where),
    )

    async def work() -> None:
        task = asyncio.current_task()
        assert task is not None  # a coroutine runs in a task
        with reception.source.explained_errors(primary):
            async with interruptible(task.cancel), ends_with_reader(), open_client(primary) as client:
                await reception.run(client, sequence_number or [])

    try:
        run(work(), progress=progress, handles_signals=True)
    except typer.Exit as end:
        left = None if count is None else count - reception.received
        if is_interruption(end) and not prints_json() and left != 0:
            print_note("resume with:")
            print_note(f"  {resuming_line(count=left)}")
        raise
    finally:
        if sys.stderr.isatty() and not prints_json():
            typer.echo(f"received {reception.received:,}", err=True)
    if reception.unsettled:
        raise typer.Exit(Exit.INCOMPLETE)
