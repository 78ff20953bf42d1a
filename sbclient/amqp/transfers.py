"""Fast readers and writers of the performatives of each message: transfer, disposition, and the flow of a link.

They read the encodings that peers really use and leave everything else to the general reader of `amqp.fields`, so that
both always agree; a test holds them against each other. What follows the tag of a transfer is nearly always the same
few bytes, so their meaning is remembered.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import Any, Final

from sbclient.amqp.encode import encode_binary, encode_uint, sized_list
from sbclient.amqp.errors import EncodeError
from sbclient.amqp.fields import LAYOUTS, decode_fields, encode_composite
from sbclient.amqp.performatives import Disposition, Flow, Transfer
from sbclient.amqp.states import ACCEPTED, RELEASED, DeliveryState, Modified

_TRANSFER: Final = LAYOUTS[Transfer]
_DISPOSITION: Final = LAYOUTS[Disposition]

_MAX_TAILS: Final = 512
_MAX_TAIL_BYTES: Final = 24
_tails: dict[tuple[int, bytes], tuple[Any, ...]] = {}
"""The fields after the tag by (number of fields, bytes): only what holds no state, and never more than a few."""

_ends: dict[tuple[int, int, bytes], tuple[bool, tuple[Any, ...]]] = {}
"""The same for what follows `last` in a disposition, by (number of fields, role, bytes), with the role."""

_unpack_word: Final = struct.Struct(">I").unpack_from
_pack_header: Final = struct.Struct(">IBBH").pack

_pack_link_flow: Final = struct.Struct(">IBBH3s3B" + "BI" * 7 + "3B").pack

_ACCEPTED_BYTES: Final = encode_composite(ACCEPTED)
FRAME_HEADER_BYTES: Final = 8


def read_transfer(raw: bytes, position: int) -> tuple[Transfer, int]:
    """The transfer whose list begins at `position`, and where its payload begins.

    Raises:
        WireError: as `fields.decode_fields`.
    """
    try:
        if raw[position] == 0xC0 and (count := raw[position + 2]) > 2:
            stop = position + 2 + raw[position + 1]
            at = position + 3
            code = raw[at]
            if code == 0x52:
                handle = raw[at + 1]
                at += 2
            elif code == 0x43:
                handle = 0
                at += 1
            else:
                return _slow_transfer(raw, position)
            code = raw[at]
            delivery_id: int | None
            if code == 0x70:
                delivery_id = _unpack_word(raw, at + 1)[0]
                at += 5
            elif code == 0x52:
                delivery_id = raw[at + 1]
                at += 2
            elif code == 0x43:
                delivery_id = 0
                at += 1
            else:
                return _slow_transfer(raw, position)
            if raw[at] == 0xA0:
                tag_at = at + 2
                at = tag_at + raw[at + 1]
                fields = _tails.get((count, raw[at:stop]))
                if fields is not None:
                    return tuple.__new__(Transfer, (handle, delivery_id, raw[tag_at:at], *fields)), stop
    except (IndexError, struct.error):
        pass  # the general reader says what is wrong
    return _slow_transfer(raw, position)


def _slow_transfer(raw: bytes, position: int) -> tuple[Transfer, int]:
    fields, stop = decode_fields(_TRANSFER, raw, position)
    transfer = Transfer._make(fields)
    if raw[position] == 0xC0 and transfer.state is None and transfer.delivery_tag is not None:
        head = (
            encode_uint(transfer.handle) + encode_uint(transfer.delivery_id or 0) + encode_binary(transfer.delivery_tag)
        )
        start = position + 3 + len(head)
        if raw[position + 3 : start] == head and stop - start <= _MAX_TAIL_BYTES and len(_tails) < _MAX_TAILS:
            _tails[raw[position + 2], raw[start:stop]] = tuple(fields[3:])
    return transfer, stop


def read_disposition(raw: bytes, position: int) -> tuple[Disposition, int]:
    """The disposition whose list begins at `position`, and the position after it.

    Raises:
        WireError: as `fields.decode_fields`.
    """
    try:
        if raw[position] == 0xC0:
            stop = position + 2 + raw[position + 1]
            at, first = _read_uint(raw, position + 4)
            at, last = _read_uint(raw, at)
            known = _ends.get((raw[position + 2], raw[position + 3], raw[at:stop]))
            if known is not None and first is not None:
                role, fields = known
                return tuple.__new__(Disposition, (role, first, last, *fields)), stop
    except (IndexError, struct.error):
        pass  # the general reader says what is wrong
    return _slow_disposition(raw, position)


def _read_uint(raw: bytes, at: int) -> tuple[int, int | None]:
    """Where the next field begins, and the uint or null at `at`; IndexError where something else stands."""
    code = raw[at]
    if code == 0x70:
        return at + 5, _unpack_word(raw, at + 1)[0]
    if code == 0x52:
        return at + 2, raw[at + 1]
    if code == 0x43:
        return at + 1, 0
    if code == 0x40:
        return at + 1, None
    raise IndexError


def _slow_disposition(raw: bytes, position: int) -> tuple[Disposition, int]:
    fields, stop = decode_fields(_DISPOSITION, raw, position)
    disposition = Disposition._make(fields)
    if raw[position] == 0xC0 and raw[position + 3] in (0x41, 0x42) and raw[position + 2] > 2:
        at, _ = _read_uint(raw, position + 4)
        at, _ = _read_uint(raw, at)
        if stop - at <= _MAX_TAIL_BYTES and len(_ends) < _MAX_TAILS and _is_constant(disposition.state):
            _ends[raw[position + 2], raw[position + 3], raw[at:stop]] = disposition.role, tuple(fields[3:])
    return disposition, stop


def _is_constant(state: DeliveryState | None) -> bool:
    """Whether a state holds nothing that its reader could change."""
    return state in (None, ACCEPTED, RELEASED) or (isinstance(state, Modified) and state.message_annotations is None)


def write_transfers(
    channel: int,
    handle: int,
    delivery_id: int,
    delivery_tag: bytes,
    message_format: int,
    payload: bytes,
    *,
    settled: bool,
    state: DeliveryState | None,
    max_frame_size: int,
) -> Iterable[bytes]:
    """The frames of one delivery, as many as the peer's frame size makes necessary.

    Raises:
        EncodeError: the frame size leaves no room for payload.
    """
    identity = (
        encode_uint(handle) + encode_uint(delivery_id) + encode_binary(delivery_tag) + encode_uint(message_format)
    )
    identity += b"\x41" if settled else b"\x42"
    if state is None:
        last = b"\x00\x53\x14" + sized_list(identity, 5)
    else:
        last = b"\x00\x53\x14" + sized_list(identity + b"\x42\x40" + encode_composite(state), 8)
    size = FRAME_HEADER_BYTES + len(last) + len(payload)
    if size <= max_frame_size:
        return (_pack_header(size, 2, 0, channel) + last + payload,)
    return _split(channel, identity, last, payload, max_frame_size)


def _split(channel: int, identity: bytes, last: bytes, payload: bytes, max_frame_size: int) -> Iterator[bytes]:
    more = b"\x00\x53\x14" + sized_list(identity + b"\x41", 6)
    room = max_frame_size - FRAME_HEADER_BYTES - len(more)
    if room < 1 or max_frame_size - FRAME_HEADER_BYTES - len(last) < 1:
        raise EncodeError(f"a transfer does not fit into frames of {max_frame_size} bytes: use a shorter delivery tag")
    start = 0
    while FRAME_HEADER_BYTES + len(last) + len(payload) - start > max_frame_size:
        piece = payload[start : start + room]
        yield _pack_header(FRAME_HEADER_BYTES + len(more) + len(piece), 2, 0, channel) + more + piece
        start += len(piece)
    rest = payload[start:]
    yield _pack_header(FRAME_HEADER_BYTES + len(last) + len(rest), 2, 0, channel) + last + rest


class AcceptedRun:
    """Accepted deliveries with consecutive ids, which one disposition settles.

    Attributes:
        last: the id of the last delivery.
    """

    __slots__ = ("_channel", "_first", "_role", "last")

    def __init__(self, channel: int, role: bool, delivery_id: int) -> None:
        self._channel = channel
        self._role = role
        self._first = self.last = delivery_id

    def is_extended_by(self, channel: int, role: bool, delivery_id: int) -> bool:
        """Whether a delivery can join."""
        return channel == self._channel and role is self._role and delivery_id == self.last + 1

    def frame(self) -> bytes:
        """The disposition."""
        last = None if self.last == self._first else self.last
        return write_disposition(self._channel, self._role, self._first, last, settled=True, state=ACCEPTED)


def write_disposition(
    channel: int, role: bool, first: int, last: int | None, *, settled: bool, state: DeliveryState | None
) -> bytes:
    """One disposition frame."""
    fields = (b"\x41" if role else b"\x42") + encode_uint(first)
    fields += b"\x40" if last is None else encode_uint(last)
    fields += b"\x41" if settled else b"\x42"
    if state is not None:
        fields += _ACCEPTED_BYTES if state is ACCEPTED else encode_composite(state)
    body = b"\x00\x53\x15" + sized_list(fields, 4 if state is None else 5)
    return _pack_header(FRAME_HEADER_BYTES + len(body), 2, 0, channel) + body


def write_link_flow(channel: int, flow: Flow) -> bytes:
    """The flow frame of a link whose session both sides have begun; `available` and the properties are left out."""
    incoming_id, incoming_window, outgoing_id, outgoing_window, handle, count, credit, _, drain, echo, _ = flow
    return _pack_link_flow(
        *(52, 2, 0, channel, b"\x00\x53\x13", 0xC0, 39, 10),
        *(0x70, incoming_id, 0x70, incoming_window, 0x70, outgoing_id, 0x70, outgoing_window),
        *(0x70, handle, 0x70, count, 0x70, credit),
        *(0x40, 0x41 if drain else 0x42, 0x41 if echo else 0x42),
    )
