"""Sends through azure-servicebus: a few of its senders for one entity, and a transaction that is one batch.

Laws:
1. What is sent with one key goes, in call order, through one SDK sender as long as any of it is on its way. Other keys
   take another one, so that a fragment that hangs holds up its own keys only.
2. An idle SDK sender costs nothing: it has no heartbeat of its own, and is closed before the service misses one.
   Further ones are closed sooner.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final, Protocol, TypeVar

from sbclient.clock import Clock
from sbclient.delivery import SenderLimits
from sbclient.errors import InvalidOperationError, MessageSizeExceededError, OperationTimeoutError
from sbclient.errors import TransactionNotSupportedError as NotSupported
from sbclient.message import ServiceBusMessage
from sbclient.rules.entity_path import canonical
from sbclient.rules.size import batch_size
from sbclient.tasks import OwnedTasks
from sbclient.transport.base import SenderLink, TransactionLink
from sbclient.transport.sdk.errors import Place
from sbclient.transport.sdk.link import GivenUpError, SdkLink
from sbclient.transport.sdk.message import to_sdk
from sbclient.transport.sdk.payload import encoded, fill_batch, is_known_sdk, schedule_request

R = TypeVar("R")

MAX_SENDERS: Final = 8
"""SDK senders, which are connections, for one entity and one of our senders."""

FIRST_IDLE_S: Final = 100.0
"""A peer may close a connection that was silent for 120 s, and the SDK would learn of it only with the next message."""

FURTHER_IDLE_S: Final = 30.0

DEFAULT_LIMIT: Final = 256 * 1024
"""What every tier accepts, for a link that does not say."""


class Owner(Protocol):
    """What a link needs of its transport."""

    clock: Clock
    tasks: OwnedTasks

    @property
    def place(self) -> Place:
        """The namespace, for errors."""

    def sdk_sender(self, path: str) -> Any:
        """A new sender of the SDK."""

    def forget(self, link: Any) -> None:
        """The link was closed."""


@dataclass(slots=True)
class _Lane:
    """A key that is on its way."""

    link: SdkLink[Any]
    calls: int = 0


class AzureTransaction(TransactionLink):
    """The sends of one transaction, kept until they go out as one batch, which is stored whole or not at all."""

    def __init__(self) -> None:
        self._sender: AzureSender | None = None
        self._messages: list[ServiceBusMessage] = []
        self._is_over = False

    async def add(self, sender: AzureSender, messages: Sequence[ServiceBusMessage], *, timeout_s: float) -> None:
        """Keep messages for the commit.

        Raises:
            TransactionNotSupportedError: they are for another entity than those before.
            MessageSizeExceededError: they do not fit into one batch with those before.
        """
        self._check()
        if self._sender is not None and canonical(self._sender.path) != canonical(sender.path):
            raise NotSupported(
                f"a transaction that began with {self._sender.path!r} cannot send to {sender.path!r}: over "
                "azure-servicebus it is one batch to one entity, so use one transaction for each"
            )
        limit = (await sender.limits(timeout_s=timeout_s)).max_batch_size_bytes
        size = batch_size([*self._messages, *messages])
        if size > limit:
            raise MessageSizeExceededError(
                f"the transaction's messages for {sender.path!r} take {size} bytes, {limit} are allowed in one batch: "
                "commit fewer at once"
            )
        self._check()
        self._sender = sender
        self._messages += messages

    async def commit(self, *, timeout_s: float) -> None:
        self._check()
        self._is_over = True
        if self._sender is not None and self._messages:
            await self._sender.send(self._messages, timeout_s=timeout_s)

    async def rollback(self, *, timeout_s: float) -> None:
        self._is_over = True
        self._messages = []

    def _check(self) -> None:
        if self._is_over:
            raise InvalidOperationError("the transaction was committed or rolled back: begin another one")


class AzureSender(SenderLink):
    """Sends to one entity.

    Attributes:
        path: of the entity.
    """

    def __init__(self, owner: Owner, path: str) -> None:
        self._owner = owner
        self._clock = owner.clock
        self._links: list[SdkLink[Any]] = []
        self._lanes: dict[str | None, _Lane] = {}
        self._limits: SenderLimits | None = None
        self._is_closed = False
        self.path = path

    @property
    def is_open(self) -> bool:
        return any(link.is_open for link in self._links)

    async def open(self, *, timeout_s: float) -> None:
        if not self.is_open:
            await self._call(None, _nothing, doing="open", timeout_s=timeout_s)

    async def limits(self, *, timeout_s: float) -> SenderLimits:
        if self._limits is None:
            await self.open(timeout_s=timeout_s)
        return self._limits or SenderLimits(DEFAULT_LIMIT, DEFAULT_LIMIT)

    async def send(
        self,
        messages: Sequence[ServiceBusMessage],
        *,
        timeout_s: float,
        transaction: TransactionLink | None = None,
    ) -> None:
        if transaction is not None:
            await _ours(transaction).add(self, messages, timeout_s=timeout_s)
            return
        deadline = self._clock.monotonic() + timeout_s
        payloads = [encoded(message) for message in messages] if is_known_sdk() else None

        async def put(sdk: Any) -> None:
            outgoing = await self._outgoing(sdk, messages, payloads)
            await sdk.send_messages(outgoing, timeout=max(deadline - self._clock.monotonic(), 0.001))

        await self._call(_key(messages[0]), put, doing="send to", timeout_s=timeout_s)

    async def _outgoing(self, sdk: Any, messages: Sequence[ServiceBusMessage], payloads: Sequence[bytes] | None) -> Any:
        """What the SDK is to send: encoded by us, or by it where its inside is not known.

        A single message that is too large for a batch, but not for the entity, must go alone, and only the SDK does
        that.
        """
        largest = self._limits.max_batch_size_bytes if self._limits is not None else DEFAULT_LIMIT
        if payloads is not None and (len(messages) > 1 or batch_size(messages) <= largest):
            batch = await sdk.create_message_batch()
            fill_batch(batch, messages, payloads)
            return batch
        return to_sdk(messages[0]) if len(messages) == 1 else [to_sdk(message) for message in messages]

    async def schedule(
        self,
        messages: Sequence[ServiceBusMessage],
        *,
        timeout_s: float,
        transaction: TransactionLink | None = None,
    ) -> list[int]:
        if transaction is not None:
            raise NotSupported(
                f"scheduling for {self.path!r} cannot be part of a transaction over azure-servicebus, only sending "
                "can: send with scheduled_enqueue_time_utc instead, or schedule without a transaction"
            )
        deadline = self._clock.monotonic() + timeout_s
        request = schedule_request(messages) if is_known_sdk() else None

        async def ask(sdk: Any) -> list[int]:
            left_s = max(deadline - self._clock.monotonic(), 0.001)
            if request is None:
                return await _schedule_in_public(sdk, messages, left_s)
            from azure.servicebus._common.constants import REQUEST_RESPONSE_SCHEDULE_MESSAGE_OPERATION as SCHEDULE
            from azure.servicebus._common.mgmt_handlers import schedule_op

            return list(await sdk._mgmt_request_response_with_retry(SCHEDULE, request, schedule_op, timeout=left_s))

        return await self._call(_key(messages[0]), ask, doing="schedule for", timeout_s=timeout_s)

    async def cancel_scheduled(self, sequence_numbers: Sequence[int], *, timeout_s: float) -> None:
        deadline = self._clock.monotonic() + timeout_s

        async def cancel(sdk: Any) -> None:
            await sdk.cancel_scheduled_messages(
                list(sequence_numbers), timeout=max(deadline - self._clock.monotonic(), 0.001)
            )

        await self._call(None, cancel, doing="cancel scheduled messages of", timeout_s=timeout_s)

    async def close(self) -> None:
        self._is_closed = True
        await asyncio.gather(*(link.close() for link in self._links))
        self._owner.forget(self)  # last: what is cancelled here is finished by a second call, or by the transport's

    # -- which SDK sender ----------------------------------------------------------------------------------------

    async def _call(self, key: str | None, work: Callable[[Any], Awaitable[R]], *, doing: str, timeout_s: float) -> R:
        """Do `work` with the key's SDK sender, or with another one if that one is given up before the turn comes."""
        deadline = self._clock.monotonic() + timeout_s
        while True:
            left_s = deadline - self._clock.monotonic()
            if left_s <= 0:
                raise OperationTimeoutError(f"{doing} {self.path!r}: the time was over before anything was sent")
            try:
                with self._lane(key) as link:
                    return await link.call(work, doing=doing, timeout_s=left_s)
            except GivenUpError:
                continue

    @contextmanager
    def _lane(self, key: str | None) -> Iterator[SdkLink[Any]]:
        lane = self._lanes.get(key)
        if lane is None or lane.link.is_gone:
            lane = self._lanes[key] = _Lane(self._free_link())
        lane.calls += 1
        try:
            yield lane.link
        finally:
            lane.calls -= 1
            if not lane.calls and self._lanes.get(key) is lane:
                del self._lanes[key]

    def _free_link(self) -> SdkLink[Any]:
        """The first SDK sender that nobody uses, a new one, or the one with the shortest queue."""
        if self._is_closed:
            raise InvalidOperationError(f"the link to {self.path!r} was closed: open a new one")
        self._links = [link for link in self._links if not link.is_gone]
        for link in self._links:
            if not link.calls:
                return link
        if len(self._links) < MAX_SENDERS:
            idle_s = FURTHER_IDLE_S if self._links else FIRST_IDLE_S
            link = SdkLink(
                self._owner.sdk_sender(self.path),
                repr(self.path),
                self._clock,
                self._owner.tasks,
                prepare=self._note_limits,
                idle_s=idle_s,
                place=self._owner.place,
            )
            self._links.append(link)
            return link
        return min(self._links, key=lambda link: link.calls)

    def _note_limits(self, sdk: Any) -> None:
        """What the service said when the link was attached; the SDK keeps it in a private place."""
        largest = getattr(sdk, "_max_message_size_on_link", None) or DEFAULT_LIMIT
        batch = getattr(sdk, "_max_batch_size_on_link", None) or largest
        self._limits = SenderLimits(largest, min(batch, largest))


async def _nothing(sdk: Any) -> None:
    """Opening is enough."""


async def _schedule_in_public(sdk: Any, messages: Sequence[ServiceBusMessage], timeout_s: float) -> list[int]:
    """One request for each moment, as the SDK's own method takes one only."""
    numbers: list[int] = []
    for moment, group in groupby(messages, key=lambda message: message.scheduled_enqueue_time_utc):
        numbers += await sdk.schedule_messages([to_sdk(message) for message in group], moment, timeout=timeout_s)
    return numbers


def _key(message: ServiceBusMessage) -> str | None:
    return message.session_id if message.session_id is not None else message.partition_key


def _ours(transaction: TransactionLink) -> AzureTransaction:
    if not isinstance(transaction, AzureTransaction):
        raise InvalidOperationError("the transaction was begun in another namespace: begin one in this")
    return transaction
