"""Receives from one entity, sub-queue or session over AMQP: the link, and requests to the management node.

Laws:
1. Credit is what a call asks for, or the prefetch count. A call that ends with fewer messages takes its credit back by
   a drain, and waits at most 200 ms for the answer.
2. A message that arrives between two calls goes to the next one. It is released when the link is closed, or when less
   than half of its lock is left; never otherwise. A cancelled call discards nothing.
3. A link that is lost is attached anew by the next call, and at once by a call that waits. A session is accepted once:
   when its link is lost, so is its lock.
4. A message is settled on the link that brought it. Without that link, and without a session, the management node
   settles it by its lock token; deferred messages always.
5. Lock renewals of one step of the event loop share a request for each link that brought the messages, and for each
   partition, because the service refuses the locks of several. The request names the link, so that the service does not
   detach it for idleness. A lock whose link is gone is renewed without. So do equal settlements by lock tokens outside
   transactions, for each partition.
6. A request of a session goes over the connection that holds the session.

Source: Service Bus protocol guide; request-response operations, documented.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from sbclient import clock
from sbclient.amqp import Attach, IncomingDelivery, Source, TransactionalState, servicebus
from sbclient.amqp.performatives import SETTLE_FIRST, SETTLE_SECOND, SETTLE_SETTLED, SETTLE_UNSETTLED
from sbclient.amqp.types import Int, Long, UInt, longs, uuids
from sbclient.delivery import ServiceBusReceiveMode, SessionChoice, Settlement, SettleMode
from sbclient.errors import (
    MessageNotFoundError,
    OperationTimeoutError,
    ServiceBusCommunicationError,
    ServiceBusConnectionError,
    ServiceBusError,
    SessionLockLostError,
    keep_doubt,
)
from sbclient.message import ServiceBusReceivedMessage
from sbclient.rules.sequence_number import partition_of
from sbclient.tasks import Move
from sbclient.transport.amqp.connection import AmqpConnection
from sbclient.transport.amqp.inbox import Inbox, IncomingEnd
from sbclient.transport.amqp.received import AmqpReceivedMessage, read_delivery
from sbclient.transport.amqp.requests import Reply, items_of
from sbclient.transport.amqp.settlements import LostSettlement, outcome_of
from sbclient.transport.amqp.single_flight import SingleFlight
from sbclient.transport.amqp.token_requests import TokenRequests
from sbclient.transport.amqp.transactions import transaction_of
from sbclient.transport.base import ReceiverLink, TransactionLink, link_closed, not_locked, without_session

if TYPE_CHECKING:
    from sbclient.transport.amqp.transport import AmqpTransport

MAX_MESSAGE_BYTES: Final = 2**27
ACCEPT_GRACE_S: Final = 2.0
"""The service ends the wait for a session by itself; only if it does not, the client does."""
LEAST_ATTACH_S: Final = 15.0
"""The least time for attaching in a receive call: its wait begins when the link is attached."""

CLOSE_S: Final = 2.0
"""How long the service may take to let go of a link that is closed."""


class AmqpReceiver(ReceiverLink):
    """Receives from one entity, sub-queue or session.

    Attributes:
        path: of the entity or sub-queue.
    """

    def __init__(
        self,
        owner: AmqpTransport,
        path: str,
        session: SessionChoice,
        mode: ServiceBusReceiveMode,
        prefetch_count: int,
    ) -> None:
        self._owner = owner
        self.path = path
        self._session = session
        self._is_locking = mode is ServiceBusReceiveMode.PEEK_LOCK
        self._session_id: str | None = None
        self._session_locked_until: datetime | None = None
        self._doing = {mode: f"{mode} a message of {path!r}" for mode in SettleMode}
        self._prefetch_count = prefetch_count
        self._session_wait_s = 60.0
        self._has_attached = False
        self._was_accepted = False
        self._is_closed = False
        self._begin()

    def _begin(self) -> None:
        """Make what belongs to one event loop."""
        owner = self._owner
        self._connecting = SingleFlight(self._connect, tasks=owner.tasks, name=f"attach to {self.path!r}")
        self._attaching: IncomingEnd | None = None
        self._caller_count = 0
        self._receiving = asyncio.Lock()
        self._inbox = Inbox(
            is_locking=self._is_locking,
            has_session=self._session is not None,
            prefetch_count=self._prefetch_count,
            deadlines=owner.deadlines,
        )
        self._renewals = TokenRequests(self._renew_tokens, f"renew locks of {self.path!r}", tasks=owner.tasks)
        self._settling = TokenRequests(self._settle_tokens, f"settle messages of {self.path!r}", tasks=owner.tasks)

    def leave_loop(self, move: Move) -> None:
        """Make anew what belonged to an event loop that has ended. The lock of a session is lost with its link.

        Messages that the service has deleted on receipt are returned by the next calls, in a forked process by those of
        its parent.
        """
        earlier = self._inbox
        self._begin()
        if not self._is_locking and move is not Move.FORKED:
            self._inbox.take_over(earlier)

    def __repr__(self) -> str:
        return f"AmqpReceiver({self.path!r}, is_open={self._inbox.end is not None})"

    @property
    def session_id(self) -> str | None:
        return self._session_id

    @property
    def session_locked_until_utc(self) -> datetime | None:
        return self._session_locked_until

    # -- opening -------------------------------------------------------------------------------------------------

    @property
    def can_reattach(self) -> bool:
        """Whether the link was attached before, and is attached anew after a loss."""
        return self._has_attached and self._session is None and not self._is_closed

    async def open(self, *, timeout_s: float) -> None:
        await self._opened(timeout_s)

    async def _opened(self, timeout_s: float) -> IncomingEnd:
        """The attached link.

        Raises:
            ServiceBusError: it cannot be attached; nothing is in doubt.
        """
        self._check_open()
        end = self._inbox.end
        if end is not None:
            return end
        if self._was_accepted:
            raise self._session_lost()
        grace_s = 0.0
        if self._session is not None:
            self._session_wait_s = timeout_s
            grace_s = ACCEPT_GRACE_S
        try:
            async with clock.timeout(timeout_s + grace_s):
                end = await self._attached()
        except TimeoutError:
            raise OperationTimeoutError(
                f"attach to {self.path!r}: the service did not answer within {timeout_s:g} s", is_in_doubt=False
            ) from None
        self._check_open()
        return end

    def _session_lost(self) -> SessionLockLostError:
        return SessionLockLostError(
            f"the link that held session {self._session_id!r} of {self.path!r} is lost, and the lock with it: accept "
            "the session again"
        )

    async def _attached(self) -> IncomingEnd:
        """The link, attached for all callers that wait for it. It is given up when the last of them has gone."""
        connecting = self._connecting
        self._caller_count += 1
        try:
            end = self._attaching
            if end is None or end.is_released:
                connection = self._owner.ready_connection(self.path)
                end = await connecting.get() if connection is None else self._attach(connection)
            await end.answered()
            return end
        finally:
            if connecting is self._connecting:  # else the count is that of a later event loop
                self._caller_count -= 1
                if not self._caller_count and self._attaching is not None:
                    self._attaching.release()
                    self._attaching = None

    async def _connect(self) -> IncomingEnd:
        """Attach when there is a connection."""
        connection = await self._owner.connection_for(self.path, self)
        self._check_open()
        return self._attach(connection)

    def _attach(self, connection: AmqpConnection) -> IncomingEnd:
        """Send an attach. No task waits for the answer, which for a session may take minutes."""
        amqp_session, owns_session = self._owner.session_of(connection)
        end = IncomingEnd(
            self._inbox,
            connection,
            f"attach to {self.path!r}",
            owns_session=owns_session,
            accept=self._accept,
            deadlines=self._owner.deadlines,
            on_lost=self._settlement_lost,
        )
        properties = None
        filters = None
        if self._session is not None:
            wanted = self._session if isinstance(self._session, str) else None
            filters = {servicebus.SESSION_FILTER: wanted}
            properties = {servicebus.LINK_TIMEOUT: UInt(max(1, min(int(self._session_wait_s * 1000), 2**32 - 1)))}
        end.start(
            amqp_session.attach_receiver(
                connection.new_link_name(),
                source=Source(address=self.path, filter=filters),
                snd_settle_mode=SETTLE_UNSETTLED if self._is_locking else SETTLE_SETTLED,
                rcv_settle_mode=SETTLE_SECOND if self._is_locking else SETTLE_FIRST,
                max_message_size=MAX_MESSAGE_BYTES,
                properties=properties,
            )
        )
        self._attaching = end
        return end

    def _accept(self, end: IncomingEnd, attach: Attach) -> None:
        """Use a link that the service has attached.

        Raises:
            ServiceBusCommunicationError: the service accepted no session.
        """
        if self._session is not None:
            held = (attach.source.filter or {}).get(servicebus.SESSION_FILTER) if attach.source is not None else None
            if not isinstance(held, str):
                raise ServiceBusCommunicationError(f"the service accepted no session of {self.path!r}: try again")
            self._session_id = held
            self._was_accepted = True
            ticks = (attach.properties or {}).get(servicebus.LINK_LOCKED_UNTIL)
            if isinstance(ticks, int):
                self._session_locked_until = servicebus.timestamp_of_ticks(ticks)
        self._attaching = None
        self._has_attached = True
        self._inbox.open(end)

    def _check_open(self) -> None:
        if self._is_closed:
            raise link_closed(repr(self.path))

    # -- receiving -----------------------------------------------------------------------------------------------

    async def receive(self, *, max_message_count: int, max_wait_time_s: float) -> list[ServiceBusReceivedMessage]:
        deadline = clock.monotonic() + max_wait_time_s
        receiving = self._receiving  # of this event loop, also if the call ends when another one has begun
        if receiving.locked():
            try:
                async with clock.timeout(max_wait_time_s):
                    await receiving.acquire()
            except TimeoutError:
                return []
        else:
            await receiving.acquire()
        inbox = self._inbox
        has_waited = has_reattached = False
        try:
            while True:
                messages = inbox.take(max_message_count)
                if messages or (has_waited and clock.monotonic() >= deadline):
                    return messages
                end = inbox.end or await self._opened(max(deadline - clock.monotonic(), LEAST_ATTACH_S))
                self._check_open()  # a close waits for its link, which is open until then
                try:
                    await inbox.wait(end, max_message_count, deadline)
                    has_waited, has_reattached = True, False
                except ServiceBusConnectionError:
                    if self._session is not None:
                        raise self._session_lost() from None
                    if has_reattached or self._is_closed or clock.monotonic() >= deadline:
                        raise
                    has_waited, has_reattached = False, True
        finally:
            receiving.release()

    def fetch_ahead(self, count: int, total: int) -> None:
        self._inbox.fetch_ahead(count, total)

    @property
    def is_open(self) -> bool:
        return self._inbox.end is not None

    @property
    def is_drained(self) -> bool:
        return self._inbox.is_drained

    # -- settling ------------------------------------------------------------------------------------------------

    def settle(
        self,
        message: ServiceBusReceivedMessage,
        settlement: Settlement,
        *,
        timeout_s: float,
        transaction: TransactionLink | None = None,
    ) -> Awaitable[None]:
        if transaction is None and type(message) is AmqpReceivedMessage and message._token is not None:
            delivery = message.delivery
            if delivery is not None and not delivery.is_settled and not self._is_closed:
                end = delivery.link.owner
                if type(end) is IncomingEnd and end.is_open:
                    outcome, doing = outcome_of(settlement), self._doing[settlement.mode]
                    return end.settlements.settle(delivery, outcome, settlement, timeout_s, doing)
        return self._settle_otherwise(message, settlement, timeout_s, transaction)

    async def _settle_otherwise(
        self,
        message: ServiceBusReceivedMessage,
        settlement: Settlement,
        timeout_s: float,
        transaction: TransactionLink | None,
    ) -> None:
        """Settle in a transaction, or by the lock token.

        Raises:
            InvalidOperationError: the message is not locked, or the receiver is closed.
        """
        deadline = clock.monotonic() + timeout_s
        delivery, end = self._delivery_of(message)
        if transaction is not None and delivery is not None and end is not None:
            begun = await transaction_of(transaction).state_on(end.connection, deadline)
            state = TransactionalState(begun.txn_id, outcome_of(settlement))
            left_s = deadline - clock.monotonic()
            await end.settlements.settle(delivery, state, None, left_s, self._doing[settlement.mode])
        elif self._session is not None and delivery is not None:
            raise self._session_lost()
        else:
            await self._settle_by_token(message, settlement, deadline, transaction)

    def _settlement_lost(self, lost: LostSettlement) -> None:
        """Settle a message by its token after its link was lost, without a session and a transaction."""
        if lost.settlement is None or self._session is not None or self._is_closed or self._owner.tasks.is_closed:
            lost.future.set_exception(lost.error)
        else:
            work = self._settle_lost(lost, lost.settlement)
            self._owner.tasks.start(work, name=f"settle a message of {self.path!r}")

    async def _settle_lost(self, lost: LostSettlement, settlement: Settlement) -> None:
        try:
            message = read_delivery(lost.delivery, is_locked=True, has_session=False)
            assert message is not None  # it was read before
            await self._settle_by_token(message, settlement, lost.deadline, None)
        except ServiceBusError as error:
            if not lost.future.done():
                lost.future.set_exception(keep_doubt(error, lost.error.is_in_doubt))
        except BaseException:
            if not lost.future.done():
                lost.future.set_exception(lost.error)
            raise
        else:
            if not lost.future.done():
                lost.future.set_result(None)

    async def settle_together(
        self, messages: Sequence[ServiceBusReceivedMessage], settlement: Settlement, *, timeout_s: float
    ) -> list[ServiceBusReceivedMessage]:
        settling = []
        for message in messages:
            _, end = self._delivery_of(message)
            if end is not None:
                settling.append((message, self.settle(message, settlement, timeout_s=timeout_s)))
        settled: list[ServiceBusReceivedMessage] = []
        for message, each in settling:
            with suppress(ServiceBusError):  # the caller settles it alone
                await each
                settled.append(message)
        return settled

    def _delivery_of(self, message: ServiceBusReceivedMessage) -> tuple[IncomingDelivery | None, IncomingEnd | None]:
        """The delivery of a message, None if a reply brought it; and its link, None if it is lost.

        Raises:
            InvalidOperationError: the message is not locked, or the receiver is closed.
        """
        if self._is_closed:
            self._check_open()
        if isinstance(message, AmqpReceivedMessage):
            token, delivery = message._token, message.delivery  # few tokens need their conversion
        else:
            token, delivery = message.lock_token, None
        if token is None:
            raise not_locked(message, self.path)
        end = None if delivery is None else delivery.link.owner
        is_usable = isinstance(end, IncomingEnd) and end.is_open and delivery is not None and not delivery.is_settled
        return delivery, end if is_usable else None

    async def _settle_by_token(
        self,
        message: ServiceBusReceivedMessage,
        settlement: Settlement,
        deadline: float,
        transaction: TransactionLink | None,
    ) -> None:
        token = message.lock_token
        assert token is not None  # the caller has checked it
        group = settlement, partition_of(message.sequence_number)
        if transaction is None:
            await self._settling.call(group, token, deadline)
        else:
            await self._settle_tokens(group, [token], deadline - clock.monotonic(), transaction)

    async def _settle_tokens(
        self,
        group: tuple[Settlement, int],
        tokens: Sequence[UUID],
        timeout_s: float,
        transaction: TransactionLink | None = None,
    ) -> Sequence[None]:
        """Settle messages of one partition in one request: all or none."""
        settlement, _ = group
        body: dict[str, Any] = {
            servicebus.DISPOSITION_STATUS: servicebus.DISPOSITION_STATUSES[settlement.mode],
            servicebus.TOKENS: uuids(tokens),
        }
        if settlement.mode is SettleMode.DEAD_LETTER:
            body[servicebus.DEAD_LETTER_REASON] = settlement.reason
            body[servicebus.DEAD_LETTER_DESCRIPTION] = settlement.error_description
        doing = self._doing[settlement.mode]
        await self._ask(servicebus.UPDATE_DISPOSITION, body, doing=doing, timeout_s=timeout_s, transaction=transaction)
        return [None] * len(tokens)

    # -- locks ---------------------------------------------------------------------------------------------------

    async def renew_lock(self, message: ServiceBusReceivedMessage, *, timeout_s: float) -> datetime:
        _, end = self._delivery_of(message)
        assert message.lock_token is not None  # just checked
        group = end, partition_of(message.sequence_number)
        return await self._renewals.call(group, message.lock_token, clock.monotonic() + timeout_s)

    async def _renew_tokens(
        self, group: tuple[IncomingEnd | None, int], tokens: Sequence[UUID], timeout_s: float
    ) -> list[datetime]:
        """Renew locks of messages of one link and partition in one request: all or none."""
        end, _ = group
        doing = f"renew the locks of messages of {self.path!r}"
        deadline = clock.monotonic() + timeout_s
        end = end if end is not None and end.is_open else None
        body = {servicebus.TOKENS: uuids(tokens)}
        # A renewal changes nothing that could be in doubt.
        reply = await self._ask_about(end, servicebus.RENEW_LOCK, body, doing, deadline, is_reading=True)
        ends = [each for each in items_of(reply.body, servicebus.EXPIRATIONS) if isinstance(each, datetime)]
        if len(ends) != len(tokens):
            raise ServiceBusCommunicationError(f"{doing}: {len(ends)} expirations came for {len(tokens)} locks")
        return ends

    # -- messages ------------------------------------------------------------------------------------------------

    async def peek(
        self, *, max_message_count: int, sequence_number: int, timeout_s: float
    ) -> list[ServiceBusReceivedMessage]:
        body: dict[str, Any] = {
            servicebus.FROM_SEQUENCE_NUMBER: Long(max(sequence_number, 1)),
            servicebus.MESSAGE_COUNT: Int(max_message_count),
        }
        doing = f"peek {self.path!r}"
        reply = await self._ask(servicebus.PEEK_MESSAGE, body, doing=doing, timeout_s=timeout_s, is_reading=True)
        return [*self._messages_in(reply, is_locked=False)]

    async def receive_deferred(
        self, sequence_numbers: Sequence[int], *, timeout_s: float
    ) -> list[ServiceBusReceivedMessage]:
        body: dict[str, Any] = {
            servicebus.SEQUENCE_NUMBERS: longs(sequence_numbers),
            servicebus.RECEIVER_SETTLE_MODE: UInt(1 if self._is_locking else 0),
        }
        doing = f"receive deferred messages from {self.path!r}"
        reply = await self._ask(servicebus.RECEIVE_BY_SEQUENCE_NUMBER, body, doing=doing, timeout_s=timeout_s)
        messages = self._messages_in(reply, is_locked=self._is_locking)
        if not messages:
            raise MessageNotFoundError(
                f"{self.path!r} has no deferred message numbered {', '.join(map(str, sequence_numbers))}"
            )
        return [*messages]

    # -- the session ---------------------------------------------------------------------------------------------

    async def renew_session_lock(self, *, timeout_s: float) -> datetime:
        reply = await self._in_session(servicebus.RENEW_SESSION_LOCK, {}, "renew the session lock of", timeout_s)
        until = reply.body.get(servicebus.EXPIRATION) if isinstance(reply.body, dict) else None
        if not isinstance(until, datetime):
            raise ServiceBusCommunicationError(f"renew the session lock of {self.path!r}: no expiration came")
        self._session_locked_until = until
        return until

    async def get_session_state(self, *, timeout_s: float) -> bytes | None:
        reply = await self._in_session(
            servicebus.GET_SESSION_STATE, {}, "get the session state of", timeout_s, is_reading=True
        )
        state = reply.body.get(servicebus.SESSION_STATE) if isinstance(reply.body, dict) else None
        return bytes(state) if isinstance(state, bytes) else None

    async def set_session_state(self, state: bytes | None, *, timeout_s: float) -> None:
        await self._in_session(
            servicebus.SET_SESSION_STATE, {servicebus.SESSION_STATE: state}, "set the session state of", timeout_s
        )

    # -- requests ------------------------------------------------------------------------------------------------

    async def _ask(
        self,
        operation: str,
        body: dict[str, Any],
        *,
        doing: str,
        timeout_s: float,
        transaction: TransactionLink | None = None,
        is_reading: bool = False,
    ) -> Reply:
        """Ask the management node, with the id of the session if there is one."""
        self._check_open()
        deadline = clock.monotonic() + timeout_s
        end, state = self._inbox.end, None
        if self._session is not None or transaction is not None:
            end = await self._opened(timeout_s)
            if self._session is not None:
                body[servicebus.SESSION_ID] = self._session_id
            if transaction is not None:
                state = await transaction_of(transaction).state_on(end.connection, deadline)
        return await self._ask_about(end, operation, body, doing, deadline, state, is_reading=is_reading)

    async def _ask_about(
        self,
        end: IncomingEnd | None,
        operation: str,
        body: dict[str, Any],
        doing: str,
        deadline: float,
        state: TransactionalState | None = None,
        *,
        is_reading: bool = False,
    ) -> Reply:
        """Ask the management node on the connection of a link, and name that link; on any connection without one."""
        connection = None if end is None else end.connection
        node = await self._owner.requests_of(self.path, deadline=deadline, connection=connection)
        return await node.ask(
            operation,
            body,
            doing=doing,
            timeout_s=max(deadline - clock.monotonic(), 0.001),
            link_name=None if end is None else end.link.name,
            state=state,
            wire=connection if self._session is not None or state is not None else None,
            is_reading=is_reading,
        )

    def _messages_in(self, reply: Reply, *, is_locked: bool) -> list[AmqpReceivedMessage]:
        messages = []
        for entry in items_of(reply.body, servicebus.MESSAGES):
            payload = entry.get(servicebus.MESSAGE) if isinstance(entry, dict) else None
            token = entry.get(servicebus.TOKEN) if isinstance(entry, dict) else None
            if not isinstance(payload, bytes):
                raise ServiceBusCommunicationError(f"a reply of {self.path!r} holds an entry without a message")
            messages.append(
                AmqpReceivedMessage.read(
                    payload,
                    lock_token=token if is_locked and isinstance(token, UUID) else None,
                    has_session=self._session is not None,
                )
            )
        return messages

    async def _in_session(
        self, operation: str, body: dict[str, Any], doing: str, timeout_s: float, *, is_reading: bool = False
    ) -> Reply:
        if self._session is None:
            raise without_session(self.path)
        doing = f"{doing} {self.path!r}"
        return await self._ask(operation, body, doing=doing, timeout_s=timeout_s, is_reading=is_reading)

    # -- the end -------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        if self._attaching is not None:
            self._attaching.refuse(ServiceBusConnectionError(f"the link to {self.path!r} was closed"))
        end = self._inbox.end
        try:
            if end is not None:
                await self._close(end)
        finally:
            if end is not None:
                end.release()
            self._owner.forget(self)

    async def _close(self, end: IncomingEnd) -> None:
        """Give back what was not handed out, and wait until the service has let go."""
        closed = ServiceBusConnectionError(f"the link to {self.path!r} was closed")
        end.settlements.write()
        await self._inbox.close(end, closed)
        session = end.session
        end.release()
        end.settlements.lost(closed)
        if end.owns_session:
            await end.connection.ended(session, CLOSE_S)
