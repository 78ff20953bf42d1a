"""The requests of the control API about messages and sessions. JSON over HTTP.

Faults affect sending, as they affect any client; they do not affect the other requests.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, Final, TypeAlias
from uuid import uuid4

from sbclient import clock
from sbclient.amqp import encode_message
from sbclient.broker.faults import Call, Operation, busy
from sbclient.emulator.context import NamespaceContext
from sbclient.emulator.control.message_json import has_text, line_of, read_messages, whole_of
from sbclient.emulator.control.message_store import body_at, message_at, page_of, resubmit, sessions_of
from sbclient.emulator.net.http_messages import Request, json_body, json_object
from sbclient.errors import InvalidOperationError, ServiceBusError

Facts: TypeAlias = dict[str, Any]

MAX_PAGE: Final = 200
MAX_SEARCHED: Final = 5_000
"""Messages in which one request searches for a text; the next one continues."""

MAX_SESSIONS: Final = 500
TIMEOUT_S: Final = 5.0
"""Shorter than that of an application, because a user of the page waits for the answer."""

_PLACES_DIVIDER: Final = "."
_PLACES: Final = re.compile(r"-?[0-9]{1,19}(\.-?[0-9]{1,19})*")


class MessagesApi:
    """The messages and sessions of one namespace. Each method answers one request with a JSON value."""

    def __init__(self, context: NamespaceContext) -> None:
        self._context = context
        self._host = context.host

    async def list(self, request: Request) -> Facts:
        """One page of messages."""
        query = request.query
        body = body_at(self._host.namespace, entity_of(query))
        order = query.get("order", "oldest")
        if order not in ("oldest", "newest"):
            raise InvalidOperationError(f"order is {order[:32]!r}: give oldest or newest")
        count, text = _number("count", query, 50, most=MAX_PAGE), query.get("text", "").casefold()
        fragment = _number("fragment", query) if "fragment" in query else None
        places, found, searched = _places_of(query), [], 0
        while True:
            page = page_of(
                body,
                clock.now(),
                MAX_PAGE if text else count,
                places=places,
                newest_first=order == "newest",
                fragment=fragment,
                session_id=query.get("session"),
            )
            found += [entry for entry in page.entries if not text or has_text(entry, text)]
            places, searched = page.places, searched + len(page.entries)
            if places is None or len(found) >= count or searched >= MAX_SEARCHED:
                break
            await clock.step()  # lets other clients run
        return {
            "entity": body.path,
            "messages": [line_of(entry) for entry in found],
            "next": None if places is None else _PLACES_DIVIDER.join(map(str, places)),
        }

    async def show(self, request: Request) -> Facts:
        """One message."""
        body = body_at(self._host.namespace, entity_of(request.query))
        number = _whole("sequence number", request.segments[2], most=2**63 - 1)
        return whole_of(message_at(body, clock.now(), number))

    async def send(self, request: Request) -> Facts:
        """Send messages as a client would."""
        path = entity_of(request.query)
        messages = read_messages(json_body(request))
        for message in messages:
            message.message_id = message.message_id or str(uuid4())
        sent = 0

        def send(call: Call) -> None:
            nonlocal sent
            if self._context.wire_faults.is_busy(path, call.now):
                raise busy(path)
            for message in messages:
                self._host.namespace.send(call, path, [encode_message(message)])
                sent += 1

        try:
            await self._host.perform(Operation.SEND, path, send, timeout_s=TIMEOUT_S)
        except ServiceBusError as error:
            if not 0 < sent < len(messages):
                raise
            raise type(error)(f"{sent} of {len(messages)} messages were sent, then: {error.message}") from error
        return {"sent": sent, "message_ids": [message.message_id for message in messages]}

    async def resubmit(self, request: Request) -> Facts:
        """Put dead letters back into their queues."""
        body = json_object(request, "entity", "sequence_numbers")
        path = body.get("entity")
        if not isinstance(path, str):
            raise InvalidOperationError(f"entity is {path!r}: give the path of a dead-letter queue")
        done = resubmit(self._host.namespace, clock.now(), path, numbers_of(body))
        self._context.publish("dead_letters.resubmitted", path=path, count=done.moved)
        return {"resubmitted": done.moved, "held": done.held, "sessionless": done.sessionless}

    async def sessions(self, request: Request) -> Facts:
        """The sessions of a queue or subscription."""
        body = body_at(self._host.namespace, entity_of(request.query))
        prefix = request.query.get("prefix", "")
        every = [each for each in sessions_of(body, clock.now()) if each[1].startswith(prefix)]
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


def numbers_of(said: Mapping[str, Any]) -> list[int] | None:
    """The sequence numbers in an object; None = the object has none, which means all messages.

    Raises:
        InvalidOperationError: they are not a list of whole numbers of 63 bits.
    """
    numbers = said.get("sequence_numbers")
    if numbers is None:
        return None
    if not isinstance(numbers, list) or not all(type(each) is int and 0 <= each < 2**63 for each in numbers):
        raise InvalidOperationError(
            "sequence_numbers is not a list of whole numbers from 0 to 2^63-1: give one, or none for all"
        )
    return numbers


def entity_of(query: Mapping[str, str]) -> str:
    """The path of the entity that a query names.

    Raises:
        InvalidOperationError: it names none.
    """
    path = query.get("entity")
    if not path:
        raise InvalidOperationError("the request names no entity: add ?entity= with its path")
    return path


def _number(name: str, query: Mapping[str, str], default: int = 0, *, most: int = 2**63 - 1) -> int:
    return _whole(name, query.get(name, str(default)), most=most)


def _whole(name: str, text: str, *, most: int) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 20 and int(text) <= most):
        raise InvalidOperationError(f"{name} is {text[:32]!r}: give a whole number from 0 to {most}")
    return int(text)


def _places_of(query: Mapping[str, str]) -> list[int] | None:
    text = query.get("places")
    if text is None:
        return None
    if _PLACES.fullmatch(text) is None:
        raise InvalidOperationError(f"places is {text[:64]!r}: give `next` from the previous page")
    return [int(part) for part in text.split(_PLACES_DIVIDER)]
