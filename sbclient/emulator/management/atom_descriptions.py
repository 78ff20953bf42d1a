"""The elements of entities and the namespace in the management documents.

Laws (source: the service's recorded answers):

1. Elements have the order of `description_tables`. The service applies an element of a request only if no later one of
   its table precedes it. It keeps the others, and unknown ones, at their place in the answers without applying them;
   of several with one name the last, so that a description does not grow by being read and written back.
2. A request contains only the elements that are set. The answer to a creation contains all but those marked `get`. The
   answer to an update of a queue or topic has the elements of the request.
3. An element marked with an api-version exists from that version on: earlier requests with it are refused.
4. The destination of forwarding is a URL in documents, as it was sent, but with scheme and host in lower case (live
   test of the JavaScript client), and a path in descriptions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from enum import StrEnum
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import unquote

from sbclient.emulator.management.atom_values import read_any, write_any
from sbclient.emulator.management.xml import Element, tag, text_tag, write_element
from sbclient.entities import (
    FORWARDING,
    PROPERTIES_OF,
    SETTINGS,
    AccessRights,
    AuthorizationRule,
    Description,
    EntityKind,
    EntityStatus,
    NamespaceProperties,
    RuntimeProperties,
    SubscriptionProperties,
    element_name,
    kind_of,
    settings_of,
)
from sbclient.errors import InvalidOperationError
from sbclient.formats.description_tables import KINDS, TABLES, Row
from sbclient.formats.iso8601 import read_timestamp, write_timestamp

SERVICE_BUS: Final = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"
COUNTS: Final = "http://schemas.microsoft.com/netservices/2011/06/servicebus"
SCHEMA_INSTANCE: Final = "http://www.w3.org/2001/XMLSchema-instance"

Choice = TypeVar("Choice", bound=StrEnum)


class Sent(NamedTuple):
    """The description in a request.

    Attributes:
        kind: of the entity.
        elements: in their order, each with whether the service applies it.
    """

    kind: EntityKind
    elements: Sequence[tuple[Element, bool]]

    @property
    def applied(self) -> Mapping[str, Element]:
        """The elements that the service applies, by name."""
        return {element.name: element for element, is_applied in self.elements if is_applied}

    @property
    def ignored_names(self) -> Sequence[str]:
        """The names of the elements that the service keeps without applying them."""
        return [element.name for element, is_applied in self.elements if not is_applied]


class Answer(StrEnum):
    """What a document answers."""

    GET = "get"
    CREATION = "creation"
    UPDATE = "update"


class Shown(NamedTuple):
    """A description with the other facts in its document.

    Attributes:
        runtime: counts and times.
        base: the URL before the path of a forwarding destination: `sb://localhost:5672/`.
        version: the api-version of the request; empty = the oldest.
        sent: the last description that was sent for the entity; None = it was made otherwise.
        answer: what the document answers.
    """

    description: Description
    runtime: RuntimeProperties
    base: str
    version: str
    sent: Sent | None = None
    answer: Answer = Answer.GET


def _path_of(text: str) -> str | None:
    text = text.strip()
    if "://" in text:
        text = unquote(text.partition("://")[2].partition("/")[2].partition("?")[0])
    return text.strip("/") or None


def _lower_host(text: str) -> str:
    """A URL with its scheme and host in lower case; a path is not changed."""
    scheme, separator, rest = text.partition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme}{separator}{host}".lower() + slash + path if separator else text


def _member(choices: type[Choice], what: str, text: str) -> Choice:
    try:
        return choices(text.strip())
    except ValueError as error:
        raise InvalidOperationError(f"{text[:64]!r} is not a {what}: write one of {', '.join(choices)}") from error


# ---------------------------------------------------------------------- parts with children


def _write_rule(rule: AuthorizationRule) -> str:
    times = {"CreatedTime": rule.created_at_utc, "ModifiedTime": rule.modified_at_utc}
    return tag(
        "AuthorizationRule",
        [
            tag("ClaimType", "SharedAccessKey"),
            tag("ClaimValue", "None"),
            tag("Rights", [text_tag("AccessRights", right) for right in rule.rights]),
            *(text_tag(name, write_timestamp(time)) for name, time in times.items() if time is not None),
            text_tag("KeyName", rule.key_name),
            text_tag("PrimaryKey", rule.primary_key or ""),
            text_tag("SecondaryKey", rule.secondary_key or ""),
        ],
        i_type="SharedAccessAuthorizationRule",
    )


def _read_rule(element: Element) -> AuthorizationRule:
    texts = {child.name: child.text for child in element.children}
    if not texts.get("KeyName"):
        raise InvalidOperationError("an AuthorizationRule has no KeyName: give one")
    rights = element.child("Rights")
    created, modified = texts.get("CreatedTime"), texts.get("ModifiedTime")
    return AuthorizationRule(
        key_name=texts["KeyName"],
        rights=[_member(AccessRights, "right", child.text) for child in (rights.children if rights else ())],
        primary_key=texts.get("PrimaryKey") or None,
        secondary_key=texts.get("SecondaryKey") or None,
        created_at_utc=read_timestamp(created) if created else None,
        modified_at_utc=read_timestamp(modified) if modified else None,
    )


# ---------------------------------------------------------------------- the tables


_COUNT_DETAILS: Final = {
    f"d2p1:{element_name(attribute)}": attribute
    for kind in ("active", "dead_letter", "scheduled", "transfer", "transfer_dead_letter")
    if (attribute := f"{kind}_message_count")
}
_NEW_SUBSCRIPTION_ACCESS: Final = "0001-01-01T00:00:00"
_XML_TYPES: Final[Mapping[type, str]] = {bool: "boolean", int: "long", timedelta: "duration"}


def read_sent(element: Element, version: str) -> Sent:
    """The elements of a description.

    Raises:
        InvalidOperationError: one of them does not exist yet in that api-version.
    """
    kind = KINDS[element.name]
    table = TABLES[kind]
    if any(child.name in table and version < table[child.name].since for child in element.children):
        raise InvalidOperationError(
            f"The entity description of type '{element.name}' has unsupported properties for api-version '{version}' "
            "in the request. Try including the correct api-version query string in the request."
        )
    places, place = {name: at for at, name in enumerate(table)}, -1
    elements: list[tuple[Element, bool]] = []
    kept: dict[str, int] = {}
    for child in element.children:
        is_applied = places.get(child.name, -1) > place
        if is_applied:
            place = places[child.name]
        elif (at := kept.setdefault(child.name, len(elements))) < len(elements):
            elements[at] = (child, False)
            continue
        elements.append((child, is_applied))
    return Sent(kind, elements)


def read_description(sent: Sent, name: str) -> Description:
    """The description of a queue, topic or subscription with a name; missing values are None.

    Raises:
        InvalidOperationError: a value is not valid; the text names its element.
    """
    values, applied = {}, sent.applied
    for attribute, type_ in settings_of(sent.kind).items():
        found = applied.get(element_name(attribute))
        if found is None or SETTINGS[attribute].is_answer or found.attributes.get("nil") == "true":
            continue
        try:
            values[attribute] = _read(attribute, type_, found)
        except InvalidOperationError as error:
            raise InvalidOperationError(f"{found.name} of {name}: {error.message}") from error
    described: Description = PROPERTIES_OF[sent.kind](name, **values)
    return described


def _read(attribute: str, type_: type, element: Element) -> Any:
    if attribute in FORWARDING:
        return _path_of(element.text)
    if type_ is EntityStatus:
        return _member(EntityStatus, "status", element.text)
    if type_ is list:
        return [_read_rule(child) for child in element.all("AuthorizationRule")]
    return element.text or None if type_ is str else read_any(_XML_TYPES[type_], element.text)


def write_description(shown: Shown) -> list[str]:
    """The elements of a description."""
    kind, sent = kind_of(shown.description), () if shown.sent is None else shown.sent.elements
    table = TABLES[kind]
    if shown.answer is Answer.UPDATE and kind is not EntityKind.SUBSCRIPTION:
        settings = {element_name(attribute) for attribute in settings_of(kind)}
        return [
            (is_applied and element.name in settings and _write(shown, table[element.name]))
            or write_element(element, SERVICE_BUS)
            for element, is_applied in sent
        ]
    kept: dict[str, list[str]] = {}
    last = ""
    for element, is_applied in sent:
        if is_applied:
            last = element.name
        else:
            kept.setdefault(last, []).append(write_element(element, SERVICE_BUS))
    parts = kept.get("", [])
    for row in table.values():
        if shown.version >= row.since and (not row.answers or row.answers == shown.answer):
            parts.append(_write(shown, row))
        parts += kept.get(row.name, [])
    return parts


def _write(shown: Shown, row: Row) -> str:
    """An element; empty if it has no value."""
    name, description, runtime = row.name, shown.description, shown.runtime
    if row.source.startswith("="):
        return tag(name, row.source[1:])
    if name == "CountDetails":
        counts = [tag(element, str(getattr(runtime, attribute))) for element, attribute in _COUNT_DETAILS.items()]
        return tag(name, counts, xmlns_d2p1=COUNTS)
    if name == "AccessedAt" and isinstance(description, SubscriptionProperties) and shown.answer is not Answer.GET:
        return tag(name, _NEW_SUBSCRIPTION_ACCESS)
    attribute = row.source[1:] or _ATTRIBUTES[name]
    value = getattr(runtime if hasattr(runtime, attribute) else description, attribute, None)
    if name == "AuthorizationRules":
        return tag(name, [_write_rule(rule) for rule in value or ()])
    if name == "SupportOrdering" and value is None:
        value = not description.get("enable_partitioning", False)
    if attribute in FORWARDING and value is not None:
        sent = None if shown.sent is None else shown.sent.applied.get(name)
        value = shown.base + value if sent is None or _path_of(sent.text) != value else _lower_host(sent.text.strip())
    return "" if value is None else text_tag(name, write_any(value)[1])


_ATTRIBUTES: Final = {"EntityAvailabilityStatus": "availability_status"} | {
    element_name(attribute): attribute for kind in EntityKind for attribute in settings_of(kind)
}
"""The setting with the name of each element."""


def write_namespace(namespace: NamespaceProperties) -> list[str]:
    """The elements of a NamespaceInfo; only the Premium tier has messaging units."""
    units = namespace.messaging_units
    return [
        text_tag("Alias", namespace.alias) if namespace.alias else "",
        text_tag("CreatedTime", write_timestamp(namespace.created_at_utc)),
        text_tag("MessagingSKU", namespace.messaging_sku),
        "" if units is None else tag("MessagingUnits", str(units)),
        text_tag("ModifiedTime", write_timestamp(namespace.modified_at_utc)),
        text_tag("Name", namespace.name),
        tag("NamespaceType", "Messaging"),
    ]
