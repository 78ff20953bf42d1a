"""The node `<entity>/$management`: what is asked of an entity beside sending, receiving and settling on a link.

Source: the service's documented request-response operations and rights, and what the SDK sends. Rules of a subscription
need Listen here and Manage over HTTP; scheduling stores a message and needs Send. A success is status 200, or 204
where there is nothing to give; a failure carries the condition, by which alone the SDK chooses its exception.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from datetime import MAXYEAR
from typing import Any, Final, NamedTuple, TypeAlias
from uuid import UUID

from sbclient.amqp import WireMessage
from sbclient.amqp.errors import NOT_IMPLEMENTED
from sbclient.amqp.types import Array, Int, longs, timestamps
from sbclient.broker.entity import PeekCursor
from sbclient.broker.entry import moment
from sbclient.broker.faults import Call, Operation
from sbclient.broker.namespace import Namespace
from sbclient.broker.session import SessionLock
from sbclient.broker.transactions import Transaction
from sbclient.delivery import ServiceBusReceiveMode, Settlement, SettleMode
from sbclient.emulator.amqp.address import MANAGEMENT
from sbclient.emulator.amqp.arguments import Arguments
from sbclient.emulator.amqp.conditions import NO_CONTENT, OK, ArgumentError, status_of
from sbclient.emulator.amqp.delivery import handed_out
from sbclient.emulator.amqp.peer import OPERATION_TIMEOUT_S, Peer
from sbclient.emulator.amqp.request_response import Replies, Request
from sbclient.emulator.amqp.rules import described, rule_of
from sbclient.entities import AccessRights, EntityAddress, EntityKind, RuleProperties
from sbclient.errors import (
    InvalidOperationError,
    ServiceBusAuthorizationError,
    ServiceBusError,
    ServiceBusServerBusyError,
    SessionLockLostError,
)
from sbclient.rules.entity_path import split_subscription

LONGEST_TIMEOUT_S: Final = 3_600.0
MAX_CURSORS: Final = 1_000
"""Browsers of one management link whose place is remembered; the one that has been quiet for longest is forgotten."""

MAX_PEEKED: Final = 1_000
MAX_DELETED: Final = 4_000
MAX_LISTED: Final = 10_000
"""What one request gives at most. Source of the second: batch delete, documented."""

_MODES: Final = {0: ServiceBusReceiveMode.RECEIVE_AND_DELETE, 1: ServiceBusReceiveMode.PEEK_LOCK}
_SETTLE_MODES: Final = {
    "completed": SettleMode.COMPLETE,
    "abandoned": SettleMode.ABANDON,
    "defered": SettleMode.DEFER,  # so the service spells it
    "suspended": SettleMode.DEAD_LETTER,
}

Body: TypeAlias = Mapping[str, Any] | None
"""Of a reply; None = there is nothing to give."""


class NotImplementedHere(InvalidOperationError):
    """No such operation."""

    condition = NOT_IMPLEMENTED


class _Asked(NamedTuple):
    """One request as its operation sees it."""

    call: Call
    arguments: Arguments
    link_name: str | None
    transaction: Transaction | None


class _Known(NamedTuple):
    """One operation: as what it passes the broker's door, which right it needs, and what does it."""

    operation: Operation
    right: AccessRights
    answer: Callable[[_Asked], Body]
    is_transactional: bool = False


class ManagementNode:
    """Answers the requests of one pair of links.

    Args:
        peer: the connection.
        path: of the entity; empty for the namespace's own node, which knows no operation.
    """

    def __init__(self, peer: Peer, path: str) -> None:
        self._peer = peer
        self._path = path
        self._cursors: OrderedDict[tuple[str | None, str | None], PeekCursor] = OrderedDict()
        send, listen = AccessRights.SEND, AccessRights.LISTEN
        self._known: Final = {
            "peek-message": _Known(Operation.PEEK, listen, self._peek),
            "receive-by-sequence-number": _Known(Operation.RECEIVE_DEFERRED, listen, self._receive_deferred),
            "schedule-message": _Known(Operation.SCHEDULE, send, self._schedule, is_transactional=True),
            "cancel-scheduled-message": _Known(Operation.CANCEL, send, self._cancel),
            "renew-lock": _Known(Operation.RENEW, listen, self._renew_locks),
            "renew-session-lock": _Known(Operation.RENEW, listen, self._renew_session),
            "get-session-state": _Known(Operation.SESSION, listen, self._get_state),
            "set-session-state": _Known(Operation.SESSION, listen, self._set_state),
            "get-message-sessions": _Known(Operation.SESSION, listen, self._list_sessions),
            "update-disposition": _Known(Operation.SETTLE, listen, self._settle, is_transactional=True),
            "batch-delete-messages": _Known(Operation.RECEIVE, listen, self._delete),
            "add-rule": _Known(Operation.MANAGE, listen, self._add_rule, is_transactional=True),
            "remove-rule": _Known(Operation.MANAGE, listen, self._remove_rule, is_transactional=True),
            "enumerate-rules": _Known(Operation.MANAGE, listen, self._list_rules),
        }

    @property
    def _namespace(self) -> Namespace:
        return self._peer.host.namespace

    # ------------------------------------------------------------------ requests and replies

    def on_request(self, request: Request, replies: Replies) -> None:
        """Answer, as soon as the broker does."""
        self._peer.start(self._answer(request, replies), name="amqp management")

    def on_tokens_changed(self) -> None:
        """Every request is checked for itself."""

    async def _answer(self, request: Request, replies: Replies) -> None:
        peer = self._peer
        faults = peer.context.wire_faults
        try:
            body = await self._perform(request)
        except ServiceBusError as error:
            told = peer.told(error)
            status = status_of(told.condition)
            replies.send(request, _status(status, told.description or "", told.condition))
        else:
            if faults.drops_acknowledgement(self._path, peer.now()):
                return
            if body is None:
                replies.send(request, _status(NO_CONTENT, "No Content"))
            else:
                replies.send(request, _status(OK, "OK"), body)
        peer.flush()

    async def _perform(self, request: Request) -> Body:
        peer = self._peer
        known = self._known.get(request.operation.removeprefix("com.microsoft:"))
        if known is None:
            raise NotImplementedHere(f"{self._path} knows no operation {request.operation[:64]!r}: check its name")
        self._check_rights(known)
        if peer.context.wire_faults.is_busy(self._path, peer.now()):
            raise ServiceBusServerBusyError(f"{self._path} is too busy: wait 10 seconds and try again")
        transaction = None
        if request.transaction_id is not None:
            if not known.is_transactional:
                raise InvalidOperationError(f"{request.operation} cannot be part of a transaction: ask for it outside")
            transaction = peer.transaction(request.transaction_id)
        arguments, link_name = Arguments(request), request.link_name

        def work(call: Call) -> Body:
            return known.answer(_Asked(call, arguments, link_name, transaction))

        return await peer.perform(known.operation, self._path, work, timeout_s=_timeout_s(request))

    def _check_rights(self, known: _Known) -> None:
        if known.right not in self._peer.rights(f"{self._path}/{MANAGEMENT}"):
            raise ServiceBusAuthorizationError(
                f"{known.right} is needed on {self._path} and no token of this connection grants it: "
                "put a token that does"
            )

    # ------------------------------------------------------------------ messages

    def _peek(self, asked: _Asked) -> Body:
        session_id = asked.arguments.optional_text("session-id")
        found = self._namespace.peek(
            asked.call,
            self._path,
            self._cursor(asked.link_name, session_id),
            max_message_count=min(asked.arguments.count("message-count", 1), MAX_PEEKED),
            from_number=asked.arguments.number("from-sequence-number", 0),
            session_id=session_id,
        )
        messages = [{"message": handed_out(entry, is_peeked=True).payload} for entry in found]
        return {"messages": messages} if messages else None

    def _cursor(self, link_name: str | None, session_id: str | None) -> PeekCursor:
        browser = link_name, session_id
        cursor = self._cursors.pop(browser, None) or PeekCursor()
        self._cursors[browser] = cursor
        if len(self._cursors) > MAX_CURSORS:
            self._cursors.popitem(last=False)
        return cursor

    def _receive_deferred(self, asked: _Asked) -> Body:
        mode = _MODES.get(asked.arguments.number("receiver-settle-mode", 1))
        if mode is None:
            raise ArgumentError("receiver-settle-mode is neither 0, delete, nor 1, lock: give one of them")
        taken = self._namespace.receive_deferred(
            asked.call, self._path, asked.arguments.numbers("sequence-numbers"), mode=mode, lock=self._lock(asked)
        )
        messages = []
        for entry in taken:
            payload, token = handed_out(entry)
            messages.append({"message": payload} if token is None else {"message": payload, "lock-token": token})
        return {"messages": messages}

    def _schedule(self, asked: _Asked) -> Body:
        messages = []
        for each in asked.arguments.maps("messages"):
            payload = each.get("message")
            if not isinstance(payload, bytes):
                raise ArgumentError("an entry of messages has no message: give the encoded message, binary")
            messages.append(WireMessage.of(payload))
        numbers = self._namespace.schedule(asked.call, self._path, messages, transaction=asked.transaction)
        return {"sequence-numbers": longs(numbers)}

    def _cancel(self, asked: _Asked) -> Body:
        self._namespace.cancel_scheduled(asked.call, self._path, asked.arguments.numbers("sequence-numbers"))
        return {}

    def _renew_locks(self, asked: _Asked) -> Body:
        ends = self._namespace.renew_locks(asked.call, self._path, asked.arguments.tokens("lock-tokens"))
        return {"expirations": timestamps(map(moment, ends))}

    def _settle(self, asked: _Asked) -> Body:
        status = asked.arguments.text("disposition-status")
        mode = _SETTLE_MODES.get(status)
        if mode is None:
            raise ArgumentError(f"disposition-status is {status[:64]!r}: give one of {', '.join(_SETTLE_MODES)}")
        settlement = Settlement(mode)
        if mode is SettleMode.DEAD_LETTER:
            reason = asked.arguments.optional_text("deadletter-reason")
            settlement = Settlement(mode, reason, asked.arguments.optional_text("deadletter-description"))
        self._namespace.settle(
            asked.call,
            self._path,
            asked.arguments.tokens("lock-tokens"),
            settlement,
            lock=self._lock(asked),
            transaction=asked.transaction,
        )
        return {}

    def _delete(self, asked: _Asked) -> Body:
        """Delete messages from the front that were enqueued before a moment; what came later is put back untouched."""
        limit = min(asked.arguments.count("message-count"), MAX_DELETED)
        before = asked.arguments.moment("enqueued-time-utc")
        lock, call, namespace = self._lock(asked), asked.call, self._namespace
        taken = namespace.receive(call, self._path, max_message_count=limit, lock=lock) if limit else []
        tokens = [(UUID(int=entry.token), before is None or moment(entry.enqueued_at) < before) for entry in taken]
        complete = Settlement(SettleMode.COMPLETE)
        for token, is_old in tokens:
            if is_old:
                namespace.settle(call, self._path, [token], complete, lock=lock)
            else:
                namespace.release(call, self._path, [token])
        deleted = sum(is_old for _, is_old in tokens)
        return {"message-count": Int(deleted)} if deleted else None

    # ------------------------------------------------------------------ sessions

    def _lock(self, asked: _Asked) -> SessionLock | None:
        session_id = asked.arguments.optional_text("session-id")
        return None if session_id is None else self._held(asked, session_id)

    def _held(self, asked: _Asked, session_id: str) -> SessionLock:
        lock = self._peer.session_lock(self._path, session_id, asked.link_name)
        if lock is None:
            raise SessionLockLostError(
                f"this connection does not hold session {session_id!r} of {self._path}: accept the session again"
            )
        return lock

    def _renew_session(self, asked: _Asked) -> Body:
        lock = self._held(asked, asked.arguments.text("session-id"))
        return {"expiration": moment(self._namespace.renew_session(asked.call, self._path, lock))}

    def _get_state(self, asked: _Asked) -> Body:
        lock = self._held(asked, asked.arguments.text("session-id"))
        return {"session-state": self._namespace.get_session_state(asked.call, self._path, lock)}

    def _set_state(self, asked: _Asked) -> Body:
        lock = self._held(asked, asked.arguments.text("session-id"))
        self._namespace.set_session_state(asked.call, self._path, lock, asked.arguments.binary("session-state"))
        return {}

    def _list_sessions(self, asked: _Asked) -> Body:
        after = asked.arguments.moment("last-updated-time")
        if after is not None and after.year == MAXYEAR:  # "the end of time": all that have messages or a state
            after = None
        found = self._namespace.list_sessions(asked.call, self._path, state_updated_after=after)
        skip = asked.arguments.count("skip", 0)
        page = found[skip : skip + min(asked.arguments.count("top", 100), MAX_LISTED)]
        # "sessions-ids" is the service's own spelling.
        return {"skip": Int(skip), "sessions-ids": Array(page, 0xB1)} if page else None

    # ------------------------------------------------------------------ rules

    def _rule_address(self, name: str) -> EntityAddress:
        return EntityAddress(EntityKind.RULE, (*self._subscription(), name))

    def _subscription(self) -> tuple[str, str]:
        names = split_subscription(self._path)
        if names is None:
            raise InvalidOperationError(f"{self._path} is no subscription and has no rules: name a subscription")
        return names

    def _add_rule(self, asked: _Asked) -> Body:
        name = asked.arguments.text("rule-name")
        rule = rule_of(name, asked.arguments.any("rule-description"))
        self._namespace.management.create(asked.call, self._rule_address(name), rule, transaction=asked.transaction)
        return {}

    def _remove_rule(self, asked: _Asked) -> Body:
        address = self._rule_address(asked.arguments.text("rule-name"))
        self._namespace.management.delete(asked.call, address, transaction=asked.transaction)
        return {}

    def _list_rules(self, asked: _Asked) -> Body:
        found = self._namespace.management.listed(asked.call, EntityKind.RULE, self._subscription())
        skip = asked.arguments.count("skip", 0)
        page = found[skip : skip + min(asked.arguments.count("top", MAX_LISTED), MAX_LISTED)]
        rules = [described(rule) for rule in page if isinstance(rule, RuleProperties)]
        return {"rules": rules} if rules else None


def _status(code: int, description: str, condition: str | None = None) -> dict[str, Any]:
    arguments: dict[str, Any] = {"statusCode": code, "statusDescription": description}
    if condition is not None:
        arguments["errorCondition"] = condition
    return arguments


def _timeout_s(request: Request) -> float:
    timeout_ms = request.arguments.get("com.microsoft:server-timeout")
    if not isinstance(timeout_ms, int) or isinstance(timeout_ms, bool):
        return OPERATION_TIMEOUT_S
    return min(max(timeout_ms / 1000, 0.0), LONGEST_TIMEOUT_S)
