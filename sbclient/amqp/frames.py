"""Frames: the pieces in which two peers talk, cut out of any chunks of bytes.

A frame has eight bytes of header (size, where the body begins in words of four bytes, type, channel), a performative,
and after a transfer some payload. Before the first frame of a layer stand the eight bytes of a protocol header.

Source: AMQP 1.0 part 2 sections 2.2 and 2.3.
"""

from __future__ import annotations

import struct
from typing import Any, Final, NamedTuple

from sbclient.amqp.errors import DECODE_ERROR, FRAMING_ERROR, FrameTooLargeError, WireError
from sbclient.amqp.fields import decode_fields, encode_composite, layout_at
from sbclient.amqp.performatives import Performative, SaslFrame
from sbclient.amqp.transfers import read_disposition, read_transfer

AMQP_HEADER: Final = b"AMQP\x00\x01\x00\x00"
SASL_HEADER: Final = b"AMQP\x03\x01\x00\x00"
HEADER_BYTES: Final = 8
MIN_MAX_FRAME_SIZE: Final = 512
TYPE_AMQP: Final = 0
TYPE_SASL: Final = 1

_unpack_header: Final = struct.Struct(">IBBH").unpack_from
_pack_header: Final = struct.Struct(">IBBH").pack

_PERFORMATIVES: Final = {TYPE_AMQP: range(0x10, 0x19), TYPE_SASL: range(0x40, 0x45)}


class Frame(NamedTuple):
    """What one frame said.

    Attributes:
        channel: the sender's channel; without meaning in SASL.
        performative: None in an empty frame.
        payload: what followed a transfer, else empty.
    """

    channel: int
    performative: Any
    payload: bytes

    def __repr__(self) -> str:
        """Without the payload: a message."""
        return f"Frame({self.channel}, {self.performative!r}, {len(self.payload)} bytes)"


class FrameReader:
    """Collects bytes and gives out protocol headers and frames; holds one incomplete frame beside the last chunk.

    Args:
        max_frame_size: the largest frame that is accepted, in bytes; may be changed between frames.
    """

    def __init__(self, max_frame_size: int) -> None:
        self.max_frame_size = max_frame_size
        self._chunk = b""
        self._position = 0
        self._partial = bytearray()  # while there is any, the chunk is used up

    @property
    def buffered_bytes(self) -> int:
        """What was fed and not yet given out."""
        return len(self._partial) or len(self._chunk) - self._position

    @property
    def missing_bytes(self) -> int:
        """How many bytes of a frame that has begun have not come; 0 if its size is unknown."""
        available = self.buffered_bytes
        if available < HEADER_BYTES:
            return 0
        return max(0, int(_unpack_header(self._partial or self._chunk, self._position)[0]) - available)

    def feed(self, chunk: bytes) -> None:
        """Take the next bytes from the peer, in pieces of any size."""
        if not self._partial:
            if self._position == len(self._chunk):
                self._chunk = chunk
                self._position = 0
                return
            self._partial += memoryview(self._chunk)[self._position :]
            self._chunk = b""
            self._position = 0
        self._partial += chunk

    def next_header(self) -> bytes | None:
        """The eight bytes of a protocol header, None if they have not all come."""
        if self.buffered_bytes < HEADER_BYTES:
            return None
        self._gather()
        start = self._position
        self._position = start + HEADER_BYTES
        return self._chunk[start : self._position]

    def next_frame(self, frame_type: int) -> Frame | None:
        """The next frame, None if it has not come completely.

        Args:
            frame_type: the only type that is in order now.

        Raises:
            WireError: the bytes are no frame, or a frame too large, or of the other type.
        """
        partial = self._partial
        available = len(partial) or len(self._chunk) - self._position
        if available < HEADER_BYTES:
            return None
        size, offset, kind, channel = _unpack_header(partial or self._chunk, self._position)
        if size > self.max_frame_size or size < HEADER_BYTES or not 2 <= offset <= size >> 2 or kind != frame_type:
            raise self._misshapen(size, offset, kind, frame_type)
        if available < size:
            return None
        if partial:
            self._gather()
        chunk, start = self._chunk, self._position
        stop = self._position = start + size
        start += offset * 4
        if start == stop:
            return Frame(channel, None, b"")
        if chunk[start : start + 3] == b"\x00\x53\x14" and kind == TYPE_AMQP:
            performative, end = read_transfer(chunk, start + 3)
            if end <= stop:
                return tuple.__new__(Frame, (channel, performative, chunk[end:stop]))
        elif chunk[start : start + 3] == b"\x00\x53\x15" and kind == TYPE_AMQP:
            disposition, end = read_disposition(chunk, start + 3)
            if end == stop:
                return Frame(channel, disposition, b"")
        elif (frame := self._general(chunk, start, stop, kind, channel)) is not None:
            return frame
        raise WireError(DECODE_ERROR, f"a performative does not fill the {stop - start} bytes of its frame")

    def _general(self, chunk: bytes, start: int, stop: int, kind: int, channel: int) -> Frame | None:
        layout, position = layout_at(chunk, start)
        if layout.code not in _PERFORMATIVES[kind]:
            raise WireError(DECODE_ERROR, f"{layout.symbol} stands where a performative should")
        fields, position = decode_fields(layout, chunk, position)
        if position > stop:
            return None
        if position < stop and layout.code != 0x14:
            raise WireError(DECODE_ERROR, f"{stop - position} bytes follow {layout.symbol} in its frame")
        return Frame(channel, layout.make(fields), chunk[position:stop])

    def _misshapen(self, size: int, offset: int, kind: int, frame_type: int) -> WireError:
        if kind != frame_type:
            return WireError(FRAMING_ERROR, f"a frame of type {kind} came, {frame_type} was expected")
        if size > self.max_frame_size:
            return WireError(FRAMING_ERROR, f"a frame of {size} bytes came, {self.max_frame_size} are allowed")
        return WireError(FRAMING_ERROR, f"a frame of {size} bytes says that its body begins at byte {offset * 4}")

    def _gather(self) -> None:
        """Bring what was collected into one piece, once something in it is complete."""
        if self._partial:
            self._chunk = bytes(self._partial)
            self._position = 0
            self._partial = bytearray()


def encode_frame(
    channel: int, performative: Performative | SaslFrame, max_frame_size: int, kind: int = TYPE_AMQP
) -> bytes:
    """A frame without payload.

    Raises:
        FrameTooLargeError: it is larger than the peer accepts.
    """
    body = encode_composite(performative)
    size = HEADER_BYTES + len(body)
    if size > max_frame_size:
        raise FrameTooLargeError(f"{type(performative).__name__} takes {size} bytes, the peer accepts {max_frame_size}")
    return _pack_header(size, 2, kind, channel) + body


EMPTY_FRAME: Final = _pack_header(HEADER_BYTES, 2, TYPE_AMQP, 0)
"""Says only that the sender is alive."""
