"""Receives from one entity, sub-queue or session over AMQP. `managed_receiver.py` has the requests without the link.

Laws:
1. Credit is what a call asks for, or the prefetch count. A call that ends with fewer messages takes its credit back by
   a drain, and waits at most 200 ms for the answer.
2. A message that arrives between two calls goes to the next one. It is released when the link is closed, or when less
   than half of its lock is left; never otherwise. A cancelled call discards nothing.
3. A link that is lost is attached anew by the next call, and at once by a call that waits. A session is accepted once:
   when its link is lost, so is its lock.
4. A message is settled on the link that brought it. Without that link, and without a session, the management node
   settles it by its lock token; deferred messages always.
5. Lock renewals of one step of the event loop share a request for each link that brought the messages. The request
   names the link, so that the service does not detach it for idleness. A lock whose link is gone is renewed without.

Source: Service Bus protocol guide; request-response operations, documented.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Protocol
from uuid import UUID

from sbclient.amqp import Attach, IncomingDelivery, Source
from sbclient.amqp.performatives import SETTLE_FIRST, SETTLE_SECOND, SETTLE_SETTLED, SETTLE_UNSETTLED
from sbclient.amqp.types import UInt
from sbclient.deadlines import Deadlines
from sbclient.delivery import ServiceBusReceiveMode, SessionChoice, Settlement, SettleMode
from sbclient.errors import (
    InvalidOperationError,
    OperationTimeoutError,
    ServiceBusCommunicationError,
    ServiceBusConnectionError,
    ServiceBusError,
    SessionLockLostError,
)
from sbclient.message import ServiceBusReceivedMessage
from sbclient.tasks import OwnedTasks
from sbclient.transport.amqp.connection import AmqpConnection
from sbclient.transport.amqp.inbox import Inbox, IncomingEnd
from sbclient.transport.amqp.managed_receiver import ManagedReceiver, RequestsOwner
from sbclient.transport.amqp.received import AmqpReceivedMessage
from sbclient.transport.amqp.renewals import Renewals
from sbclient.transport.amqp.settlements import Settling, SettlingTogether, in_transaction, outcome_of
from sbclient.transport.amqp.shared import Shared
from sbclient.transport.amqp.transactions import transaction_of
from sbclient.transport.base import TransactionLink

SESSION_FILTER: Final = "com.microsoft:session-filter"
LOCKED_UNTIL: Final = "com.microsoft:locked-until-utc"
TIMEOUT: Final = "com.microsoft:timeout"

MAX_MESSAGE_BYTES: Final = 2**27
ACCEPT_GRACE_S: Final = 2.0
"""The service ends the wait for a session by itself; only if it does not, the client does."""
LEAST_ATTACH_S: Final = 15.0
"""The least time for attaching in a receive call: its wait begins when the link is attached."""

CLOSE_S: Final = 2.0
"""How long the service may take to let go of a link that is closed."""

_TICKS_AT_1970: Final = 621_355_968_000_000_000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class ReceiverOwner(RequestsOwner, Protocol):
    """The part of a transport that its receivers need."""

    tasks: OwnedTasks
    deadlines: Deadlines

    async def connection_for(self, path: str, receiver: AmqpReceiver | None = None) -> AmqpConnection:
        """An open connection with a token for an entity."""

    def ready_connection(self, path: str) -> AmqpConnection | None:
        """A connection on which a link to an entity may attach at once."""

    def session_of(self, connection: AmqpConnection) -> tuple[Any, bool]:
        """An AMQP session for a link, and whether it is the link's own."""

    def forget(self, link: Any) -> None:
        """The link was closed."""


class AmqpReceiver(ManagedReceiver):
    """Receives from one entity, sub-queue or session."""

    owner: ReceiverOwner

    def __init__(
        self,
        owner: ReceiverOwner,
        path: str,
        session: SessionChoice,
        mode: ServiceBusReceiveMode,
        prefetch_count: int,
    ) -> None:
        super().__init__(owner, path, session, mode)
        self._doing = {mode: f"{mode} a message of {path!r}" for mode in SettleMode}
        self._connecting = Shared(self._connect, tasks=owner.tasks, name=f"attach to {path!r}")
        self._attaching: IncomingEnd | None = None
        self._caller_count = 0
        self._receiving = asyncio.Lock()
        self._inbox = Inbox(
            is_locking=self._is_locking,
            has_session=session is not None,
            prefetch_count=prefetch_count,
            clock=owner.clock,
            deadlines=owner.deadlines,
        )
        self._renewals = Renewals(
            self._renew_tokens, path, clock=owner.clock, tasks=owner.tasks, deadlines=owner.deadlines
        )
        self._session_wait_s = 60.0
        self._has_attached = False
        self._was_accepted = False
        self._is_closed = False

    def __repr__(self) -> str:
        return f"AmqpReceiver({self.path!r}, is_open={self._inbox.end is not None})"

    @property
    def _end(self) -> IncomingEnd | None:
        return self._inbox.end

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
            async with self._clock.timeout(timeout_s + grace_s):
                return await self._attached()
        except TimeoutError:
            late = OperationTimeoutError(f"attach to {self.path!r}: the service did not answer within {timeout_s:g} s")
            late.is_in_doubt = False
            raise late from None

    def _session_lost(self) -> SessionLockLostError:
        return SessionLockLostError(
            f"the link that held session {self._session_id!r} of {self.path!r} is lost, and the lock with it: accept "
            "the session again"
        )

    async def _attached(self) -> IncomingEnd:
        """The link, attached for all callers that wait for it. It is given up when the last of them has gone."""
        self._caller_count += 1
        try:
            end = self._attaching
            if end is None or end.is_released:
                connection = self.owner.ready_connection(self.path)
                end = await self._connecting.get() if connection is None else self._attach(connection)
            await end.answered()
            return end
        finally:
            self._caller_count -= 1
            if not self._caller_count and self._attaching is not None:
                self._attaching.release()
                self._attaching = None

    async def _connect(self) -> IncomingEnd:
        """Attach when there is a connection."""
        connection = await self.owner.connection_for(self.path, self)
        self._check_open()
        return self._attach(connection)

    def _attach(self, connection: AmqpConnection) -> IncomingEnd:
        """Send an attach. No task waits for the answer, which for a session may take minutes."""
        amqp_session, owns_session = self.owner.session_of(connection)
        end = IncomingEnd(
            self._inbox, connection, f"attach to {self.path!r}", owns_session=owns_session, accept=self._accept
        )
        properties = None
        filters = None
        if self._session is not None:
            wanted = self._session if isinstance(self._session, str) else None
            filters = {SESSION_FILTER: wanted}
            properties = {TIMEOUT: UInt(max(1, min(int(self._session_wait_s * 1000), 2**32 - 1)))}
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
            held = (attach.source.filter or {}).get(SESSION_FILTER) if attach.source is not None else None
            if not isinstance(held, str):
                raise ServiceBusCommunicationError(f"the service accepted no session of {self.path!r}: try again")
            self._session_id = held
            self._was_accepted = True
            ticks = (attach.properties or {}).get(LOCKED_UNTIL)
            if isinstance(ticks, int):
                self._session_locked_until = _EPOCH + timedelta(microseconds=(int(ticks) - _TICKS_AT_1970) // 10)
        self._attaching = None
        self._has_attached = True
        self._inbox.open(end)

    def _check_open(self) -> None:
        if self._is_closed:
            raise InvalidOperationError(f"the link to {self.path!r} was closed: open a new one")

    # -- receiving -----------------------------------------------------------------------------------------------

    async def receive(self, *, max_message_count: int, max_wait_time_s: float) -> list[ServiceBusReceivedMessage]:
        deadline = self._clock.monotonic() + max_wait_time_s
        if self._receiving.locked():
            try:
                async with self._clock.timeout(max_wait_time_s):
                    await self._receiving.acquire()
            except TimeoutError:
                return []
        else:
            await self._receiving.acquire()
        try:
            return await self._receive(max_message_count, deadline)
        finally:
            self._receiving.release()

    def fetch_ahead(self, count: int, total: int) -> None:
        self._inbox.fetch_ahead(count, total)

    async def _receive(self, count: int, deadline: float) -> list[ServiceBusReceivedMessage]:
        has_reopened = False
        while True:
            messages = self._inbox.take(count)
            if messages:
                return messages
            left_s = deadline - self._clock.monotonic()
            end = await self._opened(max(left_s, LEAST_ATTACH_S))
            try:
                await self._inbox.wait(end, count, deadline)
            except ServiceBusConnectionError:
                if self._session is not None:
                    raise self._session_lost() from None
                if has_reopened or self._is_closed or self._clock.monotonic() >= deadline:
                    raise
                has_reopened = True
                continue
            has_reopened = False
            messages = self._inbox.take(count)
            if messages or self._clock.monotonic() >= deadline:
                return messages

    @property
    def is_drained(self) -> bool:
        return self._inbox.is_drained

    # -- settling ------------------------------------------------------------------------------------------------

    async def settle(
        self,
        message: ServiceBusReceivedMessage,
        settlement: Settlement,
        *,
        timeout_s: float,
        transaction: TransactionLink | None = None,
    ) -> None:
        self._check_open()
        self._check_held(message)
        began_at = self._clock.monotonic()
        deadline = began_at + timeout_s
        delivery = message.delivery if isinstance(message, AmqpReceivedMessage) else None
        end = None if delivery is None else delivery.link.owner
        doing = self._doing[settlement.mode]
        in_doubt = False
        if delivery is not None and isinstance(end, IncomingEnd) and end.is_open and not delivery.is_settled:
            outcome = outcome_of(settlement)
            if transaction is not None:
                state = await transaction_of(transaction).state_on(end.wire, deadline)
                await self._confirmed(
                    end, Settling([delivery], in_transaction(outcome, state), deadline, doing), began_at
                )
                return
            try:
                await self._confirmed(end, Settling([delivery], outcome, deadline, doing), began_at)
                return
            except ServiceBusConnectionError as error:
                in_doubt = error.is_in_doubt
                if self._session is not None or self._is_closed:
                    raise
        if self._session is not None and delivery is not None:
            lost = self._session_lost()
            lost.is_in_doubt = in_doubt
            raise lost
        try:
            await self._update_disposition(self._token_of(message), settlement, deadline, doing, transaction)
        except ServiceBusError as error:
            error.is_in_doubt = error.is_in_doubt or in_doubt
            raise

    async def _confirmed(self, end: IncomingEnd, settling: Settling, began_at: float) -> None:
        self.owner.deadlines.add(settling)
        end.settlements.add(settling)
        try:
            await settling.future
        except OperationTimeoutError:
            end.connection.suspect(began_at)
            raise
        finally:
            self.owner.deadlines.remove(settling)

    async def settle_together(
        self, messages: Sequence[ServiceBusReceivedMessage], settlement: Settlement, *, timeout_s: float
    ) -> list[ServiceBusReceivedMessage]:
        self._check_open()
        began_at = self._clock.monotonic()
        deadline = began_at + timeout_s
        outcome, doing = outcome_of(settlement), self._doing[settlement.mode]
        by_end: dict[IncomingEnd, dict[IncomingDelivery, ServiceBusReceivedMessage]] = {}
        for message in messages:
            delivery = message.delivery if isinstance(message, AmqpReceivedMessage) else None
            end = None if delivery is None else delivery.link.owner
            if delivery is not None and not delivery.is_settled and isinstance(end, IncomingEnd):
                by_end.setdefault(end, {})[delivery] = message
        settled: list[ServiceBusReceivedMessage] = []
        for end, several in by_end.items():
            if end.is_open:
                settling = SettlingTogether(list(several), outcome, deadline, doing)
                with suppress(ServiceBusError):  # the caller settles the others by themselves
                    await self._confirmed(end, settling, began_at)
                settled += [message for delivery, message in several.items() if delivery in settling.confirmed]
        return settled

    def _check_held(self, message: ServiceBusReceivedMessage) -> None:
        if not message._is_held:
            raise InvalidOperationError(
                f"message {message.sequence_number} of {self.path} is not held: it was peeked, or deleted when it was "
                "received"
            )

    def _token_of(self, message: ServiceBusReceivedMessage) -> UUID:
        self._check_held(message)
        token = message.lock_token
        assert token is not None  # just checked
        return token

    # -- locks -----------------------------------------------------------------------------------

    async def renew_lock(self, message: ServiceBusReceivedMessage, *, timeout_s: float) -> datetime:
        token = self._token_of(message)
        self._check_open()
        delivery = message.delivery if isinstance(message, AmqpReceivedMessage) else None
        end = None if delivery is None else delivery.link.owner
        return await self._renewals.renew(
            token, end if isinstance(end, IncomingEnd) and end.is_open else None, timeout_s
        )

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
            self.owner.forget(self)

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
