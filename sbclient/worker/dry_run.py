"""What a worker would find and do: both namespaces, the rights, what waits where and for whom. Nothing is moved."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from sbclient.backlog import UNKNOWN_DESTINATION, Backlog, BacklogQueueView
from sbclient.client.client import ServiceBusClient
from sbclient.errors import ServiceBusError
from sbclient.pairing.pair import Pair
from sbclient.rules.backlog import is_backlog_path
from sbclient.rules.entity_path import is_entity_path
from sbclient.worker.inspection import ASK_S, AT_ONCE, check_primary, check_queues

LOOKED_AT: Final = 10_000
"""Messages of each backlog queue that are looked at."""

ASKED: Final = 200
"""Entities of the primary that are asked whether they accept messages."""

ACCEPTS: Final = "accepts messages"


@dataclass(frozen=True, slots=True)
class DryRun:
    """What was found.

    Attributes:
        primary, secondary: what names the namespaces.
        queues: what each backlog queue holds.
        answers: what each entity of the primary says that messages are for: `ACCEPTS`, or why not.
    """

    primary: str
    secondary: str
    queues: tuple[BacklogQueueView, ...]
    answers: dict[str, str]

    @property
    def would_move(self) -> int:
        """Messages that would be brought home now."""
        return sum(number for path, number in self._counted().items() if self.answers.get(path, ACCEPTS) == ACCEPTS)

    @property
    def would_stay(self) -> int:
        """Messages that would not: their entity refuses, or they do not say which it is."""
        return self._counted().total() - self.would_move

    @property
    def is_all_well(self) -> bool:
        """Whether everything would be moved, and every queue is there."""
        return not self.would_stay and all(view.is_present for view in self.queues)

    def _counted(self) -> Counter[str]:
        return sum((Counter(view.destinations) for view in self.queues), Counter[str]())

    def told(self) -> dict[str, Any]:
        """As one JSON object."""
        return {
            "primary": self.primary,
            "secondary": self.secondary,
            "would_move": self.would_move,
            "would_stay": self.would_stay,
            "queues": [
                {
                    "queue": view.queue,
                    "is_present": view.is_present,
                    "waiting": view.waiting,
                    "parked": view.parked,
                    "dead_letters": dict(view.dead_letters),
                    "destinations": dict(view.destinations),
                    "is_complete": view.is_complete,
                }
                for view in self.queues
            ],
            "destinations": self.answers,
        }

    def lines(self) -> list[str]:
        """For people."""
        lines = [f"primary    {self.primary}  can be reached", f"secondary  {self.secondary}  can be reached"]
        for view in self.queues:
            if not view.is_present:
                lines.append(f"{view.queue}  does not exist")
                continue
            more = "" if view.is_complete else " or more"
            dead = f", {view.dead_letters.total():,} dead-lettered" if view.dead_letters else ""
            lines.append(f"{view.queue}  {view.waiting:,} waiting, {view.parked:,} put aside{dead}{more}")
            lines += [f"    {number:,} for {path}" for path, number in Counter(view.destinations).most_common()]
        lines += [f"{path}  {answer}" for path, answer in self.answers.items()]
        lines.append(f"would move {self.would_move:,}, would leave {self.would_stay:,}; nothing was moved")
        return lines


async def dry_run(client: ServiceBusClient, queues: Iterable[str], *, are_chosen: bool, entity: str | None) -> DryRun:
    """Look at everything that a worker needs.

    Args:
        client: open.
        queues: the backlog queues that it would ask.
        are_chosen: whether somebody named them one by one.
        entity: of the primary, to open a link to; None = none is known.

    Raises:
        ServiceBusError: a namespace cannot be reached, or refuses the credential; see `inspection`.
    """
    pair, names = client.pair, list(queues)
    await check_queues(pair, names, are_chosen=are_chosen)
    error = await check_primary(pair, entity)
    if error is not None:
        raise type(error)(f"the primary {pair.state.primary.namespace} cannot be reached: {error.message}") from error
    views = [view for view in await Backlog(pair).survey(limit=LOOKED_AT) if view.queue in names]
    paths = list(dict.fromkeys(path for view in views for path in view.destinations))
    return DryRun(
        pair.state.primary.namespace, pair.state.secondary.namespace, tuple(views), await _answers(pair, paths[:ASKED])
    )


async def _answers(pair: Pair, paths: list[str]) -> dict[str, str]:
    turns = asyncio.Semaphore(AT_ONCE)

    async def answer(path: str) -> str:
        if path == UNKNOWN_DESTINATION:
            return "the messages do not say where they belong: they would be dead-lettered"
        if not is_entity_path(path) or is_backlog_path(path):
            return "is no entity's path: its messages would be dead-lettered"
        link = pair.state.primary.open_sender(path)
        async with turns:
            try:
                await link.open(timeout_s=ASK_S)
            except ServiceBusError as error:
                return f"{type(error).__name__}: {error.message}"
            finally:
                await link.close()
        return ACCEPTS

    return dict(zip(paths, await asyncio.gather(*map(answer, paths)), strict=True))
