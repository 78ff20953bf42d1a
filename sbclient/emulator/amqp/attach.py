"""What serves a link that a client asks for: told by the kind of its terminus and the node that its address names.

    client sends to a coordinator        transactions
    client sends to, receives from $cbs  tokens
    ... from <entity>/$management        requests about the entity
    client sends to an entity            messages are stored
    client receives from an entity       messages are handed out; with a session filter those of one session

Source: the service's documented protocol.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from sbclient.amqp import Coordinator, IncomingLink, Link, OutgoingLink, Source, Target, WireError
from sbclient.amqp.errors import INVALID_FIELD
from sbclient.amqp.performatives import SETTLE_SETTLED
from sbclient.amqp.types import Described
from sbclient.delivery import NEXT_AVAILABLE_SESSION, ServiceBusReceiveMode, SessionChoice
from sbclient.emulator.amqp.address import CBS, MANAGEMENT, Node, node_of
from sbclient.emulator.amqp.cbs import TokenNode
from sbclient.emulator.amqp.coordinator import Coordinator as CoordinatorServer
from sbclient.emulator.amqp.management import ManagementNode
from sbclient.emulator.amqp.peer import OPERATION_TIMEOUT_S, LinkServer, Peer
from sbclient.emulator.amqp.receiver_link import SESSION_FILTER, ClientReceiver
from sbclient.emulator.amqp.request_response import ReplyLink, RequestLink
from sbclient.emulator.amqp.sender_link import ClientSender
from sbclient.errors import MessagingEntityNotFoundError, ServiceBusAuthorizationError

SESSION_WAIT_S: Final = 65.0
"""How long a free session is looked for where the client does not say. Source: the service."""

LONGEST_WAIT_S: Final = 86_400.0

TIMEOUT: Final = "com.microsoft:timeout"
TRANSFER_DESTINATION: Final = "com.microsoft:transfer-destination-address"


def server_of(peer: Peer, link: OutgoingLink | IncomingLink) -> LinkServer:
    """The broker's end of a link, not yet open.

    Raises:
        WireError: the terminus or its address is none.
        MessagingEntityNotFoundError: the management node is of no entity.
        ServiceBusAuthorizationError: no token speaks of the management node.
    """
    attach = link.remote
    assert attach is not None  # it is what was asked for
    if isinstance(link, IncomingLink) and isinstance(attach.target, Coordinator):
        return CoordinatorServer(peer, link)
    terminus = attach.source if isinstance(link, OutgoingLink) else attach.target
    if not isinstance(terminus, Source | Target):
        raise WireError(INVALID_FIELD, "an attach names no source or target that belongs to the broker")
    node = node_of(terminus.address)
    if node.kind == MANAGEMENT:
        _check_management(peer, node)
    if isinstance(link, IncomingLink):
        return _sent_to(peer, link, node)
    return _received_from(peer, link, node, terminus)


def _sent_to(peer: Peer, link: IncomingLink, node: Node) -> LinkServer:
    if node.kind == CBS:
        return RequestLink(peer, link, CBS, TokenNode(peer))
    if node.kind == MANAGEMENT:
        return RequestLink(peer, link, f"{node.path}/{MANAGEMENT}", ManagementNode(peer, node.path))
    destination = _properties(link).get(TRANSFER_DESTINATION)
    return ClientSender(
        peer,
        link,
        node.path,
        timeout_s=_timeout_s(link, OPERATION_TIMEOUT_S),
        destination=None if destination is None else node_of(destination).path,
    )


def _received_from(peer: Peer, link: OutgoingLink, node: Node, terminus: Source | Target) -> LinkServer:
    if node.kind == CBS:
        return ReplyLink(peer, link, CBS)
    if node.kind == MANAGEMENT:
        return ReplyLink(peer, link, f"{node.path}/{MANAGEMENT}")
    is_deleting = link.remote is not None and link.remote.snd_settle_mode == SETTLE_SETTLED
    return ClientReceiver(
        peer,
        link,
        node.path,
        session=_session_of(terminus),
        mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE if is_deleting else ServiceBusReceiveMode.PEEK_LOCK,
        timeout_s=_timeout_s(link, SESSION_WAIT_S),
    )


def _check_management(peer: Peer, node: Node) -> None:
    if not node.path:
        raise MessagingEntityNotFoundError("the namespace has no management node of its own: name an entity's")
    if not peer.rights(f"{node.path}/{MANAGEMENT}"):
        raise ServiceBusAuthorizationError(
            f"no token of this connection speaks of {node.path}: put one before attaching to its management node"
        )
    peer.host.namespace.directory.find(node.path)


def _properties(link: Link) -> Mapping[str, Any]:
    return (link.remote.properties if link.remote is not None else None) or {}


def _timeout_s(link: Link, usual_s: float) -> float:
    """How long the client lets the broker try, as it says when it attaches."""
    timeout_ms = _properties(link).get(TIMEOUT)
    if not isinstance(timeout_ms, int) or isinstance(timeout_ms, bool):
        return usual_s
    return min(max(timeout_ms / 1000, 0.0), LONGEST_WAIT_S)


def _session_of(source: Source | Target) -> SessionChoice:
    """The session that a client wants to receive from: one by name, any that is free, or None for no session.

    Raises:
        WireError: the filter holds something else.
    """
    filters = source.filter if isinstance(source, Source) else None
    if not filters or SESSION_FILTER not in filters:
        return None
    wanted = filters[SESSION_FILTER]
    if isinstance(wanted, Described):
        wanted = wanted.value
    if wanted is None:
        return NEXT_AVAILABLE_SESSION
    if not isinstance(wanted, str):
        raise WireError(INVALID_FIELD, f"the session filter is a {type(wanted).__name__}: give a string, or null")
    return wanted
