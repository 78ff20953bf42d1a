"""A namespace on a real port, served by a thread of its own, for clients that know nothing of this project."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from datetime import timedelta
from random import Random
from typing import Any, TypeVar

from azure.servicebus import TransportType
from azure.servicebus.exceptions import ServiceBusAuthenticationError, ServiceBusConnectionError, ServiceBusError

from sbclient import clock
from sbclient.broker.faults import Call, Fault, Operation
from sbclient.broker.profile import PROFILES
from sbclient.certificate import Certificate, default_directory
from sbclient.emulator.context import NamespaceContext, entity_rules_of
from sbclient.emulator.faults import WireFault, WireFaultKind, WireFaults
from sbclient.emulator.listener import Listener
from sbclient.emulator.page.namespace_registry import NamespaceRegistry
from sbclient.emulator.router import Router
from sbclient.emulator.sas import ROOT_KEY, ROOT_KEY_NAME, Authorizer
from sbclient.entities import (
    EntityAddress,
    EntityKind,
    QueueProperties,
    RuleProperties,
    SubscriptionProperties,
    TopicProperties,
)
from sbclient.hosting.host import BrokerHost
from sbclient.message import ServiceBusReceivedMessage
from tests.limit import HANG_S

T = TypeVar("T")


class ServingThread:
    """An event loop in a thread."""

    def __init__(self, loop_factory: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop) -> None:
        self.loop = loop_factory()
        self._thread = threading.Thread(target=self._run, name="broker", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        self.loop.run_forever()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Do something on that loop, and wait for it."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(HANG_S)

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(HANG_S)
        self.loop.close()


class ServedNamespace:
    """A broker on a free port. Its methods may be called from any thread.

    Args:
        thread: that serves it.
        profile: by name.
        mode: how clients connect: plain, tls or websocket.
    """

    def __init__(self, thread: ServingThread, profile: str = "std-2021", mode: str = "plain") -> None:
        self._thread = thread
        self.mode = mode
        self._certificate = Certificate(default_directory())
        self.host = BrokerHost("contoso", random=Random(7), profile=PROFILES[profile])
        authorizer = Authorizer(entity_rules=lambda path: entity_rules_of(self.host, path))
        self.context = NamespaceContext(host=self.host, authorizer=authorizer, wire_faults=WireFaults(Random(7)))
        router = Router(self.context, NamespaceRegistry())
        self._listener = Listener(self.context, router.answer, self._certificate.server_context)
        self.port = thread.run(self._listener.start("127.0.0.1", 0))

    @property
    def connection_string(self) -> str:
        """For the SDK."""
        return self.connection_string_with(ROOT_KEY)

    def connection_string_with(self, key: str, key_name: str = ROOT_KEY_NAME) -> str:
        """For the SDK, with some key."""
        emulator = ";UseDevelopmentEmulator=true" if self.mode == "plain" else ""
        return f"Endpoint={self.endpoint};SharedAccessKeyName={key_name};SharedAccessKey={key}{emulator}"

    @property
    def endpoint(self) -> str:
        """The URL of the namespace."""
        return f"sb://127.0.0.1:{self.port}"

    @property
    def certificate_path(self) -> str:
        """The certificate that clients must trust."""
        self._certificate.make()
        return str(self._certificate.path)

    @property
    def client_options(self) -> dict[str, Any]:
        """Further arguments of a client of the SDK."""
        if self.mode == "plain":
            return {}
        transport = TransportType.AmqpOverWebsocket if self.mode == "websocket" else TransportType.Amqp
        return {
            "custom_endpoint_address": self.endpoint,  # with it the SDK uses WebSockets by default
            "connection_verify": self.certificate_path,
            "transport_type": transport,
        }

    @property
    def unauthenticated(self) -> type[ServiceBusError]:
        """What the SDK raises for a rejected token; with a custom endpoint it suspects the endpoint."""
        return ServiceBusAuthenticationError if self.mode == "plain" else ServiceBusConnectionError

    def close(self) -> None:
        self._thread.run(self._listener.close())
        self._thread.run(self._certificate.close())

    def do(self, work: Callable[[], T]) -> T:
        """Call something in the broker's thread."""

        async def call() -> T:
            return work()

        return self._thread.run(call())

    # ------------------------------------------------------------------ entities

    def _create(self, kind: EntityKind, properties: Any, *names: str) -> None:
        management = self.host.namespace.management
        address = EntityAddress(kind, names)
        self.do(lambda: management.create(Call(Operation.MANAGE, clock.now()), address, properties))

    def queue(self, name: str, **description: Any) -> str:
        """Make a queue; returns its name."""
        self._create(EntityKind.QUEUE, QueueProperties(name, **description), name)
        return name

    def topic(self, name: str, *subscriptions: str, **description: Any) -> str:
        """Make a topic with subscriptions; returns its name."""
        self._create(EntityKind.TOPIC, TopicProperties(name, **description), name)
        for subscription in subscriptions:
            self.subscription(name, subscription)
        return name

    def subscription(self, topic: str, name: str, **description: Any) -> None:
        """Make a subscription."""
        self._create(EntityKind.SUBSCRIPTION, SubscriptionProperties(name, **description), topic, name)

    def rule(self, topic: str, subscription: str, name: str, **description: Any) -> None:
        """Make a rule."""
        self._create(EntityKind.RULE, RuleProperties(name, **description), topic, subscription, name)

    # ------------------------------------------------------------------ what is there

    def count(self, path: str) -> int:
        """Messages in a queue, subscription or sub-queue."""
        return self.do(lambda: len(self.host.namespace.queue(path)))

    def take(self, path: str, count: int = 100) -> list[ServiceBusReceivedMessage]:
        """Messages, taken past the wire."""
        taken = self._thread.run(self.host.receive(path, max_message_count=count, max_wait_time_s=0))
        return [entry.received() for entry in taken]

    # ------------------------------------------------------------------ faults

    def reset_connections(self) -> None:
        """Reset all connections, and refuse new ones for a moment."""
        self._thread.run(reset_connections(self.context.wire_faults))

    def inject(self, fault: Fault) -> Fault:
        """Inject a fault of the broker."""
        return self.do(lambda: self.host.inject(fault))

    def inject_wire_fault(self, fault: WireFault) -> WireFault:
        """Inject a wire fault."""
        return self.do(lambda: self.context.wire_faults.inject(fault))


async def reset_connections(faults: WireFaults) -> None:
    """Reset all connections, and those that are opened within 0.3 s."""
    fault = faults.inject(WireFault(WireFaultKind.RESET))
    await asyncio.sleep(0.3)
    faults.heal(fault)


def seconds(span_s: float) -> timedelta:
    return timedelta(seconds=span_s)
