"""Sends through the public API of azure-servicebus: several SDK senders for one entity, and transactions of one batch.

1. While messages with a key are being sent, further messages with that key use the same SDK sender, in call order.
   Other keys use another one, so that a fragment that does not answer delays only its own keys.
2. SDK senders have no heartbeat. They are closed when idle, before the service closes their connections; all but the
   first are closed sooner.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final, TypeVar

from sbclient import clock
from sbclient.amqp import EncodedBatch, EncodedMessage
from sbclient.delivery import SenderLimits
from sbclient.entities import EntityAddress, RuleProperties
from sbclient.errors import (
    InvalidOperationError,
    MessageSizeExceededError,
    ServiceBusError,
    keep_doubt,
)
from sbclient.errors import TransactionNotSupportedError as NotSupported
from sbclient.rules.entity_path import canonical
from sbclient.tasks import Move
from sbclient.transport.base import Check, SenderLink, TransactionLink, link_closed
from sbclient.transport.sdk.link import SdkLink, call_any, waited_too_long
from sbclient.transport.sdk.message import to_sdk

if TYPE_CHECKING:
    from sbclient.transport.sdk.transport import SdkTransport

R = TypeVar("R")

MAX_SENDERS: Final = 8
"""Limit of SDK senders, each with its own connection, for one sender."""

FIRST_IDLE_S: Final = 100.0
"""A peer may close a connection without frames for 120 s, and the SDK notices that only with the next message."""

FURTHER_IDLE_S: Final = 30.0

STANDARD_LIMIT: Final = 256 * 1024
"""The largest message and batch of every tier but Premium. Source: quotas of Service Bus."""

PREMIUM_LIMIT: Final = 100 * 2**20
"""The largest message of the Premium tier, whose batches are smaller. The SDK does not report the entity's limit."""


@dataclass(slots=True)
class _Lane:
    """The SDK sender of a key while messages with that key are being sent, and the turn of a call to use it.

    Calls wait for their turn here, not at the SDK sender: if that is discarded, a new call must not overtake them.
    """

    link: SdkLink[Any] | None = None
    calls: int = 0
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)


def _no_rules(address: EntityAddress) -> NotSupported:
    return NotSupported(f"{address} cannot be part of a transaction, azure-servicebus has none: use transport='amqp'")


class SdkTransaction(TransactionLink):
    """The messages of one transaction, which are sent as one batch on commit: all of them are stored, or none."""

    def __init__(self) -> None:
        self._sender: SdkSender | None = None
        self._messages: list[EncodedMessage] = []
        self._is_over = False

    def via_to(self, path: str) -> None:
        """Messages pass through no other entity."""

    async def create_rule(self, address: EntityAddress, rule: RuleProperties, *, timeout_s: float) -> None:
        raise _no_rules(address)

    async def delete_rule(self, address: EntityAddress, *, timeout_s: float) -> None:
        raise _no_rules(address)

    async def add(self, sender: SdkSender, messages: Sequence[EncodedMessage], *, timeout_s: float) -> None:
        """Keep messages for the commit.

        Raises:
            TransactionNotSupportedError: earlier messages are for another entity.
            MessageSizeExceededError: all messages of the transaction do not fit into one batch.
        """
        self._check()
        if self._sender is not None and canonical(self._sender.path) != canonical(sender.path):
            raise NotSupported(
                f"a transaction that began with {self._sender.path!r} cannot send to {sender.path!r}: over "
                "azure-servicebus it is one batch to one entity: use one transaction for each, or transport='amqp'"
            )
        limit = (await sender.limits(timeout_s=timeout_s)).max_batch_size_bytes
        size = EncodedBatch([*self._messages, *messages]).size_bytes
        if size > limit:
            raise MessageSizeExceededError(
                f"the transaction's messages for {sender.path!r} take {size} bytes, {limit} are allowed in one batch: "
                "use smaller transactions"
            )
        self._check()
        self._sender = sender
        self._messages += messages

    async def commit(self, *, timeout_s: float) -> None:
        self._check()
        self._is_over = True
        if self._sender is not None and self._messages:
            await self._sender.send(EncodedBatch(self._messages), timeout_s=timeout_s)

    async def rollback(self, *, timeout_s: float) -> None:
        self._is_over = True
        self._messages = []

    def _check(self) -> None:
        if self._is_over:
            raise InvalidOperationError("the transaction was committed or rolled back: begin a new one")


class SdkSender(SenderLink):
    """A sender for one entity.

    Attributes:
        path: of the entity.
    """

    def __init__(self, owner: SdkTransport, path: str, check: Check | None = None) -> None:
        self._owner = owner
        self._check = check
        self._links: list[SdkLink[Any]] = []
        self._lanes: dict[str | None, _Lane] = {}
        self._limits: SenderLimits | None = None
        self._is_closed = False
        self.path = path

    def leave_loop(self, move: Move) -> None:
        """Use new senders of the SDK, because the event loop of these has ended."""
        for link in self._links:
            link.abandon(move)
        self._links.clear()
        self._lanes.clear()

    @property
    def is_open(self) -> bool:
        return any(link.is_open for link in self._links)

    async def open(self, *, timeout_s: float) -> None:
        if not self.is_open:
            await self._call(None, _nothing, doing="open", timeout_s=timeout_s)

    async def limits(self, *, timeout_s: float) -> SenderLimits:
        if self._limits is None:
            await self.open(timeout_s=timeout_s)
        return self._limits or SenderLimits(STANDARD_LIMIT, STANDARD_LIMIT)

    @property
    def known_limits(self) -> SenderLimits | None:
        return self._limits

    def send(
        self,
        batch: EncodedBatch,
        *,
        timeout_s: float,
        transaction: TransactionLink | None = None,
    ) -> asyncio.Future[None]:
        self._raise_if_closed()
        return self._owner.tasks.start(self._send(batch, timeout_s, transaction), name=f"send to {self.path!r}")

    async def _send(self, batch: EncodedBatch, timeout_s: float, transaction: TransactionLink | None) -> None:
        deadline = clock.monotonic() + timeout_s
        await self._checked(batch, timeout_s)
        if transaction is not None:
            await _ours(transaction).add(self, batch.messages, timeout_s=deadline - clock.monotonic())
            return
        outgoing = [to_sdk(message) for message in batch]

        async def transfer(sdk: Any) -> None:
            left_s = max(deadline - clock.monotonic(), 0.001)
            await sdk.send_messages(outgoing if len(outgoing) > 1 else outgoing[0], timeout=left_s)

        await self._call(batch.first.key, transfer, doing="send to", timeout_s=deadline - clock.monotonic())

    async def _checked(self, batch: EncodedBatch, timeout_s: float) -> None:
        """Check a transfer against the limits, which may open the link."""
        if self._check is not None:
            self._check(batch, await self.limits(timeout_s=timeout_s))

    async def schedule(
        self,
        batch: EncodedBatch,
        *,
        timeout_s: float,
        transaction: TransactionLink | None = None,
    ) -> list[int]:
        if transaction is not None:
            raise NotSupported(
                f"scheduling for {self.path!r} cannot be part of a transaction over azure-servicebus, only sending "
                "can: send with scheduled_enqueue_time_utc instead, or schedule without a transaction"
            )
        deadline = clock.monotonic() + timeout_s
        await self._checked(batch, timeout_s)
        numbers: list[int] = []

        async def schedule(sdk: Any) -> None:
            """Send one request for each enqueue time, because the SDK's method accepts only one."""
            for enqueue_at, group in groupby(batch, key=lambda message: message.scheduled_enqueue_time_utc):
                left_s = max(deadline - clock.monotonic(), 0.001)
                outgoing = [to_sdk(message) for message in group]
                numbers.extend(await sdk.schedule_messages(outgoing, enqueue_at, timeout=left_s))

        left_s = deadline - clock.monotonic()
        try:
            await self._call(batch.first.key, schedule, doing="schedule for", timeout_s=left_s)
        except ServiceBusError as error:
            keep_doubt(error, bool(numbers))  # an earlier request has scheduled its messages
            raise
        return numbers

    async def cancel_scheduled(self, sequence_numbers: Sequence[int], *, timeout_s: float) -> None:
        deadline = clock.monotonic() + timeout_s

        async def cancel(sdk: Any) -> None:
            await sdk.cancel_scheduled_messages(
                list(sequence_numbers), timeout=max(deadline - clock.monotonic(), 0.001)
            )

        await self._call(None, cancel, doing="cancel scheduled messages of", timeout_s=timeout_s)

    async def close(self) -> None:
        self._is_closed = True
        await asyncio.gather(*(link.close() for link in self._links))
        self._links.clear()  # a second call may come in another event loop
        self._owner.forget(self)  # last: after a cancellation the transport, or a second call, closes the rest

    # -- which SDK sender ----------------------------------------------------------------------------------------

    async def _call(self, key: str | None, work: Callable[[Any], Awaitable[R]], *, doing: str, timeout_s: float) -> R:
        """Run `work` with the SDK sender of a key, when the earlier calls of the key have ended."""
        deadline = clock.monotonic() + timeout_s
        lane = self._lanes.setdefault(key, _Lane())
        lane.calls += 1
        try:
            try:
                async with clock.timeout(timeout_s):
                    await lane.turn.acquire()
            except TimeoutError:
                raise waited_too_long(doing, repr(self.path), timeout_s) from None
            try:
                left_s = deadline - clock.monotonic()
                return await call_any(
                    lambda: nullcontext(self._link_of(lane)),
                    work,
                    doing=doing,
                    subject=repr(self.path),
                    timeout_s=left_s,
                )
            finally:
                lane.turn.release()
        finally:
            lane.calls -= 1
            if not lane.calls and self._lanes.get(key) is lane:
                del self._lanes[key]

    def _link_of(self, lane: _Lane) -> SdkLink[Any]:
        if lane.link is None or lane.link.is_gone:
            lane.link = self._free_link()
        return lane.link

    def _raise_if_closed(self) -> None:
        if self._is_closed:
            raise link_closed(repr(self.path))

    def _free_link(self) -> SdkLink[Any]:
        """Return the first idle SDK sender, a new one, or the one with the fewest calls."""
        self._raise_if_closed()
        self._links = [link for link in self._links if not link.is_gone]
        for link in self._links:
            if not link.calls:
                return link
        if len(self._links) < MAX_SENDERS:
            idle_s = FURTHER_IDLE_S if self._links else FIRST_IDLE_S
            link = SdkLink(
                self._owner.sdk_sender(self.path),
                repr(self.path),
                self._owner.tasks,
                prepare=self._note_limits,
                idle_s=idle_s,
                place=self._owner.place,
            )
            self._links.append(link)
            return link
        return min(self._links, key=lambda link: link.calls)

    async def _note_limits(self, sdk: Any) -> None:
        batch = (await sdk.create_message_batch()).max_size_in_bytes
        self._limits = SenderLimits(batch if batch <= STANDARD_LIMIT else PREMIUM_LIMIT, batch)


async def _nothing(sdk: Any) -> None:
    """Only open the link."""


def _ours(transaction: TransactionLink) -> SdkTransaction:
    if not isinstance(transaction, SdkTransaction):
        raise InvalidOperationError("the transaction was begun in another namespace: begin one with this client")
    return transaction
