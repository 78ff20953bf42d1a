"""The dead letters of one entity: browse them, send them to the entity again, or delete them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing, suppress
from typing import Any, Final, TypeAlias

from sbclient.amqp import EncodedBatch
from sbclient.amqp.encoded import encoded_content
from sbclient.delivery import ServiceBusReceiveMode, Settlement, SettleMode
from sbclient.errors import ServiceBusError
from sbclient.message import DEAD_LETTER_PROPERTIES, ServiceBusReceivedMessage
from sbclient.rules.entity_path import dead_letter_path, entity_of
from sbclient.transport.base import Transport

PAGE: Final = 100
TIMEOUT_S: Final = 60.0
_NOTHING_MORE_S: Final = 1.0
_MAX_ID: Final = 128
"""The longest message id that the service accepts."""

Selection: TypeAlias = Callable[[ServiceBusReceivedMessage], bool]
"""Whether a dead letter is selected."""


def everything(message: ServiceBusReceivedMessage) -> bool:
    """Select every dead letter."""
    return True


async def pages(transport: Transport, path: str) -> AsyncGenerator[Sequence[ServiceBusReceivedMessage], None]:
    """Yield the messages of a queue, subscription or sub-queue page by page, peeked."""
    link = transport.open_receiver(path)
    try:
        number = 1
        while page := await link.peek(max_message_count=PAGE, sequence_number=number, timeout_s=TIMEOUT_S):
            yield page
            number = page[-1].sequence_number + 1
    finally:
        await link.close()


class DeadLetters:
    """The dead letters of a queue or subscription.

    Args:
        transport: of its namespace.
        path: of the queue or subscription.
        on_done: called with 1 for each message that was resubmitted or deleted.
    """

    def __init__(self, transport: Transport, path: str, *, on_done: Callable[[int], None] | None = None) -> None:
        self._transport = transport
        self._path = dead_letter_path(path)
        self._target = entity_of(path)
        self._on_done = on_done

    async def select(self, selection: Selection) -> list[ServiceBusReceivedMessage]:
        """Return the current dead letters that are selected, peeked.

        Raises:
            MessagingEntityNotFoundError: the entity does not exist.
        """
        found: list[ServiceBusReceivedMessage] = []
        async with aclosing(pages(self._transport, self._path)) as browsed:
            async for page in browsed:
                found += filter(selection, page)
        return found

    async def resubmit(self, selection: Selection, *, detects_duplicates: bool = False) -> int:
        """Send dead letters to their queue, or to the topic of their subscription, and then delete them.

        Each is deleted only after its copy was accepted, so that a failure can cause a duplicate but no loss.

        Args:
            detects_duplicates: whether the entity would drop a copy that has the id of a recent message. The copy then
                gets another id, which is the same each time that this dead letter is resubmitted.

        Returns:
            Number of messages.
        """
        sender = self._transport.open_sender(self._target)

        async def send(message: ServiceBusReceivedMessage) -> None:
            changes: dict[str, Any] = {"message_id": _other_id(message)} if detects_duplicates else {}
            copy = encoded_content(message).without_properties(DEAD_LETTER_PROPERTIES, **changes)
            await sender.send(EncodedBatch([copy]), timeout_s=TIMEOUT_S)

        try:
            return await self._clear(selection, first=send)
        finally:
            await sender.close()

    async def purge(self, selection: Selection) -> int:
        """Delete dead letters; return their number."""
        return await self._clear(selection)

    async def _clear(
        self,
        selection: Selection,
        *,
        first: Callable[[ServiceBusReceivedMessage], Awaitable[None]] | None = None,
    ) -> int:
        """Complete the current dead letters that are selected, each after `first`; return their number.

        Later dead letters are skipped, since a resubmitted message may be dead-lettered again at once. Other messages
        stay locked until the end, so that the next receive returns new ones, and are then released.
        """
        link = self._transport.open_receiver(self._path, receive_mode=ServiceBusReceiveMode.PEEK_LOCK)
        in_flight: dict[int, ServiceBusReceivedMessage] = {}
        cleared, wait_s = 0, _NOTHING_MORE_S
        try:
            wanted = await self._numbers(selection)
            while wanted:
                batch = await link.receive(max_message_count=PAGE, max_wait_time_s=wait_s)
                numbers = [message.sequence_number for message in batch]
                if not batch:  # the queue is empty, its messages are locked, or the namespace is slow
                    wanted &= await self._numbers(selection)
                    if wait_s >= TIMEOUT_S:
                        break
                    wait_s = min(2 * wait_s, TIMEOUT_S)
                elif all(number in in_flight for number in numbers):
                    break  # their locks have expired, and more messages than can be locked precede the wanted ones
                in_flight.update(zip(numbers, batch, strict=True))
                for message in batch:
                    if message.sequence_number not in wanted:
                        continue
                    if first is not None:
                        await first(message)
                    await link.settle(message, Settlement(SettleMode.COMPLETE), timeout_s=TIMEOUT_S)
                    wanted.discard(message.sequence_number)
                    del in_flight[message.sequence_number]
                    cleared += 1
                    if self._on_done is not None:
                        self._on_done(1)
        finally:
            for message in in_flight.values():
                with suppress(ServiceBusError):  # its lock expires
                    await link.settle(message, Settlement(SettleMode.ABANDON), timeout_s=TIMEOUT_S)
            await link.close()
        return cleared

    async def _numbers(self, selection: Selection) -> set[int]:
        return {message.sequence_number for message in await self.select(selection)}


def _other_id(message: ServiceBusReceivedMessage) -> str:
    suffix = f"#{message.sequence_number}"
    return f"{str(message.message_id or '')[: _MAX_ID - len(suffix)]}{suffix}"
