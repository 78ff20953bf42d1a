"""The configurations of the runs: programs, traffic and faults."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from tests.processes.faults import PRIMARY, SECONDARY, FaultSource, Kind

_FRAGMENT_FAULTS: Final = (
    {"kind": "down", "entity": "orders", "fragments": [0, 5, 9, 13]},
    {"kind": "hang", "entity": "orders", "fragments": [2, 3, 7]},
    {"kind": "down", "entity": "orders"},
)
_WIRE_FAULTS: Final = (
    {"kind": "detach", "condition": "amqp:link:detach-forced"},
    {"kind": "drop_acknowledgement", "probability": 0.4},
    {"kind": "server_busy", "probability": 0.2},
    {"kind": "error", "entity": "orders", "operations": ["send"], "probability": 0.5},
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """One combination of programs, traffic and faults.

    Attributes:
        name, purpose: for people.
        outages: faults that make the primary unavailable, each long enough for a failover.
        sources: sources of further faults.
        keys: see `SendingPlan`.
        queue: how `orders` is made; of a topic, how its subscriptions are.
        rules: the subscriptions of the topic `orders`, with a SQL filter each; none = it is a queue.
        sending, receiving: more of the plans.
        resumes: whether a sender that was killed sends again what it had left in doubt.
    """

    name: str
    purpose: str
    outages: tuple[FaultSource, ...]
    sources: tuple[FaultSource, ...]
    keys: str = "none"
    ordering: str = "none"
    queue: dict[str, Any] = field(default_factory=dict)
    rules: dict[str, str] = field(default_factory=dict)
    senders: int = 2
    receivers: int = 2
    syphons: int = 1
    failover_interval_s: float = 0.0
    sending: dict[str, Any] = field(default_factory=dict)
    receiving: dict[str, Any] = field(default_factory=dict)
    resumes: bool = False

    @property
    def has_sessions(self) -> bool:
        return self.keys == "session"

    @property
    def paths(self) -> list[str]:
        """What is received from."""
        return [f"orders/Subscriptions/{name}" for name in self.rules] or ["orders"]


CONFIGURATIONS: Final = (
    Configuration(
        name="plain",
        purpose="a plain queue; connections are reset, also in the midst of a frame; answers get lost",
        outages=(FaultSource(Kind.RESET, PRIMARY),),
        sources=(
            FaultSource(Kind.MID_FRAME, "sender-*>primary"),
            FaultSource(Kind.MID_FRAME, "receiver-*>primary"),
            FaultSource(Kind.MID_FRAME, "syphon-*>primary"),
            FaultSource(Kind.MID_FRAME, "syphon-*>secondary"),
            FaultSource(Kind.LOST_ANSWERS, "sender-*>primary", 6.0),
            FaultSource(Kind.LOST_ANSWERS, "sender-*>secondary", 6.0),
            FaultSource(Kind.RESET, "syphon-*>secondary", 1.0),
        ),
        sending={"expiring_share": 0.03, "scheduled_share": 0.03},
    ),
    Configuration(
        name="partitioned",
        purpose="a partitioned queue with partition keys; fragments are down or hang, and the primary with them",
        outages=(FaultSource(Kind.FAULT, PRIMARY, switches=({"kind": "down", "entity": "orders"},)),),
        sources=(
            FaultSource(Kind.FAULT, PRIMARY, 5.0, switches=_FRAGMENT_FAULTS),
            FaultSource(Kind.RESET, "sender-*>primary", 1.5),
            FaultSource(Kind.LOST_ANSWERS, "sender-*>primary", 5.0),
            FaultSource(Kind.RESET, "receiver-*>primary", 1.0),
        ),
        keys="partition",
        queue={"enable_partitioning": True},
        sending={"lanes": 10},
    ),
    Configuration(
        name="sessions",
        purpose="sessions in order across failovers, with ordering=session; the syphon is ended and started again",
        outages=(FaultSource(Kind.BLACK_HOLE, PRIMARY),),
        sources=(
            FaultSource(Kind.TERMINATE, "syphon-*", 1.0),
            FaultSource(Kind.RESET, "sender-*>primary", 1.0),
            FaultSource(Kind.LOST_ANSWERS, "sender-*>primary", 5.0),
            FaultSource(Kind.RESET, "receiver-*>primary", 0.5),
            FaultSource(Kind.RESET, "syphon-*>primary", 1.0),
            FaultSource(Kind.LATENCY, "sender-*>secondary", 3.0),
        ),
        keys="session",
        ordering="session",
        queue={"requires_session": True},
        receiving={"workers": 3, "kept": 0.0},
    ),
    Configuration(
        name="topic",
        purpose="a topic with subscriptions and filters; faults of the emulator's wire",
        outages=(FaultSource(Kind.BLACK_HOLE, PRIMARY),),
        sources=(
            FaultSource(Kind.FAULT, PRIMARY, 2.0, switches=_WIRE_FAULTS),
            FaultSource(Kind.FAULT, SECONDARY, 1.0, switches=_WIRE_FAULTS[:2]),
            FaultSource(Kind.MID_FRAME, PRIMARY),
        ),
        rules={"all": "1=1", "red": "color = 'red'", "not-red": "color <> 'red'"},
        failover_interval_s=1.0,
        receiving={"workers": 1},
    ),
    Configuration(
        name="duplicates",
        purpose="duplicate detection; answers get lost on both sides, senders are killed and send again what they left",
        outages=(FaultSource(Kind.LOST_ANSWERS, PRIMARY),),
        sources=(
            FaultSource(Kind.LOST_ANSWERS, "sender-*>primary", 6.0),
            FaultSource(Kind.LOST_ANSWERS, "sender-*>secondary", 6.0),
            FaultSource(Kind.LOST_ANSWERS, "syphon-*>primary", 4.0),
            FaultSource(Kind.LOST_ANSWERS, "syphon-*>secondary", 4.0),
            FaultSource(Kind.KILL, "sender-*", 1.0),
            FaultSource(Kind.KILL, "syphon-*", 1.0),
        ),
        queue={"requires_duplicate_detection": True},
        resumes=True,
    ),
    Configuration(
        name="killed senders",
        purpose="senders and receivers are killed repeatedly while they work",
        outages=(FaultSource(Kind.RESET, PRIMARY),),
        sources=(
            FaultSource(Kind.KILL, "sender-*", 1.0),
            FaultSource(Kind.KILL, "sender-*", 1.0),
            FaultSource(Kind.KILL, "receiver-*", 1.0),
            FaultSource(Kind.LATENCY, "sender-*>primary", 3.0),
        ),
        senders=3,
        resumes=True,
    ),
    Configuration(
        name="killed syphon",
        purpose="the syphon is killed while it moves messages, between send and complete too",
        outages=(FaultSource(Kind.RESET, "sender-1>primary"), FaultSource(Kind.RESET, "sender-2>primary")),
        sources=(
            FaultSource(Kind.KILL, "syphon-*", 0.8),
            FaultSource(Kind.LATENCY, "syphon-*>primary", 3.0),
            FaultSource(Kind.LATE_ANSWERS, "syphon-*>secondary", 2.0),
            FaultSource(Kind.RESET, "sender-*>primary", 2.0),
        ),
        keys="partition",
    ),
    Configuration(
        name="three syphons",
        purpose="three syphons side by side; they are killed, ended and stopped for longer than a lock lasts",
        outages=(FaultSource(Kind.RESET, "sender-1>primary"), FaultSource(Kind.BLACK_HOLE, "sender-2>primary")),
        sources=(
            FaultSource(Kind.TERMINATE, "syphon-*", 1.0),
            FaultSource(Kind.KILL, "syphon-*", 1.0),
            FaultSource(Kind.FREEZE, "syphon-*", 9.0),
            FaultSource(Kind.MID_FRAME, "syphon-*>primary"),
            FaultSource(Kind.MID_FRAME, "syphon-*>secondary"),
            FaultSource(Kind.RESET, "sender-*>primary", 2.0),
        ),
        syphons=3,
    ),
    Configuration(
        name="frozen",
        purpose="the primary's process is stopped for longer than every timeout; so are senders and receivers",
        outages=(FaultSource(Kind.FREEZE, PRIMARY),),
        sources=(
            FaultSource(Kind.FREEZE, "sender-*", 8.0),
            FaultSource(Kind.FREEZE, "receiver-*", 8.0),
            FaultSource(Kind.FREEZE, SECONDARY, 3.0),
        ),
        sending={"scheduled_share": 0.05},
    ),
    Configuration(
        name="both away",
        purpose="both namespaces in a black hole at once: every send fails",
        outages=(FaultSource(Kind.BLACK_HOLE, PRIMARY), FaultSource(Kind.BLACK_HOLE, SECONDARY)),
        sources=(
            FaultSource(Kind.BLACK_HOLE, "sender-*>primary", 6.0),
            FaultSource(Kind.RESET, SECONDARY, 2.0),
            FaultSource(Kind.RESET, "sender-*>primary", 2.0),
        ),
        sending={"expiring_share": 0.05},
    ),
    Configuration(
        name="slow",
        purpose="slow links, late answers, tiny slices and large messages",
        outages=(FaultSource(Kind.LOST_REQUESTS, PRIMARY),),
        sources=(
            FaultSource(Kind.SLICES, PRIMARY, 4.0),
            FaultSource(Kind.SLICES, SECONDARY, 4.0),
            FaultSource(Kind.SLOW_LINK, "sender-*>primary", 5.0),
            FaultSource(Kind.SLOW_LINK, "syphon-*>secondary", 5.0),
            FaultSource(Kind.LATENCY, PRIMARY, 4.0),
            FaultSource(Kind.LATE_ANSWERS, PRIMARY, 3.0),
            FaultSource(Kind.MID_FRAME, "sender-*>primary"),
        ),
        sending={"least_bytes": 50, "most_bytes": 20_000, "pause_s": 0.5},
    ),
    Configuration(
        name="everything",
        purpose="partition keys and duplicate detection on a partitioned queue, and a little of all that can fault",
        outages=(FaultSource(Kind.LOST_REQUESTS, PRIMARY),),
        sources=(
            FaultSource(Kind.RESET, PRIMARY, 2.0),
            FaultSource(Kind.LOST_ANSWERS, "sender-*>primary", 5.0),
            FaultSource(Kind.BLACK_HOLE, "sender-*>secondary", 4.0),
            FaultSource(Kind.KILL, "sender-*", 1.0),
            FaultSource(Kind.KILL, "receiver-*", 1.0),
            FaultSource(Kind.KILL, "syphon-*", 1.0),
            FaultSource(Kind.TERMINATE, "syphon-*", 1.0),
            FaultSource(Kind.FREEZE, "syphon-*", 7.0),
            FaultSource(Kind.FREEZE, PRIMARY, 3.0),
            FaultSource(Kind.SLICES, PRIMARY, 2.0),
            FaultSource(Kind.FAULT, PRIMARY, 3.0, switches=_FRAGMENT_FAULTS),
        ),
        keys="partition",
        queue={"enable_partitioning": True, "requires_duplicate_detection": True},
        sending={"list_share": 0.0},  # there a list must have one message id
        syphons=2,
        resumes=True,
    ),
)
"""In the order in which they are run."""


def named(name: str) -> Configuration:
    """The configuration of that name.

    Raises:
        LookupError: there is none; the text names those that there are.
    """
    for configuration in CONFIGURATIONS:
        if configuration.name == name:
            return configuration
    raise LookupError(f"there is no configuration {name!r}: there are {', '.join(one.name for one in CONFIGURATIONS)}")
