"""One end of a session: its links, their handles, and the performatives of the peer that concern them.

Tolerated, because the SDK does it: a detach or flow for a handle that is free again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from sbclient.amqp import serial
from sbclient.amqp.delivery import (
    DispositionReceived,
    DispositionsReceived,
    IncomingDelivery,
    OutgoingDelivery,
    Unsettled,
)
from sbclient.amqp.errors import (
    FRAME_SIZE_TOO_SMALL,
    HANDLE_IN_USE,
    INVALID_FIELD,
    NOT_ALLOWED,
    RESOURCE_LIMIT,
    UNATTACHED_HANDLE,
    AmqpError,
    EncodeError,
    EndpointClosedError,
    FrameTooLargeError,
    WireError,
)
from sbclient.amqp.incoming import IncomingLink
from sbclient.amqp.limits import decoded_bytes
from sbclient.amqp.link import Link
from sbclient.amqp.options import ConnectionOptions
from sbclient.amqp.outgoing import OutgoingLink
from sbclient.amqp.performatives import (
    NO_LIMIT,
    ROLE_RECEIVER,
    ROLE_SENDER,
    SETTLE_FIRST,
    SETTLE_MIXED,
    Attach,
    Begin,
    Coordinator,
    Detach,
    Disposition,
    End,
    Flow,
    Performative,
    Source,
    Target,
    Transfer,
)
from sbclient.amqp.states import Accepted, DeliveryState, Rejected, TransactionalState
from sbclient.amqp.transfers import write_disposition, write_link_flow, write_transfers
from sbclient.amqp.windows import Windows

if TYPE_CHECKING:
    from sbclient.amqp.connection import Connection

L = TypeVar("L", bound=Link)

_link_of = attrgetter("link")

_MAX_DESCRIPTION: Final = 200
"""Characters of a description that fit into the smallest frame together with the rest of the performative."""

MANY_DELIVERIES: Final = 100
"""A disposition for more deliveries, about 30 µs of work, emits `DispositionWalked`: a server can then serve others."""


class Session:
    """One end of a session.

    Attributes:
        channel: this side's channel.
        remote_channel: the peer's, None before its begin.
        owner: for any object of the owner; None at first.
        is_open: whether neither side has ended the session.
        emit: queues an event for the owner; called by links.
    """

    def __init__(self, connection: Connection, channel: int) -> None:
        self.channel = channel
        self.remote_channel: int | None = None
        self.owner: Any = None
        self._connection = connection
        self._options = connection.options
        self.emit = connection.emit
        self.is_open = True
        self._links: dict[int, Link] = {}
        self._links_by_remote: dict[int, Link] = {}
        self._requested: dict[tuple[str, bool], Link] = {}
        self._remote_handle_max = NO_LIMIT
        self._next_delivery_id = 0
        self._outgoing = Unsettled()
        self._incoming = Unsettled()
        self._windows = Windows(connection.options.incoming_window, connection.write_bytes, connection.may_write)

    def __repr__(self) -> str:
        return f"Session(channel={self.channel}, links={len(self._links)}, is_open={self.is_open})"

    @property
    def options(self) -> ConnectionOptions:
        """The limits of the connection."""
        return self._options

    @property
    def has_room(self) -> bool:
        """Whether the peer allows a further link."""
        return len(self._links) <= self._remote_handle_max

    @property
    def links(self) -> list[Link]:
        """The links that have a handle, including those that one side has detached."""
        return list(self._links.values())

    @property
    def held_bytes(self) -> int:
        """Bytes of transfer frames that wait for the peer's window."""
        return self._windows.held_bytes

    @property
    def unsettled_room(self) -> int:
        """The number of deliveries that may be sent before some are settled."""
        return self._options.max_unsettled - len(self._outgoing)

    # Called by the owner ------------------------------------------------------------------------------------------

    def attach_sender(
        self,
        name: str,
        *,
        target: Target | Coordinator,
        source: Source | None = None,
        snd_settle_mode: int = SETTLE_MIXED,
        rcv_settle_mode: int = SETTLE_FIRST,
        max_message_size: int | None = None,
        properties: Mapping[str, Any] | None = None,
    ) -> OutgoingLink:
        """Request a link to send on; `LinkAttached` or `LinkDetached` follows.

        Raises:
            EndpointClosedError: the session is over, or no handle is free.
        """
        link = OutgoingLink(self, name, self._claim_handle(None))
        source = Source(address=name) if source is None else source
        attach = Attach(name, link.handle, ROLE_SENDER, snd_settle_mode, rcv_settle_mode, source, target)
        return self._request(link, attach, max_message_size, properties)

    def attach_receiver(
        self,
        name: str,
        *,
        source: Source,
        target: Target | None = None,
        snd_settle_mode: int = SETTLE_MIXED,
        rcv_settle_mode: int = SETTLE_FIRST,
        max_message_size: int | None = None,
        properties: Mapping[str, Any] | None = None,
    ) -> IncomingLink:
        """Request a link to receive on; grant credit after `LinkAttached`.

        Raises:
            EndpointClosedError: the session is over, or no handle is free.
        """
        link = IncomingLink(self, name, self._claim_handle(None))
        target = Target(address=name) if target is None else target
        if max_message_size is not None:
            link.max_message_size = max_message_size
        attach = Attach(name, link.handle, ROLE_RECEIVER, snd_settle_mode, rcv_settle_mode, source, target)
        return self._request(link, attach, link.max_message_size, properties)

    def end(self, error: AmqpError | None = None) -> None:
        """End the session and its links. Does nothing if the session is over."""
        if self.is_open:
            self._links_over()
            self.write(End(error))
            self.is_open = False

    def probe(self) -> None:
        """Request a flow from the peer, which every peer sends at once."""
        self.write(self._windows.flow(None, None, None, drain=False)._replace(echo=True))

    # Called by links ------------------------------------------------------------------------------------------------

    def write(self, performative: Performative) -> None:
        """Send a frame. If it exceeds the peer's frame size, shorten its error; if it has none, end the session."""
        if not self.is_open:
            return
        try:
            self._connection.write(self.channel, performative)
        except FrameTooLargeError as error:
            if isinstance(performative, Detach | End) and performative.error is not None:
                self._connection.write(self.channel, performative._replace(error=_shortened(performative.error)))
            else:
                self.fail(AmqpError(FRAME_SIZE_TOO_SMALL, str(error)))

    def write_flow(
        self,
        handle: int | None = None,
        delivery_count: int | None = None,
        link_credit: int | None = None,
        *,
        drain: bool = False,
    ) -> None:
        """Send a flow; with a handle it includes the state of a link."""
        flow = self._windows.flow(handle, delivery_count, link_credit, drain=drain)
        if handle is None:
            self.write(flow)
        elif self.is_open:
            self._connection.write_bytes(write_link_flow(self.channel, flow))

    def write_transfer(
        self, delivery: OutgoingDelivery, handle: int, message_format: int, payload: bytes, state: DeliveryState | None
    ) -> None:
        """Assign a delivery its id, and send it or hold it until the peer's window opens."""
        delivery.delivery_id = delivery_id = self._next_delivery_id
        self._windows.send(
            handle,
            write_transfers(
                self.channel,
                handle,
                delivery_id,
                delivery.tag,
                message_format,
                payload,
                settled=delivery.is_settled,
                state=state,
                max_frame_size=self._connection.remote_max_frame_size,
            ),
        )
        self._next_delivery_id = (delivery_id + 1) & serial.MASK
        if not delivery.is_settled:
            self._outgoing.add(delivery)
        if self._windows.held_bytes:
            self._connection.hold(self)
        if self._windows.held_bytes > self._options.max_held_bytes:
            self.fail(AmqpError(RESOURCE_LIMIT, f"{self.held_bytes} bytes wait for your session window: send a flow"))

    def drop_held(self, link: Link) -> None:
        """Drop the transfer frames of a link that is over: after its detach they would end the session."""
        if self._windows.drop(link.handle) and not self._windows.held_bytes:
            self._window_opened()

    def write_disposition(
        self, role: bool, delivery: OutgoingDelivery | IncomingDelivery, state: DeliveryState | None, *, settled: bool
    ) -> None:
        """Send the state of a delivery, and forget the delivery if `settled`."""
        if not self.is_open:
            return
        first = delivery.delivery_id
        if settled and type(state) is Accepted:
            self._connection.write_accepted(self.channel, role, first)
        else:
            frame = write_disposition(self.channel, role, first, None, settled=settled, state=state)
            if len(frame) > self._connection.remote_max_frame_size:
                short = _shortened_state(state)
                frame = write_disposition(self.channel, role, first, None, settled=settled, state=short)
            self._connection.write_bytes(frame)
        if settled:
            delivery.is_settled = True
            delivered = self._incoming if role is ROLE_RECEIVER else self._outgoing
            delivered.forget(delivery)

    def write_dispositions(
        self,
        role: bool,
        deliveries: Sequence[OutgoingDelivery | IncomingDelivery],
        state: DeliveryState | None,
        *,
        settled: bool,
    ) -> None:
        """Send the state of deliveries with consecutive ids; see `write_disposition`."""
        if len(deliveries) == 1:
            self.write_disposition(role, deliveries[0], state, settled=settled)
            return
        if not self.is_open:
            return
        first, last = deliveries[0].delivery_id, deliveries[-1].delivery_id
        frame = write_disposition(self.channel, role, first, last, settled=settled, state=state)
        if len(frame) > self._connection.remote_max_frame_size:
            for delivery in deliveries:
                self.write_disposition(role, delivery, state, settled=settled)
            return
        self._connection.write_bytes(frame)
        if settled:
            direction = self._direction(role is not ROLE_RECEIVER)
            for delivery in deliveries:
                delivery.is_settled = True
                direction.forget(delivery)

    def remember(self, delivery: IncomingDelivery) -> bool:
        """Store an unsettled delivery; False if there are too many."""
        if len(self._incoming) >= self._options.max_unsettled:
            return False
        self._incoming.add(delivery)
        return True

    def reserve(self, count: int) -> bool:
        """Reserve bytes for incomplete messages, or return them with a negative count; False if there are too few."""
        return self._connection.reserve(count)

    def forget_link(self, link: Link) -> None:
        """Free the handles of a link that both sides have detached."""
        if self._links.pop(link.handle, None) is not None:
            self._connection.claim_link(-1)
            self._connection.retain(-link.retained_bytes)
        if link.remote_handle is not None and self._links_by_remote.get(link.remote_handle) is link:
            del self._links_by_remote[link.remote_handle]
        self._direction(link.is_sender).forget_link(link)

    # Called by the connection -------------------------------------------------------------------------------------

    def begin(self, properties: Mapping[str, Any] | None = None) -> None:
        """Send this side's begin, with the peer's channel if the peer began first."""
        begin = self._windows.begin(self.remote_channel, self._options.handle_max)
        self._connection.write(self.channel, begin._replace(properties=properties))

    def on_begin(self, channel: int, begin: Begin) -> None:
        """Process the peer's begin, which arrived on its `channel`."""
        self.remote_channel = channel
        self._remote_handle_max = begin.handle_max
        self._windows.on_begin(begin)

    def on_performative(self, performative: Any, payload: bytes) -> None:
        """Process any performative but begin and end.

        Raises:
            WireError: the peer broke a rule that closes the connection.
        """
        if not self.is_open:
            return
        kind = type(performative)
        if kind is Transfer:
            self._on_transfer(performative, payload)
        elif kind is Disposition:
            self._on_disposition(performative)
        elif kind is Flow:
            self._on_flow(performative)
        elif kind is Attach:
            self._on_attach(performative)
        else:
            link = self._links_by_remote.get(performative.handle)
            if link is not None:
                link.on_detach(performative)

    def on_end(self, end: End) -> None:
        """Process the peer's end."""
        if self.is_open:
            self._links_over(end.error, report=True)
            self.write(End())
            self.is_open = False
            self.emit(SessionEnded(self, end.error))
        else:
            self.emit(EndAnswered(self))
        self._connection.forget_session(self)

    def fail(self, error: AmqpError) -> None:
        """End the session because the peer broke a rule, and emit `SessionEnded`."""
        if self.is_open:
            self._links_over(error, report=True)
            self.write(End(error))
            self.is_open = False
            self.emit(SessionEnded(self, error))

    def release_frame(self) -> bool:
        """Send one held transfer frame, called by the connection; False if none is left or the window is closed."""
        if self._windows.release_frame() and not self._windows.held_bytes:
            self._window_opened()
        return self._windows.is_ready

    def _window_opened(self) -> None:
        self.emit(WindowOpened(self))
        for link in self.links:
            if isinstance(link, OutgoingLink):
                link.on_window()

    def abandon(self, error: AmqpError | None) -> None:
        """End the session without a frame, because the connection is over."""
        if self.is_open:
            self._links_over(error, report=True)
            self.is_open = False
            self.emit(SessionEnded(self, error))

    # Performatives ------------------------------------------------------------------------------------------------

    def _on_transfer(self, transfer: Transfer, payload: bytes) -> None:
        if self._windows.count_incoming():
            self.write_flow()
        link = self._links_by_remote.get(transfer.handle)
        if link is None:
            self.fail(AmqpError(UNATTACHED_HANDLE, f"no link is attached to handle {transfer.handle}"))
            return
        if not link.is_over:
            try:
                if not isinstance(link, IncomingLink) or not link.has_attached:
                    raise WireError(NOT_ALLOWED, "transfer on a link that does not receive or is not attached")
                link.on_transfer(transfer, payload)
            except WireError as error:
                link.fail(error.error)

    def _on_disposition(self, disposition: Disposition) -> None:
        unsettled = self._outgoing if disposition.role is ROLE_RECEIVER else self._incoming
        try:
            changed, walked_count = unsettled.apply(disposition)
        except WireError as error:
            self.fail(error.error)
            return
        if walked_count > MANY_DELIVERIES:
            self.emit(DispositionWalked(self, walked_count))  # the walk takes as long if it changes nothing
        if len(changed) == 1:
            self.emit(DispositionReceived(changed[0], disposition.state, disposition.settled))
        elif changed:
            self._report(changed, disposition)

    def _report(self, changed: Iterable[OutgoingDelivery | IncomingDelivery], disposition: Disposition) -> None:
        """Emit the events of a disposition: deliveries of one link that follow each other share an event."""
        state, settled = disposition.state, disposition.settled
        for link, group in groupby(changed, _link_of):
            deliveries = list(group)
            for start in range(0, len(deliveries), MANY_DELIVERIES):
                some = deliveries[start : start + MANY_DELIVERIES]
                if len(some) == 1:
                    self.emit(DispositionReceived(some[0], state, settled))
                else:
                    self.emit(DispositionsReceived(link, some, state, settled))

    def _on_flow(self, flow: Flow) -> None:
        was_holding = self._windows.held_bytes > 0
        self._windows.on_flow(flow)
        if was_holding and not self._windows.held_bytes:
            self._window_opened()
        elif self._windows.is_ready:
            self._connection.hold(self)
        if flow.handle is not None:
            link = self._links_by_remote.get(flow.handle)
            if link is not None and not link.is_over:
                link.on_flow(flow)
        elif flow.echo:
            self.write_flow()

    def _on_attach(self, attach: Attach) -> None:
        if attach.handle > self._options.handle_max:
            self.fail(  # the service ends the session, with this text
                AmqpError(
                    RESOURCE_LIMIT,
                    "Cannot allocate more handles to the current session or connection. The maximum number of handles "
                    f"allowed is {self._options.handle_max}. Please free up resources and try again.",
                )
            )
            return
        if attach.handle in self._links_by_remote:
            self.fail(AmqpError(HANDLE_IN_USE, f"handle {attach.handle} has a link already"))
            return
        retained_bytes = decoded_bytes(attach)
        link = self._requested.pop((attach.name, attach.role is ROLE_RECEIVER), None)
        if link is None:
            try:
                handle = self._claim_handle(attach.handle)
            except EndpointClosedError as error:
                self.fail(AmqpError(RESOURCE_LIMIT, str(error)))
                return
            is_sender = attach.role is ROLE_RECEIVER
            link = OutgoingLink(self, attach.name, handle) if is_sender else IncomingLink(self, attach.name, handle)
            self._links[handle] = link
        self._connection.retain(retained_bytes)
        self._links_by_remote[attach.handle] = link
        link.retained_bytes = retained_bytes
        link.on_attach(attach)

    # Private ------------------------------------------------------------------------------------------------------

    def _request(
        self, link: L, attach: Attach, max_message_size: int | None, properties: Mapping[str, Any] | None
    ) -> L:
        self._links[link.handle] = link
        self._requested[link.name, link.is_sender] = link
        count = 0 if link.is_sender else None
        try:
            link.attach(
                attach._replace(initial_delivery_count=count, max_message_size=max_message_size, properties=properties)
            )
        except EncodeError:
            del self._requested[link.name, link.is_sender]
            self.forget_link(link)
            raise
        return link

    def _claim_handle(self, wanted: int | None) -> int:
        """Choose a free handle, if possible the one that the peer uses.

        Raises:
            EndpointClosedError: there is none, or the session is over.
        """
        if not self.is_open:
            raise EndpointClosedError(f"session {self.channel} has ended: begin a new one")
        handle = 0 if wanted is None or wanted in self._links or wanted > self._remote_handle_max else wanted
        while handle in self._links:
            handle += 1
        if handle > self._remote_handle_max or not self._connection.claim_link(1):
            raise EndpointClosedError(
                f"session {self.channel} has {len(self._links)} links and can have no more: detach one"
            )
        return handle

    def _direction(self, is_outgoing: bool) -> Unsettled:
        return self._outgoing if is_outgoing else self._incoming

    def _links_over(self, error: AmqpError | None = None, *, report: bool = False) -> None:
        """Forget all links; with `report` emit `LinkDetached` for each."""
        self._windows.clear()
        for link in list(self._links.values()):
            link.abandon(error, report=report)
        self._connection.claim_link(-len(self._links))
        self._connection.retain(-sum(link.retained_bytes for link in self._links.values()))
        self._links.clear()
        self._links_by_remote.clear()
        self._requested.clear()
        self._outgoing.clear()
        self._incoming.clear()


def _shortened(error: AmqpError) -> AmqpError:
    """The same error with a shorter description."""
    return AmqpError(error.condition[:_MAX_DESCRIPTION], (error.description or "")[: _MAX_DESCRIPTION // 4])


def _shortened_state(state: DeliveryState | None) -> DeliveryState | None:
    if isinstance(state, Rejected) and state.error is not None:
        return Rejected(_shortened(state.error))
    if isinstance(state, TransactionalState) and isinstance(state.outcome, Rejected):
        return TransactionalState(state.txn_id, Rejected(_shortened(state.outcome.error or AmqpError(INVALID_FIELD))))
    raise EncodeError(f"a {type(state).__name__} does not fit into the peer's maximum frame size")


class SessionBegun(NamedTuple):
    """The peer has begun a session, and this side has answered; or the peer has answered ours."""

    session: Session
    begin: Begin


class SessionEnded(NamedTuple):
    """A session is over; the events of its links precede this one."""

    session: Session
    error: AmqpError | None


class EndAnswered(NamedTuple):
    """The peer has answered the end that this side sent: it has released all links of the session."""

    session: Session


class WindowOpened(NamedTuple):
    """The transfer frames that waited for the peer's window, or for other sessions, have been written."""

    session: Session


class DispositionWalked(NamedTuple):
    """The peer has sent a disposition for many deliveries, which took some time to process.

    Attributes:
        session: the session of the deliveries.
        delivery_count: the number of deliveries, more than `MANY_DELIVERIES`.
    """

    session: Session
    delivery_count: int
