"""Some of the cells again over real sockets, with the unmodified clients of azure-servicebus and with our own.

The matrix checks the broker's responses; these tests check the exceptions that users see.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, TypeAlias

import pytest
from azure.core.exceptions import ClientAuthenticationError
from azure.servicebus import ServiceBusMessage, ServiceBusSubQueue
from azure.servicebus.aio import ServiceBusClient
from azure.servicebus.aio.management import ServiceBusAdministrationClient
from azure.servicebus.exceptions import ServiceBusAuthenticationError, ServiceBusAuthorizationError

import sbclient
from sbclient import clock
from sbclient.amqp import encode_message
from sbclient.broker.faults import Call, Operation
from sbclient.emulator import Emulator
from sbclient.emulator.control.namespace_state import state_of
from sbclient.entities import AccessRights, AuthorizationRule, EntityKind
from sbclient.hosting.host import BrokerHost
from sbclient.message import ServiceBusMessage as OwnMessage
from sbclient.rules.shared_access_signature import sign
from tests.emulator.amqp.client import create
from tests.limit import HANG_S

pytestmark = pytest.mark.real_time

AT_ONCE: Final = 40

KEYS: Final = {
    "nothing": [],
    "sender": [AccessRights.SEND],
    "listener": [AccessRights.LISTEN],
    "both": [AccessRights.SEND, AccessRights.LISTEN],
    "manager": list(AccessRights),
}
SENDERS: Final = {"sender", "both", "manager"}
LISTENERS: Final = {"listener", "both", "manager"}
MANAGERS: Final = {"manager"}


@dataclass(frozen=True)
class Place:
    """The entities of one cell, used by no other cell."""

    number: int

    @property
    def queue(self) -> str:
        return f"queue-{self.number}"

    @property
    def topic(self) -> str:
        return f"topic-{self.number}"

    @property
    def sessions(self) -> str:
        return f"sessions-{self.number}"

    @property
    def new(self) -> str:
        return f"new-{self.number}"


class Served:
    """An emulator, and how to reach it with each key."""

    def __init__(self, emulator: Emulator, certificate: str) -> None:
        self.emulator = emulator
        self.host = emulator.context().host
        self.certificate = certificate
        self.endpoint = f"Endpoint=sb://localhost:{emulator.ports['contoso']}"

    def string(self, proof: str) -> str:
        return f"{self.endpoint};{proof};UseDevelopmentEmulator=true"

    def make(self, place: Place) -> None:
        create(self.host, EntityKind.QUEUE, place.queue, authorization_rules=rules_of(place.queue))
        create(
            self.host,
            EntityKind.QUEUE,
            place.sessions,
            authorization_rules=rules_of(place.sessions),
            requires_session=True,
        )
        create(self.host, EntityKind.TOPIC, place.topic, authorization_rules=rules_of(place.topic))
        create(self.host, EntityKind.SUBSCRIPTION, place.topic, "sub")
        for path in (place.queue, place.topic):
            send(self.host, path, OwnMessage("secret"))
        send(self.host, place.sessions, OwnMessage("secret", session_id="a"))

    def print(self, place: Place) -> str:
        namespace, now = self.host.namespace, clock.now()
        paths = (place.queue, place.sessions, place.topic, f"{place.topic}/Subscriptions/sub")
        found: list[Any] = [state_of(namespace, now, path)["entities"] for path in paths]
        return json.dumps([*found, namespace.directory.get(place.new) is None])


def rules_of(path: str) -> list[AuthorizationRule]:
    return [
        AuthorizationRule(key_name=name, rights=rights, primary_key=f"{name} of {path}")
        for name, rights in KEYS.items()
    ]


def send(host: BrokerHost, path: str, message: OwnMessage) -> None:
    host.namespace.send(Call(Operation.SEND, clock.now()), path, [encode_message(message)])


@pytest.fixture
async def served(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Served]:
    rules = [
        {"KeyName": name, "Rights": [str(right) for right in rights], "PrimaryKey": f"{name} of the namespace"}
        for name, rights in KEYS.items()
    ]
    config = tmp_path / "Config.json"
    config.write_text(json.dumps({"UserConfig": {"Namespaces": [{"Name": "contoso", "AuthorizationRules": rules}]}}))
    certificates = tmp_path_factory.getbasetemp() / "certificates-of-rights"
    async with Emulator(config=config, first_port=0, seed=1, certificate_directory=certificates) as emulator:
        yield Served(emulator, str(emulator.certificate_path))


# ---------------------------------------------------------------------- operations

Do: TypeAlias = Callable[[Served, str, Place], Awaitable[None]]


def messaging(connection_string: str) -> ServiceBusClient:
    return ServiceBusClient.from_connection_string(connection_string, retry_total=0)


async def send_one(served: Served, string: str, place: Place) -> None:
    async with messaging(string) as client, client.get_queue_sender(place.queue) as sender:
        await sender.send_messages(ServiceBusMessage("sent"))


async def schedule(served: Served, string: str, place: Place) -> None:
    async with messaging(string) as client, client.get_queue_sender(place.queue) as sender:
        later = datetime.now(UTC) + timedelta(hours=1)
        await sender.schedule_messages(ServiceBusMessage("sent"), later)


async def send_to_topic(served: Served, string: str, place: Place) -> None:
    async with messaging(string) as client, client.get_topic_sender(place.topic) as sender:
        await sender.send_messages(ServiceBusMessage("sent"))


async def receive(served: Served, string: str, place: Place) -> None:
    async with messaging(string) as client, client.get_queue_receiver(place.queue) as receiver:
        (message,) = await receiver.receive_messages(max_wait_time=5)
        await receiver.complete_message(message)


async def receive_from_subscription(served: Served, string: str, place: Place) -> None:
    async with messaging(string) as client, client.get_subscription_receiver(place.topic, "sub") as receiver:
        assert await receiver.receive_messages(max_wait_time=5)


async def receive_dead_letters(served: Served, string: str, place: Place) -> None:
    async with (
        messaging(string) as client,
        client.get_queue_receiver(place.queue, sub_queue=ServiceBusSubQueue.DEAD_LETTER) as receiver,
    ):
        assert await receiver.receive_messages(max_wait_time=0.5) == []


async def peek(served: Served, string: str, place: Place) -> None:
    async with messaging(string) as client, client.get_queue_receiver(place.queue) as receiver:
        assert await receiver.peek_messages()


async def accept_session(served: Served, string: str, place: Place) -> None:
    async with messaging(string) as client, client.get_queue_receiver(place.sessions, session_id="a") as receiver:
        await receiver.session.set_state(b"mine")


async def get_queue(served: Served, string: str, place: Place) -> None:
    async with administration(served, string) as client:
        await client.get_queue(place.queue)


async def create_queue(served: Served, string: str, place: Place) -> None:
    async with administration(served, string) as client:
        await client.create_queue(place.new)


async def list_rules(served: Served, string: str, place: Place) -> None:
    async with administration(served, string) as client:
        assert [each.name async for each in client.list_rules(place.topic, "sub")] == ["$Default"]


async def namespace(served: Served, string: str, place: Place) -> None:
    async with administration(served, string) as client:
        await client.get_namespace_properties()


def administration(served: Served, string: str) -> ServiceBusAdministrationClient:
    return ServiceBusAdministrationClient.from_connection_string(
        string, connection_verify=served.certificate, retry_total=0
    )


OPERATIONS: Final[dict[Do, set[str]]] = {
    send_one: SENDERS,
    schedule: SENDERS,
    send_to_topic: SENDERS,
    receive: LISTENERS,
    receive_from_subscription: LISTENERS,
    receive_dead_letters: LISTENERS,
    peek: LISTENERS,
    accept_session: LISTENERS,
    get_queue: MANAGERS,
    create_queue: MANAGERS,
    list_rules: MANAGERS,
    namespace: MANAGERS,
}
BY_HTTP: Final = (get_queue, create_queue, list_rules, namespace)


Proof: TypeAlias = Callable[[Place], str]
"""Returns the credential of a connection string for the entities of one cell."""


def key(name: str, value: str) -> Proof:
    return lambda place: f"SharedAccessKeyName={name};SharedAccessKey={value}"


def key_of_queue(name: str) -> Proof:
    return lambda place: f"SharedAccessKeyName={name};SharedAccessKey={name} of {place.queue}"


def token(path: Callable[[Place], str], *, lifetime_s: float = 3600) -> Proof:
    def proof(place: Place) -> str:
        ends_at = datetime.now(UTC).timestamp() + lifetime_s
        signed = sign(f"sb://localhost/{path(place)}", "manager", "manager of the namespace", ends_at)
        return f"SharedAccessSignature={signed}"

    return proof


class Cells:
    """Runs cells concurrently, each with its own entities, and collects the wrong results."""

    def __init__(self, served: Served) -> None:
        self._served = served
        self._room = asyncio.Semaphore(AT_ONCE)
        self._running: list[Awaitable[None]] = []
        self.wrong: list[str] = []

    def add(self, do: Do, proof: Proof, wanted: type[Exception] | None, name: str) -> None:
        place = Place(len(self._running))
        self._served.make(place)
        self._running.append(self._run(do, self._served.string(proof(place)), place, wanted, f"{do.__name__} {name}"))

    async def _run(self, do: Do, string: str, place: Place, wanted: type[Exception] | None, name: str) -> None:
        before, found = self._served.print(place), ""
        async with self._room, asyncio.timeout(HANG_S):
            try:
                await do(self._served, string, place)
            except Exception as error:
                found = type(error).__name__
        if found != (wanted.__name__ if wanted else ""):
            self.wrong.append(f"{name}: {found or 'nothing'} came instead of {wanted}")
        elif wanted is not None and self._served.print(place) != before:
            self.wrong.append(f"{name}: it was refused and yet something has changed")

    async def done(self) -> int:
        await asyncio.gather(*self._running)
        assert not self.wrong, "\n".join(self.wrong)
        return len(self._running)


async def test_key_allows_the_rights_of_its_rule(served: Served) -> None:
    cells = Cells(served)
    for do, allowed in OPERATIONS.items():
        refused = ClientAuthenticationError if do in BY_HTTP else ServiceBusAuthorizationError
        for name in KEYS:
            proof = key(name, f"{name} of the namespace")
            cells.add(do, proof, None if name in allowed else refused, f"with the key of a {name}")
    assert await cells.done() == 60


async def test_invalid_credentials_allow_nothing(served: Served) -> None:
    cells = Cells(served)
    for do in (send_one, receive, peek, get_queue, create_queue):
        refused = ClientAuthenticationError if do in BY_HTTP else ServiceBusAuthenticationError
        cells.add(do, key("manager", "guess"), refused, "with a wrong key")
        cells.add(do, key("unknown", "manager of the namespace"), refused, "with an unknown key name")
        cells.add(do, key("manager", "manager of topic-0"), refused, "with the key of another entity")
        cells.add(do, token(lambda place: place.queue, lifetime_s=-1), refused, "with a token that has expired")
        cells.add(do, token(lambda place: place.queue + "0"), refused_by_scope(do), "with a token for a longer name")
        cells.add(
            do, token(lambda place: place.queue), None if do is not create_queue else refused, "with a token for it"
        )
        cells.add(do, token(lambda place: ""), None, "with a token for the namespace")
    assert await cells.done() == 35


def refused_by_scope(do: Do) -> type[Exception]:
    return ClientAuthenticationError if do in BY_HTTP else ServiceBusAuthenticationError


async def test_key_of_an_entity_gives_access_to_that_entity(served: Served) -> None:
    cells = Cells(served)
    for do, allowed in OPERATIONS.items():
        if do in (send_one, schedule, receive, receive_dead_letters, peek):
            for name in KEYS:
                wanted = None if name in allowed else ServiceBusAuthorizationError
                cells.add(do, key_of_queue(name), wanted, f"with the entity's key of a {name}")
        else:
            refused = ClientAuthenticationError if do in BY_HTTP else ServiceBusAuthenticationError
            cells.add(do, key_of_queue("manager"), refused, "with the key of a queue")
    assert await cells.done() == 32


async def own_send(served: Served, string: str, place: Place) -> None:
    async with sbclient.ServiceBusClient.from_connection_string(string) as client:
        await client.get_queue_sender(place.queue).send_messages(OwnMessage("sent"))


async def own_receive(served: Served, string: str, place: Place) -> None:
    async with sbclient.ServiceBusClient.from_connection_string(string) as client:
        receiver = client.get_queue_receiver(place.queue)
        (message,) = await receiver.receive_messages(max_wait_time=5)
        await receiver.complete_message(message)


async def test_own_client_raises_distinct_errors(served: Served) -> None:
    cells = Cells(served)
    for do, allowed in ((own_send, SENDERS), (own_receive, LISTENERS)):
        for name in KEYS:
            wanted = None if name in allowed else sbclient.ServiceBusAuthorizationError
            cells.add(do, key(name, f"{name} of the namespace"), wanted, f"with the key of a {name}")
        cells.add(do, key("manager", "guess"), sbclient.ServiceBusAuthenticationError, "with a wrong key")
    assert await cells.done() == 12


async def test_memory_transport_needs_no_credentials() -> None:
    """`memory://` is the broker in the caller's own process, without keys."""
    async with sbclient.ServiceBusClient.from_connection_string("memory://rights-need-none") as client:
        await client.administration.create_queue("q")
        await client.get_queue_sender("q").send_messages(OwnMessage("x"))
        (message,) = await client.get_queue_receiver("q").receive_messages(max_wait_time=1)
        assert str(message) == "x"
