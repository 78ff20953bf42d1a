"""The faults of a run: their kinds, their times and how they end.

Most are switches of the broker (`sbclient.broker.faults`); the others change entities, as an operator would, or what
the front ends keep. Every fault is healed when the traffic ends.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from random import Random
from typing import Final

from sbclient.errors import (
    ServiceBusAuthorizationError,
    ServiceBusCommunicationError,
    ServiceBusConnectionError,
    ServiceBusError,
    ServiceBusInternalError,
    ServiceBusQuotaExceededError,
)
from sbclient.testing import Fault, FaultKind, Operation

SENDING: Final = (Operation.OPEN, Operation.SEND, Operation.SCHEDULE)
SETTLING: Final = (Operation.SETTLE,)
HARMS_RECEIVING: Final = (FaultKind.LOSE_ACKNOWLEDGEMENT, FaultKind.SLOW, "cut")


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """One thing that goes wrong for a while.

    Attributes:
        kind: one of `KINDS`.
        side: whose.
        path: of the entity; None = the whole namespace. `#2` stands for the backlog queue with index 2.
        what: the switch, or what is done to the entity: `disable`, `delete`, `update`, `lose_front_end`, `forge`,
            `miss`, `odd`, `cut`, `fill`; or a fault of the network, see `network_weather`.
        bytes_per_s: of a slow network.
    """

    kind: str
    side: str = "primary"
    at_s: float
    span_s: float
    what: FaultKind | str
    path: str | None = None
    fragments: tuple[int, ...] | None = None
    operations: tuple[Operation, ...] | None = None
    probability: float = 1.0
    latency_s: float = 1.0
    bytes_per_s: float = 1_000.0
    error: type[ServiceBusError] = ServiceBusInternalError

    @property
    def harms_receiving(self) -> bool:
        """Whether a message may be lost on its way to a receiver that deletes what it receives."""
        return self.what in HARMS_RECEIVING or self.what == "delete"

    def fault(self, path: str | None, until_at: float) -> Fault:
        """The switch of the broker."""
        assert isinstance(self.what, FaultKind)
        return Fault(
            self.what,
            path,
            self.fragments,
            self.operations,
            self.probability,
            until_at=until_at,
            latency_s=self.latency_s,
            error=self.error,
        )

    def __str__(self) -> str:
        what = self.what.value if isinstance(self.what, FaultKind) else self.what
        where = self.path or self.side
        fragments = "" if self.fragments is None else f" fragments {','.join(map(str, self.fragments))}"
        operations = "" if self.operations is None else f" on {','.join(self.operations)}"
        chance = "" if self.probability == 1 else f" p={self.probability:g}"
        error = f" {self.error.__name__}" if self.what is FaultKind.ERROR else ""
        span = f"{self.at_s:.1f}-{self.at_s + self.span_s:.1f} s"
        return f"{span} {self.kind}: {what}{error} {self.side} {where}{fragments}{operations}{chance}"


class Sky:
    """What a kind of weather may draw from."""

    def __init__(
        self,
        random: Random,
        traffic_s: float,
        paths: Sequence[str],
        *,
        fragment_count: int,
        queue_count: int,
        interval_s: float,
    ) -> None:
        self.random = random
        self.traffic_s = traffic_s
        self.paths = paths
        self.fragment_count = fragment_count
        self.queue_count = queue_count
        self.interval_s = interval_s

    def span(self) -> float:
        """Short ones mostly end before a failover, long ones do not."""
        return self.random.choice((3.0, 15.0, 40.0, 0.7 * self.traffic_s)) * self.random.uniform(0.7, 1.2)

    def at(self) -> float:
        return self.random.uniform(0.02, 0.6) * self.traffic_s

    def outage(self) -> dict[str, object]:
        """Return times of an outage that usually lasts until a failover."""
        if self.random.random() < 0.08:
            return {}
        span_s = self.interval_s * 1.1 + self.traffic_s * self.random.uniform(0.3, 0.7)
        return {"at_s": self.random.uniform(0.03, 0.3) * self.traffic_s, "span_s": span_s}

    def path(self) -> str:
        return self.random.choice(self.paths)

    def queue(self) -> str:
        return f"#{self.random.randrange(self.queue_count)}"

    def some_fragments(self) -> tuple[int, ...]:
        count = self.random.choice((1, 2, self.fragment_count))
        return tuple(sorted(self.random.sample(range(self.fragment_count), count)))

    def incident(self, kind: str, what: FaultKind | str, **facts: object) -> Incident:
        facts = {"at_s": self.at(), "span_s": self.span(), **facts}
        return Incident(kind=kind, what=what, **facts)  # type: ignore[arg-type]  # the facts are the fields of a Incident


Draw = Callable[[Sky], list[Incident]]


def _one(kind: str, what: FaultKind | str, **facts: object) -> Draw:
    return lambda sky: [sky.incident(kind, what, **(sky.outage() if kind in OUTAGES else {}), **facts)]


def _entity(kind: str, what: FaultKind | str, **facts: object) -> Draw:
    return lambda sky: [sky.incident(kind, what, path=sky.path(), **(sky.outage() if kind in OUTAGES else {}), **facts)]


def _fragments(kind: str, what: FaultKind, **facts: object) -> Draw:
    return lambda sky: [sky.incident(kind, what, path=sky.path(), fragments=sky.some_fragments(), **facts)]


def _backlog(kind: str, what: FaultKind | str, **facts: object) -> Draw:
    return lambda sky: [sky.incident(kind, what, side="secondary", path=sky.queue(), **facts)]


def _flapping(sky: Sky) -> list[Incident]:
    path, begin, fragments = sky.path(), sky.at(), sky.random.choice((None, sky.some_fragments()))
    return [
        sky.incident("flaps", FaultKind.DOWN, path=path, fragments=fragments, at_s=begin + number * 9.0, span_s=5.0)
        for number in range(4)
    ]


def _both_down(sky: Sky) -> list[Incident]:
    primary = sky.incident("both_down", FaultKind.DOWN, **sky.outage())
    begin, span = primary.at_s + primary.span_s / 3, primary.span_s / 3
    return [primary, sky.incident("both_down", FaultKind.DOWN, side="secondary", at_s=begin, span_s=span)]


def _back_during_switch(sky: Sky) -> list[Incident]:
    """The primary returns just when its entities fail over."""
    span = max(sky.interval_s, 1.0) + sky.random.uniform(-1.0, 3.0)
    return [sky.incident("back_during_switch", FaultKind.DOWN, span_s=span)]


def _restart(sky: Sky) -> list[Incident]:
    side = sky.random.choice(("primary", "secondary"))
    return [sky.incident("restart", FaultKind.DOWN, side=side, span_s=sky.random.uniform(0.5, 3.0)) for _ in range(2)]


def _share(sky: Sky) -> float:
    return sky.random.choice((0.05, 0.2, 0.5))


def _lossy(kind: str, what: FaultKind, **facts: object) -> Draw:
    return lambda sky: [
        sky.incident(kind, what, probability=_share(sky), path=sky.random.choice((None, sky.path())), **facts)
    ]


_CONNECTION = {"error": ServiceBusConnectionError}

KINDS: Final[dict[str, Draw]] = {
    "primary_down": _one("primary_down", FaultKind.DOWN),
    "entity_down": _entity("entity_down", FaultKind.DOWN),
    "entity_send_down": _entity("entity_send_down", FaultKind.DOWN, operations=SENDING),
    "entity_hangs": _entity("entity_hangs", FaultKind.HANG),
    "fragments_down": _fragments("fragments_down", FaultKind.DOWN),
    "fragment_hangs": _fragments("fragment_hangs", FaultKind.HANG),
    "fragment_slow": _fragments("fragment_slow", FaultKind.SLOW, latency_s=6.0),
    "fragment_busy": _fragments("fragment_busy", FaultKind.BUSY),
    "fragment_full": _fragments(
        "fragment_full", FaultKind.ERROR, operations=SENDING, error=ServiceBusQuotaExceededError
    ),
    "flaps": _flapping,
    "slow_link": _one("slow_link", FaultKind.SLOW, latency_s=2.5),
    "very_slow_link": _one("very_slow_link", FaultKind.SLOW, latency_s=30.0),
    "request_lost": _lossy("request_lost", FaultKind.HANG),
    "send_request_lost": _lossy("send_request_lost", FaultKind.HANG, operations=SENDING),
    "acknowledgement_lost": _lossy("acknowledgement_lost", FaultKind.LOSE_ACKNOWLEDGEMENT),
    "send_acknowledgement_lost": _lossy(
        "send_acknowledgement_lost", FaultKind.LOSE_ACKNOWLEDGEMENT, operations=(Operation.SEND, Operation.SCHEDULE)
    ),
    "settle_acknowledgement_lost": _lossy(
        "settle_acknowledgement_lost", FaultKind.LOSE_ACKNOWLEDGEMENT, operations=SETTLING
    ),
    "settle_refused": _lossy("settle_refused", FaultKind.ERROR, operations=SETTLING),
    "commit_lost": _lossy("commit_lost", FaultKind.LOSE_ACKNOWLEDGEMENT, operations=(Operation.TRANSACTION,)),
    "commit_refused": _lossy("commit_refused", FaultKind.ERROR, operations=(Operation.TRANSACTION,)),
    "reset": _lossy("reset", FaultKind.ERROR, **_CONNECTION),
    "detach": _lossy("detach", FaultKind.ERROR, error=ServiceBusCommunicationError),
    "internal_error": _lossy("internal_error", FaultKind.ERROR),
    "black_hole": _one("black_hole", FaultKind.HANG),
    "server_busy": _one("server_busy", FaultKind.BUSY),
    "entity_busy": _entity("entity_busy", FaultKind.BUSY),
    "token_expired": _lossy("token_expired", FaultKind.ERROR, error=ServiceBusAuthorizationError),
    "clock_skew": lambda sky: [],
    "restart": _restart,
    "front_end_lost": lambda sky: [
        sky.incident("front_end_lost", "lose_front_end", at_s=sky.at(), span_s=0.0) for _ in range(3)
    ],
    "entity_disabled": _entity("entity_disabled", "disable"),
    "entity_deleted": _entity("entity_deleted", "delete"),
    "entity_updated": _entity("entity_updated", "update"),
    "secondary_down": _one("secondary_down", FaultKind.DOWN, side="secondary"),
    "secondary_slow": _one("secondary_slow", FaultKind.SLOW, side="secondary", latency_s=3.0),
    "secondary_busy": _one("secondary_busy", FaultKind.BUSY, side="secondary", span_s=15.0),
    "backlog_queue_down": _backlog("backlog_queue_down", FaultKind.DOWN),
    "backlog_queue_hangs": _backlog("backlog_queue_hangs", FaultKind.HANG),
    "backlog_queue_full": _backlog(
        "backlog_queue_full", FaultKind.ERROR, operations=SENDING, error=ServiceBusQuotaExceededError
    ),
    "backlog_acknowledgement_lost": _backlog(
        "backlog_acknowledgement_lost", FaultKind.LOSE_ACKNOWLEDGEMENT, probability=0.3
    ),
    "backlog_settle_refused": _backlog("backlog_settle_refused", FaultKind.ERROR, operations=SETTLING, probability=0.5),
    "backlog_reset": _one("backlog_reset", FaultKind.ERROR, side="secondary", probability=0.2, **_CONNECTION),
    "backlog_queue_missing": _backlog("backlog_queue_missing", "miss", at_s=0.5, span_s=0.0),
    "backlog_queue_odd": _backlog("backlog_queue_odd", "odd", at_s=-1.0, span_s=0.0),
    "both_down": _both_down,
    "back_during_switch": _back_during_switch,
    "wire_cut": lambda sky: [sky.incident("wire_cut", "cut", probability=_share(sky) / 4)],
    "secondary_wire_cut": lambda sky: [
        sky.incident("secondary_wire_cut", "cut", side="secondary", probability=_share(sky) / 4)
    ],
    "size_edge": lambda sky: [],
    "caller_gives_up": lambda sky: [],
    "syphon_killed": lambda sky: [],
    "syphon_killed_after_send": lambda sky: [],
    "two_syphons": lambda sky: [],
    "producer_killed": lambda sky: [],
    "receiver_killed": lambda sky: [],
    "forged_backlog": lambda sky: [
        sky.incident("forged_backlog", "forge", side="secondary", path=sky.queue(), span_s=0.0) for _ in range(4)
    ],
    "forged_tokens": lambda sky: [],
    "malformed_frames": lambda sky: [],
}
"""Every kind of weather, and how it draws its incidents. Those without any are drawn with the programs."""

PAIRS: Final = tuple(combinations(KINDS, 2))


def pairs_of(kinds: Sequence[str]) -> list[tuple[str, str]]:
    """Every two kinds of weather that met in a run."""
    return list(combinations(sorted(KINDS.keys() & set(kinds)), 2))


OUTAGES: Final = (
    "primary_down",
    "entity_down",
    "entity_send_down",
    "entity_hangs",
    "black_hole",
    "both_down",
)
"""Kinds that mostly last long enough to fail something over; most runs have one."""

KILLED: Final = {
    "syphon_killed": "syphon-0",
    "syphon_killed_after_send": "syphon-0",
    "producer_killed": "producer-0",
    "receiver_killed": "receivers",
}
"""The programs that are killed."""


OF_TRANSACTIONS: Final = ("commit_lost", "commit_refused")
"""Kinds that mean nothing without transactions."""


def draw_kinds(random: Random, number: int, only: Sequence[str] = ()) -> tuple[str, ...]:
    """One to four kinds for a run.

    Args:
        number: of the run. Each second run has three or four kinds, and two of them are the next of all the pairs, so
            that every two kinds meet repeatedly.
        only: kinds to draw from; empty = all.
    """
    if only:
        return tuple(random.sample(list(only), min(random.randint(1, 4), len(only))))
    met = list(PAIRS[number // 2 % len(PAIRS)]) if number % 2 else []
    others = [kind for kind in KINDS if kind not in met]
    kinds = met + random.sample(others, random.randint(1, 2))
    if not set(kinds) & set(OUTAGES) and random.random() < 0.99:
        kinds[random.randrange(len(met), len(kinds))] = random.choice(OUTAGES)
    return tuple(kinds)


def draw_incidents(kinds: Sequence[str], sky: Sky) -> tuple[Incident, ...]:
    """What the kinds bring, in order of time."""
    return tuple(
        sorted((incident for kind in kinds for incident in KINDS[kind](sky)), key=lambda incident: incident.at_s)
    )


def draw_aftermath(incidents: Sequence[Incident], random: Random, sky: Sky) -> tuple[Incident, ...]:
    """What comes behind some outages: a namespace that is back is busy with all that has waited for it.

    Args:
        random: its own, so that all else of a seed stays as it was drawn.
    """
    found = []
    for incident in incidents:
        if incident.kind in OUTAGES and incident.side == "primary" and random.random() < 0.4:
            back_at_s = min(incident.at_s + incident.span_s, 0.8 * sky.traffic_s)
            span_s = random.uniform(5.0, 0.4 * sky.traffic_s)
            found.append(Incident(kind=incident.kind, at_s=back_at_s, span_s=span_s, what=FaultKind.BUSY))
    return tuple(found)


def draw_killed(kinds: Sequence[str], random: Random) -> tuple[str, ...]:
    """For each death the kind that brings it."""
    return tuple(kind for kind in kinds if kind in KILLED for _ in range(random.randint(1, 3)))
