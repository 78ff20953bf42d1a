"""What a receiver asks of the management node of its entity: peeks, deferred messages, locks and the session's state.

A request names the link of the receiver, so that the service does not detach it for idleness. A request of a session
goes over the connection that holds the session.

Source: Service Bus request-response operations, documented.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final, Protocol
from uuid import UUID

from sbclient.amqp.types import Int, Long, UInt, longs, uuids
from sbclient.clock import Clock
from sbclient.delivery import ServiceBusReceiveMode, SessionChoice, Settlement, SettleMode
from sbclient.errors import (
    InvalidOperationError,
    MessageNotFoundError,
    ServiceBusCommunicationError,
)
from sbclient.message import ServiceBusReceivedMessage
from sbclient.transport.amqp.inbox import IncomingEnd
from sbclient.transport.amqp.links import Wire
from sbclient.transport.amqp.received import AmqpReceivedMessage
from sbclient.transport.amqp.requests import Reply, Requests, items_of
from sbclient.transport.amqp.transactions import transaction_of
from sbclient.transport.base import ReceiverLink, TransactionLink

_UPDATE: Final = {
    SettleMode.COMPLETE: "completed",
    SettleMode.ABANDON: "abandoned",
    SettleMode.DEFER: "defered",  # the service's own spelling
    SettleMode.DEAD_LETTER: "suspended",
}


class RequestsOwner(Protocol):
    """The part of a transport that sends requests."""

    clock: Clock

    async def requests_of(self, path: str, *, deadline: float, connection: Wire | None = None) -> Requests:
        """The management node of an entity, over one connection if that matters."""


class ManagedReceiver(ReceiverLink):
    """The operations of a receiver that are requests. A subclass owns the link.

    Attributes:
        path: of the entity or sub-queue.
    """

    owner: RequestsOwner

    def __init__(self, owner: RequestsOwner, path: str, session: SessionChoice, mode: ServiceBusReceiveMode) -> None:
        self.owner = owner
        self._clock = owner.clock
        self.path = path
        self._session = session
        self._is_locking = mode is ServiceBusReceiveMode.PEEK_LOCK
        self._session_id: str | None = None
        self._session_locked_until: datetime | None = None

    @property
    def session_id(self) -> str | None:
        return self._session_id

    @property
    def session_locked_until_utc(self) -> datetime | None:
        return self._session_locked_until

    @property
    @abstractmethod
    def _end(self) -> IncomingEnd | None:
        """The attached link."""

    @abstractmethod
    async def _opened(self, timeout_s: float) -> IncomingEnd:
        """The attached link, attached first if it must be."""

    @abstractmethod
    def _check_open(self) -> None:
        """
        Raises:
            InvalidOperationError: the receiver is closed.
        """

    # -- messages ------------------------------------------------------------------------------------------------

    async def peek(
        self, *, max_message_count: int, sequence_number: int, timeout_s: float
    ) -> list[ServiceBusReceivedMessage]:
        body: dict[str, Any] = {
            "from-sequence-number": Long(max(sequence_number, 1)),
            "message-count": Int(max_message_count),
        }
        reply = await self._ask("peek-message", body, doing="peek", timeout_s=timeout_s, is_reading=True)
        return [*self._messages_in(reply, is_locked=False)]

    async def receive_deferred(
        self, sequence_numbers: Sequence[int], *, timeout_s: float
    ) -> list[ServiceBusReceivedMessage]:
        body: dict[str, Any] = {
            "sequence-numbers": longs(sequence_numbers),
            "receiver-settle-mode": UInt(1 if self._is_locking else 0),
        }
        doing = "receive deferred messages from"
        reply = await self._ask("receive-by-sequence-number", body, doing=doing, timeout_s=timeout_s)
        messages = self._messages_in(reply, is_locked=self._is_locking)
        if not messages:
            raise MessageNotFoundError(
                f"{self.path!r} has no deferred message numbered {', '.join(map(str, sequence_numbers))}"
            )
        return [*messages]

    async def _update_disposition(
        self,
        token: UUID,
        settlement: Settlement,
        deadline: float,
        doing: str,
        transaction: TransactionLink | None,
    ) -> None:
        """Settle by the lock token."""
        body: dict[str, Any] = {
            "disposition-status": _UPDATE[settlement.mode],
            "lock-tokens": uuids([token]),
        }
        if settlement.mode is SettleMode.DEAD_LETTER:
            body["deadletter-reason"] = settlement.reason
            body["deadletter-description"] = settlement.error_description
        end, wire, state = self._end, None, None
        if self._session is not None or transaction is not None:
            end = await self._opened(deadline - self._clock.monotonic())
            wire = end.connection
            if self._session is not None:
                body["session-id"] = self._session_id
            if transaction is not None:
                state = await transaction_of(transaction).state_on(wire, deadline)
        connection = None if end is None else end.connection
        node = await self.owner.requests_of(self.path, deadline=deadline, connection=connection)
        await node.ask(
            "com.microsoft:update-disposition",
            body,
            doing=doing,
            timeout_s=max(deadline - self._clock.monotonic(), 0.001),
            link_name=None if end is None else end.link.name,
            state=state,
            wire=wire,
        )

    async def _renew_tokens(self, end: IncomingEnd | None, tokens: Sequence[UUID], timeout_s: float) -> list[datetime]:
        """Renew locks of messages of one link in one request: all or none."""
        doing = "renew the locks of messages of"
        deadline = self._clock.monotonic() + timeout_s
        reply = await self._ask_about(
            end if end is not None and end.is_open else None,
            "renew-lock",
            {"lock-tokens": uuids(tokens)},
            doing=doing,
            deadline=deadline,
        )
        ends = [each for each in items_of(reply.body, "expirations") if isinstance(each, datetime)]
        if len(ends) != len(tokens):
            raise ServiceBusCommunicationError(
                f"{doing} {self.path!r}: {len(ends)} expirations came for {len(tokens)} locks"
            )
        return ends

    # -- the session ---------------------------------------------------------------------------------------------

    async def renew_session_lock(self, *, timeout_s: float) -> datetime:
        reply = await self._in_session("renew-session-lock", {}, "renew the session lock of", timeout_s)
        until = reply.body.get("expiration") if isinstance(reply.body, dict) else None
        if not isinstance(until, datetime):
            raise ServiceBusCommunicationError(f"renew the session lock of {self.path!r}: no expiration came")
        self._session_locked_until = until
        return until

    async def get_session_state(self, *, timeout_s: float) -> bytes | None:
        reply = await self._in_session("get-session-state", {}, "get the session state of", timeout_s, is_reading=True)
        state = reply.body.get("session-state") if isinstance(reply.body, dict) else None
        return bytes(state) if isinstance(state, bytes) else None

    async def set_session_state(self, state: bytes | None, *, timeout_s: float) -> None:
        await self._in_session("set-session-state", {"session-state": state}, "set the session state of", timeout_s)

    # -- requests ------------------------------------------------------------------------------------------------

    async def _ask(
        self,
        operation: str,
        body: dict[str, Any],
        *,
        doing: str,
        timeout_s: float,
        is_reading: bool = False,
    ) -> Reply:
        """Ask the management node, in the session's name if there is one."""
        self._check_open()
        deadline = self._clock.monotonic() + timeout_s
        end = self._end
        if self._session is not None:
            end = await self._opened(timeout_s)
            body["session-id"] = self._session_id
        return await self._ask_about(end, operation, body, doing=doing, deadline=deadline, is_reading=is_reading)

    async def _ask_about(
        self,
        end: IncomingEnd | None,
        operation: str,
        body: dict[str, Any],
        *,
        doing: str,
        deadline: float,
        is_reading: bool = False,
    ) -> Reply:
        """Ask the management node on the connection of a link, and name that link; on any connection without one."""
        connection = None if end is None else end.connection
        node = await self.owner.requests_of(self.path, deadline=deadline, connection=connection)
        return await node.ask(
            f"com.microsoft:{operation}",
            body,
            doing=f"{doing} {self.path!r}",
            timeout_s=max(deadline - self._clock.monotonic(), 0.001),
            link_name=None if end is None else end.link.name,
            wire=connection if self._session is not None else None,
            is_reading=is_reading,
        )

    def _messages_in(self, reply: Reply, *, is_locked: bool) -> list[AmqpReceivedMessage]:
        messages = []
        for entry in items_of(reply.body, "messages"):
            payload = entry.get("message") if isinstance(entry, dict) else None
            token = entry.get("lock-token") if isinstance(entry, dict) else None
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
            raise InvalidOperationError(
                f"the receiver of {self.path} has no session: open it with a session_id or NEXT_AVAILABLE_SESSION"
            )
        return await self._ask(operation, body, doing=doing, timeout_s=timeout_s, is_reading=is_reading)
