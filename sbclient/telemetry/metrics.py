"""The table of metrics of this package, and the only module that uses OpenTelemetry's metrics API.

OpenTelemetry is imported only when an application enables it, with a meter provider or with `sbclient.prometheus`.
Until then a measurement costs a dict lookup and is dropped.

Laws:
1. Measurements go to the global meter provider, whenever it is set, and to every attached provider.
2. Attribute values are bounded: names of entities and backlog queues, states, reasons. Never an id, a key, a session, a
   body, or a path that comes from a message and that the primary has not accepted.
3. Observable instruments collect the state of registered objects when a reader collects. This may happen in any thread;
   nothing is polled.
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
"""The name of the meter, for views and processors."""

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
SIDE: Final = "sbclient.side"

Attributes: TypeAlias = Mapping[str, str | int]


class InstrumentKind(StrEnum):
    """The kind of an instrument. The values of the last two are collected when a reader collects."""

    COUNTER = "counter"
    HISTOGRAM = "histogram"
    UP_DOWN_COUNTER = "observable up-down counter"
    GAUGE = "observable gauge"


@dataclass(frozen=True, slots=True)
class Instrument:
    """A metric.

    Attributes:
        unit: a UCUM unit: `s` or an annotation such as `{message}`.
        attributes: all attributes that its values may have.
    """

    name: str
    kind: InstrumentKind
    unit: str
    description: str
    attributes: tuple[str, ...]


_ENTITY: Final = (DESTINATION, SERVER, PORT)

OPERATION_DURATION: Final = Instrument(
    "messaging.client.operation.duration",
    InstrumentKind.HISTOGRAM,
    "s",
    "Duration of a call that sends messages, including retries and diversion.",
    (SYSTEM, OPERATION, *_ENTITY, ROUTE, OUTCOME, ERROR),
)
SENT: Final = Instrument(
    "messaging.client.sent.messages",
    InstrumentKind.COUNTER,
    "{message}",
    "Messages that were sent, by route and outcome.",
    (SYSTEM, OPERATION, *_ENTITY, ROUTE, OUTCOME, ERROR),
)
CONSUMED: Final = Instrument(
    "messaging.client.consumed.messages",
    InstrumentKind.COUNTER,
    "{message}",
    "Messages that were returned to the application.",
    (SYSTEM, OPERATION, *_ENTITY),
)
FAILOVER_STATE: Final = Instrument(
    "sbclient.failover.state",
    InstrumentKind.UP_DOWN_COUNTER,
    "{client}",
    "Number of clients of this process for which the entity is in that state: 1 or 0 if there is one client.",
    (*_ENTITY, STATE),
)
FAILOVER_AGE: Final = Instrument(
    "sbclient.failover.age",
    InstrumentKind.GAUGE,
    "s",
    "Time since the entity entered its current state.",
    (*_ENTITY, STATE),
)
TRANSITIONS: Final = Instrument(
    "sbclient.failover.transitions",
    InstrumentKind.COUNTER,
    "{transition}",
    "State changes of an entity, by new state and reason.",
    (*_ENTITY, STATE, REASON),
)
DIVERTED: Final = Instrument(
    "sbclient.diverted.messages",
    InstrumentKind.COUNTER,
    "{message}",
    "Messages for an entity that were accepted by a backlog queue instead.",
    _ENTITY,
)
PING_DURATION: Final = Instrument(
    "sbclient.ping.duration",
    InstrumentKind.HISTOGRAM,
    "s",
    "Time until a ping was accepted or rejected.",
    (*_ENTITY, OUTCOME, ERROR),
)
DRAINED: Final = Instrument(
    "sbclient.syphon.drained.messages",
    InstrumentKind.COUNTER,
    "{message}",
    "Backlog messages that were accepted by their entity in the primary.",
    _ENTITY,
)
DEAD_LETTERED: Final = Instrument(
    "sbclient.syphon.dead_lettered.messages",
    InstrumentKind.COUNTER,
    "{message}",
    "Messages that were dead-lettered in their backlog queue because they cannot be forwarded.",
    (*_ENTITY, REASON),
)
PARKED: Final = Instrument(
    "sbclient.syphon.parked.messages",
    InstrumentKind.COUNTER,
    "{message}",
    "Number of times that a message was parked in its backlog queue because its entity rejects messages.",
    _ENTITY,
)
UNAVAILABLE_DESTINATIONS: Final = Instrument(
    "sbclient.syphon.unavailable.destinations",
    InstrumentKind.UP_DOWN_COUNTER,
    "{entity}",
    "Entities of the primary that reject the messages of a syphon of this process.",
    (SERVER, PORT),
)
REDIRECTED_DESTINATIONS: Final = Instrument(
    "sbclient.syphon.redirected.destinations",
    InstrumentKind.UP_DOWN_COUNTER,
    "{entity}",
    "Entities whose messages a syphon of this process delivers to the secondary.",
    (SERVER, PORT),
)
BACKLOG_DEPTH: Final = Instrument(
    "sbclient.backlog.depth",
    InstrumentKind.GAUGE,
    "{message}",
    "Messages known to be in a backlog queue: waiting, parked or dead-lettered.",
    (*_ENTITY, STATE),
)
BACKLOG_AGE: Final = Instrument(
    "sbclient.backlog.oldest.age",
    InstrumentKind.GAUGE,
    "s",
    "Age of the oldest message known to wait in a backlog queue; 0 if there is none.",
    _ENTITY,
)
UNPROVISIONED: Final = Instrument(
    "sbclient.backlog.unprovisioned",
    InstrumentKind.UP_DOWN_COUNTER,
    "{client}",
    "Number of clients of this process whose backlog queues are not provisioned, so that they cannot divert sends.",
    (SERVER, PORT),
)
QUARANTINES: Final = Instrument(
    "sbclient.backlog.quarantines",
    InstrumentKind.COUNTER,
    "{quarantine}",
    "Number of times that a backlog queue failed and was put into quarantine.",
    (*_ENTITY, ERROR),
)
QUARANTINED: Final = Instrument(
    "sbclient.backlog.quarantined",
    InstrumentKind.UP_DOWN_COUNTER,
    "{client}",
    "Number of clients of this process that have the backlog queue in quarantine: 1 or 0 if there is one client.",
    _ENTITY,
)
CREDENTIAL_REJECTIONS: Final = Instrument(
    "sbclient.credential.rejections",
    InstrumentKind.COUNTER,
    "{rejection}",
    "Number of times that a namespace rejected the credential of this process.",
    (SERVER, PORT),
)
WORKER_READY: Final = Instrument(
    "sbclient.worker.ready",
    InstrumentKind.GAUGE,
    "1",
    "1 if the worker is ready, with an empty reason; otherwise 0 for each reason.",
    (REASON, SERVER, PORT),
)
WORKER_PAUSED: Final = Instrument(
    "sbclient.worker.paused", InstrumentKind.GAUGE, "1", "1 if the worker is paused, otherwise 0.", (SERVER, PORT)
)
NAMESPACE_REACHABLE: Final = Instrument(
    "sbclient.namespace.reachable",
    InstrumentKind.GAUGE,
    "1",
    "1 if the worker can use the namespace; 0 if it is unreachable or rejects the credential. Absent before an answer.",
    (SIDE, SERVER, PORT),
)

INSTRUMENTS: Final = tuple(each for each in list(globals().values()) if isinstance(each, Instrument))

BUCKETS_S: Final = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 30.0, 60.0)
"""The boundaries that OpenTelemetry recommends for messaging, up to the 60 s that a send may take in an outage."""


def server(namespace: str) -> dict[str, str | int]:
    """Return the attributes that identify a namespace.

    Args:
        namespace: `Transport.namespace`: `memory://contoso`, `contoso.servicebus.windows.net`, `localhost:5672`.
    """
    host, colon, port = namespace.rpartition(":")
    return {SERVER: host, PORT: int(port)} if colon and port.isdigit() else {SERVER: namespace}


# -- events ------------------------------------------------------------------------------------------------------------

_API: Final = "opentelemetry.metrics"
_GLOBAL: Final = None

_attached: dict[MeterProvider | None, dict[str, Any]] = {}
"""The instruments of each provider, by name. The key of the global provider is None."""


_is_global_set = False


def is_read() -> bool:
    """Return whether measurements are collected by any provider."""
    return len(_attached) > (_GLOBAL in _attached) or _has_global()


def _has_global() -> bool:
    """Return whether the application has set a global provider. The API's own default provider does not count."""
    global _is_global_set
    if not _is_global_set and _API in sys.modules:
        get_provider = getattr(sys.modules[_API], "get_meter_provider", None)  # None while another thread imports it
        _is_global_set = get_provider is not None and not type(get_provider()).__module__.startswith(_API)
    return _is_global_set


def add(instrument: Instrument, amount: int, attributes: Attributes) -> None:
    """Add an amount to a counter."""
    if not _attached and _API not in sys.modules:
        return
    for instruments in _readers():
        instruments[instrument.name].add(amount, attributes)


def record(instrument: Instrument, value: float, attributes: Attributes) -> None:
    """Record a value in a histogram."""
    if not _attached and _API not in sys.modules:
        return
    for instruments in _readers():
        instruments[instrument.name].record(value, attributes)


def _readers() -> Iterable[dict[str, Any]]:
    if _GLOBAL not in _attached and _API in sys.modules:
        from opentelemetry.metrics import get_meter

        # The API returns proxies that become active when the application sets its provider.
        _attached[_GLOBAL] = _made(get_meter(SCOPE))
    return list(_attached.values())


def attach(provider: MeterProvider) -> None:
    """Send measurements to this provider, in addition to the global one."""
    if provider not in _attached:
        _attached[provider] = _made(provider.get_meter(SCOPE))


def detach(provider: MeterProvider) -> None:
    """Stop sending measurements to this provider. Safe to call twice."""
    _attached.pop(provider, None)


def _made(meter: Meter) -> dict[str, Any]:
    return {instrument.name: _MAKERS[instrument.kind](meter, instrument) for instrument in INSTRUMENTS}


def _histogram(meter: Meter, instrument: Instrument) -> Any:
    return meter.create_histogram(
        instrument.name, instrument.unit, instrument.description, explicit_bucket_boundaries_advisory=BUCKETS_S
    )


_MAKERS: Final[Mapping[InstrumentKind, Callable[[Meter, Instrument], Any]]] = {
    InstrumentKind.COUNTER: lambda meter, one: meter.create_counter(one.name, one.unit, one.description),
    InstrumentKind.HISTOGRAM: _histogram,
    InstrumentKind.UP_DOWN_COUNTER: lambda meter, one: meter.create_observable_up_down_counter(
        one.name, [_callback(one)], one.unit, one.description
    ),
    InstrumentKind.GAUGE: lambda meter, one: meter.create_observable_gauge(
        one.name, [_callback(one)], one.unit, one.description
    ),
}


# -- states ------------------------------------------------------------------------------------------------------------


class Watched(Protocol):
    """An object whose state is collected by observable instruments."""

    def measured(self) -> Iterable[tuple[Instrument, float, Attributes]]:
        """Return the current values of observable instruments. Called in any thread, also if no event loop runs."""


_watched: tuple[ref[Watched], ...] = ()
"""Replaced and never mutated, so that any thread can read it. Weak references: unused objects drop out."""


def watch(watched: Watched) -> None:
    """Register an object, whose state is then collected. It is held by a weak reference."""
    global _watched
    _watched = (*_others(watched), ref(watched))
    _readers()


def unwatch(watched: Watched) -> None:
    """Unregister an object. Safe to call twice."""
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
    """Yield the current values of an observable instrument, one for each set of attributes: the sum, or the largest
    for a gauge."""
    found: dict[tuple[tuple[str, str | int], ...], float] = {}
    together = max if instrument.kind is InstrumentKind.GAUGE else _sum
    for watched in _watched:
        for one, value, attributes in getattr(watched(), "measured", tuple)():
            if one is instrument:
                key = tuple(sorted(attributes.items()))
                found[key] = together(found[key], value) if key in found else value
    yield from found.items()


def _sum(first: float, second: float) -> float:
    return first + second
