"""The port: all that the client ever asks of one namespace.

A transport reaches one namespace. It retries nothing, fails over nothing and knows nothing of pairs; every failure is
an error of `sbclient.errors`. Links are cheap to make and connect when they are first used. An entity is named by its
path: `orders`, `prices`, `prices/Subscriptions/eu`, each perhaps with a sub-queue behind it (`rules.entity_path`).

Time limits are in seconds and are the transport's to keep: when one passes it raises `OperationTimeoutError`, and
whether the service acted is in doubt. Cancellation passes through at any await.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from enum import Enum
from typing import Protocol

from sbclient.delivery import SenderLimits, ServiceBusReceiveMode, SessionChoice, Settlement
from sbclient.entities import EntityAddress, EntityKind, EntityProperties, NamespaceProperties, RuntimeProperties
from sbclient.message import ServiceBusMessage, ServiceBusReceivedMessage


class TransportType(Enum):
    """How the service is reached over the network; the option `transport_type` of a client takes it.

    Names and values are the SDK's, which looks at nothing else.
    """

    Amqp = 1
    AmqpOverWebsocket = 2


class TransactionLink(Protocol):
    """A transaction that this transport has begun."""

    async def commit(self, *, timeout_s: float) -> None:
        """Make everything done in it happen, all or nothing."""

    async def rollback(self, *, timeout_s: float) -> None:
        """Undo everything done in it; locks of settled messages stay."""


class SenderLink(Protocol):
    """Sends to one entity. One transfer at a time reaches the wire, in call order."""

    @property
    def is_open(self) -> bool:
        """Whether the link has been used and, as far as is known, still stands."""

    async def open(self, *, timeout_s: float) -> None:
        """Attach if not yet attached; this proves that the entity exists and may be sent to."""

    async def limits(self, *, timeout_s: float) -> SenderLimits:
        """What the entity accepts; attaches if needed."""

    async def send(
        self,
        messages: Sequence[ServiceBusMessage],
        *,
        timeout_s: float,
        transaction: TransactionLink | None = None,
    ) -> None:
        """Send one transfer: all of the messages or none are stored when this returns. Keeps the messages."""

    async def schedule(
        self,
        messages: Sequence[ServiceBusMessage],
        *,
        timeout_s: float,
        transaction: TransactionLink | None = None,
    ) -> list[int]:
        """Store messages, each with its `scheduled_enqueue_time_utc`; returns their sequence numbers in order."""

    async def cancel_scheduled(self, sequence_numbers: Sequence[int], *, timeout_s: float) -> None:
        """Remove scheduled messages; `MessageNotFoundError` if one is not there, and then none is removed."""

    async def close(self) -> None:
        """Detach. Safe to call twice."""


class ReceiverLink(Protocol):
    """Receives from one entity, sub-queue or session."""

    @property
    def session_id(self) -> str | None:
        """The session that was accepted; None before `open` and on links without a session."""

    @property
    def session_locked_until_utc(self) -> datetime | None:
        """When the session's lock ends; None on links without a session."""

    async def open(self, *, timeout_s: float) -> None:
        """Attach if not yet attached; accepts the session.

        Raises:
            OperationTimeoutError: no session became available in time.
            SessionCannotBeLockedError: somebody else holds the session.
        """

    async def receive(self, *, max_message_count: int, max_wait_time_s: float) -> list[ServiceBusReceivedMessage]:
        """Wait for a first message, at most that long, and return what can be had at once; may be empty.

        A message that was taken is returned or given back, never lost to a cancellation.
        """

    async def peek(
        self, *, max_message_count: int, sequence_number: int, timeout_s: float
    ) -> list[ServiceBusReceivedMessage]:
        """Look at messages from that number on, without taking them; going on behind the last one sees them all."""

    async def receive_deferred(
        self, sequence_numbers: Sequence[int], *, timeout_s: float
    ) -> list[ServiceBusReceivedMessage]:
        """Take deferred messages by number, all of them or `MessageNotFoundError`."""

    async def settle(
        self,
        message: ServiceBusReceivedMessage,
        settlement: Settlement,
        *,
        timeout_s: float,
        transaction: TransactionLink | None = None,
    ) -> None:
        """End a locked message; returns when the service has confirmed it."""

    async def renew_lock(self, message: ServiceBusReceivedMessage, *, timeout_s: float) -> datetime:
        """Extend a message's lock by the entity's lock duration; returns when it now ends."""

    async def renew_session_lock(self, *, timeout_s: float) -> datetime:
        """Extend the session's lock; returns when it now ends."""

    async def get_session_state(self, *, timeout_s: float) -> bytes | None:
        """The session's state, None if it was never set or was cleared."""

    async def set_session_state(self, state: bytes | None, *, timeout_s: float) -> None:
        """Store or, with None, clear the session's state."""

    async def close(self) -> None:
        """Detach, giving back what was taken but not handed out, and releasing the session. Safe to call twice."""


class Administration(Protocol):
    """The namespace's entities. Descriptions come back complete."""

    async def create(self, address: EntityAddress, properties: EntityProperties) -> EntityProperties:
        """Make an entity; `MessagingEntityAlreadyExistsError` if it is there."""

    async def get(self, address: EntityAddress) -> EntityProperties:
        """Describe an entity; `MessagingEntityNotFoundError` if it is not there."""

    async def update(self, address: EntityAddress, properties: EntityProperties) -> EntityProperties:
        """Replace an entity's description."""

    async def delete(self, address: EntityAddress) -> None:
        """Remove an entity with all its messages."""

    async def list(self, kind: EntityKind, parents: tuple[str, ...] = (), prefix: str = "") -> list[EntityProperties]:
        """The entities of a kind, by name; below `parents` for subscriptions and rules; only those with that prefix."""

    async def runtime(self, address: EntityAddress) -> RuntimeProperties:
        """Counts and times of a queue, topic or subscription."""

    async def namespace(self) -> NamespaceProperties:
        """Describe the namespace."""


class Transport(Protocol):
    """One namespace, reached."""

    @property
    def namespace(self) -> str:
        """Identifies the namespace: `memory://contoso` or `contoso.servicebus.windows.net[:port]`. Never a secret."""

    @property
    def administration(self) -> Administration:
        """The management side."""

    def open_sender(self, entity_path: str) -> SenderLink:
        """A new sender link; nothing is connected yet."""

    def open_receiver(
        self,
        entity_path: str,
        *,
        session: SessionChoice = None,
        receive_mode: ServiceBusReceiveMode = ServiceBusReceiveMode.PEEK_LOCK,
        prefetch_count: int = 0,
    ) -> ReceiverLink:
        """A new receiver link; nothing is connected yet."""

    async def begin_transaction(self, *, timeout_s: float) -> TransactionLink:
        """Begin a transaction, or raise `TransactionNotSupportedError`."""

    async def list_sessions(
        self, entity_path: str, *, state_updated_after: datetime | None, timeout_s: float
    ) -> Sequence[str]:
        """Sessions with messages or a state or, if a moment is given, those whose state was set after it."""

    async def close(self) -> None:
        """Close every link and the connection. Safe to call twice."""
