from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from sbclient import MessageNotFoundError, ServiceBusMessage, clock
from sbclient.message import ServiceBusMessageState
from tests.contract.kinds import NamespaceKind


def in_seconds(kind: NamespaceKind, seconds: float) -> datetime:
    return datetime.fromtimestamp(clock.now() + seconds, tz=UTC)


@pytest.mark.parametrize("way", ["send", "schedule"])
async def test_a_scheduled_message_is_not_seen_before_its_time(kind: NamespaceKind, way: str) -> None:
    queue, other = await kind.queue(), await kind.queue()

    async def schedule(at: datetime, queue: str) -> None:
        async with kind.plain.get_queue_sender(queue) as sender:
            if way == "send":
                await sender.send_messages(ServiceBusMessage("x", scheduled_enqueue_time_utc=at))
            else:
                await sender.schedule_messages(ServiceBusMessage("x"), at)

    at = in_seconds(kind, 3600.0)
    await schedule(at, other)
    async with kind.plain.get_queue_receiver(other) as receiver:
        (waiting,) = await receiver.peek_messages(5, sequence_number=1)
        assert waiting.state is ServiceBusMessageState.SCHEDULED
        assert waiting.scheduled_enqueue_time_utc is not None
        assert abs(waiting.scheduled_enqueue_time_utc - at) < timedelta(milliseconds=1)
    at = in_seconds(kind, 2.0)
    await schedule(at, queue)
    async with kind.plain.get_queue_receiver(queue) as receiver:
        (message,) = await receiver.receive_messages(1, max_wait_time=kind.patience_s)
        assert str(message) == "x"
        assert clock.now() >= at.timestamp() - 0.01
        await receiver.complete_message(message)


async def test_scheduled_messages_can_be_cancelled(kind: NamespaceKind) -> None:
    queue = await kind.queue()
    async with kind.plain.get_queue_sender(queue) as sender, kind.plain.get_queue_receiver(queue) as receiver:
        messages = [ServiceBusMessage(str(number), time_to_live=timedelta(minutes=7)) for number in range(3)]
        numbers = await sender.schedule_messages(messages, in_seconds(kind, 3600.0))
        assert len(set(numbers)) == 3
        await sender.cancel_scheduled_messages([numbers[0], numbers[2]])
        (left,) = await receiver.peek_messages(5, sequence_number=1)
        assert (str(left), left.sequence_number, left.time_to_live) == ("1", numbers[1], timedelta(minutes=7))
        with pytest.raises(MessageNotFoundError):
            await sender.cancel_scheduled_messages(numbers[0])
        await sender.cancel_scheduled_messages(numbers[1])
        await sender.cancel_scheduled_messages([])
        assert await receiver.peek_messages(5, sequence_number=1) == []
