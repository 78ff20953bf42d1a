"""A small AMQP client on the engine's other role, and the wire in memory on which it meets the broker's server.

Everything runs in the test's virtual time: a lock of a minute ends at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeVar
from uuid import UUID, uuid5

from sbclient import clock
from sbclient.amqp import (
    BATCH_FORMAT,
    Attach,
    Connection,
    ConnectionClosed,
    ConnectionOptions,
    Coordinator,
    Declare,
    DeliveryReceived,
    Discharge,
    DispositionReceived,
    DispositionsReceived,
    IncomingDelivery,
    IncomingLink,
    Link,
    LinkAttached,
    LinkDetached,
    OutgoingLink,
    PlainCredentials,
    Properties,
    Rejected,
    Sections,
    Session,
    Source,
    Target,
    TransactionalState,
    encode_message,
)
from sbclient.amqp.sasl import PLAIN
from sbclient.amqp.states import DeliveryState
from sbclient.amqp.types import UInt
from sbclient.broker.faults import Call, Operation
from sbclient.emulator.amqp.connection import serve_amqp
from sbclient.emulator.context import NamespaceContext
from sbclient.emulator.sas import ROOT_KEY, ROOT_KEY_NAME
from sbclient.entities import (
    EntityAddress,
    EntityKind,
    EntityProperties,
    QueueProperties,
    RuleProperties,
    SubscriptionProperties,
    TopicProperties,
)
from sbclient.hosting.host import BrokerHost
from sbclient.message import ServiceBusMessage
from sbclient.rules.shared_access_signature import sign
from tests.payloads import batch_of, encode_sections, payload_of

E = TypeVar("E")

HOST = "sb://contoso.example"
UNSETTLED, SETTLED = 0, 1
NAMES = UUID(int=7)


class Pipe:
    """One end of a wire in memory."""

    def __init__(self) -> None:
        self.other: Pipe = self
        self.incoming: asyncio.Queue[bytes] = asyncio.Queue()
        self.is_closed = False
        self.is_read = asyncio.Event()
        self.is_read.set()
        self.waiting_bytes = 0
        self.heard = bytearray()

    @property
    def peer(self) -> str:
        return "127.0.0.1:50123"

    async def read(self) -> bytes:
        piece = await self.incoming.get()
        self.waiting_bytes -= len(piece)
        self.heard += piece
        return piece

    def write(self, data: bytes) -> None:
        if not self.is_closed:
            self.other.waiting_bytes += len(data)
            self.other.incoming.put_nowait(data)

    def trust(self) -> None:
        pass

    async def drain(self) -> None:
        await self.is_read.wait()

    async def close(self) -> None:
        if not self.is_closed:
            self.is_closed = True
            self.other.incoming.put_nowait(b"")
            self.incoming.put_nowait(b"")


def wire() -> tuple[Pipe, Pipe]:
    """Both ends of a wire."""
    one, other = Pipe(), Pipe()
    one.other, other.other = other, one
    return one, other


_PROPERTIES: dict[EntityKind, Any] = {
    EntityKind.QUEUE: QueueProperties,
    EntityKind.TOPIC: TopicProperties,
    EntityKind.SUBSCRIPTION: SubscriptionProperties,
    EntityKind.RULE: RuleProperties,
}


def create(host: BrokerHost, kind: EntityKind, *names: str, **description: Any) -> EntityProperties:
    """Make an entity."""
    call = Call(Operation.MANAGE, clock.now())
    properties = _PROPERTIES[kind](names[-1], **description)
    return host.namespace.management.create(call, EntityAddress(kind, names), properties)


def put(host: BrokerHost, path: str, *messages: ServiceBusMessage | str, **attributes: Any) -> None:
    """Store messages one by one, past the wire; a text becomes a message with these attributes."""
    for each in messages:
        message = ServiceBusMessage(each, **attributes) if isinstance(each, str) else each
        host.namespace.send(Call(Operation.SEND, clock.now()), path, [encode_message(message)])


def condition_of(outcome: object) -> str:
    assert isinstance(outcome, Rejected), outcome
    assert outcome.error is not None
    assert outcome.error.description
    return outcome.error.condition


class Client:
    """One AMQP connection; use `connected`."""

    def __init__(
        self, pipe: Pipe, *, credentials: PlainCredentials | None, frame_size: int, incoming_window: int
    ) -> None:
        options = ConnectionOptions(
            container_id="client",
            hostname="contoso",
            max_frame_size=frame_size,
            max_message_size=2**27,
            incoming_window=incoming_window,
        )
        mechanism = "ANONYMOUS" if credentials is None else PLAIN
        self.pipe = pipe
        self.engine = Connection.client(options, now=clock.monotonic(), mechanism=mechanism, credentials=credentials)
        self.closed: asyncio.Future[ConnectionClosed] = asyncio.get_running_loop().create_future()
        self._events: dict[tuple[type, int], asyncio.Queue[Any]] = {}
        self._session: Session | None = None
        self._nodes: dict[str, tuple[OutgoingLink, IncomingLink]] = {}
        self._count = 0

    @property
    def session(self) -> Session:
        if self._session is None:
            self._session = self.engine.begin()
        return self._session

    async def run(self) -> None:
        self.flush()
        while not self.engine.is_over:
            chunk = await self.pipe.read()
            if chunk:
                self.engine.receive_bytes(chunk, now=clock.monotonic())
            else:
                self.engine.receive_eof()
            while (event := self.engine.next_event()) is not None:
                self._keep(event)
            self.flush()

    def _keep(self, event: Any) -> None:
        if isinstance(event, ConnectionClosed):
            self.closed.set_result(event)
            return
        if isinstance(event, DispositionsReceived):
            for each in event.each():
                self._keep(each)
            return
        thing = getattr(event, "delivery", None) if isinstance(event, DispositionReceived) else None
        thing = thing or getattr(event, "link", None)
        if thing is not None:
            self._queue(type(event), thing).put_nowait(event)

    def _queue(self, kind: type, thing: Any) -> asyncio.Queue[Any]:
        return self._events.setdefault((kind, id(thing)), asyncio.Queue())

    async def event(self, kind: type[E], thing: Any, *, within_s: float = 30.0) -> E:
        """The next event of that kind about a link or a delivery."""
        async with asyncio.timeout(within_s):
            event: E = await self._queue(kind, thing).get()
        return event

    def flush(self) -> None:
        if written := self.engine.bytes_to_send(now=clock.monotonic()):
            self.pipe.write(written)

    async def close(self) -> None:
        self.engine.close(now=clock.monotonic())
        self.flush()
        async with asyncio.timeout(30):
            await self.closed

    # ------------------------------------------------------------------ links

    def _name(self) -> str:
        self._count += 1
        return f"link-{self._count}"

    async def attached(self, link: Link) -> LinkAttached:
        self.flush()
        return await self.event(LinkAttached, link, within_s=100_000)

    async def sender(self, address: str, **options: Any) -> OutgoingLink:
        """A link to send on, which stands when this returns."""
        link = self.session.attach_sender(self._name(), target=Target(address=address), **options)
        await self.attached(link)
        return link

    async def receiver(
        self,
        address: str,
        *,
        credit: int = 0,
        settle_mode: int = UNSETTLED,
        filters: Mapping[str, Any] | None = None,
        timeout_s: float | None = None,
    ) -> IncomingLink:
        """A link to receive on."""
        link = self.session.attach_receiver(
            self._name(),
            source=Source(address=address, filter=filters),
            snd_settle_mode=settle_mode,
            rcv_settle_mode=1 - settle_mode,
            max_message_size=2**27,
            properties=None if timeout_s is None else {"com.microsoft:timeout": UInt(int(timeout_s * 1000))},
        )
        await self.attached(link)
        if credit:
            link.grant(credit)
            self.flush()
        return link

    @staticmethod
    def answer(link: Link) -> Attach:
        """The server's attach."""
        assert link.remote is not None
        return link.remote

    @classmethod
    def granted(cls, link: Link) -> Mapping[str, Any]:
        """The filter that the server has let stand."""
        source = cls.answer(link).source
        assert source is not None
        return source.filter or {}

    async def refusal(self, link: Link) -> str:
        """The condition with which a link ended."""
        detached = await self.event(LinkDetached, link)
        assert detached.error is not None
        return detached.error.condition

    # ------------------------------------------------------------------ messages

    async def send(
        self, link: OutgoingLink, *messages: ServiceBusMessage, state: DeliveryState | None = None
    ) -> DeliveryState | None:
        """Send one message, or several as a batch; returns the outcome."""
        if len(messages) == 1:
            return await self.transfer(link, payload_of(messages[0]), state=state)
        return await self.transfer(link, batch_of(messages).payload, message_format=BATCH_FORMAT, state=state)

    async def transfer(
        self, link: OutgoingLink, payload: bytes, *, message_format: int = 0, state: DeliveryState | None = None
    ) -> DeliveryState | None:
        """Send some bytes; returns the outcome."""
        self._count += 1
        tag = self._count.to_bytes(4, "big")
        delivery = link.send(payload, tag=tag, message_format=message_format, state=state, needs_credit=False)
        self.flush()
        answer = await self.event(DispositionReceived, delivery, within_s=1_000)
        assert answer.settled
        return answer.state

    async def settle(self, delivery: IncomingDelivery, state: DeliveryState) -> DeliveryState | None:
        """State an outcome and wait for its confirmation. In a transaction it is unsettled until the commit."""
        delivery.settle(state, settled=False)
        self.flush()
        answer = await self.event(DispositionReceived, delivery)
        is_refused = isinstance(answer.state, Rejected) and answer.state.error is not None
        assert answer.settled is (is_refused or not isinstance(state, TransactionalState))
        return answer.state

    # ------------------------------------------------------------------ requests

    async def request(
        self,
        node: str,
        operation: str,
        body: Any = None,
        *,
        arguments: Mapping[str, Any] | None = None,
        state: DeliveryState | None = None,
    ) -> tuple[Mapping[str, Any], Any]:
        """Ask a node; returns the application properties and the body of the reply."""
        requests, replies = await self.node(node)
        self._count += 1
        message_id = uuid5(NAMES, str(self._count))
        payload = encode_sections(
            properties=Properties(message_id=message_id, reply_to=node),
            application_properties={"operation": operation, **(arguments or {})},
            value=body,
        )
        requests.send(payload, tag=self._count.to_bytes(4, "big"), state=state, needs_credit=False)
        self.flush()
        delivery = (await self.event(DeliveryReceived, replies, within_s=4_000)).delivery
        assert delivery.is_settled
        reply = Sections(delivery.payload)
        assert reply.properties.correlation_id == message_id
        return reply.application_properties, reply.value()

    async def node(self, node: str) -> tuple[OutgoingLink, IncomingLink]:
        """The pair of links with a node; made when it is first asked for."""
        if node not in self._nodes:
            self._nodes[node] = await self.sender(node), await self.receiver(node)
        return self._nodes[node]

    async def put_token(self, path: str, token: str | None = None, *, lives_s: float = 3600.0) -> int:
        """Put a token for an entity; returns the status."""
        audience = f"{HOST}/{path}"
        if token is None:
            token = sign(audience, ROOT_KEY_NAME, ROOT_KEY, clock.now() + lives_s)
        arguments = {"type": "jwt", "name": audience}
        reply, _ = await self.request("$cbs", "put-token", token, arguments=arguments)
        status: int = reply["status-code"]
        return status

    async def ask(self, path: str, operation: str, body: Any = None, **options: Any) -> tuple[int, Any]:
        """Ask the management node of an entity; returns status, and body or condition."""
        reply, answer = await self.request(f"{path}/$management", f"com.microsoft:{operation}", body, **options)
        return reply["statusCode"], reply.get("errorCondition", answer)

    # ------------------------------------------------------------------ transactions

    def begin(self) -> None:
        """Use a new AMQP session for the links that follow."""
        self._session = self.engine.begin()

    async def coordinator(self) -> OutgoingLink:
        link = self.session.attach_sender(self._name(), target=Coordinator())
        await self.attached(link)
        return link

    async def declare(self, coordinator: OutgoingLink) -> Any:
        return await self.transfer(coordinator, encode_sections(value=Declare()))

    async def discharge(self, coordinator: OutgoingLink, txn_id: bytes, *, fail: bool = False) -> Any:
        return await self.transfer(coordinator, encode_sections(value=Discharge(txn_id, fail)))


@asynccontextmanager
async def connected(
    context: NamespaceContext,
    *paths: str,
    credentials: PlainCredentials | None = None,
    frame_size: int = 65_536,
    incoming_window: int = 5_000,
) -> AsyncIterator[Client]:
    """A client of a namespace, with tokens for some entities."""
    near, far = wire()
    server = asyncio.get_running_loop().create_task(serve_amqp(far, context, b""), name="server")
    client = Client(near, credentials=credentials, frame_size=frame_size, incoming_window=incoming_window)
    driver = asyncio.get_running_loop().create_task(client.run(), name="client")
    try:
        for path in paths:
            assert await client.put_token(path) == 202
        yield client
        await near.close()
        async with asyncio.timeout(300):
            await server
    finally:
        server.cancel()
        driver.cancel()
        await asyncio.gather(server, driver, return_exceptions=True)


async def received(client: Client, link: IncomingLink, *, within_s: float = 30) -> IncomingDelivery:
    return (await client.event(DeliveryReceived, link, within_s=within_s)).delivery
