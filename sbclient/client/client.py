"""The client of one namespace, or of a pair; it creates senders, receivers and transactions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import datetime
from functools import partial
from random import Random, SystemRandom
from typing import Any, Final, Literal, Self, TypeAlias, Union

from sbclient import clock
from sbclient.administration import ServiceBusAdministrationClient
from sbclient.arguments.checked import checked
from sbclient.arguments.kinds import Seconds, ShortId, Utc
from sbclient.client.core import ClientCore
from sbclient.client.lock_renewer import AutoLockRenewer
from sbclient.client.receiver import PrefetchCount, ReceiveFrom, ServiceBusReceiver
from sbclient.client.sender import ServiceBusSender
from sbclient.client.transaction import Transaction
from sbclient.delivery import ReceiveMode, ServiceBusReceiveMode, ServiceBusSubQueue, SessionChoice, SubQueue
from sbclient.entities import EntityKind
from sbclient.errors import BacklogUnavailableError, InvalidOperationError, ServiceBusConnectionError
from sbclient.message import NamespaceSide
from sbclient.options import (
    OF_LINKS,
    PARTNER_CLOSE_GRACE,
    PairedNamespaceOptions,
    RetryOptions,
    SyphonLimits,
    without_ignored,
)
from sbclient.pairing.pair import Pair
from sbclient.pairing.pinger import Pinger
from sbclient.pairing.state import PairState
from sbclient.rules.connection_string import ConnectionString, parse_connection_string
from sbclient.rules.entity_path import (
    check_entity_path,
    dead_letter_path,
    split_sub_queue,
    subscription_path,
    transfer_dead_letter_path,
)
from sbclient.syphon.status import RESTARTED
from sbclient.syphon.syphon import Syphon, SyphonReport
from sbclient.telemetry import metrics
from sbclient.telemetry.log import get_logger
from sbclient.transport.base import OwnTransport, Transport, TransportChoice
from sbclient.transport.choice import open_transport

log = get_logger(__name__)

SYPHON_RESTART_S: Final = 10.0
LIST_SESSIONS_S: Final = 60.0

Secondary: TypeAlias = Union[str, tuple[str, Any], "ServiceBusClient"]


@checked
class ServiceBusClient:
    """The client of a primary namespace and, with pairing, of its secondary.

    Use it with `async with`, or call `close` at the end.

    Args:
        fully_qualified_namespace: `contoso.servicebus.windows.net` or its URL, with `credential`; or a parsed
            connection string.
        credential: an azure-identity credential.
        transport: the transport to the service: `"amqp"`, the own AMQP engine, or `"sdk"`, azure-servicebus; it applies
            to `secondary` too. Or an implementation of `transport.base.Transport`, instead of namespace and credential.
        secondary: the namespace of the backlog queues: a connection string, a tuple `(namespace, credential)`, or
            another open client, which is borrowed and not closed with this one. None = no pairing.
        secondary_transport: instead of `secondary`.
        options: the options of pairing; None = the documented defaults.
        enable_cross_entity_transactions: whether transactions may span entities of the primary. The first queue or
            topic that the client uses is then the only one that it can receive from; use a client for this alone.
        retry_total, retry_backoff_factor, retry_backoff_max, timeout: see `RetryOptions`.
        random: for tests and simulations; None = a new generator.
        sdk_options: options of azure-servicebus, such as `transport_type` and `http_proxy`; see docs/options.md.
            Those without an effect here, such as `retry_mode`, cause a `UserWarning`.

    Raises:
        InvalidOperationError: an argument is invalid, primary and secondary are the same namespace, or the client
            given as secondary is part of another pair.
    """

    def __init__(
        self,
        fully_qualified_namespace: str | ConnectionString | None = None,
        credential: Any = None,
        *,
        transport: TransportChoice | None = None,
        secondary: Secondary | None = None,
        secondary_transport: OwnTransport | None = None,
        options: PairedNamespaceOptions | None = None,
        enable_cross_entity_transactions: bool = False,
        retry_total: int = 3,
        retry_backoff_factor: float = 0.8,
        retry_backoff_max: float = 30.0,
        timeout: Seconds = 60.0,
        random: Random | None = None,
        **sdk_options: Any,
    ) -> None:
        retry = RetryOptions(
            retry_total=retry_total,
            retry_backoff_factor=retry_backoff_factor,
            retry_backoff_max=retry_backoff_max,
            timeout=timeout,
        )
        # The system's generator: processes forked from one another must never draw the same message ids.
        self._random = random or SystemRandom()
        self._sdk_options = without_ignored(sdk_options, transport, stacklevel=3)
        self._is_cross_entity = enable_cross_entity_transactions
        self._transport_name = transport if isinstance(transport, str) else None
        self._lender = secondary if isinstance(secondary, ServiceBusClient) else None
        if self._lender is not None:
            self._lender._check_lendable()

        self._pair: Pair | None
        self._core: ClientCore

        def connect() -> None:
            primary = (
                self._open_namespace(fully_qualified_namespace, credential)
                if transport is None or isinstance(transport, str)
                else transport
            )
            partner = secondary_transport or self._secondary_transport(secondary)
            if partner is None and options is not None:
                raise InvalidOperationError("options= requires a secondary namespace: add secondary=")
            state: PairState | None = None
            if partner is not None:
                state = PairState(primary, partner, options or PairedNamespaceOptions(), self._random)
            self._pair = Pair(state) if state else None
            self._core = ClientCore(primary, state, retry, self._random, on_open=self._start_background)

        connect()
        owns_all = (
            (transport is None or isinstance(transport, str)) and secondary_transport is None and self._lender is None
        )
        self._connect_again = connect if owns_all else None
        self._borrower: ServiceBusClient | None = None
        self._entity_path: str | None = None
        if self._lender is not None:
            self._lender._borrower = self

    @classmethod
    def from_connection_string(
        cls,
        conn_str: str,
        *,
        secondary: Secondary | None = None,
        options: PairedNamespaceOptions | None = None,
        **kwargs: Any,
    ) -> Self:
        """Create a client from a connection string of the service or of an emulator, or from `memory://name`.

        Args:
            conn_str: the primary; with `EntityPath` the client opens that entity only.
            secondary, options, kwargs: as for the class.

        Raises:
            InvalidOperationError: the connection string is invalid; the text never repeats a key.
        """
        connection = parse_connection_string(conn_str)
        kwargs = without_ignored(kwargs, kwargs.get("transport"), stacklevel=3)
        client = cls(connection, secondary=secondary, options=options, **kwargs)
        client._entity_path = connection.entity_path
        return client

    def _open_namespace(
        self, where: str | ConnectionString | None, credential: Any, *, is_secondary: bool = False
    ) -> Transport:
        """Open a transport for a parsed connection string, or for a name with a credential."""
        connection = where if isinstance(where, ConnectionString) else None
        if isinstance(where, str) and (credential is None or "=" in where):
            raise InvalidOperationError(
                "the namespace has no credential: add credential=, or use from_connection_string"
            )
        if where is None:
            raise InvalidOperationError("the namespace is missing: use from_connection_string, or add transport=")
        return open_transport(
            connection,
            fully_qualified_namespace=where if isinstance(where, str) else None,
            credential=credential,
            random=self._random,
            transport=self._transport_name,
            enable_cross_entity_transactions=self._is_cross_entity and not is_secondary,
            **self._sdk_options,
        )

    def _secondary_transport(self, secondary: Secondary | None) -> Transport | None:
        if secondary is None:
            return None
        if isinstance(secondary, ServiceBusClient):
            return secondary._core.primary
        if isinstance(secondary, str):
            return self._open_namespace(parse_connection_string(secondary), None, is_secondary=True)
        if not isinstance(secondary, tuple) or len(secondary) != 2:
            raise InvalidOperationError(
                f"secondary is a {type(secondary).__name__}: give a connection string, a tuple (namespace, credential) "
                "or an open ServiceBusClient"
            )
        namespace, credential = secondary
        return self._open_namespace(namespace, credential, is_secondary=True)

    async def __aenter__(self) -> Self:
        """Open the client, also again after `close`. Its earlier senders and receivers stay closed."""
        if self._core.is_closed and self._connect_again is not None and self._borrower is None:
            await self.close()  # finishes what a cancelled call left open
            self._connect_again()
        await self._core.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _start_background(self) -> None:
        pair = self._core.pair
        if pair is None:
            return
        self._core.tasks.start(Pinger(pair, self._core.tasks).run(), name="pinger")
        if pair.options.enable_syphon:
            self._core.tasks.start(self._keep_syphoning(), name="syphon")

    async def _keep_syphoning(self) -> None:
        """Run a syphon while the client is open; restart it after an error."""
        await self.pair.state.backlog.provisioned.wait()
        while True:
            try:
                await Syphon(self.pair).run()
            except Exception as error:
                log.error("syphon.restarted", RESTARTED, error=error, seconds=SYPHON_RESTART_S, exc_info=error)
            await clock.sleep(SYPHON_RESTART_S)

    async def close(self) -> None:
        """Close the client with its senders and receivers; a borrowed secondary stays open.

        Safe to call twice, also after a cancelled call.
        """
        self._core.enter_loop()
        if not self._core.is_closed:
            self._core.end()
            self._fault_partner()
        await self._core.tasks.close()
        for link in list(self._core.links):
            await link.close()
        await self._core.primary.close()
        pair = self._core.pair
        if pair is not None:
            metrics.unwatch(pair)
            await pair.backlog_links.close()
            if self._lender is None:
                await pair.secondary.close()

    async def renew_credentials(self) -> None:
        """Authenticate again at both namespaces with the credentials as they are now, for example after SIGHUP.

        Not needed for a rotation: a credential in a file, and one of azure.core that was updated, is used for each new
        token. A rejection is logged and ends no link before its token expires.
        """
        pair = self._core.pair
        for transport in [self._core.primary, *([pair.secondary] if pair is not None else [])]:
            await transport.renew_credential()

    def _fault_partner(self) -> None:
        """With a syphon in this process, make the client of the other namespace unusable after a grace period."""
        for partner in (self._lender, self._borrower):
            pair = self._core.pair or (partner._core.pair if partner is not None else None)
            if partner is not None and pair is not None and pair.has_syphon:
                self._fault_later(partner)
        if self._lender is not None and self._lender._borrower is self:
            self._lender._borrower = None

    def _fault_later(self, partner: ServiceBusClient) -> None:
        """Fault the client of the other namespace after the grace period, because this one is closed."""
        cause = ServiceBusConnectionError(f"the client of {self._core.primary.namespace} was closed")
        clock.call_later(PARTNER_CLOSE_GRACE.total_seconds(), partial(partner._core.fault, cause))

    def _check_lendable(self) -> None:
        self._core.check()
        if self._core.pair is not None or self._borrower is not None:
            raise InvalidOperationError(
                f"the client of {self._core.primary.namespace} is part of another pair: open one for each pair"
            )

    @property
    def fully_qualified_namespace(self) -> str:
        """The name of the primary namespace."""
        return self._core.primary.namespace

    @property
    def pair(self) -> Pair:
        """The pair: its status, its events, and manual failover.

        Raises:
            InvalidOperationError: the client has no secondary.
        """
        if self._pair is None:
            raise InvalidOperationError(
                f"the client of {self._core.primary.namespace} is not paired: open it with secondary="
            )
        return self._pair

    @property
    def administration(self) -> ServiceBusAdministrationClient:
        """The administration client of the primary namespace."""
        self._core.check()
        administration = ServiceBusAdministrationClient(transport=self._core.primary)
        administration._answered = self._core.primary_answered
        return administration

    def get_queue_sender(
        self, queue_name: str, *, partitioned: bool | None = None, **link_options: Any
    ) -> ServiceBusSender:
        """Create a sender for a queue.

        Args:
            partitioned: whether the queue is partitioned. False = concurrent sends of messages with different session
                ids or partition keys share transfers, which is faster with many of them. For the early check of keys in
                transactions, None = the client looks it up; without the right to do so the queue counts as partitioned.
            link_options: `client_identifier`, `socket_timeout` and other options that azure-servicebus has for one AMQP
                link; they have no effect and cause a `UserWarning`.

        Raises:
            InvalidOperationError: the name is invalid, or not that of the connection string.
            TypeError: there is no such option.
        """
        _check_link_options(link_options)
        return self._sender(queue_name, EntityKind.QUEUE, partitioned)

    def get_topic_sender(
        self, topic_name: str, *, partitioned: bool | None = None, **link_options: Any
    ) -> ServiceBusSender:
        """Create a sender for a topic; see `get_queue_sender`."""
        _check_link_options(link_options)
        return self._sender(topic_name, EntityKind.TOPIC, partitioned)

    def _sender(self, name: str, kind: EntityKind, partitioned: bool | None) -> ServiceBusSender:
        self._core.check()
        sender = ServiceBusSender(self._core, self._checked(name, kind), kind, partitioned=partitioned)
        self._core.links[sender] = None
        return sender

    def get_queue_receiver(
        self,
        queue_name: str,
        *,
        session_id: SessionChoice = None,
        sub_queue: SubQueue | None = None,
        receive_mode: ReceiveMode = ServiceBusReceiveMode.PEEK_LOCK,
        max_wait_time: Seconds | None = None,
        auto_lock_renewer: AutoLockRenewer | None = None,
        prefetch_count: PrefetchCount = 0,
        receive_from: ReceiveFrom | None = None,
        **link_options: Any,
    ) -> ServiceBusReceiver:
        """Create a receiver for a queue.

        Args:
            queue_name: its path, or that of its sub-queue: `orders/$DeadLetterQueue`.
            session_id: a session id, or `NEXT_AVAILABLE_SESSION`; None = not a session receiver.
            sub_queue: receive dead letters, or transfer dead letters, instead.
            receive_mode: whether messages are locked until they are settled, or deleted on receipt.
            max_wait_time: seconds without a message after which iteration ends and `receive_messages` returns; with
                `NEXT_AVAILABLE_SESSION` also the longest wait for a session. None = 60 s, and iteration never ends.
            auto_lock_renewer: renews the locks of received messages.
            prefetch_count: the number of messages that may be fetched, and locked, in advance. 0 to 50,000.
            receive_from: `"both"` also receives from the entity of the same path in the secondary; None = as the
                `receive_from` of the options of the pair. Order across the two is not kept.
            link_options: see `get_queue_sender`.
        """
        _check_link_options(link_options)
        queue_name, sub_queue = _split(queue_name, sub_queue)
        return self._receiver(
            self._checked(queue_name, EntityKind.QUEUE),
            sub_queue,
            session=session_id,
            receive_mode=receive_mode,
            max_wait_time=max_wait_time,
            auto_lock_renewer=auto_lock_renewer,
            prefetch_count=prefetch_count,
            receive_from=receive_from,
        )

    def get_subscription_receiver(
        self,
        topic_name: str,
        subscription_name: str,
        *,
        session_id: SessionChoice = None,
        sub_queue: SubQueue | None = None,
        receive_mode: ReceiveMode = ServiceBusReceiveMode.PEEK_LOCK,
        max_wait_time: Seconds | None = None,
        auto_lock_renewer: AutoLockRenewer | None = None,
        prefetch_count: PrefetchCount = 0,
        receive_from: ReceiveFrom | None = None,
        **link_options: Any,
    ) -> ServiceBusReceiver:
        """Create a receiver for a subscription; see `get_queue_receiver`."""
        _check_link_options(link_options)
        subscription_name, sub_queue = _split(subscription_name, sub_queue)
        return self._receiver(
            self._subscription(topic_name, subscription_name),
            sub_queue,
            session=session_id,
            receive_mode=receive_mode,
            max_wait_time=max_wait_time,
            auto_lock_renewer=auto_lock_renewer,
            prefetch_count=prefetch_count,
            receive_from=receive_from,
        )

    def _receiver(self, path: str, sub_queue: ServiceBusSubQueue | str | None, **options: Any) -> ServiceBusReceiver:
        self._core.check()
        if sub_queue is not None and options["session"] is not None:
            raise InvalidOperationError(
                f"session_id and sub_queue are both set for {path!r}: dead letters have no sessions, remove session_id"
            )
        receiver = ServiceBusReceiver(self._core, _sub_queue_path(path, sub_queue), **options)
        self._core.links[receiver] = None
        return receiver

    def _checked(self, name: str, kind: EntityKind) -> str:
        path = check_entity_path(name, kind)
        if self._entity_path is not None and path.casefold() != self._entity_path.casefold():
            raise InvalidOperationError(
                f"the connection string is for {self._entity_path!r}, not for {path!r}: use one of the namespace"
            )
        return path

    def _subscription(self, topic_name: str, subscription_name: str) -> str:
        topic = self._checked(topic_name, EntityKind.TOPIC)
        return subscription_path(topic, check_entity_path(subscription_name, "subscription"))

    def transaction(self, *, partition_key: ShortId | None = None, namespace: NamespaceSide = "primary") -> Transaction:
        """Create a transaction: `async with client.transaction() as transaction: …`.

        Args:
            namespace: where it takes effect. `message.namespace` for a message that `receive_from="both"` found: its
                sends then go to the entities of that namespace.
            partition_key: needed if the transaction spans entities and the first of them is partitioned: selects the
                partition in which messages to the other entities wait for the commit. It is the partition key or
                session id of the messages that are settled in the transaction.
        """
        self._core.check()
        if namespace == "secondary":
            _ = self.pair  # raises without one
        return Transaction(self._core, partition_key, namespace)

    async def run_syphon(
        self, until: Literal["empty"] | None = None, *, limits: SyphonLimits | None = None
    ) -> SyphonReport:
        """Run a syphon, which forwards the backlog to the primary.

        Args:
            until: `"empty"` returns when no message is left that can be forwarded; None runs until the call is
                cancelled, completes the messages in flight, and releases the others.
            limits: limits of its rate and of the messages in flight; None = the defaults.

        Raises:
            BacklogUnavailableError: with `until="empty"`, the secondary is unavailable. Without it the syphon waits.
            InvalidOperationError: the client has no secondary or was closed, or `until` is invalid.
            PairedClientError: the client given as secondary was closed, 5 s ago.
        """
        pair = self.pair
        if self._lender is not None and self._lender._core.is_closed:
            self._lender._fault_later(self)
        await self._core.open()

        async def run() -> SyphonReport | BacklogUnavailableError:
            if until == "empty":
                try:
                    await pair.state.backlog.wait(self._core.retry.options.timeout)
                except BacklogUnavailableError as error:
                    return error  # the owner of the task would log an exception
            await pair.state.backlog.provisioned.wait()
            return await Syphon(pair, until=until, limits=limits).run()

        syphon = self._core.tasks.start(run(), name="syphon")
        pair.state.syphons += 1
        try:
            result = await syphon
        except asyncio.CancelledError:
            current = asyncio.current_task()
            if current is None or not current.cancelling():
                self._core.check()  # the client was closed or faulted
            raise
        finally:
            pair.state.syphons -= 1
        if isinstance(result, BacklogUnavailableError):
            raise result
        return result

    async def list_queue_sessions(
        self, queue_name: str, *, state_updated_after: Utc | None = None, timeout: Seconds | None = None
    ) -> AsyncIterator[str]:
        """Yield the sessions of a queue with messages or a state; or those whose state was set after a given time."""
        async for session in self._sessions(self._checked(queue_name, EntityKind.QUEUE), state_updated_after, timeout):
            yield session

    async def list_subscription_sessions(
        self,
        topic_name: str,
        subscription_name: str,
        *,
        state_updated_after: Utc | None = None,
        timeout: Seconds | None = None,
    ) -> AsyncIterator[str]:
        """Yield the sessions of a subscription; see `list_queue_sessions`."""
        path = self._subscription(topic_name, subscription_name)
        async for session in self._sessions(path, state_updated_after, timeout):
            yield session

    async def _sessions(self, path: str, after: datetime | None, timeout: float | None) -> AsyncIterator[str]:
        await self._core.open()
        sessions = await self._core.primary.list_sessions(
            path, state_updated_after=after, timeout_s=LIST_SESSIONS_S if timeout is None else timeout
        )
        for session in sessions:
            yield session


def _split(name: str, sub_queue: ServiceBusSubQueue | str | None) -> tuple[str, ServiceBusSubQueue | str | None]:
    """Return the name of an entity and its sub-queue, which may also be given as the end of the name."""
    return split_sub_queue(name) if sub_queue is None else (name, sub_queue)


def _sub_queue_path(path: str, sub_queue: ServiceBusSubQueue | str | None) -> str:
    if sub_queue is None:
        return path
    return dead_letter_path(path) if sub_queue == ServiceBusSubQueue.DEAD_LETTER else transfer_dead_letter_path(path)


def _check_link_options(options: dict[str, Any]) -> None:
    """Warn of options of one AMQP link.

    Raises:
        TypeError: an option is not one of a link.
    """
    for name in options.keys() - OF_LINKS:
        raise TypeError(f"{name!r} is not an option of a sender or receiver: use the options that the method documents")
    without_ignored(options, "link", stacklevel=4)
