"""Snapshots of all namespaces of one emulator, taken a few times a second while a client watches.

Laws:

1. All clients share one snapshot. Without clients there is none.
2. A snapshot lets other tasks run after each few hundred fragments. The pause before the next one is nine times its
   duration, so that watching takes at most a tenth of the processor.
3. A part that has not changed is the same object as in the snapshot before, so that changes are found by identity.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from sbclient import clock
from sbclient.broker.directory import Entity
from sbclient.emulator.control.api import ControlApi
from sbclient.emulator.control.fault_states import state_of_namespace
from sbclient.emulator.page.history import CountHistory, states_of
from sbclient.emulator.page.overview import row_of
from sbclient.emulator.page.pair_observer import PairObserver, backlog_queues_of, primary_of

Facts: TypeAlias = dict[str, Any]
Gap: TypeAlias = tuple[float, float]
"""Two times between which there was no snapshot, because no page was open."""

INTERVAL_S: Final = 0.5
HISTORY_KEPT: Final = 1_200
ENTITY_HISTORY_KEPT: Final = 300
MAX_ENTITY_HISTORIES: Final = 500
"""Entities with a history in one namespace: those whose numbers changed last."""

GAPS_KEPT: Final = 100
GAP_INTERVALS: Final = 10
"""A snapshot that is late by so many intervals ends a gap."""

MAX_FRAGMENTS_IN_A_ROW: Final = 256
PAUSE_FACTOR: Final = 9.0
"""The pause after a snapshot, as a multiple of its duration."""


@dataclass(slots=True)
class NamespaceSnapshot:
    """One namespace at one time.

    Attributes:
        facts: about the namespace.
        rows: about each entity, by path.
        history: of the messages that have arrived and left since the first snapshot.
        histories: of the messages of each entity, by path; those that changed last at the end.
    """

    facts: Facts = field(default_factory=dict)
    rows: dict[str, Facts] = field(default_factory=dict)
    history: CountHistory = field(default_factory=lambda: CountHistory(HISTORY_KEPT))
    histories: dict[str, CountHistory] = field(default_factory=dict)

    def note_row(self, row: Facts, before_at: float, at: float) -> None:
        """Add the numbers of an entity, which have changed, to its history."""
        history = self.histories.pop(row["path"], None) or CountHistory(ENTITY_HISTORY_KEPT)
        self.histories[row["path"]] = history
        history.note(before_at, at, row["arrived"], row["left"])
        if len(self.histories) > MAX_ENTITY_HISTORIES:
            del self.histories[next(iter(self.histories))]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All namespaces at one time.

    Attributes:
        number: rising from 1.
        at: seconds of the clock of the namespaces.
        pairs: those that the broker observes, and those that the clients report.
        story: that of the client report.
        gaps: the times without snapshots, oldest first; the first one begins at 0.
    """

    number: int
    at: float
    namespaces: Mapping[str, NamespaceSnapshot]
    pairs: Sequence[Facts]
    story: Facts | None
    gaps: Sequence[Gap] = ()


@dataclass(frozen=True, slots=True)
class ClientReport:
    """The facts that a program with its own clients knows and the broker does not.

    Attributes:
        pairs: the state of each pair in its client: primary, secondary, entities (path, state, since_at, diverted,
            is_forced), events (at, name, path, facts), quarantined queues, provisioning_error and never_reached.
        story: the demonstration that runs: phase, elapsed_s, total_s, outage (from and to), speed, numbers (name and
            value) and is_over; None = none.
    """

    pairs: Sequence[Facts] = ()
    story: Facts | None = None


NO_REPORT: Final = ClientReport()
NO_SNAPSHOT: Final = Snapshot(0, 0.0, {}, (), None)


class NamespaceWatcher:
    """Takes the snapshots.

    Args:
        controls: the control API of each namespace.
        ports: of the namespaces that have one.
        report: returns what a program in this process adds.
        interval_s: between two snapshots.
    """

    def __init__(
        self,
        controls: Mapping[str, ControlApi],
        *,
        ports: Mapping[str, int],
        report: Callable[[], ClientReport] = lambda: NO_REPORT,
        interval_s: float = INTERVAL_S,
    ) -> None:
        self._controls = controls
        self._ports = ports
        self._report = report
        self._interval_s = interval_s
        self._lock = asyncio.Lock()
        self._snapshot = NO_SNAPSHOT
        self._due_at = 0.0
        self._pairs: dict[tuple[str, str], PairObserver] = {}
        self._gaps: deque[Gap] = deque(maxlen=GAPS_KEPT)
        self._fragment_count = 0

    async def next(self, seen: int) -> Snapshot:
        """A snapshot with a number above `seen`, which is no older than the interval.

        Args:
            seen: 0 = none.
        """
        async with self._lock:
            wait_s = self._due_at - clock.monotonic()
            if wait_s > 0:
                if seen < self._snapshot.number:
                    return self._snapshot
                await clock.sleep(wait_s)
            began_at = clock.monotonic()
            if not self._snapshot.number or began_at - self._due_at > GAP_INTERVALS * self._interval_s:
                self._gaps.append((self._snapshot.at, clock.now()))
            self._snapshot = await self._take()
            took_s = clock.monotonic() - began_at
            self._due_at = began_at + took_s + max(self._interval_s - took_s, PAUSE_FACTOR * took_s)
            return self._snapshot

    # ------------------------------------------------------------------ one snapshot

    async def _take(self) -> Snapshot:
        before = self._snapshot.namespaces
        namespaces = {name: await self._namespace(name, before.get(name)) for name in self._controls}
        now, report = clock.now(), self._report()
        for name, snapshot in namespaces.items():
            facts, old = snapshot.facts, before.get(name)
            snapshot.history.note(self._snapshot.at, now, facts["arrived"], facts["left"])
            for path, row in snapshot.rows.items():
                if old is None or old.rows.get(path) is not row:
                    snapshot.note_row(row, self._snapshot.at, now)
            for path in snapshot.histories.keys() - snapshot.rows.keys():
                del snapshot.histories[path]
        pairs = _with_reports(self._observed_pairs(now), report.pairs)
        return Snapshot(self._snapshot.number + 1, now, namespaces, pairs, report.story, tuple(self._gaps))

    async def _namespace(self, name: str, before: NamespaceSnapshot | None) -> NamespaceSnapshot:
        control = self._controls[name]
        context = control.context
        namespace, old = context.host.namespace, NamespaceSnapshot() if before is None else before
        namespace.advance(clock.now())
        faults = context.active_faults()
        context.note_faults()
        rows: dict[str, Facts] = {}
        arrived, left = old.facts.get("arrived", 0), old.facts.get("left", 0)
        for entity in namespace.directory.all():
            await self._let_others_run(entity)
            entity.advance(clock.now())
            row, known = row_of(entity, faults), old.rows.get(entity.path)
            rows[entity.path] = known if known == row else row
            if before is not None:
                since = known or {"arrived": 0, "left": 0}
                arrived += max(row["arrived"] - since["arrived"], 0) if entity.topic is None else 0
                left += max(row["left"] - since["left"], 0) if row["kind"] != "topic" else 0
        namespace.advance(clock.now())
        health = state_of_namespace(faults)
        facts = {
            "name": name,
            "profile": namespace.profile.name,
            "port": self._ports.get(name),
            "state": health.health.value,
            "states": states_of(tuple(context.fault_log), clock.now()),
            "is_partial": health.is_partial,
            "faults": control.numbered_faults(),
            "arrived": arrived,
            "left": left,
        }
        return NamespaceSnapshot(old.facts if old.facts == facts else facts, rows, old.history, old.histories)

    async def _let_others_run(self, entity: Entity) -> None:
        self._fragment_count += len(entity.body.fragments)
        if self._fragment_count >= MAX_FRAGMENTS_IN_A_ROW:
            self._fragment_count = 0
            await clock.step()

    def _observed_pairs(self, now: float) -> list[Facts]:
        namespaces = {name: control.context.host.namespace for name, control in self._controls.items()}
        pairs: dict[tuple[str, str], PairObserver] = {}
        facts = []
        for name, secondary in namespaces.items():
            for primary, queues in backlog_queues_of(secondary).items():
                pair = self._pairs.get((primary, name)) or PairObserver(primary, secondary)
                pairs[primary, name] = pair
                facts.append(pair.observe(queues, primary_of(primary, namespaces, self._ports), now))
        self._pairs = pairs
        return facts


def _with_reports(observed: Sequence[Facts], reports: Sequence[Facts]) -> list[Facts]:
    """The observed pairs, each with the report of its client under `client`."""
    by_names = {(pair["primary"], pair["secondary"]): pair for pair in observed}
    for client in reports:
        names = client["primary"], client["secondary"]
        bare = {"primary": names[0], "secondary": names[1], "is_primary_here": True}
        by_names[names] = {
            "queues": [],
            "destinations": [],
            "unread": 0,
            **bare,
            **by_names.get(names, {}),
        } | {"client": client}
    return list(by_names.values())
