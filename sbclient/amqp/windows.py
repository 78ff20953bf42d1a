"""The flow control of a session: how many transfer frames each side may send before the next flow of the other.

Frames beyond the peer's incoming window are held until it opens. Tolerated, because the SDK does it: a next-outgoing-id
that counts deliveries instead of frames, and a meaningless outgoing-window; both are ignored.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from sbclient.amqp import serial
from sbclient.amqp.performatives import Begin, Flow

OUTGOING_WINDOW: Final = 2**31 - 1
"""The outgoing window that the peer is sent: only its own incoming window limits us."""


class Windows:
    """Both windows of a session.

    Args:
        incoming_window: frames that the peer may send before it must wait for a flow.
        write_bytes: sends an encoded frame.
        may_write: whether the connection takes a transfer frame now.

    Attributes:
        held_bytes: bytes of frames that wait for the peer's window, or for the connection.
    """

    def __init__(
        self, incoming_window: int, write_bytes: Callable[[bytes], None], may_write: Callable[[], bool]
    ) -> None:
        self.held_bytes = 0
        self._may_write = may_write
        self._write_bytes = write_bytes
        self._incoming_window = incoming_window
        self._incoming_left = incoming_window
        self._next_incoming_id = 0
        self._next_outgoing_id = 0
        self._remote_window = 0
        self._held: deque[tuple[int, bytes]] = deque()

    def begin(self, remote_channel: int | None, handle_max: int) -> Begin:
        """Create this side's begin."""
        return Begin(remote_channel, self._next_outgoing_id, self._incoming_window, OUTGOING_WINDOW, handle_max)

    def on_begin(self, begin: Begin) -> None:
        """Process the peer's begin."""
        self._remote_window = begin.incoming_window
        self._next_incoming_id = begin.next_outgoing_id

    def flow(
        self,
        handle: int | None,
        delivery_count: int | None,
        link_credit: int | None,
        *,
        drain: bool,
    ) -> Flow:
        """Create a flow, which reopens our window."""
        self._incoming_left = self._incoming_window
        return Flow(
            self._next_incoming_id,
            self._incoming_window,
            self._next_outgoing_id,
            OUTGOING_WINDOW,
            handle,
            delivery_count,
            link_credit,
            drain=drain,
        )

    def on_flow(self, flow: Flow) -> None:
        """Process the peer's window, and send held frames as far as it and the connection permit."""
        seen = 0 if flow.next_incoming_id is None else flow.next_incoming_id
        in_flight = max(0, serial.distance(seen, self._next_outgoing_id))
        self._remote_window = max(0, flow.incoming_window - in_flight)
        while self._may_write() and self.release_frame():
            pass

    @property
    def is_ready(self) -> bool:
        """Whether frames are held that the peer's window permits."""
        return bool(self._held) and self._remote_window > 0

    def release_frame(self) -> bool:
        """Send a held frame if the peer's window permits; False if none was sent."""
        if not self.is_ready:
            return False
        _, frame = self._held.popleft()
        self.held_bytes -= len(frame)
        self._write(frame)
        return True

    def count_incoming(self) -> bool:
        """Count a transfer frame; True if it is time to send a flow."""
        self._next_incoming_id = (self._next_incoming_id + 1) & serial.MASK
        self._incoming_left -= 1
        return self._incoming_left <= self._incoming_window // 2

    def send(self, handle: int, frames: Iterable[bytes]) -> None:
        """Send transfer frames of a link, or hold them in order."""
        for frame in frames:
            if self._remote_window > 0 and not self._held and self._may_write():
                self._write(frame)
            else:
                self._held.append((handle, frame))
                self.held_bytes += len(frame)

    def drop(self, handle: int) -> bool:
        """Drop the held frames of a link, because it is over; False if there are none."""
        kept = [each for each in self._held if each[0] != handle]
        if len(kept) == len(self._held):
            return False
        self._held = deque(kept)
        self.held_bytes = sum(len(frame) for _, frame in kept)
        return True

    def clear(self) -> None:
        """Drop the held frames, because the session is over."""
        self._held.clear()
        self.held_bytes = 0

    def _write(self, frame: bytes) -> None:
        self._remote_window -= 1
        self._next_outgoing_id = (self._next_outgoing_id + 1) & serial.MASK
        self._write_bytes(frame)
