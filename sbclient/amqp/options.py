"""The options of a connection: names, limits and timeouts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sbclient.amqp.frames import MIN_MAX_FRAME_SIZE
from sbclient.amqp.limits import Limits
from sbclient.errors import InvalidOperationError


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionOptions:
    """The options of one connection. The limits bound the memory that a peer can make this side use.

    Attributes:
        container_id: this side's name.
        hostname: the host that a client connects to; None for a server.
        max_frame_size: the largest frame accepted, in bytes, at least 512. Default 64 KiB, as Service Bus.
        channel_max: the highest channel number: the number of sessions less one. Default 255.
        capabilities: of the connection, offered to a peer that desires them.
        handle_max: the highest handle: the number of links of a session less one. Default 4,095.
        max_links: links of all sessions, including those that one side has detached. Default 4,096.
        max_retained_bytes: the size in memory of the peer's open and of the attaches of all links. Default 128 MiB.
        max_unsettled: unsettled deliveries of a session, each way. Default 65,536.
        incoming_window: transfer frames that the peer may send before it must wait for a flow. Default 5,000.
        max_message_size: the largest message, in bytes, that a link accepts unless its `accept` sets another size.
            Default 1 MiB, as Service Bus' Premium tier.
        max_partial_bytes: bytes of incomplete messages on all links. Default 128 MiB.
        max_held_bytes: bytes in each session that wait for the peer's window. Default 64 MiB.
        max_output_bytes: bytes of transfer frames that `bytes_to_send` returns at once; sessions take turns, so that a
            large message delays no other link. None = no limit. Default None.
        idle_timeout_s: the idle timeout announced to the peer; the connection closes after twice that. None = no
            timeout. Default 240 s, as Service Bus.
        handshake_timeout_s: the time until the peer's open, and for its answer to a close. Default 30 s.
        mechanisms: the SASL mechanisms offered, in order of preference.
        requires_sasl: whether to reject a peer that begins without SASL.
        properties: sent to the peer in the open.
    """

    container_id: str
    hostname: str | None = None
    max_frame_size: int = 65_536
    channel_max: int = 255
    handle_max: int = 4_095
    capabilities: tuple[str, ...] = ()
    max_links: int = 4_096
    max_retained_bytes: int = 134_217_728
    max_unsettled: int = 65_536
    incoming_window: int = 5_000
    max_message_size: int = 1_048_576
    max_partial_bytes: int = 134_217_728
    max_held_bytes: int = 67_108_864
    max_output_bytes: int | None = None
    idle_timeout_s: float | None = 240.0
    handshake_timeout_s: float = 30.0
    mechanisms: tuple[str, ...] = ("MSSBCBS", "PLAIN", "ANONYMOUS", "EXTERNAL")
    requires_sasl: bool = False
    properties: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        ranges = {
            "max_frame_size": range(MIN_MAX_FRAME_SIZE, 2**32),
            "channel_max": range(2**16),
            "handle_max": range(2**32),
            "max_links": range(1, 2**32),
            "max_retained_bytes": range(1, 2**63),
            "max_unsettled": range(1, 2**31),
            "incoming_window": range(1, 2**31),
            "max_message_size": range(1, 2**63),
            "max_partial_bytes": range(1, 2**63),
            "max_held_bytes": range(1, 2**63),
        }
        for name, allowed in ranges.items():
            value = getattr(self, name)
            if not allowed.start <= value < allowed.stop:
                raise InvalidOperationError(f"{name} is {value}: give {allowed.start} to {allowed.stop - 1}")
        if self.idle_timeout_s is not None and not 0.001 <= self.idle_timeout_s < 4_294_967:
            raise InvalidOperationError(
                f"idle_timeout_s is {self.idle_timeout_s}: give 0.001 to 4294966 seconds, or None for no limit"
            )
        if self.handshake_timeout_s <= 0:
            raise InvalidOperationError(f"handshake_timeout_s is {self.handshake_timeout_s}: give a positive time")

    @property
    def limits(self) -> Limits:
        """The limits of these options that a connection may change."""
        return Limits(
            self.max_frame_size,
            self.channel_max + 1,
            self.max_links,
            self.max_retained_bytes,
            self.max_partial_bytes,
        )
