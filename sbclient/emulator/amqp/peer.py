"""The state of one client that all links of its connection share, and the output of the connection.

Laws:

1. Everything that waits runs in a task that the connection owns and ends.
2. The output of one step of the event loop is written at once. A link that writes much waits until it has been sent.
3. The connection does not read from a client that makes the broker hold too much, until it holds less.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from datetime import datetime
from typing import Any, Final, NamedTuple, TypeVar

from sbclient import clock
from sbclient.amqp import (
    AmqpError,
    Connection,
    DispositionReceived,
    DispositionsReceived,
    IncomingDelivery,
    Link,
    OutgoingDelivery,
    WireError,
)
from sbclient.amqp.states import DeliveryState
from sbclient.broker.directory import NAMED_ENTITY
from sbclient.broker.faults import Call, Operation
from sbclient.broker.session import SessionLock
from sbclient.broker.transactions import Transaction, Via
from sbclient.emulator.amqp.conditions import UnknownTransactionError, amqp_error_of, ends_connection
from sbclient.emulator.context import NamespaceContext
from sbclient.emulator.net.stream import ByteStream
from sbclient.emulator.net.time_slice import TimeSlice
from sbclient.emulator.sas import Grant, Grants
from sbclient.entities import AccessRights, MessagingSku
from sbclient.errors import ServiceBusAuthorizationError, ServiceBusError
from sbclient.hosting.host import Performed
from sbclient.rules.entity_path import canonical
from sbclient.tasks import OwnedTasks
from sbclient.telemetry.log import get_logger

log = get_logger(__name__)

DETACH_FORCED: Final = "amqp:link:detach-forced"

_MAX_HOST_LENGTH: Final = 255

T = TypeVar("T")

OPERATION_TIMEOUT_S: Final = 60.0
"""The timeout of an operation for which the client names none. Source: the default of the SDK."""

FINISHING_S: Final = 1.0
"""The time for the last requests of a client whose connection has ended; they are done at once or never."""

MAX_WORK_COUNT: Final = 2_000
MAX_WORK_BYTES: Final = 2**25


class DeclaredTransaction:
    """A transaction that a client has declared and not discharged.

    Attributes:
        transaction: of the broker.
        on_rollback: called after a rollback.
    """

    def __init__(self, transaction: Transaction) -> None:
        self.transaction = transaction
        self.on_rollback: list[Callable[[], None]] = []
        self._states: dict[OutgoingDelivery, DeliveryState | None] = {}

    def add(self, delivery: OutgoingDelivery, state: DeliveryState | None) -> None:
        """Note a delivery and the state that the commit settles it with."""
        self._states[delivery] = state

    def rolled_back(self) -> None:
        """Make the messages available that the client cannot settle again, after the rollback."""
        for call in self.on_rollback:
            call()

    def settle(self) -> None:
        """Settle the deliveries, after the commit."""
        for delivery, state in self._states.items():
            delivery.settle(state)


class ListedSessions(NamedTuple):
    """The session ids of a list that a client reads page by page.

    Attributes:
        listing: the path of the entity, and the time after which the state was set.
        until: when the list ends.
    """

    listing: tuple[str, datetime | None]
    ids: list[str]
    until: float


class LinkHandler:
    """The broker's end of one link. The connection calls its methods; one that a kind of link lacks does nothing.

    Attributes:
        entity_path: the entity that the link serves; None for a node of the connection itself.
    """

    entity_path: str | None = None

    def open(self) -> None:
        """Accept or refuse the link, now or later."""
        raise NotImplementedError

    def check_rights(self) -> None:
        """Check that the tokens of the connection still allow the link. Called whenever one of them has ended.

        Raises:
            ServiceBusError: they do not; the link is detached with it.
        """

    def on_delivery(self, delivery: IncomingDelivery) -> None:
        """A message has arrived."""

    def on_credit(self, *, drain: bool) -> None:
        """The client has changed the credit; see `link.credit`."""

    def on_disposition(self, event: DispositionReceived) -> None:
        """The client has sent the state of a message."""

    def on_dispositions(self, event: DispositionsReceived) -> None:
        """The client has sent the same state of several messages."""
        for each in event.each():
            self.on_disposition(each)

    def on_closed(self) -> None:
        """The client has closed the link, and not only detached it; `on_over` follows."""

    def on_over(self) -> None:
        """The link has ended."""


class Peer:
    """The client of one connection, as its links see it.

    Args:
        stream: carries the bytes.
        context: the namespace.
        engine: the server's end of the connection.
        take_queued: handles the events that calls of the engine have queued between two reads.

    Attributes:
        grants: what the tokens of the client allow.
        sessions: the session locks that this connection holds, by the names of their links.
        transactions: those that were declared and not discharged, by id.
        handlers: the broker's ends of all links, by link.
        tasks: run what may wait as long as its link is open, at most one for each link. It does not count as work,
            because the connection may have to read what ends it.
        time_slice: limits how much is read before other connections run.
        is_handling: whether the connection handles events, and writes the output itself afterwards.
        waiting_count: how many links wait for messages.
        listed_sessions: of the list of sessions that the client reads; None = there is none.
        has_new_deadline: set when a token expires, or a heartbeat is due, earlier than before.
    """

    def __init__(
        self, stream: ByteStream, context: NamespaceContext, engine: Connection, take_queued: Callable[[], None]
    ) -> None:
        self.context = context
        self.host = context.host
        self.engine = engine
        self.front_end = context.host.connect()
        self.grants = Grants()
        self.sessions: dict[str, tuple[str, SessionLock]] = {}
        self.transactions: dict[bytes, DeclaredTransaction] = {}
        self.handlers: dict[Link, LinkHandler] = {}
        self.tasks = OwnedTasks(self.fail)
        self.time_slice = TimeSlice()
        self.is_handling = False
        self.waiting_count = 0
        self.listed_sessions: ListedSessions | None = None
        self.has_new_deadline = asyncio.Event()
        self._stream = stream
        self._take_queued = take_queued
        self._is_writing = False
        self._transaction_count = 0
        self._work: set[asyncio.Task[None]] = set()
        self._work_bytes = 0
        self._less_work = asyncio.Event()
        self._handing_out = asyncio.Lock()

    # ------------------------------------------------------------------ output

    def flush(self) -> None:
        """Write the output of the engine at the end of this step of the event loop."""
        if not self._is_writing and not self.is_handling:
            self._is_writing = True
            asyncio.get_running_loop().call_soon(self.write_out)

    def write_out(self) -> None:
        """Handle the queued events, and write the output of the engine. Close the stream once the engine is over."""
        self._is_writing = False
        self._take_queued()
        written = self.engine.bytes_to_send(now=clock.monotonic())
        if written and not self.tasks.is_closed:
            self._stream.write(written)
        if self.engine.is_over:
            self._less_work.set()
        if self.engine.is_over and not self.tasks.is_closed:
            self.tasks.start(self._stream.close(), name="amqp close")

    async def drained(self) -> None:
        """Write the output and wait until the client has read most of it."""
        self.write_out()
        await self._stream.drain()

    async def delivery_slot(self) -> None:
        """Wait until no other link of this client takes messages in this step of the event loop."""
        async with self._handing_out:
            await clock.step()

    # ------------------------------------------------------------------ work

    def start(self, work: Coroutine[Any, Any, None], *, name: str, size_bytes: int = 0) -> asyncio.Task[None]:
        """Run a task that holds `size_bytes` of this client until it is done."""
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
        """Wait until the work from before the end of the connection is done, for at most `FINISHING_S`."""
        await clock.wait(self._work, FINISHING_S)

    @property
    def _has_room(self) -> bool:
        return len(self._work) < MAX_WORK_COUNT and self._work_bytes < MAX_WORK_BYTES

    async def room(self) -> None:
        """Write the output. Wait until the work of this client is below the limits, and its output is read.

        If links wait for messages, they run before, so that what they send is written with the answers.
        """
        if self.waiting_count:
            await clock.step()
        self.write_out()
        while not self._has_room and not self.engine.is_over:
            self._less_work.clear()
            await self._less_work.wait()
            self.write_out()
        await self._stream.drain()

    async def perform(
        self, operation: Operation, path: str | None, work: Callable[[Call], T], *, timeout_s: float
    ) -> T:
        """As `BrokerHost.perform`, through the front end of this connection."""

        def measured(call: Call) -> T:
            began_at = clock.monotonic()
            try:
                return work(call)
            finally:
                self.time_slice.add_work(clock.monotonic() - began_at)

        return await self.host.perform(operation, path, measured, timeout_s=timeout_s, front_end=self.front_end)

    def perform_now(self, operation: Operation, path: str | None, work: Callable[[Call], T]) -> Performed[T]:
        """As `BrokerHost.perform_now`, through the front end of this connection."""
        return self.host.perform_now(operation, path, work, self.front_end)

    def at_once(self, operation: Operation, work: Callable[[Call], T]) -> T:
        """Do what the broker does by itself when a link ends. Faults do not affect it."""
        return work(Call(operation, clock.now(), self.front_end))

    @property
    def is_premium(self) -> bool:
        """Whether the namespace is of the Premium tier."""
        return self.host.namespace.profile.sku is MessagingSku.PREMIUM

    def report(self, error: BaseException) -> AmqpError:
        """Return the AMQP form of an error. End the connection if the error means that the namespace is unreachable."""
        reported = amqp_error_of(error)
        reported = reported._replace(description=self._addressed(reported.description))
        if ends_connection(error):
            self.close(reported)
        return reported

    def _addressed(self, text: str | None) -> str | None:
        """Return the text of an error with the name of a missing entity as the service writes it, as an address.

        Source: clients search for "The messaging entity 'sb://host/path' could not be found".
        """
        if text is None or not text.startswith(NAMED_ENTITY):
            return text
        host = (self.engine.remote and self.engine.remote.hostname) or self.host.namespace.name
        return f"{NAMED_ENTITY}sb://{host[:_MAX_HOST_LENGTH]}/{text.removeprefix(NAMED_ENTITY)}"

    def fail(self, error: BaseException) -> None:
        """End this connection, and no other, because of an unexpected error in work for this client."""
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
        """End the connection with a condition. Its links end at once, not when the client answers, because messages
        that they take in between would be lost.
        """
        self.engine.close(error, now=clock.monotonic())
        self.end_links()

    # ------------------------------------------------------------------ links

    def refuse(self, link: Link, error: BaseException) -> None:
        """Refuse a link with an error."""
        reported = self.report(error)
        if not link.is_over:
            link.refuse(reported)
        self._forget(link)

    def detach(self, link: Link, error: BaseException) -> None:
        """End an open link with an error."""
        self.end(link, self.report(error))

    def end(self, link: Link, error: AmqpError) -> None:
        """End a link in any state, with a condition."""
        link.detach(error)
        self._forget(link)

    def end_links(self) -> None:
        """Call `on_over` of every link."""
        handlers = list(self.handlers.values())
        self.handlers.clear()
        for handler in handlers:
            handler.on_over()

    def _forget(self, link: Link) -> None:
        handler = self.handlers.pop(link, None)
        if handler is not None:
            handler.on_over()
        self.flush()

    # ------------------------------------------------------------------ rights, sessions, transactions

    def check_right(self, path: str, right: AccessRights) -> None:
        """
        Raises:
            ServiceBusAuthorizationError: no token of this connection allows that.
        """
        if right not in self.rights(path):
            raise ServiceBusAuthorizationError(
                f"Unauthorized access. '{right}' claim(s) are required to perform this operation. No token of this "
                f"connection has them for {path}: put a token that does"
            )

    def admit(self, path: str, grant: Grant) -> None:
        """Store what a token grants for a path, and lift the limits that hold before the first token.

        Raises:
            ServiceBusQuotaExceededError: there are too many tokens, or the namespace has too many connections. The
                connection must be open to check the latter, because the client could not receive the error before.
        """
        is_first = not self.grants.has_begun
        if is_first and self.engine.remote is not None:
            self.context.check_connections(1)
        is_narrower = self.grants.add(path, grant)
        self.engine.limits = self.engine.options.limits
        self._stream.trust()
        self.has_new_deadline.set()
        self.context.amqp_connection_count += is_first
        if is_narrower:
            self.tokens_changed()

    def leave(self) -> None:
        """Return the quota of a connection that has ended."""
        if self.grants.has_begun:
            self.context.amqp_connection_count -= 1

    def tokens_changed(self) -> None:
        """Detach the links that the tokens of this connection no longer allow. Clients attach again, as seen with the
        service, and meet a missing right then.
        """
        for link, handler in list(self.handlers.items()):
            try:
                handler.check_rights()
            except ServiceBusError as error:
                self.expire(link, error)

    def expire(self, link: Link, error: ServiceBusError) -> None:
        """Detach a link because the tokens of this connection no longer allow it."""
        text = f"The link '{link.name}' is force detached. Code: RenewToken. Details: {error.message}"
        self.end(link, AmqpError(DETACH_FORCED, text))

    def check_detach_fault(self, path: str) -> None:
        """
        Raises:
            WireError: an injected fault detaches the links to that entity; the condition is that of the fault.
        """
        fault = self.context.wire_faults.detaching(path, clock.now())
        if fault is not None:
            raise WireError(fault.condition, fault.description)

    def rights(self, path: str) -> frozenset[AccessRights]:
        """What this connection may do with an entity."""
        return self.grants.rights(path, clock.now())

    def session_lock(self, path: str, session_id: str, link_name: str | None) -> SessionLock | None:
        """The lock that this connection holds on a session; only that of one link if its name is given."""
        named = self.sessions.get(link_name or "")
        held = [named] if named is not None else list(self.sessions.values())[::-1]
        key = canonical(path)
        return next((lock for other, lock in held if other == key and lock.session_id == session_id), None)

    def new_transaction_id(self) -> bytes:
        """An id that is unique on this connection."""
        self._transaction_count += 1
        return self._transaction_count.to_bytes(8, "big")

    def via_of_coordinator(self, link: Link) -> Via | None:
        """The entity by which the transactions of a coordinator span others; None if it is not the first link of its
        AMQP session.
        """
        session = link.session
        if session.owner is None:
            session.owner = Via()
        return session.owner if isinstance(session.owner, Via) else None

    def check_via(self, link: Link, path: str, *, receives: bool) -> None:
        """Note a link of an entity on its AMQP session.

        Raises:
            InvalidOperationError: it receives from another entity than the session's transactions begin with.
        """
        session = link.session
        if session.owner is None:
            session.owner = _WITHOUT_VIA
        elif isinstance(session.owner, Via):
            self.host.namespace.check_via(session.owner, path, receives=receives)

    def transaction(self, transaction_id: bytes) -> Transaction:
        """The transaction of the broker with an id; see `declared`."""
        return self.declared(transaction_id).transaction

    def declared(self, transaction_id: bytes) -> DeclaredTransaction:
        """The transaction with an id.

        Raises:
            UnknownTransactionError: it was never declared on this connection, or has ended.
        """
        declared = self.transactions.get(transaction_id)
        if declared is None:
            raise UnknownTransactionError(
                "Transaction hasn't been declared yet, or has already been discharged: declare one on this connection, "
                f"where {transaction_id.hex()} is not open"
            )
        return declared


_WITHOUT_VIA: Final = object()
"""The owner of an AMQP session whose first link is not a coordinator."""
