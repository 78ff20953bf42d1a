"""A sender's link to its entity in the primary namespace; it checks the size of each transfer before sending it."""

from __future__ import annotations

from collections.abc import Callable

from sbclient import clock
from sbclient.amqp import EncodedBatch
from sbclient.delivery import LEAST_LIMITS, SenderLimits
from sbclient.errors import (
    InvalidOperationError,
    MessageSizeExceededError,
    OperationTimeoutError,
    ServiceBusError,
)
from sbclient.transport.base import SenderLink, TransactionLink


class PrimaryLink:
    """Sends and schedules transfers at the primary.

    Args:
        link: the link of the transport.
        path: the path of the entity, for errors.
        narrow: lowers the limits of the primary, so that a diverted message fits the backlog too.
        growth_bytes: the space to reserve in each message for a diversion to the backlog; 0 = none.

    Attributes:
        known_limits: the limits of the primary before `narrow`; `LEAST_LIMITS` until the link is first attached.
    """

    def __init__(
        self, link: SenderLink, path: str, narrow: Callable[[SenderLimits], SenderLimits], growth_bytes: int
    ) -> None:
        self._link = link
        self._path = path
        self._narrow = narrow
        self._limits: SenderLimits | None = None
        self.known_limits = LEAST_LIMITS
        self.growth_bytes = growth_bytes
        self.cancel_scheduled = link.cancel_scheduled
        self.close = link.close

    @property
    def is_open(self) -> bool:
        """Whether the link has been used and has not failed since."""
        return self._link.is_open

    @property
    def was_open(self) -> bool:
        """Whether the link has ever been attached."""
        return self.known_limits is not LEAST_LIMITS

    def narrow_again(self) -> None:
        """Apply `narrow` to the limits at the next use."""
        self._limits = None

    async def limits(self, timeout_s: float) -> SenderLimits:
        """Return the lowered limits; attach the link if it is closed, because they can change only then."""
        if self._limits is None or not self._link.is_open:
            self.known_limits = await self._link.limits(timeout_s=timeout_s)
            self._limits = self._narrow(self.known_limits)
        return self._limits

    async def send(self, batch: EncodedBatch, timeout_s: float, transaction: TransactionLink | None = None) -> None:
        """Send a transfer.

        Raises:
            MessageSizeExceededError: a message or the transfer is too large; nothing was sent.
            ServiceBusError: any other answer of the service.
        """
        left_s = await self._check_sizes(batch, timeout_s)
        await self._link.send(batch, timeout_s=left_s, transaction=transaction)

    def start(self, batch: EncodedBatch, timeout_s: float, done: Callable[[ServiceBusError | None], None]) -> bool:
        """Send a transfer if it can leave without waiting; False if it cannot. See `SenderLink.start`."""
        if self._limits is None or not self._link.is_open or timeout_s <= 0:
            return False
        try:
            self._check(batch, self._limits)
            return self._link.start(batch, timeout_s=timeout_s, done=done)
        except (InvalidOperationError, MessageSizeExceededError):
            return False  # `send` raises it

    async def schedule(
        self, batch: EncodedBatch, timeout_s: float, transaction: TransactionLink | None = None
    ) -> list[int]:
        """Schedule a transfer and return its sequence numbers; raises as `send` does."""
        left_s = await self._check_sizes(batch, timeout_s)
        return await self._link.schedule(batch, timeout_s=left_s, transaction=transaction)

    async def _check_sizes(self, batch: EncodedBatch, timeout_s: float) -> float:
        """Check a transfer against the limits, which may attach the link; return the seconds left to send it."""
        end_at = clock.monotonic() + timeout_s
        self._check(batch, await self.limits(timeout_s))
        return left_s(end_at, self._path)

    def _check(self, batch: EncodedBatch, limits: SenderLimits) -> None:
        largest = batch.largest_bytes
        if largest > limits.max_message_size_bytes:
            raise self._too_large("a message", largest, limits.max_message_size_bytes)
        if len(batch) > 1:
            size_bytes = batch.size_bytes + len(batch) * self.growth_bytes
            if size_bytes > limits.max_batch_size_bytes:
                raise self._too_large(f"{len(batch)} messages", size_bytes, limits.max_batch_size_bytes)

    def _too_large(self, what: str, size_bytes: int, limit_bytes: int) -> MessageSizeExceededError:
        reserve = " with the space reserved for a diversion to the backlog" if self.growth_bytes else ""
        return MessageSizeExceededError(
            f"{what} for {self._path!r} takes {size_bytes} bytes, {limit_bytes} are allowed{reserve}: "
            "send less at once, or store the content elsewhere and send its address"
        )


def left_s(deadline: float, path: str) -> float:
    """Return the seconds until the deadline.

    Raises:
        OperationTimeoutError: none are left; nothing was sent.
    """
    remaining_s = deadline - clock.monotonic()
    if remaining_s <= 0:
        raise not_sent(path, "the timeout passed while the link was opened")
    return remaining_s


def not_sent(path: str, reason: str) -> OperationTimeoutError:
    """Return a timeout error that is not in doubt."""
    error = OperationTimeoutError(f"{reason}, and nothing was sent to {path!r}: send it again later")
    error.is_in_doubt = False
    return error
