"""The status and the events of a pair, as applications see them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sbclient.rules.failover import FailoverState


@dataclass(frozen=True, slots=True)
class PairEvent:
    """A change of state in a pair.

    Attributes:
        at_utc: the time of the event.
        name: the name of the log event, for example `failover.engaged`, `failover.recovered` or `backlog.quarantined`.
        path: the entity or backlog queue that changed.
        facts: the other fields of the log event.
    """

    at_utc: datetime
    name: str
    path: str
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PairedEntityStatus:
    """The status of one entity.

    Attributes:
        path: the path of the queue or topic.
        state: the failover state.
        since_utc: the time of the last change of state.
        is_forced: whether `force_failover` set the state.
        diverted: the number of messages that this client has sent to the backlog.
    """

    path: str
    state: FailoverState
    since_utc: datetime
    is_forced: bool
    diverted: int


@dataclass(frozen=True, slots=True)
class PairStatus:
    """The status of a pair.

    Attributes:
        primary: the name of the primary namespace.
        secondary: the name of the secondary namespace.
        entities: the entities that this client has sent to, by path.
        backlog_queues: the usable backlog queues, those for sessions last.
        quarantined: the backlog queues that senders avoid after a failure.
        is_provisioned: whether the backlog queues can be used. If not, a diversion raises BacklogUnavailableError.
        provisioning_error: why the last attempt to provision them failed; None if it did not.
        never_reached: whether the primary has not answered this client yet, for example because its name is misspelled.
    """

    primary: str
    secondary: str
    entities: dict[str, PairedEntityStatus]
    backlog_queues: tuple[str, ...]
    quarantined: tuple[str, ...]
    is_provisioned: bool
    provisioning_error: str | None
    never_reached: bool
