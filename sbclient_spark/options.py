"""The options of every operation: tables of options, and those of a connection.

Option names are in camel case and ignore case.

The driver checks them. The process that connects looks up secrets of the environment or of files, so that they are in
no plan, event log or pickle. No error and no repr shows a secret.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final, Literal

from sbclient.errors import InvalidOperationError
from sbclient.options import OUTAGE_RULE, PAIR_OPTIONS, RETRY_OPTIONS, PairedNamespaceOptions
from sbclient.rules.connection_string import parse_connection_string
from sbclient.settings.kinds import POSITIVE_SECONDS, TEXT, ValueKind, duration
from sbclient.settings.table import Setting, read_texts, setting, settings_of

CLIENT_PREFIX: Final = "sbclient."
"""Prefix of options for fields of `PairedNamespaceOptions` and for the client's retry options."""

SPARK_OPTIONS: Final = ("checkpointlocation", "queryname")
"""Options of a streaming query, which Spark also passes to its sink."""

Auth = Literal["sas", "default", "managedIdentity", "clientSecret", "token"]
Failover = Literal["auto", "primary", "backlog"]
TransportName = Literal["amqp", "sdk"]
EntityWord = Literal["queue", "topic"]

SECRETS: Final = ("connectionString", "secondaryConnectionString", "clientSecret", "token")


def places_of(secret: str) -> tuple[str, ...]:
    """Return the options that give a secret: its value, or the variable or file that contains it."""
    return secret, f"{secret}Env", f"{secret}File"


_PAIRING: Final = {
    "backlogQueueCount": "backlog_queue_count",
    "failoverInterval": "failover_interval",
    "pingInterval": "ping_primary_interval",
}
"""Options that are fields of `PairedNamespaceOptions`."""

_NOT_FOR_WORKERS: Final = {
    "is_outage": OUTAGE_RULE.advice,
    "receive_from": "a query reads one namespace: read the secondary in a query of its own",
    "enable_syphon": "Spark may end a worker at any time: use sbclient_spark.drain or the command `sbclient syphon`",
}

OPTIONS_OF_CLIENT: Final = {
    name: row
    for name, row in {**PAIR_OPTIONS, **RETRY_OPTIONS}.items()
    if name not in (*_NOT_FOR_WORKERS, "ordering", "timeout")
}
"""Options that follow `CLIENT_PREFIX`; `ordering` and `sendTimeout` are options of their own."""


@dataclass(frozen=True, slots=True, order=True)
class Destination:
    """The destination of a message."""

    path: str
    word: EntityWord = "queue"


@dataclass(frozen=True, slots=True, kw_only=True)
class Secret:
    """A secret, or the name of the environment variable or of the file that contains it. At most one is set."""

    value: str | None = field(default=None, repr=False)
    env: str | None = None
    file: str | None = None

    @property
    def is_given(self) -> bool:
        return any((self.value, self.env, self.file))


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespaceOptions:
    """One namespace: a connection string, or a host name for use with a credential."""

    connection_string: Secret = Secret()
    fully_qualified_namespace: str | None = None

    @property
    def is_given(self) -> bool:
        return self.connection_string.is_given or self.fully_qualified_namespace is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionOptions:
    """The options of a client. Tasks with equal options share one client in a worker.

    Attributes:
        primary, secondary: the namespaces; without a secondary there is no failover.
        pairing: fields of `PairedNamespaceOptions`, sorted by name.
        retry: the client's retry options, sorted by name.
    """

    primary: NamespaceOptions
    secondary: NamespaceOptions = NamespaceOptions()
    auth: Auth = setting("The credential for namespaces without a connection string.", default="sas")
    tenant_id: str | None = setting("The tenant of `clientSecret`.")
    client_id: str | None = setting("The application or the managed identity.")
    client_secret: Secret = Secret()
    token: Secret = Secret()
    failover: Failover = setting("`primary` never diverts; `backlog` diverts every message.", default="auto")
    transport: TransportName | None = setting("As the argument of `ServiceBusClient`; None = `amqp`.")
    pairing: tuple[tuple[str, Any], ...] = ()
    retry: tuple[tuple[str, float], ...] = ()
    send_timeout_s: float = setting(
        "For one send, including the client's retries and a diversion.", kind=POSITIVE_SECONDS, default=60.0
    )
    idle_timeout_s: float = setting(
        "A worker closes its client after this time without a task.", kind=duration(), default=300.0
    )

    @property
    def is_paired(self) -> bool:
        return self.secondary.is_given and self.failover != "primary"

    def pairing_options(self) -> PairedNamespaceOptions:
        """Return the client's pairing options."""
        return PairedNamespaceOptions(**dict(self.pairing))


def connection_options(given: Mapping[str, Any], *, ordering: str = "none") -> ConnectionOptions:
    """Return the connection of checked options.

    Args:
        given: as `checked_values` returns them.
        ordering: the value of `PairedNamespaceOptions.ordering`.

    Raises:
        InvalidOperationError: an option is missing, contradicts another one, or is out of range.
    """
    auth: Auth = given.get("auth", "sas")
    primary = _namespace(given, "", "fullyQualifiedNamespace", auth)
    if not primary.is_given:
        raise InvalidOperationError(
            "no namespace is given: set connectionString, connectionStringEnv or connectionStringFile, or "
            "fullyQualifiedNamespace together with auth (in SQL, Spark does not pass the OPTIONS of a table that has a "
            "list of columns or AS SELECT: leave these out, or give the options with WITH (…) or as "
            "spark.servicebus.<option>)"
        )
    secondary = _namespace(given, "secondary", "secondaryNamespace", auth)
    pairing, retry = _client_options(given)
    if ordering != "none":
        pairing["ordering"] = ordering
    if given.get("failover") == "backlog" and not secondary.is_given:
        raise InvalidOperationError("failover is 'backlog', but no secondary is given: set secondaryConnectionString")
    options = ConnectionOptions(
        primary=primary,
        secondary=secondary,
        client_secret=_secret(given, "clientSecret"),
        token=_secret(given, "token"),
        pairing=tuple(sorted(pairing.items())),
        retry=tuple(sorted(retry.items())),
        **given_fields(ConnectionOptions, given),
    )
    _check_auth(options)
    return options


def _namespace(given: Mapping[str, Any], prefix: str, bare: str, auth: str) -> NamespaceOptions:
    name = f"{prefix}ConnectionString" if prefix else "connectionString"
    secret = _secret(given, name)
    if secret.is_given and bare in given:
        raise InvalidOperationError(f"both {name} and {bare} are given: leave one of them out")
    if secret.value is not None:
        try:
            parse_connection_string(secret.value)
        except InvalidOperationError as error:
            raise InvalidOperationError(f"option {name}: {error.message}") from None
    if bare in given and auth == "sas":
        raise InvalidOperationError(
            f"{bare} requires auth default, managedIdentity, clientSecret or token: set auth, or give {name} for auth "
            "'sas'"
        )
    return NamespaceOptions(connection_string=secret, fully_qualified_namespace=given.get(bare))


def _secret(given: Mapping[str, Any], name: str) -> Secret:
    places = [place for place in places_of(name) if place in given]
    if len(places) > 1:
        raise InvalidOperationError(f"{' and '.join(places)} are given: leave all but one of them out")
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
        raise InvalidOperationError(f"auth {options.auth!r} requires the options {', '.join(missing)}: set them")


def _client_options(given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, float]]:
    """Return the pairing options and the retry options of the client."""
    pairing: dict[str, Any] = {field: given[name] for name, field in _PAIRING.items() if name in given}
    retry: dict[str, float] = {}
    for key, value in given.items():
        if not key.startswith(CLIENT_PREFIX):
            continue
        name = key.removeprefix(CLIENT_PREFIX)
        if name in _NOT_FOR_WORKERS:
            raise InvalidOperationError(f"option {key} cannot be set here: {_NOT_FOR_WORKERS[name]}")
        if name not in OPTIONS_OF_CLIENT:
            raise InvalidOperationError(
                f"there is no option {key!r:.100}: {CLIENT_PREFIX!r} is followed by "
                f"{', '.join(sorted(OPTIONS_OF_CLIENT))}"
            )
        (pairing if name in PAIR_OPTIONS else retry)[name] = OPTIONS_OF_CLIENT[name].kind.parse(key, value)
    return pairing, retry


# -- tables of options


_ABOUT: Final = {
    "connectionString": "The primary namespace.",
    "secondaryConnectionString": "The secondary namespace; without one there is no failover.",
    "clientSecret": "The secret of the application, for `clientSecret`.",
    "token": "A token, for `token`.",
    "fullyQualifiedNamespace": "The host name of the primary, for use with `auth`.",
    "secondaryNamespace": "The host name of the secondary, for use with `auth`.",
    "queue": "The queue.",
    "queues": "Queues, separated by commas.",
    "topic": "The topic.",
    "subscription": "The subscription of `topic`.",
    "entity": "The queue or topic.",
    "path": "The queue or topic; `save` and `load` set it.",
}


def _about(name: str) -> str:
    for suffix, place in (("Env", "environment variable"), ("File", "file")):
        if (secret := name.removesuffix(suffix)) in SECRETS and name.endswith(suffix):
            return f"The {place} on the workers that contains `{secret}`."
    return _ABOUT[name]


def listed(table: Mapping[str, Setting]) -> str:
    """Return the options of an operation as text, a line for each."""
    lines = []
    for name, row in sorted(table.items()):
        shown = row.shown(row.default)
        default = shown and f" Default {shown}."
        lines.append(f"{name} ({row.kind.word}): {row.about}{default}")
    return "\n".join(lines)


_CONNECTION_KINDS: Final[dict[str, ValueKind]] = {
    **dict.fromkeys((place for secret in SECRETS for place in places_of(secret)), TEXT),
    **dict.fromkeys(("fullyQualifiedNamespace", "secondaryNamespace"), TEXT),
}
"""Those options of a connection that are not fields of `ConnectionOptions`."""


def table_of(settings: type[Any], others: Mapping[str, ValueKind] = MappingProxyType({})) -> dict[str, Setting]:
    """Return the options that a dataclass declares, those of a connection, and other options by name.

    The field `task_deadline_s` is the option `taskDeadline`.
    """
    rows = {
        name: Setting(name, name, kind, None, about=_about(name))
        for name, kind in {**_CONNECTION_KINDS, **others}.items()
    }
    rows |= {name: replace(PAIR_OPTIONS[field], name=name, attribute=name) for name, field in _PAIRING.items()}
    declared = [settings_of(each, name_of=_option_name) for each in (ConnectionOptions, settings)]
    return rows | dict(declared[0]) | dict(declared[1])


def _option_name(field: str) -> str:
    first, *others = field.removesuffix("_s").split("_")
    return first + "".join(map(str.capitalize, others))


def checked_values(options: Mapping[str, str], table: Mapping[str, Setting]) -> dict[str, Any]:
    """Return the checked values of options: by field for settings of a dataclass, else by name.

    Options with `CLIENT_PREFIX` are returned as text by their lower-case names.

    Raises:
        InvalidOperationError: a value is invalid, or an option is unknown.
    """
    texts = {name: str(value) for name, value in options.items() if name.lower() not in SPARK_OPTIONS}
    of_client = {name.lower(): text for name, text in texts.items() if name.lower().startswith(CLIENT_PREFIX)}
    own = {name: text for name, text in texts.items() if name.lower() not in of_client}
    return read_texts(own, table, "option") | of_client


def given_fields(settings: type[Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return those values that are settings of a dataclass, by field."""
    return {row.attribute: values[row.attribute] for row in settings_of(settings).values() if row.attribute in values}
