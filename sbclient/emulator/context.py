"""What everything that serves one namespace has in common."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from sbclient.clock import Clock
from sbclient.emulator.events import EventFeed
from sbclient.emulator.faults import WireFaults
from sbclient.emulator.sas import Authorizer
from sbclient.entities import AuthorizationRule, SubscriptionProperties
from sbclient.hosting.host import BrokerHost


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """Limits of the servers of one namespace.

    Attributes:
        max_frame_size_bytes: of AMQP. Source: the service.
        amqp_idle_timeout_s: how long an AMQP client may be silent. Source: the service.
        handshake_timeout_s: how long a client has for TLS, and for its first byte.
        max_header_bytes: of one HTTP request, its first line included.
        max_body_bytes: of one HTTP request; an entity's description is some kilobytes.
        request_timeout_s: how long a client has for one whole HTTP request once it has begun.
        http_idle_timeout_s: how long an HTTP connection may be silent between two requests.
    """

    max_frame_size_bytes: int = 65_536
    amqp_idle_timeout_s: float = 240.0
    handshake_timeout_s: float = 30.0
    max_header_bytes: int = 65_536
    max_body_bytes: int = 2**20
    request_timeout_s: float = 30.0
    http_idle_timeout_s: float = 120.0


@dataclass(slots=True, eq=False)
class NamespaceContext:
    """One namespace, as its servers see it.

    Attributes:
        host: the broker.
        authorizer: checks tokens.
        wire_faults: what goes wrong between the broker and its clients.
        random: the one that broker and wire faults draw from.
        events: told of what happens, for those who watch.
        settings: limits.
    """

    host: BrokerHost
    authorizer: Authorizer
    wire_faults: WireFaults
    random: Random = field(default_factory=Random)
    events: EventFeed = field(default_factory=EventFeed)
    settings: ServerSettings = field(default_factory=ServerSettings)

    @property
    def name(self) -> str:
        """Of the namespace."""
        return self.host.namespace.name

    @property
    def clock(self) -> Clock:
        return self.host.clock


def entity_rules_of(host: BrokerHost, path: str) -> Sequence[AuthorizationRule] | None:
    """The authorization rules of the queue or topic of a path; None where there is none."""
    entity = host.namespace.directory.get(path)
    if entity is None or isinstance(entity.description, SubscriptionProperties):
        return None
    return entity.description.authorization_rules or ()
