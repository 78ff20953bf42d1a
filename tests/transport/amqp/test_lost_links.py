"""What lost links leave, in random histories: no deleted message is lost, and no result says what is not true."""

from __future__ import annotations

import asyncio
from itertools import count
from random import Random
from typing import Any
from uuid import UUID

import pytest

from sbclient import clock
from sbclient.amqp import DispositionReceived, IncomingDelivery
from sbclient.delivery import ServiceBusReceiveMode, Settlement, SettleMode
from sbclient.errors import ServiceBusError
from sbclient.message import ServiceBusMessage, ServiceBusReceivedMessage
from sbclient.testing import VirtualLoop
from sbclient.transport.amqp.connection import Sink
from sbclient.transport.amqp.receiver import AmqpReceiver
from sbclient.transport.amqp.sender import AmqpSender
from tests.payloads import batch_of
from tests.transport.amqp.service import Service, ServiceEnd, accept, confirm

COMPLETE = Settlement(SettleMode.COMPLETE)


class NumberedService(Service):
    """Gives each message another token, on all connections."""

    async def connect(self, sink: Sink) -> ServiceEnd:
        end = await super().connect(sink)
        end._tags = 1000 * len(self.ends)
        return end


class History:
    """Calls of one receiver and one sender, and what the service has done.

    Attributes:
        sent: the names of the messages that the service has handed out.
        returned: those that calls have returned.
        done: the tokens of messages that the service has settled, and the texts of messages that it has stored.
    """

    def __init__(self, seed: int, mode: ServiceBusReceiveMode) -> None:
        self.random = Random(seed)
        self.service = NumberedService()
        self.transport = self.service.transport()
        self.receiver: AmqpReceiver = self.transport.open_receiver("orders", receive_mode=mode)
        self.sender: AmqpSender = self.transport.open_sender("copies")
        self.names = count()
        self.may_cut = True
        self.stored: list[str] = []
        self.returned: list[str] = []
        self.held: list[ServiceBusReceivedMessage] = []
        self.started: list[asyncio.Future[None]] = []
        self.done: set[Any] = set()
        self.service.on_disposition = self.on_disposition
        self.service.on_transfer = self.on_transfer
        self.service.replies["com.microsoft:update-disposition"] = self.on_update

    def cut(self) -> None:
        if self.may_cut and self.service.ends and not self.service.end.is_deaf:
            self.service.end.cut()

    def on_disposition(self, event: DispositionReceived) -> None:
        self.done.add(UUID(bytes_le=bytes(event.delivery.tag)))
        if self.random.random() < 0.3:
            self.cut()
        else:
            confirm(event)

    def on_transfer(self, delivery: IncomingDelivery) -> None:
        self.done.add(bytes(delivery.payload))
        if self.random.random() < 0.3:
            self.cut()
        else:
            accept(delivery)

    def on_update(self, body: Any) -> Any:
        if self.random.random() < 0.5:
            return (410, "com.microsoft:message-lock-lost", None)
        self.done.update(getattr(body["lock-tokens"], "items", body["lock-tokens"]))
        return (200, None, {})

    async def step(self) -> None:
        match self.random.randrange(7):
            case 0 | 1:
                self.store()
            case 2:
                await self.receive(self.random.randrange(1, 4))
            case 3:
                receiving = asyncio.ensure_future(self.receive(3))
                await clock.sleep(self.random.choice([0, 0.1]))
                receiving.cancel()
                await asyncio.wait([receiving])
            case 4:
                self.cut()
            case 5:
                held = [self.held.pop() for _ in range(min(len(self.held), 2))]
                if held and self.random.random() < 0.2:  # each call ends, though another one settles the same message
                    calls = [
                        asyncio.ensure_future(self.receiver.settle(held[0], COMPLETE, timeout_s=10)) for _ in range(3)
                    ]
                    assert not await clock.wait(calls, 20)
                    await asyncio.gather(*calls, return_exceptions=True)
                    held.clear()
                settling = [self.settle(each) for each in held]
                working = asyncio.gather(*settling, self.send(str(next(self.names))))
                if self.random.random() < 0.4:
                    await asyncio.sleep(0)
                    self.cut()
                await working
            case _:
                await clock.sleep(0.3)

    def store(self) -> None:
        name = str(next(self.names))
        self.stored.append(name)
        self.service.stored.append(ServiceBusMessage(name))
        if self.service.ends and not self.service.end.is_deaf:
            if "orders" in self.service.end.links:
                self.service.end.serve(self.service.end.link("orders"))
            self.service.end.flush()

    async def receive(self, at_most: int) -> None:
        try:
            messages = await self.receiver.receive(max_message_count=at_most, max_wait_time_s=0.2)
        except ServiceBusError:
            return
        self.returned += map(str, messages)
        self.held += messages

    async def settle(self, message: ServiceBusReceivedMessage) -> None:
        if message.lock_token is not None:
            settling = self.receiver.settle(message, COMPLETE, timeout_s=10)
            await self.judge(settling, lambda: message.lock_token in self.done)

    async def send(self, text: str) -> None:
        batch = batch_of([ServiceBusMessage(text, message_id=text)])
        await self.judge(self.sender.send(batch, timeout_s=10), lambda: bytes(batch.payload) in self.done)

    async def judge(self, operation: Any, has_happened: Any) -> None:
        result: Any = (await asyncio.gather(operation, return_exceptions=True))[0]
        if result is None:
            assert has_happened()
        else:
            assert isinstance(result, ServiceBusError)
            assert result.is_in_doubt or not has_happened(), result

    async def end(self) -> None:
        self.transport.enter_loop()
        for _ in range(100):
            before = len(self.returned)
            await self.receive(10)
            if len(self.returned) == before and not self.service.stored:
                break
        await self.transport.close()


@pytest.mark.parametrize("mode", ServiceBusReceiveMode)
async def test_calls_tell_what_the_service_did_though_links_are_lost(mode: ServiceBusReceiveMode) -> None:
    for seed in range(50):
        history = History(seed, mode)
        for _ in range(25):
            await history.step()
        await history.end()
        assert len(set(history.returned)) == len(history.returned)
        if mode is ServiceBusReceiveMode.RECEIVE_AND_DELETE:
            assert sorted(history.returned) == sorted(history.stored), seed


@pytest.mark.parametrize("mode", ServiceBusReceiveMode)
def test_calls_tell_what_the_service_did_though_event_loops_end(mode: ServiceBusReceiveMode) -> None:
    """Each loop stops while calls are under way; the next one waits for nothing of it, and loses nothing."""
    for seed in range(20):
        history = History(seed, mode)
        loops: list[VirtualLoop] = []
        for _ in range(3):
            loops.append(VirtualLoop(epoch=1_700_000_000.0))
            loops[-1].run_until_complete(live_in_one_loop(history))
            for end in history.service.ends:
                end.is_deaf = True  # its timers belong to the loop
            for loop in loops[:-1]:  # the calls of an earlier loop end when a later one has begun
                loop.run_until_complete(end_tasks())
        loops.append(VirtualLoop(epoch=1_700_000_000.0))
        loops[-1].run_until_complete(history.end())
        for loop in loops:
            loop.run_until_complete(end_tasks())
            loop.close()
        assert len(set(history.returned)) == len(history.returned)
        if mode is ServiceBusReceiveMode.RECEIVE_AND_DELETE:
            assert sorted(history.returned) == sorted(history.stored), seed


async def live_in_one_loop(history: History) -> None:
    """Some calls that end, and some that are under way when the loop stops."""
    history.transport.enter_loop()
    assert (history.receiver.is_open, history.sender.is_open) == (False, False)
    began_at = clock.monotonic()
    for _ in range(8):
        await history.step()
    assert clock.monotonic() - began_at < 60.0
    history.may_cut = False  # what the service has not written yet would be lost with the connection
    history.started = [
        asyncio.ensure_future(work) for work in (history.receive(3), history.send(str(next(history.names))))
    ]
    await clock.sleep(history.random.choice([0, 0.1]))
    history.store()
    if history.random.random() < 0.5:
        history.started[0].cancel()
    history.may_cut = True


async def end_tasks() -> None:
    """Cancel what is left in the running loop."""
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
