"""A FastStream application: a queue, a topic, a failing handler, a schedule, and a request with its reply."""

from __future__ import annotations

import asyncio
import os
import sys
from datetime import UTC, datetime, timedelta

from faststream import AckPolicy
from faststream_azure_servicebus import ServiceBusBroker

broker = ServiceBusBroker(os.environ["CONNECTION_STRING"])
seen: list[str] = []
attempts: list[int] = []
is_complete = asyncio.Event()


def note(what: str) -> None:
    seen.append(what)
    if len(seen) == 103:
        is_complete.set()


@broker.subscriber(queue="orders", max_workers=4, prefetch_count=8)
async def on_order(body: dict[str, int]) -> None:
    note(f"order {body['number']}")


@broker.subscriber(topic="events", subscription="billing")
async def on_event(body: str) -> None:
    note(f"event {body}")


@broker.subscriber(queue="unreliable", ack_policy=AckPolicy.NACK_ON_ERROR)
async def on_unreliable(body: int) -> None:
    attempts.append(body)
    if len(attempts) < 3:
        raise RuntimeError("an attempt that fails")
    note("unreliable")


@broker.subscriber(queue="commands")
async def on_command(body: dict[str, int]) -> dict[str, int]:
    return {"answer": body["value"] * 2}


async def main() -> None:
    await broker.start()
    try:
        for number in range(100):
            await broker.publish({"number": number}, queue="orders")
        await broker.publish("created", topic="events")
        await broker.publish(7, queue="unreliable")
        soon = datetime.now(UTC) + timedelta(seconds=2)
        await broker.publish({"number": 100}, queue="orders", scheduled_enqueue_time=soon)
        async with asyncio.timeout(60):
            await is_complete.wait()
        reply = await broker.request({"value": 21}, queue="commands", reply_to="replies", timeout=30)
        expected = {"event created", "unreliable", *(f"order {number}" for number in range(101))}
        answer = await reply.decode()
        found = {
            "messages": set(seen) == expected,
            "retries": attempts == [7, 7, 7],
            "request": answer == {"answer": 42},
        }
        sys.stdout.writelines(f"{'ok' if is_ok else 'failed'} {name}\n" for name, is_ok in found.items())
    finally:
        await broker.stop()


asyncio.run(main())
