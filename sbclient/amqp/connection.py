"""A connection: bytes in, events out; calls in, bytes out. No socket, no clock: the owner has both.

Events are pulled one at a time, and a frame is not read before its predecessor's events are taken: an owner that
answers each event before it asks for the next keeps the order of the wire, and only one frame's events are in memory.

Tolerated, because the SDK does it: frames on a channel whose session has ended.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, Final, NamedTuple

from sbclient.amqp import sasl
from sbclient.amqp.errors import (
    CONNECTION_FORCED,
    FRAME_SIZE_TOO_SMALL,
    FRAMING_ERROR,
    INVALID_FIELD,
    NOT_ALLOWED,
    RESOURCE_LIMIT,
    AmqpError,
    EncodeError,
    EndpointClosedError,
    FrameTooLargeError,
    WireError,
)
from sbclient.amqp.frames import (
    EMPTY_FRAME,
    MIN_MAX_FRAME_SIZE,
    TYPE_AMQP,
    Frame,
    FrameReader,
    encode_frame,
)
from sbclient.amqp.handshake import Handshake
from sbclient.amqp.options import ConnectionOptions
from sbclient.amqp.performatives import (
    Begin,
    Close,
    End,
    Open,
    Performative,
)
from sbclient.amqp.sasl import PlainCredentials
from sbclient.amqp.session import Session, SessionBegun

_MAX_DESCRIPTION: Final = 120


class _Phase(Enum):
    HANDSHAKE = "handshake"
    FRAMES = "frames"
    CLOSING = "the peer's close"
    OVER = "nothing"


class Connection:
    """One end of a connection.

    Attributes:
        options: the limits and names.
        remote: the peer's open, None before it came.
        owner: whatever the owner wants to find here again.
    """

    def __init__(
        self,
        options: ConnectionOptions,
        *,
        now: float,
        is_server: bool,
        mechanism: str | None = None,
        credentials: PlainCredentials | None = None,
    ) -> None:
        """Use `server` or `client`."""
        self.options = options
        self.remote: Open | None = None
        self.owner: Any = None
        self.remote_max_frame_size = MIN_MAX_FRAME_SIZE
        self._is_server = is_server
        self._phase = _Phase.HANDSHAKE
        self._reader = FrameReader(options.max_frame_size)
        self._events: deque[Any] = deque()
        self._output: list[bytes] = []
        self._output_bytes = 0
        self._has_opened = False
        self._before_open: list[tuple[int, Performative]] = []
        self._sessions: dict[int, Session] = {}
        self._sessions_by_remote: dict[int, Session] = {}
        self._ended_channels: set[int] = set()
        self._link_count = 0
        self._partial_bytes = 0
        self._heard_at = self._sent_at = now
        self._answer_due_at: float | None = now + options.handshake_timeout_s
        self._handshake = Handshake(
            options,
            self._reader,
            self.write_bytes,
            is_server=is_server,
            mechanism=mechanism,
            credentials=credentials,
        )
        self._handlers: dict[_Phase, Callable[[], bool]] = {
            _Phase.HANDSHAKE: self._on_handshake,
            _Phase.FRAMES: self._on_frame,
            _Phase.CLOSING: self._on_frame,
        }

    @classmethod
    def server(cls, options: ConnectionOptions, *, now: float) -> Connection:
        """The end that accepted the socket.

        Args:
            options: the limits and names.
            now: seconds on any clock that does not go back, the same for all calls.
        """
        return cls(options, is_server=True, now=now)

    @classmethod
    def client(
        cls,
        options: ConnectionOptions,
        *,
        now: float,
        mechanism: str | None = sasl.ANONYMOUS,
        credentials: PlainCredentials | None = None,
    ) -> Connection:
        """The end that opened the socket; it has bytes to send at once.

        Args:
            options: the limits and names; `hostname` is the host that is meant.
            now: as for `server`.
            mechanism: the SASL mechanism to insist on, None to begin without SASL.
            credentials: for PLAIN.
        """
        return cls(options, is_server=False, now=now, mechanism=mechanism, credentials=credentials)

    def __repr__(self) -> str:
        side = "server" if self._is_server else "client"
        return f"Connection({side}, waits for {self._phase.value}, sessions={len(self._sessions)})"

    # What the owner does ------------------------------------------------------------------------------------------

    @property
    def is_over(self) -> bool:
        """Whether nothing more will be read: send `bytes_to_send` and close the socket."""
        return self._phase is _Phase.OVER

    @property
    def mechanism(self) -> str | None:
        """The SASL mechanism, None without SASL."""
        return self._handshake.mechanism

    @property
    def sessions(self) -> list[Session]:
        """The sessions that have a channel, half ended ones included."""
        return list(self._sessions.values())

    @property
    def pending_bytes(self) -> int:
        """What waits for `bytes_to_send`, or for the peer's windows. While it is large, stop reading from the peer."""
        return self._output_bytes + sum(session.held_bytes for session in self._sessions.values())

    def receive_bytes(self, chunk: bytes, *, now: float) -> None:
        """Take what came from the socket, in pieces of any size; then take events until there are none."""
        if self.is_over or not chunk:
            return
        self._heard_at = now
        self._reader.feed(chunk)
        if self._handshake.is_undecided and self._reader.buffered_bytes > 2 * self.options.max_frame_size:
            self._fail(AmqpError(RESOURCE_LIMIT, "too much was sent before the credentials were judged"))

    def receive_eof(self, reason: str | None = None) -> None:
        """The socket is closed.

        Args:
            reason: the description of the error that the owner is told; None: the peer has closed the socket.
        """
        if not self.is_over:
            description = "the peer hung up without a close" if reason is None else reason
            self._finish(AmqpError(CONNECTION_FORCED, description), by_peer=True)

    def next_event(self) -> Any:
        """The next event (see `amqp.events`), None if more bytes are needed. Never raises."""
        while not self._events:
            handler = self._handlers.get(self._phase)
            if handler is None:
                return None
            try:
                if not handler():
                    return None
            except WireError as error:
                self._fail(error.error)
            except EncodeError as error:
                self._fail(AmqpError(FRAME_SIZE_TOO_SMALL, str(error)))
        return self._events.popleft()

    def bytes_to_send(self, *, now: float) -> bytes:
        """What has to be written to the socket now; empty if nothing."""
        if not self._output:
            return b""
        self._sent_at = now
        output = b"".join(self._output) if len(self._output) > 1 else self._output[0]
        self._output.clear()
        self._output_bytes = 0
        return output

    def next_deadline(self) -> float | None:
        """When `pass_time` wants to be called, None for never."""
        if self.is_over:
            return None
        return min((at for at in (self._answer_due_at, self._silent_at, self._beat_at) if at is not None), default=None)

    def pass_time(self, *, now: float) -> None:
        """Keep the peer's timer from running out, and drop a peer that has been silent for too long."""
        if self.is_over:
            return
        if self._answer_due_at is not None and now >= self._answer_due_at:
            waited = str(self._handshake) if self._phase is _Phase.HANDSHAKE else "an open or close"
            self._fail(AmqpError(RESOURCE_LIMIT, f"{waited} did not come in {self.options.handshake_timeout_s} s"))
        elif self._silent_at is not None and now >= self._silent_at:
            self._fail(AmqpError(RESOURCE_LIMIT, f"nothing came for {now - self._heard_at:.0f} s"))
        elif self._beat_at is not None and now >= self._beat_at and not self._output:
            self.write_bytes(EMPTY_FRAME)
            self._sent_at = now

    def admit(self, *, is_admitted: bool) -> None:
        """Judge the credentials of a `CredentialsOffered`; then take events again."""
        if self._handshake.is_undecided and not self.is_over:
            try:
                self._handshake.judge(is_admitted=is_admitted)
            except WireError as error:
                self._fail(error.error)

    def begin(self, properties: Mapping[str, Any] | None = None) -> Session:
        """Begin a session; `SessionBegun` follows.

        Raises:
            EndpointClosedError: the connection is over, or has no channel free.
        """
        if self._phase in (_Phase.CLOSING, _Phase.OVER):
            raise EndpointClosedError("the connection is closed: open a new one")
        session = Session(self, self._free_channel(None))
        self._sessions[session.channel] = session
        session.begin(properties)
        return session

    def close(self, error: AmqpError | None = None, *, now: float) -> None:
        """Close the connection with all it holds; `ConnectionClosed` follows with the peer's answer.

        Args:
            error: what the peer is told, None for a proper end.
            now: begins the wait for the peer's answer.
        """
        if self._phase in (_Phase.CLOSING, _Phase.OVER):
            return
        if self._phase is not _Phase.FRAMES or self.remote is None:
            self._fail(error)
            return
        for session in self.sessions:
            session.end()
        self._write_close(error)
        self._phase = _Phase.CLOSING
        self._answer_due_at = now + self.options.handshake_timeout_s

    # What sessions do ---------------------------------------------------------------------------------------------

    def emit(self, event: Any) -> None:
        """Tell the owner."""
        self._events.append(event)

    def write(self, channel: int, performative: Performative) -> None:
        """Send a frame, or keep it until the peer's open has told how large frames may be.

        Raises:
            EncodeError: it cannot be written, or not in one frame.
        """
        if self.remote is None and not isinstance(performative, Open | Close):
            self._before_open.append((channel, performative))
        else:
            self.write_bytes(encode_frame(channel, performative, self.remote_max_frame_size))

    def write_bytes(self, frame: bytes) -> None:
        """Send an encoded frame."""
        if self._phase is not _Phase.OVER:
            self._output.append(frame)
            self._output_bytes += len(frame)

    def reserve(self, count: int) -> bool:
        """Take bytes for incomplete messages, or give them back; False if there are no more."""
        if self._partial_bytes + count > self.options.max_partial_bytes:
            return False
        self._partial_bytes += count
        return True

    def claim_link(self, count: int) -> bool:
        """Count links up or down; False if there are too many."""
        if self._link_count + count > self.options.max_links:
            return False
        self._link_count += count
        return True

    def forget_session(self, session: Session) -> None:
        """Free the channels of a session that both sides have ended."""
        self._sessions.pop(session.channel, None)
        if session.remote_channel is not None:
            self._sessions_by_remote.pop(session.remote_channel, None)
            self._ended_channels.add(session.remote_channel)

    # The opening --------------------------------------------------------------------------------------------------

    def _on_handshake(self) -> bool:
        has_advanced = self._handshake.advance()
        credentials = self._handshake.credentials
        if self._handshake.is_done:
            self._phase = _Phase.FRAMES
            if not self._is_server:
                self._write_open()
        elif has_advanced and self._handshake.is_undecided and credentials is not None:
            self.emit(CredentialsOffered(credentials))
        return has_advanced

    # Frames -------------------------------------------------------------------------------------------------------

    def _on_frame(self) -> bool:
        frame = self._reader.next_frame(TYPE_AMQP)
        if frame is None:
            return False
        channel, performative, payload = frame
        session = self._sessions_by_remote.get(channel)
        kind = type(performative)
        if performative is None:
            pass
        elif kind is Close:
            self._on_close(performative)
        elif self._phase is _Phase.CLOSING:
            pass  # what the peer sent before it knew
        elif kind is Open or self.remote is None:
            self._on_open(frame)
        elif kind is Begin:
            self._on_begin(channel, performative)
        elif session is not None:
            if kind is End:
                session.on_end(performative)
            else:
                session.on_performative(performative, payload)
        elif channel not in self._ended_channels:
            raise WireError(NOT_ALLOWED, f"{kind.__name__} came on channel {channel}, which has no session")
        return True

    def _on_open(self, frame: Frame) -> None:
        peer = frame.performative
        if not isinstance(peer, Open):
            raise WireError(NOT_ALLOWED, f"{type(peer).__name__} came before open")
        if self.remote is not None:
            raise WireError(NOT_ALLOWED, "a second open came")
        if peer.max_frame_size < MIN_MAX_FRAME_SIZE:
            raise WireError(
                INVALID_FIELD, f"max-frame-size is {peer.max_frame_size}, at least {MIN_MAX_FRAME_SIZE} is needed"
            )
        self.remote = peer
        self.remote_max_frame_size = peer.max_frame_size
        self._answer_due_at = None
        if self._is_server:
            self._write_open()
        self.emit(ConnectionOpened(peer))
        waiting, self._before_open = self._before_open, []
        for channel, performative in waiting:
            self.write(channel, performative)

    def _on_begin(self, channel: int, begin: Begin) -> None:
        if channel > self.options.channel_max:
            raise WireError(FRAMING_ERROR, f"channel {channel} is above {self.options.channel_max}")
        if channel in self._sessions_by_remote:
            raise WireError(NOT_ALLOWED, f"channel {channel} has a session already")
        if begin.remote_channel is None:
            session = Session(self, self._free_channel(channel))
            self._sessions[session.channel] = session
            session.on_begin(channel, begin)
            session.begin()
        else:
            asked = self._sessions.get(begin.remote_channel)
            if asked is None or asked.remote_channel is not None:
                raise WireError(NOT_ALLOWED, f"channel {begin.remote_channel} waits for no begin")
            session = asked
            session.on_begin(channel, begin)
        self._sessions_by_remote[channel] = session
        self._ended_channels.discard(channel)
        if session.is_open:
            self.emit(SessionBegun(session, begin))

    def _on_close(self, close: Close) -> None:
        if self._phase is _Phase.FRAMES:
            self._write_close(None)
        self._finish(close.error, by_peer=self._phase is _Phase.FRAMES)

    def _free_channel(self, wanted: int | None) -> int:
        """A free channel, the one that the peer uses where possible."""
        highest = self.options.channel_max if self.remote is None else self.remote.channel_max
        channel = 0 if wanted is None or wanted in self._sessions or wanted > highest else wanted
        while channel in self._sessions:
            channel += 1
        if channel > highest:
            raise EndpointClosedError(f"the connection has {len(self._sessions)} sessions, no more are allowed")
        return channel

    # Ends ---------------------------------------------------------------------------------------------------------

    def _write_open(self) -> None:
        options = self.options
        idle_ms = None if options.idle_timeout_s is None else int(options.idle_timeout_s * 1000)
        self._has_opened = True
        performative = Open(
            options.container_id,
            options.hostname,
            options.max_frame_size,
            options.channel_max,
            idle_ms,
            properties=options.properties,
        )
        room = max(self.remote_max_frame_size, MIN_MAX_FRAME_SIZE)
        self.write_bytes(encode_frame(0, performative, room))

    def _write_close(self, error: AmqpError | None) -> None:
        try:
            self.write(0, Close(error))
        except FrameTooLargeError:
            description = ((error.description if error else None) or "")[:_MAX_DESCRIPTION]
            condition = (error.condition if error else "")[:_MAX_DESCRIPTION]
            self.write(0, Close(AmqpError(condition, description)))

    def _fail(self, error: AmqpError | None) -> None:
        """Close because the peer broke a rule, or because there is nothing yet that could be closed properly."""
        if self._phase is _Phase.FRAMES:
            if not self._has_opened:
                self._write_open()
            self._write_close(error)
        self._finish(error, by_peer=False)

    def _finish(self, error: AmqpError | None, *, by_peer: bool) -> None:
        """Nothing more is read or written; the owner is told of everything that ends with it."""
        for session in self.sessions:
            session.abandon(error)
        self._sessions.clear()
        self._sessions_by_remote.clear()
        self._before_open.clear()
        self._phase = _Phase.OVER
        self._reader = FrameReader(self.options.max_frame_size)
        self.emit(ConnectionClosed(error, by_peer))

    @property
    def _silent_at(self) -> float | None:
        """When the peer has been silent for twice the time that it was told."""
        timeout_s = self.options.idle_timeout_s
        return None if timeout_s is None or self.remote is None else self._heard_at + 2 * timeout_s

    @property
    def _beat_at(self) -> float | None:
        """When half of the peer's own timeout has passed since it last heard of us."""
        timeout_ms = self.remote.idle_time_out if self.remote is not None else None
        return self._sent_at + timeout_ms / 2000 if timeout_ms else None


class CredentialsOffered(NamedTuple):
    """A client wants in by PLAIN: answer with `Connection.admit`. Nothing else of its is read before."""

    credentials: PlainCredentials


class ConnectionOpened(NamedTuple):
    """The peer's open has come, and a server's own has been sent. To turn the peer away, close with an error."""

    open: Open


class ConnectionClosed(NamedTuple):
    """Nothing more will come; send what there is to send and close the socket.

    Attributes:
        error: why; None after a proper close.
        by_peer: whether the peer closed, or vanished.
    """

    error: AmqpError | None
    by_peer: bool
