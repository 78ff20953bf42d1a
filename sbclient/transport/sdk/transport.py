"""The real service, and whatever speaks as it does, through azure-servicebus behind the transport port.

The SDK's own retries are off: there is one retry policy, ours. The SDK is imported when a transport is opened, and its
objects connect when they are first used.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from difflib import get_close_matches
from importlib.util import find_spec
from random import Random
from typing import Any, Final

from sbclient.certificate import Certificate, default_directory
from sbclient.clock import Clock
from sbclient.delivery import NEXT_AVAILABLE_SESSION, ServiceBusReceiveMode, SessionChoice
from sbclient.errors import InvalidOperationError, OperationTimeoutError
from sbclient.rules.connection_string import ConnectionString
from sbclient.tasks import OwnedTasks
from sbclient.transport.base import Transport
from sbclient.transport.sdk.administration import AzureAdministration
from sbclient.transport.sdk.errors import Place
from sbclient.transport.sdk.link import END_S, GivenUpError, SdkLink
from sbclient.transport.sdk.receiver import AzureReceiver
from sbclient.transport.sdk.sender import AzureSender, AzureTransaction

NO_RETRIES: Final = {"retry_total": 0, "retry_backoff_factor": 0.0}
HTTP_TIMEOUT_S: Final = 20

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
)
"""Options that mean nothing to the SDK's administration client, or something else."""

_OPTIONS: Final = frozenset(
    {*_AMQP_ONLY, "connection_verify", "logging_enable", "proxies", "transport", "use_tls", "user_agent"}
)
"""All that is handed on to the SDK; it would swallow any other name without a word."""

_LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")
_TRUST_OPTIONS: Final = frozenset({"connection_verify", "ssl_context", "transport"})


def open_azure_transport(
    connection: ConnectionString | None,
    *,
    fully_qualified_namespace: str | None = None,
    credential: Any = None,
    clock: Clock,
    random: Random,
    **sdk_options: Any,
) -> AzureTransport:
    """A transport for a connection string, or for a namespace and a credential; nothing is connected yet.

    Args:
        connection: parsed; None where the other two are given.
        fully_qualified_namespace: `contoso.servicebus.windows.net`.
        credential: of azure-identity (asynchronous), or an `AzureNamedKeyCredential` or `AzureSasCredential`.
        clock: the only source of time.
        random: taken for the sake of the port's other kinds; the SDK brings its own.
        sdk_options: handed to azure-servicebus as they are: `transport_type`, `http_proxy`, `custom_endpoint_address`,
            `connection_verify`, `ssl_context`, `user_agent`, `socket_timeout`, `logging_enable`.

    Raises:
        InvalidOperationError: neither a connection string nor a namespace with a credential was given, or there is no
            such option.
    """
    for name in sorted(sdk_options.keys() - _OPTIONS):
        near = get_close_matches(name, [*_OPTIONS, "secondary", "options", "retry_total", "timeout"], n=1)
        advice = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(sorted(_OPTIONS))}"
        raise InvalidOperationError(f"{name!r} is no option of a client: {advice}")
    if connection is None and (fully_qualified_namespace is None or credential is None):
        raise InvalidOperationError("a namespace and a credential, or a connection string, are needed: give one")
    return AzureTransport(connection, fully_qualified_namespace, credential, clock, sdk_options)


class AzureTransport(Transport):
    """One namespace of the service.

    Attributes:
        clock: the only source of time.
        tasks: owns whatever runs on behind a call.
    """

    def __init__(
        self,
        connection: ConnectionString | None,
        fully_qualified_namespace: str | None,
        credential: Any,
        clock: Clock,
        sdk_options: dict[str, Any],
    ) -> None:
        self._connection = connection
        self._fully_qualified_namespace = fully_qualified_namespace or ""
        self._credential = credential
        self._sdk_options = sdk_options
        self._client: Any = None
        self._links: dict[AzureSender | AzureReceiver, None] = {}
        self._is_closed = False
        self._administration = AzureAdministration(self)
        self.clock = clock
        self.tasks = OwnedTasks(on_failure=_is_told_elsewhere)

    def __repr__(self) -> str:
        return f"AzureTransport({self.namespace!r})"

    @property
    def namespace(self) -> str:
        return self._connection.namespace if self._connection is not None else self._fully_qualified_namespace

    @property
    def place(self) -> Place:
        """The namespace, for errors."""
        connection = self._connection
        is_elsewhere = connection is not None and (connection.port is not None or connection.host in _LOOPBACK)
        is_perhaps = connection is not None and is_elsewhere and not connection.use_development_emulator
        return Place(self.namespace, is_perhaps)

    @property
    def administration(self) -> AzureAdministration:
        return self._administration

    def open_sender(self, entity_path: str) -> AzureSender:
        sender = AzureSender(self, entity_path)
        self._links[sender] = None
        return sender

    def open_receiver(
        self,
        entity_path: str,
        *,
        session: SessionChoice = None,
        receive_mode: ServiceBusReceiveMode = ServiceBusReceiveMode.PEEK_LOCK,
        prefetch_count: int = 0,
    ) -> AzureReceiver:
        receiver = AzureReceiver(self, entity_path, session, receive_mode, prefetch_count)
        self._links[receiver] = None
        return receiver

    async def begin_transaction(self, *, timeout_s: float) -> AzureTransaction:
        self._check_open()
        return AzureTransaction()

    async def list_sessions(
        self, entity_path: str, *, state_updated_after: datetime | None, timeout_s: float
    ) -> Sequence[str]:
        browser = self._sdk_client()._create_session_browser(entity_name=entity_path, keep_alive=0)
        link = SdkLink(browser, repr(entity_path), self.clock, self.tasks, place=self.place)

        async def gather(sdk: Any) -> list[str]:
            found = sdk.list_sessions(state_updated_after=state_updated_after, timeout=timeout_s)
            return [session async for session in found]

        try:
            return await link.call(gather, doing="list the sessions of", timeout_s=timeout_s)
        except GivenUpError:
            raise OperationTimeoutError(f"the sessions of {entity_path!r} were not listed in time") from None
        finally:
            link.give_up()

    async def close(self) -> None:
        """Close every link. A second call finishes what a first one, that was cancelled, did not."""
        self._is_closed = True
        await asyncio.gather(*(link.close() for link in list(self._links)))
        with suppress(TimeoutError):
            async with self.clock.timeout(END_S):
                await self._administration.close()
        await self.tasks.close()

    # -- what the links need -------------------------------------------------------------------------------------

    def forget(self, link: AzureSender | AzureReceiver) -> None:
        """The link was closed."""
        self._links.pop(link, None)

    def sdk_sender(self, path: str) -> Any:
        """A new sender of the SDK. Without heartbeat: it is closed before the service could miss one."""
        return self._sdk_client().get_queue_sender(path, keep_alive=0, **self._link_options())

    def sdk_receiver(
        self, path: str, session: SessionChoice, mode: ServiceBusReceiveMode, prefetch_count: int, wait_s: float | None
    ) -> Any:
        """A new receiver of the SDK. `wait_s` is how long to wait for a session where any will do."""
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
        """A new administration client of the SDK."""
        from azure.servicebus.aio.management import ServiceBusAdministrationClient

        self._check_open()
        options = {name: value for name, value in self._sdk_options.items() if name not in _AMQP_ONLY}
        options.update(NO_RETRIES, connection_timeout=HTTP_TIMEOUT_S, read_timeout=HTTP_TIMEOUT_S)
        ssl_context = self._sdk_options.get("ssl_context")
        if self._is_local_emulator and not _TRUST_OPTIONS & self._sdk_options.keys():
            options["connection_verify"], ssl_context = _trust_of_this_machine()
        options.setdefault("transport", _http_transport(ssl_context, options))
        if "http_proxy" in self._sdk_options:
            options.setdefault("proxies", _proxies(self._sdk_options["http_proxy"]))
        if self._connection is not None:
            return ServiceBusAdministrationClient.from_connection_string(_text_of(self._connection), **options)
        if (text := _text_for_keys(self.namespace, self._credential)) is not None:
            return ServiceBusAdministrationClient.from_connection_string(text, **options)
        return ServiceBusAdministrationClient(self.namespace, self._credential, **options)

    @property
    def _is_local_emulator(self) -> bool:
        connection = self._connection
        return connection is not None and connection.use_development_emulator and connection.host in _LOOPBACK

    def _sdk_client(self) -> Any:
        """The SDK's client: no connection, only what senders and receivers are made with."""
        from azure.servicebus.aio import ServiceBusClient

        self._check_open()
        if self._client is None:
            options = {**self._sdk_options, **NO_RETRIES}
            options.pop("socket_timeout", None)  # asked for again with each link
            if self._connection is not None:
                self._client = ServiceBusClient.from_connection_string(_text_of(self._connection), **options)
            else:
                self._client = ServiceBusClient(self.namespace, self._credential, **options)
        return self._client

    def _link_options(self) -> dict[str, Any]:
        return {name: self._sdk_options[name] for name in ("socket_timeout",) if name in self._sdk_options}

    def _check_open(self) -> None:
        if self._is_closed:
            raise InvalidOperationError(f"the connection to {self.namespace} was closed: open a new client")


def _text_of(connection: ConnectionString) -> str:
    """The connection string again, for the SDK; without EntityPath, which the client itself heeds."""
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
    """A connection string for the credentials that the SDK's administration client takes in no other form."""
    from azure.core.credentials import AzureNamedKeyCredential, AzureSasCredential

    if isinstance(credential, AzureNamedKeyCredential):
        name, key = credential.named_key
        return f"Endpoint=sb://{namespace}/;SharedAccessKeyName={name};SharedAccessKey={key}"
    if isinstance(credential, AzureSasCredential):
        return f"Endpoint=sb://{namespace}/;SharedAccessSignature={credential.signature}"
    return None


def _trust_of_this_machine() -> tuple[str, Any]:
    """The certificate of our emulators on this machine, made by whoever needs it first; and a context that trusts it
    beside all that is trusted anyway."""
    certificate = Certificate(default_directory())
    certificate.make()
    return str(certificate.path), certificate.client_context()


def _http_transport(ssl_context: Any, options: dict[str, Any]) -> Any:
    """The management API is spoken to over aiohttp, or in threads over requests, which the SDK always brings."""
    verify = options.get("connection_verify", True)
    settings = {"connection_timeout": HTTP_TIMEOUT_S, "read_timeout": HTTP_TIMEOUT_S, "connection_verify": verify}
    if find_spec("aiohttp") is None:
        from azure.core.pipeline.transport import AsyncioRequestsTransport

        return AsyncioRequestsTransport(**settings)
    from azure.core.pipeline.transport import AioHttpTransport

    if ssl_context is None:
        return AioHttpTransport(**settings)
    import aiohttp

    session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=ssl_context), trust_env=False)
    return AioHttpTransport(session=session, **settings)


def _proxies(proxy: dict[str, Any]) -> dict[str, str]:
    """The SDK's AMQP proxy settings as those of HTTP."""
    user, password = proxy.get("username"), proxy.get("password")
    account = f"{user}:{password}@" if user else ""
    address = f"http://{account}{proxy['proxy_hostname']}:{proxy['proxy_port']}"
    return {"http": address, "https": address}


def _is_told_elsewhere(error: BaseException) -> None:
    """A failed call tells its caller; where that has gone, nobody wants to know."""
