"""The base of incoming and outgoing links: attach, refuse and detach."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from sbclient.amqp.delivery import IncomingDelivery, OutgoingDelivery
from sbclient.amqp.errors import AmqpError, EndpointClosedError
from sbclient.amqp.performatives import (
    Attach,
    Coordinator,
    Detach,
    Flow,
    Source,
    Target,
)
from sbclient.amqp.states import DeliveryState

if TYPE_CHECKING:
    from sbclient.amqp.session import Session

_delivery_id = attrgetter("delivery_id")


class Link:
    """One end of a link, which carries messages in one direction.

    Attributes:
        name: chosen by the side that requested the link.
        is_sender: whether this side sends.
        handle: this side's number of the link in its session.
        remote_handle: the peer's number, None before its attach.
        remote: the peer's attach, None before it arrives.
        retained_bytes: the size of the peer's attach in memory.
        unsettled: deliveries that are not settled, by delivery id.
        has_attached: whether this side has sent its attach.
        is_over: whether one side has detached, or the session has ended.
        owner: for any object of the owner; None at first.
    """

    __slots__ = (
        "_has_detached",
        "_is_reported",
        "handle",
        "has_attached",
        "is_over",
        "is_sender",
        "name",
        "owner",
        "remote",
        "remote_handle",
        "retained_bytes",
        "session",
        "unsettled",
    )

    def __init__(self, session: Session, name: str, handle: int, *, is_sender: bool) -> None:
        self.session = session
        self.name = name
        self.is_sender = is_sender
        self.handle = handle
        self.remote_handle: int | None = None
        self.remote: Attach | None = None
        self.retained_bytes = 0
        self.unsettled: dict[int, Any] = {}
        self.owner: Any = None
        self.has_attached = False
        self.is_over = False
        self._has_detached = False
        self._is_reported = False

    def __repr__(self) -> str:
        return f"{type(self).__name__}(name={self.name!r}, handle={self.handle}, is_open={self.is_open})"

    @property
    def is_open(self) -> bool:
        """Whether both sides have attached and neither has detached."""
        return self.has_attached and self.remote is not None and not self.is_over

    def refuse(self, error: AmqpError) -> None:
        """Reject an `AttachRequested`; the peer receives the error.

        Raises:
            EndpointClosedError: the peer has detached already.
        """
        self.check_not_over()
        self._is_reported = True
        self._write_refusal()
        self._write_detach(error, closed=True)

    def detach(self, error: AmqpError | None = None, *, closed: bool = True) -> None:
        """Detach the link; its unsettled deliveries stay in `unsettled`. Does nothing if the link is over."""
        if not self.is_over:
            self._is_reported = True
            self._end(error, closed=closed)

    def settle_many(
        self,
        deliveries: Iterable[IncomingDelivery] | Iterable[OutgoingDelivery],
        state: DeliveryState | None,
        *,
        settled: bool,
    ) -> None:
        """Send the same outcome for several deliveries, with one disposition for each run of consecutive ids.

        Args:
            deliveries: of this link, in any order; settled ones are skipped.
            state, settled: see `IncomingDelivery.settle`.
        """
        if self.is_over:
            return
        role = not self.is_sender
        run: list[IncomingDelivery | OutgoingDelivery] = []
        in_order: list[IncomingDelivery | OutgoingDelivery] = sorted(deliveries, key=_delivery_id)
        for delivery in in_order:
            if delivery.is_settled:
                continue
            if run and delivery.delivery_id != run[-1].delivery_id + 1:
                self.session.write_dispositions(role, run, state, settled=settled)
                run = []
            run.append(delivery)
        if run:
            self.session.write_dispositions(role, run, state, settled=settled)

    def check_not_over(self) -> None:
        """Raise `EndpointClosedError` if the link is over."""
        if self.is_over:
            raise EndpointClosedError(f"link {self.name!r} is detached: attach a new one")

    def attach(self, attach: Attach) -> None:
        """Send this side's attach; called by `accept` and by the session."""
        self.has_attached = True
        self.session.write(attach)

    def on_attach(self, attach: Attach) -> None:
        """Process the peer's attach; called by the session."""
        self.remote = attach
        self.remote_handle = attach.handle
        self.session.emit(LinkAttached(self, attach) if self.has_attached else AttachRequested(self, attach))

    def on_detach(self, detach: Detach) -> None:
        """Process the peer's detach; called by the session."""
        if self._has_detached:
            self.session.forget_link(self)
            return
        if not self.has_attached:
            self._write_refusal()
        self.is_over = True
        self.session.write(Detach(self.handle, detach.closed))
        self.session.forget_link(self)
        self.on_over()
        self._report_detached(detach.error, closed=detach.closed)

    def fail(self, error: AmqpError) -> None:
        """Detach because the peer broke a rule, and emit `LinkDetached`; called by the session."""
        if not self.is_over:
            self._end(error, closed=True)
            self._report_detached(error, closed=True)

    def abandon(self, error: AmqpError | None, *, report: bool) -> None:
        """End the link without a frame, because its session is over; with `report` emit `LinkDetached`."""
        self.is_over = True
        self._is_reported = self._is_reported or not report
        self.on_over()
        self._report_detached(error, closed=True)

    def on_flow(self, flow: Flow) -> None:
        """Process a flow for this link; called by the session."""
        raise NotImplementedError

    def on_over(self) -> None:
        """Release the resources of the link, because it is over."""

    def _report_detached(self, error: AmqpError | None, *, closed: bool) -> None:
        """Emit `LinkDetached`, at most once and not after the owner detached the link itself."""
        if not self._is_reported:
            self._is_reported = True
            self.session.emit(LinkDetached(self, error, closed))

    def _end(self, error: AmqpError | None, *, closed: bool) -> None:
        if not self.has_attached:
            self._write_refusal()
        self._write_detach(error, closed=closed)

    def _write_refusal(self) -> None:
        """Send an attach without our terminus, which rejects the link. Source: AMQP 1.0 part 2 section 2.6.3."""
        initial = 0 if self.is_sender else None
        self.attach(Attach(self.name, self.handle, not self.is_sender, initial_delivery_count=initial))

    def _write_detach(self, error: AmqpError | None, *, closed: bool) -> None:
        self._has_detached = self.is_over = True
        self.on_over()
        self.session.write(Detach(self.handle, closed, error))

    def _answer(
        self,
        source: Source | None,
        target: Target | Coordinator | None,
        max_message_size: int | None,
        properties: Mapping[str, Any] | None,
    ) -> None:
        """Send the attach that accepts the link; source and target of None are copied from the peer's attach."""
        self.check_not_over()
        request = self.remote
        if request is None or self.has_attached:
            raise EndpointClosedError(f"link {self.name!r} does not wait for an answer: accept it once")
        self.attach(
            Attach(
                self.name,
                self.handle,
                role=not self.is_sender,
                snd_settle_mode=request.snd_settle_mode,
                rcv_settle_mode=request.rcv_settle_mode,
                source=request.source if source is None else source,
                target=request.target if target is None else target,
                initial_delivery_count=0 if self.is_sender else None,
                max_message_size=max_message_size,
                properties=properties,
            )
        )


class AttachRequested(NamedTuple):
    """The peer requests a link: call `link.accept` or `link.refuse`, now or later.

    On an `OutgoingLink` the peer receives.
    """

    link: Link
    attach: Attach


class LinkAttached(NamedTuple):
    """The peer has answered our attach. An answer without source or target is a rejection, and a detach follows."""

    link: Link
    attach: Attach


class LinkDetached(NamedTuple):
    """A link is over; its unsettled deliveries are in `link.unsettled`.

    Attributes:
        error: the reason, None if the peer gave none.
        closed: False if the peer might resume the link, which this engine does not support.
    """

    link: Link
    error: AmqpError | None
    closed: bool
