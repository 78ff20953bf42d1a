"""`sbclient peek`: prints messages without receiving them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Annotated

import typer

from sbclient.cli.common import Primary, command, open_client, print_json_lines, run
from sbclient.cli.message_json import message_line
from sbclient.cli.progress import Amount, Progress
from sbclient.cli.selection import Where, selector
from sbclient.cli.source import DeadLetter, Queue, Source, Subscription, Topic, TransferDeadLetter
from sbclient.message import ServiceBusReceivedMessage

PAGE = 100


@command
def peek(
    primary: Primary,
    queue: Queue = None,
    topic: Topic = None,
    subscription: Subscription = None,
    session: Annotated[
        str | None, typer.Option(help="Read only this session; * selects the next available session.")
    ] = None,
    dead_letter: DeadLetter = False,
    transfer_dead_letter: TransferDeadLetter = False,
    count: Annotated[int, typer.Option(min=1, help="The maximum number of messages to print.")] = 100,
    where: Where = None,
    first: Annotated[int, typer.Option("--from-sequence-number", min=0, help="Start at this sequence number.")] = 1,
) -> None:
    """Print messages as JSON Lines without receiving them, including locked, deferred and scheduled ones.

    \b
    Example: sbclient peek --queue orders --count 10
    Example: sbclient peek --queue orders --dead-letter
    Example: sbclient peek --topic prices --subscription eu \\
        --from-sequence-number 100
    """
    source = Source(queue, topic, subscription, session, dead_letter, transfer_dead_letter)
    progress = Progress("peeking", is_wanted=not sys.stdout.isatty())
    run(_peek(primary, source, count, first, selector(where), progress), progress=progress)


async def _peek(
    primary: str,
    source: Source,
    count: int,
    first: int,
    wanted: Callable[[ServiceBusReceivedMessage], bool] | None,
    progress: Progress,
) -> None:
    with source.explained_errors(primary):
        async with open_client(primary) as client, source.receiver(client) as receiver:
            seen, number = 0, first
            progress.follow(lambda: Amount(f"peeked {seen:,}", seen, count))
            while seen < count and (
                page := await receiver.peek_messages(
                    PAGE if wanted is not None else min(count - seen, PAGE), sequence_number=number
                )
            ):
                chosen = [message for message in page if wanted is None or wanted(message)][: count - seen]
                if chosen:
                    print_json_lines(message_line(message, is_dead_letter=source.is_sub_queue) for message in chosen)
                seen += len(chosen)
                number = page[-1].sequence_number + 1
