"""One connection to a namespace: one socket and one engine of AMQP.

Laws:
1. What is written in one step of the event loop goes out as one piece.
2. There is one timer. It serves the engine: handshake, idle frames, a silent peer.
3. When the connection is lost, every link is notified once, with the reason.
4. When a call times out and the peer has been silent, the peer is probed. If it does not respond, the connection is
   dropped, and the next call opens a new one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final, Protocol, TypeAlias

from sbclient import clock
from sbclient.amqp import (
    Connection,
    ConnectionClosed,
    ConnectionOpened,
    ConnectionOptions,
    CreditGranted,
    DeliveryReceived,
    DispositionReceived,
    DispositionsReceived,
    EndAnswered,
    EndpointClosedError,
    LinkAttached,
    LinkDetached,
    LinkDrained,
    Session,
    WindowOpened,
)
from sbclient.amqp.sasl import ANONYMOUS
from sbclient.errors import OperationTimeoutError, ServiceBusConnectionError, ServiceBusError, without_doubt
from sbclient.rules.conditions import error_of, plain_text
from sbclient.tasks import Move

CLOSE_S: Final = 2.0
"""How long the service may take to answer a close."""

PROBE_S: Final = 5.0
"""How long a silent peer may take to answer a probe."""


class Stream(Protocol):
    """A socket as a connection needs it."""

    def write(self, data: bytes) -> None:
        """Send bytes, or keep them until the network takes them."""

    def close(self) -> None:
        """Send what was written and close; the sink is not called again."""

    def abort(self) -> None:
        """Close at once; the sink is not called again."""

    def abandon(self, move: Move) -> None:
        """Close without a call into the event loop, which is not the running one."""


class Sink(Protocol):
    """What a socket calls."""

    def on_bytes(self, data: bytes) -> None:
        """Bytes have come."""

    def on_lost(self, error: Exception | None) -> None:
        """The socket is closed; None for a proper end by the peer."""

    def on_full(self, *, is_full: bool) -> None:
        """The network does, or no longer does, take what is written more slowly than it comes."""


OpenStream: TypeAlias = Callable[[Sink], Awaitable[Stream]]


class AmqpConnection:
    """One connection.

    Args:
        open_stream: connects a socket to a sink.
        options: of the engine.
        namespace: for errors.

    Attributes:
        engine: the AMQP engine.
        heard_at: monotonic seconds of the last bytes from the service.
    """

    def __init__(self, open_stream: OpenStream, options: ConnectionOptions, namespace: str) -> None:
        self._open_stream = open_stream
        self._namespace = namespace
        self._loop = asyncio.get_running_loop()
        self._stream: Stream | None = None
        self._opened: asyncio.Future[None] = self._loop.create_future()
        self._closed: asyncio.Future[None] = self._loop.create_future()
        self._ending: dict[Session, asyncio.Future[None]] = {}
        self._link_count = 0
        self._is_writing = False
        self._is_full = False
        self._timer: asyncio.TimerHandle | None = None
        self._probe: asyncio.TimerHandle | None = None
        self._reason: ServiceBusError | None = None
        self._handlers: dict[type, Callable[[Any], None]] = {
            DispositionReceived: self._on_disposition,
            DispositionsReceived: self._on_dispositions,
            DeliveryReceived: self._on_delivery,
            CreditGranted: self._on_credit,
            LinkDrained: self._on_drained,
            LinkAttached: self._on_attached,
            LinkDetached: self._on_detached,
            WindowOpened: self._on_window,
            EndAnswered: self._on_end_answered,
            ConnectionOpened: self._on_opened,
            ConnectionClosed: self._on_closed,
        }
        self.heard_at = clock.monotonic()
        self.engine = Connection.client(options, now=self.heard_at, mechanism=ANONYMOUS)

    def __repr__(self) -> str:
        return f"AmqpConnection({self._namespace!r}, is_over={self.is_over})"

    @property
    def is_over(self) -> bool:
        """Whether the connection is lost or closed."""
        return self.engine.is_over or self._closed.done()

    @property
    def is_open(self) -> bool:
        """Whether the service has answered the open, and the connection is neither lost nor closed."""
        return self._opened.done() and not self.is_over

    @property
    def channel_count(self) -> int:
        """How many AMQP sessions the service allows at a time."""
        remote = self.engine.remote
        highest = self.engine.options.channel_max
        return 1 + (highest if remote is None else min(highest, remote.channel_max))

    async def open(self) -> None:
        """Connect and wait for the open of the service.

        Raises:
            ServiceBusError: the namespace cannot be reached; nothing is in doubt.
        """
        try:
            self._stream = await self._open_stream(self)
            self._arm()
            self.write()
            await self._opened
        except BaseException:
            self.abort()
            raise

    def begin(self) -> Session:
        """Begin a session.

        Raises:
            EndpointClosedError: the connection is over, or its channels are used up.
        """
        if self.is_over:
            reason = "" if self._reason is None else f" ({self._reason})"
            raise EndpointClosedError(f"the connection to {self._namespace} is lost{reason}: open a new one")
        return self.engine.begin()

    def new_link_name(self) -> str:
        """A name that no other link of this connection has."""
        self._link_count += 1
        return f"{self.engine.options.container_id}:{self._link_count}"

    def flush(self) -> None:
        """Send what the engine has written, at the end of this step of the event loop."""
        if not self._is_writing:
            self._is_writing = True
            self._loop.call_soon(self.write)

    async def ended(self, session: Session, within_s: float) -> None:
        """Wait until the service has confirmed the end of a session, at most that long."""
        if self.is_over or session not in self.engine.sessions:
            return
        answered = self._ending.setdefault(session, self._loop.create_future())
        with suppress(TimeoutError):
            async with clock.timeout(within_s):
                await asyncio.shield(answered)

    def suspect(self, since: float) -> None:
        """Probe the peer if nothing has arrived from it since `since`, the start of a call that timed out."""
        if self.is_over or self._probe is not None or self.heard_at > since:
            return
        for session in self.engine.sessions:
            if session.is_open and session.remote_channel is not None:
                session.probe()
                break
        self.flush()
        asked_at = clock.monotonic()

        def judge() -> None:
            self._probe = None
            if self.heard_at < asked_at and not self.is_over:
                self._lose(OperationTimeoutError(f"the namespace {self._namespace} does not answer any more"))

        self._probe = clock.call_later(PROBE_S, judge)

    async def close(self) -> None:
        """Close the connection properly; safe to call twice."""
        if not self.is_over:
            self.engine.close(now=clock.monotonic())
            self._take_events()
            self.write()
            with suppress(TimeoutError):
                async with clock.timeout(CLOSE_S):
                    await asyncio.shield(self._closed)
        self.abort()

    def abort(self) -> None:
        """Drop the connection, and notify every link."""
        if not self.is_over:
            self._lose(None)
        if self._stream is not None:
            self._stream.close()

    def abandon(self, move: Move) -> None:
        """Drop the connection without a call into its event loop: its links are over, and no call of them ends."""
        for session in self.engine.sessions:
            for link in session.links:
                if link.owner is not None:
                    link.owner.abandon()
        self.engine.receive_eof(move.value)
        if self._stream is not None:
            self._stream.abandon(move)

    # -- what the socket calls -----------------------------------------------------------------------------------

    def on_bytes(self, data: bytes) -> None:
        """Bytes have come."""
        self.heard_at = now = clock.monotonic()
        self.engine.receive_bytes(data, now=now)
        self._take_events()
        if self.engine.has_output:
            self.flush()

    def on_lost(self, error: Exception | None) -> None:
        """The socket is closed, or unusable after an error that nothing expected."""
        if error is None:
            said = "the service closed the connection"
        else:
            said = plain_text(str(error) if isinstance(error, OSError) else f"{type(error).__name__}: {error}")
        self._lose(ServiceBusConnectionError(f"the connection to {self._namespace} was lost: {said}"))

    def on_full(self, *, is_full: bool) -> None:
        """The network does not take more for now, or does again."""
        self._is_full = is_full
        if not is_full:
            self.flush()

    # -- events --------------------------------------------------------------------------------------------------

    def _take_events(self) -> None:
        next_event, handlers = self.engine.next_event, self._handlers
        while (event := next_event()) is not None:
            handler = handlers.get(type(event))
            if handler is not None:
                handler(event)

    @staticmethod
    def _on_disposition(event: DispositionReceived) -> None:
        owner = event.delivery.link.owner
        if owner is not None:
            owner.on_disposition(event)

    @staticmethod
    def _on_dispositions(event: DispositionsReceived) -> None:
        if event.link.owner is not None:
            event.link.owner.on_dispositions(event)

    @staticmethod
    def _on_delivery(event: DeliveryReceived) -> None:
        owner = event.link.owner
        if owner is not None:
            owner.on_delivery(event.delivery)

    @staticmethod
    def _on_credit(event: CreditGranted) -> None:
        if event.drain:
            event.link.drained()
        elif event.link.owner is not None:
            event.link.owner.on_credit()

    @staticmethod
    def _on_drained(event: LinkDrained) -> None:
        if event.link.owner is not None:
            event.link.owner.on_drained()

    @staticmethod
    def _on_attached(event: LinkAttached) -> None:
        if event.link.owner is not None:
            event.link.owner.on_attached(event.attach)

    @staticmethod
    def _on_detached(event: LinkDetached) -> None:
        if event.link.owner is not None:
            event.link.owner.on_detached(event.error)

    @staticmethod
    def _on_window(event: WindowOpened) -> None:
        for link in event.session.links:
            if link.owner is not None:
                link.owner.on_window()

    def _on_end_answered(self, event: EndAnswered) -> None:
        answered = self._ending.pop(event.session, None)
        if answered is not None and not answered.done():
            answered.set_result(None)

    def _on_opened(self, event: ConnectionOpened) -> None:
        if not self._opened.done():
            self._opened.set_result(None)
        self._arm()

    def _on_closed(self, event: ConnectionClosed) -> None:
        error = self._reason = self._reason or self._error_of(event)
        if not self._opened.done():
            without_doubt(error)
            self._opened.set_exception(error)
            self._opened.exception()  # the caller of `open` may have been cancelled
        if not self._closed.done():
            self._closed.set_result(None)
        for answered in self._ending.values():
            if not answered.done():
                answered.set_result(None)
        self._ending.clear()
        for timer in (self._timer, self._probe):
            if timer is not None:
                timer.cancel()
        self._timer = self._probe = None
        self.write()
        if self._stream is not None:
            self._stream.close()

    def _error_of(self, event: ConnectionClosed) -> ServiceBusError:
        error = event.error
        if event.by_peer and error is not None:
            doing = f"the namespace {self._namespace} closed the connection"
            return error_of(doing, error.condition, error.description)
        said = "it was closed" if error is None else plain_text(error.description or error.condition)
        return ServiceBusConnectionError(f"the connection to {self._namespace} failed: {said}")

    # -- time and output -----------------------------------------------------------------------------------------

    def _lose(self, reason: ServiceBusError | None) -> None:
        if self.engine.is_over:
            return
        self._reason = reason
        self.engine.receive_eof(None if reason is None else str(reason))
        self._take_events()

    def write(self) -> None:
        """Send what the engine has written."""
        self._is_writing = False
        if self._stream is None or (self._is_full and not self.engine.is_over):
            return
        try:
            data = self.engine.bytes_to_send(now=clock.monotonic())
            if data:
                self._stream.write(data)
                if self.engine.has_output:  # held back so far, for the sake of other links
                    self._take_events()
                    self.flush()
        except Exception as error:  # a defect: without this, every call would wait for its timeout
            self.on_lost(error)
            raise

    def _arm(self) -> None:
        """Set the timer for the engine. It may fire too early, since every byte from the peer moves the deadline."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        deadline = self.engine.next_deadline()
        if deadline is not None:
            self._timer = clock.call_later(max(0.0, deadline - clock.monotonic()), self._on_time)

    def _on_time(self) -> None:
        self._timer = None
        self.engine.pass_time(now=clock.monotonic())
        self._take_events()
        self.write()
        if not self.is_over:
            self._arm()
