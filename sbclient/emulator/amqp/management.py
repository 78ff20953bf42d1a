"""The node `<entity>/$management`: peek, schedule, renew locks, settle, and requests about sessions and rules.

Source: the documented request-response operations and rights of the service, and the requests of the SDK. Rules of a
subscription need Listen here and Manage over HTTP; scheduling stores a message and needs Send. A success has status
200, or 204 if the result is empty. A failure has the condition, from which alone the SDK chooses its exception.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final, NamedTuple, TypeAlias
from uuid import UUID

from sbclient import clock
from sbclient.amqp import EncodedMessage, servicebus
from sbclient.amqp.errors import NOT_IMPLEMENTED
from sbclient.amqp.servicebus import MANAGEMENT
from sbclient.amqp.types import Array, Int, Symbol, longs, timestamps
from sbclient.broker.entity import PeekCursor, SharedPeekCursor
from sbclient.broker.entry import utc_datetime
from sbclient.broker.faults import Call, Operation, busy
from sbclient.broker.namespace import Namespace
from sbclient.broker.session import SessionLock
from sbclient.broker.transactions import Transaction
from sbclient.delivery import ServiceBusReceiveMode, Settlement, SettleMode
from sbclient.emulator.amqp.conditions import NO_CONTENT, OK, ArgumentError, status_of
from sbclient.emulator.amqp.delivery import encode_entry
from sbclient.emulator.amqp.peer import OPERATION_TIMEOUT_S, ListedSessions, Peer
from sbclient.emulator.amqp.request_response import LATEST, Arguments, Replies, Request
from sbclient.emulator.amqp.rules import described, rule_of
from sbclient.emulator.amqp.settling import properties_of
from sbclient.entities import AccessRights, EntityAddress, EntityKind, RuleProperties
from sbclient.errors import (
    InvalidOperationError,
    MessageNotFoundError,
    ServiceBusError,
    SessionLockLostError,
)
from sbclient.rules.entity_path import split_subscription

LONGEST_TIMEOUT_S: Final = 3_600.0
LISTING_S: Final = 60.0
"""The time after which a list of sessions begins again, in the middle of its pages (our choice)."""

MAX_CURSORS: Final = 1_000
"""Peek positions of one management link. The least recently used one is dropped."""

MAX_DELETED: Final = 4_000
MAX_LISTED: Final = 10_000
"""The most that one request deletes or returns. Source of the first: batch delete, documented."""

_MODES: Final = {0: ServiceBusReceiveMode.RECEIVE_AND_DELETE, 1: ServiceBusReceiveMode.PEEK_LOCK}
_SETTLE_MODES: Final = {status: mode for mode, status in servicebus.DISPOSITION_STATUSES.items()}

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
            servicebus.PEEK_MESSAGE: _Operation(Operation.PEEK, listen, self._peek),
            servicebus.RECEIVE_BY_SEQUENCE_NUMBER: _Operation(
                Operation.RECEIVE_DEFERRED, listen, self._receive_deferred
            ),
            servicebus.SCHEDULE_MESSAGE: _Operation(Operation.SCHEDULE, send, self._schedule, is_transactional=True),
            servicebus.CANCEL_SCHEDULED_MESSAGE: _Operation(
                Operation.CANCEL, send, self._cancel, is_transactional=True
            ),
            servicebus.RENEW_LOCK: _Operation(Operation.RENEW, listen, self._renew_locks),
            servicebus.RENEW_SESSION_LOCK: _Operation(Operation.RENEW, listen, self._renew_session),
            servicebus.GET_SESSION_STATE: _Operation(Operation.SESSION, listen, self._get_state),
            servicebus.SET_SESSION_STATE: _Operation(Operation.SESSION, listen, self._set_state, is_transactional=True),
            servicebus.GET_MESSAGE_SESSIONS: _Operation(Operation.SESSION, listen, self._list_sessions),
            servicebus.UPDATE_DISPOSITION: _Operation(Operation.SETTLE, listen, self._settle, is_transactional=True),
            servicebus.BATCH_DELETE_MESSAGES: _Operation(
                Operation.RECEIVE, listen, self._delete, empty_condition=MessageNotFoundError.condition
            ),
            servicebus.ADD_RULE: _Operation(Operation.MANAGE, listen, self._add_rule, is_transactional=True),
            servicebus.REMOVE_RULE: _Operation(Operation.MANAGE, listen, self._remove_rule, is_transactional=True),
            servicebus.ENUMERATE_RULES: _Operation(Operation.MANAGE, listen, self._list_rules),
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
            if faults.drops_acknowledgement(self._path, clock.now()):
                return
            if body is None:
                replies.send(request, _status(NO_CONTENT, "No Content", operation.empty_condition))
            else:
                replies.send(request, _status(OK, "OK"), body)
        peer.flush()

    def _operation(self, request: Request) -> _Operation:
        operation = self._operations.get(servicebus.PREFIX + request.operation.removeprefix(servicebus.PREFIX))
        if operation is None:
            raise NotImplementedHere(f"{self._path} has no operation {request.operation[:64]!r}: check its name")
        return operation

    async def _perform(self, request: Request, operation: _Operation) -> Body:
        peer = self._peer
        peer.check_right(f"{self._path}/{MANAGEMENT}", operation.right)
        if peer.context.wire_faults.is_busy(self._path, clock.now()):
            raise busy(self._path)
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
            max_message_count=request.arguments.count(servicebus.MESSAGE_COUNT, 1),
            from_number=request.arguments.number(servicebus.FROM_SEQUENCE_NUMBER, 0),
            session_id=session_id,
        )
        without_body = request.arguments.flag(servicebus.OMIT_MESSAGE_BODY)
        messages = [
            {servicebus.MESSAGE: encode_entry(entry, is_peeked=True, without_body=without_body).payload}
            for entry in found
        ]
        return {servicebus.MESSAGES: messages} if messages else None

    def _cursor(self, link_name: str | None, session_id: str | None) -> PeekCursor:
        browser = link_name, session_id
        cursor = self._cursors.pop(browser, None) or (SharedPeekCursor() if link_name is None else PeekCursor())
        self._cursors[browser] = cursor
        if len(self._cursors) > MAX_CURSORS:
            self._cursors.popitem(last=False)
        return cursor

    def _receive_deferred(self, request: _Call) -> Body:
        mode = _MODES.get(request.arguments.number(servicebus.RECEIVER_SETTLE_MODE, 1))
        if mode is None:
            raise ArgumentError("receiver-settle-mode is neither 0, delete, nor 1, lock: give one of them")
        lock = self._lock(request)
        taken = self._namespace.receive_deferred(
            request.call, self._path, request.arguments.numbers(servicebus.SEQUENCE_NUMBERS), mode=mode, lock=lock
        )
        messages = []
        for entry in taken:
            payload, token = encode_entry(entry, lock=lock)
            messages.append(
                {servicebus.MESSAGE: payload}
                if token is None
                else {servicebus.MESSAGE: payload, servicebus.TOKEN: token}
            )
        return {servicebus.MESSAGES: messages}

    def _schedule(self, request: _Call) -> Body:
        messages = []
        for each in request.arguments.maps(servicebus.MESSAGES):
            payload = each.get(servicebus.MESSAGE)
            if not isinstance(payload, bytes):
                raise ArgumentError("an entry of messages has no message: give the encoded message, binary")
            messages.append(EncodedMessage.of(payload))
        numbers = self._namespace.schedule(request.call, self._path, messages, transaction=request.transaction)
        return {servicebus.SEQUENCE_NUMBERS: longs(numbers)}

    def _cancel(self, request: _Call) -> Body:
        numbers = request.arguments.numbers(servicebus.SEQUENCE_NUMBERS)
        self._namespace.cancel_scheduled(request.call, self._path, numbers, transaction=request.transaction)
        return {}

    def _renew_locks(self, request: _Call) -> Body:
        ends = self._namespace.renew_locks(request.call, self._path, request.arguments.tokens(servicebus.TOKENS))
        return {servicebus.EXPIRATIONS: timestamps(map(utc_datetime, ends))}

    def _settle(self, request: _Call) -> Body:
        status = request.arguments.text(servicebus.DISPOSITION_STATUS)
        mode = _SETTLE_MODES.get(status)
        if mode is None:
            raise ArgumentError(f"disposition-status is {status[:64]!r}: give one of {', '.join(_SETTLE_MODES)}")
        properties = properties_of(request.arguments.map(servicebus.PROPERTIES_TO_MODIFY))
        settlement = Settlement(mode, properties=properties)
        if mode is SettleMode.DEAD_LETTER:
            reason = request.arguments.optional_text(servicebus.DEAD_LETTER_REASON)
            description = request.arguments.optional_text(servicebus.DEAD_LETTER_DESCRIPTION)
            settlement = Settlement(mode, reason, description, properties)
        self._namespace.settle(
            request.call,
            self._path,
            request.arguments.tokens(servicebus.TOKENS),
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
        limit = min(request.arguments.count(servicebus.MESSAGE_COUNT), MAX_DELETED)
        before = request.arguments.timestamp(servicebus.ENQUEUED_BEFORE)
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
        return {servicebus.MESSAGE_COUNT: Int(deleted)} if deleted else None

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
        lock = self._held(request, request.arguments.text(servicebus.SESSION_ID))
        return {servicebus.EXPIRATION: utc_datetime(self._namespace.renew_session(request.call, self._path, lock))}

    def _get_state(self, request: _Call) -> Body:
        lock = self._held(request, request.arguments.text(servicebus.SESSION_ID))
        return {servicebus.SESSION_STATE: self._namespace.get_session_state(request.call, self._path, lock)}

    def _set_state(self, request: _Call) -> Body:
        lock = self._held(request, request.arguments.text(servicebus.SESSION_ID))
        state = request.arguments.binary(servicebus.SESSION_STATE)
        self._namespace.set_session_state(request.call, self._path, lock, state, transaction=request.transaction)
        return {}

    def _list_sessions(self, request: _Call) -> Body:
        after = request.arguments.timestamp(servicebus.LAST_UPDATED_TIME)
        if after == LATEST:  # also ALL_SESSIONS
            after = None
        skip = request.arguments.count(servicebus.SKIP, 0)
        top = min(request.arguments.count(servicebus.TOP, 100), MAX_LISTED)
        page = self._session_page(request.call, after, skip, top)
        return {servicebus.SKIP: Int(skip), servicebus.SESSION_IDS: Array(page, 0xB1)} if page else None

    def _session_page(self, call: Call, after: datetime | None, skip: int, top: int) -> list[str]:
        """A page of session ids. All pages behind the first one are of one time, so that each costs the same."""
        namespace, peer = self._namespace, self._peer
        if not skip:
            return namespace.list_sessions(call, self._path, state_updated_after=after, most=top)
        listing, listed = (self._path, after), peer.listed_sessions
        if listed is None or listed.listing != listing or listed.until < call.now:
            ids = namespace.list_sessions(call, self._path, state_updated_after=after)
            peer.listed_sessions = listed = ListedSessions(listing, ids, call.now + LISTING_S)
        else:
            namespace.list_sessions(call, self._path, most=0)  # faults and the status of the entity apply to each page
        page = listed.ids[skip : skip + top]
        if len(page) < top:
            peer.listed_sessions = None
        return page

    # ------------------------------------------------------------------ rules

    def _rule_address(self, name: str) -> EntityAddress:
        return EntityAddress(EntityKind.RULE, (*self._subscription(), name))

    def _subscription(self) -> tuple[str, str]:
        names = split_subscription(self._path)
        if names is None:
            raise InvalidOperationError(f"{self._path} is not a subscription and has no rules: name a subscription")
        return names

    def _add_rule(self, request: _Call) -> Body:
        name = request.arguments.text(servicebus.RULE_NAME)
        rule = rule_of(name, request.arguments.any(servicebus.RULE_DESCRIPTION))
        self._namespace.management.create(request.call, self._rule_address(name), rule, transaction=request.transaction)
        return {}

    def _remove_rule(self, request: _Call) -> Body:
        address = self._rule_address(request.arguments.text(servicebus.RULE_NAME))
        self._namespace.management.delete(request.call, address, transaction=request.transaction)
        return {}

    def _list_rules(self, request: _Call) -> Body:
        page = self._namespace.management.listed(
            request.call,
            EntityKind.RULE,
            self._subscription(),
            skip=request.arguments.count(servicebus.SKIP, 0),
            most=min(request.arguments.count(servicebus.TOP, MAX_LISTED), MAX_LISTED),
        )
        rules = [described(rule) for rule in page if isinstance(rule, RuleProperties)]
        return {servicebus.RULES: rules} if rules else None


def _status(code: int, description: str, condition: str | None = None) -> dict[str, Any]:
    arguments: dict[str, Any] = {servicebus.STATUS_CODE: code, servicebus.STATUS_DESCRIPTION: description}
    if condition is not None:
        # Clients for .NET and older ones for Java accept no string.
        arguments[servicebus.ERROR_CONDITION] = Symbol(condition)
    return arguments


def _timeout_s(request: Request) -> float:
    timeout_ms = request.arguments.get(servicebus.SERVER_TIMEOUT)
    if not isinstance(timeout_ms, int) or isinstance(timeout_ms, bool):
        return OPERATION_TIMEOUT_S
    return min(max(timeout_ms / 1000, 0.0), LONGEST_TIMEOUT_S)
