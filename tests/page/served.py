"""An emulator in a thread of its own, for tests that drive a browser in this one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sbclient import clock
from sbclient.broker.faults import Call, Operation
from sbclient.delivery import ServiceBusReceiveMode, Settlement, SettleMode
from sbclient.emulator import Emulator
from sbclient.entities import EntityAddress, EntityKind, RuleProperties
from sbclient.message import ServiceBusMessage, ServiceBusReceivedMessage
from tests.emulator.amqp.client import put
from tests.stage.serving import ServingThread, serving

PRIMARY = "contoso"
SECONDARY = "contoso-backup"


class Served:
    """Namespaces that are served, and ways to do something in them from the test's thread.

    Attributes:
        emulator: the emulator.
        do: calls something where the emulator runs.
    """

    def __init__(self, emulator: Emulator, thread: ServingThread) -> None:
        self.emulator = emulator
        self.do = thread.do

    @property
    def url(self) -> str:
        """Where the page is, on the port without faults."""
        return f"http://localhost:{self.emulator.http_port}/"

    def url_of(self, namespace: str) -> str:
        """Where the page is, on the port of a namespace."""
        return f"http://localhost:{self.emulator.ports[namespace]}/"

    def clear(self) -> None:
        """No entities, no messages, no faults, no events."""
        self.emulator.reset()
        for name in self.emulator.namespaces:
            context = self.emulator.context(name)
            context.events.recent.clear()
            context.fault_log.clear()

    # ------------------------------------------------------------------ entities and messages

    def queue(self, path: str, *, namespace: str = PRIMARY, **described: Any) -> None:
        self.emulator.create_queue(path, namespace, **described)

    def topic(self, path: str, *subscriptions: str) -> None:
        self.emulator.create_topic(path)
        for name in subscriptions:
            self.emulator.create_subscription(path, name)

    def rule(self, topic: str, subscription: str, properties: RuleProperties) -> None:
        management = self.emulator.context().host.namespace.management
        address = EntityAddress(EntityKind.RULE, (topic, subscription, properties.name))
        self.do(lambda: management.create(Call(Operation.MANAGE, clock.now()), address, properties))

    def send(self, path: str, *messages: ServiceBusMessage, namespace: str = PRIMARY) -> None:
        self.do(lambda: put(self.emulator.context(namespace).host, path, *messages))

    def receive(
        self, path: str, count: int = 10, *, deletes: bool = True, namespace: str = PRIMARY
    ) -> list[ServiceBusReceivedMessage]:
        broker = self.emulator.context(namespace).host.namespace
        mode = ServiceBusReceiveMode.RECEIVE_AND_DELETE if deletes else ServiceBusReceiveMode.PEEK_LOCK
        call = Call(Operation.RECEIVE, clock.now())
        taken = self.do(lambda: broker.receive(call, path, max_message_count=count, mode=mode))
        return [entry.received() for entry in taken]

    def defer(self, path: str) -> None:
        """Defer the next message."""
        self._settle(path, self.receive(path, 1, deletes=False), Settlement(SettleMode.DEFER))

    def dead_letter(self, path: str, *messages: ServiceBusMessage, reason: str = "bad") -> None:
        """Send messages that end in the dead-letter queue."""
        self.send(path, *messages)
        received = self.receive(path, len(messages), deletes=False)
        self._settle(path, received, Settlement(SettleMode.DEAD_LETTER, reason, "in full"))

    def _settle(self, path: str, received: list[ServiceBusReceivedMessage], settlement: Settlement) -> None:
        context = self.emulator.context(PRIMARY)

        def settle() -> None:
            for token in [each.lock_token for each in received if each.lock_token]:
                call = Call(Operation.SETTLE, clock.now())
                context.host.namespace.settle(call, path, [token], settlement)

        self.do(settle)

    def count(self, path: str, *, namespace: str = PRIMARY) -> int:
        """Messages in every state."""
        directory = self.emulator.context(namespace).host.namespace.directory
        return self.do(lambda: sum(map(len, directory.find(path)[1].fragments)))


@contextmanager
def serving_page(certificates: Path, **options: Any) -> Iterator[Served]:
    """An emulator with two namespaces and a port for HTTP alone."""
    thread = ServingThread()
    try:
        options = {"http_port": 0, "certificate_directory": certificates, "seed": 1} | options
        with serving(thread, PRIMARY, SECONDARY, **options) as emulator:
            yield Served(emulator, thread)
    finally:
        thread.close()
