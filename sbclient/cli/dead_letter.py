"""`sbclient dead-letter`: lists, shows, resubmits and purges dead letters of entities and of backlog queues."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from datetime import datetime
from functools import partial
from typing import Annotated, Any, Final, TypeVar

import typer

from sbclient.cli.command import command_of
from sbclient.cli.common import (
    BACKLOG_QUEUE_COUNT,
    Primary,
    PrimaryName,
    QueueCount,
    Secondary,
    Yes,
    cell,
    command,
    confirm,
    explained_missing,
    make_console,
    open_namespace,
    print_json,
    print_json_lines,
    print_line,
    prints_json,
    required_secondary,
    run,
)
from sbclient.cli.completion import queues
from sbclient.cli.message_json import message_line
from sbclient.cli.progress import Progress
from sbclient.cli.selection import Before, MessageSelection, Since, Where, sql_filter
from sbclient.cli.table import table
from sbclient.entities import EntityAddress, EntityKind, QueueProperties, TopicProperties
from sbclient.errors import InvalidOperationError, MessagingEntityNotFoundError, ServiceBusError
from sbclient.formats.message_json import timestamp_text
from sbclient.message import ServiceBusReceivedMessage
from sbclient.rules.backlog import backlog_queue_names, primary_name_of, session_backlog_queue_names
from sbclient.rules.connection_string import parse_connection_string
from sbclient.rules.entity_path import entity_of
from sbclient.transport.base import Transport
from sbclient.transport.dead_letters import DeadLetters

T = TypeVar("T")

dead_letter = typer.Typer(
    help="List, show, resubmit or purge the dead letters of an entity or of the backlog queues.",
    epilog="Example: sbclient dead-letter list orders",
    rich_markup_mode=None,
)

Entity = Annotated[
    str | None,
    typer.Argument(autocompletion=queues, show_default=False, help="A queue, or topic/Subscriptions/subscription."),
]
OfBacklog = Annotated[bool, typer.Option("--backlog", help="All backlog queues of the pair instead of one entity.")]
Reason = Annotated[str | None, typer.Option(help="Only dead letters with this reason.")]
Session = Annotated[str | None, typer.Option(help="Only dead letters of this session.")]
Number = Annotated[list[int] | None, typer.Option("--sequence-number", metavar="N", help="Only this one. Repeatable.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only count the dead letters.")]

UNNAMED: Final = "(none)"
"""In counts, for a dead letter without a reason."""

_QUESTION: Final = {"resubmit": "Send {} again?", "purge": "Delete {}?"}
_DONE: Final = {"resubmit": "resubmitted", "purge": "deleted"}


class _Job:
    """What one call works on.

    Attributes:
        of_backlog: whether these are the backlog queues.
        queues: paths of the queues or subscriptions.
    """

    def __init__(
        self,
        command: str,
        primary: Primary,
        entity: Entity = None,
        secondary: Secondary = None,
        of_backlog: OfBacklog = False,
        count: QueueCount = BACKLOG_QUEUE_COUNT,
        name: PrimaryName = None,
        where: Where = None,
        reason: Reason = None,
        since: Since = None,
        before: Before = None,
        session: Session = None,
        number: Number = None,
    ) -> None:
        self.selection = MessageSelection(
            where=sql_filter(where),
            reason=reason,
            since=since,
            before=before,
            session=session,
            numbers=frozenset(number) if number else None,
        )
        if (entity is None) is not of_backlog:
            raise InvalidOperationError("give either an entity, such as orders, or --backlog")
        self.command = command
        self.of_backlog = of_backlog
        self.progress = Progress("reading the dead letters")
        self._primary = primary
        self._entity = entity
        self._connection_string = required_secondary(secondary) if of_backlog else primary
        if entity is None:
            name = name or primary_name_of(parse_connection_string(primary).namespace)
            self.queues = backlog_queue_names(name, count)
            if command != "resubmit":  # the order of sessions would change
                self.queues += session_backlog_queue_names(name, count)
        else:
            self.queues = [entity]

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Transport]:
        """Open the namespace, and explain the error of a missing entity."""
        async with open_namespace(self._connection_string) as transport:
            if self._entity is None:
                yield transport
                return
            top, _, subscription = self._entity.partition("/Subscriptions/")
            names = [top, subscription] if subscription else [top]
            with explained_missing(self._primary, "subscription" if subscription else "queue", *names):
                yield transport

    async def found(self) -> dict[str, list[ServiceBusReceivedMessage]]:
        """Return the selected dead letters by queue."""
        async with self.open() as transport:
            found = {}
            for queue in self.queues:
                with suppress(*([MessagingEntityNotFoundError] if self._entity is None else [])):
                    found[queue] = await DeadLetters(transport, queue).select(self.selection)
            if not found:
                raise MessagingEntityNotFoundError(
                    f"none of the {len(self.queues)} backlog queues {self.queues[0]} … {self.queues[-1]} exists: set "
                    "--primary-name and --backlog-queue-count as in the options of the senders"
                )
            return found

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return run(work, progress=self.progress)


def _command(short_help: str) -> Callable[[Callable[..., None]], None]:
    """Make a command of a function of a `_Job` and options of its own. The command also has those of the job."""

    def register(function: Callable[..., None]) -> None:
        name = function.__name__.rstrip("_")
        dead_letter.command(name, short_help=short_help)(command(command_of(function, partial(_Job, name))))

    return register


@_command("Print one line for each dead letter.")
def list_(job: _Job) -> None:
    """Print number, time, reason, session and message id of each dead letter, without its body.

    \b
    Example: sbclient dead-letter list orders
    Example: sbclient dead-letter list orders --reason MaxDeliveryCountExceeded \\
        --since 2h
    Example: sbclient dead-letter list --backlog
    """
    found = job.run(job.found())
    rows = [_row(queue, message) for queue, messages in found.items() for message in messages]
    if prints_json():
        for row in rows:
            print_json(row)
        return
    if rows:
        columns = [column for column in rows[0] if len(job.queues) > 1 or column != "queue"]
        cells = [[cell(_shown(row[column])) for column in columns] for row in rows]
        console = make_console()
        names = [column.replace("_", " ") for column in columns]
        console.print(table(names, cells, console.width, numbers=["sequence number"]))
    print_line(_text(_reasons(found)))


def _shown(value: Any) -> str:
    return timestamp_text(value) if isinstance(value, datetime) else "" if value is None else str(value)


@_command("Print dead letters with their bodies.")
def show(job: _Job) -> None:
    """Print whole dead letters as JSON Lines, as `sbclient peek` does.

    \b
    Example: sbclient dead-letter show orders --reason broken
    """

    async def work() -> None:
        for messages in (await job.found()).values():
            if messages:
                print_json_lines(message_line(message, is_dead_letter=True) for message in messages)

    job.run(work())


@_command("Send dead letters to their entity again; asks first.")
def resubmit(job: _Job, dry_run: DryRun = False, yes: Yes = False) -> None:
    """Send dead letters to their queue again, or to the topic of their subscription; asks first.

    Each dead letter is deleted only after its copy was accepted. With --backlog they go back to their backlog queue,
    from which the syphon forwards them; those of the queues for sessions stay, because their order would change.

    \b
    Example: sbclient dead-letter resubmit orders \\
        --reason MaxDeliveryCountExceeded --dry-run
    Example: sbclient dead-letter resubmit orders --where "price > 5" --yes
    Example: sbclient dead-letter resubmit --backlog --reason DestinationRefused \\
        --yes
    """

    async def work(transport: Transport, queue: str, done: Callable[[int], None]) -> int:
        drops_copies = not job.of_backlog and await _may_drop_copies(transport, queue)
        dead = DeadLetters(transport, queue, on_done=done)
        return await dead.resubmit(job.selection, detects_duplicates=drops_copies)

    _confirm_and_do(job, work, is_dry=dry_run, yes=yes)


@_command("Delete dead letters; asks first.")
def purge(job: _Job, dry_run: DryRun = False, yes: Yes = False) -> None:
    """Delete dead letters; asks first. Other messages are not touched.

    \b
    Example: sbclient dead-letter purge orders --before 30d --dry-run
    Example: sbclient dead-letter purge --backlog --reason TTLExpiredException \\
        --yes
    """

    async def work(transport: Transport, queue: str, done: Callable[[int], None]) -> int:
        return await DeadLetters(transport, queue, on_done=done).purge(job.selection)

    _confirm_and_do(job, work, is_dry=dry_run, yes=yes)


def _confirm_and_do(
    job: _Job,
    work: Callable[[Transport, str, Callable[[int], None]], Awaitable[int]],
    *,
    is_dry: bool,
    yes: bool,
) -> None:
    """Count the selected dead letters, ask for confirmation, and do the work."""
    found = job.run(job.found())
    reasons, done = _reasons(found), 0

    def count(number: int) -> None:
        nonlocal done
        done += number
        job.progress.show(f"{_DONE[job.command]} {done:,}")

    async def do() -> None:
        async with job.open() as transport:
            for queue, messages in found.items():
                if messages:
                    await work(transport, queue, count)

    if not is_dry and reasons:
        confirm(_QUESTION[job.command].format(_text(reasons)), yes=yes)
        job.run(do())
    if prints_json():
        print_json({"found": dict(reasons.most_common()), "done": done, "is_dry_run": is_dry})
    elif is_dry or not reasons:
        print_line(f"found {_text(reasons)}")
    else:
        typer.echo(f"{_DONE[job.command]} {done:,}")


async def _may_drop_copies(transport: Transport, path: str) -> bool:
    """Return whether the entity that copies go to detects duplicates, or may do so, if the key lacks Manage."""
    target = entity_of(path)
    is_subscription = target.casefold() != path.casefold()
    kind = EntityKind.TOPIC if is_subscription else EntityKind.QUEUE
    try:
        found = await transport.administration.get(EntityAddress(kind, (target,)))
    except ServiceBusError:
        return True
    return not isinstance(found, QueueProperties | TopicProperties) or bool(found.requires_duplicate_detection)


def _row(queue: str, message: ServiceBusReceivedMessage) -> dict[str, Any]:
    return {
        "queue": queue,
        "sequence_number": message.sequence_number,
        "enqueued_time_utc": message.enqueued_time_utc,
        "reason": message.dead_letter_reason,
        "session_id": message.session_id,
        "message_id": message.message_id,
        "description": message.dead_letter_error_description,
    }


def _reasons(found: dict[str, list[ServiceBusReceivedMessage]]) -> Counter[str]:
    return Counter(message.dead_letter_reason or UNNAMED for messages in found.values() for message in messages)


def _text(found: Counter[str]) -> str:
    reasons = ", ".join(f"{number:,} {reason}" for reason, number in found.most_common())
    return f"{found.total():,} dead letter{'s' * (found.total() != 1)}" + (f" ({reasons})" if reasons else "")
