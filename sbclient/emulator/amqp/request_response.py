"""Requests and their replies: a pair of links with one node, as `$cbs` and every `$management` use it.

Laws:

1. Every request is answered, on the link that it names or else on the newest one that receives from the same node.
2. Replies are settled when they are sent, and need no credit: the SDK settles none and never renews its credit.
3. The reply's correlation id is the request's message id, of the same type.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple, Protocol

from sbclient.amqp import (
    ACCEPTED,
    DispositionReceived,
    EncodeError,
    IncomingDelivery,
    IncomingLink,
    OutgoingLink,
    Properties,
    Rejected,
    Sections,
    TransactionalState,
    WireError,
    encode_sections,
)
from sbclient.amqp.types import Int
from sbclient.emulator.amqp.conditions import amqp_error_of
from sbclient.emulator.amqp.peer import Peer
from sbclient.rules.entity_path import canonical

CREDIT: Final = 1_000


class Request(NamedTuple):
    """One request.

    Attributes:
        properties: its message id and where it wants the reply.
        arguments: its application properties, by name.
        body: of type VALUE, None if it has none.
        transaction_id: of the transaction it belongs to.
    """

    properties: Properties
    arguments: Mapping[str, Any]
    body: Any
    transaction_id: bytes | None

    def __repr__(self) -> str:
        """Without the body, which may be a token or hold messages."""
        return f"Request({self.operation!r}, {self.properties!r})"

    @property
    def operation(self) -> str:
        """What is asked for, empty if that is not said."""
        operation = self.arguments.get("operation")
        return operation if isinstance(operation, str) else ""

    @property
    def link_name(self) -> str | None:
        """The link that the client works with, if it says so."""
        name = self.arguments.get("associated-link-name")
        return name if isinstance(name, str) else None


class Node(Protocol):
    """What answers the requests of one pair of links."""

    def on_request(self, request: Request, replies: Replies) -> None:
        """Answer, now or later, by `Replies.send`."""

    def on_tokens_changed(self) -> None:
        """A token has ended."""


def request_in(delivery: IncomingDelivery) -> Request:
    """The request that a transfer brings.

    Raises:
        WireError: the bytes are no message.
    """
    sections, state = Sections(delivery.payload), delivery.state
    return Request(
        sections.properties,
        sections.application_properties,
        sections.value(),
        state.txn_id if isinstance(state, TransactionalState) else None,
    )


class RequestLink:
    """The broker's end of a link that brings requests.

    Args:
        peer: the connection.
        link: as it was asked for.
        address: of the node, which the replies' link has as well.
        node: answers.
    """

    entity_path = None

    def __init__(self, peer: Peer, link: IncomingLink, address: str, node: Node) -> None:
        self._peer = peer
        self._link = link
        self._node = node
        self._replies = Replies(peer, address)

    def open(self) -> None:
        """Let the link stand."""
        self._link.accept(credit=CREDIT)

    def on_delivery(self, delivery: IncomingDelivery) -> None:
        """Take a request, or refuse what is none."""
        try:
            request = request_in(delivery)
        except WireError as error:
            delivery.settle(Rejected(error.error))
            return
        delivery.settle(ACCEPTED)
        self._peer.turn.end()  # one request may ask for a thousand messages
        self._node.on_request(request, self._replies)

    def on_credit(self, *, drain: bool) -> None:
        """Does not happen here."""

    def on_disposition(self, event: DispositionReceived) -> None:
        """Does not matter here."""

    def on_tokens_changed(self) -> None:
        """The node sees whether it may go on."""
        self._node.on_tokens_changed()

    def on_over(self) -> None:
        """Nothing is held here."""


class ReplyLink:
    """The broker's end of a link on which replies go out.

    Args:
        peer: the connection.
        link: as it was asked for.
        address: of the node.
    """

    entity_path = None

    def __init__(self, peer: Peer, link: OutgoingLink, address: str) -> None:
        self.link = link
        self.key = canonical(address)
        target = link.remote.target if link.remote is not None else None
        self.client_address = getattr(target, "address", None)
        self._peer = peer

    def open(self) -> None:
        """Let the link stand."""
        self.link.accept()

    def on_delivery(self, delivery: IncomingDelivery) -> None:
        """Does not happen here."""

    def on_credit(self, *, drain: bool) -> None:
        """Replies need no credit; a drain finds nothing to send."""
        if drain:
            self.link.drained()

    def on_disposition(self, event: DispositionReceived) -> None:
        """Does not happen: replies are settled when they are sent."""

    def on_tokens_changed(self) -> None:
        """The link of the requests decides."""

    def on_over(self) -> None:
        """Nothing is held here."""


class Replies:
    """Where the replies of one node go."""

    def __init__(self, peer: Peer, address: str) -> None:
        self._peer = peer
        self._key = canonical(address)
        self._count = 0

    def send(self, request: Request, arguments: Mapping[str, Any], body: Any = None) -> None:
        """Answer a request; without a link to answer on the reply is dropped, as there is nobody to hear it.

        Args:
            arguments: the reply's application properties; whole numbers are sent as int.
            body: of type VALUE.
        """
        reply_to = request.properties.reply_to
        links = [
            server
            for server in self._peer.servers.values()
            if isinstance(server, ReplyLink) and server.key == self._key and not server.link.is_over
        ]
        named = [server for server in links if reply_to is not None and server.client_address == reply_to]
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
        return encode_sections(properties=properties, application_properties=typed, value=body)
    except EncodeError as error:
        told = amqp_error_of(error)
        return encode_sections(
            properties=properties,
            application_properties={"statusCode": Int(500), "errorCondition": told.condition},
            value=None,
        )
