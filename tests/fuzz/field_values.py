"""Frames with another value in each field: the edges of each type of AMQP, and values of other types.

A frame is a tree: performatives, sections, annotations and the bodies of requests are lists, maps and described values.
`variants` replaces one node of it after the other.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from sbclient.amqp.decode import skip_value

_WIDE: Final = (b"\x00" * 8, b"\x7f" + b"\xff" * 7, b"\x80" + b"\x00" * 7, b"\xff" * 8, (2**61 - 1).to_bytes(8, "big"))
EDGES: Final[tuple[bytes, ...]] = (
    *(b"\x40", b"\x41", b"\x42", b"\x50\x00", b"\x50\xff", b"\x60\x00\x00", b"\x60\xff\xff"),
    *(b"\x70" + edge[:4] for edge in _WIDE[:4]),
    *(b"\x71" + edge[:4] for edge in _WIDE[:4]),
    *(code + edge for code in (b"\x80", b"\x81", b"\x82", b"\x83") for edge in _WIDE),
    *(b"\x72" + struct.pack(">f", value) for value in (float("nan"), float("-inf"))),
    *(b"\x82" + struct.pack(">d", value) for value in (float("nan"), float("inf"), 1e308)),
    *(b"\x73\x00\x00\xd8\x00", b"\x73\xff\xff\xff\xff", b"\x94" + b"\xff" * 16, b"\x94" + b"\x78" + b"\x00" * 15),
    *(b"\x98" + b"\xff" * 16, b"\xa0\x00", b"\xa0\x10" + b"\x00" * 16, b"\xb0\x00\x00\x10\x00" + b"x" * 4_096),
    *(
        b"\xa1\x00",
        b"\xa1\x01\x00",
        b"\xa1\x02\xff\xfe",
        b"\xb1\x00\x00\x10\x00" + b"y" * 4_096,
        b"\xa3\x00",
        b"\xa3\x01x",
    ),
    *(b"\x45", b"\xc0\x02\x01\x45", b"\xc1\x01\x00", b"\xc1\x03\x02\x40\x40", b"\xc1\x05\x02\xa1\x01a\x45"),
    *(b"\xe0\x02\x00\xa1", b"\xe0\x03\x01\xa1\x00", b"\xe0\x0a\x01\x83" + _WIDE[1], b"\xe0\x12\x01\x98" + b"\xff" * 16),
    *(
        b"\x00\xa3\x01x\x40",
        b"\x00\x80" + b"\xff" * 8 + b"\x45",
        b"\x00\x53\x24\x45",
        b"\x00\x53\x28\x45",
        b"\x00\x53\x30\x45",
    ),
)
"""Encoded values of each type."""

_LISTS: Final = (0x45, 0xC0, 0xD0)
_MAPS: Final = (0xC1, 0xD1)
_ARRAYS: Final = (0xE0, 0xF0)


class Node(NamedTuple):
    """A value: what precedes its children, and those; a leaf has none."""

    code: int
    raw: bytes
    children: tuple[Node, ...] = ()

    def encoded(self) -> bytes:
        if self.code == 0:
            return b"\x00" + b"".join(child.encoded() for child in self.children)
        if self.code in (*_LISTS, *_MAPS):
            content = b"".join(child.encoded() for child in self.children)
            code = b"\xd1" if self.code in _MAPS else b"\xd0"
            return code + struct.pack(">II", len(content) + 4, len(self.children)) + content
        return self.raw


def node_at(data: bytes, at: int) -> tuple[Node, int]:
    """The value at a position, and the end of it."""
    code, end = data[at], skip_value(data, at)
    if code == 0:
        descriptor, at = node_at(data, at + 1)
        value, _ = node_at(data, at)
        return Node(0, b"", (descriptor, value)), end
    if code in (*_LISTS, *_MAPS) and code != 0x45:
        children, position = [], at + (3 if code in (0xC0, 0xC1) else 9)
        while position < end:
            child, position = node_at(data, position)
            children.append(child)
        return Node(code, b"", tuple(children)), end
    return Node(code, data[at:end]), end


def with_edges(node: Node, path: str = "") -> Iterator[tuple[str, bytes]]:
    """The encoded value with each edge at each place below the node, with the place."""
    for index, child in enumerate(node.children):
        before, after = node.children[:index], node.children[index + 1 :]
        place = f"{path}/{index}"
        if not (node.code == 0 and index == 0):
            for edge in EDGES:
                yield place, node._replace(children=(*before, Node(-1, edge), *after)).encoded()
        for deeper, changed in with_edges(child, place):
            yield deeper, node._replace(children=(*before, Node(-1, changed), *after)).encoded()


def frames_of(data: bytes) -> Iterator[bytes]:
    """The frames and protocol headers in bytes of whole frames."""
    while data:
        size = 8 if data[:4] == b"AMQP" else int.from_bytes(data[:4], "big")
        yield data[:size]
        data = data[size:]


def variants(frame: bytes) -> Iterator[tuple[str, bytes]]:
    """The frame with another value in each of its fields, with the name of the place: code of the section, and path."""
    body, values, at = frame[8:], [], 0
    if frame[:4] == b"AMQP":
        return
    while at < len(body) and body[at] == 0:
        value, at = node_at(body, at)
        values.append(value)
    rest = body[at:]
    for index, value in enumerate(values):
        code = value.children[0].raw[-1]
        before = b"".join(each.encoded() for each in values[:index])
        after = b"".join(each.encoded() for each in values[index + 1 :]) + rest
        for place, changed in with_edges(value, f"{code:#x}"):
            content = before + changed + after
            yield place, struct.pack(">I", len(content) + 8) + frame[4:8] + content
