"""Find the sections of an encoded message without decoding them, and decode single sections on request.

The bare message (properties, application properties, body) belongs to the sender and is delivered as the received
bytes. Sections may have any order, because the SDK writes its delivery annotations last.

Source: AMQP 1.0 part 3 section 3.2.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple
from uuid import UUID

from sbclient.amqp import encode
from sbclient.amqp.decode import MALFORMED, MAX_COUNT, PLAIN, decode_at, malformed, skip_value
from sbclient.amqp.errors import DECODE_ERROR, INVALID_FIELD, WireError
from sbclient.amqp.fast_sections import read_annotations, read_properties, read_texts
from sbclient.amqp.fields import (
    ANY,
    BINARY,
    BOOLEAN,
    LAYOUTS,
    STRING,
    SYMBOL,
    TIMESTAMP,
    UBYTE,
    UINT,
    FieldKind,
    decode_composite,
    decode_fields,
    define,
    encode_composite,
    layout_at,
    list_bounds,
)

HEADER: Final = 0x70
DELIVERY_ANNOTATIONS: Final = 0x71
MESSAGE_ANNOTATIONS: Final = 0x72
PROPERTIES: Final = 0x73
APPLICATION_PROPERTIES: Final = 0x74
DATA: Final = 0x75
SEQUENCE: Final = 0x76
VALUE: Final = 0x77
FOOTER: Final = 0x78

MessageId = str | int | UUID | bytes


class Header(NamedTuple):
    """The transport header of a message. `ttl` is in milliseconds."""

    durable: bool = False
    priority: int = 4
    ttl: int | None = None
    first_acquirer: bool = False
    delivery_count: int = 0


define(Header, HEADER, "header", BOOLEAN, UBYTE, UINT, BOOLEAN, UINT)


class Properties(NamedTuple):
    """The properties of a message, set by its sender. An id is a string, ulong (int), uuid or binary."""

    message_id: MessageId | None = None
    user_id: bytes | None = None
    to: Any = None
    subject: str | None = None
    reply_to: Any = None
    correlation_id: MessageId | None = None
    content_type: str | None = None
    content_encoding: str | None = None
    absolute_expiry_time: datetime | int | None = None
    creation_time: datetime | int | None = None
    group_id: str | None = None
    group_sequence: int | None = None
    reply_to_group_id: str | None = None


def _encode_id(value: MessageId) -> bytes:
    return encode.encode_ulong(value) if type(value) is int else encode.encode_value(value)


_MESSAGE_ID: Final = FieldKind(
    "a string, ulong, uuid or binary",
    {code: ANY.decoders[code] for code in (0xA0, 0xA1, 0xB0, 0xB1, 0x44, 0x53, 0x80, 0x98)},
    _encode_id,
)
define(
    Properties,
    PROPERTIES,
    "properties",
    _MESSAGE_ID,
    BINARY,
    ANY,
    STRING,
    ANY,
    _MESSAGE_ID,
    SYMBOL,
    SYMBOL,
    TIMESTAMP,
    TIMESTAMP,
    STRING,
    UINT,
    STRING,
)

_LISTS: Final = b"\x45\xc0\xd0"
_MAPS: Final = b"\xc1\xd1"
_FORMS: Final = (_LISTS, _MAPS, _MAPS, _LISTS, _MAPS, b"\xa0\xb0", _LISTS, bytes(range(256)), _MAPS)
"""The format codes that a section may begin with, by its code less 0x70."""

_NAMES: Final = (
    "amqp:header:list",
    "amqp:delivery-annotations:map",
    "amqp:message-annotations:map",
    "amqp:properties:list",
    "amqp:application-properties:map",
    "amqp:data:binary",
    "amqp:amqp-sequence:list",
    "amqp:amqp-value:*",
    "amqp:footer:map",
)

_unpack_size: Final = struct.Struct(">I").unpack_from

_NO_BOUNDS: Final = (0,) * (3 * 9)
_BARE: Final = (0,) * (3 * 3)
"""The bounds of header and annotations, and of the sections after the data, of a message that has none of them."""
_HEADER, _, _MESSAGE_ANNOTATIONS, _PROPERTIES, _APPLICATION_PROPERTIES, _DATA = (
    slice(3 * index, 3 * index + 3) for index in range(6)
)
"""Where the bounds of a section stand among those of all: its start, the start of its value, its end."""
_Place = tuple[int, int, int]


class Sections:
    """One encoded message and where its sections stand.

    Attributes:
        payload: the encoded message; never changed.
        body_code: DATA, SEQUENCE or VALUE; DATA for a message without a body.

    Raises:
        WireError: the bytes are not a sequence of sections, a section is repeated, or bodies of two types are mixed.
    """

    __slots__ = ("_bounds", "_further", "_sizes", "body_code", "payload", "remembered")

    _bounds: tuple[int, ...]
    """Where each section begins, its value begins and it ends, in the order of their codes; 0, 0, 0 if it is missing.

    One tuple of numbers, because the garbage collector counts each object of a message.
    """
    _further: Sequence[_Place]
    """The same of each body section after the first."""
    _sizes: int
    """If the encoder knows that there are properties, perhaps application properties, and one data section: the size of
    the properties, and 2^32 times that of the application properties. Else 0.
    """
    body_code: int
    remembered: Any
    """A cache for the encoder of this message."""

    def __init__(self, payload: bytes) -> None:
        self.payload = payload
        self._sizes = 0
        self._find()

    def _find(self) -> None:
        """Find the sections."""
        payload = self.payload
        if self._sizes:
            further, properties = divmod(self._sizes, 2**32)
            start, stop = properties if further else 0, properties + further
            places = 0, 3, properties, start, start and start + 3, start and stop, stop, stop + 3, len(payload)
            self._bounds = _BARE + places + _BARE
            self._further = ()
            self.body_code = DATA
            self.remembered = None
            return
        bounds = list(_NO_BOUNDS)
        more: list[_Place] = []
        has_body = False
        position = 0
        stop = len(payload)
        try:
            while position < stop:
                if payload[position] == 0 and payload[position + 1] == 0x53:
                    index = payload[position + 2] - 0x70
                    at = position + 3
                else:
                    index, at = _foreign_descriptor(payload, position)
                code = payload[at]
                if not 0 <= index < 9 or code not in _FORMS[index]:
                    raise WireError(DECODE_ERROR, f"no section of a message begins at byte {position}")
                upper = code >> 4
                if upper == 0xC or upper == 0xA:
                    end = at + 2 + payload[at + 1]
                elif upper == 0xD or upper == 0xB:
                    end = at + 5 + _unpack_size(payload, at + 1)[0]
                else:
                    end = skip_value(payload, at)
                place = 3 * index
                is_body = 5 <= index < 8
                if bounds[place + 2] == 0 and not (is_body and has_body):
                    bounds[place] = position
                    bounds[place + 1] = at
                    bounds[place + 2] = end
                    has_body = has_body or is_body
                elif not is_body:
                    raise WireError(DECODE_ERROR, f"the section {_NAMES[index]} is repeated")
                elif bounds[place + 2] == 0 or index == 7:
                    raise WireError(DECODE_ERROR, "the message has bodies of two types, or two values")
                else:
                    more.append((position, at, end))
                position = end
        except (IndexError, struct.error) as error:
            raise malformed(error, position) from error
        if position != stop:
            raise WireError(DECODE_ERROR, f"the last section of a message needs {position - stop} bytes more")
        if len(more) >= MAX_COUNT:
            raise WireError(DECODE_ERROR, f"a message has {len(more) + 1} body sections, {MAX_COUNT} are allowed")
        self._bounds = tuple(bounds)
        self._further = tuple(more)
        self.body_code = SEQUENCE if bounds[20] else VALUE if bounds[23] else DATA
        self.remembered = None

    def raw(self, code: int) -> bytes:
        """The bytes of a single section with its descriptor; empty if there is none."""
        at = 3 * (code - HEADER)
        return self.payload[self._bounds[at] : self._bounds[at + 2]]

    def raw_value(self, code: int) -> bytes:
        """The same without the descriptor."""
        at = 3 * (code - HEADER)
        return self.payload[self._bounds[at + 1] : self._bounds[at + 2]]

    @property
    def raw_body(self) -> bytes:
        """The bytes of all body sections with their descriptors."""
        if not self._further:
            at = 3 * (self.body_code - HEADER)
            return self.payload[self._bounds[at] : self._bounds[at + 2]]
        return b"".join([self.payload[start:end] for start, _, end in self._body_places()])

    @property
    def properties_end(self) -> int:
        """Where the properties end, if the encoder knows that only one data section follows them; else 0."""
        return self._sizes if self._sizes < 2**32 else 0

    @property
    def is_bare(self) -> bool:
        """Whether it has no header and no annotations."""
        bounds = self._bounds
        return not (bounds[2] or bounds[5] or bounds[8])

    @property
    def bare(self) -> slice | None:
        """The position of properties, application properties, body and footer, if no other section is between them."""
        if self.is_bare:
            return slice(0, len(self.payload))
        codes = PROPERTIES, APPLICATION_PROPERTIES, FOOTER
        places = [place for place in (*map(self._place, codes), *self._body_places()) if place[2]]
        if not places:
            return slice(0, 0)
        start = min(place[0] for place in places)
        end = max(place[2] for place in places)
        return slice(start, end) if sum(place[2] - place[0] for place in places) == end - start else None

    def _place(self, code: int) -> _Place:
        at = 3 * (code - HEADER)
        start, value, end = self._bounds[at : at + 3]
        return start, value, end

    def _body_places(self) -> list[_Place]:
        first = self._place(self.body_code)
        return [first, *self._further] if first[2] else []

    @property
    def header(self) -> Header:
        """The header, with defaults if there is none.

        Raises:
            WireError: it is malformed; also for all accessors below.
        """
        _, at, end = self._bounds[_HEADER]
        if not end:
            return _NO_HEADER
        raw = self.payload[at:end]
        header = _headers.get(raw)
        if header is None:
            header = Header._make(self._fields(HEADER))
            if len(raw) <= _MAX_HEADER_BYTES and len(_headers) < _MAX_HEADERS:
                _headers[raw] = header
        return header

    @property
    def properties(self) -> Properties:
        """The properties, all None if there are none."""
        return Properties._make(self.property_fields())

    def property_fields(self) -> Sequence[Any]:
        """The fields of the properties, in their order."""
        _, at, end = self._bounds[_PROPERTIES]
        if not end:
            return _NO_PROPERTIES
        return read_properties(self.payload, at, end) or Properties._make(self._fields(PROPERTIES))

    @property
    def delivery_annotations(self) -> dict[Any, Any]:
        """The delivery annotations by name."""
        return self._map(DELIVERY_ANNOTATIONS)

    @property
    def message_annotations(self) -> dict[Any, Any]:
        """The message annotations by name."""
        _, at, end = self._bounds[_MESSAGE_ANNOTATIONS]
        usual = read_annotations(self.payload, at, end) if end else {}
        return self._map(MESSAGE_ANNOTATIONS) if usual is None else usual

    @property
    def application_properties(self) -> Mapping[str, Any]:
        """The application properties; values keep their AMQP types, see `amqp.types`. Of equal names the last counts.

        A message with equal names is invalid, but it has been stored, and its receiver must be able to settle it.
        """
        _, at, end = self._bounds[_APPLICATION_PROPERTIES]
        usual = read_texts(self.payload, at, end) if end else {}
        if usual is not None:
            return usual
        try:
            properties = self._map(APPLICATION_PROPERTIES, typed=True)
        except WireError:
            properties = {}
            for name, entry in map_entries(self.raw_value(APPLICATION_PROPERTIES)):
                if type(name) is not str:
                    raise WireError(INVALID_FIELD, _NOT_A_NAME) from None
                properties[name] = decode_at(entry, skip_value(entry, 0), typed=True)[0]
        for name in properties:
            if type(name) is not str:
                raise WireError(INVALID_FIELD, _NOT_A_NAME)
        return properties

    @property
    def footer(self) -> dict[Any, Any]:
        """The footer by name."""
        return self._map(FOOTER)

    def data(self) -> list[bytes]:
        """The data sections; empty if the body is of another type, or none."""
        payload = self.payload
        if self._further:
            places = self._body_places() if self.body_code == DATA else []
            return [payload[at + (2 if payload[at] == 0xA0 else 5) : end] for _, at, end in places]
        _, at, end = self._bounds[_DATA]
        return [payload[at + (2 if payload[at] == 0xA0 else 5) : end]] if end else []

    def data_sizes(self) -> list[int]:
        """The length of each data section."""
        payload = self.payload
        if self.body_code != DATA:
            return []
        return [end - at - (2 if payload[at] == 0xA0 else 5) for _, at, end in self._body_places()]

    def sequences(self) -> list[list[Any]]:
        """The sequence sections, with typed values."""
        if self.body_code != SEQUENCE:
            return []
        return [self._decoded(place, typed=True) for place in self._body_places()]

    def value(self, *, typed: bool = False) -> Any:
        """The value of a body of type VALUE, None if it is of another type.

        Args:
            typed: whether values keep their AMQP types.
        """
        return self._decoded(self._place(VALUE), typed=typed) if self.body_code == VALUE else None

    def composite(self) -> Any:
        """The value of the body as one of the composites of this package, such as `Declare`.

        Raises:
            WireError: the body is of another type.
        """
        if self.body_code != VALUE:
            raise WireError(INVALID_FIELD, "the body of the message is not a value")
        return decode_composite(self.payload, self._place(VALUE)[1])[0]

    def _fields(self, code: int) -> list[Any]:
        layout, at = layout_at(self.payload, self._place(code)[0])
        return decode_fields(layout, self.payload, at)[0]

    def _map(self, code: int, *, typed: bool = False) -> dict[Any, Any]:
        place = self._place(code)
        return self._decoded(place, typed=typed) if place[2] else {}

    def _decoded(self, place: _Place, *, typed: bool) -> Any:
        value, end = decode_at(self.payload, place[1], typed=typed)
        if end != place[2]:
            raise WireError(DECODE_ERROR, f"a section ends at byte {end}, its size says {place[2]}")
        return value


_NOT_A_NAME: Final = "the name of an application property is not a string"
_NO_HEADER: Final = Header()
_MAX_HEADERS: Final = 512
_MAX_HEADER_BYTES: Final = 24
_headers: dict[bytes, Header] = {}
"""Decoded headers by their bytes: most messages of an entity have the same one. Number and length are limited."""

_NO_PROPERTIES: Final = Properties()


def _foreign_descriptor(payload: bytes, position: int) -> tuple[int, int]:
    """Decode a descriptor in one of its longer forms: the section code less 0x70, and the position of the value."""
    if payload[position]:
        raise WireError(DECODE_ERROR, f"no section of a message begins at byte {position}")
    descriptor, at = decode_at(payload, position + 1)
    if isinstance(descriptor, str) and descriptor in _NAMES:
        return _NAMES.index(descriptor), at
    return (descriptor - 0x70 if isinstance(descriptor, int) else -1), at


def map_entries(raw: bytes) -> list[tuple[Any, bytes]]:
    """Return each key of an encoded map with the bytes of its key and value, values undecoded.

    Raises:
        WireError: the bytes are not a map.
    """
    start, count = _map_start(raw)
    entries = []
    try:
        for _ in range(count // 2):
            key, position = PLAIN[raw[start]](raw, start + 1, 0)
            position = skip_value(raw, position)
            entries.append((key, raw[start:position]))
            start = position
    except MALFORMED as error:
        raise malformed(error, start) from None
    return entries


def map_content(raw: bytes) -> tuple[bytes, int]:
    """Return the encoded keys and values of an encoded map, joined, and how many elements they are.

    Raises:
        WireError: the bytes are not a map.
    """
    start, count = _map_start(raw)
    return raw[start:], count


def _map_start(raw: bytes) -> tuple[int, int]:
    """Return where the first key of an encoded map begins, and how many elements it claims."""
    if raw[:1] == b"\xc1" and len(raw) > 2:
        start, count = 3, raw[2]
    elif raw[:1] == b"\xd1" and len(raw) > 8:
        start, count = 9, int.from_bytes(raw[5:9], "big")
    else:
        raise WireError(DECODE_ERROR, "the bytes are not a map")
    if count > MAX_COUNT or count % 2:
        raise WireError(DECODE_ERROR, f"a map claims {count} elements")
    return start, count


def list_fields(raw: bytes) -> list[bytes]:
    """The encoded elements of an encoded list.

    Raises:
        WireError: the bytes are not a list.
    """
    try:
        position, stop, count = list_bounds(raw, 0)
        elements = []
        for _ in range(count):
            start = position
            position = skip_value(raw, position)
            elements.append(raw[start:position])
    except MALFORMED as error:
        raise malformed(error, 0) from None
    if position != stop:
        raise WireError(DECODE_ERROR, f"the elements of a list end at byte {position}, its size says {stop}")
    return elements


def rewritten_map(raw: bytes, without: Callable[[Any], bool], added: bytes = b"", added_count: int = 0) -> bytes:
    """Remove entries from an encoded map and append others; empty if none remain.

    Args:
        raw: the encoded map; empty for none.
        without: whether to remove a key.
        added: the encoded keys and values to add.
        added_count: how many elements they are, two for each pair.
    """
    kept = [entry for key, entry in map_entries(raw) if not without(key)] if raw else []
    count = len(kept) * 2 + added_count
    return encode.sized_map(b"".join(kept) + added, count) if count else b""


def encode_value_message(
    value: Any, *, properties: Properties | None = None, application_properties: Mapping[str, Any] | None = None
) -> bytes:
    """Encode a message whose body is one value, which may be a composite, as requests and replies are.

    Raises:
        EncodeError: a value has no AMQP type.
    """
    parts: list[bytes] = []
    if properties is not None:
        parts.append(encode_composite(properties))
    if application_properties:
        parts.append(b"\x00\x53\x74" + encode.encode_map(application_properties, encode.encode_string))
    parts.append(b"\x00\x53\x77" + encode_any(value))
    return b"".join(parts)


def encode_any(value: Any) -> bytes:
    """A value, or a composite of this package such as `Declare`."""
    return encode_composite(value) if type(value) in LAYOUTS else encode.encode_value(value)
