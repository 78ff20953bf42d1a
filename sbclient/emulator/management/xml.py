"""Reads XML documents safely into plain trees, and writes XML.

Laws:

1. A document type declaration is rejected before it is read, so that no entities can be expanded.
2. Names are compared without their namespaces, which clients write in many ways.
3. The memory and the time of a document follow its bytes. Namespaces are short and shared, since each element has one,
   and no tag has as many attributes as a document may have. A large document is read in slices.
4. A character that XML does not allow is written as U+FFFD.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final
from xml.parsers import expat
from xml.sax.saxutils import escape, quoteattr

from sbclient import clock
from sbclient.errors import InvalidOperationError

MAX_DEPTH: Final = 32
MAX_NODES: Final = 5_000
"""Elements, attributes and declarations of namespaces."""

MAX_NAMESPACE_LENGTH: Final = 256
PART_BYTES: Final = 65_536
"""Of a document in one step of the event loop."""

_NOT_ALLOWED = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_ESCAPED = re.compile(f"[&<>\r]|{_NOT_ALLOWED.pattern}")


@dataclass(slots=True)
class Element:
    """An element.

    Attributes:
        name: without its namespace.
        attributes: by name without namespace.
        text: all text directly inside.
        namespace: of the name.
    """

    name: str
    attributes: dict[str, str]
    children: list[Element] = field(default_factory=list)
    text: str = field(default="", repr=False)  # may be a key
    namespace: str = ""

    def child(self, name: str) -> Element | None:
        """The first child with a name; None if there is none."""
        return next(self.all(name), None)

    def all(self, name: str) -> Iterator[Element]:
        """The children with a name."""
        return (child for child in self.children if child.name == name)

    @property
    def type_name(self) -> str:
        """The value of `i:type` without its prefix; empty if there is none."""
        return self.attributes.get("type", "").rpartition(":")[2]


async def read_xml(document: bytes) -> Element:
    """The root of a document; all other tasks run between the parts of a large one.

    Raises:
        InvalidOperationError: the document is not well-formed, or larger or deeper than any description.
    """
    tree = _Tree()
    parser = expat.ParserCreate(namespace_separator="\n")
    parser.buffer_text = True
    parser.StartNamespaceDeclHandler = tree.on_declaration
    parser.StartElementHandler = tree.on_start
    parser.EndElementHandler = tree.on_end
    parser.CharacterDataHandler = tree.on_text
    parser.StartDoctypeDeclHandler = tree.on_doctype
    is_last, end = False, 0
    while not is_last:
        start, end = end, end + PART_BYTES
        is_last = end >= len(document)
        try:
            parser.Parse(document[start:end], is_last)
        except (expat.ExpatError, ValueError, LookupError) as error:
            if isinstance(error, InvalidOperationError):
                raise
            raise InvalidOperationError(f"the body is not well-formed XML: {error}") from error
        if not is_last and end - parser.CurrentByteIndex > 2 * PART_BYTES:
            raise InvalidOperationError(f"the body has a tag or comment of more than {PART_BYTES} bytes")
        if not is_last:
            await clock.step()
    return tree.root


class _Tree:
    """The elements of a document that is being read."""

    def __init__(self) -> None:
        self._top = Element("", {})
        self._open = [self._top]
        self._texts: list[list[str]] = [[]]
        self._count = 0
        self._shared: dict[str, str] = {}

    @property
    def root(self) -> Element:
        return self._top.children[0]

    def on_declaration(self, _prefix: str | None, namespace: str | None) -> None:
        self._count_nodes(1)
        if len(namespace or "") > MAX_NAMESPACE_LENGTH:
            raise InvalidOperationError(f"the body has a namespace of more than {MAX_NAMESPACE_LENGTH} characters")

    def on_start(self, name: str, attributes: dict[str, str]) -> None:
        self._count_nodes(1 + len(attributes))
        if len(self._open) > MAX_DEPTH:
            raise InvalidOperationError(f"the body is nested deeper than {MAX_DEPTH}: a description is not")
        namespace, _, local = name.rpartition("\n")
        namespace = self._shared.setdefault(namespace, namespace)
        element = Element(local, {_local(key): value for key, value in attributes.items()}, namespace=namespace)
        self._open[-1].children.append(element)
        self._open.append(element)
        self._texts.append([])

    def on_end(self, _name: str) -> None:
        self._open.pop().text = "".join(self._texts.pop())

    def on_text(self, text: str) -> None:
        self._texts[-1].append(text)

    def on_doctype(self, *_: object) -> None:
        raise InvalidOperationError("the body has a document type declaration: send it without one")

    def _count_nodes(self, nodes: int) -> None:
        self._count += nodes
        if self._count > MAX_NODES:
            raise InvalidOperationError(
                f"the body has more than {MAX_NODES} elements and attributes: a description has fewer"
            )


def _local(name: str) -> str:
    return name.rpartition("\n")[2]


def xml_text(text: str) -> str:
    """Escape text for the content of an element."""
    if _ESCAPED.search(text) is None:
        return text
    return escape(_NOT_ALLOWED.sub("�", text), {"\r": "&#13;"})


@lru_cache(256)
def xml_attribute(text: str) -> str:
    """Escape and quote text for the value of an attribute."""
    return quoteattr(_NOT_ALLOWED.sub("�", text))


def tag(name: str, content: str | Sequence[str] = "", **attributes: str) -> str:
    """An element with XML as content. An underscore in the name of an attribute is written as a colon."""
    written = ""
    for key, value in attributes.items():
        written += f" {key.replace('_', ':')}={xml_attribute(value)}"
    inner = content if isinstance(content, str) else "".join(content)
    return f"<{name}{written}>{inner}</{name}>" if inner else f"<{name}{written}/>"


def text_tag(name: str, text: str, **attributes: str) -> str:
    """An element with text as content."""
    if text and not attributes:
        return f"<{name}>{xml_text(text)}</{name}>"
    return tag(name, xml_text(text), **attributes)


def write_element(element: Element, namespace: str) -> str:
    """An element as it was read, without attributes other than `i:type`, inside one with that namespace."""
    attributes = {"i_type": element.type_name} if element.type_name else {}
    if element.namespace != namespace:
        attributes["xmlns"] = element.namespace
    inner = [write_element(child, element.namespace) for child in element.children] or xml_text(element.text)
    return tag(element.name, inner, **attributes)
