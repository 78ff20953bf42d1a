"""The XML documents of the management API: entries, feeds and errors, and the description in a request.

Laws (source: the service's recorded answers):

1. The title of an entry is the name of its entity. Clients read names from it. The id repeats the path of the request
   in its own spelling, from which clients read the names of topic and subscription.
2. The second link of a feed is the next page. It is present exactly if there are more entries.
3. The detail of an error contains its sub-code, from which programs read it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from sbclient.emulator.management.atom_descriptions import (
    KINDS,
    SCHEMA_INSTANCE,
    SERVICE_BUS,
    Shown,
    read_description,
    write_description,
    write_namespace,
)
from sbclient.emulator.management.atom_rules import read_rule, write_rule
from sbclient.emulator.management.xml import Element, read_xml, tag, text_tag
from sbclient.entities import (
    DEFAULT_RULE_NAME,
    EntityKind,
    EntityProperties,
    NamespaceProperties,
    RuleProperties,
)
from sbclient.errors import InvalidOperationError
from sbclient.iso8601 import write_timestamp

ATOM: Final = "http://www.w3.org/2005/Atom"
ENTRY_TYPE: Final = "application/atom+xml;type=entry;charset=utf-8"
FEED_TYPE: Final = "application/atom+xml;type=feed;charset=utf-8"
ERROR_TYPE: Final = "application/xml; charset=utf-8"

_SUB_CODE = re.compile(r"SubCode=(\d{5})\. *")


@dataclass(frozen=True, slots=True)
class Entry:
    """One entity in a document.

    Attributes:
        url: the address of the entity.
        name: its own name, without its parents.
        content: its description as XML.
        updated_at: the time of its last change.
    """

    url: str
    name: str
    content: str = field(repr=False)  # with keys
    created_at: datetime
    updated_at: datetime


def entry_of(shown: Shown | RuleProperties | NamespaceProperties, url: str, at: datetime) -> Entry:
    """The entry of an entity or the namespace; `at` is the time for one that has no times."""
    namespaces = {"xmlns": SERVICE_BUS, "xmlns_i": SCHEMA_INSTANCE}
    if isinstance(shown, Shown):
        content = write_description(shown, **namespaces)
        times = shown.runtime.created_at_utc, shown.runtime.updated_at_utc
        return Entry(url, shown.description.name, content, *times)
    if isinstance(shown, RuleProperties):
        created = shown.created_at_utc or at
        return Entry(url, shown.name, write_rule(shown, **namespaces), created, created)
    content = write_namespace(shown, **namespaces)
    return Entry(url, shown.name, content, shown.created_at_utc, shown.modified_at_utc)


def entry_document(entry: Entry, namespace: str) -> bytes:
    """A document with one entity."""
    return _entry(entry, namespace, xmlns=ATOM).encode()


def feed_document(title: str, url: str, next_url: str | None, entries: Sequence[Entry], namespace: str) -> bytes:
    """A document with a page of entities.

    Args:
        next_url: of the next page; None = this is the last one.
    """
    updated = max((entry.updated_at for entry in entries), default=None)
    parts = [
        text_tag("title", title, type="text"),
        text_tag("id", url),
        text_tag("updated", write_timestamp(updated)) if updated else "",
        tag("link", rel="self", href=url),
        tag("link", rel="next", href=next_url) if next_url else "",
        *(_entry(entry, namespace) for entry in entries),
    ]
    return tag("feed", parts, xmlns=ATOM).encode()


def error_document(status: int, sub_code: int | None, text: str, tracking_id: str, at: datetime) -> bytes:
    """A document with an error; a sub-code in the text takes precedence."""
    match = _SUB_CODE.match(text)
    code, text = (match[1], text[match.end() :]) if match else (sub_code, text)
    message = text.rstrip(". ")
    prefix = "" if code is None else f"SubCode={code}. "
    detail = f"{prefix}{message}. TrackingId:{tracking_id}, SystemTracker:NoSystemTracker, Timestamp:"
    return tag("Error", [tag("Code", str(status)), text_tag("Detail", f"{detail}{at:%Y-%m-%dT%H:%M:%S}")]).encode()


def described(document: bytes) -> Element:
    """The element in the body of a request that describes an entity.

    Raises:
        InvalidOperationError: the body has none.
    """
    root = read_xml(document)
    content = root.child("content") if root.name == "entry" else None
    found = None if content is None else next((child for child in content.children if child.name in KINDS), None)
    if found is None:
        raise InvalidOperationError(
            f"the body is not an Atom entry with one of {', '.join(KINDS)}: send the description of the entity"
        )
    return found


def kind_of(element: Element) -> EntityKind:
    """The kind of entity that a description element describes."""
    return KINDS[element.name]


def read_properties(element: Element, name: str) -> EntityProperties:
    """The description in a description element, for the entity with that name.

    Raises:
        InvalidOperationError: a value is not valid.
    """
    return read_rule(element, name) if element.name == "RuleDescription" else read_description(element, name)


def read_default_rule(element: Element) -> RuleProperties | None:
    """The default rule in the description of a new subscription; None = the rule that accepts every message."""
    rule = element.child("DefaultRuleDescription")
    if rule is None or rule.child("Filter") is None:
        return None
    name = rule.child("Name")
    return read_rule(rule, name.text.strip() if name is not None and name.text.strip() else DEFAULT_RULE_NAME)


def _entry(entry: Entry, namespace: str, **attributes: str) -> str:
    return tag(
        "entry",
        [
            text_tag("id", entry.url),
            text_tag("title", entry.name, type="text"),
            text_tag("published", write_timestamp(entry.created_at)),
            text_tag("updated", write_timestamp(entry.updated_at)),
            tag("author", text_tag("name", namespace)),
            tag("link", rel="self", href=entry.url),
            tag("content", entry.content, type="application/xml"),
        ],
        **attributes,
    )
