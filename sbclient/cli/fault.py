"""`sbclient fault`: adds, lists and removes the faults of an emulator, by its control API."""

from __future__ import annotations

import asyncio
import json
from typing import Annotated, Any, Final
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import ProxyHandler, Request, build_opener

import typer

from sbclient.broker.faults import Operation
from sbclient.cli.common import AsJson, Primary, print_json, print_line, print_note, run, seconds
from sbclient.cli.completion import queues, topics
from sbclient.clock import Clock
from sbclient.emulator.control.fault_json import ERROR_NAMES, KINDS
from sbclient.errors import (
    InvalidOperationError,
    MessagingEntityNotFoundError,
    ServiceBusAuthorizationError,
    ServiceBusConnectionError,
    ServiceBusError,
)
from sbclient.rules.connection_string import parse_connection_string
from sbclient.rules.shared_access_signature import sign

DEFAULT_PORT: Final = 5672
ANSWER_S: Final = 10.0
TOKEN_S: Final = 300.0

fault = typer.Typer(
    help="Add, list and remove the faults of an emulator.",
    epilog="Example: sbclient fault list",
    no_args_is_help=True,
    rich_markup_mode=None,
)

HttpPort = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=65_535,
        help="HTTP port of the emulator, which no fault affects, such as 5300. Default: the port of the namespace.",
    ),
]
NamespaceName = Annotated[
    str | None, typer.Option("--namespace", metavar="NAME", help="Namespace, with --http-port. Default: the first one.")
]


def _entities(ctx: typer.Context, incomplete: str) -> list[str]:
    return [*queues(ctx, incomplete), *topics(ctx, incomplete)]


@fault.command()
def add(
    primary: Primary,
    kind: Annotated[
        str, typer.Argument(metavar="KIND", autocompletion=lambda: list(KINDS), help=f"One of {', '.join(KINDS)}.")
    ],
    entity: Annotated[
        str | None,
        typer.Option(autocompletion=_entities, help="Queue, topic or subscription. Default: the whole namespace."),
    ] = None,
    fragment: Annotated[
        list[int] | None,
        typer.Option(metavar="N", help="Fragment of a partitioned --entity. Repeatable. Default: all."),
    ] = None,
    operation: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            autocompletion=lambda: list(Operation),
            help="Operation, such as send. Repeatable. Default: all.",
        ),
    ] = None,
    probability: Annotated[float | None, typer.Option(help="Of each occurrence, above 0 up to 1. Default: 1.")] = None,
    count: Annotated[int | None, typer.Option(help="Occurrences after which it ends. Default: no limit.")] = None,
    duration: Annotated[
        float | None,
        typer.Option(parser=seconds(), metavar="DURATION", help="Time after which it ends. Default: no limit."),
    ] = None,
    latency: Annotated[
        float | None, typer.Option(parser=seconds(), metavar="DURATION", help="Delay, for slow and latency.")
    ] = None,
    error: Annotated[
        str | None, typer.Option(autocompletion=lambda: list(ERROR_NAMES), help="Class of the error, for error.")
    ] = None,
    condition: Annotated[str | None, typer.Option(help="AMQP condition, for detach.")] = None,
    description: Annotated[str | None, typer.Option(help="Description of the condition, for detach.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the random choices from now on.")] = None,
    http_port: HttpPort = None,
    namespace: NamespaceName = None,
    as_json: AsJson = False,
) -> None:
    """Add a fault and print it with its number. A fault for an entity that does not exist waits for it, with a warning.

    \b
    Example: sbclient fault add down --entity orders --duration 30s
    Example: sbclient fault add error --entity orders --error ServiceBusServerBusyError --count 3
    Example: sbclient fault add latency --latency 0.2 --http-port 5300
    """
    fields = {
        "kind": kind,
        "entity": entity,
        "fragments": fragment or None,
        "operations": operation or None,
        "probability": probability,
        "count": count,
        "duration_s": duration,
        "latency_s": latency,
        "error": error,
        "condition": condition,
        "description": description,
    }
    described = {name: value for name, value in fields.items() if value is not None}

    async def work() -> dict[str, Any]:
        control = _Control(primary, http_port, namespace)
        if entity is not None:
            try:
                await control.call("GET", "state", entity=entity)
            except MessagingEntityNotFoundError:
                print_note(f"warning: {entity} does not exist; the fault takes effect when it is created")
        body: Any = described if seed is None else {"seed": seed, "faults": [described]}
        return (await control.call("POST", "faults", body))[-1]

    _print(run("fault add", work(), as_json=as_json), as_json=as_json)


@fault.command("list")
def list_(
    primary: Primary, http_port: HttpPort = None, namespace: NamespaceName = None, as_json: AsJson = False
) -> None:
    """Print the active faults, one per line, each with its number.

    \b
    Example: sbclient fault list
    Example: sbclient fault list --json --http-port 5300 --namespace contoso-backup
    """
    found = run("fault list", _Control(primary, http_port, namespace).call("GET", "faults"), as_json=as_json)
    for each in found:
        _print(each, as_json=as_json)


@fault.command()
def remove(
    primary: Primary,
    number: Annotated[int | None, typer.Argument(metavar="[NUMBER]", help="Number of a fault, see list.")] = None,
    is_all: Annotated[bool, typer.Option("--all", help="Remove all faults.")] = False,
    http_port: HttpPort = None,
    namespace: NamespaceName = None,
    as_json: AsJson = False,
) -> None:
    """Remove one fault or all, and print those that are left. Exit status 5: there is no such fault.

    \b
    Example: sbclient fault remove 3
    Example: sbclient fault remove --all --http-port 5300
    """

    async def work() -> list[dict[str, Any]]:
        if (number is None) is not is_all:
            raise InvalidOperationError("give the number of a fault, or --all")
        what = "faults" if number is None else f"faults/{number}"
        return await _Control(primary, http_port, namespace).call("DELETE", what)

    for each in run("fault remove", work(), as_json=as_json):
        _print(each, as_json=as_json)


def _print(described: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(described)
        return
    facts = {name: value for name, value in described.items() if name not in ("id", "kind")}
    texts = [
        f"{name}={','.join(map(str, value)) if isinstance(value, list) else value}" for name, value in facts.items()
    ]
    print_line("  ".join([f"{described['id']}", described["kind"], *texts]))


class _Control:
    """The control API of an emulator.

    Args:
        connection_string: of the namespace.
        http_port: of the emulator; None = the port of the namespace.
        namespace: its name, for `http_port`.
    """

    def __init__(self, connection_string: str, http_port: int | None, namespace: str | None) -> None:
        self._connection_string = connection_string
        self._http_port = http_port
        self._namespace = namespace

    async def call(self, method: str, what: str, body: Any = None, **query: str) -> list[dict[str, Any]]:
        """Send a request, and return the faults of the answer, if it has any.

        Raises:
            InvalidOperationError: the namespace is not one of an emulator, or the request is not valid.
            MessagingEntityNotFoundError: the entity or the fault does not exist.
            ServiceBusAuthorizationError: the key is not that of the namespace, or lacks Manage.
            ServiceBusConnectionError: the emulator does not answer.
        """
        connection = parse_connection_string(self._connection_string)
        if connection.is_memory or not connection.use_development_emulator or not connection.key:
            raise InvalidOperationError(
                "only an emulator has faults: give its connection string, with UseDevelopmentEmulator=true and a key"
            )
        host = f"[{connection.host}]" if ":" in connection.host else connection.host
        origin = f"http://{host}:{self._http_port or connection.port or DEFAULT_PORT}"
        if self._namespace is not None:
            query["namespace"] = self._namespace
        asked = "&".join(f"{name}={quote(value, safe='')}" for name, value in query.items())
        token = sign(origin, connection.key_name or "", connection.key, Clock().now() + TOKEN_S)
        data = None if body is None else json.dumps(body).encode()
        request = Request(f"{origin}/$control/{what}?{asked}", data, {"Authorization": token}, method=method)
        answer = await asyncio.to_thread(_answer_to, request)
        faults: list[dict[str, Any]] = answer.get("faults", [])
        return faults


def _answer_to(request: Request) -> dict[str, Any]:
    try:
        with build_opener(ProxyHandler({})).open(request, timeout=ANSWER_S) as response:
            answer: dict[str, Any] = json.load(response)
            return answer
    except HTTPError as error:
        raise _error_of(error) from error
    except OSError as error:
        raise ServiceBusConnectionError(
            f"the emulator at {request.host} does not answer ({getattr(error, 'reason', error)}): start it, or if one "
            "of its faults is the reason, add --http-port with its HTTP port"
        ) from error


def _error_of(error: HTTPError) -> ServiceBusError:
    try:
        text = str(json.load(error)["error"])
    except (ValueError, LookupError, TypeError):
        return ServiceBusConnectionError(f"status {error.code} is not an answer of an emulator: check the address")
    if error.code == 401:
        return ServiceBusAuthorizationError(text)
    return (MessagingEntityNotFoundError if error.code == 404 else InvalidOperationError)(text)
