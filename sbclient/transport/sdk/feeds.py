"""Reads descriptions, counts and times of entities from the documents of the management API.

The models of azure-servicebus need half a millisecond for each entity, so the documents are read here. The elements
and the types of their values are those of `formats.description_tables` and `entities`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timedelta
from functools import cache, lru_cache
from typing import Any, Final
from xml.etree.ElementTree import Element

from sbclient.entities import (
    FORWARDING,
    PROPERTIES_OF,
    AccessRights,
    AuthorizationRule,
    EntityAvailabilityStatus,
    EntityKind,
    EntityProperties,
    EntityStatus,
    RuntimeProperties,
    element_name,
    settings_of,
)
from sbclient.errors import ServiceBusCommunicationError
from sbclient.formats.description_tables import KINDS, TABLES
from sbclient.formats.iso8601 import read_duration, read_timestamp
from sbclient.transport.sdk.entities import member_of, path_of_target
from sbclient.transport.sdk.http import SERVICE_BUS

ATOM: Final = "{http://www.w3.org/2005/Atom}"
COUNTS: Final = "{http://schemas.microsoft.com/netservices/2011/06/servicebus}"

_OWN: Final = f"{{{SERVICE_BUS}}}"
_NIL: Final = "{http://www.w3.org/2001/XMLSchema-instance}nil"
_COUNT_DETAILS: Final = "CountDetails"

Reader = Callable[[Element], Any]


def blank(name: str) -> Element:
    """A list without entities, or an entry without a description, for the SDK."""
    return Element(ATOM + name)


def kind_in(entry: Element) -> EntityKind | None:
    """The kind of entity that a document describes; None if it describes none, because there is none."""
    names = (child.tag.removeprefix(_OWN) for child in entry.iterfind(f"{ATOM}content/*"))
    return next((KINDS[name] for name in names if name in KINDS), None)


def has_next_page(feed: Element) -> bool:
    """Whether a list goes on; the page has entities then."""
    links = feed.findall(f"{ATOM}link")
    return any(link.get("rel") == "next" for link in links) and feed.find(f"{ATOM}entry") is not None


def descriptions(kind: EntityKind, feed: Element) -> list[EntityProperties]:
    """The queues, topics or subscriptions of a page, or the one of a document.

    Raises:
        ServiceBusCommunicationError: the page is not one of the management API.
    """
    readers, described = _description_readers(kind), PROPERTIES_OF[kind]
    return [described(name, **_values(readers, element)) for name, element in _entries(kind, feed)]


def runtimes(kind: EntityKind, feed: Element) -> list[RuntimeProperties]:
    """The counts and times of the queues, topics or subscriptions of a page, or of the one of a document.

    Raises:
        ServiceBusCommunicationError: the page is not one of the management API.
    """
    readers, found = _runtime_readers(kind), []
    for name, element in _entries(kind, feed):
        values = _values(readers, element)
        if (details := element.find(_OWN + _COUNT_DETAILS)) is not None:
            values |= _values(_DETAIL_READERS, details)
        found.append(RuntimeProperties(name=name, **values))
    return found


def _entries(kind: EntityKind, feed: Element) -> Iterator[tuple[str, Element]]:
    path = f"{ATOM}content/{_OWN}{kind.capitalize()}Description"
    for entry in (feed,) if feed.tag == f"{ATOM}entry" else feed.iterfind(f"{ATOM}entry"):
        name, element = entry.findtext(f"{ATOM}title"), entry.find(path)
        if not name or element is None:
            raise ServiceBusCommunicationError(f"an entry of the list of {kind}s has no {kind}: check the address")
        yield name, element


def _values(readers: Mapping[str, tuple[str, Reader]], element: Element) -> dict[str, Any]:
    values = {}
    for child in element:
        known = readers.get(child.tag)
        if known is not None and (child.text is not None or child.get(_NIL) != "true"):
            attribute, read = known
            try:
                values[attribute] = read(child)
            except ValueError as error:
                text = (child.text or "")[:64]
                raise ServiceBusCommunicationError(
                    f"{text!r} is not a value of {attribute}: the answer is not one of Service Bus"
                ) from error
    return values


# ---------------------------------------------------------------------- values


def _text(element: Element) -> str:
    return element.text or ""


def _flag(element: Element) -> bool:
    text = (element.text or "").strip().lower()
    if text not in ("true", "false"):
        raise ValueError(text)
    return text == "true"


def _whole(element: Element) -> int:
    return int(element.text or "")


_cached_duration: Final = lru_cache(256)(read_duration)
_cached_time: Final = lru_cache(256)(read_timestamp)
"""Most entities have the same durations, and the times of one are often equal."""


def _duration(element: Element) -> timedelta:
    return _cached_duration(element.text or "")


def _time(element: Element) -> datetime:
    return _cached_time(element.text or "")


def _target(element: Element) -> str | None:
    return path_of_target(element.text)


def _status(element: Element) -> EntityStatus | None:
    return member_of(EntityStatus, element.text, EntityStatus.UNKNOWN)


def _availability(element: Element) -> EntityAvailabilityStatus | None:
    return member_of(EntityAvailabilityStatus, element.text, EntityAvailabilityStatus.UNKNOWN)


def _rules(element: Element) -> list[AuthorizationRule]:
    return [_rule(rule) for rule in element.iterfind(f"{_OWN}AuthorizationRule")]


def _rule(element: Element) -> AuthorizationRule:
    texts = {child.tag.removeprefix(_OWN): child.text for child in element}
    created, modified = texts.get("CreatedTime"), texts.get("ModifiedTime")
    return AuthorizationRule(
        key_name=texts.get("KeyName") or "",
        rights=[AccessRights(right.text or "") for right in element.iterfind(f"{_OWN}Rights/{_OWN}AccessRights")],
        primary_key=texts.get("PrimaryKey"),
        secondary_key=texts.get("SecondaryKey"),
        created_at_utc=read_timestamp(created) if created else None,
        modified_at_utc=read_timestamp(modified) if modified else None,
    )


_BY_TYPE: Final[Mapping[type, Reader]] = {
    bool: _flag,
    int: _whole,
    timedelta: _duration,
    str: _text,
    EntityStatus: _status,
    EntityAvailabilityStatus: _availability,
    list: _rules,
}


@cache
def _description_readers(kind: EntityKind) -> Mapping[str, tuple[str, Reader]]:
    """The attribute of each element of a description, and what reads it."""
    readers = {}
    for attribute, type_ in settings_of(kind).items():
        name = "EntityAvailabilityStatus" if attribute == "availability_status" else element_name(attribute)
        readers[_OWN + name] = attribute, _target if attribute in FORWARDING else _BY_TYPE[type_]
    return readers


@cache
def _runtime_readers(kind: EntityKind) -> Mapping[str, tuple[str, Reader]]:
    """The count or time of each element of a description, and what reads it."""
    return {
        _OWN + row.name: (attribute, _time if attribute.endswith("_utc") else _whole)
        for row in TABLES[kind].values()
        if (attribute := row.source.removeprefix("@")) in RuntimeProperties.__dataclass_fields__
    }


_DETAIL_READERS: Final = {
    COUNTS + element_name(attribute): (attribute, _whole)
    for attribute in RuntimeProperties.__dataclass_fields__
    if attribute.endswith("_message_count")
}
