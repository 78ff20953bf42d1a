"""Messages over HTTP: send, receive, complete, unlock and renew, for clients without AMQP.

Laws (source: the REST reference of the service, unless said otherwise):

1. A token covers the entity or the address of the request. Rights, limits, quotas, faults and duplicate detection are
   those of AMQP.
2. Sessions are not available: an entity that requires them answers 405 (seen). There are no transactions, deferral or
   dead-lettering.
3. Each connection is a client of one front end. A client that opens a connection for each request may therefore get 204
   while messages are cached at another front end.
4. A receive ends when its client disconnects. A message that was taken for it is released.
5. A namespace that is down does not answer.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from secrets import token_hex
from typing import Final, NamedTuple, TypeVar
from urllib.parse import quote
from uuid import UUID

from sbclient import clock
from sbclient.amqp import encode_message
from sbclient.broker.entity import SessionUseError
from sbclient.broker.entry import Entry
from sbclient.broker.faults import Call, Operation, busy
from sbclient.delivery import ServiceBusReceiveMode, Settlement, SettleMode
from sbclient.emulator.context import NamespaceContext
from sbclient.emulator.management.atom import ERROR_TYPE, error_document
from sbclient.emulator.messaging.http_message import body_of, header_type, headers_of, read_messages
from sbclient.emulator.net.http_messages import NoResponse, Request, Response
from sbclient.emulator.sas import Grant, is_at_or_below
from sbclient.entities import AccessRights
from sbclient.errors import (
    InvalidOperationError,
    MessageLockLostError,
    MessageNotFoundError,
    MessagingEntityNotFoundError,
    ServiceBusAuthenticationError,
    ServiceBusConnectionError,
    ServiceBusError,
)
from sbclient.rules.conditions import STATUS_BY_CONDITION

T = TypeVar("T")

TIMEOUT_S: Final = 60.0
LONGEST_TIMEOUT_S: Final = 3_600.0
SLICE: Final = 50
"""How many messages of a batch are read in one step of the event loop."""

_MESSAGES: Final = "messages"
_HEAD: Final = "head"
_LOCK: Final = "lock"
TARGETS: Final = {_MESSAGES: "messages", _HEAD: "messages/head?timeout=60", _LOCK: "messages/{id}/{lock token}"}
"""The ends of the addresses, for the documents."""
_TOKEN: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII | re.IGNORECASE)
_TIMEOUT: Final = re.compile(r"\d{1,9}(\.\d{1,9})?", re.ASCII)

_STATUSES: Final[tuple[tuple[type[ServiceBusError], int], ...]] = (
    (SessionUseError, 405),
    (MessagingEntityNotFoundError, 410),
    (MessageLockLostError, 404),
)
"""The status of errors that differ from those of AMQP."""


class Locked(NamedTuple):
    """The message that a request settles.

    Attributes:
        name: its id or sequence number.
        token: of its lock.
    """

    name: str
    token: UUID


class Asked(NamedTuple):
    """One request.

    Attributes:
        path: of the entity.
        grant: of its token.
        timeout_s: how long it may take.
        locked: the message that it settles; None for the other requests.
    """

    request: Request
    path: str
    grant: Grant
    timeout_s: float
    locked: Locked | None


class Route(NamedTuple):
    """One kind of request.

    Attributes:
        right: that it needs on the entity.
        answer: carries it out.
        about: its effect, for the documents.
        success: its status, and what it depends on.
    """

    right: AccessRights
    answer: Callable[[MessagingApi, Asked], Awaitable[Response]]
    about: str
    success: str


class MessagingApi:
    """The messages of one namespace."""

    def __init__(self, context: NamespaceContext) -> None:
        self._context = context
        self._host = context.host
        self._namespace = context.host.namespace

    async def answer(self, request: Request) -> Response | None:
        """Carry out one request; None if it is not about messages.

        Raises:
            NoResponse: the namespace is down, a fault drops the answer, or the client has disconnected.
        """
        found = target_of(request)
        if found is None:
            return None
        route, path, locked = found
        try:
            if self._context.wire_faults.is_busy(path, clock.now()):
                raise busy(path)
            grant = self._context.authorizer.authenticate(request.headers.get("authorization", ""), clock.now())
            _at_entity(grant, path, request).check(path, route.right)
            response = await route.answer(self, Asked(request, path, grant, _timeout_s(request), locked))
        except ServiceBusConnectionError as error:
            raise NoResponse from error
        except ServiceBusError as error:
            response = self._refusal(error, request)
        if self._context.wire_faults.drops_acknowledgement(path, clock.now()):
            raise NoResponse
        return response

    def _refusal(self, error: ServiceBusError, request: Request) -> Response:
        own = (status for kind, status in _STATUSES if isinstance(error, kind))
        status = next(own, STATUS_BY_CONDITION.get(type(error).condition or "", 400))
        tracker = f"{request.authority}:{'/'.join(request.segments)}"
        text = error.message.rstrip(". ") + "."
        headers = {"WWW-Authenticate": "SharedAccessSignature"} if status == 401 else {}
        document = error_document(status, text, token_hex(16), tracker, datetime.fromtimestamp(clock.now(), UTC))
        return Response(status, document, ERROR_TYPE, headers)

    async def _perform(self, asked: Asked, operation: Operation, work: Callable[[Call], T]) -> T:
        return await self._host.perform(
            operation, asked.path, work, timeout_s=asked.timeout_s, front_end=asked.request.connection.front_end
        )

    # ------------------------------------------------------------------ send

    async def send(self, asked: Asked) -> Response:
        """Send one message, or all messages of a batch or none."""
        messages = []
        for message in read_messages(asked.request):
            messages.append(encode_message(message, now=clock.now))
            if not len(messages) % SLICE:
                await clock.step()  # lets other clients run
        await self._perform(asked, Operation.SEND, lambda call: self._namespace.send(call, asked.path, messages))
        return Response(201, content_type=header_type(asked.request.headers.get("content-type")))

    # ------------------------------------------------------------------ receive

    async def peek_lock(self, asked: Asked) -> Response:
        """Receive and lock a message."""
        entry = await self._received(asked, ServiceBusReceiveMode.PEEK_LOCK)
        if entry is None:
            return Response(204, content_type="")
        connection, token = asked.request.connection, UUID(int=entry.token)
        path = quote(asked.path.lower(), safe="$/")
        location = f"{connection.scheme}://{asked.request.authority}/{path}/{_MESSAGES}/{entry.number}/{token}"
        return _with_message(201, entry, {"Location": location})

    async def receive_and_delete(self, asked: Asked) -> Response:
        """Receive a message and delete it."""
        entry = await self._received(asked, ServiceBusReceiveMode.RECEIVE_AND_DELETE)
        if entry is None:
            return Response(204, content_type="")
        return _with_message(200, entry, {})

    async def _received(self, asked: Asked, mode: ServiceBusReceiveMode) -> Entry | None:
        connection = asked.request.connection
        receiving = asyncio.ensure_future(
            self._host.receive(
                asked.path,
                max_message_count=1,
                max_wait_time_s=asked.timeout_s,
                mode=mode,
                front_end=connection.front_end,
                check=lambda: _check_expiry(asked.grant),
            )
        )
        gone = asyncio.ensure_future(connection.gone())
        try:
            await asyncio.wait({receiving, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            receiving.cancel()
            gone.cancel()
            await asyncio.wait({receiving, gone})
        is_gone = not gone.cancelled()
        taken = [] if receiving.cancelled() else receiving.result()
        if is_gone:
            tokens = [UUID(int=entry.token) for entry in taken if entry.token]
            self._namespace.release(Call(Operation.RECEIVE, clock.now()), asked.path, tokens)
            raise NoResponse
        return taken[0] if taken else None

    # ------------------------------------------------------------------ settle

    async def complete(self, asked: Asked) -> Response:
        """Delete a locked message."""
        return await self._settle(asked, SettleMode.COMPLETE)

    async def unlock(self, asked: Asked) -> Response:
        """Release a locked message as a failed delivery."""
        return await self._settle(asked, SettleMode.ABANDON)

    async def _settle(self, asked: Asked, mode: SettleMode) -> Response:
        def settle(call: Call) -> None:
            token = self._checked_token(call, asked)
            self._namespace.settle(call, asked.path, [token], Settlement(mode))

        await self._perform(asked, Operation.SETTLE, settle)
        return Response(200, content_type="")

    async def renew(self, asked: Asked) -> Response:
        """Renew the lock of a message."""

        def renew(call: Call) -> None:
            self._namespace.renew_locks(call, asked.path, [self._checked_token(call, asked)])

        await self._perform(asked, Operation.RENEW, renew)
        return Response(200, content_type="")

    def _checked_token(self, call: Call, asked: Asked) -> UUID:
        """The lock token of a request, which belongs to the message that it names.

        Raises:
            MessageNotFoundError: it belongs to another one.
        """
        name, token = asked.locked or ("", UUID(int=0))
        entry = self._namespace.locked(call, asked.path, token)
        if entry is not None and name not in (str(entry.number), entry.content.message_id):
            raise MessageNotFoundError(
                f"{asked.path} has no message {name[:128]!r} with the lock token {token}: use its Location"
            )
        return token


ROUTES: Final = {
    ("POST", _MESSAGES): Route(
        AccessRights.SEND,
        MessagingApi.send,
        "sends a message, or several as JSON with the content type `application/vnd.microsoft.servicebus.json`",
        "201",
    ),
    ("POST", _HEAD): Route(
        AccessRights.LISTEN,
        MessagingApi.peek_lock,
        "locks and receives a message; `Location` names it for the last three requests",
        "201, or 204 if there is none",
    ),
    ("DELETE", _HEAD): Route(
        AccessRights.LISTEN,
        MessagingApi.receive_and_delete,
        "receives a message and deletes it",
        "200, or 204 if there is none",
    ),
    ("DELETE", _LOCK): Route(
        AccessRights.LISTEN,
        MessagingApi.complete,
        "completes it; `{id}` is its sequence number or message id",
        "200",
    ),
    ("PUT", _LOCK): Route(AccessRights.LISTEN, MessagingApi.unlock, "unlocks it", "200"),
    ("POST", _LOCK): Route(AccessRights.LISTEN, MessagingApi.renew, "renews its lock", "200"),
}
"""All requests, by method and kind of target: the messages of an entity, the first of them, or a locked one."""


def target_of(request: Request) -> tuple[Route, str, Locked | None] | None:
    """The route of a request, the path of the entity, and the locked message; None if it is not about messages."""
    segments = request.segments
    words = [segment.casefold() for segment in segments]
    if words[-1:] == [_MESSAGES]:
        kind, length = _MESSAGES, 1
    elif words[-2:] == [_MESSAGES, _HEAD]:
        kind, length = _HEAD, 2
    elif words[-3:-2] == [_MESSAGES] and _TOKEN.fullmatch(words[-1]):
        kind, length = _LOCK, 3
    else:
        return None
    above = words[:-length]
    route = ROUTES.get((request.method, kind))
    if route is None or not above or above[0].startswith("$") or above[-1] == "subscriptions":
        return None
    locked = Locked(segments[-2], UUID(segments[-1])) if kind == _LOCK else None
    return route, "/".join(segments[:-length]), locked


def _with_message(status: int, entry: Entry, headers: Mapping[str, str]) -> Response:
    """A response with a message. It has no length: older clients take that header for a property of the message."""
    content_type = header_type(entry.content.content_type)
    return Response(status, body_of(entry), content_type, {**headers_of(entry), **headers}, is_chunked=True)


def _at_entity(grant: Grant, path: str, request: Request) -> Grant:
    """The grant for an entity, if that is for the address of the request. Older clients sign tokens for that."""
    is_for_address = is_at_or_below("/".join(request.segments), grant.path)
    return grant._replace(path=path) if is_for_address and is_at_or_below(grant.path, f"{path}/{_MESSAGES}") else grant


def _timeout_s(request: Request) -> float:
    text = request.query.get("timeout")
    if text is None:
        return TIMEOUT_S
    if _TIMEOUT.fullmatch(text) is None:
        raise InvalidOperationError(f"timeout is {text[:64]!r}: give a number of seconds")
    return min(float(text), LONGEST_TIMEOUT_S)


def _check_expiry(grant: Grant) -> None:
    """
    Raises:
        ServiceBusAuthenticationError: the token has expired.
    """
    if grant.expires_at < math.inf and grant.expires_at <= clock.now():
        raise ServiceBusAuthenticationError("ExpiredToken: The token is expired. Sign a new one")
