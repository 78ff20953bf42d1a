"""`sbclient backlog`: shows the backlog, and resubmits or purges its dead letters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Any, Final

import typer

from sbclient import clock
from sbclient.backlog import Backlog, BacklogQueueView
from sbclient.cli.backlog_report import DrainEstimate, show_report
from sbclient.cli.common import (
    AsJson,
    Exit,
    Primary,
    Secondary,
    Yes,
    is_confirmed,
    open_client,
    print_json,
    print_line,
    proxy_options,
    required_secondary,
    run,
    seconds,
)
from sbclient.cli.progress import Progress
from sbclient.errors import InvalidOperationError, MessagingEntityNotFoundError
from sbclient.options import PairedNamespaceOptions

SHOW: Final = "show"


class _ShowByDefault(typer.core.TyperGroup):
    """`sbclient backlog [options]` is `sbclient backlog show [options]`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        # With `resilient_parsing` a shell completes a command name that is not complete yet.
        is_bare = args[0].startswith("-") if args else not ctx.resilient_parsing
        if is_bare and not set(args) & set(ctx.help_option_names):
            args = [SHOW, *args]
        return super().parse_args(ctx, args)


backlog = typer.Typer(
    cls=_ShowByDefault,
    help="Show the backlog queues; resubmit or purge their dead letters. Without a command: `backlog show`.",
    epilog="Example: sbclient backlog",
    rich_markup_mode=None,
)

Queues = Annotated[int, typer.Option("--backlog-queue-count", min=1, help="Number of backlog queues of the pair.")]
Name = Annotated[str | None, typer.Option("--primary-name", help="The primary_name of the pair, if it has one.")]
Reason = Annotated[str | None, typer.Option(help="Only dead letters with this reason.")]
One = Annotated[str | None, typer.Option("--backlog-queue", help="Only this backlog queue: its name or its number.")]
Sessions = Annotated[bool, typer.Option("--sessions", help="Include the queues of ordering=session.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only count the dead letters.")]
Limit = Annotated[int, typer.Option(min=1, help="Largest number of messages to read from each queue.")]

LIMIT: Final = 100_000


@backlog.command(short_help="Print the number, destinations and age of waiting messages.")
def show(
    primary: Primary,
    secondary: Secondary = None,
    count: Queues = 10,
    name: Name = None,
    sessions: Sessions = False,
    limit: Limit = LIMIT,
    sample: Annotated[
        float,
        typer.Option(
            parser=seconds(),
            metavar="DURATION",
            help="Time between two surveys that estimate the time to drain; 0 = one survey.",
        ),
    ] = 2.0,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Repeat with --sample between surveys until interrupted.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Print the messages of each backlog queue by destination, their age, and an estimate of the time to drain them.

    Messages that a syphon has locked count as waiting. An empty backlog is surveyed once.

    \b
    Example: sbclient backlog
    Example: sbclient backlog show --json --sample 10
    Example: sbclient backlog --watch
    """
    progress = Progress("surveying the backlog", is_wanted=not watch)

    async def work() -> None:
        from sbclient.worker.diagnosis import Doctor  # loads the AMQP transport

        async with open_client(primary, required_secondary(secondary), _options(count, name, sessions)) as client:
            estimate = DrainEstimate()
            doctor = Doctor(client, primary, required_secondary(secondary), **proxy_options())
            surveyor = Backlog(client.pair, on_progress=lambda seen: progress.show(f"read {seen:,} messages"))
            with show_report(as_json=as_json, is_live=watch) as shown:
                while True:
                    views = await _survey(surveyor, limit)
                    report = estimate.report(clock.monotonic(), clock.now(), views)
                    if report["drained_per_second"] is not None and report["seconds_to_drain"] is None:
                        report["cause"] = (await doctor.explain(views, has_moved=False)).cause
                    is_last = not watch and (estimate.surveys > 1 or not sample or not report["depth"])
                    if watch or is_last:
                        shown(report)
                    if is_last:
                        return
                    await clock.sleep(sample or 2.0)

    run("backlog show", work(), as_json=as_json, progress=progress)


@backlog.command(short_help="Put dead letters back into the backlog; asks first.")
def resubmit(
    primary: Primary,
    secondary: Secondary = None,
    count: Queues = 10,
    name: Name = None,
    reason: Reason = None,
    queue: One = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Put dead letters back into their backlog queue for the syphon; asks first.

    Dead letters of the queues for sessions are not touched, because their order would change.

    \b
    Example: sbclient backlog resubmit --reason DestinationRefused --dry-run
    Example: sbclient backlog resubmit --reason DestinationRefused --yes
    """
    options = _options(count, name, with_sessions=False)
    _handle_dead_letters(
        "resubmit", primary, secondary, options, reason, queue, is_dry=dry_run, yes=yes, as_json=as_json
    )


@backlog.command(short_help="Delete dead letters; asks first.")
def purge(
    primary: Primary,
    secondary: Secondary = None,
    count: Queues = 10,
    name: Name = None,
    sessions: Sessions = False,
    reason: Reason = None,
    queue: One = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Delete dead letters; asks first. Waiting messages are not touched.

    \b
    Example: sbclient backlog purge --reason TTLExpiredException --dry-run
    Example: sbclient backlog purge --reason TTLExpiredException --yes
    """
    options = _options(count, name, sessions)
    _handle_dead_letters("purge", primary, secondary, options, reason, queue, is_dry=dry_run, yes=yes, as_json=as_json)


_QUESTION: Final = {"resubmit": "Put {} back into the backlog?", "purge": "Delete {}?"}
_DONE: Final = {"resubmit": "put back", "purge": "deleted"}


def _handle_dead_letters(
    command: str,
    primary: str,
    secondary: str | None,
    options: PairedNamespaceOptions,
    reason: str | None,
    queue: str | None,
    *,
    is_dry: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Count the matching dead letters, ask for confirmation, and resubmit or purge them."""
    progress = Progress("counting the dead letters")

    async def count() -> tuple[Counter[str], list[str | None]]:
        async with open_client(primary, required_secondary(secondary), options) as client:
            views = await _survey(Backlog(client.pair), LIMIT)
            if queue is None:
                return _matching(views, reason), [None]
            chosen = _chosen(views, queue)
            return _matching(chosen, reason), [view.queue for view in chosen]

    async def work() -> int:
        async with open_client(primary, required_secondary(secondary), options) as client:
            surveyor = Backlog(client.pair, on_progress=lambda moved: progress.show(f"{_DONE[command]} {moved:,}"))
            method = surveyor.resubmit if command == "resubmit" else surveyor.purge
            return sum([await method(reason=reason, queue=each) for each in chosen])

    found, chosen = run(f"backlog {command}", count(), as_json=as_json, progress=progress)
    done = 0
    if not is_dry and found:
        question = _QUESTION[command].format(_text(found))
        if not is_confirmed(f"backlog {command}", question, yes=yes, as_json=as_json):
            raise typer.Exit(Exit.INCOMPLETE)
        done = run(f"backlog {command}", work(), as_json=as_json, progress=progress)
    if as_json:
        print_json({"found": dict(found.most_common()), "done": done, "is_dry_run": is_dry})
    elif is_dry or not found:
        print_line(f"found {_text(found)}")
    else:
        typer.echo(f"{_DONE[command]} {done:,}")


async def _survey(surveyor: Backlog, limit: int) -> list[BacklogQueueView]:
    """Survey the backlog.

    Raises:
        MessagingEntityNotFoundError: no backlog queue exists, so the pair's options may be wrong.
    """
    views = await surveyor.survey(limit=limit)
    if not any(view.is_present for view in views):
        raise MessagingEntityNotFoundError(
            f"none of the {len(views)} backlog queues {views[0].queue} … {views[-1].queue} exists: set --primary-name "
            "and --backlog-queue-count as in the options of the senders, whose first pairing creates the queues"
        )
    return views


def _chosen(views: Sequence[BacklogQueueView], queue: str) -> list[BacklogQueueView]:
    """Return the queue with that name, or the queues with that number: a queue for sessions may have the same number.

    Raises:
        InvalidOperationError: no queue matches.
    """
    wanted = queue.casefold()
    chosen = [view for view in views if wanted in (view.queue.casefold(), view.queue.rpartition("/")[2])]
    if not chosen:
        raise InvalidOperationError(f"the pair has no backlog queue {queue!r}: `sbclient backlog` lists them")
    return chosen


def _matching(views: Sequence[BacklogQueueView], reason: str | None) -> Counter[str]:
    """Count the dead letters by reason; with `reason`, only those."""
    found = sum((view.dead_letters for view in views), Counter[str]())
    return found if reason is None else Counter({reason: found[reason]}) if found[reason] else Counter()


def _text(found: Counter[str]) -> str:
    reasons = ", ".join(f"{number:,} {reason}" for reason, number in found.most_common())
    return f"{found.total():,} dead letter{'s' * (found.total() != 1)}" + (f" ({reasons})" if reasons else "")


def _options(count: int, name: str | None, with_sessions: bool) -> PairedNamespaceOptions:
    return PairedNamespaceOptions(
        backlog_queue_count=count,
        primary_name=name,
        provision="none",
        ordering="session" if with_sessions else "none",
    )
