"""`sbclient send`: the lines of a file or of stdin to a queue or topic."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import typer

from sbclient.cli.bulk_sender import Shipment, Tally
from sbclient.cli.common import AsJson, Exit, Primary, Secondary, open_client, print_json, run
from sbclient.cli.failed_file import FailedFile
from sbclient.cli.feed import Feed, StandardInput
from sbclient.cli.message_json import message_of, named, set_by_name
from sbclient.cli.progress import Progress
from sbclient.cli.records import Columns, Format, Record, format_of, json_objects, records_of
from sbclient.clock import Clock
from sbclient.errors import InvalidOperationError
from sbclient.message import ServiceBusMessage
from sbclient.options import PairedNamespaceOptions

STDIN: Final = "-"
FAILOVER_INTERVAL: Final = timedelta(seconds=1)


class Form(StrEnum):
    """How the input is cut into messages; `messages` is what `receive` and `peek` print."""

    LINES = "lines"
    JSONL = "jsonl"
    CSV = "csv"
    MESSAGES = "messages"


@dataclass(frozen=True, slots=True)
class Input:
    """Where messages come from, and what they are given besides.

    Attributes:
        source: a file's name, `-` for stdin.
        form: None = what the file's suffix says.
        settings: attributes of every message, by name, as text.
        body: the one message's body, instead of any input.
        lines: of stdin.
    """

    source: str = STDIN
    form: Form | None = None
    columns: Columns = field(default_factory=Columns)
    settings: list[tuple[str, str]] = field(default_factory=list, repr=False)
    body: str | None = field(default=None, repr=False)
    lines: StandardInput = field(default_factory=StandardInput, init=False, repr=False)

    @property
    def is_stdin(self) -> bool:
        """Whether what is read is nowhere else."""
        return self.body is None and self.source == STDIN

    @property
    def file(self) -> Path | None:
        """The file that is read, if it is one."""
        return None if self.body is not None or self.is_stdin else Path(self.source)

    def messages(self) -> Iterator[ServiceBusMessage]:
        """Read them. May block.

        Raises:
            InvalidOperationError: a line or a setting cannot be used.
            OSError: the file cannot be read.
        """
        for message in [ServiceBusMessage(self.body)] if self.body is not None else self._read():
            for name, text in self.settings:
                set_by_name(message, name, text)
            yield message

    def _read(self) -> Iterator[ServiceBusMessage]:
        path = Path(self.source)
        name = "stdin" if self.is_stdin else path.name
        form = self.form or Form("lines" if self.is_stdin else format_of(path))
        # Stdin is not closed here: it is the process's own.
        with nullcontext(self.lines) if self.is_stdin else path.open(encoding="utf-8-sig", newline="") as lines:
            if form is Form.MESSAGES:
                if self.columns.any_named:
                    raise InvalidOperationError("messages have no columns: use CSV or JSON Lines")
                yield from (message_of(place, fields) for place, fields in json_objects(name, lines))
            else:
                yield from map(_message, records_of(lines, name, Format(form), self.columns))


def _message(record: Record) -> ServiceBusMessage:
    message = ServiceBusMessage(record.body, session_id=record.session_id, partition_key=record.partition_key)
    for name, text in record.others:
        set_by_name(message, name, text)
    return message


def send(
    primary: Primary,
    secondary: Secondary = None,
    queue: Annotated[str | None, typer.Option(help="Send to this queue.")] = None,
    topic: Annotated[str | None, typer.Option(help="Send to this topic.")] = None,
    body: Annotated[str | None, typer.Option(help="Send this one message, and read nothing.")] = None,
    source: Annotated[str, typer.Option("--input", help="A file; - is stdin.")] = STDIN,
    form: Annotated[
        Form | None, typer.Option("--format", help="By default what the file's suffix says; of stdin, lines.")
    ] = None,
    body_column: Annotated[str | None, typer.Option(help="The column that is the body, else the row.")] = None,
    session_column: Annotated[str | None, typer.Option(help="The column that is the session id.")] = None,
    key_column: Annotated[str | None, typer.Option(help="The column that is the partition key.")] = None,
    column: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=COLUMN",
            help="The column that is another attribute, as subject or property.country. Repeatable.",
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="For every message, as time_to_live=5m, property.country=IE or property.price:=5. Repeatable.",
        ),
    ] = None,
    failed: Annotated[
        Path | None,
        typer.Option("--failed", help="A file for what is not accepted, to be sent again with --format messages."),
    ] = None,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds for each message, a diversion included.")] = 60.0,
    as_json: AsJson = False,
) -> None:
    """Send each line, JSON object or CSV row as a message; with a secondary namespace, through its outage too.

    Messages with one session or key leave in the order of the input. A message that is refused for what it is, as one
    that is too large, is told and the rest goes on: exit status 1. Any other error ends it, with the status of the
    error.

    \b
    Example: sbclient send --queue orders --input orders.csv --session-column OrderNo
    Example: sbclient send --queue orders --body hello --set subject=greeting
    Example: sbclient send --queue orders --format messages --input dead.jsonl --failed failed.jsonl
    """
    is_typed = body is None and source == STDIN and sys.stdin.isatty()
    progress = Progress("sending", is_wanted=not is_typed)
    shipment = Shipment(progress)

    async def work() -> None:
        if (queue is None) == (topic is None):
            raise InvalidOperationError("give one of --queue and --topic")
        of_input = {
            "--input": source != STDIN,
            "--format": form,
            "--body-column": body_column,
            "--session-column": session_column,
            "--key-column": key_column,
            "--column": column,
        }
        if body is not None and (unread := [name for name, given in of_input.items() if given]):
            raise InvalidOperationError(f"--body is the whole message, and nothing is read: leave {unread[0]} out")
        columns = Columns(body_column, session_column, key_column, tuple(named("--column", column or [])))
        given = Input(source, form, columns, named("--set", settings or []), body)
        if is_typed:
            typer.echo("reading lines from the terminal, each is a message; Ctrl-D ends", err=True)
        with nullcontext() if failed is None else FailedFile(failed, given.file) as shipment.failed:
            messages = Feed(given.messages())
            try:
                await _send(primary, secondary, queue, topic, messages, shipment, timeout)
            except (Exception, asyncio.CancelledError) as error:
                if given.is_stdin and not is_typed:  # what wrote it may have it no more
                    is_interrupted = isinstance(error, asyncio.CancelledError)
                    await shipment.keep_rest(messages, given.lines.rest(), is_interrupted=is_interrupted)
                raise
            finally:
                messages.close()

    try:
        run("send", work(), as_json=as_json, progress=progress)
    except typer.Exit:
        tally = shipment.tally
        if tally.read or tally.unsent:
            _report(tally, as_json)
        if tally.read and body is None and not as_json:
            if source != STDIN:
                typer.echo(f"nothing of {Path(source).name} after record {tally.read:,} was sent", err=True)
            elif failed is None and not is_typed:
                typer.echo("what was read ahead of stdin is not sent; --failed FILE keeps it and the rest", err=True)
        raise
    _report(shipment.tally, as_json)
    if shipment.tally.refused:
        raise typer.Exit(Exit.INCOMPLETE)


def _report(tally: Tally, as_json: bool) -> None:
    if as_json:
        print_json(asdict(tally))
        return
    failed = f"   failed {tally.failed:,} ({tally.in_doubt:,} in doubt)" if tally.failed else ""
    unsent = f"   unsent {tally.unsent:,}" if tally.unsent else ""
    typer.echo(
        f"accepted {tally.accepted:,}   diverted {tally.diverted:,}   refused {tally.refused:,}{failed}{unsent}   "
        f"in {tally.seconds} s",
        err=True,
    )


async def _send(
    primary: str,
    secondary: str | None,
    queue: str | None,
    topic: str | None,
    messages: AsyncIterator[ServiceBusMessage],
    shipment: Shipment,
    timeout: float,
) -> None:
    clock = Clock()
    began_at = clock.monotonic()
    # A line is read once: what the primary has refused after all retries goes to the backlog, and soon the rest does.
    options = PairedNamespaceOptions(failover_interval=FAILOVER_INTERVAL, divert_while_suspect=True)
    async with open_client(primary, secondary, options, timeout=timeout) as client:
        sender = client.get_queue_sender(queue) if queue is not None else client.get_topic_sender(topic or "")
        try:
            async with sender:
                await shipment.send(sender, messages)
        finally:
            shipment.tally.diverted = (
                sum(entity.diverted for entity in client.pair.status().entities.values()) if secondary else 0
            )
            shipment.tally.seconds = round(clock.monotonic() - began_at, 3)
