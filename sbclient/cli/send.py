"""`sbclient send`: the lines of a file or of stdin to a queue or topic."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from sbclient.cli.common import AsJson, Exit, Primary, Secondary, open_client, print_json, run
from sbclient.cli.records import Columns, Format, Record, format_of, records_of
from sbclient.clock import Clock
from sbclient.errors import InvalidOperationError, ServiceBusError
from sbclient.message import ServiceBusMessage
from sbclient.sender import ServiceBusSender

IN_FLIGHT = 500


def send(
    primary: Primary,
    secondary: Secondary = None,
    queue: Annotated[str | None, typer.Option(help="Send to this queue.")] = None,
    topic: Annotated[str | None, typer.Option(help="Send to this topic.")] = None,
    input_file: Annotated[str, typer.Option("--input", help="A file; - is stdin.")] = "-",
    form: Annotated[Format | None, typer.Option("--format", help="By default what the file's suffix says.")] = None,
    body_column: Annotated[str | None, typer.Option(help="The column that is the body, else the row.")] = None,
    session_column: Annotated[str | None, typer.Option(help="The column that is the session id.")] = None,
    key_column: Annotated[str | None, typer.Option(help="The column that is the partition key.")] = None,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds for each message, a diversion included.")] = 60.0,
    as_json: AsJson = False,
) -> None:
    """Send each line, JSON object or CSV row as a message; with a secondary namespace, through its outage too.

    Messages with one session or key leave in the order of the file. Exit status 1: some were refused, and told.

    Example: sbclient send --queue orders --input orders.csv --session-column OrderNo
    """
    columns = Columns(body_column, session_column, key_column)
    report = run("send", _send(primary, secondary, queue, topic, input_file, form, columns, timeout, as_json))
    if as_json:
        print_json(report)
    if report["refused"]:
        raise typer.Exit(Exit.INCOMPLETE)


async def _send(
    primary: str,
    secondary: str | None,
    queue: str | None,
    topic: str | None,
    source: str,
    form: Format | None,
    columns: Columns,
    timeout: float,
    is_quiet: bool,
) -> dict[str, Any]:
    if (queue is None) == (topic is None):
        raise InvalidOperationError("give one of --queue and --topic")
    clock = Clock()
    began_at = clock.monotonic()
    async with open_client(primary, secondary, timeout=timeout) as client:
        sender = client.get_queue_sender(queue) if queue is not None else client.get_topic_sender(topic or "")
        async with sender:
            with _progress(is_quiet) as progress:
                accepted, refused = await _send_all(sender, _records(source, form, columns), progress)
        diverted = client.pair.counts["diverted"] if secondary else 0
    seconds = round(clock.monotonic() - began_at, 3)
    if not is_quiet:
        typer.echo(f"accepted {accepted:,}   diverted {diverted:,}   refused {refused:,}   in {seconds} s", err=True)
    return {"accepted": accepted, "diverted": diverted, "refused": refused, "seconds": seconds}


async def _send_all(sender: ServiceBusSender, records: Iterator[Record], progress: Progress) -> tuple[int, int]:
    """Send with a bounded number on their way; a refusal is told with the line's number and the rest goes on."""
    task = progress.add_task("sending", total=None)
    room = asyncio.Semaphore(IN_FLIGHT)
    accepted = refused = 0

    async def send_one(number: int, message: ServiceBusMessage) -> None:
        nonlocal accepted, refused
        try:
            await sender.send_messages(message)
            accepted += 1
        except ServiceBusError as error:
            refused += 1
            progress.console.print(f"record {number}: {type(error).__name__}: {error}", markup=False, highlight=False)
        finally:
            room.release()
            progress.update(task, advance=1, description=f"accepted {accepted:,}")

    async with asyncio.TaskGroup() as group:
        for number, record in enumerate(records, start=1):
            await room.acquire()
            message = ServiceBusMessage(record.body, session_id=record.session_id, partition_key=record.partition_key)
            group.create_task(send_one(number, message))
    return accepted, refused


def _records(source: str, form: Format | None, columns: Columns) -> Iterator[Record]:
    if source == "-":
        yield from records_of(iter(sys.stdin), "stdin", form or Format.LINES, columns)
        return
    path = Path(source)
    with path.open(encoding="utf-8-sig", newline="") as lines:
        yield from records_of(lines, path.name, form or format_of(path), columns)


def _progress(is_quiet: bool) -> Progress:
    console = Console(stderr=True)
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        TimeElapsedColumn(),
        console=console,
        disable=is_quiet or not console.is_terminal,
    )
