"""The part of the control API that is about messages: look, send, send dead letters back, and see sessions. JSON.

    GET  /$control/messages?entity=orders[&order=newest][&fragment=3][&session=a][&count=50][&places=...]
    GET  /$control/messages/42?entity=orders        one of them, with its properties and its body
    POST /$control/messages?entity=orders           {"body": "...", "session_id": "a", ...}: send
    POST /$control/resubmit                         {"entity": "orders/$DeadLetterQueue", "sequence_numbers": [1]}
    GET  /$control/sessions?entity=jobs[&prefix=a]

Looking and resubmitting is done from the inside, past every fault; a message that is sent meets those that any client
would meet, and the broker's own words come back.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final, TypeAlias
from uuid import uuid4

from sbclient.broker.faults import Call, Operation
from sbclient.emulator.context import NamespaceContext
from sbclient.emulator.control.message_json import line_of, read_messages, whole_of
from sbclient.emulator.control.message_store import body_at, message_at, page_of, resubmit, sessions_of
from sbclient.errors import InvalidOperationError, ServiceBusError, ServiceBusServerBusyError

Facts: TypeAlias = dict[str, Any]

MAX_PAGE: Final = 200
MAX_SESSIONS: Final = 500
SEND_TIMEOUT_S: Final = 5.0
"""Somebody looks at the screen meanwhile; an application would wait longer."""

_PLACES_DIVIDER: Final = "."


class MessagesApi:
    """Messages of one namespace."""

    def __init__(self, context: NamespaceContext) -> None:
        self._context = context
        self._host = context.host

    def listed(self, query: Mapping[str, str]) -> Facts:
        """One page of messages."""
        now = self._context.clock.now()
        body = body_at(self._host.namespace, _entity_of(query))
        order = query.get("order", "oldest")
        if order not in ("oldest", "newest"):
            raise InvalidOperationError(f"order is {order[:32]!r}: give oldest or newest")
        page = page_of(
            body,
            now,
            _number("count", query, 50, most=MAX_PAGE),
            places=_places_of(query),
            newest_first=order == "newest",
            fragment=_number("fragment", query) if "fragment" in query else None,
            session_id=query.get("session"),
        )
        return {
            "entity": body.path,
            "messages": [line_of(entry) for entry in page.entries],
            "next": None if page.places is None else _PLACES_DIVIDER.join(map(str, page.places)),
        }

    def shown(self, query: Mapping[str, str], number: str) -> Facts:
        """One message."""
        body = body_at(self._host.namespace, _entity_of(query))
        return whole_of(message_at(body, self._context.clock.now(), _whole("sequence number", number, most=2**63)))

    async def sent(self, query: Mapping[str, str], said: Any) -> Facts:
        """Send what an object describes, as a client would."""
        path = _entity_of(query)
        messages = read_messages(said)
        for message in messages:
            message.message_id = message.message_id or str(uuid4())
        sent = 0

        def send(call: Call) -> None:
            nonlocal sent
            if self._context.wire_faults.is_busy(path, call.now):
                raise ServiceBusServerBusyError(f"{path} is too busy: wait 10 seconds and try again")
            for message in messages:
                self._host.namespace.send(call, path, [message])
                sent += 1

        try:
            await self._host.perform(Operation.SEND, path, send, timeout_s=SEND_TIMEOUT_S)
        except ServiceBusError as error:
            if not 0 < sent < len(messages):
                raise
            raise type(error)(f"{sent} of {len(messages)} were sent, then: {error.message}") from error
        return {"sent": sent, "message_ids": [message.message_id for message in messages]}

    def resubmitted(self, said: Mapping[str, Any]) -> Facts:
        """Put dead letters back."""
        path, now = said.get("entity"), self._context.clock.now()
        if not isinstance(path, str):
            raise InvalidOperationError(f"entity is {path!r}: give the path of a dead-letter queue")
        done = resubmit(self._host.namespace, now, path, numbers_of(said))
        self._context.events.publish("dead_letters.resubmitted", now, path=path, count=done.moved)
        return {"resubmitted": done.moved, "held": done.held, "sessionless": done.sessionless}

    def sessions(self, query: Mapping[str, str]) -> Facts:
        """The sessions of a queue or subscription."""
        body = body_at(self._host.namespace, _entity_of(query))
        prefix = query.get("prefix", "")
        every = [each for each in sessions_of(body, self._context.clock.now()) if each[1].startswith(prefix)]
        return {
            "count": len(every),
            "sessions": [
                {
                    "session_id": session_id,
                    "fragment": index,
                    "message_count": session.message_count,
                    "is_locked": bool(session.token),
                    "locked_until": session.locked_until if session.locked_until < math.inf else None,
                    "held_count": len(session.held),
                    "state_bytes": None if session.state is None else len(session.state),
                    "state_set_at": None if session.state is None else session.state_set_at,
                }
                for index, session_id, session in every[:MAX_SESSIONS]
            ],
        }


def numbers_of(said: Mapping[str, Any]) -> frozenset[int] | None:
    """The sequence numbers in an object; None = it names none, and all are meant.

    Raises:
        InvalidOperationError: they are no numbers.
    """
    numbers = said.get("sequence_numbers")
    if numbers is None:
        return None
    if not isinstance(numbers, list) or not all(type(number) is int for number in numbers):
        raise InvalidOperationError("sequence_numbers is no list of whole numbers: give one, or leave it out for all")
    return frozenset(numbers)


def _entity_of(query: Mapping[str, str]) -> str:
    path = query.get("entity")
    if not path:
        raise InvalidOperationError("no entity is named: add ?entity= and the path of a queue, topic or subscription")
    return path


def _number(name: str, query: Mapping[str, str], default: int = 0, *, most: int = 2**63) -> int:
    return _whole(name, query.get(name, str(default)), most=most)


def _whole(name: str, text: str, *, most: int) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 20 and int(text) <= most):
        raise InvalidOperationError(f"{name} is {text[:32]!r}: give a whole number from 0 to {most}")
    return int(text)


def _places_of(query: Mapping[str, str]) -> list[int] | None:
    text = query.get("places")
    if text is None:
        return None
    try:
        return [int(part) for part in text.split(_PLACES_DIVIDER)]
    except ValueError:
        raise InvalidOperationError(f"places is {text[:64]!r}: give what `next` said on the page before") from None
