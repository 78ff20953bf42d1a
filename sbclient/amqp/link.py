"""What the two kinds of link have in common: how they are attached, refused and detached."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from sbclient.amqp.delivery import IncomingDelivery, OutgoingDelivery
from sbclient.amqp.errors import AmqpError, EndpointClosedError
from sbclient.amqp.options import ConnectionOptions
from sbclient.amqp.performatives import (
    Attach,
    Coordinator,
    Detach,
    Flow,
    Performative,
    Source,
    Target,
)
from sbclient.amqp.states import DeliveryState


class LinkSession(Protocol):
    """The part of a session that its links need."""

    @property
    def options(self) -> ConnectionOptions:
        """The limits of the connection."""

    @property
    def is_open(self) -> bool:
        """Whether frames of links may be sent."""

    @property
    def held_bytes(self) -> int:
        """The transfer frames that wait for the peer's window, in bytes."""

    @property
    def unsettled_room(self) -> int:
        """How many more deliveries may be sent before some are settled."""

    def emit(self, event: Any) -> None:
        """Tell the owner."""

    def write(self, performative: Performative) -> None:
        """Send a frame."""

    def write_flow(self, handle: int, delivery_count: int, link_credit: int, *, drain: bool = False) -> None:
        """Send a flow that speaks of a link."""

    def write_transfer(
        self, delivery: OutgoingDelivery, handle: int, message_format: int, payload: bytes, state: DeliveryState | None
    ) -> None:
        """Send a delivery, or hold it until the peer's window opens; gives it its id and remembers it."""

    def write_disposition(
        self, role: bool, delivery: OutgoingDelivery | IncomingDelivery, state: DeliveryState | None, *, settled: bool
    ) -> None:
        """Tell the peer the state of a delivery, and forget it if `settled`."""

    def write_dispositions(
        self, role: bool, deliveries: Sequence[IncomingDelivery], state: DeliveryState | None, *, settled: bool
    ) -> None:
        """Tell the peer the state of deliveries whose ids follow one another."""

    def remember(self, delivery: IncomingDelivery) -> bool:
        """Keep an unsettled delivery until it is settled; False if too many are kept."""

    def reserve(self, count: int) -> bool:
        """Take that many bytes, or give them back, of what incomplete messages may hold; False if there are no more."""

    def forget_link(self, link: Link) -> None:
        """Free the handles of a link that both sides have detached."""


class Link:
    """One end of a one-way path for messages.

    Attributes:
        name: given by whoever asked for the link.
        is_sender: whether this side sends.
        handle: this side's number for it in its session.
        remote_handle: the peer's number, None before its attach.
        remote: the peer's attach, None before it came.
        unsettled: deliveries that are not settled, by delivery id.
        owner: whatever the owner wants to find here again.
    """

    __slots__ = (
        "_has_attached",
        "_has_detached",
        "_is_detached_by_peer",
        "_is_told",
        "handle",
        "is_sender",
        "name",
        "owner",
        "remote",
        "remote_handle",
        "session",
        "unsettled",
    )

    def __init__(self, session: LinkSession, name: str, handle: int, *, is_sender: bool) -> None:
        self.session = session
        self.name = name
        self.is_sender = is_sender
        self.handle = handle
        self.remote_handle: int | None = None
        self.remote: Attach | None = None
        self.unsettled: dict[int, Any] = {}
        self.owner: Any = None
        self._has_attached = False
        self._has_detached = False
        self._is_detached_by_peer = False
        self._is_told = False

    def __repr__(self) -> str:
        return f"{type(self).__name__}(name={self.name!r}, handle={self.handle}, is_open={self.is_open})"

    @property
    def is_open(self) -> bool:
        """Whether both sides have attached and neither has detached."""
        return self._has_attached and self.remote is not None and not self.is_over

    @property
    def is_over(self) -> bool:
        """Whether one side has detached, or the session has ended."""
        return self._has_detached or self._is_detached_by_peer or not self.session.is_open

    def refuse(self, error: AmqpError) -> None:
        """Turn down an `AttachRequested`, so that the peer learns why.

        Raises:
            EndpointClosedError: the peer has given up meanwhile.
        """
        self.check_not_over()
        self._is_told = True
        self._write_refusal()
        self._write_detach(error, closed=True)

    def detach(self, error: AmqpError | None = None, *, closed: bool = True) -> None:
        """End the link; its unsettled deliveries stay in `unsettled`. Does nothing if it is over already."""
        if not self.is_over:
            self._is_told = True
            self._end(error, closed=closed)

    def check_not_over(self) -> None:
        """Raise `EndpointClosedError` if nothing can be sent any more."""
        if self.is_over:
            raise EndpointClosedError(f"link {self.name!r} is detached: attach a new one")

    def attach(self, attach: Attach) -> None:
        """Send this side's attach; called by `accept` and by the session."""
        self._has_attached = True
        self.session.write(attach)

    def on_attach(self, attach: Attach) -> None:
        """The peer's attach has come; called by the session."""
        self.remote = attach
        self.remote_handle = attach.handle
        self.session.emit(LinkAttached(self, attach) if self._has_attached else AttachRequested(self, attach))

    def on_detach(self, detach: Detach) -> None:
        """The peer's detach has come; called by the session."""
        if self._has_detached:
            self.session.forget_link(self)
            return
        if not self._has_attached:
            self._write_refusal()
        self._is_detached_by_peer = True
        self.session.write(Detach(self.handle, detach.closed))
        self._has_detached = True
        self.session.forget_link(self)
        self.on_over()
        self._tell(detach.error, closed=detach.closed)

    def fail(self, error: AmqpError) -> None:
        """Detach because the peer broke a rule, and tell the owner; called by the session."""
        if not self.is_over:
            self._end(error, closed=True)
            self._tell(error, closed=True)

    def abandon(self, error: AmqpError | None, *, tell: bool) -> None:
        """The session is over; called by the session. `tell`: whether the owner does not know yet."""
        self._is_told = self._is_told or not tell
        self.on_over()
        self._tell(error, closed=True)

    def on_flow(self, flow: Flow) -> None:
        """The peer has spoken of this link; called by the session."""
        raise NotImplementedError

    def on_over(self) -> None:
        """Let go of what only a living link needs."""

    def _tell(self, error: AmqpError | None, *, closed: bool) -> None:
        """Tell the owner that the link is over, unless it knows."""
        if not self._is_told:
            self._is_told = True
            self.session.emit(LinkDetached(self, error, closed))

    def _end(self, error: AmqpError | None, *, closed: bool) -> None:
        if not self._has_attached:
            self._write_refusal()
        self._write_detach(error, closed=closed)

    def _write_refusal(self) -> None:
        """An attach without the terminus that would be ours says that there is no link (specification 2.6.3)."""
        initial = 0 if self.is_sender else None
        self.attach(Attach(self.name, self.handle, not self.is_sender, initial_delivery_count=initial))

    def _write_detach(self, error: AmqpError | None, *, closed: bool) -> None:
        self._has_detached = True
        self.on_over()
        self.session.write(Detach(self.handle, closed, error))

    def _answer(
        self,
        source: Source | None,
        target: Target | Coordinator | None,
        max_message_size: int | None,
        properties: Mapping[str, Any] | None,
    ) -> None:
        """Send the attach that accepts the peer's; what is None is taken from the peer's."""
        self.check_not_over()
        asked = self.remote
        if asked is None or self._has_attached:
            raise EndpointClosedError(f"link {self.name!r} is not waiting for an answer: accept it once")
        self.attach(
            Attach(
                self.name,
                self.handle,
                role=not self.is_sender,
                snd_settle_mode=asked.snd_settle_mode,
                rcv_settle_mode=asked.rcv_settle_mode,
                source=asked.source if source is None else source,
                target=asked.target if target is None else target,
                initial_delivery_count=0 if self.is_sender else None,
                max_message_size=max_message_size,
                properties=properties,
            )
        )


class AttachRequested(NamedTuple):
    """The peer wants a link: call `link.accept` or `link.refuse`, now or later.

    An `OutgoingLink` is one on which the peer receives.
    """

    link: Link
    attach: Attach


class LinkAttached(NamedTuple):
    """The peer has answered our attach. Without source (or target) it refuses, and its detach follows."""

    link: Link
    attach: Attach


class LinkDetached(NamedTuple):
    """A link is over; its unsettled deliveries are in `link.unsettled`.

    Attributes:
        error: why, None if the peer gave no reason.
        closed: whether it is gone for good; False: the peer might resume it, which this engine does not support.
    """

    link: Link
    error: AmqpError | None
    closed: bool
