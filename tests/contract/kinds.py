"""The kinds of namespaces that the contract is tested on, with their capabilities."""

from __future__ import annotations

import itertools
import os
from typing import Any, TypeVar
from uuid import uuid4

from sbclient import PairedNamespaceOptions, ServiceBusClient
from sbclient.administration import ServiceBusAdministrationClient
from sbclient.broker.faults import Fault
from sbclient.emulator import Emulator
from sbclient.emulator.faults import WireFault
from sbclient.hosting.host import BrokerHost
from sbclient.message import ServiceBusReceivedMessage
from sbclient.transport.memory.transport import memory_host

T = TypeVar("T")

EVERYWHERE = frozenset({"sessions", "topics", "transactions of sends"})
"""What every kind can do; it is named so that a test may say so."""

ON_NETWORK = EVERYWHERE | {"faults", "pair", "keys", "pings dropped", "partitioning", "session lists"}
"""What both transports can do over sockets to the broker's server."""

_numbers = itertools.count(1)


class NamespaceKind:
    """One kind of namespace, for one test.

    Attributes:
        name: of the kind.
        capabilities: what it can do that others cannot.
        patience_s: the longest wait for something that must happen.
        moment_s: the length of a wait in which nothing may happen.
        names: the memory namespaces to remove after the test.
    """

    name: str
    capabilities: frozenset[str] = EVERYWHERE
    patience_s = 10.0
    moment_s = 1.0
    names: tuple[str, ...] = ()

    def __init__(self) -> None:
        self._clients: list[ServiceBusClient] = []
        self._client: ServiceBusClient | None = None
        self._queues: list[str] = []
        self._topics: list[str] = []

    def connection_string(self, *, is_secondary: bool = False) -> str:
        raise NotImplementedError

    def client(self, **options: Any) -> ServiceBusClient:
        """A further client; it is closed with the test."""
        client = ServiceBusClient.from_connection_string(
            self.connection_string(), **{**self.client_options(), **options}
        )
        self._clients.append(client)
        return client

    def paired_client(self, **options: Any) -> ServiceBusClient:
        """A client with the partner namespace behind it."""
        return self.client(
            secondary=self.connection_string(is_secondary=True), options=PairedNamespaceOptions(**options)
        )

    def secondary_client(self, **options: Any) -> ServiceBusClient:
        client = ServiceBusClient.from_connection_string(
            self.connection_string(is_secondary=True), **{**self.client_options(), **options}
        )
        self._clients.append(client)
        return client

    def client_options(self) -> dict[str, Any]:
        return {}

    @property
    def plain(self) -> ServiceBusClient:
        """The client that most tests need."""
        if self._client is None:
            self._client = self.client()
        return self._client

    @property
    def administration(self) -> ServiceBusAdministrationClient:
        return self.plain.administration

    async def queue(self, **description: Any) -> str:
        """A fresh queue, gone after the test."""
        return await self.queue_named(self.new_name("queue"), **description)

    async def queue_named(self, name: str, **description: Any) -> str:
        await self.administration.create_queue(name, **description)
        self._queues.append(name)
        return name

    async def topic(self, *subscriptions: str, **description: Any) -> str:
        """A fresh topic with subscriptions, gone after the test."""
        name = self.new_name("topic")
        await self.administration.create_topic(name, **description)
        self._topics.append(name)
        for subscription in subscriptions:
            await self.administration.create_subscription(name, subscription)
        return name

    async def received(
        self, queue: str, count: int, client: ServiceBusClient | None = None
    ) -> list[ServiceBusReceivedMessage]:
        """Receive and complete so many messages, and check that there are no more."""
        messages: list[ServiceBusReceivedMessage] = []
        async with (client or self.plain).get_queue_receiver(queue) as receiver:
            while len(messages) < count:
                some = await receiver.receive_messages(count, max_wait_time=self.patience_s)
                assert some, f"{len(messages)} of {count} came"
                for message in some:
                    await receiver.complete_message(message)
                messages += some
            assert await receiver.peek_messages(5, sequence_number=1) == []
        return messages

    def new_name(self, noun: str) -> str:
        return f"{noun}-{next(_numbers)}"

    def inject(self, fault: Fault | WireFault, *, is_secondary: bool = False) -> None:
        raise NotImplementedError

    def heal(self) -> None:
        """End all faults."""

    async def close(self) -> None:
        self.heal()
        for name in self._queues:
            await self.administration.delete_queue(name)
        for name in self._topics:
            await self.administration.delete_topic(name)
        for client in self._clients:
            await client.close()


class Memory(NamespaceKind):
    name = "memory"
    capabilities = EVERYWHERE | {
        "all property types",
        "faults",
        "full transactions",
        "long lives",
        "pair",
        "partitioning",
        "pings dropped",
        "session lists",
        "time at will",
    }

    def __init__(self) -> None:
        super().__init__()
        number = next(_numbers)
        self.names = (f"contract-{number}", f"contract-{number}-backup")
        self._hosts: tuple[BrokerHost, ...] = tuple(memory_host(name) for name in self.names)

    def connection_string(self, *, is_secondary: bool = False) -> str:
        return f"memory://{self.names[is_secondary]}"

    def inject(self, fault: Fault | WireFault, *, is_secondary: bool = False) -> None:
        assert isinstance(fault, Fault)
        self._hosts[is_secondary].inject(fault)

    def heal(self) -> None:
        for host in self._hosts:
            host.heal()


class Amqp(NamespaceKind):
    name = "amqp"
    moment_s = 0.3
    capabilities = ON_NETWORK | {"all property types", "full transactions", "long lives"}

    def __init__(self, emulator: Emulator) -> None:
        super().__init__()
        self._emulator = emulator

    def connection_string(self, *, is_secondary: bool = False) -> str:
        return self._emulator.connection_strings[self._emulator.namespaces[is_secondary]]

    def client_options(self) -> dict[str, Any]:
        return {"connection_verify": str(self._emulator.certificate_path), "transport": self.name}

    def inject(self, fault: Fault | WireFault, *, is_secondary: bool = False) -> None:
        self._emulator.inject(fault, self._emulator.namespaces[is_secondary])

    def heal(self) -> None:
        for namespace in self._emulator.namespaces:
            self._emulator.heal(namespace=namespace)


class Sdk(Amqp):
    name = "sdk"
    capabilities = ON_NETWORK | {"sends-only transactions"}


class Service(NamespaceKind):
    name = "service"
    patience_s = 30.0
    moment_s = 3.0

    def __init__(self) -> None:
        super().__init__()
        capabilities = {*EVERYWHERE, "all property types", "full transactions", "long lives", "keys", "session lists"}
        if os.environ.get("SERVICEBUS_SECONDARY_CONNECTION_STRING"):
            capabilities.add("pair")
        self.capabilities = frozenset(capabilities)

    def connection_string(self, *, is_secondary: bool = False) -> str:
        return os.environ["SERVICEBUS_SECONDARY_CONNECTION_STRING" if is_secondary else "SERVICEBUS_CONNECTION_STRING"]

    def new_name(self, noun: str) -> str:
        return f"contract-{noun}-{uuid4()}"
