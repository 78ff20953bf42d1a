"""The control API of an emulator, as commands call it."""

from __future__ import annotations

import asyncio
import json
import os
from typing import Annotated, Any, Final
from urllib.parse import quote
from urllib.request import Request

import typer

from sbclient import clock
from sbclient.emulator.sas import ROOT_KEY, ROOT_KEY_NAME
from sbclient.errors import (
    InvalidOperationError,
    MessagingEntityNotFoundError,
    ServiceBusAuthorizationError,
    ServiceBusConnectionError,
)
from sbclient.rules.connection_string import ConnectionString, parse_connection_string
from sbclient.rules.shared_access_signature import sign
from sbclient.worker.http_client import answer_to

DEFAULT_PORT: Final = 5672
ANSWER_S: Final = 10.0
TOKEN_S: Final = 300.0

KEY_VARIABLE: Final = "SBCLIENT_EMULATOR_KEY"

EmulatorString = Annotated[
    str | None,
    typer.Option(
        "--primary",
        envvar="SERVICEBUS_CONNECTION_STRING",
        show_default=False,
        help="Connection string of the namespace. Default, with --http-port: an emulator on this machine with the "
        f"default key, or the one in {KEY_VARIABLE}. Never printed.",
    ),
]
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


class Control:
    """The control API of an emulator.

    Args:
        connection_string: of the namespace; None = of an emulator on this machine, with `http_port`.
        http_port: of the emulator; None = the port of the namespace.
        namespace: its name, for `http_port`.
    """

    def __init__(self, connection_string: str | None, http_port: int | None, namespace: str | None) -> None:
        self._connection_string = connection_string
        self._http_port = http_port
        self._namespace = namespace

    async def call(self, method: str, what: str, body: Any = None, **query: str) -> dict[str, Any]:
        """Send a request, and return the answer.

        Raises:
            InvalidOperationError: the namespace is not one of an emulator, or the request is not valid.
            MessagingEntityNotFoundError: the entity or another object of the request does not exist.
            ServiceBusAuthorizationError: the key is not that of the namespace, or lacks Manage.
            ServiceBusConnectionError: the emulator does not answer.
        """
        connection = self._connection()
        if connection.is_memory or not connection.use_development_emulator or not connection.key:
            raise InvalidOperationError(
                "only an emulator can do this: give its connection string, with UseDevelopmentEmulator=true and a key"
            )
        host = f"[{connection.host}]" if ":" in connection.host else connection.host
        origin = f"http://{host}:{self._http_port or connection.port or DEFAULT_PORT}"
        if self._namespace is not None:
            query["namespace"] = self._namespace
        asked = "&".join(f"{name}={quote(value, safe='')}" for name, value in query.items())
        token = sign(origin, connection.key_name or "", connection.key, clock.now() + TOKEN_S)
        data = None if body is None else json.dumps(body).encode()
        request = Request(f"{origin}/$control/{what}?{asked}", data, {"Authorization": token}, method=method)
        return await asyncio.to_thread(_answer_to, request)

    def _connection(self) -> ConnectionString:
        if self._connection_string is not None:
            return parse_connection_string(self._connection_string)
        if self._http_port is None:
            raise InvalidOperationError(
                "no emulator is named: give --primary, SERVICEBUS_CONNECTION_STRING or, on this machine, --http-port"
            )
        return parse_connection_string(
            f"Endpoint=sb://localhost;SharedAccessKeyName={ROOT_KEY_NAME};"
            f"SharedAccessKey={os.environ.get(KEY_VARIABLE) or ROOT_KEY};UseDevelopmentEmulator=true"
        )


def _answer_to(request: Request) -> dict[str, Any]:
    try:
        answered = answer_to(request, timeout_s=ANSWER_S)
        status, body = answered.status, answered.body
    except OSError as error:
        raise ServiceBusConnectionError(
            f"the emulator at {request.host} does not answer ({getattr(error, 'reason', error)}): start it, or if one "
            "of its faults is the reason, add --http-port with its HTTP port"
        ) from error
    try:
        answer = json.loads(body)
        if status == 200 and isinstance(answer, dict):
            return answer
        text = str(answer["error"])
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise ServiceBusConnectionError(
            f"status {status} is not an answer of an emulator: check the address"
        ) from error
    if status == 401:
        raise ServiceBusAuthorizationError(text)
    raise (MessagingEntityNotFoundError if status == 404 else InvalidOperationError)(text)
