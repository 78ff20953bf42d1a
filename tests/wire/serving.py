"""A namespace on a real port, served by a thread of its own, for clients that know nothing of this project."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, TypeVar

from azure.servicebus import TransportType
from azure.servicebus.exceptions import ServiceBusAuthenticationError, ServiceBusConnectionError, ServiceBusError

from sbclient import clock
from sbclient.broker.faults import Call, Fault, Operation
from sbclient.emulator import Emulator
from sbclient.emulator.faults import WireFault
from sbclient.emulator.sas import ROOT_KEY, ROOT_KEY_NAME
from sbclient.entities import (
    EntityAddress,
    EntityKind,
    RuleProperties,
)
from sbclient.message import ServiceBusReceivedMessage
from tests.stage.serving import ServingThread, reset_connections

T = TypeVar("T")


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
        self.do = thread.do
        self._emulator = emulator = Emulator("contoso", profile=profile, seed=7)
        self.context = emulator.context()
        self.host = self.context.host
        thread.run(emulator.start())
        self.port = emulator.ports["contoso"]

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
        return str(self._emulator.certificate_path)

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
        self._thread.run(self._emulator.close())

    # ------------------------------------------------------------------ entities

    def queue(self, name: str, **description: Any) -> str:
        """Make a queue; returns its name."""
        self._emulator.create_queue(name, **description)
        return name

    def topic(self, name: str, *subscriptions: str, **description: Any) -> str:
        """Make a topic with subscriptions; returns its name."""
        self._emulator.create_topic(name, **description)
        for subscription in subscriptions:
            self.subscription(name, subscription)
        return name

    def subscription(self, topic: str, name: str, **description: Any) -> None:
        """Make a subscription."""
        self._emulator.create_subscription(topic, name, **description)

    def rule(self, topic: str, subscription: str, name: str, **description: Any) -> None:
        """Make a rule."""
        address = EntityAddress(EntityKind.RULE, (topic, subscription, name))
        call = Call(Operation.MANAGE, clock.now())
        self.do(lambda: self.host.namespace.management.create(call, address, RuleProperties(name, **description)))

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
        self._emulator.inject(fault)
        return fault

    def inject_wire_fault(self, fault: WireFault) -> WireFault:
        """Inject a wire fault."""
        self._emulator.inject(fault)
        return fault


def seconds(span_s: float) -> timedelta:
    return timedelta(seconds=span_s)
