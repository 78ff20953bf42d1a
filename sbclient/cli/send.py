"""`sbclient send`: sends the lines of a file or of stdin to a queue or topic."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from itertools import islice
from pathlib import Path
from typing import Annotated, Final, TextIO

import typer

from sbclient import clock
from sbclient.cli.bulk_sender import QUIET_S, BulkSender, Tally
from sbclient.cli.command import command_of
from sbclient.cli.common import (
    Exit,
    Primary,
    Secondary,
    command,
    explained_missing,
    interruptible,
    open_client,
    print_json,
    print_note,
    prints_json,
    resuming_line,
    run,
    seconds,
)
from sbclient.cli.completion import attributes, queues, topics
from sbclient.cli.failed_file import FailedFile
from sbclient.cli.feed import Feed, StandardInput
from sbclient.cli.message_json import message_of, named, set_by_name
from sbclient.cli.progress import Amount, Progress
from sbclient.cli.records import (
    UTF_8,
    Columns,
    Format,
    Record,
    decoded,
    format_of,
    json_objects,
    open_text,
    records_of,
)
from sbclient.client.client import ServiceBusClient
from sbclient.client.sender import ServiceBusSender
from sbclient.errors import InvalidOperationError, ServiceBusConnectionError, ServiceBusError
from sbclient.message import ServiceBusMessage
from sbclient.options import PairedNamespaceOptions

STDIN: Final = "-"

LARGE_BYTES: Final = 1 << 20
"""A smaller file is sent before the description of the entity would pay: the client for it takes 0.2 s to import."""

DESCRIPTION_S: Final = 5.0
"""How long to wait for the description of the entity, because a firewall may admit AMQP only."""

# A line of input is sent once, so it diverts as soon as the client's retries are over.
PAIRING: Final = PairedNamespaceOptions(failover_interval=timedelta(seconds=1), divert_while_suspect=True)


@dataclass(slots=True)
class Input:
    """The source of messages, and attributes for all of them.

    Attributes:
        source: a file name; `-` = stdin.
        form: None = by the suffix of the file; lines for stdin.
        settings: attributes of every message, by name, as text.
        body: the body of a single message, instead of any input.
        encoding: of the input.
        skipped: how many records to leave out at the start.
        lines: the lines of stdin.
        read: the number of records read.
    """

    source: str = STDIN
    form: Format | None = None
    columns: Columns = field(default_factory=Columns)
    settings: list[tuple[str, str]] = field(default_factory=list, repr=False)
    body: str | None = field(default=None, repr=False)
    encoding: str = UTF_8
    skipped: int = 0
    lines: StandardInput = field(init=False, repr=False)
    read: int = field(default=0, init=False)
    _file: TextIO | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        self.lines = StandardInput(self.encoding)

    @property
    def is_stdin(self) -> bool:
        return self.body is None and self.source == STDIN

    @property
    def may_have_many_keys(self) -> bool:
        """Whether the messages may have many session ids or partition keys."""
        path = Path(self.source)
        is_large = self.is_stdin or not path.is_file() or path.stat().st_size >= LARGE_BYTES
        has_keys = self.columns.session or self.columns.key or self.columns.others or self.form is Format.MESSAGES
        return self.body is None and is_large and bool(has_keys)

    def messages(self) -> Iterator[ServiceBusMessage]:
        """Read the messages. May block.

        Raises:
            InvalidOperationError: a line or a setting is invalid.
            OSError: the file cannot be read.
        """
        messages = iter([ServiceBusMessage(self.body)]) if self.body is not None else self._read()
        for message in islice(messages, self.skipped, None):
            self.read += 1
            for name, text in self.settings:
                set_by_name(message, name, text)
            yield message

    def _read(self) -> Iterator[ServiceBusMessage]:
        path = Path(self.source)
        name = "stdin" if self.is_stdin else path.name
        form = self.form or (Format.LINES if self.is_stdin else format_of(path))
        # Stdin belongs to the process and stays open.
        with nullcontext(self.lines) if self.is_stdin else open_text(path, self.encoding) as file:
            self._file = None if isinstance(file, StandardInput) else file
            lines = decoded(file, name, self.encoding)
            if form is Format.MESSAGES:
                if self.columns.any_named:
                    raise InvalidOperationError("the format 'messages' has no columns: use CSV or JSON Lines")
                yield from (message_of(place, fields) for place, fields in json_objects(name, lines))
            else:
                yield from map(_message, records_of(lines, name, form, self.columns))

    def expected(self) -> float | None:
        """Estimate the number of records from the part of the file that was read; None = unknown."""
        file = self._file
        if file is None or file.closed:
            return self.read if file is not None else None
        at, size = file.buffer.tell(), os.fstat(file.fileno()).st_size
        return self.read * size / at if at else None


def _message(record: Record) -> ServiceBusMessage:
    message = ServiceBusMessage(record.body, session_id=record.session_id, partition_key=record.partition_key)
    for name, text in record.others:
        set_by_name(message, name, text)
    return message


@dataclass(slots=True, repr=False)
class Options:
    """The options of the command."""

    primary: Primary
    secondary: Secondary = None
    queue: Annotated[str | None, typer.Option(autocompletion=queues, help="Send to this queue.")] = None
    topic: Annotated[str | None, typer.Option(autocompletion=topics, help="Send to this topic.")] = None
    body: Annotated[str | None, typer.Option(help="Send one message with this body and read no input.")] = None
    source: Annotated[str, typer.Option("--input", help="The file to read; - is stdin.")] = STDIN
    form: Annotated[
        Format | None, typer.Option("--format", help="Default: by the suffix of the file; lines for stdin.")
    ] = None
    encoding: Annotated[str, typer.Option(help="Encoding of the input, such as utf-16, latin-1 or cp1252.")] = UTF_8
    skip: Annotated[int, typer.Option(min=0, help="Leave out this many records at the start of the input.")] = 0
    body_column: Annotated[str | None, typer.Option(help="Column of the body. Default: the whole row.")] = None
    session_column: Annotated[str | None, typer.Option(help="Column of the session id.")] = None
    key_column: Annotated[str | None, typer.Option(help="Column of the partition key.")] = None
    column: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=COLUMN",
            autocompletion=attributes,
            help="Column of another attribute, such as subject, property.country, or property.price:=PRICE to read "
            "numbers. Repeatable.",
        ),
    ] = None
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            autocompletion=attributes,
            help="Attribute of every message: time_to_live=5m, property.country=IE or property.price:=5. Repeatable.",
        ),
    ] = None
    failed: Annotated[
        Path | None,
        typer.Option("--failed", help="Write messages that are not accepted to this file, for --format messages."),
    ] = None
    divert_anyway: Annotated[
        bool,
        typer.Option("--divert-anyway", help="Send to the backlog even if the primary does not answer from the start."),
    ] = False
    timeout: Annotated[
        float,
        typer.Option(
            parser=seconds(0.1),
            metavar="DURATION",
            show_default="60s",
            help="Time for each message, including a diversion.",
        ),
    ] = 60.0

    @property
    def is_typed(self) -> bool:
        """Whether a person types the input."""
        return self.body is None and self.source == STDIN and sys.stdin.isatty()

    def input(self) -> Input:
        """Return the source of the messages.

        Raises:
            InvalidOperationError: the options do not fit together.
        """
        if (self.queue is None) == (self.topic is None):
            raise InvalidOperationError("give either --queue or --topic")
        if self.divert_anyway and not self.secondary:
            raise InvalidOperationError("--divert-anyway has no effect without --secondary: leave it out")
        input_options = {
            "--input": self.source != STDIN,
            "--format": self.form,
            "--encoding": self.encoding != UTF_8,
            "--skip": self.skip,
            "--body-column": self.body_column,
            "--session-column": self.session_column,
            "--key-column": self.key_column,
            "--column": self.column,
        }
        if self.body is not None and (unused := [name for name, given in input_options.items() if given]):
            raise InvalidOperationError(f"{unused[0]} has no effect with --body: leave one of them out")
        columns = Columns(
            self.body_column, self.session_column, self.key_column, tuple(named("--column", self.column or []))
        )
        settings = named("--set", self.settings or [])
        return Input(self.source, self.form, columns, settings, self.body, self.encoding, self.skip)


class _Job:
    """One call of the command.

    Attributes:
        bulk: sends the messages.
    """

    def __init__(self, options: Options) -> None:
        self._options = options
        self.is_typed = options.is_typed
        self.progress = Progress("sending", is_wanted=not self.is_typed)
        self.bulk = BulkSender(self.progress, first=options.skip + 1)
        self._rest_s: float | None = None  # how long to wait for the rest of the input after a signal

    async def run(self) -> None:
        """Send the input, and after a failure write the rest of it to the file of failed messages."""
        options, bulk, given = self._options, self.bulk, self._options.input()
        self.progress.follow(lambda: Amount(f"accepted {bulk.tally.accepted:,}", bulk.tally.accepted, given.expected()))
        if self.is_typed:
            typer.echo("type one message per line; Ctrl-D ends", err=True)
        with nullcontext() if options.failed is None else FailedFile(options.failed) as bulk.failed_file:
            messages = Feed(given.messages())
            task = asyncio.current_task()
            assert task is not None  # a coroutine runs in a task

            def stop() -> None:
                self._rest_s = QUIET_S
                if not bulk.stop():
                    task.cancel()

            try:
                async with interruptible(stop):
                    await self._send_or_keep(given, messages)
            finally:
                messages.close()

    async def _send_or_keep(self, given: Input, messages: Feed[ServiceBusMessage]) -> None:
        is_sent = False
        try:
            await self._send(messages, has_many_keys=given.may_have_many_keys and not self.is_typed)
            is_sent = self._rest_s is None
        except asyncio.CancelledError:
            self._rest_s = 0.0  # a second signal: only what has been read
            raise
        finally:
            if not is_sent and given.is_stdin and not self.is_typed:  # a pipe cannot be read again
                await self.bulk.write_rest(messages, given.lines.rest(), quiet_s=self._rest_s)

    async def _send(self, messages: Feed[ServiceBusMessage], *, has_many_keys: bool) -> None:
        options, tally, began_at = self._options, self.bulk.tally, clock.monotonic()
        async with open_client(options.primary, options.secondary, PAIRING, timeout=options.timeout) as client:
            kind, name = ("topic", options.topic or "") if options.queue is None else ("queue", options.queue)
            new_sender = client.get_topic_sender if options.queue is None else client.get_queue_sender
            try:
                with explained_missing(options.primary, kind, name):
                    if options.secondary and not options.divert_anyway:
                        async with new_sender(name) as first:
                            await _check_primary(client, first)
                    partitioned = await _is_partitioned(client, kind, name) if has_many_keys else None
                    async with new_sender(name, partitioned=partitioned) as sender:
                        await self.bulk.send(sender, messages)
            finally:
                if options.secondary:
                    tally.diverted = sum(one.diverted for one in client.pair.status().entities.values())
                tally.seconds = round(clock.monotonic() - began_at, 3)


def _send(options: Options) -> None:
    """Send each line, JSON object or CSV row as a message. With a secondary, an outage diverts messages to its backlog.

    Messages with the same session or key are sent in the order of the input. A message that is invalid, such as one
    that is too large, is reported and sending continues; the exit status is then 1. Any other error ends the command
    with the status of the error. Ctrl-C waits for the messages in flight, a second Ctrl-C does not.

    \b
    Example: sbclient send --queue orders --input orders.csv \\
        --session-column OrderNo
    Example: sbclient send --queue orders --body hello --set subject=greeting
    Example: sbclient send --queue orders --format messages --input dead.jsonl \\
        --failed failed.jsonl
    """
    job = _Job(options)
    tally = job.bulk.tally
    try:
        run(job.run(), progress=job.progress, handles_signals=True)
    except typer.Exit:
        if tally.read or tally.unsent:
            _report(tally)
        if options.body is None and not prints_json():
            _show_rest(options, job)
        raise
    _report(tally)
    if tally.refused:
        raise typer.Exit(Exit.INCOMPLETE)


send = command(command_of(_send))


async def _is_partitioned(client: ServiceBusClient, kind: str, name: str) -> bool | None:
    """Return whether the entity is partitioned; None = unknown, such as without the right to read its description."""
    administration = client.administration
    try:
        async with clock.timeout(DESCRIPTION_S):
            found = await (administration.get_topic(name) if kind == "topic" else administration.get_queue(name))
    except (ServiceBusError, TimeoutError):  # the send raises what matters
        return None
    return found.enable_partitioning


async def _check_primary(client: ServiceBusClient, sender: ServiceBusSender) -> None:
    """Check that the primary answers: if its host name is misspelled, its messages must not go to the backlog.

    Raises:
        ServiceBusConnectionError: it does not.
        ServiceBusError: it rejects the sender.
    """
    await sender.create_message_batch()  # opens the link, and succeeds in an outage too
    if client.pair.status().never_reached:
        raise ServiceBusConnectionError(
            f"the primary {client.fully_qualified_namespace} does not answer, and nothing was sent: check its host "
            "name, or send to the backlog with --divert-anyway"
        )


def _show_rest(options: Options, job: _Job) -> None:
    """Print how to send the records that were not accepted."""
    bulk, tally, source, skip = job.bulk, job.bulk.tally, options.source, options.skip
    if not tally.read:
        return
    if source == STDIN:
        if options.failed is None and not job.is_typed:
            print_note("input that was read and not sent is lost; --failed FILE keeps it")
        return
    after = skip + tally.read
    if bulk.failed_file is not None and tally.failed:
        print_note(f"{bulk.failed_file.path} has the messages that were not accepted: send them with --format messages")
    elif bulk.first_failed_record is not None:
        after = bulk.first_failed_record - 1
        if again := tally.read - tally.failed - tally.refused - (after - skip):
            print_note(f"{again:,} messages after record {after:,} were accepted and will be sent again")
    print_note(f"records of {Path(source).name} after {after:,} were not sent; resume with:")
    print_note(f"  {resuming_line(skip=after, failed=None)}")  # the file of failed messages has content now


def _report(tally: Tally) -> None:
    if prints_json():
        print_json(asdict(tally))
        return
    failed = f"   failed {tally.failed:,} ({tally.in_doubt:,} in doubt)" if tally.failed else ""
    unsent = f"   unsent {tally.unsent:,}" if tally.unsent else ""
    typer.echo(
        f"accepted {tally.accepted:,}   diverted {tally.diverted:,}   refused {tally.refused:,}{failed}{unsent}   "
        f"in {tally.seconds} s",
        err=True,
    )
