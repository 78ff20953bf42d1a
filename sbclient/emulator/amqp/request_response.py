"""Requests and replies over a pair of links with one node: `$cbs`, or the `$management` of an entity.

Laws:

1. Every request is answered, on the link whose source or target it names, or else on the newest one that receives from
   the same node.
2. Replies are sent settled and need no credit, because the SDK settles none and never renews its credit.
3. The correlation id of a reply is the message id of the request, of the same type.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple, TypeAlias
from uuid import UUID

from sbclient.amqp import (
    ACCEPTED,
    EncodeError,
    IncomingDelivery,
    IncomingLink,
    OutgoingLink,
    Properties,
    Rejected,
    Sections,
    TransactionalState,
    WireError,
    encode_value_message,
    servicebus,
)
from sbclient.amqp.servicebus import MANAGEMENT
from sbclient.amqp.types import Int, Symbol, Timestamp
from sbclient.emulator.amqp.conditions import ArgumentError, amqp_error_of
from sbclient.emulator.amqp.peer import LinkHandler, Peer
from sbclient.errors import ServiceBusAuthorizationError
from sbclient.rules.entity_path import canonical

CREDIT: Final = 1_000
CBS_CREDIT: Final = 100
"""Source: traces of the service, azure-sdk-for-python 36677."""


class Request(NamedTuple):
    """One request.

    Attributes:
        properties: with the message id and the address for the reply.
        arguments: the application properties, by name.
        body: of type VALUE; None if there is none.
        transaction_id: of the transaction that the request belongs to.
    """

    properties: Properties
    arguments: Mapping[str, Any]
    body: Any
    transaction_id: bytes | None

    def __repr__(self) -> str:
        """Without the body, which may be a token or contain messages."""
        return f"Request({self.operation!r}, {self.properties!r})"

    @property
    def operation(self) -> str:
        """The name of the operation; empty if the request has none."""
        operation = self.arguments.get(servicebus.OPERATION)
        return operation if isinstance(operation, str) else ""

    @property
    def link_name(self) -> str | None:
        """The link that the request is about, if it names one."""
        name = self.arguments.get(servicebus.ASSOCIATED_LINK)
        return name if isinstance(name, str) else None


OnRequest: TypeAlias = Callable[[Request, "Replies"], None]


def check_management(peer: Peer, path: str) -> None:
    """Check that a token covers the management node of an entity.

    Raises:
        ServiceBusAuthorizationError: no token does.
    """
    if not peer.rights(f"{path}/{MANAGEMENT}"):
        raise ServiceBusAuthorizationError(
            f"no token of this connection covers {path}: put one before attaching to its management node"
        )


def request_in(delivery: IncomingDelivery) -> Request:
    """The request in a transfer.

    Raises:
        WireError: the bytes are not a message.
    """
    sections, state = Sections(delivery.payload), delivery.state
    return Request(
        sections.properties,
        sections.application_properties,
        sections.value(),
        state.txn_id if isinstance(state, TransactionalState) else None,
    )


class RequestLink(LinkHandler):
    """The broker's end of a link on which requests arrive.

    Args:
        peer: the connection.
        link: as requested.
        address: of the node; the link for the replies has the same.
        on_request: answers a request, now or later, by `Replies.send`.
        managed: the entity of a management node; None for `$cbs`.
    """

    def __init__(
        self, peer: Peer, link: IncomingLink, address: str, on_request: OnRequest, managed: str | None = None
    ) -> None:
        self._peer = peer
        self.address = address
        self._managed = managed
        self._link = link
        self._on_request = on_request
        self._replies = Replies(peer, address)

    def open(self) -> None:
        """Accept the link."""
        self._link.accept(credit=CBS_CREDIT if self._managed is None else CREDIT)

    def check_rights(self) -> None:
        """A management node needs a token that covers it."""
        if self._managed is not None:
            check_management(self._peer, self._managed)

    def on_delivery(self, delivery: IncomingDelivery) -> None:
        """Answer a request, or reject a message that is none."""
        try:
            request = request_in(delivery)
        except WireError as error:
            delivery.settle(Rejected(error.error))
            return
        delivery.settle(ACCEPTED)
        self._peer.time_slice.end()  # one request may ask for a thousand messages
        self._on_request(request, self._replies)


class ReplyLink(LinkHandler):
    """The broker's end of a link on which replies go out.

    Args:
        peer: the connection.
        link: as requested.
        address: of the node.
        managed: the entity of a management node; None for `$cbs`.
    """

    def __init__(self, peer: Peer, link: OutgoingLink, address: str, managed: str | None = None) -> None:
        self._managed = managed
        self.address = address
        self.link = link
        self.key = canonical(address)
        remote = link.remote
        assert remote is not None
        assert remote.source is not None  # its address has chosen the node
        self.source = str(remote.source.address)
        self.client_address = getattr(remote.target, "address", None)
        self._peer = peer

    def open(self) -> None:
        """Accept the link."""
        self.link.accept()

    def check_rights(self) -> None:
        """A management node needs a token that covers it."""
        if self._managed is not None:
            check_management(self._peer, self._managed)

    def on_credit(self, *, drain: bool) -> None:
        """Replies need no credit, so that a drain has nothing to send."""
        if drain:
            self.link.drained()


class Replies:
    """Sends the replies of one node."""

    def __init__(self, peer: Peer, address: str) -> None:
        self._peer = peer
        self._key = canonical(address)
        self._count = 0

    def send(self, request: Request, arguments: Mapping[str, Any], body: Any = None) -> None:
        """Answer a request. The reply is dropped if there is no link for it.

        Args:
            arguments: the application properties of the reply; whole numbers are sent as int.
            body: of type VALUE.
        """
        reply_to = request.properties.reply_to
        links = [
            handler
            for handler in self._peer.handlers.values()
            if isinstance(handler, ReplyLink) and handler.key == self._key and not handler.link.is_over
        ]
        named = [handler for handler in links if reply_to in (handler.client_address, handler.source)]
        named = [] if reply_to is None else named
        chosen = (named or links)[-1:]
        if chosen:
            self._count += 1
            payload = _reply(request, arguments, body)
            tag = self._count.to_bytes(8, "big")
            chosen[0].link.send(payload, tag=tag, settled=True, needs_credit=False)
            self._peer.flush()


def _reply(request: Request, arguments: Mapping[str, Any], body: Any) -> bytes:
    typed = {name: Int(value) if type(value) is int else value for name, value in arguments.items()}
    properties = Properties(correlation_id=request.properties.message_id)
    try:
        return encode_value_message(body, properties=properties, application_properties=typed)
    except EncodeError as error:
        reported = amqp_error_of(error)
        return encode_value_message(
            None,
            properties=properties,
            application_properties={
                servicebus.STATUS_CODE: Int(500),
                servicebus.ERROR_CONDITION: Symbol(reported.condition),
            },
        )


EARLIEST: Final = datetime.min.replace(tzinfo=UTC)
LATEST: Final = datetime.max.replace(tzinfo=UTC)
"""What .NET reads from an earlier or a later timestamp. Source of the second: the Go client."""

_INT64: Final = range(-(2**63), 2**63)


class Arguments:
    """The body of one request.

    Args:
        request: its body is a map; no body counts as an empty one.

    Raises:
        ArgumentError: the body is not a map. Every method raises it for a value that is missing or of another type.
    """

    def __init__(self, request: Request) -> None:
        self._operation = request.operation
        self._body: Mapping[Any, Any] = request.body if request.body is not None else {}
        if not isinstance(self._body, Mapping):
            raise ArgumentError(f"the body of {self._operation} is a {type(self._body).__name__}: give a map")

    def text(self, name: str) -> str:
        """A string."""
        value = self.optional_text(name)
        if value is None:
            raise self._wrong(name, "a string", None)
        return value

    def optional_text(self, name: str) -> str | None:
        """A string; None if it is missing."""
        value = self._body.get(name)
        if value is not None and not isinstance(value, str):
            raise self._wrong(name, "a string", value)
        return value

    def session_id(self) -> str | None:
        """The session id; None if it is missing."""
        return self.optional_text(servicebus.SESSION_ID)

    def number(self, name: str, default: int | None = None) -> int:
        """A whole number of 64 bits."""
        value = self._body.get(name, default)
        if not isinstance(value, int) or isinstance(value, bool) or value not in _INT64:
            raise self._wrong(name, "a whole number", value)
        return int(value)

    def count(self, name: str, default: int | None = None) -> int:
        """A whole number that is not negative."""
        value = self.number(name, default)
        if value < 0:
            raise self._wrong(name, "a number of at least 0", value)
        return value

    def flag(self, name: str) -> bool:
        """A boolean; False if it is missing."""
        value = self._body.get(name)
        if value is not None and not isinstance(value, bool):
            raise self._wrong(name, "a boolean", value)
        return bool(value)

    def numbers(self, name: str) -> list[int]:
        """At least one whole number."""
        return [int(value) for value in self._several(name, int, "whole numbers")]

    def tokens(self, name: str) -> list[UUID]:
        """At least one lock token."""
        return self._several(name, UUID, "uuids")

    def maps(self, name: str) -> list[Mapping[str, Any]]:
        """At least one map."""
        return self._several(name, Mapping, "maps")

    def map(self, name: str) -> Mapping[Any, Any]:
        """A map; empty if it is missing."""
        value = self._body.get(name)
        if value is not None and not isinstance(value, Mapping):
            raise self._wrong(name, "a map", value)
        return value or {}

    def binary(self, name: str) -> bytes | None:
        """Bytes; None if they are missing."""
        value = self._body.get(name)
        if value is not None and not isinstance(value, bytes):
            raise self._wrong(name, "binary or null", value)
        return value

    def timestamp(self, name: str) -> datetime | None:
        """A timestamp; None if it is missing, `EARLIEST` or `LATEST` if it is outside of the years 1 to 9999."""
        value = self._body.get(name)
        if isinstance(value, Timestamp):
            return LATEST if value > 0 else EARLIEST
        if value is None or isinstance(value, datetime):
            return value
        raise self._wrong(name, "a timestamp", value)

    def any(self, name: str) -> Any:
        """A value of any type; None if it is missing."""
        return self._body.get(name)

    def _several(self, name: str, kind: type, what: str) -> list[Any]:
        values = self._body.get(name)
        if not isinstance(values, Sequence) or isinstance(values, str | bytes) or not values:
            raise self._wrong(name, f"an array of {what}, at least one", values)
        for value in values:
            if not isinstance(value, kind) or isinstance(value, bool):
                raise self._wrong(name, f"an array of {what}", value)
        return list(values)

    def _wrong(self, name: str, expected: str, value: Any) -> ArgumentError:
        found = "is missing" if value is None else f"is a {type(value).__name__}"
        return ArgumentError(f"{name} of {self._operation} {found}: give {expected}")
