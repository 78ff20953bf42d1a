"""Peeks ranges of sequence numbers, and finds the first and the last message of each fragment.

The upper 16 bits of a sequence number are the fragment of a partitioned entity, and 0 for other entities. A peek from a
number returns the next messages of the fragment of that number. After the last one it continues in another fragment,
whichever that is. A peek from 1 may start in any fragment. Message 1 of fragment 0 of a partitioned entity can
therefore only be found by browsing the whole entity.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import AsyncGenerator, Container, Iterable, Mapping, Sequence
from contextlib import aclosing
from datetime import datetime
from itertools import islice, pairwise
from typing import Any, Final, NamedTuple, TypeAlias

from sbclient.client.client import ServiceBusClient
from sbclient.client.receiver import ServiceBusReceiver
from sbclient.delivery import ServiceBusSubQueue, SessionChoice
from sbclient.entities import QueueProperties, SubscriptionProperties
from sbclient.errors import MessagingEntityNotFoundError, ServiceBusError
from sbclient.message import ServiceBusMessageState, ServiceBusReceivedMessage
from sbclient.rules.entity_path import split_subscription
from sbclient.rules.sequence_number import COUNTER_BITS, partition_of
from sbclient_spark.read.options import SubQueueWord

PAGE: Final = 250
TRIES: Final = 3
"""How often a micro-batch of the trigger AvailableNow looks for messages that did not arrive in time."""

FRAGMENTS: Final = 16
"""The usual number of fragments. If there are more, `extents` finds them."""

Pages: TypeAlias = AsyncGenerator[list[ServiceBusReceivedMessage], None]
"""Messages in pages, some of which may be empty."""


class Extent(NamedTuple):
    """The sequence numbers of the messages of one fragment: the lowest, and the highest plus 1."""

    first: int
    end: int


def first_number_of(fragment: int) -> int:
    """Return the lowest sequence number of a fragment."""
    return max(fragment << COUNTER_BITS, 1)


def split_ranges(ranges: Sequence[tuple[int, int]], count: int) -> list[tuple[int, int]]:
    """Split ranges of numbers, whose end is exclusive, into about `count` ranges of similar width.

    There are at least `count` ranges if there are as many numbers, and fewer than `2 * count + len(ranges)`.
    """
    width = max(sum(end - first for first, end in ranges) // max(count, 1), 1)
    found: list[tuple[int, int]] = []
    for first, end in ranges:
        parts = max(-(-(end - first) // width), 1)
        bounds = [first + (end - first) * part // parts for part in range(parts + 1)]
        found += [(low, high) for low, high in pairwise(bounds) if high > low]
    return found


def open_receiver(
    client: ServiceBusClient,
    path: str,
    sub_queue: SubQueueWord = "none",
    session_id: SessionChoice = None,
    **options: Any,
) -> ServiceBusReceiver:
    """Return a receiver of a queue or, given `topic/Subscriptions/name` in any case of letters, of a subscription.

    Args:
        options: further ones of `ServiceBusClient.get_queue_receiver`.
    """
    chosen = {
        "none": None,
        "deadletter": ServiceBusSubQueue.DEAD_LETTER,
        "transferDeadletter": ServiceBusSubQueue.TRANSFER_DEAD_LETTER,
    }[sub_queue]
    if (names := split_subscription(path)) is not None:
        topic, subscription = names
        return client.get_subscription_receiver(topic, subscription, sub_queue=chosen, session_id=session_id, **options)
    return client.get_queue_receiver(path, sub_queue=chosen, session_id=session_id, **options)


class EntityFacts(NamedTuple):
    """Properties of a queue or subscription; None = unknown, because a right is missing or the service is unavailable.

    Attributes:
        created: the time of its creation in ISO 8601.
    """

    is_partitioned: bool | None = None
    requires_session: bool | None = None
    created: str | None = None


async def entity_facts(client: ServiceBusClient, path: str, *, with_creation: bool = False) -> EntityFacts:
    """Read the facts about an entity.

    Args:
        with_creation: also read the time of its creation, which is another request.

    Raises:
        MessagingEntityNotFoundError: it does not exist.
    """
    admin = client.administration
    created: datetime | None = None
    described: QueueProperties | SubscriptionProperties
    try:
        if (names := split_subscription(path)) is not None:
            topic, subscription = names
            partitioned = (await admin.get_topic(topic)).enable_partitioning
            described = await admin.get_subscription(topic, subscription)
            if with_creation:
                created = (await admin.get_subscription_runtime_properties(topic, subscription)).created_at_utc
        else:
            described = await admin.get_queue(path)
            partitioned = described.enable_partitioning
            if with_creation:
                created = (await admin.get_queue_runtime_properties(path)).created_at_utc
    except MessagingEntityNotFoundError:
        raise MessagingEntityNotFoundError(
            f"{path!r} does not exist in {client.fully_qualified_namespace}: correct the name"
        ) from None
    except ServiceBusError:
        return EntityFacts()
    return EntityFacts(
        bool(partitioned), bool(described.requires_session), None if created is None else created.isoformat()
    )


async def active_count(client: ServiceBusClient, path: str) -> int | None:
    """Return the number of active messages; None = unknown, because a right is missing."""
    admin = client.administration
    try:
        if (names := split_subscription(path)) is not None:
            return (await admin.get_subscription_runtime_properties(*names)).active_message_count
        return (await admin.get_queue_runtime_properties(path)).active_message_count
    except ServiceBusError:
        return None


async def browse(
    receiver: ServiceBusReceiver, first: int, last: int | None = None, *, numbers: Sequence[int] | None = None
) -> Pages:
    """Yield the messages whose sequence numbers are in a range, in pages, some of which may be empty.

    Args:
        first, last: inclusive; `last` None = to the end of the entity.
        numbers: ascending, within the range: only these are wanted; None = all.
    """
    chosen = None if numbers is None else frozenset(numbers)
    number = max(first, 1)
    reached_range = number > 1  # a peek from 1 may start in another fragment: do not stop before the range
    while page := await receiver.peek_messages(PAGE, sequence_number=number):
        if last is not None and reached_range and partition_of(page[0].sequence_number) != partition_of(last):
            return
        number = page[-1].sequence_number + 1
        wanted = [
            message
            for message in page
            if first <= message.sequence_number and (last is None or message.sequence_number <= last)
        ]
        reached_range = reached_range or bool(wanted)
        if chosen is not None and numbers is not None:
            wanted = [message for message in wanted if message.sequence_number in chosen]
            place = bisect_left(numbers, number)
            if reached_range and place < len(numbers):
                number = numbers[place]
            elif reached_range:
                yield wanted
                return
        yield wanted
        if last is not None and number > last and reached_range:
            return


async def active_before(
    receiver: ServiceBusReceiver, target: Mapping[int, int], known: Container[int]
) -> AsyncGenerator[ServiceBusReceivedMessage, None]:
    """Yield the active messages, locked or not, whose sequence numbers are lower than a target.

    Args:
        target: by fragment.
        known: numbers of messages that are left out.
    """
    for fragment, end in target.items():
        async with aclosing(browse(receiver, first_number_of(fragment), end - 1)) as pages:
            async for page in pages:
                for message in page:
                    if message.state is ServiceBusMessageState.ACTIVE and message.sequence_number not in known:
                        yield message


async def ahead(sources: Iterable[Pages], at_once: int = 1) -> Pages:
    """Yield the pages of several sources. Each source fetches its next page while the caller handles the current one.

    Args:
        sources: the pages of each source remain in order.
        at_once: how many sources are read at the same time.
    """
    waiting = iter(sources)
    running: dict[asyncio.Future[list[ServiceBusReceivedMessage] | None], Pages] = {}

    def fetch(source: Pages) -> None:
        running[asyncio.ensure_future(anext(source, None))] = source

    try:
        for source in islice(waiting, at_once):
            fetch(source)
        while running:
            done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                page = task.result()
                following = running[task] if page is not None else next(waiting, None)
                if following is not None:
                    fetch(following)
                del running[task]
                if page:
                    yield page
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        for source in running.values():
            await source.aclose()


async def extents(
    receiver: ServiceBusReceiver,
    start_by_fragment: Mapping[int, int],
    *,
    is_partitioned: bool | None,
    default_start: int = 1,
    max_width: int | None = None,
) -> dict[int, Extent]:
    """Return the extents of all fragments that have messages.

    The number of peeks grows with the logarithm of the number of messages.

    Args:
        start_by_fragment: the number from which to search each fragment.
        is_partitioned: whether there may be several fragments; None = unknown.
        default_start: the number from which to search all other fragments.
        max_width: the largest width of an extent; later messages are left out. None = no limit.
    """
    found: dict[int, Extent] = {}
    seen: set[int] = set()
    usual = 1 if is_partitioned is False else FRAGMENTS + 1  # one more, to notice that there are further fragments
    fragments = {*range(usual), *start_by_fragment}
    while fragments:
        fragment = min(fragments)
        seen.add(fragment)
        start = max(start_by_fragment.get(fragment, default_start), first_number_of(fragment))
        message = await _next(receiver, max(start, 2))
        here = None if message is None else partition_of(message.sequence_number)
        if start == 1 and await _may_have_message_1(receiver, others_follow=here == 0):
            found[0] = Extent(1, await _end(receiver, 1, max_width) if here == 0 else 2)
        elif message is not None and here == fragment:
            found[fragment] = Extent(message.sequence_number, await _end(receiver, message.sequence_number, max_width))
        if fragment >= FRAGMENTS and fragment in found:
            fragments.add(fragment + 1)
        if here is not None:
            fragments.add(here)  # may be beyond the usual fragments
        fragments -= seen
    return found


async def _next(receiver: ServiceBusReceiver, number: int) -> ServiceBusReceivedMessage | None:
    """Return the first message from a number on; it may be in another fragment."""
    page = await receiver.peek_messages(1, sequence_number=number)
    return page[0] if page else None


async def _may_have_message_1(receiver: ServiceBusReceiver, *, others_follow: bool) -> bool:
    """Return whether message 1 of fragment 0 exists.

    Args:
        others_follow: whether the fragment has other messages; if so, the result may be True by mistake.
    """
    oldest = await _next(receiver, 1)
    if oldest is None or oldest.sequence_number == 1:
        return oldest is not None
    if others_follow:
        return partition_of(oldest.sequence_number) > 0
    async for page in browse(receiver, 1, 1):
        if page:
            return True
    return False


async def _end(receiver: ServiceBusReceiver, first: int, max_width: int | None) -> int:
    """Return the number after the last message of a fragment, or `first + max_width` if that is less.

    Args:
        first: the number of a message.
    """
    fragment = partition_of(first)

    async def next_number(number: int) -> int | None:
        message = await _next(receiver, number)
        is_here = message is not None and partition_of(message.sequence_number) == fragment
        return message.sequence_number if message is not None and is_here else None

    low, high, step = first, None, 1
    if max_width is not None:
        high = first + max_width
        if await next_number(high) is not None:
            return high
    while high is None:
        number = await next_number(low + step)
        if number is None:
            high = low + step
        else:
            low, step = number, 2 * step
    while high - low > 1:
        middle = (low + high) // 2
        number = await next_number(middle)
        if number is None:
            high = middle
        else:
            low = number
    return low + 1
