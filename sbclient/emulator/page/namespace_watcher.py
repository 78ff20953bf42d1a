"""The namespaces of one emulator as they stand, looked at a few times a second while somebody watches, and only then.

Laws:

1. However many watch, there is one look for all of them, and none when nobody asks for it.
2. A look lets everybody else have a turn after each few hundred fragments, and the next one comes only after nine times
   as long as the last one took: watching never costs more than a tenth of the processor.
3. What has not changed is the same object as at the look before, so that what has can be told without comparing.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from sbclient.broker.directory import Entity
from sbclient.clock import Clock
from sbclient.emulator.control.api import ControlApi
from sbclient.emulator.control.fault_states import state_of_namespace
from sbclient.emulator.page.overview import row_of
from sbclient.emulator.page.pair_observer import PairObserver, backlog_queues_of, primary_of

Facts: TypeAlias = dict[str, Any]
Moment: TypeAlias = tuple[float, int, int]
"""When, and how many messages had come and gone by then, since somebody looks."""

INTERVAL_S: Final = 0.5
HISTORY_KEPT: Final = 1_200
FRAGMENTS_IN_A_ROW: Final = 256
REST: Final = 9.0
"""How many times as long as a look takes nothing is looked at."""


@dataclass(slots=True)
class NamespaceSnapshot:
    """One namespace at one moment.

    Attributes:
        facts: about the whole of it.
        rows: about each entity, by path.
        history: how many had come and gone at each look at which it was another number, oldest first.
    """

    facts: Facts = field(default_factory=dict)
    rows: dict[str, Facts] = field(default_factory=dict)
    history: deque[Moment] = field(default_factory=lambda: deque(maxlen=HISTORY_KEPT))


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything at one moment.

    Attributes:
        number: of the look, rising.
        at: seconds of the namespaces' clock.
        pairs: those that the broker sees, and those that it was told of.
        story: what was told besides.
    """

    number: int
    at: float
    namespaces: Mapping[str, NamespaceSnapshot]
    pairs: Sequence[Facts]
    story: Facts | None


@dataclass(frozen=True, slots=True)
class ClientReport:
    """What a program that holds the clients itself knows better than the broker.

    Attributes:
        pairs: how its clients see their pairs: primary, secondary, entities (path, state, since_at, diverted,
            is_forced), events (at, name, path, facts) and quarantined queues.
        story: what it shows: phase, elapsed_s, total_s, outage (from and to), speed, numbers (name and value) and
            is_over; None = nothing.
    """

    pairs: Sequence[Facts] = ()
    story: Facts | None = None


NO_REPORT: Final = ClientReport()
NO_SNAPSHOT: Final = Snapshot(0, 0.0, {}, (), None)


class NamespaceWatcher:
    """Looks at all namespaces.

    Args:
        controls: the control API of each namespace.
        ports: of those that have one.
        tell: what somebody in this process has to add.
        interval_s: between two looks.
    """

    def __init__(
        self,
        controls: Mapping[str, ControlApi],
        *,
        ports: Mapping[str, int],
        tell: Callable[[], ClientReport] = lambda: NO_REPORT,
        interval_s: float = INTERVAL_S,
    ) -> None:
        self._controls = controls
        self._ports = ports
        self._tell = tell
        self._interval_s = interval_s
        self._turn = asyncio.Lock()
        self._sight = NO_SNAPSHOT
        self._due_at = 0.0
        self._pairs: dict[tuple[str, str], PairObserver] = {}
        self._fragments_seen = 0

    async def next(self, seen: int) -> Snapshot:
        """A snapshot later than the one of that number, and no older than the interval.

        Args:
            seen: 0 = none.
        """
        async with self._turn:
            wait_s = self._due_at - self._clock.monotonic()
            if wait_s > 0:
                if seen < self._sight.number:
                    return self._sight
                await self._clock.sleep(wait_s)
            began_at = self._clock.monotonic()
            self._sight = await self._look()
            took_s = self._clock.monotonic() - began_at
            self._due_at = began_at + took_s + max(self._interval_s - took_s, REST * took_s)
            return self._sight

    @property
    def _clock(self) -> Clock:
        return next(iter(self._controls.values())).context.clock

    # ------------------------------------------------------------------ one look

    async def _look(self) -> Snapshot:
        before = self._sight.namespaces
        namespaces = {name: await self._namespace(name, before.get(name)) for name in self._controls}
        now, told = self._clock.now(), self._tell()
        for snapshot in namespaces.values():
            _note(snapshot.history, self._sight.at, now, snapshot.facts["arrived"], snapshot.facts["left"])
        pairs = _with_told(self._seen_pairs(now), told.pairs)
        return Snapshot(self._sight.number + 1, now, namespaces, pairs, told.story)

    async def _namespace(self, name: str, before: NamespaceSnapshot | None) -> NamespaceSnapshot:
        control = self._controls[name]
        context = control.context
        namespace, old = context.host.namespace, NamespaceSnapshot() if before is None else before
        namespace.advance(context.clock.now())
        faults = context.active_faults()
        rows: dict[str, Facts] = {}
        came, went = old.facts.get("arrived", 0), old.facts.get("left", 0)
        for entity in namespace.directory.all():
            await self._let_others_run(entity)
            entity.advance(context.clock.now())
            row, known = row_of(entity, faults), old.rows.get(entity.path)
            rows[entity.path] = known if known == row else row
            if before is not None:
                since = known or {"arrived": 0, "left": 0}
                came += max(row["arrived"] - since["arrived"], 0) if entity.topic is None else 0
                went += max(row["left"] - since["left"], 0) if row["kind"] != "topic" else 0
        namespace.advance(context.clock.now())
        health = state_of_namespace(faults)
        facts = {
            "name": name,
            "profile": namespace.profile.name,
            "port": self._ports.get(name),
            "state": health.health.value,
            "is_partial": health.is_partial,
            "faults": control.numbered_faults(),
            "arrived": came,
            "left": went,
        }
        return NamespaceSnapshot(old.facts if old.facts == facts else facts, rows, old.history)

    async def _let_others_run(self, entity: Entity) -> None:
        self._fragments_seen += len(entity.body.fragments)
        if self._fragments_seen >= FRAGMENTS_IN_A_ROW:
            self._fragments_seen = 0
            await self._clock.sleep(0)

    def _seen_pairs(self, now: float) -> list[Facts]:
        namespaces = {name: control.context.host.namespace for name, control in self._controls.items()}
        pairs: dict[tuple[str, str], PairObserver] = {}
        facts = []
        for name, secondary in namespaces.items():
            for primary, queues in backlog_queues_of(secondary).items():
                pair = self._pairs.get((primary, name)) or PairObserver(primary, secondary)
                pairs[primary, name] = pair
                facts.append(pair.look(queues, primary_of(primary, namespaces, self._ports), now))
        self._pairs = pairs
        return facts


def _note(history: deque[Moment], before_at: float, at: float, came: int, went: int) -> None:
    """Keep the last moment at which nothing had changed yet, and the one at which it had."""
    if history and history[-1][1:] == (came, went):
        return
    if history and before_at > history[-1][0]:
        history.append((before_at, *history[-1][1:]))
    history.append((at, came, went))


def _with_told(seen: Sequence[Facts], told: Sequence[Facts]) -> list[Facts]:
    """What is seen of each pair, with what its client says of it under `client`."""
    by_names = {(pair["primary"], pair["secondary"]): pair for pair in seen}
    for client in told:
        names = client["primary"], client["secondary"]
        bare = {"primary": names[0], "secondary": names[1], "is_primary_here": True}
        by_names[names] = {"queues": [], "destinations": [], "unread": 0, **bare, **by_names.get(names, {})} | {
            "client": client
        }
    return list(by_names.values())
