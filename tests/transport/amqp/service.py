"""A scripted service on the server's end of the engine, joined to the transport without a socket, in virtual time.

It answers as Service Bus does unless a test switches something off.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from random import Random
from typing import Any
from uuid import UUID

from sbclient import clock
from sbclient.amqp import (
    ACCEPTED,
    AmqpError,
    AttachRequested,
    Connection,
    ConnectionOptions,
    Coordinator,
    CreditGranted,
    Declare,
    Declared,
    DeliveryReceived,
    DispositionReceived,
    DispositionsReceived,
    EncodedMessage,
    IncomingDelivery,
    IncomingLink,
    LinkDetached,
    OutgoingLink,
    Properties,
    Sections,
    TransactionalState,
)
from sbclient.amqp.broker_annotations import BrokerAnnotations, encode_delivery
from sbclient.errors import ServiceBusConnectionError
from sbclient.message import ServiceBusMessage
from sbclient.tasks import Move
from sbclient.transport.amqp.connection import Sink
from sbclient.transport.amqp.credentials import TokenSource, shared_key
from sbclient.transport.amqp.transport import AmqpTransport
from tests.payloads import encode_sections, payload_of

Answer = tuple[int, str | None, Any]
"""Status, condition and body of a reply."""


class ServiceEnd:
    """One connection, as the service sees it; also the transport's stream.

    Attributes:
        attached: addresses of links, in the order of the attaches.
        transfers: deliveries to entities, answered or not.
        dispositions: outcomes that the client stated: first id, last id, state.
        requests: operation, arguments and body of each request.
        grants: credit and drain of each flow of a receiver.
        written: the bytes that the client wrote.
        is_deaf: whether the service has stopped to react.
    """

    def __init__(self, service: Service, sink: Sink) -> None:
        self.service = service
        self.sink = sink
        self.engine = Connection.server(service.options, now=clock.monotonic())
        self.links: dict[str, list[OutgoingLink | IncomingLink]] = {}
        self.attached: list[str] = []
        self.transfers: list[IncomingDelivery] = []
        self.dispositions: list[DispositionReceived] = []
        self.requests: list[tuple[str, Mapping[str, Any], Any]] = []
        self.grants: list[tuple[int, bool]] = []
        self.written = bytearray()
        self.writes = 0
        self.is_deaf = False
        self.is_closed = False
        self._input: list[bytes] = []
        self._txn_count = 0
        self._tags = 0
        self._beat()

    def _beat(self) -> None:
        """Let the engine keep time."""
        if not self.is_deaf:
            self.engine.pass_time(now=clock.monotonic())
            self.flush()
        if not self.is_closed:
            clock.call_later(10.0, self._beat)

    # -- the transport's stream ----------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        if not self.is_closed:
            self.written += data
            self.writes += 1
            self._input.append(data)
            asyncio.get_running_loop().call_soon(self.work)

    def close(self) -> None:
        self.is_closed = True

    abort = close

    def abandon(self, move: Move) -> None:
        self.close()

    # -- the service ---------------------------------------------------------------------------------------------

    def work(self) -> None:
        """Read and answer."""
        if self.is_deaf:
            return
        now = clock.monotonic()
        chunks, self._input = self._input, []
        for chunk in chunks:
            self.engine.receive_bytes(chunk, now=now)
            while (event := self.engine.next_event()) is not None:
                self._on(event)
        self.flush()

    def flush(self) -> None:
        """Send what the engine has written."""
        out = self.engine.bytes_to_send(now=clock.monotonic())
        if out and not self.is_closed:
            self.sink.on_bytes(out)

    def cut(self) -> None:
        """The socket breaks."""
        self.is_deaf = True
        self.sink.on_lost(ConnectionResetError("reset by peer"))

    def link(self, address: str) -> Any:
        """The newest link to an address."""
        return self.links[address][-1]

    def _on(self, event: Any) -> None:
        if isinstance(event, AttachRequested):
            self._attach(event)
        elif isinstance(event, DeliveryReceived):
            self._receive(event.delivery)
        elif isinstance(event, CreditGranted):
            if event.link.owner == "queue":
                self.grants.append((event.credit, event.drain))
                self.serve(event.link, drain=event.drain)
        elif isinstance(event, DispositionReceived):
            self.dispositions.append(event)
            self.service.on_disposition(event)
        elif isinstance(event, DispositionsReceived):
            for each in event.each():
                self._on(each)
        elif isinstance(event, LinkDetached):
            pass

    def _attach(self, event: AttachRequested) -> None:
        link: Any = event.link
        attach = event.attach
        service = self.service
        terminus: Any = attach.source if isinstance(link, OutgoingLink) else attach.target
        address = "coordinator" if isinstance(terminus, Coordinator) else terminus.address
        self.attached.append(address)
        self.links.setdefault(address, []).append(link)
        if address in service.refusals:
            link.refuse(service.refusals[address])
        elif address in service.unanswered:
            return
        elif isinstance(link, IncomingLink):
            is_node = "$" in address
            link.accept(credit=100 if is_node else 0, max_message_size=service.max_message_size)
            if not is_node:
                link.grant(service.credit)
        else:
            link.owner = "replies" if "$" in address else "queue"
            source = attach.source
            assert source is not None
            if source.filter:
                source = source._replace(filter={"com.microsoft:session-filter": service.session})
            link.accept(source=source, properties={"com.microsoft:locked-until-utc": 638_000_000_000_000_000})

    def _receive(self, delivery: IncomingDelivery) -> None:
        target: Any = delivery.link.remote.target
        if isinstance(target, Coordinator):
            self._transact(delivery)
        elif target.address.endswith(("$cbs", "$management")):
            delivery.settle(ACCEPTED)
            self._reply(target.address, Sections(delivery.payload))
        else:
            self.transfers.append(delivery)
            self.service.on_transfer(delivery)

    def _transact(self, delivery: IncomingDelivery) -> None:
        asked = Sections(delivery.payload).composite()
        self.service.controls.append(asked)
        if not self.service.answers_control:
            return
        if isinstance(asked, Declare):
            self._txn_count += 1
            delivery.settle(Declared(self._txn_count.to_bytes(4, "big")))
        else:
            delivery.settle(self.service.discharge_outcome)

    def _reply(self, address: str, request: Sections) -> None:
        arguments = request.application_properties
        operation = arguments["operation"]
        body = request.value()
        self.requests.append((operation, arguments, body))
        answer = self.service.answer_of(operation, body)
        if answer is None:
            return
        status, condition, value = answer
        names = ("status-code", "error-condition") if address == "$cbs" else ("statusCode", "errorCondition")
        properties: dict[str, Any] = {names[0]: status}
        if condition is not None:
            properties[names[1]] = condition
        payload = encode_sections(
            properties=Properties(correlation_id=request.properties.message_id),
            application_properties=properties,
            value=value,
        )
        replies = [link for link in self.links[address] if isinstance(link, OutgoingLink)]
        replies[-1].send(payload, tag=b"r", settled=True, needs_credit=False)

    def serve(self, link: OutgoingLink, *, drain: bool = False) -> None:
        """Send what is stored for the credit of a link."""
        stored = self.service.stored
        while stored and link.credit > 0:
            message = stored.pop(0)
            self.send(link, message)
        if drain and self.service.answers_drain:
            link.drained()

    def send(
        self, link: OutgoingLink, message: ServiceBusMessage | EncodedMessage, *, needs_credit: bool = True
    ) -> None:
        """Deliver one message."""
        self._tags += 1
        token = UUID(int=self._tags)
        is_deleting = link.remote is not None and link.remote.snd_settle_mode == 1
        now_ms = int(clock.now() * 1000)
        annotations = BrokerAnnotations(
            self._tags,
            now_ms,
            locked_until_ms=None if is_deleting else now_ms + int(self.service.lock_s * 1000),
            lock_token=None if is_deleting else token,
        )
        payload = encode_delivery(Sections(payload_of(message)), annotations)
        link.send(payload, tag=token.bytes_le, settled=is_deleting, needs_credit=needs_credit)


class Service:
    """The service: makes a `ServiceEnd` for each connection.

    Attributes:
        ends: the connections, oldest first.
        stored: messages that receivers get.
        session: the session that is given out.
        credit: granted to senders.
        refusals: errors for attaches, by address.
        unanswered: addresses whose attach gets no answer.
        connect_error: raised instead of connecting.
        replies: answers to requests by operation; None for no answer.
        asked: all requests on all connections.
    """

    def __init__(self) -> None:
        self.ends: list[ServiceEnd] = []
        self.stored: list[ServiceBusMessage | EncodedMessage] = []
        self.options = ConnectionOptions(container_id="service", max_message_size=2**27)
        self.max_message_size = 2**20
        self.session = "s1"
        self.lock_s = 60.0
        self.credit = 100
        self.refusals: dict[str, AmqpError] = {}
        self.unanswered: set[str] = set()
        self.connect_error: Exception | None = None
        self.replies: dict[str, Callable[[Any], Answer | None]] = {"put-token": lambda body: (202, None, None)}
        self.controls: list[Any] = []
        self.answers_control = True
        self.discharge_outcome: Any = ACCEPTED
        self.answers_drain = True
        self.on_transfer: Callable[[IncomingDelivery], None] = accept
        self.on_disposition: Callable[[DispositionReceived], None] = confirm

    @property
    def end(self) -> ServiceEnd:
        """The newest connection."""
        return self.ends[-1]

    @property
    def asked(self) -> list[str]:
        """The operations of all requests."""
        return [operation for end in self.ends for operation, _, _ in end.requests]

    def answer_of(self, operation: str, body: Any) -> Answer | None:
        reply = self.replies.get(operation)
        return (501, "amqp:not-implemented", None) if reply is None else reply(body)

    async def connect(self, sink: Sink) -> ServiceEnd:
        if self.connect_error is not None:
            raise self.connect_error
        end = ServiceEnd(self, sink)
        self.ends.append(end)
        return end

    def transport(self, source: TokenSource | None = None, **options: Any) -> AmqpTransport:
        """A transport to this service."""

        def no_management() -> Any:
            raise AssertionError("entities are not managed here")

        return AmqpTransport(
            "contoso",
            "contoso",
            self.connect,
            source or shared_key("key", "c2VjcmV0"),
            random=Random(1),
            management=no_management,
            **options,
        )


def accept(delivery: IncomingDelivery) -> None:
    """Store a transfer."""
    state = delivery.state
    delivery.settle(TransactionalState(state.txn_id, ACCEPTED) if isinstance(state, TransactionalState) else ACCEPTED)


def hold(delivery: IncomingDelivery) -> None:
    """Answer nothing."""


def confirm(event: DispositionReceived) -> None:
    """Confirm a settlement with the same outcome."""
    if not event.settled:
        outcome: Any = event.state
        event.delivery.settle(outcome._replace(error=None) if hasattr(outcome, "error") else outcome)


def refused(reason: str) -> ServiceBusConnectionError:
    """The error of a socket that cannot be connected."""
    error = ServiceBusConnectionError(f"contoso:5671 cannot be reached: {reason}")
    error.is_in_doubt = False
    return error
