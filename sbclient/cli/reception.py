"""Receives messages from an entity or from its sessions in sequence, prints them and then settles them."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from sbclient.arguments.kinds import encodable
from sbclient.cli.common import print_bodies, print_json_lines, taken_by_reader, unread_bytes
from sbclient.cli.message_json import message_line
from sbclient.cli.progress import Amount, Progress
from sbclient.cli.source import ANY_SESSION, Source
from sbclient.client.client import ServiceBusClient
from sbclient.client.receiver import ServiceBusReceiver, fetch_ahead, settle_together
from sbclient.delivery import Settlement, SettleMode
from sbclient.errors import InvalidOperationError, MessageAlreadySettled, OperationTimeoutError, ServiceBusError
from sbclient.message import AmqpMessageBodyType, ServiceBusReceivedMessage

BATCH: Final = 500
FOLLOWING_WAIT_S: Final = 60.0
NEXT_SESSION_AFTER_S: Final = 1.0
"""Without a message in a session; then the next session is accepted."""


class Settle(StrEnum):
    """How a printed message is settled."""

    COMPLETE = "complete"
    ABANDON = "abandon"
    DEFER = "defer"
    DEAD_LETTER = "dead-letter"


class Form(StrEnum):
    """What is printed for a message."""

    MESSAGES = "messages"
    LINES = "lines"


@dataclass(kw_only=True)
class Reception:
    """One run of `receive`.

    Attributes:
        count: the largest number of messages; None = no limit.
        wait_s: ends after this many seconds without a message; None = never.
        reason: the dead-letter reason.
        wanted: whether a message is wanted; others stay locked until the end and are then released. None = all.
        received: the number of printed messages.
        unsettled: of those, the ones whose settlement failed, so that they are delivered again.
    """

    source: Source
    count: int | None
    wait_s: float | None
    settle: Settle
    reason: str | None
    form: Form
    progress: Progress
    wanted: Callable[[ServiceBusReceivedMessage], bool] | None = None
    received: int = 0
    unsettled: int = 0
    _settling: set[asyncio.Task[None]] = field(default_factory=set, init=False)
    _others: dict[int, ServiceBusReceivedMessage] = field(default_factory=dict, init=False)

    async def run(self, client: ServiceBusClient, deferred: list[int]) -> None:
        """Receive until `count` or `wait_s` is reached.

        Args:
            deferred: sequence numbers of deferred messages, to be received instead.

        Raises:
            OutputClosed: the reader of stdout has closed it; messages that were not printed are abandoned.
            ServiceBusError: receiving failed.
        """
        if self.reason is not None and self.settle is not Settle.DEAD_LETTER:
            raise InvalidOperationError(f"--reason has no effect with --settle {self.settle}: use --settle dead-letter")
        if self.reason is not None:
            self.reason = encodable("--reason", self.reason)  # before anything is received
        self.progress.follow(lambda: Amount(f"received {self.received:,}", self.received, self.count))
        if deferred:
            async with self.source.receiver(client) as receiver:
                try:
                    await self._handle(receiver, await receiver.receive_deferred_messages(deferred))
                finally:
                    await self._settled()
        elif self.source.session == ANY_SESSION:
            await self._each_session(client)
        else:
            async with self.source.receiver(client, max_wait_time=self.wait_s) as receiver:
                await self._drain(receiver, self.wait_s)

    async def _each_session(self, client: ServiceBusClient) -> None:
        """Read one session after another, until none is available.

        A session with abandoned or deferred messages stays accepted until the end. It would be available again.
        """
        is_held = self.settle in (Settle.ABANDON, Settle.DEFER)
        wait_s = min(self.wait_s or NEXT_SESSION_AFTER_S, NEXT_SESSION_AFTER_S)
        async with AsyncExitStack() as held:
            while self._wanted:
                receiver = self.source.receiver(client, max_wait_time=self.wait_s or FOLLOWING_WAIT_S)
                try:
                    await receiver.__aenter__()
                except OperationTimeoutError:
                    if self.wait_s is None:
                        continue
                    return
                held.push_async_exit(receiver)
                await self._drain(receiver, wait_s)
                if not is_held:
                    await held.pop_all().aclose()

    async def _drain(self, receiver: ServiceBusReceiver, wait_s: float | None) -> None:
        """Read a receiver until no message arrives for `wait_s` seconds; None = no end."""
        if self.settle is Settle.ABANDON:
            await self._drain_once(receiver, wait_s)
            return
        fetch_ahead(receiver, BATCH, self._wanted)  # the next messages come while these are printed
        try:
            while messages := await self._receive(receiver, wait_s):
                chosen = await self._chosen(messages)
                if chosen is None:
                    return
                await self._handle(receiver, chosen)
        finally:
            await self._settled()
            await _abandon(receiver, list(self._others.values()))
            self._others.clear()

    async def _chosen(self, messages: list[ServiceBusReceivedMessage]) -> list[ServiceBusReceivedMessage] | None:
        """Keep the messages that are not wanted, and return the others; None if locks have expired meanwhile."""
        if self.wanted is None:
            return messages
        if self._others.keys() & {message.sequence_number for message in messages}:
            self._others |= {message.sequence_number: message for message in messages}
            return None  # more messages than can be locked precede the wanted ones
        chosen = [message for message in messages if self.wanted(message)]
        self._others |= {message.sequence_number: message for message in messages if message not in chosen}
        return chosen

    async def _receive(self, receiver: ServiceBusReceiver, wait_s: float | None) -> list[ServiceBusReceivedMessage]:
        """Return messages, and none only if none arrives for `wait_s` seconds or none is wanted."""
        messages: list[ServiceBusReceivedMessage] = []
        while self._wanted and not messages:
            messages = await receiver.receive_messages(min(self._wanted, BATCH), wait_s or FOLLOWING_WAIT_S)
            if wait_s is not None:
                break
        return messages

    async def _drain_once(self, receiver: ServiceBusReceiver, wait_s: float | None) -> None:
        """Print each message once, and abandon them all at the end: an abandoned message would be delivered again."""
        abandoned: list[ServiceBusReceivedMessage] = []
        numbers: set[int] = set()
        try:
            while messages := await self._receive(receiver, wait_s):
                abandoned += messages
                if numbers.intersection(message.sequence_number for message in messages):
                    return  # their locks expired, and the messages are delivered again
                numbers.update(message.sequence_number for message in messages)
                await self._print([each for each in messages if self.wanted is None or self.wanted(each)], [])
        finally:
            await _abandon(receiver, abandoned)

    async def _handle(self, receiver: ServiceBusReceiver, messages: list[ServiceBusReceivedMessage]) -> None:
        """Print messages and begin to settle them. Then wait for the messages before, so that two batches overlap.

        Messages that were not printed, or that the reader of a pipe has not taken, are abandoned.
        """
        seen: list[ServiceBusReceivedMessage] = []
        try:
            await self._print(messages, seen)
        except BaseException:
            await _abandon(receiver, messages[len(seen) :])
            await self._settle_all(receiver, seen)
            raise
        before = set(self._settling)
        settling = asyncio.create_task(self._settle_all(receiver, messages))
        self._settling.add(settling)
        settling.add_done_callback(self._settling.discard)
        for each in before:
            await asyncio.shield(each)

    async def _settled(self) -> None:
        """Wait for the settlements in flight, also in a task that was cancelled. Another cancellation ends the wait."""
        await asyncio.gather(*self._settling)

    async def _settle_all(self, receiver: ServiceBusReceiver, messages: list[ServiceBusReceivedMessage]) -> None:
        try:
            if self.settle is not Settle.ABANDON:
                settlement = Settlement(SettleMode[self.settle.name], self.reason)
                await settle_together(receiver, messages, settlement)
            await asyncio.gather(*(self._settle(receiver, each) for each in messages if not each.is_settled))
        finally:
            await _abandon(receiver, messages)

    async def _settle(self, receiver: ServiceBusReceiver, message: ServiceBusReceivedMessage) -> None:
        try:
            if self.settle is Settle.DEFER:
                await receiver.defer_message(message)
            elif self.settle is Settle.DEAD_LETTER:
                await receiver.dead_letter_message(message, self.reason)
            elif self.settle is Settle.COMPLETE:
                await receiver.complete_message(message)
        except ServiceBusError as error:
            self.unsettled += 1
            self.progress.print_above(f"message {message.sequence_number} was printed but not settled: {error}")

    async def _print(self, messages: list[ServiceBusReceivedMessage], seen: list[ServiceBusReceivedMessage]) -> None:
        """Print messages, and add those to `seen` that were printed.

        Into a pipe they go one by one: its reader, such as `head`, may end and must not have taken others.
        """
        if unread_bytes() is None:
            self._write(messages)
            seen += messages
            return
        for message in messages:
            self._write([message])
            try:
                await taken_by_reader()
            finally:
                if not unread_bytes():
                    seen.append(message)

    def _write(self, messages: list[ServiceBusReceivedMessage]) -> None:
        if not messages:
            return
        if self.form is Form.LINES:
            print_bodies(bytes(each) if each.body_type is AmqpMessageBodyType.DATA else str(each) for each in messages)
        else:
            print_json_lines(message_line(each, is_dead_letter=self.source.is_sub_queue) for each in messages)
        self.received += len(messages)

    @property
    def _wanted(self) -> int:
        """The number of messages to request; 0 = `count` is reached."""
        return sys.maxsize if self.count is None else self.count - self.received


async def _abandon(receiver: ServiceBusReceiver, messages: list[ServiceBusReceivedMessage]) -> None:
    for message in messages:
        if not message.is_settled:
            with suppress(ServiceBusError, MessageAlreadySettled):  # the lock expires by itself
                await receiver.abandon_message(message)
