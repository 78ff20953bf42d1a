"""Everything that the protocols of one namespace share: broker, authorization, faults, events and limits."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final, TypeAlias

from sbclient import clock
from sbclient.broker.directory import path_of
from sbclient.broker.faults import Fault
from sbclient.emulator.data.directory import DataDirectory
from sbclient.emulator.events import EventFeed
from sbclient.emulator.faults import WireFault, WireFaults
from sbclient.emulator.net.browsers import reason_to_refuse
from sbclient.emulator.net.http_messages import HttpSettings, Request
from sbclient.emulator.sas import Authorizer
from sbclient.entities import AuthorizationRule, EntityAddress, EntityKind, SubscriptionProperties
from sbclient.errors import ServiceBusAuthenticationError, ServiceBusQuotaExceededError
from sbclient.hosting.host import BrokerHost

AnyFault: TypeAlias = Fault | WireFault

MAX_UNAUTHENTICATED: Final = 8
FAULT_CHANGES_KEPT: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings(HttpSettings):
    """Limits of the servers of one namespace, with those of HTTP.

    Attributes:
        max_frame_size_bytes: of AMQP. Source: the service.
        amqp_idle_timeout_s: how long an AMQP client may be silent. Source: the service.
        idle_link_timeout_s: a link to an entity is detached if nothing was transferred or settled on it, nor its credit
            changed, for so long; None = never. The service takes 600.
        channel_max: the highest channel of an AMQP connection. Source: the service.
        handle_max: the highest handle of an AMQP session. Source: the service, seen.
        max_amqp_connections: of the namespace at a time, of clients that have presented a token. Source: the quotas of
            the service.
        handshake_timeout_s: how long a client has for TLS, and for its first byte.
        max_unauthorized_body_bytes: of one HTTP request without a valid token.
        max_connections: of one port; None = as many as the process may have descriptors.
        host_names: of HTTP requests, besides those of this machine for itself.
        is_exposed: whether other machines may reach the servers; see `net.browsers`.
    """

    max_frame_size_bytes: int = 65_536
    amqp_idle_timeout_s: float = 240.0
    idle_link_timeout_s: float | None = None
    channel_max: int = 4_999
    handle_max: int = 255
    max_amqp_connections: int = 5_000
    handshake_timeout_s: float = 30.0
    max_unauthorized_body_bytes: int = 2**13
    max_connections: int | None = None
    host_names: tuple[str, ...] = ()
    is_exposed: bool = False


@dataclass(slots=True, eq=False)
class NamespaceContext:
    """One namespace, as its servers see it.

    Attributes:
        host: the broker.
        authorizer: checks tokens.
        wire_faults: faults between the broker and its clients.
        random: the generator that broker and wire faults draw from.
        events: publishes what happens in the namespace.
        settings: limits.
        data: keeps the namespaces of the emulator over a restart; None = nothing does.
        amqp_connection_count: open AMQP connections whose client has presented a token.
        unauthenticated: limits how many clients without a token are served in one step of the event loop, in all
            namespaces.
        subscribers: how many links of JMS receive from a subscription, by its path.
        fault_log: the times at which faults were injected or healed, and the faults that were active from then on.
    """

    host: BrokerHost
    authorizer: Authorizer
    wire_faults: WireFaults
    random: Random = field(default_factory=Random)
    events: EventFeed = field(default_factory=EventFeed)
    settings: ServerSettings = field(default_factory=ServerSettings)
    data: DataDirectory | None = None
    amqp_connection_count: int = field(default=0, init=False)
    unauthenticated: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MAX_UNAUTHENTICATED))
    subscribers: Counter[str] = field(default_factory=Counter, init=False)
    fault_log: deque[tuple[float, tuple[AnyFault, ...]]] = field(
        default_factory=lambda: deque(maxlen=FAULT_CHANGES_KEPT), init=False
    )

    @property
    def name(self) -> str:
        """The name of the namespace."""
        return self.host.namespace.name

    def connect(self) -> int:
        """The front end of the broker for a new connection."""
        return self.host.connect()

    def reason_to_refuse(self, request: Request) -> str | None:
        """The reason to reject a request of a web page; None = accept it."""
        return reason_to_refuse(request, self.settings.host_names, is_exposed=self.settings.is_exposed)

    def max_body_bytes(self, request: Request) -> int:
        """The limit of the body of a request: lower without a valid token."""
        try:
            self.authorizer.authenticate(request.headers.get("authorization", ""), clock.now())
        except ServiceBusAuthenticationError:
            return self.settings.max_unauthorized_body_bytes
        return self.settings.max_body_bytes

    def check_connections(self, more: int) -> None:
        """Check that the namespace may have so many more AMQP connections. Clients without a token do not count.

        Raises:
            ServiceBusQuotaExceededError: it may not. Source: the documented exceptions of the service.
        """
        most = self.settings.max_amqp_connections
        if self.amqp_connection_count + more > most:
            raise ServiceBusQuotaExceededError(
                f"ConnectionsQuotaExceeded for namespace {self.name}: it has {most} AMQP connections, which is its "
                "quota: close one"
            )

    def publish(self, event: str, **facts: Any) -> None:
        """Publish an event that happens now; see `EventFeed.publish`."""
        self.events.publish(event, clock.now(), **facts)

    def publish_change(self, event: str, address: EntityAddress) -> None:
        """Publish that an entity was created, updated or deleted."""
        rule = {"rule": address.names[2]} if address.kind is EntityKind.RULE else {}
        self.publish(event, kind=address.kind, path=path_of(address), **rule)

    def inject(self, fault: AnyFault) -> None:
        """Activate a fault of the broker or of the wire."""
        if isinstance(fault, Fault):
            self.host.inject(fault)
        else:
            self.wire_faults.inject(fault)
        self.note_faults()

    def heal(self, fault: AnyFault | None = None) -> None:
        """Heal one fault, or all of them."""
        if not isinstance(fault, WireFault):
            self.host.heal(fault)
        if not isinstance(fault, Fault):
            self.wire_faults.heal(fault)
        self.note_faults()

    def note_faults(self) -> None:
        """Add the active faults to the log if they have changed, and at the first call."""
        active = tuple(self.active_faults())
        if not self.fault_log or active != self.fault_log[-1][1]:
            self.fault_log.append((clock.now(), active))

    def active_faults(self) -> list[AnyFault]:
        """The active faults of the broker, then those of the wire."""
        now = clock.now()
        return [*self.host.namespace.faults.active(now), *self.wire_faults.active(now)]


def entity_rules_of(host: BrokerHost, path: str) -> Sequence[AuthorizationRule] | None:
    """The authorization rules of the queue or topic with a path; None if there is none."""
    entity = host.namespace.directory.get(path)
    if entity is None or isinstance(entity.description, SubscriptionProperties):
        return None
    return entity.description.authorization_rules or ()
