"""The node `<entity>/$management`: peek, schedule, renew locks, settle, and requests about sessions and rules.

Source: the documented request-response operations and rights of the service, and the requests of the SDK. Rules of a
subscription need Listen here and Manage over HTTP; scheduling stores a message and needs Send. A success has status
200, or 204 if the result is empty. A failure has the condition, from which alone the SDK chooses its exception.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from datetime import MAXYEAR
from typing import Any, Final, NamedTuple, TypeAlias
from uuid import UUID

from sbclient.amqp import EncodedMessage
from sbclient.amqp.errors import NOT_IMPLEMENTED
from sbclient.amqp.types import Array, Int, Symbol, longs, timestamps
from sbclient.broker.entity import PeekCursor, SharedPeekCursor
from sbclient.broker.entry import utc_datetime
from sbclient.broker.faults import Call, Operation
from sbclient.broker.namespace import Namespace
from sbclient.broker.session import SessionLock
from sbclient.broker.transactions import Transaction
from sbclient.delivery import ServiceBusReceiveMode, Settlement, SettleMode
from sbclient.emulator.amqp.address import MANAGEMENT
from sbclient.emulator.amqp.arguments import Arguments
from sbclient.emulator.amqp.conditions import NO_CONTENT, OK, ArgumentError, status_of
from sbclient.emulator.amqp.delivery import encode_entry
from sbclient.emulator.amqp.peer import OPERATION_TIMEOUT_S, Peer
from sbclient.emulator.amqp.request_response import Replies, Request
from sbclient.emulator.amqp.rules import described, rule_of
from sbclient.emulator.amqp.settling import properties_of
from sbclient.entities import AccessRights, EntityAddress, EntityKind, RuleProperties
from sbclient.errors import (
    InvalidOperationError,
    MessageNotFoundError,
    ServiceBusError,
    ServiceBusServerBusyError,
    SessionLockLostError,
)
from sbclient.rules.entity_path import split_subscription

LONGEST_TIMEOUT_S: Final = 3_600.0
MAX_CURSORS: Final = 1_000
"""Peek positions of one management link. The least recently used one is dropped."""

MAX_PEEKED: Final = 1_000
MAX_DELETED: Final = 4_000
MAX_LISTED: Final = 10_000
"""The most that one request returns or deletes. Source of the second: batch delete, documented."""

_MODES: Final = {0: ServiceBusReceiveMode.RECEIVE_AND_DELETE, 1: ServiceBusReceiveMode.PEEK_LOCK}
_SETTLE_MODES: Final = {
    "completed": SettleMode.COMPLETE,
    "abandoned": SettleMode.ABANDON,
    "defered": SettleMode.DEFER,  # the spelling of the service
    "suspended": SettleMode.DEAD_LETTER,
}

Body: TypeAlias = Mapping[str, Any] | None
"""The body of a reply; None = the result is empty."""


class NotImplementedHere(InvalidOperationError):
    """The operation does not exist."""

    condition = NOT_IMPLEMENTED


class _Call(NamedTuple):
    """One request, with its broker call."""

    call: Call
    arguments: Arguments
    link_name: str | None
    transaction: Transaction | None


class _Operation(NamedTuple):
    """One operation.

    Attributes:
        operation: its kind for the broker.
        right: that it needs.
        answer: carries it out.
        is_transactional: whether it can be part of a transaction.
        empty_condition: of a reply without a result.
    """

    operation: Operation
    right: AccessRights
    answer: Callable[[_Call], Body]
    is_transactional: bool = False
    empty_condition: str | None = None


class ManagementNode:
    """The management node of one entity, for one pair of links.

    Args:
        peer: the connection.
        path: of the entity.
    """

    def __init__(self, peer: Peer, path: str) -> None:
        self._peer = peer
        self._path = path
        self._cursors: OrderedDict[tuple[str | None, str | None], PeekCursor] = OrderedDict()
        send, listen = AccessRights.SEND, AccessRights.LISTEN
        self._operations: Final = {
            "peek-message": _Operation(Operation.PEEK, listen, self._peek),
            "receive-by-sequence-number": _Operation(Operation.RECEIVE_DEFERRED, listen, self._receive_deferred),
            "schedule-message": _Operation(Operation.SCHEDULE, send, self._schedule, is_transactional=True),
            "cancel-scheduled-message": _Operation(Operation.CANCEL, send, self._cancel, is_transactional=True),
            "renew-lock": _Operation(Operation.RENEW, listen, self._renew_locks),
            "renew-session-lock": _Operation(Operation.RENEW, listen, self._renew_session),
            "get-session-state": _Operation(Operation.SESSION, listen, self._get_state),
            "set-session-state": _Operation(Operation.SESSION, listen, self._set_state),
            "get-message-sessions": _Operation(Operation.SESSION, listen, self._list_sessions),
            "update-disposition": _Operation(Operation.SETTLE, listen, self._settle, is_transactional=True),
            "batch-delete-messages": _Operation(
                Operation.RECEIVE, listen, self._delete, empty_condition=MessageNotFoundError.condition
            ),
            "add-rule": _Operation(Operation.MANAGE, listen, self._add_rule, is_transactional=True),
            "remove-rule": _Operation(Operation.MANAGE, listen, self._remove_rule, is_transactional=True),
            "enumerate-rules": _Operation(Operation.MANAGE, listen, self._list_rules),
        }

    @property
    def _namespace(self) -> Namespace:
        return self._peer.host.namespace

    # ------------------------------------------------------------------ requests and replies

    def on_request(self, request: Request, replies: Replies) -> None:
        """Carry out a request and send the reply."""
        self._peer.start(self._answer(request, replies), name="amqp management")

    async def _answer(self, request: Request, replies: Replies) -> None:
        peer = self._peer
        faults = peer.context.wire_faults
        try:
            operation = self._operation(request)
            body = await self._perform(request, operation)
        except ServiceBusError as error:
            reported = peer.report(error)
            status = status_of(reported.condition)
            replies.send(request, _status(status, reported.description or "", reported.condition))
        else:
            if faults.drops_acknowledgement(self._path, peer.now()):
                return
            if body is None:
                replies.send(request, _status(NO_CONTENT, "No Content", operation.empty_condition))
            else:
                replies.send(request, _status(OK, "OK"), body)
        peer.flush()

    def _operation(self, request: Request) -> _Operation:
        operation = self._operations.get(request.operation.removeprefix("com.microsoft:"))
        if operation is None:
            raise NotImplementedHere(f"{self._path} has no operation {request.operation[:64]!r}: check its name")
        return operation

    async def _perform(self, request: Request, operation: _Operation) -> Body:
        peer = self._peer
        peer.check_right(f"{self._path}/{MANAGEMENT}", operation.right)
        if peer.context.wire_faults.is_busy(self._path, peer.now()):
            raise ServiceBusServerBusyError(f"{self._path} is too busy: wait 10 seconds and try again")
        transaction = None
        if request.transaction_id is not None:
            if not operation.is_transactional:
                raise InvalidOperationError(f"{request.operation} cannot be part of a transaction: send it without one")
            transaction = peer.transaction(request.transaction_id)
        arguments, link_name = Arguments(request), request.link_name

        def work(call: Call) -> Body:
            return operation.answer(_Call(call, arguments, link_name, transaction))

        return await peer.perform(operation.operation, self._path, work, timeout_s=_timeout_s(request))

    # ------------------------------------------------------------------ messages

    def _peek(self, request: _Call) -> Body:
        session_id = request.arguments.session_id()
        found = self._namespace.peek(
            request.call,
            self._path,
            self._cursor(request.link_name, session_id),
            max_message_count=min(request.arguments.count("message-count", 1), MAX_PEEKED),
            from_number=request.arguments.number("from-sequence-number", 0),
            session_id=session_id,
        )
        without_body = request.arguments.flag("omit-message-body")
        messages = [
            {"message": encode_entry(entry, is_peeked=True, without_body=without_body).payload} for entry in found
        ]
        return {"messages": messages} if messages else None

    def _cursor(self, link_name: str | None, session_id: str | None) -> PeekCursor:
        browser = link_name, session_id
        cursor = self._cursors.pop(browser, None) or (SharedPeekCursor() if link_name is None else PeekCursor())
        self._cursors[browser] = cursor
        if len(self._cursors) > MAX_CURSORS:
            self._cursors.popitem(last=False)
        return cursor

    def _receive_deferred(self, request: _Call) -> Body:
        mode = _MODES.get(request.arguments.number("receiver-settle-mode", 1))
        if mode is None:
            raise ArgumentError("receiver-settle-mode is neither 0, delete, nor 1, lock: give one of them")
        lock = self._lock(request)
        taken = self._namespace.receive_deferred(
            request.call, self._path, request.arguments.numbers("sequence-numbers"), mode=mode, lock=lock
        )
        messages = []
        for entry in taken:
            payload, token = encode_entry(entry, lock=lock)
            messages.append({"message": payload} if token is None else {"message": payload, "lock-token": token})
        return {"messages": messages}

    def _schedule(self, request: _Call) -> Body:
        messages = []
        for each in request.arguments.maps("messages"):
            payload = each.get("message")
            if not isinstance(payload, bytes):
                raise ArgumentError("an entry of messages has no message: give the encoded message, binary")
            messages.append(EncodedMessage.of(payload))
        numbers = self._namespace.schedule(request.call, self._path, messages, transaction=request.transaction)
        return {"sequence-numbers": longs(numbers)}

    def _cancel(self, request: _Call) -> Body:
        numbers = request.arguments.numbers("sequence-numbers")
        self._namespace.cancel_scheduled(request.call, self._path, numbers, transaction=request.transaction)
        return {}

    def _renew_locks(self, request: _Call) -> Body:
        ends = self._namespace.renew_locks(request.call, self._path, request.arguments.tokens("lock-tokens"))
        return {"expirations": timestamps(map(utc_datetime, ends))}

    def _settle(self, request: _Call) -> Body:
        status = request.arguments.text("disposition-status")
        mode = _SETTLE_MODES.get(status)
        if mode is None:
            raise ArgumentError(f"disposition-status is {status[:64]!r}: give one of {', '.join(_SETTLE_MODES)}")
        properties = properties_of(request.arguments.map("properties-to-modify"))
        settlement = Settlement(mode, properties=properties)
        if mode is SettleMode.DEAD_LETTER:
            reason = request.arguments.optional_text("deadletter-reason")
            description = request.arguments.optional_text("deadletter-description")
            settlement = Settlement(mode, reason, description, properties)
        self._namespace.settle(
            request.call,
            self._path,
            request.arguments.tokens("lock-tokens"),
            settlement,
            lock=self._lock(request) if self._requires_session else None,
            transaction=request.transaction,
        )
        return {}

    @property
    def _requires_session(self) -> bool:
        return self._namespace.queue(self._path).requires_session

    def _delete(self, request: _Call) -> Body:
        """Delete the oldest messages that were enqueued before a time, and release the later ones unchanged."""
        limit = min(request.arguments.count("message-count"), MAX_DELETED)
        before = request.arguments.timestamp("enqueued-time-utc")
        lock, call, namespace = self._lock(request), request.call, self._namespace
        taken = namespace.receive(call, self._path, max_message_count=limit, lock=lock) if limit else []
        tokens = [
            (UUID(int=entry.token), before is None or utc_datetime(entry.enqueued_at) < before) for entry in taken
        ]
        complete = Settlement(SettleMode.COMPLETE)
        for token, is_old in tokens:
            if is_old:
                namespace.settle(call, self._path, [token], complete, lock=lock)
            else:
                namespace.release(call, self._path, [token])
        deleted = sum(is_old for _, is_old in tokens)
        return {"message-count": Int(deleted)} if deleted else None

    # ------------------------------------------------------------------ sessions

    def _lock(self, request: _Call) -> SessionLock | None:
        session_id = request.arguments.session_id()
        return None if session_id is None else self._held(request, session_id)

    def _held(self, request: _Call, session_id: str) -> SessionLock:
        lock = self._peer.session_lock(self._path, session_id, request.link_name)
        if lock is None:
            raise SessionLockLostError(
                f"this connection does not hold session {session_id!r} of {self._path}: accept the session again"
            )
        return lock

    def _renew_session(self, request: _Call) -> Body:
        lock = self._held(request, request.arguments.text("session-id"))
        return {"expiration": utc_datetime(self._namespace.renew_session(request.call, self._path, lock))}

    def _get_state(self, request: _Call) -> Body:
        lock = self._held(request, request.arguments.text("session-id"))
        return {"session-state": self._namespace.get_session_state(request.call, self._path, lock)}

    def _set_state(self, request: _Call) -> Body:
        lock = self._held(request, request.arguments.text("session-id"))
        self._namespace.set_session_state(request.call, self._path, lock, request.arguments.binary("session-state"))
        return {}

    def _list_sessions(self, request: _Call) -> Body:
        after = request.arguments.timestamp("last-updated-time")
        if after is not None and after.year == MAXYEAR:  # the largest value means all sessions
            after = None
        found = self._namespace.list_sessions(request.call, self._path, state_updated_after=after)
        skip = request.arguments.count("skip", 0)
        page = found[skip : skip + min(request.arguments.count("top", 100), MAX_LISTED)]
        # "sessions-ids" is the spelling of the service.
        return {"skip": Int(skip), "sessions-ids": Array(page, 0xB1)} if page else None

    # ------------------------------------------------------------------ rules

    def _rule_address(self, name: str) -> EntityAddress:
        return EntityAddress(EntityKind.RULE, (*self._subscription(), name))

    def _subscription(self) -> tuple[str, str]:
        names = split_subscription(self._path)
        if names is None:
            raise InvalidOperationError(f"{self._path} is not a subscription and has no rules: name a subscription")
        return names

    def _add_rule(self, request: _Call) -> Body:
        name = request.arguments.text("rule-name")
        rule = rule_of(name, request.arguments.any("rule-description"))
        self._namespace.management.create(request.call, self._rule_address(name), rule, transaction=request.transaction)
        return {}

    def _remove_rule(self, request: _Call) -> Body:
        address = self._rule_address(request.arguments.text("rule-name"))
        self._namespace.management.delete(request.call, address, transaction=request.transaction)
        return {}

    def _list_rules(self, request: _Call) -> Body:
        found = self._namespace.management.listed(request.call, EntityKind.RULE, self._subscription())
        skip = request.arguments.count("skip", 0)
        page = found[skip : skip + min(request.arguments.count("top", MAX_LISTED), MAX_LISTED)]
        rules = [described(rule) for rule in page if isinstance(rule, RuleProperties)]
        return {"rules": rules} if rules else None


def _status(code: int, description: str, condition: str | None = None) -> dict[str, Any]:
    arguments: dict[str, Any] = {"statusCode": code, "statusDescription": description}
    if condition is not None:
        arguments["errorCondition"] = Symbol(condition)  # clients for .NET and older ones for Java accept no string
    return arguments


def _timeout_s(request: Request) -> float:
    timeout_ms = request.arguments.get("com.microsoft:server-timeout")
    if not isinstance(timeout_ms, int) or isinstance(timeout_ms, bool):
        return OPERATION_TIMEOUT_S
    return min(max(timeout_ms / 1000, 0.0), LONGEST_TIMEOUT_S)
