"""A task that uses a namespace in memory without a pause does not block timers, sockets, signals or other threads.

Other clients did: https://github.com/mosquito/aio-pika/issues/315 and https://github.com/aio-libs/janus/issues/82.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime

import pytest

from sbclient import ServiceBusClient, ServiceBusMessage, ServiceBusReceiveMode, ServiceBusReceiver, ServiceBusSender
from sbclient.errors import MessageNotFoundError, MessageSizeExceededError
from sbclient.testing import drop_memory_host

pytestmark = pytest.mark.real_time

LONG_S = 20.0
"""The time after which a test fails, in seconds; it takes a few milliseconds if the task does not block the others."""

HOST = "fairness"
NEXT_CENTURY = datetime(2100, 1, 1, tzinfo=UTC)
TOO_MUCH = bytes(300_000)


@pytest.fixture
async def links() -> AsyncIterator[tuple[ServiceBusSender, ServiceBusReceiver]]:
    async with ServiceBusClient.from_connection_string(f"memory://{HOST}") as client:
        await client.administration.create_queue("q")
        deleting = ServiceBusReceiveMode.RECEIVE_AND_DELETE
        async with (
            client.get_queue_sender("q") as sender,
            client.get_queue_receiver("q", receive_mode=deleting) as receiver,
        ):
            yield sender, receiver
    drop_memory_host(HOST)


async def send(sender: ServiceBusSender, receiver: ServiceBusReceiver) -> None:
    await sender.send_messages(ServiceBusMessage(b"x"))


async def send_and_receive(sender: ServiceBusSender, receiver: ServiceBusReceiver) -> None:
    await sender.send_messages(ServiceBusMessage(b"x"))
    assert await receiver.receive_messages()


async def peek(sender: ServiceBusSender, receiver: ServiceBusReceiver) -> None:
    await receiver.peek_messages()


async def schedule(sender: ServiceBusSender, receiver: ServiceBusReceiver) -> None:
    await sender.schedule_messages(ServiceBusMessage(b"x"), NEXT_CENTURY)


async def cancel(sender: ServiceBusSender, receiver: ServiceBusReceiver) -> None:
    with suppress(MessageNotFoundError):
        await sender.cancel_scheduled_messages([1])


async def send_a_list(sender: ServiceBusSender, receiver: ServiceBusReceiver) -> None:
    await sender.send_messages([ServiceBusMessage(b"x"), ServiceBusMessage(b"y")])


async def send_too_much(sender: ServiceBusSender, receiver: ServiceBusReceiver) -> None:
    with suppress(MessageSizeExceededError):
        await sender.send_messages(ServiceBusMessage(TOO_MUCH))


Heard = Callable[[], None]


def timer(heard: Heard) -> None:
    asyncio.get_running_loop().call_later(0.005, heard)


def thread(heard: Heard) -> None:
    loop = asyncio.get_running_loop()
    threading.Timer(0.005, lambda: loop.call_soon_threadsafe(heard)).start()


def signal_of_process(heard: Heard) -> None:
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, heard)
    threading.Timer(0.005, lambda: os.kill(os.getpid(), signal.SIGUSR1)).start()


def data_of_socket(heard: Heard) -> None:
    ours, theirs = socket.socketpair()

    def read() -> None:
        asyncio.get_running_loop().remove_reader(ours)
        ours.close()
        theirs.close()
        heard()

    asyncio.get_running_loop().add_reader(ours, read)
    threading.Timer(0.005, lambda: theirs.send(b"x")).start()


@pytest.mark.parametrize("event", [timer, thread, signal_of_process, data_of_socket])
@pytest.mark.parametrize("operation", [send, send_a_list, send_too_much, send_and_receive, peek, schedule, cancel])
async def test_an_event_is_heard_while_a_task_never_waits(
    links: tuple[ServiceBusSender, ServiceBusReceiver],
    operation: Callable[[ServiceBusSender, ServiceBusReceiver], Awaitable[None]],
    event: Callable[[Heard], None],
) -> None:
    heard, end_at = asyncio.Event(), time.monotonic() + LONG_S
    event(heard.set)
    while not heard.is_set():
        await operation(*links)
        assert time.monotonic() < end_at, f"{operation.__name__} blocked it"


async def test_a_task_that_never_waits_can_be_cancelled_and_timed_out(
    links: tuple[ServiceBusSender, ServiceBusReceiver],
) -> None:
    async def work() -> None:
        end_at = time.monotonic() + LONG_S
        while time.monotonic() < end_at:
            await send_and_receive(*links)

    task = asyncio.create_task(work())
    asyncio.get_running_loop().call_later(0.005, task.cancel)
    with pytest.raises(asyncio.CancelledError):
        await task
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.005):
            await work()
