"""A FastAPI application that sends in its requests and receives in its lifespan.

Run it with `SERVICEBUS_CONNECTION_STRING=… uvicorn orders_api:app --app-dir examples/web`, and with
`SERVICEBUS_SECONDARY_CONNECTION_STRING` for a paired namespace. When it is stopped, uvicorn lets the requests end, the
receiver completes the message at hand, and messages that it has not begun stay in the queue.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, HTTPException

from sbclient import ServiceBusClient, ServiceBusError, ServiceBusMessage

QUEUE = "orders"
log = logging.getLogger(__name__)


async def handle_orders(app: FastAPI, client: ServiceBusClient, stopping: asyncio.Event) -> None:
    async with client.get_queue_receiver(QUEUE) as receiver:
        while not stopping.is_set():
            try:
                for order in await receiver.receive_messages(max_message_count=1, max_wait_time=1):
                    await asyncio.sleep(0.2)  # the work
                    await receiver.complete_message(order)
                    app.state.handled += 1
            except ServiceBusError as error:  # an outage: receivers are not diverted, and must not end the application
                log.warning("cannot receive orders: %s", error)
                await asyncio.sleep(1)


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    primary = os.environ["SERVICEBUS_CONNECTION_STRING"]
    secondary = os.environ.get("SERVICEBUS_SECONDARY_CONNECTION_STRING")
    app.state.handled = 0
    stopping = asyncio.Event()
    async with (
        ServiceBusClient.from_connection_string(primary, secondary=secondary) as client,
        client.get_queue_sender(QUEUE) as app.state.sender,
        asyncio.TaskGroup() as tasks,
    ):
        tasks.create_task(handle_orders(app, client, stopping))
        yield
        stopping.set()


app = FastAPI(lifespan=lifespan)


@app.post("/orders", status_code=202)
async def send_order(order: dict[str, Any]) -> dict[str, str | None]:
    message = ServiceBusMessage(json.dumps(order), content_type="application/json")
    try:
        await app.state.sender.send_messages(message)
    except ServiceBusError as error:
        raise HTTPException(503, "the order was not accepted: send it again") from error
    return {"id": message.message_id}


@app.get("/orders")
async def count_orders() -> dict[str, int]:
    return {"handled": app.state.handled}
