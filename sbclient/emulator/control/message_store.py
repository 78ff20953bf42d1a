"""The stored messages of an entity: list them, remove some, and resubmit dead letters.

Faults do not affect these functions, and receivers do not notice that messages were listed.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from heapq import merge
from itertools import islice
from typing import Final, NamedTuple

from sbclient.broker.directory import Entity
from sbclient.broker.entity import Queue
from sbclient.broker.entry import Entry
from sbclient.broker.fragment import Fragment
from sbclient.broker.namespace import Namespace
from sbclient.broker.session import Session
from sbclient.broker.topic import Topic
from sbclient.errors import InvalidOperationError, MessageNotFoundError, MessagingEntityNotFoundError
from sbclient.message import DEAD_LETTER_PROPERTIES, ServiceBusMessageState
from sbclient.rules.entity_path import split_sub_queue
from sbclient.rules.sequence_number import COUNTER_BITS

MAX_OF_SESSION: Final = 10_000
"""Messages of one session that are read."""


class Page(NamedTuple):
    """Some messages, and the position of the next one in each fragment; None = there are no more."""

    entries: list[Entry]
    places: list[int] | None


class Resubmitted(NamedTuple):
    """The numbers of dead letters that were resubmitted, that a receiver has locked, and that lack a session."""

    moved: int
    held: int
    sessionless: int


def entity_at(namespace: Namespace, path: str) -> Entity:
    """The entity with a path, which may be that of a sub-queue.

    Raises:
        MessagingEntityNotFoundError: the entity does not exist.
    """
    entity = namespace.directory.get(split_sub_queue(path)[0])
    if entity is None:
        raise MessagingEntityNotFoundError(f"entity {path!r} does not exist: create it, or check its name")
    return entity


def body_at(namespace: Namespace, path: str) -> Queue | Topic:
    """The queue, topic or sub-queue with a path; it is not created.

    Raises:
        MessagingEntityNotFoundError: it does not exist.
    """
    entity, name = entity_at(namespace, path), split_sub_queue(path)[1]
    body = entity.body if name is None else entity.sub_queues.get(name)
    if body is None:
        raise MessagingEntityNotFoundError(f"{path!r} is empty: it has never had a message")
    return body


# ---------------------------------------------------------------------- list


def page_of(
    body: Queue | Topic,
    now: float,
    count: int,
    *,
    places: Sequence[int] | None = None,
    newest_first: bool = False,
    fragment: int | None = None,
    session_id: str | None = None,
) -> Page:
    """The oldest or newest messages of all fragments, in the order of arrival.

    Args:
        count: the size of the page.
        places: those of the previous page, to continue there.
        fragment: only messages of this one.
        session_id: only messages of this session.

    Raises:
        InvalidOperationError: the fragment does not exist, or the places are not those of a page.
    """
    chosen = _chosen(body, fragment, session_id)
    if places is not None and len(places) != len(chosen):
        raise InvalidOperationError(f"{len(places)} places were given for {len(chosen)} fragments: omit them")
    starts = list(places) if places is not None else [-1] * len(chosen)
    found = [
        list(islice(_from(each, now, start, session_id, newest_first=newest_first), count + 1))
        for each, start in zip(chosen, starts, strict=True)
    ]
    ordered = merge(*(_timed(entries, newest_first=newest_first) for entries in found), key=lambda timed: timed[:2])
    shown = [entry for _, _, entry in islice(ordered, count)]
    if sum(map(len, found)) == len(shown):
        return Page(shown, None)
    at = {each.index: place for place, each in enumerate(chosen)}
    for entry in shown:
        place = 0 if len(chosen) == 1 else at[entry.number >> COUNTER_BITS]
        starts[place] = entry.number - 1 if newest_first else entry.number + 1
    return Page(shown, starts)


def message_at(body: Queue | Topic, now: float, number: int) -> Entry:
    """One message by its sequence number.

    Raises:
        MessageNotFoundError: the message does not exist.
    """
    for fragment in body.fragments:
        if number in fragment:
            entry = next(fragment.browse(now, number), None)
            if entry is not None and entry.number == number:
                return entry
    raise MessageNotFoundError(f"{body.path} has no message {number}: it was received, moved or has expired")


def sessions_of(body: Queue | Topic, now: float) -> list[tuple[int, str, Session]]:
    """All sessions in the order of their ids, each with the index of its fragment."""
    found = [(fragment.index, name, session) for fragment in body.fragments for name, session in fragment.sessions(now)]
    return sorted(found, key=lambda each: each[1])


def _chosen(body: Queue | Topic, index: int | None, session_id: str | None) -> list[Fragment]:
    if session_id is not None:
        return [body.placement.fragment_for(session_id)]
    if index is None:
        return body.fragments
    if not 0 <= index < len(body.fragments):
        raise InvalidOperationError(f"{body.path} has no fragment {index}: it has {len(body.fragments)}, from 0")
    return [body.fragments[index]]


def _from(fragment: Fragment, now: float, start: int, session_id: str | None, *, newest_first: bool) -> Iterator[Entry]:
    if session_id is not None:
        entries = list(islice(fragment.browse(now, 0, session_id), MAX_OF_SESSION))
        if newest_first:
            return iter([entry for entry in reversed(entries) if start < 0 or entry.number <= start])
        return iter([entry for entry in entries if entry.number >= start])
    if newest_first:
        return fragment.browse_back(now, None if start < 0 else start)
    return fragment.browse(now, max(start, 0))


def _timed(entries: Sequence[Entry], *, newest_first: bool) -> Iterator[tuple[float, int, Entry]]:
    """The entries with times by which they can be merged: those of one fragment keep their order."""
    at = math.inf if newest_first else 0.0
    for entry in entries:
        came_at = entry.enqueued_at or at
        at = min(at, came_at) if newest_first else max(at, came_at)
        yield (-at, -entry.number, entry) if newest_first else (at, entry.number, entry)


# ---------------------------------------------------------------------- change


def purge(namespace: Namespace, now: float, path: str | None = None, numbers: Iterable[int] | None = None) -> int:
    """Remove messages, also locked ones.

    Args:
        path: of an entity, with its sub-queues and, for a topic, its subscriptions; or of one sub-queue; None = all
            entities.
        numbers: only the messages of the queue at the path with these sequence numbers; None = all.

    Returns: how many were removed.

    Raises:
        MessagingEntityNotFoundError: the entity does not exist.
    """
    if path is None:
        bodies = [body for entity in namespace.directory.all() for body in entity.queues()]
    elif numbers is not None or split_sub_queue(path)[1] is not None:
        bodies = [body_at(namespace, path)]
    else:
        entity = entity_at(namespace, path)
        bodies = [body for each in (entity, *namespace.directory.subscriptions_of(entity)) for body in each.queues()]
    asked = _asked(numbers)
    return sum(_emptied(fragment, now, asked) for body in bodies for fragment in body.fragments)


def resubmit(namespace: Namespace, now: float, path: str, numbers: Iterable[int] | None = None) -> Resubmitted:
    """Put dead letters back into their queue, each into its fragment, with a new time to live and no failed delivery.

    They bypass topics and duplicate detection: other subscriptions get no second copy. Locked messages stay, and so do
    messages without a session where one is required, because no receiver could get them.

    Args:
        path: of a dead-letter queue, or of a transfer dead-letter queue.
        numbers: only messages with these sequence numbers; None = all.

    Raises:
        InvalidOperationError: the path is not that of a dead-letter queue.
        MessagingEntityNotFoundError: the queue does not exist.
    """
    if split_sub_queue(path)[1] is None:
        raise InvalidOperationError(f"{path!r} is not a dead-letter queue: add /$DeadLetterQueue")
    entity, dead_letters = entity_at(namespace, path), body_at(namespace, path)
    asked = _asked(numbers)
    moved = held = sessionless = 0
    for fragment in dead_letters.fragments:
        for entry in list(fragment.browse(now, 0)):
            if asked is not None and str(entry.number) not in asked:
                continue
            if entry.token:
                held += 1
                continue
            target = entity.body if entry.destination is None else entity.require_sub_queue("transfer")
            if target.requires_session and entry.content.session_id is None:
                sessionless += 1
                continue
            fragment.remove(entry)
            target.fragments[fragment.index].append(_revived(entry), now)
            moved += 1
    namespace.advance(now)
    return Resubmitted(moved, held, sessionless)


def _revived(entry: Entry) -> Entry:
    """The message before it was dead-lettered.

    A message that was forwarded from one dead-letter queue to another has its reason as properties.
    """
    content = entry.content
    if any(name in content.application_properties for name in DEAD_LETTER_PROPERTIES):
        content = content.without_properties(DEAD_LETTER_PROPERTIES)
    revived = Entry(content, entry.size_bytes if content is entry.content else content.size_bytes)
    revived.destination = entry.destination
    return revived


def _asked(numbers: Iterable[int] | None) -> Collection[str] | None:
    """The numbers as text: a client chooses them, and so the hashes of the numbers themselves."""
    return None if numbers is None else frozenset(map(str, numbers))


def _emptied(fragment: Fragment, now: float, asked: Collection[str] | None) -> int:
    entries = [entry for entry in fragment.browse(now, 0) if asked is None or str(entry.number) in asked]
    for entry in entries:
        if entry.state is ServiceBusMessageState.SCHEDULED:
            fragment.cancel(entry.number)
        else:
            fragment.remove(entry)
    return len(entries)
