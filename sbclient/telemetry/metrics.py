"""What this package measures, as one table, and its one door to OpenTelemetry's metrics.

Nothing here imports OpenTelemetry. Whoever wants to read measurements does: an application that has a meter provider,
or `sbclient.prometheus`. Until then a measurement costs a look into a dict and is forgotten.

Laws:
1. What is measured goes to the global meter provider, whenever it is set, and to every provider that was attached.
2. Attributes are bounded: names of entities, backlog queues, states, reasons. Never an id, a key, a session or a body,
   and no path that only a message names and the primary has not accepted.
3. What is a state rather than an event is asked for when somebody reads, of objects that say they are watched. Reading
   may happen in any thread; nothing is polled for it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias
from weakref import ref

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, Meter, MeterProvider, Observation

SCOPE: Final = "sbclient"
"""The name of the meter, by which views and processors find what is measured here."""

SYSTEM: Final = "messaging.system"
OPERATION: Final = "messaging.operation.name"
DESTINATION: Final = "messaging.destination.name"
SERVER: Final = "server.address"
PORT: Final = "server.port"
ERROR: Final = "error.type"
ROUTE: Final = "sbclient.route"
OUTCOME: Final = "sbclient.outcome"
STATE: Final = "sbclient.state"
REASON: Final = "sbclient.reason"

Attributes: TypeAlias = Mapping[str, str | int]


class Kind(StrEnum):
    """How values of an instrument are put together; the last two are asked for when somebody reads."""

    COUNTER = "counter"
    HISTOGRAM = "histogram"
    UP_DOWN_COUNTER = "observable up-down counter"
    GAUGE = "observable gauge"


@dataclass(frozen=True, slots=True)
class Instrument:
    """One thing that is measured.

    Attributes:
        unit: of UCUM, `s` or an annotation such as `{message}`.
        attributes: every attribute its values may have.
    """

    name: str
    kind: Kind
    unit: str
    description: str
    attributes: tuple[str, ...]


_ENTITY: Final = (DESTINATION, SERVER, PORT)

OPERATION_DURATION: Final = Instrument(
    "messaging.client.operation.duration",
    Kind.HISTOGRAM,
    "s",
    "Time of a call that sends, until its messages were accepted or given up, with retries and diversion.",
    (SYSTEM, OPERATION, *_ENTITY, ROUTE, OUTCOME, ERROR),
)
SENT: Final = Instrument(
    "messaging.client.sent.messages",
    Kind.COUNTER,
    "{message}",
    "Messages that were sent, by the way they went and what became of them.",
    (SYSTEM, OPERATION, *_ENTITY, ROUTE, OUTCOME, ERROR),
)
CONSUMED: Final = Instrument(
    "messaging.client.consumed.messages",
    Kind.COUNTER,
    "{message}",
    "Messages that were handed to the application.",
    (SYSTEM, OPERATION, *_ENTITY),
)
FAILOVER_STATE: Final = Instrument(
    "sbclient.failover.state",
    Kind.UP_DOWN_COUNTER,
    "{client}",
    "For each state of an entity, how many clients of this process see it in that state: 1 or 0 where there is one.",
    (*_ENTITY, STATE),
)
FAILOVER_AGE: Final = Instrument(
    "sbclient.failover.age",
    Kind.GAUGE,
    "s",
    "How long the entity has been in its present state.",
    (*_ENTITY, STATE),
)
TRANSITIONS: Final = Instrument(
    "sbclient.failover.transitions",
    Kind.COUNTER,
    "{transition}",
    "Changes of an entity's state, by the state it came into and why.",
    (*_ENTITY, STATE, REASON),
)
DIVERTED: Final = Instrument(
    "sbclient.diverted.messages",
    Kind.COUNTER,
    "{message}",
    "Messages for an entity that a backlog queue accepted instead.",
    _ENTITY,
)
PING_DURATION: Final = Instrument(
    "sbclient.ping.duration",
    Kind.HISTOGRAM,
    "s",
    "Time until a ping was accepted or refused.",
    (*_ENTITY, OUTCOME, ERROR),
)
DRAINED: Final = Instrument(
    "sbclient.syphon.drained.messages",
    Kind.COUNTER,
    "{message}",
    "Messages of the backlog that their entity in the primary accepted.",
    _ENTITY,
)
DEAD_LETTERED: Final = Instrument(
    "sbclient.syphon.dead_lettered.messages",
    Kind.COUNTER,
    "{message}",
    "Messages that were dead-lettered in their backlog queue, since they can never be brought home.",
    (*_ENTITY, REASON),
)
PARKED: Final = Instrument(
    "sbclient.syphon.parked.messages",
    Kind.COUNTER,
    "{message}",
    "How often a message was put aside in its backlog queue because its entity refuses.",
    _ENTITY,
)
UNAVAILABLE_DESTINATIONS: Final = Instrument(
    "sbclient.syphon.unavailable.destinations",
    Kind.UP_DOWN_COUNTER,
    "{entity}",
    "Entities of the primary that refuse what a syphon of this process brings.",
    (SERVER, PORT),
)
BACKLOG_DEPTH: Final = Instrument(
    "sbclient.backlog.depth",
    Kind.GAUGE,
    "{message}",
    "Messages known to be in a backlog queue, waiting, put aside or dead-lettered.",
    (*_ENTITY, STATE),
)
BACKLOG_AGE: Final = Instrument(
    "sbclient.backlog.oldest.age",
    Kind.GAUGE,
    "s",
    "How long the oldest message known to wait in a backlog queue has been there; 0 if there is none.",
    _ENTITY,
)
QUARANTINES: Final = Instrument(
    "sbclient.backlog.quarantines",
    Kind.COUNTER,
    "{quarantine}",
    "How often a backlog queue failed and was left out for a while.",
    (*_ENTITY, ERROR),
)
QUARANTINED: Final = Instrument(
    "sbclient.backlog.quarantined",
    Kind.UP_DOWN_COUNTER,
    "{client}",
    "How many clients of this process leave a backlog queue out now because it failed: 1 or 0 where there is one.",
    _ENTITY,
)

INSTRUMENTS: Final = (
    OPERATION_DURATION,
    SENT,
    CONSUMED,
    FAILOVER_STATE,
    FAILOVER_AGE,
    TRANSITIONS,
    DIVERTED,
    PING_DURATION,
    DRAINED,
    DEAD_LETTERED,
    PARKED,
    UNAVAILABLE_DESTINATIONS,
    BACKLOG_DEPTH,
    BACKLOG_AGE,
    QUARANTINES,
    QUARANTINED,
)

BUCKETS_S: Final = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 30.0, 60.0)
"""OpenTelemetry's advice for messaging, and on to the 60 s that a send may take in an outage."""


def server(namespace: str) -> dict[str, str | int]:
    """The attributes that name a namespace.

    Args:
        namespace: as a transport names it: `memory://contoso`, `contoso.servicebus.windows.net`, `localhost:5672`.
    """
    host, colon, port = namespace.rpartition(":")
    return {SERVER: host, PORT: int(port)} if colon and port.isdigit() else {SERVER: namespace}


# -- events ------------------------------------------------------------------------------------------------------------

_API: Final = "opentelemetry.metrics"
_GLOBAL: Final = None

_attached: dict[MeterProvider | None, dict[str, Any]] = {}
"""The instruments made by each provider, by name; those of the global one under None."""


_is_global_set = False


def is_read() -> bool:
    """Whether somebody reads what is measured, so that it is worth measuring."""
    return len(_attached) > (_GLOBAL in _attached) or _has_global()


def _has_global() -> bool:
    """Whether the application has set a global provider: the ones that the API itself brings measure nothing."""
    global _is_global_set
    if not _is_global_set and _API in sys.modules:
        get_provider = getattr(sys.modules[_API], "get_meter_provider", None)  # None while another thread imports it
        _is_global_set = get_provider is not None and not type(get_provider()).__module__.startswith(_API)
    return _is_global_set


def add(instrument: Instrument, amount: int, attributes: Attributes) -> None:
    """Count so many more."""
    if not _attached and _API not in sys.modules:
        return
    for instruments in _readers():
        instruments[instrument.name].add(amount, attributes)


def record(instrument: Instrument, value: float, attributes: Attributes) -> None:
    """Take one value into a histogram."""
    if not _attached and _API not in sys.modules:
        return
    for instruments in _readers():
        instruments[instrument.name].record(value, attributes)


def _readers() -> Iterable[dict[str, Any]]:
    if _GLOBAL not in _attached and _API in sys.modules:
        from opentelemetry.metrics import get_meter

        # The API hands out stand-ins that begin to count when the application sets its provider.
        _attached[_GLOBAL] = _made(get_meter(SCOPE))
    return list(_attached.values())


def attach(provider: MeterProvider) -> None:
    """Measure for this provider from now on, besides the global one."""
    if provider not in _attached:
        _attached[provider] = _made(provider.get_meter(SCOPE))


def detach(provider: MeterProvider) -> None:
    """Measure for this provider no longer. Safe to call twice."""
    _attached.pop(provider, None)


def _made(meter: Meter) -> dict[str, Any]:
    return {instrument.name: _MAKERS[instrument.kind](meter, instrument) for instrument in INSTRUMENTS}


def _histogram(meter: Meter, instrument: Instrument) -> Any:
    return meter.create_histogram(
        instrument.name, instrument.unit, instrument.description, explicit_bucket_boundaries_advisory=BUCKETS_S
    )


_MAKERS: Final[Mapping[Kind, Callable[[Meter, Instrument], Any]]] = {
    Kind.COUNTER: lambda meter, one: meter.create_counter(one.name, one.unit, one.description),
    Kind.HISTOGRAM: _histogram,
    Kind.UP_DOWN_COUNTER: lambda meter, one: meter.create_observable_up_down_counter(
        one.name, [_callback(one)], one.unit, one.description
    ),
    Kind.GAUGE: lambda meter, one: meter.create_observable_gauge(one.name, [_callback(one)], one.unit, one.description),
}


# -- states ------------------------------------------------------------------------------------------------------------


class Watched(Protocol):
    """Something whose state is of interest."""

    def measured(self) -> Iterable[tuple[Instrument, float, Attributes]]:
        """The values of observable instruments now; called in any thread, also when no loop runs."""


_watched: tuple[ref[Watched], ...] = ()
"""Replaced, never changed, so that it can be read in any thread. What nobody else holds drops out."""


def watch(watched: Watched) -> None:
    """Ask it for its state whenever somebody reads."""
    global _watched
    _watched = (*_others(watched), ref(watched))
    _readers()


def unwatch(watched: Watched) -> None:
    """Ask it no longer. Safe to call twice."""
    global _watched
    _watched = _others(watched)


def _others(watched: Watched) -> tuple[ref[Watched], ...]:
    return tuple(one for one in _watched if one() is not None and one() is not watched)


def _callback(instrument: Instrument) -> Callable[[CallbackOptions], Sequence[Observation]]:
    def observe(options: CallbackOptions) -> Sequence[Observation]:
        from opentelemetry.metrics import Observation

        return [Observation(value, dict(attributes)) for attributes, value in states(instrument)]

    return observe


def states(instrument: Instrument) -> Iterator[tuple[tuple[tuple[str, str | int], ...], float]]:
    """The values of an observable instrument now, one for each set of attributes: the sum, or of gauges the largest."""
    found: dict[tuple[tuple[str, str | int], ...], float] = {}
    together = max if instrument.kind is Kind.GAUGE else _sum
    for watched in _watched:
        for one, value, attributes in getattr(watched(), "measured", tuple)():
            if one is instrument:
                key = tuple(sorted(attributes.items()))
                found[key] = together(found[key], value) if key in found else value
    yield from found.items()


def _sum(first: float, second: float) -> float:
    return first + second
