"""The XML documents of the management API: entries, feeds and errors, and the description in a request.

Laws (source: the service's recorded answers):

1. The title of an entry is the name of its entity. Clients read names from it. The id repeats the address of the
   request in its own spelling, from which clients read the names of topic and subscription.
2. The second link of a feed is the next page. It is present exactly if there are more entries.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final
from uuid import uuid4

from sbclient.emulator.management.atom_descriptions import (
    SCHEMA_INSTANCE,
    SERVICE_BUS,
    Answer,
    Sent,
    Shown,
    read_description,
    write_description,
    write_namespace,
)
from sbclient.emulator.management.atom_rules import read_rule, write_rule
from sbclient.emulator.management.xml import Element, tag, text_tag
from sbclient.entities import (
    DEFAULT_RULE_NAME,
    EntityKind,
    EntityProperties,
    NamespaceProperties,
    RuleProperties,
    SubscriptionProperties,
    kind_of,
)
from sbclient.errors import InvalidOperationError
from sbclient.formats.description_tables import KINDS
from sbclient.formats.iso8601 import write_timestamp

ATOM: Final = "http://www.w3.org/2005/Atom"
ENTRY_TYPE: Final = "application/atom+xml;type=entry;charset=utf-8"
FEED_TYPE: Final = "application/atom+xml;type=feed;charset=utf-8"
ERROR_TYPE: Final = "application/xml; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Entry:
    """One entity in a document.

    Attributes:
        name: its own name, without its parents.
        content: its description as XML.
        created_at, updated_at: None = the document does not have it.
        has_author: whether the document names the namespace; those of subscriptions and rules do not.
    """

    name: str
    content: str = field(repr=False)
    created_at: datetime | None
    updated_at: datetime
    has_author: bool


def entry_of(shown: Shown | RuleProperties | NamespaceProperties, at: datetime, answer: Answer = Answer.GET) -> Entry:
    """The entry of an entity or the namespace; `at` is the time for one that has no times."""
    if isinstance(shown, RuleProperties):
        created = shown.created_at_utc or at
        content = _content("RuleDescription", write_rule(shown, is_change=answer is not Answer.GET))
        return Entry(shown.name, content, created, created, has_author=False)
    if isinstance(shown, NamespaceProperties):
        content = _content("NamespaceInfo", write_namespace(shown))
        return Entry(shown.name, content, None, shown.modified_at_utc, has_author=True)
    is_subscription = isinstance(shown.description, SubscriptionProperties)
    content = _content(f"{kind_of(shown.description).capitalize()}Description", write_description(shown))
    created_at = None if answer is Answer.UPDATE and not is_subscription else shown.runtime.created_at_utc
    updated_at = shown.runtime.updated_at_utc
    return Entry(shown.description.name, content, created_at, updated_at, has_author=not is_subscription)


def _content(name: str, elements: Sequence[str]) -> str:
    return tag(name, elements, xmlns=SERVICE_BUS, xmlns_i=SCHEMA_INSTANCE)


def entry_document(entry: Entry, url: str, namespace: str) -> bytes:
    """A document with one entity."""
    return _entry(entry, url, url, namespace, xmlns=ATOM).encode()


def feed_document(
    title: str, url: str, next_url: str | None, entries: Sequence[tuple[Entry, str, str]], namespace: str, at: datetime
) -> bytes:
    """A document with a page of entities.

    Args:
        next_url: of the next page; None = this is the last one.
        entries: each with its id and its address, relative to that of the document.
    """
    parts = [
        text_tag("title", title, type="text"),
        text_tag("id", url),
        text_tag("updated", write_timestamp(at)),
        tag("link", rel="self", href=url),
        tag("link", rel="next", href=next_url) if next_url else "",
        *(_entry(entry, id_, link, namespace, xml_base=url) for entry, id_, link in entries),
    ]
    return tag("feed", parts, xmlns=ATOM).encode()


def public_list(at: datetime) -> bytes:
    """The document about a path without an entity: an empty list of public services."""
    parts = [
        text_tag("title", "Publicly Listed Services", type="text"),
        text_tag("subtitle", "This is the list of publicly-listed services currently available.", type="text"),
        text_tag("id", f"uuid:{uuid4()};id=1"),
        text_tag("updated", write_timestamp(at)),
        text_tag("generator", "Service Bus 1.1"),
    ]
    return tag("feed", parts, xmlns=ATOM).encode()


def error_document(status: int, detail: str, tracking_id: str, tracker: str, at: datetime) -> bytes:
    """A document with an error."""
    text = f"{detail} TrackingId:{tracking_id}, SystemTracker:{tracker}, Timestamp:{at:%Y-%m-%dT%H:%M:%S}"
    return tag("Error", [tag("Code", str(status)), text_tag("Detail", text)]).encode()


def described(root: Element) -> Element:
    """The element in a request that describes an entity.

    Raises:
        InvalidOperationError: the body has none.
    """
    content = root.child("content") if root.name == "entry" else None
    found = None if content is None else next((child for child in content.children if child.name in KINDS), None)
    if found is None:
        raise InvalidOperationError(
            f"the body is not an Atom entry with one of {', '.join(KINDS)}: send the description of the entity"
        )
    return found


def read_properties(sent: Sent, name: str) -> EntityProperties:
    """The description of the entity with a name.

    Raises:
        InvalidOperationError: a value is not valid.
    """
    return read_rule(sent.applied, name) if sent.kind is EntityKind.RULE else read_description(sent, name)


def read_default_rule(sent: Sent) -> RuleProperties | None:
    """The default rule in the description of a new subscription; None = the rule that accepts every message."""
    rule = sent.applied.get("DefaultRuleDescription")
    if rule is None or rule.child("Filter") is None:
        return None
    parts = {child.name: child for child in rule.children}
    name = parts["Name"].text.strip() if "Name" in parts else ""
    return read_rule(parts, name or DEFAULT_RULE_NAME)


def _entry(entry: Entry, id_: str, link: str, namespace: str, **attributes: str) -> str:
    return tag(
        "entry",
        [
            text_tag("id", id_),
            text_tag("title", entry.name, type="text"),
            text_tag("published", write_timestamp(entry.created_at)) if entry.created_at else "",
            text_tag("updated", write_timestamp(entry.updated_at)),
            tag("author", text_tag("name", namespace)) if entry.has_author else "",
            tag("link", rel="self", href=link),
            tag("content", entry.content, type="application/xml"),
        ],
        **attributes,
    )
