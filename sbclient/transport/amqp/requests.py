"""Requests to one node, `$cbs` or `<entity>/$management`, over a pair of links.

Laws:
1. Requests are pipelined; the correlation id of a reply says which request it answers.
2. A request that left and was not answered is in doubt, unless it only reads.
3. Both links share one AMQP session, and end together.

Source: Service Bus request-response operations, documented.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NamedTuple
from uuid import UUID

from sbclient import clock
from sbclient.amqp import (
    ACCEPTED,
    Accepted,
    AmqpError,
    IncomingDelivery,
    IncomingLink,
    Properties,
    Sections,
    Source,
    Target,
    TransactionalState,
    WireError,
    encode_value_message,
    servicebus,
)
from sbclient.amqp.performatives import SETTLE_UNSETTLED
from sbclient.amqp.states import DeliveryState
from sbclient.amqp.types import Array, UInt
from sbclient.errors import ServiceBusCommunicationError, ServiceBusError, without_doubt
from sbclient.rules.conditions import error_of
from sbclient.tasks import Deadlines, OwnedTasks
from sbclient.transport.amqp.connection import AmqpConnection
from sbclient.transport.amqp.links import LinkEnd, inner_outcome
from sbclient.transport.amqp.transfers import OutgoingEnd, Transfer, Transfers
from sbclient.transport.amqp.waiter import own_error

REPLY_CREDIT: Final = 1_000
MAX_REPLY_BYTES: Final = 2**27
_ANSWER_MARGIN_S: Final = 0.5
"""The service is given a little less time than the caller, so that its own answer comes first."""


class Reply(NamedTuple):
    """The answer to a request.

    Attributes:
        status: the status code.
        body: the value of the body, None if there is none.
    """

    status: int
    body: Any

    def __repr__(self) -> str:
        """Without the body, which may hold messages."""
        return f"Reply(status={self.status})"


class _Request(Transfer):
    """A request; the reply finishes its future."""

    __slots__ = ("message_id",)

    def __init__(self, message_id: str, payload: bytes, **options: Any) -> None:
        super().__init__(payload, **options)
        self.message_id = message_id

    def answer(self, state: DeliveryState | None) -> None:
        """Handle the outcome of the request. One that is not accepted is final: an accepted request has a reply."""
        outcome = inner_outcome(state)
        if outcome is not None and not isinstance(outcome, Accepted):
            super().answer(state)


class Requests:
    """A node's requests, over all pairs of links that are attached one after another.

    Args:
        connect: returns an open connection, with a token for the node.
        address: of the node.
        tasks: owns the attaching.
        deadlines: expires requests.
        on_unused: called when a request has ended and there is neither another one nor a link.
    """

    def __init__(
        self,
        connect: Callable[[], Awaitable[AmqpConnection]],
        address: str,
        *,
        tasks: OwnedTasks,
        deadlines: Deadlines,
        on_unused: Callable[[], object] = lambda: None,
    ) -> None:
        self.address = address
        self._on_unused = on_unused
        self._connect = connect
        self._waiting: dict[str, _Request] = {}
        self._count = 0
        self._transfers = Transfers(self._attach, repr(address), tasks=tasks, deadlines=deadlines)

    async def ask(
        self,
        operation: str,
        body: Any = None,
        *,
        doing: str,
        timeout_s: float,
        arguments: Mapping[str, Any] | None = None,
        link_name: str | None = None,
        state: TransactionalState | None = None,
        wire: AmqpConnection | None = None,
        is_reading: bool = False,
    ) -> Reply:
        """Ask the node.

        Args:
            operation: the full name.
            body: the value of the request's body.
            doing: the operation and its object, for errors.
            timeout_s: seconds for the whole call.
            arguments: further application properties.
            link_name: the link that the request is about.
            state: the transaction of the request.
            wire: the only connection that may carry it.
            is_reading: whether nothing is changed, so that no doubt arises.

        Raises:
            ServiceBusError: the node refused, or did not answer.
        """
        self._count += 1
        message_id = f"{self._count}"
        properties: dict[str, Any] = {servicebus.OPERATION: operation, **(arguments or {})}
        if operation.startswith(servicebus.PREFIX):
            server_ms = max(1, int((timeout_s - min(_ANSWER_MARGIN_S, timeout_s / 10)) * 1000))
            properties[servicebus.SERVER_TIMEOUT] = UInt(min(server_ms, 2**32 - 1))
        if link_name is not None:
            properties[servicebus.ASSOCIATED_LINK] = link_name
        payload = encode_value_message(
            body,
            properties=Properties(message_id=message_id, reply_to=self.address),
            application_properties=properties,
        )
        began_at = clock.monotonic()
        request = _Request(message_id, payload, deadline=began_at + timeout_s, doing=doing, state=state, wire=wire)
        self._waiting[message_id] = request
        try:
            answer: Sections = await self._transfers.send(request)
            return _read(answer, doing)
        except ServiceBusError as error:
            if is_reading:
                without_doubt(error)
            raise
        finally:
            del self._waiting[message_id]
            if not self._waiting and not self.is_attached:
                self._on_unused()

    @property
    def is_attached(self) -> bool:
        """Whether the links are attached."""
        return self._transfers.end is not None

    def close(self, error: ServiceBusError) -> None:
        """Detach both links; requests that wait fail with `error`."""
        self._transfers.close(error)

    async def _attach(self) -> OutgoingEnd:
        connection = await self._connect()
        doing = f"attach to {self.address!r}"
        session = connection.begin()
        requests = _RequestEnd(connection, doing, self._transfers, self._waiting)
        replies = _ReplyEnd(connection, doing, requests, self._waiting)
        name = connection.new_link_name()
        try:
            replies.start(
                session.attach_receiver(
                    f"{name}:replies",
                    source=Source(address=self.address),
                    target=Target(address=self.address),
                    max_message_size=MAX_REPLY_BYTES,
                )
            )
            requests.start(
                session.attach_sender(
                    f"{name}:requests",
                    source=Source(address=self.address),
                    target=Target(address=self.address),
                    snd_settle_mode=SETTLE_UNSETTLED,
                )
            )
            await replies.attached()
            replies.link.keep_credit(REPLY_CREDIT)
            connection.flush()
            await requests.attached()
        except BaseException:
            requests.release()
            raise
        return requests


class _RequestEnd(OutgoingEnd):
    """The link of the requests; its end is the end of the pair."""

    def __init__(self, wire: AmqpConnection, doing: str, transfers: Transfers, waiting: Mapping[str, _Request]) -> None:
        super().__init__(wire, doing, transfers)
        self._waiting = waiting
        self._is_reported = False

    def on_detached(self, error: AmqpError | None) -> None:
        if self._is_reported:
            return
        self._is_reported = True
        cause = self.error_of_end(error)
        for request in self._waiting.values():
            if request.has_left:  # also those whose transfer is accepted: the reply will not come
                request.fail(own_error(cause, is_in_doubt=True))
        super().on_detached(error)


class _ReplyEnd(LinkEnd[IncomingLink]):
    """The link of the replies."""

    def __init__(
        self, wire: AmqpConnection, doing: str, requests: _RequestEnd, waiting: Mapping[str, _Request]
    ) -> None:
        super().__init__(wire, doing)
        self._requests = requests
        self._waiting = waiting

    def on_delivery(self, delivery: IncomingDelivery) -> None:
        delivery.settle(ACCEPTED)
        try:
            reply = Sections(delivery.payload)
            correlation_id = reply.properties.correlation_id
        except WireError:
            return  # a reply to nothing; the request that it was for ends by its deadline
        key = str(correlation_id) if isinstance(correlation_id, str | int | UUID) else ""
        request = self._waiting.get(key)
        if request is not None:
            request.finish(reply)

    def on_detached(self, error: AmqpError | None) -> None:
        super().on_detached(error)
        if hasattr(self._requests, "link"):
            self._requests.on_detached(error)


def items_of(body: Any, name: str) -> list[Any]:
    """The items of a list or array in the body of a reply; none if it is something else."""
    value = body.get(name) if isinstance(body, dict) else None
    items = value.items if isinstance(value, Array) else value
    return list(items) if isinstance(items, list | tuple) else []


def _read(reply: Sections, doing: str) -> Reply:
    """The reply, if it is a success.

    Raises:
        ServiceBusError: it is none, or cannot be read.
    """
    try:
        properties = reply.application_properties
        status = properties.get(servicebus.STATUS_CODE, properties.get(servicebus.CBS_STATUS_CODE))
        description = properties.get(servicebus.STATUS_DESCRIPTION, properties.get(servicebus.CBS_STATUS_DESCRIPTION))
        condition = properties.get(servicebus.ERROR_CONDITION, properties.get(servicebus.CBS_ERROR_CONDITION))
        body = reply.value()
    except WireError as error:
        raise ServiceBusCommunicationError(f"{doing}: the reply cannot be read: {error}") from error
    if not isinstance(status, int):
        raise ServiceBusCommunicationError(f"{doing}: the reply has no status code")
    if 200 <= status < 300 and not condition:
        return Reply(int(status), body)
    text = description if isinstance(description, str) else None
    raise error_of(doing, str(condition) if condition else None, text, int(status))
