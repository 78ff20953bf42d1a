"""Looks at limits from both sides: what is one less and what is just allowed is stored, what is one more is refused.

It is done in quiet, on a queue of its own, in the runs that look at the edge of sizes. What a limit is is said here
once more, and not asked of the code that keeps it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from random import Random
from typing import Final

from sbclient import clock
from sbclient.broker.faults import Call, Operation
from sbclient.broker.profile import Profile
from sbclient.client.client import ServiceBusClient
from sbclient.delivery import ServiceBusReceiveMode
from sbclient.entities import EntityAddress, EntityKind, QueueProperties
from sbclient.errors import InvalidOperationError, MessageSizeExceededError, ServiceBusError
from sbclient.message import ServiceBusMessage
from sbclient.testing import MemoryPair
from tests.payloads import batch_size_of, size_of
from tests.simulation.history import CANARY, History

QUEUE: Final = "edges"
IDS: Final = ("message_id", "session_id", "partition_key", "reply_to_session_id")
LONGEST_ID: Final = 128
MOST_IN_TRANSACTION: Final = 100
DELIVERIES: Final = 3
LIMITS_EACH: Final = 2

Check = Callable[["Edges", ServiceBusClient, int], Awaitable[bool]]
"""Does something with so many more than the limit; returns whether it was let through."""


class Edges:
    """The limits of the primary namespace, looked at in one run."""

    def __init__(self, pair: MemoryPair, profile: Profile, history: History, random: Random) -> None:
        self._pair = pair
        self._profile = profile
        self._history = history
        self._random = random

    async def look(self) -> None:
        """Look at a few limits."""
        for name in self._random.sample(sorted(CHECKS), LIMITS_EACH):
            await self.look_at(name)

    async def look_at(self, name: str) -> None:
        """Look at one limit from both sides."""
        for beyond in (-1, 0, 1):
            self._manage("create", QueueProperties(QUEUE, max_delivery_count=DELIVERIES))
            async with self._pair.unpaired_client(timeout=5.0, retry_total=0) as client:
                is_let_through = await CHECKS[name](self, client, beyond)
            self._manage("delete")
            self._history.note("edge", name, beyond, is_let_through)
            if is_let_through is not (beyond < 1):
                verb = "let through" if is_let_through else "refused"
                self._history.violated("I18", f"{name}: what is {beyond:+} from the limit is {verb}")

    def _manage(self, what: str, *description: QueueProperties) -> None:
        management = self._pair.primary.namespace.management
        call = Call(Operation.MANAGE, clock.true_now())
        getattr(management, what)(call, EntityAddress(EntityKind.QUEUE, (QUEUE,)), *description)

    async def size(self, client: ServiceBusClient, beyond: int) -> bool:
        """The bytes of one message."""
        return await self._sends(client, [_of_size(self._profile.max_message_size_bytes + beyond)])

    async def batch(self, client: ServiceBusClient, beyond: int) -> bool:
        """The bytes of several messages in one transfer."""
        limit = self._profile.max_batch_size_bytes + beyond
        share = self._profile.max_message_size_bytes // 2
        one = batch_size_of([_of_size(share)])
        each = batch_size_of([_of_size(share)] * 2) - one
        messages = [_of_size(share) for _ in range((limit - one) // each)]
        last = _of_size(share)
        for _ in range(4):
            last = _of_size(size_of(last) + limit - batch_size_of([*messages, last]))
        assert batch_size_of([*messages, last]) == limit
        return await self._sends(client, [*messages, last])

    async def message_id(self, client: ServiceBusClient, beyond: int) -> bool:
        """Return the length of an id, before anything is sent."""
        message = ServiceBusMessage(CANARY)
        try:
            setattr(message, self._random.choice(IDS), "i" * (LONGEST_ID + beyond))
        except InvalidOperationError:
            return False
        return await self._sends(client, [message])

    async def transaction(self, client: ServiceBusClient, beyond: int) -> bool:
        """The messages of one transaction."""
        count = MOST_IN_TRANSACTION + beyond
        try:
            async with client.get_queue_sender(QUEUE) as sender, client.transaction() as transaction:
                await sender.send_messages([ServiceBusMessage(b"m") for _ in range(50)], transaction=transaction)
                await sender.send_messages(
                    [ServiceBusMessage(b"m") for _ in range(count - 50)], transaction=transaction
                )
        except InvalidOperationError:
            return await self._count(client) != 0
        return await self._count(client) == count

    async def deliveries(self, client: ServiceBusClient, beyond: int) -> bool:
        """How often a message is handed out before it is dead-lettered; let through = handed out that often."""
        async with client.get_queue_sender(QUEUE) as sender:
            await sender.send_messages(ServiceBusMessage(CANARY))
        async with client.get_queue_receiver(QUEUE) as receiver:
            for _ in range(DELIVERIES + beyond):
                messages = await receiver.receive_messages(max_wait_time=0.5)
                for message in messages:
                    await receiver.abandon_message(message)
        return bool(messages)

    async def lock(self, client: ServiceBusClient, beyond: int) -> bool:
        """How long a lock holds, in steps of 2 ms; let through = what is settled then is gone."""
        async with client.get_queue_sender(QUEUE) as sender:
            await sender.send_messages(ServiceBusMessage(CANARY))
        async with client.get_queue_receiver(QUEUE) as receiver:
            (message,) = await receiver.receive_messages(max_wait_time=1)
            assert message.locked_until_utc is not None
            ends_at = message.locked_until_utc - timedelta(milliseconds=1)
            await clock.sleep(ends_at.timestamp() - clock.true_now() + beyond * 0.002)
            try:
                await receiver.complete_message(message)
            except ServiceBusError:
                return False
        return await self._count(client) == 0

    async def _sends(self, client: ServiceBusClient, messages: list[ServiceBusMessage]) -> bool:
        """Whether messages are stored: all of them, or none with an error."""
        async with client.get_queue_sender(QUEUE) as sender:
            try:
                await sender.send_messages(messages if len(messages) > 1 else messages[0])
            except MessageSizeExceededError:
                return await self._count(client) != 0
        return await self._count(client) == len(messages)

    async def _count(self, client: ServiceBusClient) -> int:
        count = 0
        mode = ServiceBusReceiveMode.RECEIVE_AND_DELETE
        async with client.get_queue_receiver(QUEUE, receive_mode=mode) as receiver:
            while messages := await receiver.receive_messages(200, max_wait_time=0.1):
                count += len(messages)
        return count


def _of_size(size_bytes: int) -> ServiceBusMessage:
    """A message whose encoded size is exactly so many bytes; with an id, or the client gives it one."""
    message = ServiceBusMessage(b"." * (size_bytes - 40), message_id="edge")
    for _ in range(3):
        length = len(bytes(message)) + size_bytes - size_of(message)
        message = ServiceBusMessage(b"." * length, message_id="edge")
    return message


CHECKS: Final[dict[str, Check]] = {
    "size of a message": Edges.size,
    "size of a batch": Edges.batch,
    "length of an id": Edges.message_id,
    "messages of a transaction": Edges.transaction,
    "deliveries of a message": Edges.deliveries,
    "life of a lock": Edges.lock,
}
