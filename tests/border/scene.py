"""A namespace with one client, over each transport, in virtual time and without sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from random import Random
from typing import Any, Final

from sbclient import ServiceBusClient, ServiceBusMessage, ServiceBusReceivedMessage, Transaction
from sbclient.broker.faults import Fault, FaultKind
from sbclient.testing import MemoryNamespace
from sbclient.transport.amqp.transport import AmqpTransport
from sbclient.transport.memory.transport import MemoryTransport
from tests.simulation.network import Line, Network
from tests.simulation.program import Signer
from tests.simulation.weather import Incident

TRANSPORTS: Final = ("memory", "amqp")
LINE: Final = Line(latency_s=0.0, split_share=0.0, buffer_bytes=2**20, token_s=3600.0, max_frame_bytes=65_536)
OPTIONS: Final[dict[str, Any]] = {"random": Random(4), "timeout": 8.0, "retry_total": 0}
LOCK: Final = timedelta(minutes=5)
"""No lock ends while other calls are tested."""
QUEUES: Final = ("orders", "idle", "visits")


class Scene:
    """A client with senders, receivers and a session, and a receive call that waits all the time."""

    def __init__(self, transport: str) -> None:
        self._is_amqp = transport == "amqp"
        self._networks: list[Network] = []
        self.host = MemoryNamespace("contoso", random=Random(1))
        self.client = ServiceBusClient(transport=self.transport_to(self.host), **OPTIONS)

    def transport_to(self, host: MemoryNamespace) -> Any:
        """Return a new transport to a namespace."""
        if not self._is_amqp:
            return MemoryTransport(host)
        network = Network(host, LINE, Random(2))
        self._networks.append(network)
        return AmqpTransport(
            host.namespace.name,
            host.namespace.name,
            lambda sink: network.connect(sink, lambda: True),
            Signer(network),
            random=Random(3),
            management=lambda: MemoryTransport(host),
        )

    async def __aenter__(self) -> Scene:
        self.host.create_queue("orders", max_delivery_count=2_000, lock_duration=LOCK)
        self.host.create_queue("idle")
        self.host.create_queue("kept")
        self.keeper = self.client.get_queue_sender("kept")
        self.host.create_queue("visits", requires_session=True, lock_duration=LOCK)
        self.host.create_topic("prices")
        self.host.create_subscription("prices", "eu")
        await self.client.__aenter__()
        self.administration = self.client.administration
        self.sender = self.client.get_queue_sender("orders")
        self.receiver = self.client.get_queue_receiver("orders")
        self.session_receiver = await self.client.get_queue_receiver("visits", session_id="s").__aenter__()
        self.session = self.session_receiver.session
        self._idle = self.client.get_queue_receiver("idle")
        self._waiting = asyncio.ensure_future(self._idle.receive_messages(max_wait_time=1e6))
        return self

    async def __aexit__(self, *_: object) -> None:
        """Check that the call that waited was not disturbed."""
        await self.client.get_queue_sender("idle").send_messages(ServiceBusMessage("at last"))
        (message,) = await asyncio.wait_for(self._waiting, 10)
        await self._idle.complete_message(message)
        await self.end()

    async def end(self) -> None:
        """Close what is open."""
        await self.client.close()
        await asyncio.gather(self._waiting, return_exceptions=True)
        await self.close_networks()

    async def close_networks(self) -> None:
        """Close what is behind the transports."""
        for network in self._networks:
            await network.close()

    @contextmanager
    def silence(self) -> Iterator[None]:
        """Let no answer come: over AMQP because the network holds all bytes, so that only the client ends a call."""
        hole = Incident(kind="network", at_s=0.0, span_s=1e6, what="hole")
        hang = Fault(FaultKind.HANG)
        for network in self._networks:
            network.begin(hole)
        self.host.inject(hang)
        yield
        self.host.heal(hang)
        for network in self._networks:
            network.end(hole)

    async def locked(self) -> ServiceBusReceivedMessage:
        """Return a message that the receiver has locked."""
        await self.sender.send_messages(ServiceBusMessage("m"))
        (message,) = await self.receiver.receive_messages(max_wait_time=5)
        return message

    async def deferred(self) -> int:
        """Return the number of a deferred message."""
        message = await self.locked()
        await self.receiver.defer_message(message)
        return message.sequence_number

    async def scheduled(self) -> int:
        """Return the number of a scheduled message."""
        at = self.host.now().replace(year=2100)
        (number,) = await self.sender.schedule_messages(ServiceBusMessage("later"), at)
        return number

    async def transaction(self) -> Transaction:
        """Return a transaction that has begun."""
        transaction = self.client.transaction()
        await transaction.link()
        return transaction

    def state(self) -> list[Any]:
        """Return what the broker holds, to compare it before and after a call that is refused.

        That are the messages with their states, locks and counts of deliveries, the sessions with their locks and
        states, the bytes that count for the quota, and the entities with their settings.
        """
        found: list[Any] = []
        for entity in self.host.namespace.directory.all():
            found.append(repr(entity.description))
            for queue in entity.queues():
                for fragment in queue.fragments:
                    entries = fragment.browse(self.host.now().timestamp(), 1)
                    found += [
                        [
                            (each.number, each.token, each.locked_until, each.delivery_count, each.state)
                            for each in entries
                        ],
                        [
                            (name, each.token, each.locked_until, each.state, each.ready_count)
                            for name, each in fragment.sessions(self.host.now().timestamp())
                        ],
                        (len(fragment), fragment.locked_count, fragment.deferred_count, fragment.usage.size_bytes),
                    ]
        return found
