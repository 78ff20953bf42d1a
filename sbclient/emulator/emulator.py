"""The emulator: the broker as a server in this process, with a port for each namespace, for any Service Bus client.

    async with Emulator("contoso", "contoso-backup") as emulator:
        client = ServiceBusClient.from_connection_string(emulator.connection_string)

Create entities by the management API or by a Config.json.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Any, Final, NamedTuple, Self, TypeVar

from sbclient import clock
from sbclient.broker.faults import Call, Operation
from sbclient.broker.profile import STD_2021, Profile, profile_of
from sbclient.certificate import LOCAL_NAMES, Certificate, default_directory
from sbclient.emulator.config.entities import NamespaceConfig, make_entities
from sbclient.emulator.config.namespace_choice import chosen_namespaces
from sbclient.emulator.context import MAX_UNAUTHENTICATED, AnyFault, NamespaceContext, ServerSettings, entity_rules_of
from sbclient.emulator.control import changes
from sbclient.emulator.control.namespace_state import clear
from sbclient.emulator.data.directory import DataDirectory
from sbclient.emulator.faults import WireFaults
from sbclient.emulator.listener import Listener
from sbclient.emulator.page.namespace_registry import NamespaceRegistry
from sbclient.emulator.router import Router
from sbclient.emulator.sas import ROOT_KEY, ROOT_KEY_NAME, AuthorizationMode, Authorizer, root_rule
from sbclient.entities import (
    EntityAddress,
    EntityKind,
    EntityProperties,
    QueueProperties,
    SubscriptionProperties,
    TopicProperties,
)
from sbclient.errors import InvalidOperationError
from sbclient.hosting.host import BrokerHost
from sbclient.tasks import OwnedTasks
from sbclient.telemetry.log import get_logger

log = get_logger(__name__)

T = TypeVar("T")

PORT_ERRORS: Final = (errno.EADDRINUSE, errno.EACCES)
"""Errors caused by the port; other errors are caused by the address."""


class _Served(NamedTuple):
    config: NamespaceConfig
    context: NamespaceContext
    listener: Listener


class Emulator:
    """One or more namespaces of the broker, served over AMQP, HTTP and WebSockets, each plain and over TLS.

    Args:
        namespaces: `"contoso"`, or `"contoso:5672"` with the port, or `"contoso:5671,443"` with several. The default is
            one namespace `sbemulatorns`, unless a configuration names others.
        first_port: of the first namespace without a port; the others get the next ones. 0 = any free ports.
        config: the path of a Config.json of Microsoft's emulator. A namespace that is named here as well has the
            entities from there and the ports from here.
        host: the address to listen on; `"0.0.0.0"` = all.
        http_port: an additional port for HTTP, like 5300 of Microsoft's emulator; None = none, 0 = any free one.
        needs_http_port: False uses a free port, with a warning in the log, if `http_port` is in use.
        profile: tier and year, or its name.
        front_end_count: of each namespace; each connection gets a random one. With more than one, each caches messages
            of partitioned entities, which other connections cannot receive until the cached locks expire.
        auth: `"sas"`, `"none"` or `"jwt-any"`.
        key: the value of the root key of every namespace, unless the configuration gives the namespace another one.
        allow_public_key: accept the default key, which is public, also on an address that other machines can reach.
        seed: of the random generators of the broker, for repeatable runs.
        certificate_directory: of the certificate; the cache of the user by default.
        certificate_names: host names in the certificate besides those of this machine.
        settings: limits of the servers.
        data: a directory that keeps entities and messages over a restart; an emulator that is killed comes back with
            all that it has acknowledged. None = nothing is kept.
        fsync: with `data`, acknowledged messages survive also a loss of power. Slower.

    Attributes:
        on_failure: called when the emulator stops by itself, because it cannot write to `data`.

    Raises:
        InvalidOperationError: a name, port, profile or mode is not valid; or `host` is not a loopback address, and the
            public key would be accepted there.
        ConfigError: the configuration is not valid.
        OSError: the configuration cannot be read.
    """

    def __init__(
        self,
        *namespaces: str,
        first_port: int = 0,
        config: str | Path | None = None,
        host: str = "127.0.0.1",
        http_port: int | None = None,
        needs_http_port: bool = True,
        profile: Profile | str = STD_2021,
        front_end_count: int = 1,
        auth: str = AuthorizationMode.SAS,
        key: str = ROOT_KEY,
        allow_public_key: bool = False,
        seed: int | None = None,
        certificate_directory: Path | None = None,
        certificate_names: Sequence[str] = (),
        settings: ServerSettings | None = None,
        data: str | Path | None = None,
        fsync: bool = False,
    ) -> None:
        if not key or ";" in key:
            raise InvalidOperationError(
                f"the key {'is empty' if not key else 'has a semicolon'}, which a connection string does not allow: "
                "give another one"
            )
        self._host = host
        self._key = key
        self._profile = profile_of(profile)
        self._front_end_count = front_end_count
        self._mode = _mode_of(auth)
        self._seed = seed
        names = (*LOCAL_NAMES, *certificate_names, *([] if host in ("0.0.0.0", "::") else [host]))
        self._certificate = Certificate(certificate_directory or default_directory(), names)
        self._settings = replace(settings or ServerSettings(), host_names=names, is_exposed=self.is_exposed)
        self._unauthenticated = asyncio.Semaphore(MAX_UNAUTHENTICATED)
        self._registry = NamespaceRegistry()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._http_port = http_port
        self._needs_http_port = needs_http_port
        self._http: Listener | None = None
        self._ports: dict[str, int] = {}
        self.on_failure: Callable[[], None] = lambda: None
        self._tasks = OwnedTasks()
        self._data = None if data is None else DataDirectory(Path(data), fsync=fsync, on_failure=self._stop)
        configs = chosen_namespaces(namespaces, config, self._profile, first_port=first_port)
        self._served: dict[str, _Served] = {each.name: self._prepare(each) for each in configs}
        if self.is_exposed and not allow_public_key:
            self._reject_public_key()

    # ------------------------------------------------------------------ start and stop

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def start(self) -> None:
        """Restore what `data` has kept, and listen on every port.

        Raises:
            InvalidOperationError: a port is in use or cannot be used; or `data` is in use, damaged, or was written by
                another release or with another profile.
            ConfigError: the configuration is not valid.
            OSError: `data` cannot be read or written.
        """
        self._loop = asyncio.get_running_loop()
        try:
            self._restore()
            for name, served in self._served.items():
                advice = f"choose another one with --namespace {name}:<port>, 0 for any free one"
                for port in (served.config.port or 0, *served.config.more_ports):
                    listening = await self._listen(served.listener, port, f"namespace {name}", advice)
                    self._ports.setdefault(name, listening)
                served.context.note_faults()
            self._registry.ports.update(self._ports)
            if self._http_port is not None:
                first = next(iter(self._served.values()))
                router = Router(first.context, self._registry, reports_all=True)
                unaffected = replace(first.context, wire_faults=WireFaults(Random(0)))  # to heal faults here
                self._http = Listener(unaffected, router.answer, self._certificate.server_context)
                advice = "choose another one with --http-port, 0 for any free one"
                try:
                    self._http_port = await self._listen(self._http, self._http_port, "HTTP", advice)
                except InvalidOperationError as error:
                    if self._needs_http_port or not _is_in_use(error.__cause__):
                        raise
                    wanted = self._http_port
                    self._http_port = await self._listen(self._http, 0, "HTTP", advice)
                    log.warning(
                        "emulator.http_port_in_use",
                        "HTTP port {wanted} is in use; the emulator uses port {http_port}",
                        wanted=wanted,
                        http_port=self._http_port,
                    )
                self._registry.http_port = self._http_port
        except BaseException:
            await self.close()
            raise
        log.info(
            "emulator.started",
            "the emulator listens (namespaces {namespaces}, HTTP port {http_port})",
            namespaces=dict(self._ports),
            http_port=self._http_port,
        )

    async def close(self) -> None:
        """End every connection and stop listening. Without `data` all messages are lost. Safe to call twice."""
        await self._tasks.close()
        await self._close_listeners()
        if self._data is not None:
            self._data.close()
        await self._certificate.close()

    async def _close_listeners(self) -> None:
        for listener in [*(served.listener for served in self._served.values()), *([self._http] if self._http else [])]:
            await listener.close()

    def _restore(self) -> None:
        if self._data is None:
            return
        self._data.open()
        for served in self._served.values():
            if self._data.keep(served.context.host.namespace, clock.now()) and self._seed is not None:
                # A generator at its start would repeat lock tokens and message ids of the earlier process.
                served.context.random.seed(f"{self._seed} {clock.now()}")
            make_entities(served.config, served.context.host)
        self._data.write()

    def _stop(self, _: Exception) -> None:
        """End all connections, because what clients do cannot be kept."""
        self._tasks.start(self._close_listeners(), name="stop emulator")
        self.on_failure()

    @property
    def failure(self) -> Exception | None:
        """Why the emulator has stopped by itself: it cannot write to `data`. None = it has not."""
        return None if self._data is None else self._data.failure

    async def _listen(self, listener: Listener, port: int, what: str, advice: str) -> int:
        try:
            return await listener.start(self._host, port)
        except OSError as error:
            if error.errno not in PORT_ERRORS:
                raise InvalidOperationError(
                    f"{what} cannot listen on {self._host} ({error.strerror}): give an address of this machine with "
                    "--host, 0.0.0.0 for all"
                ) from error
            reason = "is in use" if _is_in_use(error) else f"cannot be used ({error.strerror})"
            raise InvalidOperationError(f"port {port} of {what} {reason} on {self._host}: {advice}") from error

    # ------------------------------------------------------------------ addresses

    @property
    def namespaces(self) -> tuple[str, ...]:
        """The names of the namespaces."""
        return tuple(self._served)

    @property
    def ports(self) -> Mapping[str, int]:
        """The port of each namespace that is started; the first one if it has several."""
        return dict(self._ports)

    @property
    def http_port(self) -> int | None:
        """The additional port for HTTP; None if there is none."""
        return self._http_port

    @property
    def is_exposed(self) -> bool:
        """Whether other machines may reach the emulator."""
        return not is_loopback(self._host)

    def _reject_public_key(self) -> None:
        public = [name for name, served in self._served.items() if served.context.authorizer.accepts_key(ROOT_KEY)]
        if public and self._mode is not AuthorizationMode.NONE:
            raise InvalidOperationError(
                f"other machines may reach {self._host}, and the key of {', '.join(public)} is public: give another "
                "one with --key or SBCLIENT_EMULATOR_KEY, or accept that with --allow-public-key"
            )

    @property
    def connection_string(self) -> str:
        """The connection string of the first namespace."""
        return self.connection_strings[self.namespaces[0]]

    @property
    def connection_strings(self) -> Mapping[str, str]:
        """The connection string of each namespace, with its root key."""
        host = (
            "localhost"
            if self._host in ("127.0.0.1", "0.0.0.0")
            else f"[{self._host}]"
            if ":" in self._host
            else self._host
        )
        return {
            name: (
                f"Endpoint=sb://{host}:{port};SharedAccessKeyName={ROOT_KEY_NAME};"
                f"SharedAccessKey={self.root_key(name)};UseDevelopmentEmulator=true;"
            )
            for name, port in self._ports.items()
        }

    def root_key(self, namespace: str | None = None) -> str:
        """The value of the root key of a namespace; None = the first one."""
        rules = self._find(namespace).config.rules
        own = (rule.primary_key for rule in rules if rule.key_name == ROOT_KEY_NAME)
        return next((key for key in own if key), self._key)

    @property
    def certificate_path(self) -> Path:
        """The certificate that TLS clients must trust. The first use creates the file if necessary."""
        self._certificate.make()
        return self._certificate.path

    # ------------------------------------------------------------------ entities, from any thread

    def create_queue(self, name: str, namespace: str | None = None, **settings: Any) -> None:
        """Create a queue.

        Args:
            namespace: None = the first one.
            settings: as for `create_queue` of the administration client: `requires_session=True`, …

        Raises:
            MessagingEntityAlreadyExistsError: the queue exists.
            InvalidOperationError: a setting is out of its range.
        """
        self._create(namespace, EntityAddress(EntityKind.QUEUE, (name,)), QueueProperties(name, **settings))

    def create_topic(self, name: str, namespace: str | None = None, **settings: Any) -> None:
        """Create a topic; see `create_queue`."""
        self._create(namespace, EntityAddress(EntityKind.TOPIC, (name,)), TopicProperties(name, **settings))

    def create_subscription(self, topic: str, name: str, namespace: str | None = None, **settings: Any) -> None:
        """Create a subscription of a topic; see `create_queue`."""
        address = EntityAddress(EntityKind.SUBSCRIPTION, (topic, name))
        self._create(namespace, address, SubscriptionProperties(name, **settings))

    def _create(self, namespace: str | None, address: EntityAddress, properties: EntityProperties) -> None:
        broker = self.context(namespace).host.namespace
        call = Call(Operation.MANAGE, clock.now())
        self._in_loop(lambda: broker.management.create(call, address, properties))
        self._in_loop(lambda: self.context(namespace).publish_change("entity.created", address))

    # ------------------------------------------------------------------ faults and resets, from any thread

    def context(self, namespace: str | None = None) -> NamespaceContext:
        """The broker, faults and events of a namespace; None = the first one.

        Raises:
            InvalidOperationError: the namespace does not exist.
        """
        return self._find(namespace).context

    def inject(self, fault: AnyFault, namespace: str | None = None) -> AnyFault:
        """Inject a fault of the broker or the wire into a namespace, None = the first one; return it, for `heal`."""
        context = self.context(namespace)
        self._in_loop(lambda: changes.inject(context, fault))
        return fault

    def heal(self, fault: AnyFault | None = None, namespace: str | None = None) -> None:
        """Heal one fault of a namespace, or all of them."""
        context = self.context(namespace)
        self._in_loop(lambda: changes.heal(context, fault))

    def reset(self, namespace: str | None = None) -> None:
        """Restore the start of a namespace, or of all: configured entities, no messages, no faults."""
        for served in self._served.values() if namespace is None else [self._find(namespace)]:
            self._in_loop(partial(self._reset, served))

    def purge(self, path: str | None = None, namespace: str | None = None) -> int:
        """Remove the messages of one entity, or of all, in a namespace; returns how many.

        Raises:
            MessagingEntityNotFoundError: the entity does not exist.
        """
        context = self.context(namespace)
        return self._in_loop(lambda: changes.purge(context, path))

    def _reset(self, served: _Served) -> None:
        served.context.wire_faults.heal()
        clear(served.context.host)
        make_entities(served.config, served.context.host)
        served.context.note_faults()
        if self._seed is not None:
            served.context.random.seed(self._seed)
        served.context.publish("namespace.reset")

    def _in_loop(self, work: Callable[[], T]) -> T:
        """Call `work` in the thread of the event loop, which owns the sockets and the waiting receivers."""
        loop = self._loop
        if loop is None and self._data is not None:
            raise InvalidOperationError("an emulator with data has no entities before its start: start it first")

        def written() -> T:
            result = work()
            if self._data is not None:
                self._data.write()
            return result

        if loop is None or not loop.is_running() or loop is _running_loop():
            return written()

        async def called() -> T:
            return written()

        return asyncio.run_coroutine_threadsafe(called(), loop).result()

    def _find(self, namespace: str | None) -> _Served:
        name = self.namespaces[0] if namespace is None else namespace
        if name not in self._served:
            raise InvalidOperationError(f"namespace {name!r} does not exist: use one of {', '.join(self._served)}")
        return self._served[name]

    # ------------------------------------------------------------------ parts

    def _prepare(self, config: NamespaceConfig) -> _Served:
        random = Random(self._seed)
        host = BrokerHost(config.name, random=random, profile=self._profile, front_end_count=self._front_end_count)
        if self._data is None:
            make_entities(config, host)
        has_own = any(rule.key_name.casefold() == ROOT_KEY_NAME.casefold() for rule in config.rules)
        authorizer = Authorizer(
            self._mode,
            rules=config.rules if has_own else [root_rule(self._key), *config.rules],
            entity_rules=lambda path: entity_rules_of(host, path),
        )
        context = NamespaceContext(
            host, authorizer, WireFaults(random), random, settings=self._settings, data=self._data
        )
        context.unauthenticated = self._unauthenticated
        self._registry.add(context, lambda: self.reset(config.name))
        router = Router(context, self._registry)
        return _Served(config, context, Listener(context, router.answer, self._certificate.server_context))


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.casefold() == "localhost"


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _mode_of(auth: str) -> AuthorizationMode:
    try:
        return AuthorizationMode(auth)
    except ValueError as error:
        raise InvalidOperationError(
            f"authorization mode {auth!r} does not exist: choose one of {', '.join(AuthorizationMode)}"
        ) from error


def _is_in_use(error: BaseException | None) -> bool:
    return isinstance(error, OSError) and error.errno == errno.EADDRINUSE
