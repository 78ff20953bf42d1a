"""Reports what a worker would do: reachable namespaces, rights, messages by queue and destination. Moves nothing."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from sbclient.backlog import UNKNOWN_DESTINATION, Backlog, BacklogQueueView, together
from sbclient.client.client import ServiceBusClient
from sbclient.worker.inspection import (
    ACCEPTS,
    PROBED,
    Finding,
    Side,
    check_primary,
    check_queues,
    destination_answers,
    ending,
    refusing_destination,
    reject_without_sessions,
    rejected_messages,
    surveyed,
)

LOOKED_AT: Final = 10_000
"""Limit of messages that are peeked in each backlog queue."""


@dataclass(frozen=True, slots=True)
class DryRun:
    """Result of a dry run.

    Attributes:
        primary, secondary: names of the namespaces.
        queues: content of each backlog queue.
        answers: `ACCEPTS` or the error of each destination that messages would be sent to, by path.
        found: what is wrong with the namespaces and the backlog queues, but does not end a worker.
    """

    primary: str
    secondary: str
    queues: tuple[BacklogQueueView, ...]
    answers: dict[str, str]
    found: tuple[Finding, ...] = ()

    @property
    def findings(self) -> list[Finding]:
        """What is wrong."""
        parts = together(self.queues).by_destination
        refusing = [
            refusing_destination(path, answer, parts[path])
            for path, answer in self.answers.items()
            if answer != ACCEPTS and path != UNKNOWN_DESTINATION
        ]
        return [*self.found, *refusing, *rejected_messages(parts)]

    @property
    def would_move(self) -> int:
        """Number of messages that would be sent to destinations that accept messages."""
        parts = together(self.queues).by_destination
        return sum(part.sendable for path, part in parts.items() if self.answers.get(path, ACCEPTS) == ACCEPTS)

    @property
    def would_dead_letter(self) -> dict[str, int]:
        """Number of messages that would be dead-lettered, by reason."""
        return dict(together(self.queues).rejected.most_common())

    @property
    def would_stay(self) -> int:
        """Number of messages that would stay: their destination refuses, or is not known."""
        return together(self.queues).sendable - self.would_move

    @property
    def is_complete(self) -> bool:
        """Whether every message would be forwarded and every queue exists."""
        return not self.would_stay and not self.would_dead_letter and all(view.is_present for view in self.queues)

    def content(self) -> dict[str, Any]:
        """Return a JSON object."""
        return {
            "primary": self.primary,
            "secondary": self.secondary,
            "would_move": self.would_move,
            "would_dead_letter": self.would_dead_letter,
            "would_stay": self.would_stay,
            "queues": [
                {
                    "queue": view.queue,
                    "is_present": view.is_present,
                    "waiting": view.waiting,
                    "parked": view.parked,
                    "rejected": dict(view.rejected),
                    "dead_letters": dict(view.dead_letters),
                    "destinations": dict(view.destinations),
                    "is_complete": view.is_complete,
                }
                for view in self.queues
            ],
            "destinations": self.answers,
            "findings": [finding.content() for finding in self.findings],
        }

    def lines(self) -> list[str]:
        """Return lines of text for display."""
        lines = [f"primary    {self.primary}  is reachable", f"secondary  {self.secondary}  is reachable"]
        for view in self.queues:
            if not view.is_present:
                lines.append(f"{view.queue}  does not exist")
                continue
            more = "" if view.is_complete else " or more"
            dead = f", {view.dead_letters.total():,} dead-lettered" if view.dead_letters else ""
            lines.append(f"{view.queue}  {view.waiting:,} waiting, {view.parked:,} parked{dead}{more}")
            lines += [f"    {number:,} for {path}" for path, number in view.destinations.most_common()]
        lines += [f"{path}  {answer}" for path, answer in self.answers.items()]
        lines += [f"! {finding.text}" for finding in self.findings]
        advice = dict.fromkeys(finding.advice for finding in self.findings if finding.advice)
        lines += [f"  next: {text}" for text in advice]
        dead = f"would dead-letter {sum(self.would_dead_letter.values()):,}, " if self.would_dead_letter else ""
        lines.append(f"would move {self.would_move:,}, {dead}would leave {self.would_stay:,}; nothing was moved")
        return lines


async def dry_run(
    client: ServiceBusClient,
    queues: Iterable[str],
    *,
    are_chosen: bool,
    entity: str | None,
    sides: tuple[Side, Side],
) -> DryRun:
    """Check everything that a worker needs, and count the backlog.

    Args:
        client: open.
        queues: names of the backlog queues that the worker would drain.
        are_chosen: whether the user chose these queues, so that each must exist.
        entity: path of an entity of the primary to probe; None = unknown.
        sides: the primary and the secondary.

    Raises:
        ServiceBusError: a finding with which a worker cannot drain, see `ending`.
    """
    pair, names = client.pair, list(queues)
    found = [
        *await check_queues(pair, sides[1], names),
        *await check_primary(pair, sides[0], entity),
    ]
    end = ending(found, names, are_chosen=are_chosen)
    if end is not None:
        raise end.as_error() from end.error
    views = [view for view in await surveyed(pair, Backlog(pair), sides[1], LOOKED_AT) if view.queue in names]
    await reject_without_sessions(pair, views)
    paths = together(views).sendable_to
    return DryRun(
        pair.state.primary.namespace,
        pair.state.secondary.namespace,
        tuple(views),
        await destination_answers(pair, paths[:PROBED]),
        tuple(found),
    )
