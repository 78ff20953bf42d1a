"""What one seed draws before anything runs: entities, traffic, options, programs and weather.

A plan is a plain value. Leaving something out of one (`without`) changes nothing else in it, which is what makes a
failing schedule shrink.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from random import Random
from typing import Final, Literal

from sbclient.broker.profile import STD_2021, Profile
from sbclient.message import NamespaceSide
from sbclient.options import PairedNamespaceOptions, SyphonLimits
from tests.simulation.corners import NAMED, with_corners, with_named
from tests.simulation.network import Line
from tests.simulation.network_weather import LOSES, WIRE_KINDS, draw_network_kinds
from tests.simulation.timing import with_timing
from tests.simulation.weather import (
    KILLED,
    OF_TRANSACTIONS,
    Incident,
    Sky,
    draw_aftermath,
    draw_incidents,
    draw_killed,
    draw_kinds,
)

SMALL_FRAGMENTS: Final = 4
"""Fragments of a partitioned entity here: fewer than in the service, so that a few messages meet in each."""

SIZE_LIMIT: Final = 4096
"""The largest message, in runs that look at the edge of it."""

_LARGE: Final = replace(STD_2021, fragment_count=SMALL_FRAGMENTS)
_SMALL: Final = replace(_LARGE, max_message_size_bytes=SIZE_LIMIT, max_batch_size_bytes=4 * SIZE_LIMIT)

LaneKind = Literal["plain", "keyed", "session", "dedup", "topic", "transactional"]
SyphonKind = Literal["run", "option", "empty", "twice", "worker"]
UnitKind = Literal["single", "list", "batch", "transaction", "schedule", "edge"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """One destination and its traffic.

    Attributes:
        name: of the queue or topic.
        senders: tasks that send side by side; one key is always sent by the same one.
        receivers: tasks that receive side by side.
        life_s: the time to live that some of its messages have; None = none has one.
        dead_letters_expired: whether what expires is dead-lettered, or dropped.
        share: of its messages that are scheduled.
        care: how often, of 100, a receiver completes a message at its first try.
        deletes: whether receivers take messages in the mode that deletes them.
        prefetch: how many messages receivers fetch ahead.
        work_s: how long a receiver works on each message, at most, before it settles it.
        window_s: of duplicate detection; None = the default.
        rules: of a second subscription of a topic, in order of their creation; empty = there is none.
    """

    name: str
    kind: LaneKind
    is_partitioned: bool
    senders: int
    receivers: int
    messages: int
    keys: int
    lock_s: float
    max_deliveries: int
    life_s: float | None
    dead_letters_expired: bool
    scheduled_share: float
    care: int
    deletes: bool
    prefetch: int
    work_s: float = 0.0
    window_s: float | None = None
    rules: tuple[str, ...] = ()

    @property
    def requires_session(self) -> bool:
        return self.kind == "session"

    @property
    def detects_duplicates(self) -> bool:
        return self.kind == "dedup"


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """A program is killed, and starts again after a pause.

    Attributes:
        at_call: at which of its calls on the wire it is killed; None = at a random time.
        only_sends: whether only the calls count that send something.
        after_work: whether that call is still carried out, and only its answer never seen.
        at_s: how long after its life began, if not at a call.
        is_stop: whether it is ended as its operator would, and may finish what it does.
    """

    program: str
    at_call: int | None
    only_sends: bool
    after_work: bool
    at_s: float
    pause_s: float
    is_stop: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything of one run.

    Attributes:
        traffic_s: over which the messages are sent, and the weather lasts.
        timeout_s: of the clients' operations.
        persistence: how often an application tries a message again that was not accepted.
        syphons: how each of them runs: all the time by itself, as an option of its client, again and again, so and
            twice at once, or as the worker does.
        skew_s: what the clients' wall clock is ahead of the broker's.
        has_partitioned_backlog: whether an operator has made the backlog queues before, as partitioned ones.
        backlog_lock_s: the locks of backlog queues that an operator has made before; None = as a client makes them.
        looks: how often an entity is browsed, page by page.
        kinds: of the weather, for the coverage.
        network: between clients and namespaces; None = clients call the brokers directly.
        sends_bursts: whether messages that are due at one time are sent without waiting for each other.
        syphon_limits: of each syphon that is not an option of its client; None = the defaults.
        elsewhere: the lanes whose entities are in the secondary, too, where syphons deliver during an outage.
    """

    seed: int
    lanes: tuple[Lane, ...]
    options: PairedNamespaceOptions
    profile: Profile
    front_ends: int
    traffic_s: float
    timeout_s: float
    retries: int
    persistence: int
    latency_s: float
    producers: int
    syphons: tuple[SyphonKind, ...]
    skew_s: float
    has_partitioned_backlog: bool
    backlog_lock_s: float | None
    looks: int
    kinds: tuple[str, ...]
    incidents: tuple[Incident, ...]
    deaths: tuple[Death, ...]
    network: Line | None = None
    sends_bursts: bool = False
    syphon_limits: SyphonLimits | None = None
    elsewhere: tuple[str, ...] = ()

    @property
    def is_ordered(self) -> bool:
        return self.options.ordering == "session"

    @property
    def redirects(self) -> bool:
        return self.options.redirect_after is not None

    @property
    def sides(self) -> tuple[NamespaceSide, ...]:
        """The namespaces that messages may be delivered in."""
        return ("primary", "secondary") if self.redirects else ("primary",)

    def without(self, dropped: Collection[int]) -> Plan:
        """The same plan without some of its lanes, incidents and deaths, which are counted through in that order."""
        parts = [*self.lanes, *self.incidents, *self.deaths]
        kept = [part for number, part in enumerate(parts) if number not in dropped]
        return replace(
            self,
            lanes=tuple(part for part in kept if isinstance(part, Lane)),
            incidents=tuple(part for part in kept if isinstance(part, Incident)),
            deaths=tuple(part for part in kept if isinstance(part, Death)),
        )

    @property
    def has_edge(self) -> bool:
        """Whether this run looks at the edge of sizes, and of other limits."""
        return self.profile.max_message_size_bytes == SIZE_LIMIT

    @property
    def part_count(self) -> int:
        return len(self.lanes) + len(self.incidents) + len(self.deaths)


def draw_plan(seed: int, *, only: Sequence[str] = (), has_named: bool = True) -> Plan:
    """The plan of a seed.

    Args:
        only: kinds of weather to draw from, and named corners that the run has; empty = all.
        has_named: whether named corners are drawn.
    """
    random, more = Random(f"plan {seed}"), Random(f"more {seed}")
    traffic_s = random.choice((60.0, 120.0, 240.0))
    kinds = draw_kinds(random, seed, [kind for kind in only if kind not in NAMED])
    lanes = _lanes(random, with_transactions=bool(set(kinds) & set(OF_TRANSACTIONS)))
    options = _options(random)
    sky = _sky(random, traffic_s, lanes, options)
    incidents = draw_incidents(kinds, sky)
    incidents = tuple(sorted((*incidents, *draw_aftermath(incidents, more, sky)), key=lambda incident: incident.at_s))
    has_edge = "size_edge" in kinds or random.random() < 0.04
    if "backlog_queue_missing" in kinds and options.provision == "verify":
        options = replace(options, provision="create")  # otherwise no program could ever begin again
    if "size_edge" in kinds and random.random() < 0.5:
        options = replace(options, reserve_backlog_headroom=False)
    skew_s = random.choice((-20.0, -3.0, 3.0, 20.0)) if "clock_skew" in kinds else 0.0
    front_ends = 2 if "front_end_lost" in kinds or random.random() < 0.15 or more.random() < 0.1 else 1
    lanes = _with_habits(lanes, more, is_ordered=options.ordering == "session", has_front_ends=front_ends > 1)
    plan = Plan(
        seed=seed,
        lanes=lanes,
        options=options,
        profile=_SMALL if has_edge else _LARGE,
        front_ends=front_ends,
        traffic_s=traffic_s,
        timeout_s=random.choice((8.0, 20.0, 60.0)),
        retries=random.choice((0, 1, 3)),
        persistence=random.choice((1, 3, 8)),
        latency_s=random.choice((0.0, 0.02, 0.2)),
        producers=random.choice((1, 1, 2)),
        syphons=_syphons(random, two="two_syphons" in kinds),
        skew_s=skew_s,
        has_partitioned_backlog=more.random() < 0.2,
        backlog_lock_s=None,
        looks=more.choice((0, 0, 0, 12)),
        kinds=kinds,
        incidents=incidents,
        deaths=tuple(_death(random, kind, traffic_s) for kind in draw_killed(kinds, random)),
    )
    plan = with_corners(plan, more, small=_SMALL)
    plan = with_timing(plan, Random(f"time {seed}"), Death)
    if has_named:
        plan = with_named(plan, Random(f"named {seed}"), only)
    if any(incident.harms_receiving for incident in plan.incidents):
        plan = replace(plan, lanes=tuple(replace(lane, deletes=False) for lane in plan.lanes))
    return plan


def draw_wire_plan(seed: int, *, only: Sequence[str] = ()) -> Plan:
    """The plan of a seed for a run over the simulated network: less traffic, and faults of the network.

    Args:
        only: kinds of weather to draw from, and named corners that the run has; empty = all.
    """
    random = Random(f"wire {seed}")
    traffic_s = random.choice((30.0, 60.0, 120.0))
    kinds = draw_network_kinds(random, tuple(kind for kind in only if kind not in NAMED))
    lanes = _lanes(random, with_transactions=bool(set(kinds) & set(OF_TRANSACTIONS)))[: random.choice((1, 2, 2))]
    options = replace(_options(random), provision="create", backlog_queue_count=random.choice((1, 2)))
    sky = _sky(random, traffic_s, lanes, options)
    incidents = tuple(
        sorted((incident for kind in kinds for incident in WIRE_KINDS[kind](sky)), key=lambda incident: incident.at_s)
    )
    # A deleting receiver may lose a message on its way to it: in a cut, an outage or its own death.
    is_lossy = (
        any(incident.what in LOSES or incident.harms_receiving for incident in incidents)
        or "receiver_killed" in kinds
        or len(kinds) > 2
    )
    plan = Plan(
        seed=seed,
        lanes=tuple(replace(lane, messages=12, deletes=lane.deletes and not is_lossy) for lane in lanes),
        options=options,
        profile=_LARGE,
        front_ends=random.choice((1, 1, 2)),
        traffic_s=traffic_s,
        timeout_s=random.choice((8.0, 20.0, 60.0)),
        retries=random.choice((0, 1, 3)),
        persistence=random.choice((1, 3, 8)),
        latency_s=0.0,
        producers=1,
        syphons=_syphons(random, two="two_syphons" in kinds),
        skew_s=0.0,
        has_partitioned_backlog=random.random() < 0.2,
        backlog_lock_s=None,
        looks=0,
        kinds=kinds,
        incidents=incidents,
        deaths=tuple(_death(random, kind, traffic_s) for kind in draw_killed(kinds, random)),
        sends_bursts=random.random() < 0.5,
        network=Line(
            latency_s=random.choice((0.0, 0.01, 0.1)),
            split_share=random.choice((0.0, 0.1, 0.5)),
            buffer_bytes=random.choice((256, 65_536)),
            token_s=random.choice((6.0, 20.0)) if "tokens_expire" in kinds else 3_600.0,
            max_frame_bytes=random.choice((512, 1_024, 65_536)),
        ),
    )
    return with_named(plan, Random(f"wire named {seed}"), only)


def _sky(random: Random, traffic_s: float, lanes: Sequence[Lane], options: PairedNamespaceOptions) -> Sky:
    return Sky(
        random,
        traffic_s,
        [lane.name for lane in lanes],
        fragment_count=SMALL_FRAGMENTS,
        queue_count=options.backlog_queue_count,
        interval_s=options.failover_interval.total_seconds(),
    )


def _death(random: Random, kind: str, traffic_s: float) -> Death:
    is_after_send = kind == "syphon_killed_after_send"
    is_at_call = is_after_send or random.random() < 0.6
    return Death(
        program=KILLED[kind],
        at_call=random.randint(1, 6) if is_after_send else random.randint(2, 120) if is_at_call else None,
        only_sends=is_after_send,
        after_work=is_after_send or random.random() < 0.5,
        at_s=random.choice((0.0, 0.3, 2.0, 0.3 * traffic_s)) * random.uniform(0.5, 1.5),
        pause_s=random.choice((0.5, 5.0, 40.0)),
    )


def _lanes(random: Random, *, with_transactions: bool) -> tuple[Lane, ...]:
    kinds: list[LaneKind] = ["plain", "keyed", "session", "dedup", "topic", "transactional"]
    chosen = random.sample(kinds, random.randint(2, 3))
    if with_transactions and "transactional" not in chosen:
        chosen[0] = "transactional"
    return tuple(_lane(random, kind) for kind in chosen)


def _lane(random: Random, kind: LaneKind) -> Lane:
    has_life = kind in ("plain", "keyed", "session", "topic") and random.random() < 0.4
    may_delete = kind in ("plain", "keyed") and random.random() < 0.15
    return Lane(
        name=f"{kind}-{random.choice(('orders', 'Billing', 'a/b.c'))}",
        kind=kind,
        is_partitioned=kind == "keyed" or random.random() < 0.5,
        senders=random.randint(1, 3),
        receivers=1 if kind == "session" and random.random() < 0.5 else random.randint(1, 2),
        messages=random.randint(14, 24),
        keys=random.randint(1, 4),
        lock_s=random.choice((5.0, 15.0, 60.0)),
        max_deliveries=random.choice((3, 10, 10)),
        life_s=random.choice((3.0, 20.0, 90.0, 400.0)) if has_life else None,
        dead_letters_expired=random.random() < 0.75,
        scheduled_share=0.0 if kind in ("dedup", "transactional") else random.choice((0.0, 0.0, 0.2)),
        care=random.choice((70, 90, 100)),
        deletes=may_delete,
        prefetch=random.choice((0, 0, 0, 5)),
    )


def _with_habits(lanes: Sequence[Lane], random: Random, *, is_ordered: bool, has_front_ends: bool) -> tuple[Lane, ...]:
    """Return the same lanes; in some runs receivers are slow, and the times to live are short enough to matter.

    Args:
        random: its own, so that all else of a seed stays as it was drawn.
    """
    work_s = random.choice((1.0, 4.0, 10.0)) if random.random() < 0.3 else 0.0
    outlives, runs_out = random.random() < 0.5, random.random() < 0.5
    found = []
    for lane in lanes:
        if is_ordered and outlives and lane.requires_session:
            found.append(_long_lived(lane, random))
        elif has_front_ends and runs_out and lane.kind in ("plain", "keyed", "topic"):
            found.append(_short_lived(lane, random))
        else:
            found.append(replace(lane, work_s=work_s))
    return tuple(found)


def _long_lived(lane: Lane, random: Random) -> Lane:
    """The same lane, with messages that outlive an outage and tell at its end how long it was."""
    return replace(lane, life_s=random.choice((90.0, 400.0)), dead_letters_expired=True)


def _short_lived(lane: Lane, random: Random) -> Lane:
    """The same lane, with messages whose life may end while they wait for a slow receiver in a front end."""
    life_s = random.choice((3.0, 10.0, 20.0))
    return replace(lane, life_s=life_s, dead_letters_expired=True, work_s=10.0, prefetch=0, deletes=False)


def _options(random: Random) -> PairedNamespaceOptions:
    return PairedNamespaceOptions(
        failover_interval=timedelta(seconds=random.choice((0, 0, 2, 10, 25))),
        ping_primary_interval=timedelta(seconds=random.choice((1, 5, 20))),
        backlog_queue_count=random.choice((1, 2, 4)),
        divert_while_suspect=random.random() < 0.3,
        pings_to_recover=random.choice((1, 1, 3)),
        probe="link" if random.random() < 0.15 else "message",
        backlog_time_to_live="restart" if random.random() < 0.25 else "remaining",
        ordering="session" if random.random() < 0.3 else "none",
        provision=random.choice(("create", "create", "verify", "none")),
        reserve_backlog_headroom=random.random() < 0.8,
        syphon_long_poll=timedelta(seconds=random.choice((30, 120, 900))),
        primary_name="pair-7" if random.random() < 0.2 else None,
    )


def _syphons(random: Random, *, two: bool) -> tuple[SyphonKind, ...]:
    first: SyphonKind = random.choice(("run", "option", "empty"))
    return (first, "run") if two else (first,)
