"""XML read safely and written well-formed."""

from __future__ import annotations

from contextlib import suppress
from xml.dom.minidom import parseString

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbclient.emulator.management.xml import MAX_DEPTH, Element, read_xml, tag, text_tag
from sbclient.errors import InvalidOperationError


def test_names_are_without_their_namespaces_and_prefixes() -> None:
    document = (
        b'<a:entry xmlns:a="urn:one" xmlns="urn:two" xmlns:i="urn:three">'
        b'<a:content><Filter i:type="d:SqlFilter">x</Filter></a:content></a:entry>'
    )
    root = read_xml(document)
    assert root.name == "entry"
    content = root.child("content")
    assert content is not None
    found = content.child("Filter")
    assert found == Element("Filter", {"type": "d:SqlFilter"}, [], "x", namespace="urn:two")
    assert found.type_name == "SqlFilter"
    assert content.child("Action") is None


def test_text_around_children_and_in_pieces_is_one_text() -> None:
    assert read_xml(b"<a>one &amp; <b/><![CDATA[<two>]]></a>").text == "one & <two>"


@pytest.mark.parametrize(
    "document",
    [
        b'<!DOCTYPE a [<!ENTITY b "boom">]><a>&b;</a>',
        b'<!DOCTYPE a SYSTEM "file:///etc/passwd"><a/>',
        b"<!DOCTYPE a><a/>",
    ],
)
def test_document_type_is_rejected_before_it_is_read(document: bytes) -> None:
    with pytest.raises(InvalidOperationError, match="document type"):
        read_xml(document)


@pytest.mark.parametrize(
    "document",
    [
        b"",
        b"plain",
        b"<a>",
        b"<a></b>",
        b"<a/><b/>",
        b"<a>\x00</a>",
        b"<a>&unknown;</a>",
        b"\xff\xfe\xfd",
        b'<?xml version="1.0" encoding="nonsense"?><a/>',
        b"<a>" * (MAX_DEPTH + 2) + b"</a>" * (MAX_DEPTH + 2),
        b"<a>" + b"<b/>" * 20_001 + b"</a>",
    ],
)
def test_unreasonable_document_is_rejected(document: bytes) -> None:
    with pytest.raises(InvalidOperationError):
        read_xml(document)


@given(st.binary(max_size=200))
def test_no_bytes_break_the_reader(document: bytes) -> None:
    with suppress(InvalidOperationError):
        read_xml(document)


@given(st.text(max_size=40), st.text(max_size=40))
def test_written_xml_is_well_formed(text: str, attribute: str) -> None:
    written = tag("a", [text_tag("b", text, c=attribute), tag("d")])
    parseString(written.encode("utf-8", "replace"))


@given(st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs", "Cn")), max_size=40))
def test_text_is_read_as_it_was_written(text: str) -> None:
    assert read_xml(text_tag("a", text).encode()).text == text


def test_underscore_of_an_attribute_is_a_colon() -> None:
    assert tag("a", "", xmlns_i="u", i_type="b") == '<a xmlns:i="u" i:type="b"/>'


def test_characters_that_xml_does_not_allow_are_replaced() -> None:
    assert text_tag("a", "x\x00y\x1bz") == "<a>x\ufffdy\ufffdz</a>"
