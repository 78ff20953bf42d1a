"""One end of an AMQP connection without I/O: bytes in, events out; calls in, bytes out.

The owner has the socket and the clock, and pulls events one at a time. A frame is read only after the events of the
previous frame were taken. So an owner that answers each event before it takes the next one keeps the order of the wire,
and only the events of one frame are in memory.

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
from sbclient.amqp.limits import Limits, decoded_bytes
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
from sbclient.amqp.transfers import AcceptedRun

_MAX_DESCRIPTION: Final = 120

MIN_IDLE_TIMEOUT_MS: Final = 1_000
"""The shortest idle timeout that a server accepts: for a shorter one it would do little but send heartbeats."""


class _Phase(Enum):
    HANDSHAKE = "handshake"
    FRAMES = "frames"
    CLOSING = "the peer's close"
    OVER = "nothing"


class Connection:
    """One end of a connection.

    Attributes:
        options: the limits and names.
        remote: the peer's open, None before it arrives.
        owner: for any object of the owner; None at first.
        has_output: whether `bytes_to_send` has something to return.
        emit: queues an event for the owner; called by sessions and links.
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
        self.emit: Callable[[Any], None] = self._events.append
        self._output: list[bytes] = []
        self._output_bytes = 0
        self.has_output = False
        self._accepted: AcceptedRun | None = None
        self._max_output_bytes = options.max_output_bytes
        self._holding: dict[Session, None] = {}
        self._has_opened = False
        self._before_open: list[tuple[int, Performative]] = []
        self._sessions: dict[int, Session] = {}
        self._sessions_by_remote: dict[int, Session] = {}
        self._ended_channels: set[int] = set()
        self._limits = options.limits
        self._link_count = 0
        self._retained_bytes = 0
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

    @classmethod
    def server(cls, options: ConnectionOptions, *, now: float) -> Connection:
        """The end that accepted the socket.

        Args:
            options: the limits and names.
            now: seconds of any clock that never goes back; all calls use the same clock.
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
            options: the limits and names; `hostname` is the host to connect to.
            now: as for `server`.
            mechanism: the SASL mechanism, None to begin without SASL.
            credentials: for PLAIN.
        """
        return cls(options, is_server=False, now=now, mechanism=mechanism, credentials=credentials)

    def __repr__(self) -> str:
        side = "server" if self._is_server else "client"
        return f"Connection({side}, waits for {self._phase.value}, sessions={len(self._sessions)})"

    # Called by the owner ------------------------------------------------------------------------------------------

    @property
    def is_over(self) -> bool:
        """Whether nothing more will be read: send `bytes_to_send` and close the socket."""
        return self._phase is _Phase.OVER

    @property
    def limits(self) -> Limits:
        """The limits on what the peer can make this side hold; at first those of the options.

        A server can set lower ones until the peer has authenticated. What is held already stays.
        """
        return self._limits

    @limits.setter
    def limits(self, limits: Limits) -> None:
        self._limits = limits
        self._reader.max_frame_size = limits.max_frame_bytes

    @property
    def mechanism(self) -> str | None:
        """The SASL mechanism, None without SASL."""
        return self._handshake.mechanism

    @property
    def sessions(self) -> list[Session]:
        """The sessions that have a channel, including those that one side has ended."""
        return list(self._sessions.values())

    @property
    def missing_bytes(self) -> int:
        """How many bytes of a frame that has begun have not come; 0 if its size is unknown."""
        return self._reader.missing_bytes

    def receive_bytes(self, chunk: bytes, *, now: float) -> None:
        """Accept bytes from the socket, in chunks of any size. Then take events until there are none."""
        if self._phase is _Phase.OVER or not chunk:
            return
        self._heard_at = now
        self._reader.feed(chunk)
        if self._phase is not _Phase.HANDSHAKE or not self._handshake.is_undecided:
            return
        if self._reader.buffered_bytes > 2 * self.options.max_frame_size:
            self._fail(AmqpError(RESOURCE_LIMIT, "too much was sent before the credentials were checked"))

    def receive_eof(self, reason: str | None = None) -> None:
        """The socket is closed.

        Args:
            reason: the description in the error of `ConnectionClosed`; None: the peer has closed the socket.
        """
        if not self.is_over:
            description = "the peer closed the socket without a close frame" if reason is None else reason
            self._finish(AmqpError(CONNECTION_FORCED, description), by_peer=True)

    def next_event(self) -> Any:
        """The next event (see `amqp.events`), None if more bytes are needed. Never raises."""
        while not self._events:
            try:
                if self._phase is _Phase.HANDSHAKE:
                    if not self._advance_handshake():
                        return None
                elif self._phase is _Phase.OVER or (frame := self._reader.next_frame(TYPE_AMQP)) is None:
                    return None
                else:
                    self._on_frame(frame)
            except WireError as error:
                self._fail(error.error)
            except EncodeError as error:
                self._fail(AmqpError(FRAME_SIZE_TOO_SMALL, str(error)))
        return self._events.popleft()

    @property
    def has_events(self) -> bool:
        """Whether `next_event` has an event at once. Calls of the owner can queue some between two reads."""
        return bool(self._events)

    def bytes_to_send(self, *, now: float) -> bytes:
        """Take the bytes to write to the socket now; may be empty."""
        if not self.has_output:
            return b""
        if self._accepted is not None:
            self._write_accepted_run()
        self.has_output = False
        self._sent_at = now
        output = b"".join(self._output) if len(self._output) > 1 else self._output[0]
        self._output.clear()
        self._output_bytes = 0
        if self._holding:
            self._release_held()
        return output

    def _release_held(self) -> None:
        """Let the sessions write what they hold, a frame each in turn."""
        holding = self._holding
        while holding and self.may_write():
            session = next(iter(holding))
            del holding[session]
            if session.release_frame():
                holding[session] = None

    def next_deadline(self) -> float | None:
        """The time at which to call `pass_time`, None for never."""
        if self.is_over:
            return None
        return min((at for at in (self._answer_due_at, self._silent_at, self._beat_at) if at is not None), default=None)

    def pass_time(self, *, now: float) -> None:
        """Send a heartbeat if one is due, and close the connection if the peer was silent for too long."""
        if self.is_over:
            return
        if self._answer_due_at is not None and now >= self._answer_due_at:
            awaited = str(self._handshake) if self._phase is _Phase.HANDSHAKE else "an open or close"
            self._fail(AmqpError(RESOURCE_LIMIT, f"{awaited} did not arrive in {self.options.handshake_timeout_s} s"))
        elif self._silent_at is not None and now >= self._silent_at:
            timeout_ms = int((self.options.idle_timeout_s or 0.0) * 1000)
            description = (
                f"The connection was inactive for more than the allowed {timeout_ms} milliseconds and is closed by "
                f"container '{self.options.container_id}'."
            )
            self._fail(AmqpError(CONNECTION_FORCED, description))
        elif self._beat_at is not None and now >= self._beat_at:
            if not self.has_output:  # what waits for the socket serves as well
                self.write_bytes(EMPTY_FRAME)
            self._sent_at = now

    def admit(self, *, is_admitted: bool) -> None:
        """Accept or reject the credentials of a `CredentialsOffered`; then take events again."""
        if self._handshake.is_undecided and not self.is_over:
            try:
                self._handshake.judge(is_admitted=is_admitted)
            except WireError as error:
                self._fail(error.error)

    def begin(self, properties: Mapping[str, Any] | None = None) -> Session:
        """Begin a session; `SessionBegun` follows.

        Raises:
            EndpointClosedError: the connection is over, or no channel is free.
        """
        if self._phase in (_Phase.CLOSING, _Phase.OVER):
            raise EndpointClosedError("the connection is closed: open a new one")
        session = Session(self, self._free_channel(None))
        self._sessions[session.channel] = session
        session.begin(properties)
        return session

    def close(self, error: AmqpError | None = None, *, now: float) -> None:
        """Close the connection with its sessions and links; `ConnectionClosed` follows the peer's answer.

        Args:
            error: for the peer; None for a normal close.
            now: the start of the wait for the peer's answer.
        """
        if self._phase in (_Phase.CLOSING, _Phase.OVER):
            return
        if self._phase is not _Phase.FRAMES or self.remote is None:
            self._fail(error)
            return
        for session in self.sessions:
            session.end(error)  # the peer learns of it before the close, and reports what it finds there
        self._write_close(error)
        self._phase = _Phase.CLOSING
        self._answer_due_at = now + self.options.handshake_timeout_s

    # Called by sessions ---------------------------------------------------------------------------------------------

    def write(self, channel: int, performative: Performative) -> None:
        """Send a frame, or keep it until the peer's open states the maximum frame size.

        Raises:
            EncodeError: the performative has no encoding, or needs more than one frame.
        """
        if self.remote is None and not isinstance(performative, Open | Close):
            self._before_open.append((channel, performative))
        else:
            self.write_bytes(encode_frame(channel, performative, self.remote_max_frame_size))

    def write_accepted(self, channel: int, role: bool, delivery_id: int) -> None:
        """Send a disposition that settles a delivery as accepted. Those of consecutive deliveries share a frame."""
        run = self._accepted
        if run is not None and run.is_extended_by(channel, role, delivery_id):
            run.last = delivery_id
            return
        if run is not None:
            self._write_accepted_run()
        self._accepted = AcceptedRun(channel, role, delivery_id)
        self.has_output = True

    def _write_accepted_run(self) -> None:
        run, self._accepted = self._accepted, None
        if run is not None:
            self.write_bytes(run.frame())

    def write_bytes(self, frame: bytes) -> None:
        """Send an encoded frame."""
        if self._accepted is not None:
            self._write_accepted_run()
        if self._phase is not _Phase.OVER:
            self._output.append(frame)
            self._output_bytes += len(frame)
            self.has_output = True

    def hold(self, session: Session) -> None:
        """Note that a session holds transfer frames, which `bytes_to_send` lets it write."""
        if self._max_output_bytes is not None:
            self._holding[session] = None

    def may_write(self) -> bool:
        """Whether a transfer frame may be sent now, or other sessions come first."""
        return self._max_output_bytes is None or self._output_bytes < self._max_output_bytes

    def reserve(self, count: int) -> bool:
        """Reserve bytes for incomplete messages, or return them with a negative count; False if there are too few."""
        if self._partial_bytes + count > self._limits.max_partial_bytes:
            return False
        self._partial_bytes += count
        return True

    def claim_link(self, count: int) -> bool:
        """Add to the number of links; False if there would be too many."""
        if self._link_count + count > self._limits.max_links:
            return False
        self._link_count += count
        return True

    def retain(self, count: int) -> None:
        """Count bytes that were decoded and are kept, or return them with a negative count.

        Raises:
            WireError: there are too many.
        """
        if count > 0 and self._retained_bytes + count > self._limits.max_retained_bytes:
            raise WireError(
                RESOURCE_LIMIT,
                f"the properties of the connection and its links need {self._retained_bytes + count} bytes, "
                f"{self._limits.max_retained_bytes} are allowed",
            )
        self._retained_bytes += count

    def forget_session(self, session: Session) -> None:
        """Free the channels of a session that both sides have ended."""
        self._sessions.pop(session.channel, None)
        if session.remote_channel is not None:
            self._sessions_by_remote.pop(session.remote_channel, None)
            self._ended_channels.add(session.remote_channel)

    # Handshake --------------------------------------------------------------------------------------------------

    def _advance_handshake(self) -> bool:
        """Process the next step; False if more bytes are needed, or the check of the credentials."""
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

    def _on_frame(self, frame: Frame) -> None:
        channel, performative, payload = frame
        session = self._sessions_by_remote.get(channel)
        kind = type(performative)
        if performative is None:
            pass
        elif kind is Close:
            self._on_close(performative)
        elif self._phase is _Phase.CLOSING:
            pass  # the peer sent this before it received our close
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
            raise WireError(NOT_ALLOWED, f"{kind.__name__} on channel {channel}, which has no session")

    def _on_open(self, frame: Frame) -> None:
        peer = frame.performative
        if not isinstance(peer, Open):
            raise WireError(NOT_ALLOWED, f"{type(peer).__name__} before open")
        if self.remote is not None:
            raise WireError(NOT_ALLOWED, "second open")
        if peer.max_frame_size < MIN_MAX_FRAME_SIZE:
            raise WireError(
                INVALID_FIELD, f"max-frame-size is {peer.max_frame_size}, the minimum is {MIN_MAX_FRAME_SIZE}"
            )
        if self._is_server and peer.idle_time_out and peer.idle_time_out < MIN_IDLE_TIMEOUT_MS:
            raise WireError(
                NOT_ALLOWED, f"idle-time-out is {peer.idle_time_out} ms, the minimum is {MIN_IDLE_TIMEOUT_MS} ms"
            )
        self.retain(decoded_bytes(peer))
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
        if begin.remote_channel is None and len(self._sessions) >= self._limits.max_sessions:
            raise WireError(RESOURCE_LIMIT, f"there are {self._limits.max_sessions} sessions, which is the maximum")
        if begin.remote_channel is None:
            session = Session(self, self._free_channel(channel))
            self._sessions[session.channel] = session
            session.on_begin(channel, begin)
            session.begin()
        else:
            asked = self._sessions.get(begin.remote_channel)
            if asked is None or asked.remote_channel is not None:
                raise WireError(NOT_ALLOWED, f"channel {begin.remote_channel} does not wait for a begin")
            session = asked
            session.on_begin(channel, begin)
        self._sessions_by_remote[channel] = session
        if session.is_open:
            self.emit(SessionBegun(session, begin))

    def _on_close(self, close: Close) -> None:
        if self._phase is _Phase.FRAMES:
            self._write_close(None)
        self._finish(close.error, by_peer=self._phase is _Phase.FRAMES)

    def _free_channel(self, wanted: int | None) -> int:
        """Choose a free channel, if possible the one that the peer uses."""
        highest = self.options.channel_max if self.remote is None else self.remote.channel_max
        channel = 0 if wanted is None or wanted in self._sessions or wanted > highest else wanted
        while channel in self._sessions:
            channel += 1
        if channel > highest:
            raise EndpointClosedError(
                f"the connection has {len(self._sessions)} sessions, which is the maximum: end one"
            )
        return channel

    # Open and close ----------------------------------------------------------------------------------------------

    def _write_open(self) -> None:
        options = self.options
        idle_ms = None if options.idle_timeout_s is None else int(options.idle_timeout_s * 1000)
        self._has_opened = True
        frame_size = options.max_frame_size
        if self._is_server and self.remote is not None:  # the service answers with the smaller one
            frame_size = min(frame_size, self.remote.max_frame_size)
        desired = () if self.remote is None else self.remote.desired_capabilities or ()
        performative = Open(
            options.container_id,
            options.hostname,
            frame_size,
            options.channel_max,
            idle_ms,
            offered_capabilities=tuple(each for each in desired if each in options.capabilities) or None,
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
        """Close at once, because the peer broke a rule or the connection is not open yet."""
        if self._phase is _Phase.FRAMES:
            if not self._has_opened:
                self._write_open()
            self._write_close(error)
        self._finish(error, by_peer=False)

    def _finish(self, error: AmqpError | None, *, by_peer: bool) -> None:
        """Stop reading and writing, and emit the events for everything that ends."""
        for session in self.sessions:
            session.abandon(error)
        self._sessions.clear()
        self._sessions_by_remote.clear()
        self._before_open.clear()
        self._holding.clear()
        self._phase = _Phase.OVER
        self._reader = FrameReader(self.options.max_frame_size)
        self.emit(ConnectionClosed(error, by_peer))

    @property
    def _silent_at(self) -> float | None:
        """The time at which the peer was silent for too long: once the idle timeout that was announced to it.

        Source: the service, seen. A client waits for twice that time, because the service's clock may run behind.
        """
        timeout_s = self.options.idle_timeout_s
        if timeout_s is None or self.remote is None:
            return None
        return self._heard_at + (timeout_s if self._is_server else 2 * timeout_s)

    @property
    def _beat_at(self) -> float | None:
        """The time of the next heartbeat: half the peer's idle timeout after the last bytes that were sent."""
        timeout_ms = self.remote.idle_time_out if self.remote is not None else None
        return self._sent_at + timeout_ms / 2000 if timeout_ms else None


class CredentialsOffered(NamedTuple):
    """A client authenticates by PLAIN: answer with `Connection.admit`. No further bytes are read before."""

    credentials: PlainCredentials


class ConnectionOpened(NamedTuple):
    """The peer's open was received; a server has sent its own. To reject the peer, close with an error."""

    open: Open


class ConnectionClosed(NamedTuple):
    """The connection is over: write the remaining bytes and close the socket.

    Attributes:
        error: the reason; None after a normal close.
        by_peer: whether the peer closed the connection or its socket.
    """

    error: AmqpError | None
    by_peer: bool
