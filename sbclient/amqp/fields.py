"""The typed fields that performatives and other composite values are made of, and how such values are read and written.

A composite is a list after a numeric descriptor. Its class is a named tuple; its `Layout` says for each field which
format codes are allowed, how it is written, and what an absent one means. Trailing nulls are left out, except where a
layout says `keep_nulls`: the SDK reads the three fields of an error by position, and hangs where one is missing.

Source: AMQP 1.0 part 1 section 1.4.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from sbclient.amqp import encode
from sbclient.amqp.decode import MALFORMED, PLAIN, TYPED, Decoder, decode_at, malformed
from sbclient.amqp.encode import Encoder
from sbclient.amqp.errors import DECODE_ERROR, INVALID_FIELD, EncodeError, WireError
from sbclient.amqp.types import symbols


class FieldKind(NamedTuple):
    """A type that a field may have."""

    name: str
    decoders: Mapping[int, Decoder]
    encode: Encoder


class Field(NamedTuple):
    """One field of a composite.

    Attributes:
        name: as in the specification, with underscores.
        kind: its type.
        default: what null and absence mean.
        is_mandatory: whether null and absence are refused.
    """

    name: str
    kind: FieldKind
    default: Any = None
    is_mandatory: bool = False


class Layout(NamedTuple):
    """How the class of a composite is written.

    Attributes:
        code: the numeric descriptor.
        symbol: the symbolic descriptor, which peers may send instead.
        make: builds the value from its fields.
        fields: in the order of the wire.
        keep_nulls: whether trailing nulls are written.
        defaults: what each field means where it is absent.
        least: so many fields must be there, since the last of them is mandatory.
    """

    code: int
    symbol: str
    make: Callable[[Iterable[Any]], Any]
    fields: tuple[Field, ...]
    keep_nulls: bool
    defaults: tuple[Any, ...]
    least: int


LAYOUTS: Final[dict[type, Layout]] = {}
"""How each class of composite is written."""

_BY_DESCRIPTOR: Final[dict[int | str, Layout]] = {}


def define(
    composite: Any, code: int, name: str, *kinds: FieldKind, optional: Sequence[str] = (), keep_nulls: bool = False
) -> None:
    """State how a named tuple is encoded. The default of a field in the class is what null and absence mean.

    Args:
        composite: the class.
        code: the numeric descriptor.
        name: the name in the symbolic descriptor, `amqp:NAME:list`.
        kinds: the types of the fields, in the order of the class.
        optional: the fields that may be null although they have no default; the others without one are mandatory.
        keep_nulls: whether trailing nulls are written.
    """
    known = composite._field_defaults
    fields = tuple(
        Field(field, kind, known.get(field), is_mandatory=field not in known and field not in optional)
        for field, kind in zip(composite._fields, kinds, strict=True)
    )
    least = max((place for place, field in enumerate(fields, start=1) if field.is_mandatory), default=0)
    defaults = tuple(field.default for field in fields)
    symbol = f"amqp:{name}:list"
    layout = Layout(code, symbol, composite._make, fields, keep_nulls, defaults, least)
    LAYOUTS[composite] = layout
    _BY_DESCRIPTOR[code] = _BY_DESCRIPTOR[symbol] = layout


def encode_composite(value: Any) -> bytes:
    """The bytes of a composite, descriptor included.

    Raises:
        EncodeError: a field holds what its type does not allow.
    """
    layout = LAYOUTS[type(value)]
    parts = []
    written = 0
    for field, item in zip(layout.fields, value, strict=True):
        if item is None:
            parts.append(b"\x40")
            continue
        try:
            parts.append(field.kind.encode(item))
        except (TypeError, AttributeError, KeyError) as error:
            raise EncodeError(
                f"{type(value).__name__}.{field.name} must be {field.kind.name}, not {type(item).__name__}"
            ) from error
        written = len(parts)
    if not layout.keep_nulls:
        del parts[written:]
    return bytes((0x00, 0x53, layout.code)) + encode.list_of(parts)


def decode_composite(raw: bytes, position: int) -> tuple[Any, int]:
    """The composite whose descriptor begins at `position`, and the position after it.

    Raises:
        WireError: with amqp:decode-error for bytes that are no composite known here, amqp:invalid-field for one whose
            fields are wrong.
    """
    layout, position = layout_at(raw, position)
    fields, position = decode_fields(layout, raw, position)
    return layout.make(fields), position


def layout_at(raw: bytes, position: int) -> tuple[Layout, int]:
    """The layout that the descriptor at `position` names, and the position of the list after it."""
    if raw[position : position + 2] == b"\x00\x53" and len(raw) > position + 2:
        descriptor: Any = raw[position + 2]
        position += 3
    elif raw[position : position + 1] == b"\x00":
        descriptor, position = decode_at(raw, position + 1)
    else:
        raise WireError(DECODE_ERROR, f"at byte {position} a described value should begin")
    layout = _BY_DESCRIPTOR.get(descriptor) if isinstance(descriptor, int | str) else None
    if layout is None:
        raise WireError(DECODE_ERROR, f"nothing is described by {descriptor!r:.80}")
    return layout, position


def decode_fields(layout: Layout, raw: bytes, position: int, depth: int = 0) -> tuple[list[Any], int]:
    """The values of all fields of the list at `position`, absent ones by their defaults, and the position after it."""
    try:
        position, stop, count = list_bounds(raw, position)
        if count > len(layout.fields):
            raise WireError(DECODE_ERROR, f"{layout.symbol} has {len(layout.fields)} fields, {count} came")
        values: list[Any] = []
        for field in layout.fields[:count]:
            code = raw[position]
            if code == 0x40:
                position += 1
                values.append(_absent(layout, field))
                continue
            decoder = field.kind.decoders.get(code)
            if decoder is None:
                raise WireError(INVALID_FIELD, f"{field.name} of {layout.symbol} must be {field.kind.name}")
            value, position = decoder(raw, position + 1, depth + 1)
            values.append(value)
    except MALFORMED as error:
        raise malformed(error, position) from None
    if position != stop:
        raise WireError(DECODE_ERROR, f"the fields of {layout.symbol} end at byte {position}, its size says {stop}")
    if count < layout.least:
        values.extend([_absent(layout, field) for field in layout.fields[count:]])
    else:
        values.extend(layout.defaults[count:])
    return values, stop


def _absent(layout: Layout, field: Field) -> Any:
    if field.is_mandatory:
        raise WireError(INVALID_FIELD, f"{field.name} of {layout.symbol} is mandatory, and absent")
    return field.default


def list_bounds(raw: bytes, position: int) -> tuple[int, int, int]:
    """For the list whose constructor is at `position`: where its elements begin, where it ends, how many it claims."""
    code = raw[position]
    if code == 0xC0:
        return position + 3, position + 2 + raw[position + 1], raw[position + 2]
    if code == 0xD0:
        size = int.from_bytes(raw[position + 1 : position + 5], "big")
        return position + 9, position + 5 + size, int.from_bytes(raw[position + 5 : position + 9], "big")
    if code == 0x45:
        return position + 1, position + 1, 0
    raise WireError(DECODE_ERROR, f"at byte {position} a list should begin, not 0x{code:02x}")


def _kind(name: str, codes: Iterable[int], encode_it: Encoder) -> FieldKind:
    return FieldKind(name, {code: PLAIN[code] for code in codes}, encode_it)


_TEXT_CODES: Final = (0xA1, 0xA3, 0xB1, 0xB3)  # the SDK mixes strings and symbols, so both are read as either

BOOLEAN: Final = _kind("boolean", (0x41, 0x42, 0x56), encode.encode_boolean)
UBYTE: Final = _kind("ubyte", (0x50,), encode.encode_ubyte)
USHORT: Final = _kind("ushort", (0x60,), encode.encode_ushort)
UINT: Final = _kind("uint", (0x43, 0x52, 0x70), encode.encode_uint)
ULONG: Final = _kind("ulong", (0x44, 0x53, 0x80), encode.encode_ulong)
TIMESTAMP: Final = _kind("timestamp", (0x83,), encode.encode_timestamp)
STRING: Final = _kind("string", _TEXT_CODES, encode.encode_string)
SYMBOL: Final = _kind("symbol", _TEXT_CODES, encode.encode_symbol)
BINARY: Final = _kind("binary", (0xA0, 0xB0), encode.encode_binary)
MAP: Final = _kind("map", (0xC1, 0xD1), encode.encode_value)
ANY: Final = _kind("any value", range(256), encode.encode_value)


def _named_values(decode_map: Decoder) -> Decoder:

    def decode_named(buffer: bytes, position: int, depth: int) -> tuple[Any, int]:
        values, stop = decode_map(buffer, position, depth)
        for name in values:
            if not isinstance(name, str):
                raise WireError(INVALID_FIELD, f"the keys of a field map must be symbols, not {type(name).__name__}")
        return values, stop

    return decode_named


def _fields_kind(table: Sequence[Decoder]) -> FieldKind:
    return FieldKind("a map by symbol", {code: _named_values(table[code]) for code in (0xC1, 0xD1)}, encode.encode_map)


FIELDS: Final = _fields_kind(PLAIN)
TYPED_FIELDS: Final = _fields_kind(TYPED)
"""Fields whose values keep their AMQP types, because they become properties of a message."""


def _one_symbol(code: int) -> Decoder:
    def decode_one(buffer: bytes, position: int, depth: int) -> tuple[Any, int]:
        text, stop = PLAIN[code](buffer, position, depth)
        return (text,), stop

    return decode_one


def _many_symbols(code: int) -> Decoder:
    def decode_many(buffer: bytes, position: int, depth: int) -> tuple[Any, int]:
        names, stop = PLAIN[code](buffer, position, depth)
        if not all(isinstance(name, str) for name in names):
            raise WireError(INVALID_FIELD, "a field of symbols holds something else")
        return tuple(names), stop

    return decode_many


def _encode_symbols(names: Iterable[str]) -> bytes:
    held = tuple(names)
    return encode.encode_array(symbols(held)) if held else b"\x40"


SYMBOLS: Final = FieldKind(
    "one symbol or an array of them",
    {code: _one_symbol(code) for code in _TEXT_CODES} | {code: _many_symbols(code) for code in (0xE0, 0xF0)},
    _encode_symbols,
)
"""A field that the specification marks `multiple`: always a tuple of str here, always an array on the wire."""


def composite_kind(name: str, *allowed: type) -> FieldKind:
    """A field that holds one of some composites, which must be defined before."""
    makers = frozenset(LAYOUTS[kind].code for kind in allowed)

    def decode_nested(buffer: bytes, position: int, depth: int) -> tuple[Any, int]:
        layout, position = layout_at(buffer, position - 1)
        if layout.code not in makers:
            raise WireError(INVALID_FIELD, f"{layout.symbol} stands where {name} should")
        fields, position = decode_fields(layout, buffer, position, depth)
        return layout.make(fields), position

    def encode_nested(value: Any) -> bytes:
        if not isinstance(value, allowed):
            raise TypeError
        return encode_composite(value)

    return FieldKind(name, {0x00: decode_nested}, encode_nested)
