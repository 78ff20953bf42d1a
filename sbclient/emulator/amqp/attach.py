"""Choose the handler of a link that a client attaches, by the kind of its terminus and by its address.

    client sends to a coordinator                        CoordinatorLink
    client sends to $cbs or <entity>/$management         RequestLink
    client receives from $cbs or <entity>/$management    ReplyLink
    client sends to an entity                            SenderLink
    client receives from an entity                       ReceiverLink; with a session filter, of one session
    client of JMS on a Premium namespace                 those of `jms`

Source: the documented protocol of the service.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from sbclient.amqp import Coordinator, IncomingLink, Link, OutgoingLink, Source, Target, WireError, servicebus
from sbclient.amqp.errors import INVALID_FIELD, NOT_ALLOWED
from sbclient.amqp.performatives import SETTLE_SETTLED
from sbclient.amqp.servicebus import CBS, MANAGEMENT
from sbclient.amqp.types import Described
from sbclient.broker.directory import path_of
from sbclient.delivery import NEXT_AVAILABLE_SESSION, ServiceBusReceiveMode, SessionChoice
from sbclient.emulator.amqp import jms
from sbclient.emulator.amqp.address import Node, entity_path_of, node_of
from sbclient.emulator.amqp.cbs import TokenNode
from sbclient.emulator.amqp.coordinator import CoordinatorLink
from sbclient.emulator.amqp.management import ManagementNode
from sbclient.emulator.amqp.peer import OPERATION_TIMEOUT_S, LinkHandler, Peer
from sbclient.emulator.amqp.receiver_link import ReceiverLink
from sbclient.emulator.amqp.request_response import ReplyLink, RequestLink, check_management
from sbclient.emulator.amqp.sender_link import SenderLink
from sbclient.entities import EntityAddress, EntityKind, kind_of
from sbclient.errors import MessagingEntityNotFoundError
from sbclient.rules.entity_path import canonical, split_sub_queue

SESSION_WAIT_S: Final = 65.0
"""The wait for an available session if the client names none. Source: the service."""

LONGEST_WAIT_S: Final = 86_400.0

_ENTITY_TYPES: Final = {EntityKind.QUEUE: 0, EntityKind.TOPIC: 1, EntityKind.SUBSCRIPTION: 2}
"""The kinds of entities as clients number them."""


def handler_of(peer: Peer, link: OutgoingLink | IncomingLink) -> LinkHandler:
    """The handler of a link, not yet open.

    Raises:
        WireError: the terminus or its address is not valid.
        MessagingEntityNotFoundError: the entity of the management node does not exist.
        ServiceBusAuthorizationError: no token covers the management node.
    """
    attach = link.remote
    assert attach is not None  # the engine reports a link after its attach
    if isinstance(link, IncomingLink) and isinstance(attach.target, Coordinator):
        return CoordinatorLink(peer, link)
    terminus = attach.source if isinstance(link, OutgoingLink) else attach.target
    if peer.is_premium:
        if isinstance(link, IncomingLink) and isinstance(terminus, Target) and terminus.dynamic:
            return jms.temporary(peer, link)
        if isinstance(link, OutgoingLink) and terminus is None:
            return jms.UnsubscribeLink(peer, link)
    if not isinstance(terminus, Source | Target):
        raise WireError(INVALID_FIELD, "the attach has no source or target of the broker")
    node = node_of(terminus.address)
    if node.kind == MANAGEMENT:
        if not node.path:
            raise MessagingEntityNotFoundError("the namespace has no management node: use that of an entity")
        check_management(peer, node.path)
        peer.host.namespace.directory.find(node.path)
    _check_kind(peer, link, node)
    if isinstance(link, IncomingLink):
        return _sent_to(peer, link, node)
    return _received_from(peer, link, node, terminus)


def _sent_to(peer: Peer, link: IncomingLink, node: Node) -> LinkHandler:
    if node.kind == CBS:
        _check_first(peer, RequestLink)
        return RequestLink(peer, link, CBS, TokenNode(peer).on_request)
    if node.kind == MANAGEMENT:
        return RequestLink(
            peer, link, f"{node.path}/{MANAGEMENT}", ManagementNode(peer, node.path).on_request, node.path
        )
    destination = _properties(link).get(servicebus.LINK_TRANSFER_DESTINATION)
    sender = SenderLink(
        peer,
        link,
        node.path,
        timeout_s=_timeout_s(link, OPERATION_TIMEOUT_S),
        destination=None if destination is None else node_of(destination).path,
    )
    if peer.is_premium:
        sender.changed = jms.delayed
    return sender


def _received_from(peer: Peer, link: OutgoingLink, node: Node, terminus: Source | Target) -> LinkHandler:
    if node.kind == CBS:
        if entity_path_of(terminus.address).casefold() == CBS:
            _check_first(peer, ReplyLink)
        return ReplyLink(peer, link, CBS)
    if node.kind == MANAGEMENT:
        return ReplyLink(peer, link, f"{node.path}/{MANAGEMENT}", node.path)
    path, session = node.path, _session_of(terminus)
    is_deleting = link.remote is not None and link.remote.snd_settle_mode == SETTLE_SETTLED
    mode = ServiceBusReceiveMode.RECEIVE_AND_DELETE if is_deleting else ServiceBusReceiveMode.PEEK_LOCK
    if peer.is_premium and session is None and isinstance(terminus, Source):
        return jms.receiver(peer, link, terminus, path, mode)
    if isinstance(terminus, Source) and terminus.durable == jms.UNSETTLED_STATE:
        path = _durable_subscription(peer, link, path)
    timeout_s = _timeout_s(link, SESSION_WAIT_S)
    return ReceiverLink(peer, link, path, session=session, mode=mode, timeout_s=timeout_s)


def _durable_subscription(peer: Peer, link: Link, path: str) -> str:
    """The subscription that a durable subscriber of JMS names by its link, if the path is that of a topic."""
    entity = peer.host.namespace.directory.get(path)
    if entity is None or kind_of(entity.description) is not EntityKind.TOPIC:
        return path
    return path_of(EntityAddress(EntityKind.SUBSCRIPTION, (path, link.name)))


def _check_kind(peer: Peer, link: Link, node: Node) -> None:
    """Check that an entity is of the kind that the client expects.

    Raises:
        WireError: it is of another kind.
    """
    expected = _properties(link).get(servicebus.LINK_ENTITY_TYPE)
    entity = peer.host.namespace.directory.get(split_sub_queue(node.path)[0])
    if entity is None or not isinstance(expected, int):
        return
    kind = kind_of(entity.description)
    if expected in _ENTITY_TYPES.values() and expected != _ENTITY_TYPES[kind]:
        raise WireError(NOT_ALLOWED, f"{node.path} is a {kind}, and not of the entity type {expected} of the link")


def _check_first(peer: Peer, kind: type[RequestLink | ReplyLink]) -> None:
    """Check that a connection has no other link with `$cbs` in that direction.

    Clients whose replies come from `$cbs/<id>` have as many pairs as they like. Source: the service, live tests of
    azservicebus for Go, and the original client.

    Raises:
        WireError: it has one.
    """
    links = [handler for handler in peer.handlers.values() if isinstance(handler, RequestLink | ReplyLink)]
    has_ids = any(
        isinstance(handler, ReplyLink) and handler.address == CBS != canonical(handler.source) for handler in links
    )
    if not has_ids and any(isinstance(handler, kind) and handler.address == CBS for handler in links):
        container = peer.engine.options.container_id
        raise WireError(NOT_ALLOWED, f"A link to connection '{container}' {CBS} node has already been opened.")


def _properties(link: Link) -> Mapping[str, Any]:
    return (link.remote.properties if link.remote is not None else None) or {}


def _timeout_s(link: Link, default_s: float) -> float:
    """The timeout in the properties of an attach."""
    timeout_ms = _properties(link).get(servicebus.LINK_TIMEOUT)
    if not isinstance(timeout_ms, int) or isinstance(timeout_ms, bool):
        return default_s
    return min(max(timeout_ms / 1000, 0.0), LONGEST_WAIT_S)


def _session_of(source: Source | Target) -> SessionChoice:
    """The session to receive from: a session id, the next available one, or None for no session.

    Raises:
        WireError: the filter has another value.
    """
    filters = source.filter if isinstance(source, Source) else None
    if not filters or servicebus.SESSION_FILTER not in filters:
        return None
    wanted = filters[servicebus.SESSION_FILTER]
    if isinstance(wanted, Described):
        wanted = wanted.value
    if wanted is None:
        return NEXT_AVAILABLE_SESSION
    if not isinstance(wanted, str):
        raise WireError(INVALID_FIELD, f"the session filter is a {type(wanted).__name__}: give a string, or null")
    return wanted
