"""The faults of a run over the simulated network: which kinds there are, and when they occur.

cuts, hole, hole_upstream, hole_downstream, half_open, refuse, restart, slow, lag    `network.Network`
detach, unanswered, busy                                                             faults of the emulator
bad_tokens                                                                           clients sign with another key
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Final

from sbclient.errors import ServiceBusConnectionError
from sbclient.testing import FaultKind
from sbclient.transport.amqp.inbox import DRAIN_S
from tests.simulation.weather import KILLED, KINDS, Draw, Incident, Sky

if TYPE_CHECKING:
    from tests.simulation.plan import Plan

LOSES: Final = (
    "cuts",
    "hole",
    "hole_upstream",
    "hole_downstream",
    "half_open",
    "restart",
    "detach",
    "bad_tokens",
)
"""Faults that may lose what is under way to a receiver, or deliver it very late."""

HOLES: Final = ("hole", "hole_upstream", "hole_downstream", "slow", "lag")


def _network(kind: str, what: str, **facts: object) -> Draw:
    return lambda sky: [sky.incident(kind, what, **facts)]


def _of_side(kind: str, what: str) -> Draw:
    def draw(sky: Sky) -> list[Incident]:
        side = sky.random.choice(("primary", "primary", "secondary"))
        return [sky.incident(kind, what, side=side, probability=sky.random.choice((0.01, 0.05, 0.2)))]

    return draw


def _half_open(sky: Sky) -> list[Incident]:
    return [
        sky.incident("half_open", "half_open", side=side, span_s=0.0, probability=sky.random.choice((0.5, 1.0)))
        for side in sky.random.choice((("primary",), ("primary", "secondary"), ("primary", "primary")))
    ]


def _restarts(sky: Sky) -> list[Incident]:
    side = sky.random.choice(("primary", "primary", "secondary"))
    return [
        sky.incident("server_restart", "restart", side=side, span_s=sky.random.choice((0.0, 0.5, 3.0)))
        for _ in range(3)
    ]


def _slow(sky: Sky) -> list[Incident]:
    return [sky.incident("slow_line", "slow", bytes_per_s=sky.random.choice((300.0, 2_000.0, 20_000.0)))]


def _lag(sky: Sky) -> list[Incident]:
    side = sky.random.choice(("primary", "secondary"))
    return [sky.incident("lag", "lag", side=side, latency_s=sky.random.choice((0.3, 2.0, 6.0)))]


def _detach(sky: Sky) -> list[Incident]:
    return [
        sky.incident("detached", "detach", path=sky.random.choice((None, sky.path())), span_s=span_s)
        for span_s in (0.0, 0.0, sky.random.choice((0.0, 5.0, 20.0)))
    ]


def _unanswered(sky: Sky) -> list[Incident]:
    return [sky.incident("unanswered", "unanswered", probability=sky.random.choice((0.05, 0.3)), path=sky.path())]


NETWORK_KINDS: Final[dict[str, Draw]] = {
    "cuts": _of_side("cuts", "cuts"),
    "hole": _network("hole", "hole"),
    "hole_upstream": _network("hole_upstream", "hole_upstream"),
    "hole_downstream": _network("hole_downstream", "hole_downstream"),
    "secondary_hole": _network("secondary_hole", "hole", side="secondary", span_s=20.0),
    "half_open": _half_open,
    "refused": lambda sky: [sky.incident("refused", "refuse"), sky.incident("refused", "restart", span_s=0.0)],
    "server_restart": _restarts,
    "slow_line": _slow,
    "lag": _lag,
    "detached": _detach,
    "unanswered": _unanswered,
    "forced": lambda sky: [
        sky.incident(
            "forced", FaultKind.ERROR, error=ServiceBusConnectionError, probability=sky.random.choice((0.02, 0.1))
        )
    ],
    "tokens_expire": lambda sky: [],
    "tokens_refused": _network("tokens_refused", "bad_tokens"),
}
"""Kinds of faults of the network."""

BROKER_KINDS: Final = (
    "primary_down",
    "entity_down",
    "entity_send_down",
    "black_hole",
    "internal_error",
    "acknowledgement_lost",
    "commit_lost",
    "commit_refused",
    "entity_disabled",
    "entity_deleted",
    "server_busy",
    "token_expired",
    "secondary_down",
    "backlog_queue_down",
    "caller_gives_up",
    "two_syphons",
    "producer_killed",
    "receiver_killed",
    "syphon_killed",
    "syphon_killed_after_send",
)
"""Kinds of `weather` that occur here too."""

WIRE_KINDS: Final[dict[str, Draw]] = {**NETWORK_KINDS, **{kind: KINDS[kind] for kind in BROKER_KINDS}}


def draw_network_kinds(random: Random, only: tuple[str, ...] = ()) -> tuple[str, ...]:
    """One to three kinds of the network for a run, and in most runs some of the broker."""
    if only:
        return tuple(random.sample(only, min(random.randint(1, 4), len(only))))
    kinds = random.sample(list(NETWORK_KINDS), random.randint(1, 3))
    kinds += random.sample(BROKER_KINDS, random.choice((0, 1, 1, 2)))
    return tuple(kinds)


def loses_deliveries(plan: Plan) -> bool:
    """Whether messages may be under way to a receiver that never gets them."""
    if plan.network is None:
        return False
    return (
        any(incident.what in (*LOSES, *HOLES) or incident.what is FaultKind.ERROR for incident in plan.incidents)
        or "tokens_expire" in plan.kinds
        or any(kind in KILLED for kind in plan.kinds)
    )


def transit_s(plan: Plan) -> float:
    """How long a message may be under way at most, with the wait for the answer to a drain."""
    if plan.network is None:
        return 0.0
    spans_s = [incident.span_s + incident.latency_s for incident in plan.incidents if incident.what in HOLES]
    return sum(spans_s) + plan.network.latency_s + DRAIN_S
