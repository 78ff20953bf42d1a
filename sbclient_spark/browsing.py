"""Peeks ranges of sequence numbers, and finds where the messages of each fragment begin and end.

The upper 16 bits of a sequence number are the fragment of a partitioned entity, 0 on any other. A peek from a number
returns the next message of that fragment; behind the last one it continues in any other fragment. A peek from 1 may
start in any fragment, so message 1 of fragment 0 of a partitioned entity is found only by browsing everything.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from datetime import datetime
from itertools import islice, pairwise
from typing import Final, NamedTuple, TypeAlias

from sbclient.client.client import ServiceBusClient
from sbclient.client.receiver import ServiceBusReceiver
from sbclient.delivery import ServiceBusSubQueue
from sbclient.entities import QueueProperties, SubscriptionProperties
from sbclient.errors import MessagingEntityNotFoundError, ServiceBusError
from sbclient.message import ServiceBusReceivedMessage
from sbclient.rules.entity_path import split_subscription
from sbclient_spark.read_options import SubQueueWord

PAGE: Final = 250
FRAGMENTS: Final = 16
"""The usual number of fragments; further ones are found by browsing."""

FRAGMENT_BITS: Final = 48

Pages: TypeAlias = AsyncGenerator[list[ServiceBusReceivedMessage], None]
"""Messages in pages, some of which may be empty."""


class Extent(NamedTuple):
    """The messages of one fragment: the lowest number present, and the number behind the highest one."""

    first: int
    end: int


def fragment_of(number: int) -> int:
    """Return the fragment of a sequence number."""
    return number >> FRAGMENT_BITS


def first_of(fragment: int) -> int:
    """Return the lowest sequence number of a fragment."""
    return max(fragment << FRAGMENT_BITS, 1)


def divided(ranges: Sequence[tuple[int, int]], count: int) -> list[tuple[int, int]]:
    """Divide ranges of numbers, whose end is exclusive, into at least `count` ranges of similar width, if possible."""
    width = max(sum(end - first for first, end in ranges) // max(count, 1), 1)
    found: list[tuple[int, int]] = []
    for first, end in ranges:
        parts = max(-(-(end - first) // width), 1)
        bounds = [first + (end - first) * part // parts for part in range(parts + 1)]
        found += [(low, high) for low, high in pairwise(bounds) if high > low]
    return found


def open_receiver(
    client: ServiceBusClient, path: str, word: SubQueueWord = "none", session_id: str | None = None
) -> ServiceBusReceiver:
    """Return a receiver of a queue or, given `topic/Subscriptions/name` in any case of letters, of a subscription."""
    sub_queue = {
        "none": None,
        "deadletter": ServiceBusSubQueue.DEAD_LETTER,
        "transferDeadletter": ServiceBusSubQueue.TRANSFER_DEAD_LETTER,
    }[word]
    if (names := split_subscription(path)) is not None:
        topic, subscription = names
        return client.get_subscription_receiver(topic, subscription, sub_queue=sub_queue, session_id=session_id)
    return client.get_queue_receiver(path, sub_queue=sub_queue, session_id=session_id)


class EntityFacts(NamedTuple):
    """What is known about a queue or subscription; None = unknown, for want of a right or in an outage.

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


async def browse(receiver: ServiceBusReceiver, first: int, last: int | None = None) -> Pages:
    """Yield the messages of a range of numbers in pages, some of which may be empty.

    Args:
        first, last: inclusive; `last` None = to the end of the entity.
    """
    number = max(first, 1)
    was_seen = number > 1  # from 1, the service may start in any fragment: the range ends after it was seen
    while page := await receiver.peek_messages(PAGE, sequence_number=number):
        if last is not None and was_seen and fragment_of(page[0].sequence_number) != fragment_of(last):
            return
        number = page[-1].sequence_number + 1
        wanted = [one for one in page if first <= one.sequence_number and (last is None or one.sequence_number <= last)]
        was_seen = was_seen or bool(wanted)
        yield wanted
        if last is not None and number > last and was_seen:
            return


async def ahead(sources: Iterable[Pages], at_once: int = 1) -> Pages:
    """Yield the pages of several sources, each of which fetches its next page while the caller handles the last one.

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
    begins: Mapping[int, int],
    *,
    is_partitioned: bool | None,
    lowest: int = 1,
    most: int | None = None,
) -> dict[int, Extent]:
    """Return the extents of all fragments that have messages.

    The number of peeks grows with the logarithm of the number of messages.

    Args:
        begins: the number from which each fragment is looked at.
        is_partitioned: whether there may be several fragments; None = unknown.
        lowest: the number for all other fragments.
        most: look no further than this many numbers behind the first message of a fragment.
    """
    found: dict[int, Extent] = {}
    seen: set[int] = set()
    fragments = {0, *begins} if is_partitioned is False else {*range(FRAGMENTS + 1), *begins}
    while fragments:
        fragment = min(fragments)
        seen.add(fragment)
        begin = max(begins.get(fragment, lowest), first_of(fragment))
        message = await _next(receiver, max(begin, 2))
        here = None if message is None else fragment_of(message.sequence_number)
        if begin == 1 and await _may_have_message_1(receiver, others_follow=here == 0):
            found[0] = Extent(1, await _end(receiver, 1, most) if here == 0 else 2)
        elif message is not None and here == fragment:
            found[fragment] = Extent(message.sequence_number, await _end(receiver, message.sequence_number, most))
        fragments |= {fragment + 1} if fragment > FRAGMENTS - 1 and fragment in found else set()
        fragments |= {here} if here is not None else set()  # one that was not known
        fragments -= seen
    return found


async def _next(receiver: ServiceBusReceiver, number: int) -> ServiceBusReceivedMessage | None:
    """Return the first message from a number on; it may be in a later fragment."""
    page = await receiver.peek_messages(1, sequence_number=number)
    return page[0] if page else None


async def _may_have_message_1(receiver: ServiceBusReceiver, *, others_follow: bool) -> bool:
    """Whether message 1 of fragment 0 is there.

    Args:
        others_follow: whether the fragment has other messages; then the answer may be wrongly True.
    """
    oldest = await _next(receiver, 1)
    if oldest is None or oldest.sequence_number == 1:
        return oldest is not None
    if others_follow:
        return fragment_of(oldest.sequence_number) > 0
    async for page in browse(receiver, 1, 1):
        if page:
            return True
    return False


async def _end(receiver: ServiceBusReceiver, first: int, most: int | None) -> int:
    """Return the number behind the last message of a fragment, or `first` + `most` if that is less.

    Args:
        first: the number of a message.
    """
    fragment = fragment_of(first)

    async def at_least(number: int) -> int | None:
        message = await _next(receiver, number)
        is_here = message is not None and fragment_of(message.sequence_number) == fragment
        return message.sequence_number if message is not None and is_here else None

    low, high, step = first, None, 1
    if most is not None:
        high = first + most
        if await at_least(high) is not None:
            return high
    while high is None:
        number = await at_least(low + step)
        if number is None:
            high = low + step
        else:
            low, step = number, 2 * step
    while high - low > 1:
        middle = (low + high) // 2
        number = await at_least(middle)
        if number is None:
            high = middle
        else:
            low = number
    return low + 1
