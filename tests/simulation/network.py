"""A simulated network between the AMQP transport of a client and the AMQP server of the emulator, on virtual time.

A connection is a pair of pipes. A pipe delivers bytes in order, split anywhere, each piece later than it was written.
Faults of the network cut connections in the middle of a frame, hold bytes back in one direction or in both, leave
connections half-open, refuse new ones, and make links slow. Neither side sees a fault other than through its socket.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Final

from sbclient import clock
from sbclient.broker.faults import Call
from sbclient.broker.namespace import Namespace
from sbclient.broker.session import SessionLock
from sbclient.delivery import NEXT_AVAILABLE_SESSION, ServiceBusSessionFilter
from sbclient.emulator.amqp.connection import serve_amqp
from sbclient.emulator.context import NamespaceContext, ServerSettings, entity_rules_of
from sbclient.emulator.faults import WireFaults
from sbclient.emulator.net.stream import READ_BYTES
from sbclient.emulator.sas import Authorizer
from sbclient.errors import ServiceBusConnectionError
from sbclient.hosting.host import BrokerHost
from sbclient.tasks import Move, OwnedTasks
from sbclient.transport.amqp.connection import Sink
from tests.simulation.history import Grant, History

if TYPE_CHECKING:
    from tests.simulation.weather import Incident

UPSTREAM: Final = "upstream"
DOWNSTREAM: Final = "downstream"
SERVER_IDLE_S: Final = 40.0
"""The server drops a client that was silent for twice as long; the service allows more."""

SPLIT_MOST: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """The usual properties of the network in a run.

    Attributes:
        latency_s: the longest time that a piece takes.
        split_share: of the writes that arrive in pieces.
        buffer_bytes: unsent bytes above which a writer is asked to pause.
        token_s: how long the tokens of clients are valid.
        max_frame_bytes: the largest frame that the server takes.
    """

    latency_s: float
    split_share: float
    buffer_bytes: int
    token_s: float
    max_frame_bytes: int


class Network:
    """The network in front of one namespace.

    Args:
        host: the namespace.
        line: its usual properties.
        random: for everything that happens by chance.

    Attributes:
        context: of the emulator's servers.
    """

    def __init__(self, host: BrokerHost, line: Line, random: Random) -> None:
        self.line = line
        self.random = random
        self.context = NamespaceContext(
            host=host,
            authorizer=Authorizer(entity_rules=lambda path: entity_rules_of(host, path)),
            wire_faults=WireFaults(Random(random.getrandbits(64))),
            random=random,
            settings=ServerSettings(max_frame_size_bytes=line.max_frame_bytes, amqp_idle_timeout_s=SERVER_IDLE_S),
        )
        self._incidents: list[Incident] = []
        self._connections: dict[_Connection, None] = {}
        self._waiting: list[asyncio.Future[None]] = []
        self._tasks = OwnedTasks()

    # -- faults --------------------------------------------------------------------------------------------------

    def begin(self, incident: Incident) -> None:
        """Apply a fault; those that happen at once end with that."""
        if incident.what in ("restart", "half_open"):
            for connection in list(self._connections):
                if incident.what == "restart":
                    connection.reset()
                elif self.random.random() < incident.probability:
                    connection.is_dead = True
        if incident.what != "half_open":
            self._incidents.append(incident)

    def end(self, incident: Incident) -> None:
        """End a fault; what was held back arrives."""
        if incident in self._incidents:
            self._incidents.remove(incident)
        for connection in list(self._connections):
            connection.resume()
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            if not one.done():
                one.set_result(None)

    def heal(self) -> None:
        """End every fault."""
        self.context.heal()
        for incident in list(self._incidents):
            self.end(incident)

    def holds(self, direction: str) -> bool:
        """Whether bytes in a direction are held back now."""
        return any(incident.what in ("hole", f"hole_{direction}") for incident in self._incidents)

    def is_struck(self, what: str) -> bool:
        """Whether a fault is active."""
        return any(incident.what == what for incident in self._incidents)

    def cut_at(self, count: int) -> int | None:
        """After how many of some bytes the connection breaks; None if it does not."""
        for incident in self._incidents:
            if incident.what == "cuts" and self.random.random() < incident.probability:
                return self.random.randint(0, count)
        return None

    def delay_s(self) -> float:
        """How long the next piece takes."""
        lag_s = sum(incident.latency_s for incident in self._incidents if incident.what == "lag")
        latest_s = self.line.latency_s + lag_s
        return self.random.random() * latest_s if latest_s else 0.0

    def bytes_per_s(self) -> float:
        """How fast one direction of a connection is."""
        return min((incident.bytes_per_s for incident in self._incidents if incident.what == "slow"), default=math.inf)

    def pieces(self, data: bytes) -> Sequence[bytes]:
        """The data, perhaps in pieces."""
        if len(data) < 2 or self.random.random() >= self.line.split_share:
            return (data,)
        places = sorted({self.random.randrange(1, len(data)) for _ in range(self.random.randint(1, SPLIT_MOST))})
        return [data[begin:end] for begin, end in zip([0, *places], [*places, len(data)], strict=True)]

    # -- connections ---------------------------------------------------------------------------------------------

    async def connect(self, sink: Sink, is_alive: Callable[[], bool]) -> _Connection:
        """Connect a client; waits while the network is silent.

        Args:
            is_alive: whether the program of the client runs; a dead one hears nothing.

        Raises:
            ServiceBusConnectionError: the server refuses the connection.
        """
        await clock.sleep(2 * self.delay_s())
        while self.holds(UPSTREAM) or self.holds(DOWNSTREAM):
            waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(waiting)
            await waiting
        if self.is_struck("refuse") or self.is_struck("restart"):
            refused = ServiceBusConnectionError(f"{self.context.name} cannot be reached: connection refused")
            refused.is_in_doubt = False
            raise refused
        connection = _Connection(self, sink, is_alive)
        self._connections[connection] = None
        skew = clock.SKEW_S.set(0.0)  # the server is another machine than the client
        self._tasks.start(self._serve(connection), name=f"serve {self.context.name}")
        clock.SKEW_S.reset(skew)
        return connection

    async def _serve(self, connection: _Connection) -> None:
        server = connection.server
        first = await server.read()
        if first:
            await serve_amqp(server, self.context, first)
        else:
            await server.close()

    def forget(self, connection: _Connection) -> None:
        """Both sides of a connection are over."""
        self._connections.pop(connection, None)

    def bury(self) -> None:
        """Close the connections of dead clients, as an operating system does."""
        for connection in [one for one in self._connections if not one.is_alive()]:
            connection.abort()
            connection.lose()

    async def close(self) -> None:
        """End every connection."""
        for connection in list(self._connections):
            connection.reset()
        await self._tasks.close()


def watch_sessions(namespace: Namespace, side: str, history: History) -> None:
    """Note when a broker grants and releases sessions: a client whose connection is lost may not know."""
    accept, release = namespace.accept_session, namespace.release_session
    grants: dict[SessionLock, Grant] = {}

    def accepted(
        call: Call, path: str, session: str | ServiceBusSessionFilter = NEXT_AVAILABLE_SESSION
    ) -> SessionLock | None:
        lock = accept(call, path, session)
        if lock is not None:
            grants[lock] = history.granted(side, path, lock.session_id, lock.locked_until)
        return lock

    def released(call: Call, path: str, lock: SessionLock) -> None:
        grant = grants.pop(lock, None)
        if grant is not None:
            grant.end(history.now())
        release(call, path, lock)

    namespace.accept_session = accepted  # type: ignore[method-assign]  # a simulation may watch
    namespace.release_session = released  # type: ignore[method-assign]


class _Pipe:
    """One direction of a connection.

    Args:
        deliver: takes a piece; None for the end.
        on_room: called when the writer may go on after a pause.
    """

    def __init__(
        self,
        connection: _Connection,
        direction: str,
        deliver: Callable[[bytes | None], None],
        on_room: Callable[[], None],
    ) -> None:
        self._connection = connection
        self._network = connection.network
        self._direction = direction
        self._deliver = deliver
        self._on_room = on_room
        self._is_full = False
        self._pieces: deque[tuple[float, bytes | None]] = deque()
        self._held_bytes = 0
        self._last_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self.is_shut = False

    @property
    def is_full(self) -> bool:
        """Whether the writer should pause."""
        self._is_full = self._is_full or self._held_bytes > self._network.line.buffer_bytes
        return self._is_full

    def write(self, data: bytes) -> None:
        network = self._network
        if self.is_shut or self._connection.is_dead:
            return
        cut_at = network.cut_at(len(data))
        if cut_at is not None:
            data = data[:cut_at]
        rate = network.bytes_per_s()
        for piece in network.pieces(data) if data else ():
            self._put(piece, len(piece) / rate)
        if cut_at is not None:
            self._put(None, 0.0, is_reset=True)
        self.pump()

    def shut(self) -> None:
        """Write the end."""
        if not self.is_shut and not self._connection.is_dead:
            self._put(None, 0.0)
            self.pump()
        self.is_shut = True

    def _put(self, piece: bytes | None, needs_s: float, *, is_reset: bool = False) -> None:
        now = clock.monotonic()
        self._last_at = max(self._last_at, now + self._network.delay_s()) + needs_s
        self._pieces.append((self._last_at, piece))
        self._held_bytes += len(piece or b"")
        if is_reset:
            self.is_shut = True
            self._connection.is_cut = True

    def pump(self) -> None:
        """Deliver what is due, and set a timer for the next piece."""
        if self._timer is None and self._pieces and not self._network.holds(self._direction):
            delay_s = max(0.0, self._pieces[0][0] - clock.monotonic())
            self._timer = clock.call_later(delay_s, self._on_time)

    def _on_time(self) -> None:
        self._timer = None
        now = clock.monotonic()
        while self._pieces and self._pieces[0][0] <= now and not self._network.holds(self._direction):
            _, piece = self._pieces.popleft()
            self._held_bytes -= len(piece or b"")
            if not self._connection.is_dead:
                self._deliver(piece)
        if self._is_full and self._held_bytes <= self._network.line.buffer_bytes // 2:
            self._is_full = False
            self._on_room()
        self.pump()

    def stop(self) -> None:
        """Drop everything."""
        self.is_shut = True
        self._pieces.clear()
        self._held_bytes = 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class _Connection:
    """A connection; itself the stream of the client.

    Attributes:
        is_dead: whether it is half-open: no byte gets through any more, and no side is notified.
        is_cut: whether its end is a reset.
        server: the stream of the server.
    """

    def __init__(self, network: Network, sink: Sink, is_alive: Callable[[], bool]) -> None:
        self.network = network
        self.is_alive = is_alive
        self.is_dead = False
        self.is_cut = False
        self._sink = sink
        self._is_closed = False
        self._is_paused = False
        self.server = _ServerStream(self)
        self.up = _Pipe(self, UPSTREAM, self.server.receive, self._go_on)
        self.down = _Pipe(self, DOWNSTREAM, self._receive, self.server.go_on)

    # -- the stream of the client --------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        if self._is_closed or not self.is_alive():
            return
        self.up.write(data)
        if self.up.is_full and not self._is_paused:
            self._is_paused = True
            self._sink.on_full(is_full=True)

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self.up.shut()
            self.down.stop()
            self.end()

    def abandon(self, move: Move) -> None:
        self.abort()

    def abort(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            if self.network.random.random() < 0.5 and not self.is_dead:
                self.up.stop()
                self.up.is_shut = False
            self.up.shut()
            self.down.stop()
            self.end()

    # -- the network ---------------------------------------------------------------------------------------------

    def _receive(self, piece: bytes | None) -> None:
        if self._is_closed:
            return
        if piece is not None:
            if self.is_alive():
                self._sink.on_bytes(piece)
        else:
            self._is_closed = True
            if self.is_cut:
                self.up.stop()
                self.server.lose()
            else:
                self.up.shut()
            self._sink.on_lost(ConnectionResetError("reset by peer") if self.is_cut else None)
            self.end()

    def _go_on(self) -> None:
        if self._is_paused and not self._is_closed and self.is_alive():
            self._is_paused = False
            self._sink.on_full(is_full=False)

    def resume(self) -> None:
        """A fault has ended."""
        self.up.pump()
        self.down.pump()

    def lose(self) -> None:
        """The program of the client has died."""
        self._sink.on_lost(ConnectionAbortedError("the program has died"))

    def reset(self) -> None:
        """Break at once, on both sides."""
        self.up.stop()
        self.down.stop()
        if not self.is_dead:
            self.is_cut = True
            self._receive(None)
        self.server.lose()

    def end(self) -> None:
        if self._is_closed and self.server.is_closed:
            self.network.forget(self)


class _ServerStream:
    """The stream of the server."""

    peer = "client"

    def __init__(self, connection: _Connection) -> None:
        self._connection = connection
        self._received = bytearray()
        self._is_at_end = False
        self._reader: asyncio.Future[None] | None = None
        self._can_write = asyncio.Event()
        self.is_closed = False

    async def read(self) -> bytes:
        while not self._received and not self._is_at_end:
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader
        data = bytes(self._received[:READ_BYTES])
        del self._received[:READ_BYTES]
        return data

    def write(self, data: bytes) -> None:
        if not self.is_closed and not self._is_at_end:
            self._connection.down.write(data)

    def trust(self) -> None:
        pass

    async def drain(self) -> None:
        while self._connection.down.is_full and not self._is_at_end:
            self._can_write.clear()
            await self._can_write.wait()

    async def close(self) -> None:
        if not self.is_closed:
            self.is_closed = self._is_at_end = True
            self._connection.down.shut()
            self._connection.end()
            self._wake()

    # -- the network ---------------------------------------------------------------------------------------------

    def receive(self, piece: bytes | None) -> None:
        if piece is None:
            if self._connection.is_cut:
                self._connection.reset()
            self._is_at_end = True
        elif not self._is_at_end:
            self._received += piece
        self._wake()

    def lose(self) -> None:
        """The connection is reset: what was received and not read is dropped."""
        self._is_at_end = True
        self._received.clear()
        self._wake()

    def go_on(self) -> None:
        """There is room for further writes."""
        self._can_write.set()

    def _wake(self) -> None:
        self._can_write.set()
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)
