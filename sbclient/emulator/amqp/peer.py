"""One client at the broker's door: what all links of its connection share, and how their answers get out.

Laws:

1. Everything that waits runs in a task that the connection owns and ends.
2. What links write in one step of the event loop goes out as one piece; who writes much waits until it has left.
3. A client that makes the broker hold too much is not read from until that has become less.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final, Protocol, TypeVar

from sbclient.amqp import AmqpError, Connection, DispositionReceived, IncomingDelivery, Link, WireError
from sbclient.broker.faults import Call, Operation
from sbclient.broker.session import SessionLock
from sbclient.broker.transactions import Transaction
from sbclient.emulator.amqp.conditions import UnknownTransactionError, amqp_error_of, ends_connection
from sbclient.emulator.amqp.grants import Grants
from sbclient.emulator.context import NamespaceContext
from sbclient.emulator.net.stream import ByteStream
from sbclient.emulator.net.time_slice import Turn
from sbclient.entities import AccessRights
from sbclient.errors import ServiceBusAuthorizationError
from sbclient.rules.entity_path import canonical
from sbclient.tasks import OwnedTasks
from sbclient.telemetry.log import get_logger

log = get_logger(__name__)

T = TypeVar("T")

OPERATION_TIMEOUT_S: Final = 60.0
"""How long the broker tries where the client does not say. Source: the SDK's own default."""

FINISHING_S: Final = 1.0
"""How long what a client asked for last may take when its connection has ended; it is done at once or never."""

MAX_WORK_COUNT: Final = 2_000
MAX_WORK_BYTES: Final = 2**25
MAX_OUTPUT_BYTES: Final = 2**22


class LinkServer(Protocol):
    """The broker's end of one link; the connection tells it what happens there.

    Attributes:
        entity_path: the entity that it serves, None for a node of the connection itself.
    """

    @property
    def entity_path(self) -> str | None:
        """See above."""

    def open(self) -> None:
        """Let the link stand, or refuse it, now or later."""

    def on_delivery(self, delivery: IncomingDelivery) -> None:
        """A message has come."""

    def on_credit(self, *, drain: bool) -> None:
        """The client has told how much it wants; see `link.credit`."""

    def on_disposition(self, event: DispositionReceived) -> None:
        """The client has told what became of a message."""

    def on_tokens_changed(self) -> None:
        """A token has ended: see whether this link may go on."""

    def on_over(self) -> None:
        """The link is over, however it ended."""


class Peer:
    """A connection as its links see it.

    Args:
        stream: carries the bytes.
        context: the namespace that is served.
        engine: the server's end of the connection.

    Attributes:
        grants: what the client's tokens allow.
        sessions: the locks of sessions that this connection holds, by the names of their links.
        transactions: those that were declared and not discharged, by id.
        servers: the broker's ends of all links, by link.
        turn: how much of its bytes is read before it is the others' turn.
    """

    def __init__(self, stream: ByteStream, context: NamespaceContext, engine: Connection) -> None:
        self.context = context
        self.host = context.host
        self.engine = engine
        self.front_end = context.host.connect()
        self.grants = Grants()
        self.sessions: dict[str, tuple[str, SessionLock]] = {}
        self.transactions: dict[bytes, Transaction] = {}
        self.servers: dict[Link, LinkServer] = {}
        self.tasks = OwnedTasks(self.fail)
        self.turn = Turn(context.clock)
        self._stream = stream
        self._is_writing = False
        self._transaction_count = 0
        self._work: set[asyncio.Task[None]] = set()
        self._work_bytes = 0
        self._less_work = asyncio.Event()
        self._handing_out = asyncio.Lock()

    # ------------------------------------------------------------------ output

    def flush(self) -> None:
        """Send what the engine has written, at the end of this step of the event loop."""
        if not self._is_writing:
            self._is_writing = True
            asyncio.get_running_loop().call_soon(self.write_out)

    def write_out(self) -> None:
        """Send it now. Once the engine is over the stream is closed as well, and nobody waits for room any more."""
        self._is_writing = False
        written = self.engine.bytes_to_send(now=self.host.clock.monotonic())
        if written and not self.tasks.is_closed:
            self._stream.write(written)
        if self.engine.is_over:
            self._less_work.set()
        if self.engine.is_over and not self.tasks.is_closed:
            self.tasks.start(self._stream.close(), name="amqp close")

    async def drained(self) -> None:
        """Wait until the client has taken what was sent to it."""
        self.write_out()
        await self._stream.drain()

    async def turn_to_hand_out(self) -> None:
        """Wait until no other link of this client takes messages in this step of the event loop."""
        async with self._handing_out:
            await self.host.clock.sleep(0)

    # ------------------------------------------------------------------ work

    def start_waiting(self, work: Coroutine[Any, Any, None], *, name: str) -> asyncio.Task[None]:
        """Run what may wait as long as its link stands: one for each link, whose number is bounded. Reading on does not
        wait for it, since what ends it may have to be read.
        """
        return self.tasks.start(work, name=name)

    def start(self, work: Coroutine[Any, Any, None], *, name: str, size_bytes: int = 0) -> asyncio.Task[None]:
        """Run something for this client; it holds so many bytes until it is done."""
        task = self.tasks.start(work, name=name)
        self._work.add(task)
        self._work_bytes += size_bytes
        task.add_done_callback(lambda task: self._work_done(task, size_bytes))
        return task

    def _work_done(self, task: asyncio.Task[None], size_bytes: int) -> None:
        self._work.discard(task)
        self._work_bytes -= size_bytes
        if self._has_room:
            self._less_work.set()

    async def finished(self) -> None:
        """Wait until what came before the end of the connection is done; answers that are held up are given up."""
        await self.host.clock.wait(self._work, FINISHING_S)

    @property
    def _has_room(self) -> bool:
        return len(self._work) < MAX_WORK_COUNT and self._work_bytes < MAX_WORK_BYTES

    async def room(self) -> None:
        """Wait until this client may ask for more."""
        while not self._has_room and not self.engine.is_over:
            self._less_work.clear()
            await self._less_work.wait()
        await self.drained()

    async def perform(
        self, operation: Operation, path: str | None, work: Callable[[Call], T], *, timeout_s: float
    ) -> T:
        """As `BrokerHost.perform`, through this connection's front end."""

        def measured(call: Call) -> T:
            began_at = self.host.clock.monotonic()
            try:
                return work(call)
            finally:
                self.turn.has_worked(self.host.clock.monotonic() - began_at)

        return await self.host.perform(operation, path, measured, timeout_s=timeout_s, front_end=self.front_end)

    def at_once(self, operation: Operation, work: Callable[[Call], T]) -> T:
        """What the broker does by itself when a link ends: no fault can stop it."""
        return work(Call(operation, self.host.clock.now(), front_end=self.front_end))

    def now(self) -> float:
        """The broker's wall clock, in seconds."""
        return self.host.clock.now()

    def told(self, error: BaseException) -> AmqpError:
        """What the client is told of an error; if the whole namespace is gone, so is the connection."""
        told = amqp_error_of(error)
        if ends_connection(error):
            self.close(told)
        return told

    def fail(self, error: BaseException) -> None:
        """Something that is done for this client is broken: its connection ends, and no other."""
        log.error(
            "amqp.connection_failed",
            "closed the connection of {client}: unexpected {error}",
            client=self._stream.peer,
            error=error,
            exc_info=error,
        )
        self.close(amqp_error_of(error))
        self.flush()

    def close(self, error: AmqpError) -> None:
        """End the connection, with a condition. Its links are over at once, not when the client answers: what they took
        until then would reach nobody.
        """
        self.engine.close(error, now=self.host.clock.monotonic())
        self.end_links()

    # ------------------------------------------------------------------ links

    def refuse(self, link: Link, error: BaseException) -> None:
        """Turn a link down, with the reason."""
        told = self.told(error)
        if not link.is_over:
            link.refuse(told)
        self._forget(link)

    def detach(self, link: Link, error: BaseException) -> None:
        """End a link that stood, with the reason."""
        self.end(link, self.told(error))

    def end(self, link: Link, error: AmqpError) -> None:
        """End a link in whatever state it is, with a condition."""
        link.detach(error)
        self._forget(link)

    def end_links(self) -> None:
        """Let every link know that it is over."""
        servers = list(self.servers.values())
        self.servers.clear()
        for server in servers:
            server.on_over()

    def _forget(self, link: Link) -> None:
        server = self.servers.pop(link, None)
        if server is not None:
            server.on_over()
        self.flush()

    # ------------------------------------------------------------------ rights, sessions, transactions

    def check_right(self, path: str, right: AccessRights) -> None:
        """
        Raises:
            ServiceBusAuthorizationError: no token of this connection allows that.
        """
        if right not in self.rights(path):
            raise ServiceBusAuthorizationError(
                f"{right} is needed on {path} and no token of this connection grants it: put a token that does"
            )

    def tokens_changed(self) -> None:
        """Let every link see whether it may go on."""
        for server in list(self.servers.values()):
            server.on_tokens_changed()

    def check_struck(self, path: str) -> None:
        """
        Raises:
            WireError: a fault that was asked for ends links to that entity; the condition is the fault's.
        """
        fault = self.context.wire_faults.detaching(path, self.now())
        if fault is not None:
            raise WireError(fault.condition, fault.description)

    def rights(self, path: str) -> frozenset[AccessRights]:
        """What this connection may do with an entity."""
        return self.grants.rights(path, self.now())

    def session_lock(self, path: str, session_id: str, link_name: str | None) -> SessionLock | None:
        """The lock that this connection holds on a session, through one link if that is named."""
        named = self.sessions.get(link_name or "")
        held = [named] if named is not None else list(self.sessions.values())
        key = canonical(path)
        return next((lock for other, lock in held if other == key and lock.session_id == session_id), None)

    def new_transaction_id(self) -> bytes:
        """An id that no other transaction of this connection has."""
        self._transaction_count += 1
        return self._transaction_count.to_bytes(8, "big")

    def transaction(self, transaction_id: bytes) -> Transaction:
        """The transaction that a transfer or an outcome belongs to.

        Raises:
            UnknownTransactionError: it was never declared here, or is over.
        """
        transaction = self.transactions.get(transaction_id)
        if transaction is None:
            raise UnknownTransactionError(
                f"transaction {transaction_id.hex()} is not open on this connection: declare one here first"
            )
        return transaction
