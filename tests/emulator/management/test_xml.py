"""XML read safely and written well-formed."""

from __future__ import annotations

import asyncio
import time
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from xml.dom.minidom import parseString

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbclient.emulator.management.xml import (
    MAX_DEPTH,
    MAX_NODES,
    PART_BYTES,
    Element,
    read_xml,
    tag,
    text_tag,
)
from sbclient.errors import InvalidOperationError
from tests.emulator.requests import read_document


def test_names_are_without_their_namespaces_and_prefixes() -> None:
    document = (
        b'<a:entry xmlns:a="urn:one" xmlns="urn:two" xmlns:i="urn:three">'
        b'<a:content><Filter i:type="d:SqlFilter">x</Filter></a:content></a:entry>'
    )
    root = read_document(document)
    assert root.name == "entry"
    content = root.child("content")
    assert content is not None
    found = content.child("Filter")
    assert found == Element("Filter", {"type": "d:SqlFilter"}, [], "x", namespace="urn:two")
    assert found.type_name == "SqlFilter"
    assert content.child("Action") is None


def test_text_around_children_and_in_pieces_is_one_text() -> None:
    assert read_document(b"<a>one &amp; <b/><![CDATA[<two>]]></a>").text == "one & <two>"


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
        read_document(document)


@pytest.mark.promise("emulator.xml")
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
        b"<a>" + b"<b/>" * MAX_NODES + b"</a>",
        b"<a>" + b"<b x='' y=''/>" * (MAX_NODES // 3 + 1) + b"</a>",
        b"<a>" + b"<b xmlns='u'/>" * (MAX_NODES // 2) + b"</a>",
        b"<a xmlns='%s'/>" % (b"u" * 257),
        b"<a xmlns:p='%s' p:b=''/>" % (b"u" * 257),
        b"<a " + b" ".join(b"a%d=''" % number for number in range(90_000)) + b"/>",
        b"<a " + b" ".join(b"xmlns:n%d='u'" % number for number in range(60_000)) + b"/>",
        b"<a><!--%s--></a>" % (b"x" * 900_000),
    ],
    ids=lambda document: f"{document[:24]!r}",
)
def test_unreasonable_document_is_rejected(document: bytes) -> None:
    with pytest.raises(InvalidOperationError):
        read_document(document)


@pytest.mark.promise("emulator.xml")
@pytest.mark.parametrize(
    "document",
    [
        b"<a xmlns='%s'>" % (b"u" * 256) + b"<b/>" * (MAX_NODES - 2) + b"</a>",
        b"<a xmlns:p='%s'>" % (b"u" * 256) + b"<p:b p:c=''/>" * (MAX_NODES // 2 - 1) + b"</a>",
        b"<a>" + b"y" * 950_000 + b"x<b/>" * (MAX_NODES - 1) + b"</a>",
        b"<a " + b" ".join(b"a%d='%s'" % (number, b"x" * 180) for number in range(600)) + b"/>",
        b"<a>" + b"&lt;" * 240_000 + b"</a>",
    ],
    ids=lambda document: f"{document[:24]!r}",
)
def test_memory_and_time_follow_the_bytes(document: bytes, record_property: Callable[[str, object], None]) -> None:
    record_property("bytes", len(document))
    began_at = time.thread_time()
    tracemalloc.start()
    read_document(document)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert peak_bytes < 20 * len(document) + 2_000_000
    assert time.thread_time() - began_at < 1.0  # some hundredths, tenths while the memory is traced


@pytest.mark.promise("emulator.xml")
async def test_other_tasks_run_while_a_large_document_is_read() -> None:
    text = "α&lt;" * PART_BYTES  # parts end within a character and within a reference
    reading = asyncio.ensure_future(read_xml(f"<a>{text}</a>".encode()))
    steps = 0
    while not reading.done():
        await asyncio.sleep(0)
        steps += 1

    assert steps > 5
    assert reading.result().text == text.replace("&lt;", "<")


@given(st.binary(max_size=200))
def test_no_bytes_break_the_reader(document: bytes) -> None:
    with suppress(InvalidOperationError):
        read_document(document)


@given(st.text(max_size=40), st.text(max_size=40))
def test_written_xml_is_well_formed(text: str, attribute: str) -> None:
    written = tag("a", [text_tag("b", text, c=attribute), tag("d")])
    parseString(written.encode("utf-8", "replace"))


@given(st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs", "Cn")), max_size=40))
def test_text_is_read_as_it_was_written(text: str) -> None:
    assert read_document(text_tag("a", text).encode()).text == text


def test_underscore_of_an_attribute_is_a_colon() -> None:
    assert tag("a", "", xmlns_i="u", i_type="b") == '<a xmlns:i="u" i:type="b"/>'


def test_characters_that_xml_does_not_allow_are_replaced() -> None:
    assert text_tag("a", "x\x00y\x1bz") == "<a>x\ufffdy\ufffdz</a>"
