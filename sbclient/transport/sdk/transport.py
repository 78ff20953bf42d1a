"""A namespace over azure-servicebus, through its public API only.

The retries of the SDK are off, because this package has its own retry policy. The SDK is imported when its first client
is made. Its objects connect when they are first used.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from random import Random
from typing import Any, Final

from sbclient import clock
from sbclient.certificate import is_this_machine, local_trust
from sbclient.delivery import NEXT_AVAILABLE_SESSION, ServiceBusReceiveMode, SessionChoice
from sbclient.errors import InvalidOperationError, TransactionNotSupportedError
from sbclient.options import check_known, options_of
from sbclient.rules.connection_string import ConnectionString
from sbclient.rules.http_proxy import http_proxy_of
from sbclient.tasks import LoopHome, OwnedTasks
from sbclient.transport.base import Check, Transport
from sbclient.transport.credential_file import CredentialFile
from sbclient.transport.sdk.administration import SdkAdministration
from sbclient.transport.sdk.errors import Place, translated
from sbclient.transport.sdk.link import CANCEL_TIMEOUT_S
from sbclient.transport.sdk.receiver import SdkReceiver
from sbclient.transport.sdk.sender import SdkSender, SdkTransaction

NO_RETRIES: Final = {"retry_total": 0, "retry_backoff_factor": 0.0}

_AMQP_ONLY: Final = (
    "amqp_transport",
    "auth_timeout",
    "client_identifier",
    "custom_endpoint_address",
    "http_proxy",
    "keep_alive",
    "socket_timeout",
    "ssl_context",
    "transport_type",
    "try_timeout",
)
"""Options that the administration client of the SDK does not have, or that have another meaning there."""

_TRUST_OPTIONS: Final = frozenset({"connection_verify", "ssl_context"})


def open_sdk_transport(
    connection: ConnectionString | None,
    *,
    fully_qualified_namespace: str | None = None,
    credential: Any = None,
    random: Random,
    **sdk_options: Any,
) -> SdkTransport:
    """Return a transport for a connection string, or for a namespace and a credential; nothing is connected yet.

    Args:
        connection: parsed; None if the other two are given.
        fully_qualified_namespace: `contoso.servicebus.windows.net`.
        credential: an asynchronous credential of azure-identity, an `AzureNamedKeyCredential` or `AzureSasCredential`.
        random: not used; the other transports have it.
        sdk_options: passed to azure-servicebus unchanged, see `TRANSPORT_OPTIONS`.

    Raises:
        InvalidOperationError: neither a connection string nor a namespace with a credential was given, or an option is
            unknown.
    """
    check_known(sdk_options, options_of("sdk"))
    if connection is None and (fully_qualified_namespace is None or credential is None):
        raise InvalidOperationError(
            "the namespace is missing: pass a connection string, or fully_qualified_namespace and credential"
        )
    if sdk_options.get("http_proxy"):
        proxy = http_proxy_of(sdk_options["http_proxy"])
        # The asynchronous client of azure-servicebus takes the address of its WebSockets only in this form.
        address: dict[str, Any] = {"proxy_hostname": f"http://{proxy.host}", "proxy_port": proxy.port}
        account = {"username": proxy.username, "password": proxy.password} if proxy.username else {}
        sdk_options["http_proxy"] = address | account
    return SdkTransport(connection, fully_qualified_namespace, credential, sdk_options)


class SdkTransport(Transport):
    """One namespace of the service.

    Attributes:
        tasks: owns the tasks that outlive a call.
    """

    def __init__(
        self,
        connection: ConnectionString | None,
        fully_qualified_namespace: str | None,
        credential: Any,
        sdk_options: dict[str, Any],
    ) -> None:
        self._connection = connection
        self._fully_qualified_namespace = fully_qualified_namespace or ""
        self._credential = credential
        self._sdk_options = sdk_options
        self._client: Any = None
        has_file = connection is not None and connection.credential_file is not None
        self._file = CredentialFile(connection) if connection is not None and has_file else None
        self._used: ConnectionString | None = None
        self._links: dict[SdkSender | SdkReceiver, None] = {}
        self._is_closed = False
        self._administration = SdkAdministration(self)
        self._home = LoopHome()
        self.tasks = OwnedTasks(on_failure=_ignore)

    def __repr__(self) -> str:
        return f"SdkTransport({self.namespace!r})"

    @property
    def namespace(self) -> str:
        return self._connection.namespace if self._connection is not None else self._fully_qualified_namespace

    @property
    def place(self) -> Place:
        """The namespace, for errors."""
        connection = self._connection
        if connection is None:
            return Place(self.namespace)
        is_emulator = connection.use_development_emulator
        is_elsewhere = connection.port is not None or is_this_machine(connection.host)
        return Place(self.namespace, is_emulator, is_perhaps_emulator=is_elsewhere and not is_emulator)

    def enter_loop(self) -> None:
        move = self._home.enter(f"the client of {self.namespace}")
        if move is None:
            return
        self.tasks.abandon()
        self.tasks = OwnedTasks(on_failure=_ignore)
        self._client = None
        self._administration.leave_loop()
        for link in self._links:
            link.leave_loop(move)

    @property
    def administration(self) -> SdkAdministration:
        return self._administration

    def open_sender(self, entity_path: str, check: Check | None = None) -> SdkSender:
        sender = SdkSender(self, entity_path, check)
        self._links[sender] = None
        return sender

    def open_receiver(
        self,
        entity_path: str,
        *,
        session: SessionChoice = None,
        receive_mode: ServiceBusReceiveMode = ServiceBusReceiveMode.PEEK_LOCK,
        prefetch_count: int = 0,
    ) -> SdkReceiver:
        return SdkReceiver(self, entity_path, session, receive_mode, prefetch_count)

    async def begin_transaction(self, *, timeout_s: float, partition_key: str | None = None) -> SdkTransaction:
        self._check_open()
        if partition_key is not None:
            raise TransactionNotSupportedError(
                "a transaction over azure-servicebus has one entity and no partition_key: use transport='amqp'"
            )
        return SdkTransaction()

    async def list_sessions(
        self, entity_path: str, *, state_updated_after: datetime | None, timeout_s: float
    ) -> Sequence[str]:
        listed = self._sdk_client().list_queue_sessions(
            entity_path, state_updated_after=state_updated_after, timeout=timeout_s
        )
        try:
            return [session async for session in listed]
        except Exception as error:
            own = translated(error, f"list the sessions of {entity_path!r}", self.place)
            if own is error:
                raise
            raise own from error

    async def renew_credential(self) -> None:
        """The credential is read for each object of the SDK."""

    async def close(self) -> None:
        """Close every link. After a cancellation a second call closes the rest."""
        self.enter_loop()
        self._is_closed = True
        await asyncio.gather(*(link.close() for link in list(self._links)))
        with suppress(TimeoutError):
            async with clock.timeout(CANCEL_TIMEOUT_S):
                await self._administration.close()
        await self.tasks.close()

    # -- for the links ------------------------------------------------------------------------------------------

    def keep(self, link: SdkSender | SdkReceiver) -> None:
        """Close a link with the transport."""
        self._links[link] = None

    def forget(self, link: SdkSender | SdkReceiver) -> None:
        """Drop a link that was closed."""
        self._links.pop(link, None)

    def sdk_sender(self, path: str) -> Any:
        """Return a new sender of the SDK, without heartbeats: it is closed before the service expects one."""
        return self._sdk_client().get_queue_sender(path, keep_alive=0, **self._link_options())

    def sdk_receiver(
        self, path: str, session: SessionChoice, mode: ServiceBusReceiveMode, prefetch_count: int, wait_s: float | None
    ) -> Any:
        """Return a new receiver of the SDK, which waits `wait_s` seconds for the next available session."""
        from azure.servicebus import NEXT_AVAILABLE_SESSION as SDK_NEXT_AVAILABLE

        is_any = session is NEXT_AVAILABLE_SESSION
        return self._sdk_client().get_queue_receiver(
            path,
            session_id=SDK_NEXT_AVAILABLE if is_any else session,
            receive_mode=mode.value,
            max_wait_time=wait_s if is_any else None,
            prefetch_count=prefetch_count,
            **self._link_options(),
        )

    def sdk_administration(self) -> Any:
        """Return a new administration client of the SDK."""
        from azure.servicebus.aio.management import ServiceBusAdministrationClient

        from sbclient.transport.sdk import http

        self._check_open()
        given = self._sdk_options
        options = {name: value for name, value in given.items() if name not in _AMQP_ONLY}
        ssl_context, verify = given.get("ssl_context"), given.get("connection_verify", True)
        proxies = http.proxies_of_option(given["http_proxy"]) if "http_proxy" in given else None
        if (host := self._local_emulator) is not None:
            proxies = proxies or {}
            if not _TRUST_OPTIONS & given.keys():
                ssl_context = local_trust(host)
        if proxies is None:
            proxies = http.proxies_of_environment(self.namespace)
        options.setdefault("proxies", proxies)
        options.update(NO_RETRIES, **http.pipeline_options(ssl_context, verify))
        if self._connection is not None:
            current = self._current_connection(self._connection)
            return ServiceBusAdministrationClient.from_connection_string(_text_of(current), **options)
        if (text := _text_for_keys(self.namespace, self._credential)) is not None:
            return ServiceBusAdministrationClient.from_connection_string(text, **options)
        return ServiceBusAdministrationClient(self.namespace, self._credential, **options)

    @property
    def _local_emulator(self) -> str | None:
        """The host of an emulator on this machine, None for any other namespace."""
        connection = self._connection
        if connection is None or not connection.use_development_emulator or not is_this_machine(connection.host):
            return None
        return connection.host

    def _sdk_client(self) -> Any:
        """Return the client of the SDK, which has no connection and makes senders and receivers."""
        from azure.servicebus.aio import ServiceBusClient

        self._check_open()
        connection = self._connection and self._current_connection(self._connection)
        if self._client is None or connection != self._used:
            options = {**self._sdk_options, **NO_RETRIES}
            options.pop("socket_timeout", None)  # an option of each link
            self._used = connection
            if connection is not None:
                self._client = ServiceBusClient.from_connection_string(_text_of(connection), **options)
            else:
                self._client = ServiceBusClient(self.namespace, self._credential, **options)
        return self._client

    def _current_connection(self, connection: ConnectionString) -> ConnectionString:
        return connection if self._file is None else self._file.read()

    def _link_options(self) -> dict[str, Any]:
        return {name: self._sdk_options[name] for name in ("socket_timeout",) if name in self._sdk_options}

    def _check_open(self) -> None:
        if self._is_closed:
            raise InvalidOperationError(f"the client of {self.namespace} is closed: open a new one")


def _text_of(connection: ConnectionString) -> str:
    """Return the connection string for the SDK, without EntityPath, which this package itself checks."""
    host = f"[{connection.host}]" if ":" in connection.host else connection.host
    parts = [f"Endpoint=sb://{host}{'' if connection.port is None else f':{connection.port}'}/"]
    if connection.signature is not None:
        parts.append(f"SharedAccessSignature={connection.signature}")
    else:
        parts += [f"SharedAccessKeyName={connection.key_name}", f"SharedAccessKey={connection.key}"]
    if connection.use_development_emulator:
        parts.append("UseDevelopmentEmulator=true")
    return ";".join(parts)


def _text_for_keys(namespace: str, credential: Any) -> str | None:
    """Return a connection string for the credentials that the administration client of the SDK does not accept."""
    from azure.core.credentials import AzureNamedKeyCredential, AzureSasCredential

    if isinstance(credential, AzureNamedKeyCredential):
        name, key = credential.named_key
        return f"Endpoint=sb://{namespace}/;SharedAccessKeyName={name};SharedAccessKey={key}"
    if isinstance(credential, AzureSasCredential):
        return f"Endpoint=sb://{namespace}/;SharedAccessSignature={credential.signature}"
    return None


def _ignore(error: BaseException) -> None:
    """Ignore the error of a call, which its caller has received unless it was cancelled."""
