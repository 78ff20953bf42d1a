"""The clients of one Python worker process: opened once, kept between tasks, closed after an idle time.

Workers of Spark outlive their tasks, and opening a client takes a second. An event loop in its own thread runs the
clients, so that heartbeats, pings and failover continue between tasks. Spark kills workers, so closing a client sends
nothing: every message was acknowledged before.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Coroutine
from random import SystemRandom
from typing import Any, Final, TypeVar

from sbclient import clock
from sbclient.client.client import ServiceBusClient
from sbclient.client.sender import ServiceBusSender
from sbclient.errors import BacklogUnavailableError, ServiceBusError
from sbclient.tasks import OwnedTasks
from sbclient.transport.base import Transport
from sbclient.transport.choice import open_transport
from sbclient_spark.credentials import connection_string_of, credential_of
from sbclient_spark.log import log_event
from sbclient_spark.options import ConnectionOptions, Destination, NamespaceOptions

T = TypeVar("T")

RANDOM: Final = SystemRandom()
"""The generator of the system, because forked workers would draw the same numbers from another one."""

SECONDARY_S: Final = 30.0
"""The longest time that a task waits for the backlog queues before it writes without them."""


class _OwningClient(ServiceBusClient):
    """A client that closes its credential, because those of azure-identity hold connections."""

    credential: Any = None

    async def close(self) -> None:
        """Close the client and its credential."""
        await super().close()
        if self.credential is not None:
            await self.credential.close()


def open_client(options: ConnectionOptions, *, paired: bool) -> ServiceBusClient:
    """Return a client for these options that is not connected yet.

    Args:
        paired: False leaves the secondary out.

    Raises:
        ServiceBusAuthenticationError: a secret is not available in this process.
        InvalidOperationError: a connection string is invalid.
    """
    credential = credential_of(options)

    def transport(namespace: NamespaceOptions, what: str) -> Transport:
        return open_transport(
            connection_string_of(namespace, what),
            fully_qualified_namespace=namespace.fully_qualified_namespace,
            credential=credential,
            random=RANDOM,
            transport=options.transport,
        )

    retry: dict[str, Any] = dict(options.retry)
    client = _OwningClient(
        transport=transport(options.primary, "connectionString"),
        secondary_transport=transport(options.secondary, "secondaryConnectionString") if paired else None,
        options=options.pairing_options() if paired else None,
        timeout=options.send_timeout_s,
        random=RANDOM,
        **retry,
    )
    client.credential = credential
    return client


class Connection:
    """An open client and its senders.

    Attributes:
        is_unpaired: the secondary was unreachable when the client was opened, so there is no failover.
        connect_ms: the time to open the client.
        leases: the number of current leases.
        uses: the number of leases so far.
    """

    def __init__(
        self, options: ConnectionOptions, client: ServiceBusClient, connect_ms: float, is_unpaired: bool
    ) -> None:
        self._options = options
        self._senders: dict[Destination, ServiceBusSender] = {}
        self._unpartitioned: dict[Destination, bool] = {}
        self.client = client
        self.connect_ms = connect_ms
        self.is_unpaired = is_unpaired
        self.leases = 0
        self.uses = 0

    def sender(self, destination: Destination) -> ServiceBusSender:
        """Return the sender of a destination."""
        sender = self._senders.get(destination)
        if sender is None:
            sender = self._senders[destination] = self.new_sender(destination)
        return sender

    async def is_unpartitioned(self, destination: Destination) -> bool:
        """Return whether an entity is known not to be partitioned; asked once, or again after an error."""
        known = self._unpartitioned.get(destination)
        if known is None:
            administration = self.client.administration
            get: Any = administration.get_topic if destination.word == "topic" else administration.get_queue
            try:
                known = not (await get(destination.path)).enable_partitioning
            except ServiceBusError:  # such as a missing right: the send raises what matters
                return False
            self._unpartitioned[destination] = known
        return known

    def new_sender(self, destination: Destination) -> ServiceBusSender:
        """Return a new sender, which shares no state with others."""
        if self._options.failover == "backlog" and self._options.is_paired:
            self.client.pair.force_failover(destination.path)
        if destination.word == "topic":
            return self.client.get_topic_sender(destination.path)
        return self.client.get_queue_sender(destination.path)


class WorkerClients:
    """The clients of this process and the thread of their event loop."""

    def __init__(self) -> None:
        self._connections: dict[ConnectionOptions, Connection] = {}
        self._opening = asyncio.Lock()
        self._tasks = OwnedTasks()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="sbclient", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the thread of the clients and return its result."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    async def lease(self, options: ConnectionOptions) -> Connection:
        """Return an open client for these options; `give_back` ends the lease.

        If only the secondary is unreachable, the client is opened without it, a warning is logged, and the next lease
        tries again. With `ordering="session"` that is an error, because the order could not be kept.

        Raises:
            ServiceBusError: the client cannot be opened.
        """
        async with self._opening:
            connection = self._connections.get(options)
            if connection is not None and connection.is_unpaired and not connection.leases:
                del self._connections[options]
                await connection.client.close()
                connection = None
            if connection is None:
                connection = self._connections[options] = await self._open(options)
            connection.leases += 1
            connection.uses += 1
            return connection

    async def _open(self, options: ConnectionOptions) -> Connection:
        began_at = clock.monotonic()
        is_unpaired = False
        try:
            client = await _opened(options, paired=options.is_paired)
        except ServiceBusError as error:
            is_unreachable = isinstance(error, BacklogUnavailableError) or error.is_outage
            requires_secondary = options.failover == "backlog" or dict(options.pairing).get("ordering") == "session"
            if not options.is_paired or not is_unreachable or requires_secondary:
                raise
            log_event(
                "pair.unavailable",
                "writing without the secondary: {error}: {reason}",
                {"error": type(error).__name__, "reason": str(error)},
                level=logging.WARNING,
            )
            is_unpaired = True
            client = await _opened(options, paired=False)
        return Connection(options, client, 1000 * (clock.monotonic() - began_at), is_unpaired)

    async def give_back(self, options: ConnectionOptions) -> None:
        """End a lease. A client without leases is closed after its idle time."""
        connection = self._connections.get(options)
        if connection is None:
            return
        connection.leases -= 1
        if not connection.leases:
            uses = connection.uses
            clock.call_later(options.idle_timeout_s, lambda: self._close_if_idle(options, connection, uses))

    def _close_if_idle(self, options: ConnectionOptions, connection: Connection, uses: int) -> None:
        """Close a client that was not leased since `uses` was counted."""
        if connection.uses == uses and self._connections.get(options) is connection:
            del self._connections[options]
            self._tasks.start(connection.client.close(), name="close idle client")

    async def close(self) -> None:
        """Close every client."""
        connections = list(self._connections.values())
        self._connections.clear()
        for connection in connections:
            await connection.client.close()


async def _opened(options: ConnectionOptions, *, paired: bool) -> ServiceBusClient:
    """Return an open client; close it if it cannot be opened, or if the task is cancelled meanwhile."""
    client = open_client(options, paired=paired)
    try:
        await client.__aenter__()
        if paired:
            await client.pair.state.backlog.wait(SECONDARY_S)
    except BaseException:
        await client.close()
        raise
    return client


_clients: tuple[int, WorkerClients] | None = None
_making = threading.Lock()


def worker_clients() -> WorkerClients:
    """Return the clients of this process; a forked child has its own."""
    global _clients
    with _making:
        if _clients is None or _clients[0] != os.getpid():
            _clients = (os.getpid(), WorkerClients())
        return _clients[1]
