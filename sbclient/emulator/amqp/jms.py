"""What clients of JMS 2.0 ask of a Premium namespace, beside what other clients do: Qpid JMS and azure-servicebus-jms.

    receives from a topic             a client-scoped subscription that the link makes, `NAME$CLIENT$D`, or `$ND` if it
                                      ends with its last receiver; a subscription with the name of the link is first
    attaches without a source         unsubscribes, when it closes the link
    sends to a dynamic target         a temporary queue or topic, which ends with the link
    receives with the mode `copy`     a browser, which takes no messages
    receives with a selector          only the messages that it matches: a condition in the language of SQL filters,
                                      with the names of JMS for headers; BETWEEN, and headers without a place in a
                                      message of the service, are refused

Source: Jakarta Messaging 3.1, section 3.8; what Qpid JMS sends; the documents of Service Bus about JMS 2.0; the names
of client-scoped subscriptions in the Terraform provider for Azure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, Final

from sbclient.amqp import EncodedMessage, IncomingLink, OutgoingLink, Source, Target, WireError
from sbclient.amqp.errors import INVALID_FIELD, NOT_FOUND
from sbclient.amqp.sections import APPLICATION_PROPERTIES
from sbclient.amqp.types import Described
from sbclient.broker.directory import path_of
from sbclient.broker.entity import PeekCursor
from sbclient.broker.entry import WORK_AT_ONCE, Entry, Selector
from sbclient.broker.faults import Call, Operation
from sbclient.broker.filters import FilterError, compile_filter
from sbclient.broker.rule import system_properties_of
from sbclient.broker.sql.values import Steps
from sbclient.delivery import SenderLimits, ServiceBusReceiveMode
from sbclient.emulator.amqp.delivery import encode_entry
from sbclient.emulator.amqp.peer import OPERATION_TIMEOUT_S, LinkHandler, Peer
from sbclient.emulator.amqp.receiver_link import ReceiverLink
from sbclient.emulator.amqp.sender_link import SenderLink
from sbclient.entities import (
    AccessRights,
    EntityAddress,
    EntityKind,
    QueueProperties,
    SqlRuleFilter,
    TopicProperties,
    kind_of,
)
from sbclient.errors import InvalidOperationError, ServiceBusError
from sbclient.message import ServiceBusMessageState

CAPABILITIES: Final = ("DELAYED_DELIVERY", "SHARED-SUBS")
"""Of a connection, if the client asks for them."""

DELIVERY_TIME: Final = "x-opt-delivery-time"
UNSETTLED_STATE: Final = 2
"""The terminus durability of a durable subscriber."""

COPY: Final = "copy"
BROWSED_AT_ONCE: Final = 100
_SELECTORS: Final = ("jms-selector", "apache.org:selector-filter:string")
_NO_NAME: Final = re.compile(r"[^A-Za-z0-9._:-]")


def selector_in(filters: Mapping[str, Any] | None) -> str | None:
    """The selector among the filters of a source.

    Raises:
        WireError: it is not a string.
    """
    for name in _SELECTORS:
        found = (filters or {}).get(name)
        if found is not None:
            text = found.value if isinstance(found, Described) else found
            if not isinstance(text, str):
                raise WireError(INVALID_FIELD, f"the selector is a {type(text).__name__}: give a string")
            return text
    return None


def delayed(message: EncodedMessage) -> EncodedMessage:
    """Return a message that is scheduled for its delivery time, if it has one."""
    at = message.annotations.get(DELIVERY_TIME) if message.annotations else None
    if isinstance(at, int):
        at = datetime.fromtimestamp(at / 1000, UTC)
    return message.rewritten(scheduled_enqueue_time_utc=at) if isinstance(at, datetime) else message


def temporary(peer: Peer, link: IncomingLink) -> LinkHandler:
    """The handler of a link to a dynamic target."""
    return TemporaryLink(peer, link)


def receiver(peer: Peer, link: OutgoingLink, source: Source, path: str, mode: ServiceBusReceiveMode) -> LinkHandler:
    """The handler of a link that receives from an entity without sessions."""
    entity = peer.host.namespace.directory.get(path)
    selector = selector_in(source.filter)
    if entity is not None and kind_of(entity.description) is EntityKind.TOPIC and "topic" in _kinds(source):
        return SubscriberLink(peer, link, source, entity.path, selector, mode)
    compiled = None if selector is None else _compiled(selector)
    if source.distribution_mode == COPY:  # durable subscribers have it too
        return BrowserLink(peer, link, path, compiled)
    return ReceiverLink(peer, link, path, session=None, mode=mode, timeout_s=OPERATION_TIMEOUT_S, selector=compiled)


def _kinds(terminus: Source | Target) -> str:
    return " ".join(terminus.capabilities or ())


def _compiled(selector: str) -> Selector:
    try:
        return compile_selector(selector)
    except InvalidOperationError as error:
        raise WireError(INVALID_FIELD, str(error)) from error


class SubscriberLink(ReceiverLink):
    """A receiver of a topic. It makes its subscription, and removes one that is not durable after its last receiver.

    Args:
        topic: the path of the topic.
        selector: the condition of a subscription that it makes.
    """

    def __init__(
        self,
        peer: Peer,
        link: OutgoingLink,
        source: Source,
        topic: str,
        selector: str | None,
        mode: ServiceBusReceiveMode,
    ) -> None:
        self._topic = topic
        self._is_durable = source.durable == UNSETTLED_STATE
        self._is_shared = "shared" in (source.capabilities or ())
        self._selector_text = None if selector is None else expression_of(selector)
        name = link.name.partition("|")[0] if self._is_durable or self._is_shared else link.name
        path = path_of(EntityAddress(EntityKind.SUBSCRIPTION, (topic, name)))
        self._name = ""
        if not self._is_durable or peer.host.namespace.directory.get(path) is None:
            is_global = "global" in (source.capabilities or ())
            self._name = client_scoped(peer, name, is_durable=self._is_durable, is_global=is_global)
            path = path_of(EntityAddress(EntityKind.SUBSCRIPTION, (topic, self._name)))
        self._has_joined = False
        super().__init__(peer, link, path, session=None, mode=mode, timeout_s=OPERATION_TIMEOUT_S)

    async def _open(self) -> None:
        try:
            self.check_rights()
            self._join()
        except ServiceBusError as error:
            self._peer.refuse(self._link, error)
        else:
            await super()._open()

    def _join(self) -> None:
        subscribers, path = self._peer.context.subscribers, self._path
        if subscribers[path] and not self._is_shared:
            raise InvalidOperationError(f"{path} has a receiver already and is not shared: close that one first")
        if self._name:

            def subscribe(call: Call) -> None:
                self._peer.host.namespace.management.subscribe(
                    call, self._topic, self._name, is_durable=self._is_durable, selector=self._selector_text
                )

            self._peer.at_once(Operation.MANAGE, subscribe)
        subscribers[path] += 1
        self._has_joined = True

    @property
    def _is_selective(self) -> bool:
        return self._selector_text is not None

    def on_over(self) -> None:
        """Remove the subscription of the last receiver, unless it is durable."""
        super().on_over()
        if not self._has_joined:
            return
        self._has_joined = False
        subscribers = self._peer.context.subscribers
        subscribers[self._path] -= 1
        if not subscribers[self._path]:
            del subscribers[self._path]
            if not self._is_durable:
                _delete(self._peer, EntityAddress(EntityKind.SUBSCRIPTION, (self._topic, self._name)))


def client_scoped(peer: Peer, name: str, *, is_durable: bool, is_global: bool = False) -> str:
    """The name of a subscription of one client, or of all clients."""
    client = "" if is_global or peer.engine.remote is None else peer.engine.remote.container_id
    return f"{_NO_NAME.sub('_', name)}${_NO_NAME.sub('_', client)}${'D' if is_durable else 'ND'}"


class UnsubscribeLink(LinkHandler):
    """A link without a source, by which a client finds a durable subscription, and removes it by closing the link."""

    def __init__(self, peer: Peer, link: OutgoingLink) -> None:
        self._peer = peer
        self._link = link
        self._address: EntityAddress | None = None

    def open(self) -> None:
        """Accept the link if there is such a subscription, and nothing receives from it."""
        peer, link = self._peer, self._link
        base = link.name.partition("|")[0]
        names = {client_scoped(peer, base, is_durable=True, is_global=each).casefold() for each in (False, True)}
        for entity in peer.host.namespace.directory.all():
            if entity.topic is not None and entity.description.name.casefold() in names:
                peer.check_right(entity.path, AccessRights.LISTEN)
                if peer.context.subscribers[entity.path]:
                    raise InvalidOperationError(f"{entity.path} has a receiver: close it first")
                self._address = EntityAddress(EntityKind.SUBSCRIPTION, (entity.topic.path, entity.description.name))
                source = Source(entity.topic.path, UNSETTLED_STATE, "never", capabilities=("topic",))
                link.accept(source=source)
                peer.flush()
                return
        raise WireError(NOT_FOUND, f"there is no durable subscription {base} of this client")

    def on_closed(self) -> None:
        """Remove the subscription."""
        if self._address is not None:
            _delete(self._peer, self._address)


class TemporaryLink(SenderLink):
    """A link that makes a queue or topic, whose name the answer has, and removes it when it ends."""

    def __init__(self, peer: Peer, link: IncomingLink) -> None:
        assert link.remote is not None
        assert isinstance(link.remote.target, Target)
        target = link.remote.target
        path = f"{peer.context.random.getrandbits(128):032x}"
        super().__init__(peer, link, path)
        self.target = target._replace(address=path)
        kind = EntityKind.TOPIC if "topic" in _kinds(target) else EntityKind.QUEUE
        self._address = EntityAddress(kind, (path,))

    def check_rights(self) -> None:
        """Making an entity needs Manage."""
        self._peer.check_right(self._path, AccessRights.MANAGE)

    def _opened(self, call: Call) -> SenderLimits:
        properties = (TopicProperties if self._address.kind is EntityKind.TOPIC else QueueProperties)(self._path)
        self._peer.host.namespace.management.create(call, self._address, properties)
        return super()._opened(call)

    def on_over(self) -> None:
        """Remove the entity."""
        _delete(self._peer, self._address)


class BrowserLink(LinkHandler):
    """A link that shows the messages of an entity, and takes none.

    Args:
        path: of the queue, subscription or sub-queue.
        selector: shows only messages that it matches.
    """

    def __init__(self, peer: Peer, link: OutgoingLink, path: str, selector: Selector | None) -> None:
        self.entity_path = path
        self._peer = peer
        self._link = link
        self._path = path
        self._selector = selector
        self._cursor = PeekCursor()
        self._next = 0
        self._count = 0

    def open(self) -> None:
        """Accept the link, or refuse it with an error."""
        self.check_rights()
        self._peer.host.namespace.directory.find(self._path)
        self._link.accept()

    def check_rights(self) -> None:
        """Browsing needs Listen."""
        self._peer.check_right(self._path, AccessRights.LISTEN)

    def on_credit(self, *, drain: bool) -> None:
        """Show as many messages as there is credit; with `drain`, use up the credit after the last one."""
        self._peer.tasks.start(self._show(drain=drain), name="amqp browse")

    async def _show(self, *, drain: bool) -> None:
        peer, link = self._peer, self._link
        try:
            while not link.is_over and link.credit > 0:
                if self._selector is not None:
                    await peer.host.selector_turn()
                if not self._show_some():
                    break
                await peer.drained()
                await peer.delivery_slot()
        except ServiceBusError as error:
            peer.detach(link, error)
            return
        if drain and not link.is_over:
            link.drained()
        peer.flush()

    def _show_some(self) -> bool:
        """Show the next messages; False if there are none."""
        namespace, count = self._peer.host.namespace, min(self._link.credit, BROWSED_AT_ONCE)
        entries = self._peer.perform_now(
            Operation.PEEK,
            self._path,
            lambda call: namespace.peek(
                call, self._path, self._cursor, max_message_count=count, from_number=self._next
            ),
        ).result()
        left = WORK_AT_ONCE
        for entry in entries:
            if left <= 0:
                break
            self._next = entry.number + 1
            if entry.state is not ServiceBusMessageState.ACTIVE:
                continue
            if self._selector is not None:
                is_match, steps = self._selector.matches(entry)
                left -= steps
                if not is_match:
                    continue
            self._count += 1
            payload = encode_entry(entry, is_peeked=True).payload
            self._link.send(payload, tag=self._count.to_bytes(4, "big"), settled=True, needs_credit=False)
        return bool(entries)


def _delete(peer: Peer, address: EntityAddress) -> None:
    management = peer.host.namespace.management
    if peer.host.namespace.directory.get(path_of(address)) is not None:
        peer.at_once(Operation.MANAGE, lambda call: management.delete(call, address))


_STEPS_OF_A_MESSAGE: Final = 30
_CHARACTERS_IN_A_STEP: Final = 2
_BYTES_IN_A_STEP: Final = 3
"""To evaluate a selector takes time for the message, for the characters of the selector and for the bytes of the
properties, which are decoded, in steps as `Steps` counts them. Measured; they depend on the types of the values."""

_HEADERS: Final = MappingProxyType(
    {
        "JMSMessageID": "sys.MessageId",
        "JMSCorrelationID": "sys.CorrelationId",
        "JMSType": "sys.Label",
        "JMSXGroupID": "sys.SessionId",
    }
)
_TEXT_OR_HEADER: Final = re.compile(r"'(?:[^']|'')*'|\bJMS\w+")


def expression_of(selector: str) -> str:
    """Return a selector as the expression of an SQL filter.

    Raises:
        InvalidOperationError: it names a header that is not supported.
    """

    def replaced(found: re.Match[str]) -> str:
        text = found[0]
        if text.startswith("'"):
            return text
        if text not in _HEADERS:
            raise InvalidOperationError(f"a selector cannot use {text[:50]}: use {', '.join(_HEADERS)}, or properties")
        return _HEADERS[text]

    return _TEXT_OR_HEADER.sub(replaced, selector)


def compile_selector(selector: str) -> Selector:
    """Return which stored messages a selector matches.

    Raises:
        InvalidOperationError: the selector is not valid.
    """
    compiled = compile_filter(SqlRuleFilter(expression_of(selector)))
    least = _STEPS_OF_A_MESSAGE + len(selector) // _CHARACTERS_IN_A_STEP

    def matches(entry: Entry) -> tuple[bool, int]:
        content, steps = entry.content, Steps()
        try:
            is_match = compiled.matches(content, system_properties_of(entry), steps=steps)
        except FilterError:
            is_match = False
        return is_match, least + len(content.raw_value(APPLICATION_PROPERTIES)) // _BYTES_IN_A_STEP + steps.spent

    return Selector(matches)
