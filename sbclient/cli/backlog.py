"""`sbclient backlog`: what waits in the secondary namespace, and what to do with what cannot come home."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Any, Final

import typer

from sbclient.backlog import Backlog, BacklogQueueView
from sbclient.cli.backlog_report import Looks, show_report
from sbclient.cli.common import (
    AsJson,
    Exit,
    Primary,
    Secondary,
    Yes,
    is_confirmed,
    open_client,
    print_json,
    required_secondary,
    run,
)
from sbclient.cli.progress import Progress
from sbclient.clock import Clock
from sbclient.errors import InvalidOperationError, MessagingEntityNotFoundError
from sbclient.options import PairedNamespaceOptions

SHOW: Final = "show"


class _ShowByDefault(typer.core.TyperGroup):
    """`sbclient backlog [options]` is `sbclient backlog show [options]`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        # A shell that asks how a word may go on has not got to the name of the command yet.
        is_bare = args[0].startswith("-") if args else not ctx.resilient_parsing
        if is_bare and "--help" not in args:
            args = [SHOW, *args]
        return super().parse_args(ctx, args)


backlog = typer.Typer(
    cls=_ShowByDefault,
    help="Look into the backlog queues, and deal with their dead letters. Alone it is `backlog show`.",
    epilog="Example: sbclient backlog",
    rich_markup_mode=None,
)

Queues = Annotated[int, typer.Option("--backlog-queue-count", min=1, help="How many backlog queues the pair has.")]
Name = Annotated[str | None, typer.Option("--primary-name", help="As the pair was opened with.")]
Reason = Annotated[str | None, typer.Option(help="Only those with this reason.")]
One = Annotated[
    str | None, typer.Option("--backlog-queue", help="Only those of this backlog queue: its name, or its number.")
]
Sessions = Annotated[bool, typer.Option("--sessions", help="The queues of ordering=session too.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only count them.")]
Limit = Annotated[int, typer.Option(min=1, help="Look at so many messages of each queue.")]

LIMIT: Final = 100_000


@backlog.command(short_help="Print what waits, for whom and since when.")
def show(
    primary: Primary,
    secondary: Secondary = None,
    count: Queues = 10,
    name: Name = None,
    sessions: Sessions = False,
    limit: Limit = LIMIT,
    sample: Annotated[
        float, typer.Option(min=0, help="Look again after so many seconds, to estimate the time to drain; 0 = do not.")
    ] = 2.0,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Look each --sample seconds until interrupted.")] = False,
    as_json: AsJson = False,
) -> None:
    """Print what each backlog queue holds, for which entities, since when, and for how long a syphon will have to work.

    What is locked by a syphon counts as waiting. An empty backlog is looked at once.

    \b
    Example: sbclient backlog
    Example: sbclient backlog show --json --sample 10
    Example: sbclient backlog --watch
    """
    progress = Progress("looking through the backlog", is_wanted=not watch)

    async def work() -> None:
        async with open_client(primary, required_secondary(secondary), _options(count, name, sessions)) as client:
            clock, looks = Clock(), Looks()
            surveyor = Backlog(client.pair, on_progress=lambda seen: progress.show(f"looked at {seen:,} messages"))
            with show_report(as_json=as_json, is_live=watch) as shown:
                while True:
                    report = looks.add(clock.monotonic(), clock.now(), await _found(surveyor, limit))
                    is_last = not watch and (len(looks) > 1 or not sample or not report["depth"])
                    if watch or is_last:
                        shown(report)
                    if is_last:
                        return
                    await clock.sleep(sample or 2.0)

    run("backlog show", work(), as_json=as_json, progress=progress)


@backlog.command(short_help="Put dead letters back, to be tried again; asks first.")
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
    """Put dead letters back into their backlog queue, for the syphon to try again; asks first.

    Those of the queues for sessions are left alone: they would come back in another order.

    \b
    Example: sbclient backlog resubmit --reason DestinationRefused --dry-run
    Example: sbclient backlog resubmit --reason DestinationRefused --yes
    """
    options = _options(count, name, with_sessions=False)
    _deal_with("resubmit", primary, secondary, options, reason, queue, is_dry=dry_run, yes=yes, as_json=as_json)


@backlog.command(short_help="Delete dead letters for good; asks first.")
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
    """Delete dead letters for good; asks first. What still waits is never touched.

    \b
    Example: sbclient backlog purge --reason TTLExpiredException --dry-run
    Example: sbclient backlog purge --reason TTLExpiredException --yes
    """
    options = _options(count, name, sessions)
    _deal_with("purge", primary, secondary, options, reason, queue, is_dry=dry_run, yes=yes, as_json=as_json)


_QUESTION: Final = {"resubmit": "Put {} back into the backlog?", "purge": "Delete {} for good?"}
_DONE: Final = {"resubmit": "put back", "purge": "deleted"}


def _deal_with(
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
    """Count the dead letters that are meant, ask, and put them back or delete them."""
    progress = Progress("counting the dead letters")

    async def count() -> tuple[Counter[str], list[str | None]]:
        async with open_client(primary, required_secondary(secondary), options) as client:
            views = await _found(Backlog(client.pair), LIMIT)
            if queue is None:
                return _meant(views, reason), [None]
            chosen = _chosen(views, queue)
            return _meant(chosen, reason), [view.queue for view in chosen]

    async def work() -> int:
        async with open_client(primary, required_secondary(secondary), options) as client:
            surveyor = Backlog(client.pair, on_progress=lambda moved: progress.show(f"{_DONE[command]} {moved:,}"))
            deal = surveyor.resubmit if command == "resubmit" else surveyor.purge
            return sum([await deal(reason=reason, queue=each) for each in chosen])

    meant, chosen = run(f"backlog {command}", count(), as_json=as_json, progress=progress)
    done = 0
    if not is_dry and meant:
        question = _QUESTION[command].format(_words(meant))
        if not is_confirmed(f"backlog {command}", question, yes=yes, as_json=as_json):
            raise typer.Exit(Exit.INCOMPLETE)
        done = run(f"backlog {command}", work(), as_json=as_json, progress=progress)
    if as_json:
        print_json({"found": dict(meant.most_common()), "done": done, "is_dry_run": is_dry})
    elif is_dry or not meant:
        typer.echo(f"found {_words(meant)}")
    else:
        typer.echo(f"{_DONE[command]} {done:,}")


async def _found(surveyor: Backlog, limit: int) -> list[BacklogQueueView]:
    """A look through the backlog.

    Raises:
        MessagingEntityNotFoundError: there is none of its queues: an empty backlog would be a guess.
    """
    views = await surveyor.survey(limit=limit)
    if not any(view.is_present for view in views):
        raise MessagingEntityNotFoundError(
            f"none of the {len(views)} backlog queues {views[0].queue} … {views[-1].queue} exists: give --primary-name "
            "and --backlog-queue-count as the senders were paired with; they are made when the first one is paired"
        )
    return views


def _chosen(views: Sequence[BacklogQueueView], queue: str) -> list[BacklogQueueView]:
    """The backlog queue of that name, or those with that number: one of the queues for sessions may have it as well.

    Raises:
        InvalidOperationError: there is none.
    """
    wanted = queue.casefold()
    chosen = [view for view in views if wanted in (view.queue.casefold(), view.queue.rpartition("/")[2])]
    if not chosen:
        raise InvalidOperationError(f"{queue!r} is no backlog queue of this pair: `sbclient backlog` lists them")
    return chosen


def _meant(views: Sequence[BacklogQueueView], reason: str | None) -> Counter[str]:
    """The dead letters that were asked for, by reason."""
    found = sum((view.dead_letters for view in views), Counter[str]())
    return found if reason is None else Counter({reason: found[reason]}) if found[reason] else Counter()


def _words(found: Counter[str]) -> str:
    reasons = ", ".join(f"{number:,} {reason}" for reason, number in found.most_common())
    return f"{found.total():,} dead letter{'s' * (found.total() != 1)}" + (f" ({reasons})" if reasons else "")


def _options(count: int, name: str | None, with_sessions: bool) -> PairedNamespaceOptions:
    return PairedNamespaceOptions(
        backlog_queue_count=count,
        primary_name=name,
        provision="none",
        ordering="session" if with_sessions else "none",
    )
