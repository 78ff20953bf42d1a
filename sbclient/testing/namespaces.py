"""Fresh namespaces of the bundled broker for tests, separate from all others, and clients for them."""

from __future__ import annotations

import asyncio
import math
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from itertools import islice
from random import Random
from typing import Any, Final, TypeVar

from sbclient import clock
from sbclient.broker.entry import Entry
from sbclient.broker.faults import Call, Fault, FaultKind, Operation
from sbclient.broker.profile import STD_2021, Profile, profile_of
from sbclient.client.client import ServiceBusClient
from sbclient.entities import (
    EntityAddress,
    EntityKind,
    EntityProperties,
    QueueProperties,
    SubscriptionProperties,
    TopicProperties,
)
from sbclient.hosting.host import BrokerHost, Performed
from sbclient.message import ServiceBusReceivedMessage
from sbclient.options import PairedNamespaceOptions
from sbclient.testing.virtual_loop import VirtualLoop
from sbclient.transport.memory.transport import MemoryTransport, share_memory_host

MAX_RECEIPTS: Final = 10_000
"""Received messages of a namespace whose lines are known: at least so many of the latest ones."""

_OUTAGES: Final = {
    FaultKind.DOWN: "is down",
    FaultKind.HANG: "does not answer",
    FaultKind.BUSY: "is busy",
    FaultKind.ERROR: "returns errors",
}
_EVENTS: Final = frozenset((Operation.SEND, Operation.SCHEDULE, Operation.SETTLE, Operation.MANAGE))

T = TypeVar("T")

_OURS: Final = ("sbclient.", "asyncio.", "contextlib")


class Receipts:
    """Notes the line of the program that has received each message, by lock token."""

    def __init__(self) -> None:
        self._lines: dict[int, str] = {}

    def __call__(self, messages: Sequence[ServiceBusReceivedMessage]) -> None:
        """Note the line that waits for these messages. It is unknown if another task receives for it."""
        frame = sys._getframe(1) if messages else None
        while frame is not None and frame.f_globals.get("__name__", "").startswith(_OURS):
            frame = frame.f_back
        if frame is not None and frame.f_code.co_filename != "<frozen runpy>":
            line = f"{frame.f_code.co_filename}:{frame.f_lineno}"
            self._lines.update((message.lock_token.int, line) for message in messages if message.lock_token)
            if len(self._lines) > 2 * MAX_RECEIPTS:
                self._lines = dict(islice(self._lines.items(), MAX_RECEIPTS, None))

    def place_of(self, entry: Entry) -> str | None:
        """Return the line that received a locked message."""
        return self._lines.get(entry.token)


def _running_virtual_loop() -> VirtualLoop | None:
    loop = asyncio.events._get_running_loop()
    return loop if isinstance(loop, VirtualLoop) else None


class MemoryNamespace(BrokerHost):
    """A separate namespace of the bundled broker, and clients for it.

    `inject(Fault(FaultKind.DOWN))` is an outage, `heal()` its end.

    Args:
        random: of all random choices of the broker and of its clients; the others are those of `BrokerHost`.

    Attributes:
        namespace: the state of the broker.
        clock: of the broker and its clients.
        receipts: the lines that have received messages.
    """

    def __init__(
        self, name: str, *, random: Random | None = None, profile: Profile = STD_2021, front_end_count: int = 1
    ) -> None:
        self._seeds = random or Random()
        super().__init__(
            name, random=Random(self._seeds.getrandbits(64)), profile=profile, front_end_count=front_end_count
        )
        self._connection_string: str | None = None
        self._injected_at: dict[Fault, float] = {}
        self.on_received = self.receipts = Receipts()

    def client(self, **kwargs: Any) -> ServiceBusClient:
        """A client; `kwargs` as for `ServiceBusClient`."""
        return ServiceBusClient(transport=MemoryTransport(self), **_made(self._seeds, kwargs))

    @property
    def connection_string(self) -> str:
        """`memory://…`, for clients of this process that a program creates itself. No other namespace has it."""
        if self._connection_string is None:
            self._connection_string = share_memory_host(self)
        return self._connection_string

    def inject(self, fault: Fault) -> Fault:
        """Inject a fault and return it, for `heal`."""
        self._injected_at[fault] = clock.monotonic() if _running_virtual_loop() else 0.0
        self._note_event()
        return super().inject(fault)

    def heal(self, fault: Fault | None = None) -> None:
        """Remove one fault, or all of them."""
        self._note_event()
        if fault is None:
            self._injected_at.clear()
        else:
            self._injected_at.pop(fault, None)
        super().heal(fault)

    def perform_now(
        self, operation: Operation, path: str | None, work: Callable[[Call], T], front_end: int = 0
    ) -> Performed[T]:
        performed = super().perform_now(operation, path, work, front_end)
        if operation in _EVENTS and performed.error is None and performed.answer_after_s < math.inf:
            self._note_event()
        return performed

    def _note_event(self) -> None:
        if (loop := _running_virtual_loop()) is not None:
            loop.note_event(self)

    def lasting_outages(self) -> list[str]:
        """Return the faults that stop requests and have no end, as text."""
        name = self.namespace.name
        self._injected_at = {
            fault: self._injected_at.get(fault, 0.0) for fault in self.namespace.faults.active(clock.true_now())
        }
        return [
            f"{f'{fault.entity_path!r} of ' if fault.entity_path else ''}namespace {name!r} {_OUTAGES[fault.kind]} "
            f"since {since_s:g} s of virtual time"
            for fault, since_s in self._injected_at.items()
            if fault.kind in _OUTAGES and fault.count is None and fault.until_at == math.inf and fault.probability == 1
        ]

    def now(self) -> datetime:
        """The time of the namespace, UTC; virtual in virtual time, where `datetime.now()` is not."""
        return datetime.fromtimestamp(clock.true_now(), UTC)

    def create_queue(self, name: str, **settings: Any) -> None:
        """Create a queue, also outside an event loop.

        Args:
            settings: as for `create_queue` of the administration client: `requires_session=True`, …

        Raises:
            MessagingEntityAlreadyExistsError: the queue exists.
            InvalidOperationError: a setting is out of its range.
        """
        self._create(EntityAddress(EntityKind.QUEUE, (name,)), QueueProperties(name, **settings))

    def create_topic(self, name: str, **settings: Any) -> None:
        """Create a topic; see `create_queue`."""
        self._create(EntityAddress(EntityKind.TOPIC, (name,)), TopicProperties(name, **settings))

    def create_subscription(self, topic: str, name: str, **settings: Any) -> None:
        """Create a subscription of a topic; see `create_queue`."""
        address = EntityAddress(EntityKind.SUBSCRIPTION, (topic, name))
        self._create(address, SubscriptionProperties(name, **settings))

    def _create(self, address: EntityAddress, properties: EntityProperties) -> None:
        self.namespace.management.create(Call(Operation.MANAGE, clock.true_now()), address, properties)


def memory_namespace(
    *, seed: int | None = None, profile: Profile | str = STD_2021, front_end_count: int = 1, name: str = "contoso"
) -> MemoryNamespace:
    """A fresh namespace; arguments as for `memory_pair`."""
    return MemoryNamespace(name, random=Random(seed), profile=profile_of(profile), front_end_count=front_end_count)


class MemoryPair:
    """Two separate namespaces of the bundled broker, and clients for them.

    Attributes:
        primary, secondary: `primary.inject(Fault(FaultKind.DOWN))` is an outage, `primary.heal()` its end.
        random: that of the brokers and their clients.
    """

    def __init__(self, primary: MemoryNamespace, secondary: MemoryNamespace, random: Random) -> None:
        self.primary = primary
        self.secondary = secondary
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
            **_made(self.random, kwargs),
        )

    def unpaired_client(self, *, secondary: bool = False, **kwargs: Any) -> ServiceBusClient:
        """A client without pairing for the primary, or for the secondary."""
        return (self.secondary if secondary else self.primary).client(**kwargs)

    def now(self) -> datetime:
        """The time of both namespaces, UTC; virtual in virtual time, where `datetime.now()` is not."""
        return self.primary.now()


def memory_pair(
    *,
    seed: int | None = None,
    profile: Profile | str = STD_2021,
    front_end_count: int = 1,
    primary_name: str = "contoso",
    secondary_name: str = "contoso-backup",
) -> MemoryPair:
    """Two fresh namespaces, separate from all others also if their names are equal. Each test can have its own.

    Args:
        seed: of all random generators, for repeatable tests; None = a random one.
        profile: tier and year of both, or its name.
        front_end_count: of each; each client gets a random front end. See `BrokerHost`.
    """
    random = Random(seed)
    primary, secondary = (
        MemoryNamespace(
            name,
            random=random,
            profile=profile_of(profile),
            front_end_count=front_end_count,
        )
        for name in (primary_name, secondary_name)
    )
    return MemoryPair(primary, secondary, random)


def _made(random: Random, kwargs: dict[str, Any]) -> dict[str, Any]:
    return {"random": Random(random.getrandbits(64)), **kwargs}
