"""Receives from one entity or session after another, prints, and only then settles."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from sbclient.cli.common import print_json, print_line
from sbclient.cli.message_json import message_json
from sbclient.cli.progress import Progress
from sbclient.cli.source import ANY_SESSION, Source
from sbclient.client.client import ServiceBusClient
from sbclient.client.receiver import ServiceBusReceiver
from sbclient.errors import InvalidOperationError, MessageAlreadySettled, OperationTimeoutError, ServiceBusError
from sbclient.message import AmqpMessageBodyType, ServiceBusReceivedMessage

BATCH: Final = 100
FOLLOWING_WAIT_S: Final = 60.0
NEXT_SESSION_AFTER_S: Final = 1.0
"""Without a message; then another session has its turn."""


class Settle(StrEnum):
    """What becomes of a message once it is printed."""

    COMPLETE = "complete"
    ABANDON = "abandon"
    DEFER = "defer"
    DEAD_LETTER = "dead-letter"


class Form(StrEnum):
    """What is printed of a message."""

    MESSAGES = "messages"
    LINES = "lines"


@dataclass(kw_only=True)
class Reception:
    """One run of `receive`.

    Attributes:
        count: messages at most; None = as many as come.
        wait_s: seconds without a message after which it ends; None = never.
        reason: goes with DEAD_LETTER.
        received: how many were printed.
        unsettled: of those, how many come again because their end was not confirmed.
    """

    source: Source
    count: int | None
    wait_s: float | None
    settle: Settle
    reason: str | None
    form: Form
    progress: Progress
    received: int = 0
    unsettled: int = 0

    async def run(self, client: ServiceBusClient, deferred: list[int]) -> None:
        """Receive until there is enough, or no more; or the deferred messages of these numbers.

        Raises:
            OutputClosed: nobody reads any more; what was not printed is given back.
            ServiceBusError: the entity cannot be received from.
        """
        if self.reason is not None and self.settle is not Settle.DEAD_LETTER:
            raise InvalidOperationError(f"--reason means nothing with --settle {self.settle}: use dead-letter")
        if deferred:
            async with self.source.receiver(client) as receiver:
                await self._handle(receiver, await receiver.receive_deferred_messages(deferred))
        elif self.source.session == ANY_SESSION:
            await self._each_session(client)
        else:
            async with self.source.receiver(client, max_wait_time=self.wait_s) as receiver:
                await self._drain(receiver, self.wait_s)

    async def _each_session(self, client: ServiceBusClient) -> None:
        """One session after another, until none is available.

        What stays in a session would make it available at once again: it is held until the end.
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
        """Everything that one receiver gives, until nothing comes for that long."""
        abandoned: list[ServiceBusReceivedMessage] = []
        numbers: set[int] = set()
        try:
            while self._wanted:
                messages = await receiver.receive_messages(self._wanted, wait_s or FOLLOWING_WAIT_S)
                if not messages and wait_s is not None:
                    return
                if self.settle is not Settle.ABANDON:
                    await self._handle(receiver, messages)
                    continue
                abandoned += messages
                if numbers.intersection(message.sequence_number for message in messages):
                    return  # their locks have ended: from here on everything comes a second time
                numbers.update(message.sequence_number for message in messages)
                self._print(messages)
        finally:
            await _given_back(receiver, abandoned)

    async def _handle(self, receiver: ServiceBusReceiver, messages: list[ServiceBusReceivedMessage]) -> None:
        """Print, then settle; an interruption waits for that. What nobody could print is given back."""
        try:
            self._print(messages)
            ending = asyncio.ensure_future(self._end_all(receiver, messages))
            try:
                await asyncio.shield(ending)
            except asyncio.CancelledError:
                await ending
                raise
        finally:
            await _given_back(receiver, messages)

    async def _end_all(self, receiver: ServiceBusReceiver, messages: list[ServiceBusReceivedMessage]) -> None:
        async with asyncio.TaskGroup() as group:
            for message in messages:
                group.create_task(self._end(receiver, message))

    async def _end(self, receiver: ServiceBusReceiver, message: ServiceBusReceivedMessage) -> None:
        try:
            if self.settle is Settle.DEFER:
                await receiver.defer_message(message)
            elif self.settle is Settle.DEAD_LETTER:
                await receiver.dead_letter_message(message, self.reason)
            elif self.settle is Settle.COMPLETE:
                await receiver.complete_message(message)
        except ServiceBusError as error:
            self.unsettled += 1
            self.progress.note(f"message {message.sequence_number} was printed, but not settled: {error}")

    def _print(self, messages: list[ServiceBusReceivedMessage]) -> None:
        for message in messages:
            if self.form is Form.LINES:
                print_line(bytes(message) if message.body_type is AmqpMessageBodyType.DATA else str(message))
            else:
                print_json(message_json(message, is_dead_letter=self.source.is_sub_queue))
            self.received += 1
        self.progress.show(f"received {self.received:,}")

    @property
    def _wanted(self) -> int:
        """Messages to ask for at once; 0 = there are enough."""
        return BATCH if self.count is None else min(self.count - self.received, BATCH)


async def _given_back(receiver: ServiceBusReceiver, messages: list[ServiceBusReceivedMessage]) -> None:
    for message in messages:
        if not message.is_settled:
            with suppress(ServiceBusError, MessageAlreadySettled):  # if it is still locked, that ends by itself
                await receiver.abandon_message(message)
