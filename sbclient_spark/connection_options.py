"""Where the namespaces are and how to prove who one is: read at plan time, resolved where a connection is opened.

Secrets that come from the environment or from a file are looked up by the process that connects, so they are in no
plan, no event log and no pickle. No error and no repr ever shows one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import timedelta
from typing import Any, Final, Literal, get_args, get_type_hints

from sbclient.errors import InvalidOperationError
from sbclient.options import PairedNamespaceOptions
from sbclient.rules.connection_string import parse_connection_string
from sbclient.settings.values import Parser, choice, flag, span, text, whole

Auth = Literal["sas", "default", "managedIdentity", "clientSecret", "token"]
Failover = Literal["auto", "primary", "backlog"]

SDK_PREFIX: Final = "sbclient."
"""Options that begin so are those of `PairedNamespaceOptions`, or the client's retry options."""

CONNECTION_TABLE: Final[dict[str, Parser]] = {
    "connectionString": text,
    "connectionStringEnv": text,
    "connectionStringFile": text,
    "fullyQualifiedNamespace": text,
    "secondaryConnectionString": text,
    "secondaryConnectionStringEnv": text,
    "secondaryConnectionStringFile": text,
    "secondaryNamespace": text,
    "auth": choice(*get_args(Auth)),
    "tenantId": text,
    "clientId": text,
    "clientSecret": text,
    "clientSecretEnv": text,
    "clientSecretFile": text,
    "token": text,
    "tokenEnv": text,
    "tokenFile": text,
    "failover": choice(*get_args(Failover)),
    "backlogQueueCount": whole(1),
    "failoverInterval": span,
    "pingInterval": span,
    "idleTimeout": span,
    "sendTimeout": span,
}

_RETRY_OPTIONS: Final = ("retry_total", "retry_backoff_factor", "retry_backoff_max")
_NOT_FOR_WORKERS: Final = {
    "is_outage": "it is a function: use the client itself for that",
    "enable_syphon": "a worker can be killed at any moment: run sbclient_spark.drain, or the command `sbclient syphon`",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Secret:
    """One secret: as it stands, or the name of the variable or the file that holds it. At most one is set."""

    value: str | None = field(default=None, repr=False)
    env: str | None = None
    file: str | None = None

    @property
    def is_given(self) -> bool:
        return any((self.value, self.env, self.file))


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespaceOptions:
    """One namespace: a connection string, or a name to be used with a credential."""

    connection_string: Secret = Secret()
    fully_qualified_namespace: str | None = None

    @property
    def is_given(self) -> bool:
        return self.connection_string.is_given or self.fully_qualified_namespace is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionOptions:
    """Everything that makes one client different from another; equal options share one client in a worker.

    Attributes:
        primary, secondary: the namespaces; without a secondary there is no failover.
        auth: how to prove who one is where a namespace is given without a connection string.
        failover: `auto`; `primary` never diverts; `backlog` diverts everything, from the first message on.
        pairing: fields of `PairedNamespaceOptions`, by name, in order.
        retry: the client's retry options, by name, in order.
        send_timeout_s: for one send, the client's retries and a diversion included.
        idle_timeout_s: after how long without a task a worker closes its client.
    """

    primary: NamespaceOptions
    secondary: NamespaceOptions = NamespaceOptions()
    auth: Auth = "sas"
    tenant_id: str | None = None
    client_id: str | None = None
    client_secret: Secret = Secret()
    token: Secret = Secret()
    failover: Failover = "auto"
    pairing: tuple[tuple[str, Any], ...] = ()
    retry: tuple[tuple[str, float], ...] = ()
    send_timeout_s: float = 60.0
    idle_timeout_s: float = 300.0

    @property
    def is_paired(self) -> bool:
        return self.secondary.is_given and self.failover != "primary"

    def pairing_options(self) -> PairedNamespaceOptions:
        """The client's pairing options.

        Raises:
            InvalidOperationError: a value is out of its range.
        """
        return PairedNamespaceOptions(**dict(self.pairing))


def connection_options(given: Mapping[str, Any], *, ordering: str = "none") -> ConnectionOptions:
    """What the parsed options say about the connection.

    Args:
        given: by the names of `CONNECTION_TABLE`, and the options that begin with `sbclient.`.
        ordering: as `PairedNamespaceOptions.ordering`.

    Raises:
        InvalidOperationError: something is missing, given twice, or out of its range.
    """
    auth: Auth = given.get("auth", "sas")
    primary = _namespace(given, "", "fullyQualifiedNamespace", auth)
    if not primary.is_given:
        raise InvalidOperationError(
            "no namespace is given: set connectionString, connectionStringEnv or connectionStringFile, or "
            "fullyQualifiedNamespace together with auth (in SQL with the write itself, INSERT INTO … WITH (…): the "
            "options of a table do not reach it)"
        )
    secondary = _namespace(given, "secondary", "secondaryNamespace", auth)
    pairing, retry = _client_options(given)
    if ordering != "none":
        pairing["ordering"] = ordering
    if given.get("failover") == "backlog" and not secondary.is_given:
        raise InvalidOperationError("failover is 'backlog', but there is no secondary: set secondaryConnectionString")
    options = ConnectionOptions(
        primary=primary,
        secondary=secondary,
        auth=auth,
        tenant_id=given.get("tenantId"),
        client_id=given.get("clientId"),
        client_secret=_secret(given, "clientSecret"),
        token=_secret(given, "token"),
        failover=given.get("failover", "auto"),
        pairing=tuple(sorted(pairing.items())),
        retry=tuple(sorted(retry.items())),
        send_timeout_s=given.get("sendTimeout", 60.0),
        idle_timeout_s=given.get("idleTimeout", 300.0),
    )
    _check_auth(options)
    if not options.send_timeout_s > 0:
        raise InvalidOperationError("option sendTimeout is 0 s: it must be more than 0")
    options.pairing_options()
    return options


def _namespace(given: Mapping[str, Any], prefix: str, bare: str, auth: str) -> NamespaceOptions:
    name = f"{prefix}ConnectionString" if prefix else "connectionString"
    secret = _secret(given, name)
    if secret.is_given and bare in given:
        raise InvalidOperationError(f"both {name} and {bare} are given: one of them says which namespace it is")
    if secret.value is not None:
        parse_connection_string(secret.value)
    if bare in given and auth == "sas":
        raise InvalidOperationError(
            f"{bare} is given with auth 'sas', which needs {name}: give that, or auth default, managedIdentity, "
            "clientSecret or token"
        )
    return NamespaceOptions(connection_string=secret, fully_qualified_namespace=given.get(bare))


def _secret(given: Mapping[str, Any], name: str) -> Secret:
    places = [place for place in (name, f"{name}Env", f"{name}File") if place in given]
    if len(places) > 1:
        raise InvalidOperationError(f"{' and '.join(places)} are given: one of them says what it is")
    return Secret(value=given.get(name), env=given.get(f"{name}Env"), file=given.get(f"{name}File"))


def _check_auth(options: ConnectionOptions) -> None:
    needed: dict[str, object] = {}
    if options.auth == "clientSecret":
        needed = {"tenantId": options.tenant_id, "clientId": options.client_id}
        needed["clientSecret"] = options.client_secret.is_given
    elif options.auth == "token":
        needed = {"token": options.token.is_given}
    missing = [name for name, is_there in needed.items() if not is_there]
    if missing:
        raise InvalidOperationError(f"auth is {options.auth!r}, which needs {', '.join(missing)}: set it as an option")


def _client_options(given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, float]]:
    """The client's own options: those with a name here, and everything that begins with `sbclient.`."""
    pairing: dict[str, Any] = {}
    retry: dict[str, float] = {}
    if "backlogQueueCount" in given:
        pairing["backlog_queue_count"] = given["backlogQueueCount"]
    if "failoverInterval" in given:
        pairing["failover_interval"] = timedelta(seconds=given["failoverInterval"])
    if "pingInterval" in given:
        pairing["ping_primary_interval"] = timedelta(seconds=given["pingInterval"])
    known = {one.name for one in fields(PairedNamespaceOptions)} - {"ordering"}
    for key, value in given.items():
        if not key.startswith(SDK_PREFIX):
            continue
        name = key.removeprefix(SDK_PREFIX)
        if name in _NOT_FOR_WORKERS:
            raise InvalidOperationError(f"option {key} cannot be set here: {_NOT_FOR_WORKERS[name]}")
        if name in _RETRY_OPTIONS:
            retry[name] = whole(0)(key, value) if name == "retry_total" else span(key, value)
        elif name in known:
            pairing[name] = _pairing_value(name, key, value)
        else:
            allowed = sorted((known - set(_NOT_FOR_WORKERS)) | set(_RETRY_OPTIONS))
            raise InvalidOperationError(f"there is no option {key!r}: after {SDK_PREFIX!r} stands {', '.join(allowed)}")
    return pairing, retry


def _pairing_value(name: str, key: str, value: str) -> Any:
    kind = get_type_hints(PairedNamespaceOptions)[name]
    if kind is timedelta:
        return timedelta(seconds=span(key, value))
    if kind is bool:
        return flag(key, value)
    if kind is int:
        return whole(1)(key, value)
    if words := get_args(kind):
        texts = [word for word in words if isinstance(word, str)]
        return choice(*texts)(key, value) if texts else text(key, value)
    return text(key, value)
