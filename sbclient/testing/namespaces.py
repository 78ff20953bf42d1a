"""Fresh namespaces of the bundled broker for tests, separate from all others, and clients for them."""

from __future__ import annotations

from random import Random
from typing import Any

from sbclient.broker.faults import Fault
from sbclient.broker.profile import STD_2021, Profile, profile_of
from sbclient.client.client import ServiceBusClient
from sbclient.clock import Clock
from sbclient.hosting.host import BrokerHost
from sbclient.options import PairedNamespaceOptions
from sbclient.transport.memory.transport import MemoryTransport


class MemoryNamespace:
    """A separate namespace, and clients for it.

    Attributes:
        host: the broker; its `namespace` has the state.
    """

    def __init__(self, host: BrokerHost, random: Random) -> None:
        self.host = host
        self._random = random

    def client(self, **kwargs: Any) -> ServiceBusClient:
        """A client; `kwargs` as for `ServiceBusClient`."""
        return ServiceBusClient(transport=MemoryTransport(self.host), **_made(self.host.clock, self._random, kwargs))

    def inject(self, fault: Fault) -> Fault:
        """Activate a fault; returns it."""
        return self.host.inject(fault)

    def heal(self, fault: Fault | None = None) -> None:
        """Heal one fault, or all of them."""
        self.host.heal(fault)


def memory_namespace(
    *,
    clock: Clock | None = None,
    seed: int | None = None,
    profile: Profile | str = STD_2021,
    front_end_count: int = 1,
    name: str = "contoso",
) -> MemoryNamespace:
    """A fresh namespace; arguments as for `memory_pair`."""
    random = Random(seed)
    host = BrokerHost(
        name,
        clock=clock or Clock(),
        random=Random(random.getrandbits(64)),
        profile=profile_of(profile),
        front_end_count=front_end_count,
    )
    return MemoryNamespace(host, random)


class MemoryPair:
    """Two separate namespaces of the bundled broker, and clients for them.

    Attributes:
        primary, secondary: the brokers; `primary.inject(Fault(FaultKind.DOWN))` is an outage, `primary.heal()` its
            end. Their `namespace` has the state.
        clock, random: those of the brokers and their clients.
    """

    def __init__(self, primary: BrokerHost, secondary: BrokerHost, clock: Clock, random: Random) -> None:
        self.primary = primary
        self.secondary = secondary
        self.clock = clock
        self.random = random

    def client(self, options: PairedNamespaceOptions | None = None, **kwargs: Any) -> ServiceBusClient:
        """A paired client, which sends to the primary and diverts to the secondary.

        Args:
            options: of the pairing; None = the documented defaults.
            kwargs: as for `ServiceBusClient`.
        """
        return ServiceBusClient(
            transport=MemoryTransport(self.primary),
            secondary_transport=MemoryTransport(self.secondary),
            options=options,
            **_made(self.clock, self.random, kwargs),
        )

    def unpaired_client(self, *, secondary: bool = False, **kwargs: Any) -> ServiceBusClient:
        """A client without pairing for the primary, or for the secondary."""
        return ServiceBusClient(
            transport=MemoryTransport(self.secondary if secondary else self.primary),
            **_made(self.clock, self.random, kwargs),
        )


def memory_pair(
    *,
    clock: Clock | None = None,
    seed: int | None = None,
    profile: Profile | str = STD_2021,
    front_end_count: int = 1,
    primary_name: str = "contoso",
    secondary_name: str = "contoso-backup",
) -> MemoryPair:
    """Two fresh namespaces, separate from all others also if their names are equal. Each test can have its own.

    Args:
        clock: None = the clock of the running loop, real or virtual.
        seed: of all random generators, for repeatable tests; None = a random one.
        profile: tier and year of both, or its name.
        front_end_count: of each; each client gets a random front end. See `BrokerHost`.
    """
    random = Random(seed)
    used = clock or Clock()
    primary, secondary = (
        BrokerHost(
            name,
            clock=used,
            random=Random(random.getrandbits(64)),
            profile=profile_of(profile),
            front_end_count=front_end_count,
        )
        for name in (primary_name, secondary_name)
    )
    return MemoryPair(primary, secondary, used, random)


def _made(clock: Clock, random: Random, kwargs: dict[str, Any]) -> dict[str, Any]:
    return {"clock": clock, "random": Random(random.getrandbits(64)), **kwargs}
