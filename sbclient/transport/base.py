"""The transport interface: all operations of the client on one namespace.

A transport connects to one namespace. It does not retry, does not fail over and does not know about pairs. Every
failure is an error of `sbclient.errors`. Links are cheap to create and connect on first use. An entity is identified by
its path: `orders`, `prices`, `prices/Subscriptions/eu`, optionally with a sub-queue (`rules.entity_path`).

The transport enforces timeouts, which are in seconds: it raises `OperationTimeoutError`, and whether the service acted
is in doubt. Every await can be cancelled.
"""

from __future__ import annotations

from asyncio import Future
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from datetime import datetime
from enum import Enum
from typing import Annotated, Any, Protocol, TypeAlias

from sbclient.amqp import EncodedBatch
from sbclient.arguments.kinds import Kind, encodable, wrong_type
from sbclient.delivery import SenderLimits, ServiceBusReceiveMode, SessionChoice, Settlement
from sbclient.entities import (
    EntityAddress,
    EntityKind,
    EntityProperties,
    NamespaceProperties,
    RuleProperties,
    RuntimeProperties,
)
from sbclient.errors import InvalidOperationError
from sbclient.message import ServiceBusReceivedMessage

Check: TypeAlias = Callable[[EncodedBatch, SenderLimits], None]
"""Checks a transfer against the limits of its entity; raises a `ServiceBusError`."""


class TransportType(Enum):
    """The network protocol, for the option `transport_type` of a client.

    Names and values equal those of the SDK, which compares both.
    """

    Amqp = 1
    AmqpOverWebsocket = 2


class TransactionLink(Protocol):
    """A transaction begun by this transport."""

    def via_to(self, path: str) -> str | None:
        """Return the entity through which messages to a path pass; None if they go there directly."""

    async def commit(self, *, timeout_s: float) -> None:
        """Apply all operations of the transaction, or none."""

    async def rollback(self, *, timeout_s: float) -> None:
        """Discard all operations of the transaction. Messages settled in it stay locked."""

    async def create_rule(self, address: EntityAddress, rule: RuleProperties, *, timeout_s: float) -> None:
        """Create a rule of a subscription with the commit.

        Raises:
            InvalidOperationError: the topic is partitioned.
            TransactionNotSupportedError: the transport has no such operation.
        """

    async def delete_rule(self, address: EntityAddress, *, timeout_s: float) -> None:
        """Delete a rule of a subscription with the commit; errors as for `create_rule`."""


class SenderLink(Protocol):
    """Sends to one entity. Transfers leave in call order; several may be unanswered at a time."""

    @property
    def is_open(self) -> bool:
        """Whether the link is attached, as far as is known."""

    async def open(self, *, timeout_s: float) -> None:
        """Attach if needed. Success proves that the entity exists and that sending is permitted."""

    async def limits(self, *, timeout_s: float) -> SenderLimits:
        """Return the size limits of the entity. Attaches if needed, because they can change only then."""

    @property
    def known_limits(self) -> SenderLimits | None:
        """The limits that the service stated last; None if the link has never been attached."""

    def send(
        self,
        batch: EncodedBatch,
        *,
        timeout_s: float,
        transaction: TransactionLink | None = None,
    ) -> Future[None]:
        """Send a batch as one transfer: all messages of it are stored, or none.

        Attaches if needed. The future ends with the answer of the service. Cancelling it prevents the transfer if it
        has not left.
        """

    async def schedule(
        self,
        batch: EncodedBatch,
        *,
        timeout_s: float,
        transaction: TransactionLink | None = None,
    ) -> list[int]:
        """Store messages with a `scheduled_enqueue_time_utc`. Returns their sequence numbers in order."""

    async def cancel_scheduled(self, sequence_numbers: Sequence[int], *, timeout_s: float) -> None:
        """Delete scheduled messages of one partition, all or none.

        Raises:
            InvalidOperationError: they are of several partitions.
            MessageNotFoundError: one of them does not exist.
        """

    async def close(self) -> None:
        """Detach. Safe to call twice."""


class ReceiverLink(Protocol):
    """Receives from one entity, sub-queue or session."""

    @property
    def session_id(self) -> str | None:
        """The accepted session; None before `open` and on links without a session."""

    @property
    def session_locked_until_utc(self) -> datetime | None:
        """When the session's lock ends; None on links without a session."""

    async def open(self, *, timeout_s: float) -> None:
        """Attach if needed, and accept the session.

        Raises:
            OperationTimeoutError: no session became available in time.
            SessionCannotBeLockedError: another receiver holds the session.
        """

    async def receive(self, *, max_message_count: int, max_wait_time_s: float) -> list[ServiceBusReceivedMessage]:
        """Wait for a first message, at most that long, and return the available messages; may be empty.

        A cancelled call loses no message: each one is returned by a later call or released.
        """

    def fetch_ahead(self, count: int, total: int) -> None:
        """Let the service send messages before `receive` asks for them, as with a prefetch count. May have no effect.

        Args:
            count: the largest number of messages that wait for `receive`.
            total: how many messages the caller will receive; no more are fetched.
        """
        return

    @property
    def is_open(self) -> bool:
        """Whether `receive` ends in time, since it need not attach the link first."""
        return False

    @property
    def is_drained(self) -> bool:
        """Whether the last receive call, if it returned fewer messages than it may, has returned all available ones.

        False = unknown.
        """
        return False

    async def peek(
        self, *, max_message_count: int, sequence_number: int, timeout_s: float
    ) -> list[ServiceBusReceivedMessage]:
        """Return messages from that number on without locking them.

        Repeated calls that continue after the last number return all messages.
        """

    async def receive_deferred(
        self, sequence_numbers: Sequence[int], *, timeout_s: float
    ) -> list[ServiceBusReceivedMessage]:
        """Receive deferred messages of one partition by number, all or none.

        Raises:
            InvalidOperationError: they are of several partitions.
            MessageNotFoundError: one of them does not exist.
        """

    def settle(
        self,
        message: ServiceBusReceivedMessage,
        settlement: Settlement,
        *,
        timeout_s: float,
        transaction: TransactionLink | None = None,
    ) -> Awaitable[None]:
        """Settle a locked message, also if the result is not awaited; it ends when the service has confirmed that."""

    async def settle_together(
        self, messages: Sequence[ServiceBusReceivedMessage], settlement: Settlement, *, timeout_s: float
    ) -> list[ServiceBusReceivedMessage]:
        """Settle locked messages without a task for each, and return those that the service has confirmed.

        The others may be settled or not: call `settle` for each of them. A transport that has no faster form than
        `settle` settles none.
        """

    async def renew_lock(self, message: ServiceBusReceivedMessage, *, timeout_s: float) -> datetime:
        """Extend a message's lock by the entity's lock duration. Returns its new end."""

    async def renew_session_lock(self, *, timeout_s: float) -> datetime:
        """Extend the session's lock. Returns its new end."""

    async def get_session_state(self, *, timeout_s: float) -> bytes | None:
        """Return the session's state; None if it is not set."""

    async def set_session_state(self, state: bytes | None, *, timeout_s: float) -> None:
        """Store or, with None, clear the session's state."""

    async def close(self) -> None:
        """Detach, release prefetched messages, and release the session. Safe to call twice."""


class Administration(Protocol):
    """Manages the entities of a namespace. Returned descriptions are complete."""

    async def create(self, address: EntityAddress, properties: EntityProperties) -> EntityProperties:
        """Create an entity; raises `MessagingEntityAlreadyExistsError` if it exists."""

    async def get(self, address: EntityAddress) -> EntityProperties:
        """Return the description of an entity; raises `MessagingEntityNotFoundError` if it does not exist."""

    async def update(self, address: EntityAddress, properties: EntityProperties) -> None:
        """Replace an entity's description."""

    async def delete(self, address: EntityAddress) -> None:
        """Delete an entity with all its messages."""

    def list(
        self, kind: EntityKind, parents: tuple[str, ...] = (), prefix: str = ""
    ) -> AsyncIterator[EntityProperties]:
        """Iterate over the entities of a kind by name, one request for each page.

        Entities that are created or deleted meanwhile may be missing or come twice.

        Args:
            parents: the topic of subscriptions; the topic and subscription of rules.
            prefix: only entities whose names begin with it.
        """

    def list_runtime(self, kind: EntityKind, parents: tuple[str, ...] = ()) -> AsyncIterator[RuntimeProperties]:
        """Iterate over counts and times of all queues, topics, or subscriptions of a topic; see `list`."""

    async def runtime(self, address: EntityAddress) -> RuntimeProperties:
        """Return counts and times of a queue, topic or subscription."""

    async def namespace(self) -> NamespaceProperties:
        """Return the description of the namespace."""

    async def disconnect(self) -> None:
        """Close the connection if no call uses it; the next call opens one."""


class Transport(Protocol):
    """Connects to one namespace."""

    def enter_loop(self) -> None:
        """Belong to the running event loop, see `LoopHome`. Connections of an earlier loop are dropped; links remain.

        Raises:
            InvalidOperationError: the transport belongs to another loop that may run.
        """

    @property
    def namespace(self) -> str:
        """The identity of the namespace: `memory://contoso` or `contoso.servicebus.windows.net[:port]`. No secret."""

    @property
    def administration(self) -> Administration:
        """The management of entities."""

    def open_sender(self, entity_path: str, check: Check | None = None) -> SenderLink:
        """Return a new sender link, not connected yet.

        Args:
            check: called with each transfer and the limits of the entity before the transfer leaves; what it raises
                ends the transfer.
        """

    def open_receiver(
        self,
        entity_path: str,
        *,
        session: SessionChoice = None,
        receive_mode: ServiceBusReceiveMode = ServiceBusReceiveMode.PEEK_LOCK,
        prefetch_count: int = 0,
    ) -> ReceiverLink:
        """Return a new receiver link, not connected yet."""

    async def begin_transaction(self, *, timeout_s: float, partition_key: str | None = None) -> TransactionLink:
        """Begin a transaction; raises `TransactionNotSupportedError` if the transport has none.

        Args:
            partition_key: selects the partition in which messages to other entities wait for the commit.
        """

    async def list_sessions(
        self, entity_path: str, *, state_updated_after: datetime | None, timeout_s: float
    ) -> Sequence[str]:
        """Return the sessions with messages or a state, or those whose state was set after a given time."""

    async def renew_credential(self) -> None:
        """Authenticate again with the credential as it is now. A failure is logged and ends no link."""

    async def close(self) -> None:
        """Close every link and the connection. Safe to call twice."""


def link_closed(name: str) -> InvalidOperationError:
    """Return the error of a call on a link that its owner has closed.

    Args:
        name: of its entity or node, as `'orders'`.
    """
    return InvalidOperationError(f"the link to {name} was closed: open a new one")


def not_locked(message: ServiceBusReceivedMessage, path: str) -> InvalidOperationError:
    """Return the error of a settlement or a renewal of a message without a lock."""
    return InvalidOperationError(
        f"message {message.sequence_number} of {path} is not locked: it was peeked, or deleted when it was received. "
        "Receive it in the mode PEEK_LOCK"
    )


def without_session(path: str) -> InvalidOperationError:
    """Return the error of a call about a session on a receiver that was opened without one."""
    return InvalidOperationError(
        f"the receiver of {path} has no session: open it with a session_id or NEXT_AVAILABLE_SESSION"
    )


def _check_transport(name: str, value: Any) -> Any:
    if not all(hasattr(value, each) for each in ("open_sender", "open_receiver", "administration")):
        raise wrong_type(name, value, "a Transport")
    return value


OwnTransport: TypeAlias = Annotated[Transport, Kind("a Transport", _check_transport)]
"""A transport that the caller gives, an implementation of the protocol."""


def _check_choice(name: str, value: Any) -> Any:
    return encodable(name, value) if isinstance(value, str) else _check_transport(name, value)


TransportChoice: TypeAlias = Annotated[Transport | str, Kind("'amqp', 'sdk' or a Transport", _check_choice)]
