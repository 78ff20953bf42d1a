"""A service that breaks the protocol: every call ends in time with an error of the right class and the right doubt."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable
from contextlib import suppress
from random import Random
from typing import Any

import pytest

from sbclient import NEXT_AVAILABLE_SESSION, ServiceBusMessage, clock
from sbclient.amqp import ACCEPTED, AmqpError, Declared, Rejected, TransactionalState
from sbclient.amqp.errors import UNAUTHORIZED
from sbclient.amqp.frames import AMQP_HEADER, SASL_HEADER
from sbclient.amqp.states import Received
from sbclient.delivery import Settlement, SettleMode
from sbclient.errors import (
    OperationTimeoutError,
    ServiceBusAuthorizationError,
    ServiceBusCommunicationError,
    ServiceBusConnectionError,
    ServiceBusError,
)
from sbclient.transport.amqp.connection import Sink
from sbclient.transport.amqp.transport import AmqpTransport
from tests.fuzz.amqp_engine import Author
from tests.payloads import batch_of
from tests.transport.amqp.service import Service, ServiceEnd, hold

TIMEOUT_S = 5.0
MARGIN_S = 3.0
RECEIVE_MARGIN_S = 20.0
"""The wait of a receive call begins when its link is attached."""

SEEDS = 40


class HostileEnd(ServiceEnd):
    """Sends damaged and foreign frames among its own, loses some, and breaks off."""

    def flush(self) -> None:
        hostile: HostileService = self.service  # type: ignore[assignment]  # made by that service
        random = hostile.random
        out = self.engine.bytes_to_send(now=clock.monotonic())
        if self.is_closed or self.is_deaf:
            return
        if out and random.random() < hostile.malice:
            author = Author(random)
            kind = random.randrange(6)
            if kind == 0:
                out = author.damaged(out)
            elif kind == 1:
                out = b""
            elif kind == 2:
                self.cut()
                return
            else:
                foreign = b"".join(author.any_frame() for _ in range(random.randint(1, 3)))
                out = out + foreign if random.random() < 0.5 else foreign + out
        if out:
            self.sink.on_bytes(out)


class HostileService(Service):
    """A service whose connections are hostile.

    Attributes:
        malice: the share of writes that are.
    """

    def __init__(self, random: Random) -> None:
        super().__init__()
        self.random = random
        self.malice = random.choice((0.03, 0.1, 0.4))
        self.on_transfer = self._answer

    async def connect(self, sink: Sink) -> ServiceEnd:
        end = HostileEnd(self, sink)
        self.ends.append(end)
        return end

    def _answer(self, delivery: Any) -> None:
        if self.random.random() < self.malice:
            odd = [None, Declared(b"1"), Received(0, 1), TransactionalState(b"x", ACCEPTED), Rejected(None)]
            delivery.settle(self.random.choice(odd), settled=self.random.random() < 0.5)
        elif self.random.random() > self.malice / 2:
            state = delivery.state
            is_transactional = isinstance(state, TransactionalState)
            delivery.settle(TransactionalState(state.txn_id, ACCEPTED) if is_transactional else ACCEPTED)


class Caller:
    """Calls of all kinds to one transport.

    Attributes:
        not_sent: the bodies of messages that, by their errors, never left.
    """

    def __init__(self, transport: AmqpTransport, service: HostileService, random: Random) -> None:
        self.transport = transport
        self.service = service
        self.random = random
        self.sender = transport.open_sender("orders")
        self.receiver = transport.open_receiver("orders", prefetch_count=random.choice((0, 4)))
        self.count = 0
        self.not_sent: list[str] = []

    def any_call(self) -> Awaitable[None]:
        calls: list[Callable[[], Awaitable[None]]] = [
            self.send,
            self.send,
            self.receive,
            self.receive,
            self.schedule,
            self.peek,
            self.accept_session,
            self.transact,
        ]
        return self.in_time(self.random.choice(calls))

    async def in_time(self, call: Callable[[], Awaitable[None]]) -> None:
        """Make a call; it ends in time, with an error of this package if with any."""
        began_at = clock.monotonic()
        with suppress(ServiceBusError):
            await call()
        margin_s = RECEIVE_MARGIN_S if call == self.receive else MARGIN_S
        assert clock.monotonic() - began_at <= TIMEOUT_S + margin_s, call

    async def send(self) -> None:
        self.count += 1
        body = f"<uid {self.count}>"
        message = ServiceBusMessage(body, session_id=self.random.choice((None, "k")))
        try:
            await self.sender.send(batch_of([message]), timeout_s=TIMEOUT_S)
        except (OperationTimeoutError, ServiceBusConnectionError) as error:
            if not error.is_in_doubt:
                self.not_sent.append(body)

    async def receive(self) -> None:
        self.service.stored += [ServiceBusMessage("stored") for _ in range(3)]
        messages = await self.receiver.receive(max_message_count=5, max_wait_time_s=TIMEOUT_S)
        settlement = Settlement(self.random.choice(list(SettleMode)))
        outcomes = await asyncio.gather(
            *(self.receiver.settle(message, settlement, timeout_s=TIMEOUT_S) for message in messages),
            return_exceptions=True,
        )
        unexpected = [one for one in outcomes if one is not None and not isinstance(one, ServiceBusError)]
        assert not unexpected

    async def schedule(self) -> None:
        await self.sender.schedule(batch_of([ServiceBusMessage("later")]), timeout_s=TIMEOUT_S)

    async def peek(self) -> None:
        await self.receiver.peek(max_message_count=1, sequence_number=1, timeout_s=TIMEOUT_S)

    async def accept_session(self) -> None:
        receiver = self.transport.open_receiver("sessions", session=NEXT_AVAILABLE_SESSION)
        try:
            await receiver.open(timeout_s=TIMEOUT_S / 2)
        finally:
            await receiver.close()

    async def transact(self) -> None:
        transaction = await self.transport.begin_transaction(timeout_s=TIMEOUT_S)
        await self.sender.send(batch_of([ServiceBusMessage("x")]), timeout_s=TIMEOUT_S / 2, transaction=transaction)
        await transaction.commit(timeout_s=TIMEOUT_S / 2)


@pytest.mark.promise("client.malformed-amqp")
@pytest.mark.parametrize("first", range(0, SEEDS, 20))
async def test_calls_end_in_time_for_any_responses(first: int) -> None:
    for seed in range(first, first + 20):
        random = Random(f"hostile {seed}")
        service = HostileService(random)
        transport = service.transport()
        caller = Caller(transport, service, random)
        for _ in range(6):
            calls = [asyncio.ensure_future(caller.any_call()) for _ in range(random.randint(1, 5))]
            if random.random() < 0.3:
                await clock.sleep(random.random() * 2)
                random.choice(calls).cancel()
            for outcome in await asyncio.gather(*calls, return_exceptions=True):
                assert outcome is None or isinstance(outcome, asyncio.CancelledError), (seed, outcome)
        written = b"".join(bytes(end.written) for end in service.ends)
        assert not [body for body in caller.not_sent if body.encode() in written], seed
        service.malice = 0.0
        for attempt in range(3):
            try:
                await transport.open_sender("orders").send(batch_of([ServiceBusMessage("again")]), timeout_s=TIMEOUT_S)
                break
            except ServiceBusError:
                assert attempt < 2, f"seed {seed}: the transport is not usable any more"
                await clock.sleep(10)
        began_at = clock.monotonic()
        await transport.close()
        assert clock.monotonic() - began_at < 10


@pytest.mark.parametrize("outcome", [None, Received(0, 0), Declared(b"1"), Rejected(None)])
async def test_outcome_that_no_send_can_have_is_no_success(outcome: Any) -> None:
    service = Service()
    service.on_transfer = lambda delivery: delivery.settle(outcome)
    transport = service.transport()
    sender = transport.open_sender("orders")
    with pytest.raises(ServiceBusError):
        await sender.send(batch_of([ServiceBusMessage("x")]), timeout_s=TIMEOUT_S)
    await transport.close()


@pytest.mark.parametrize("numbers", [None, "7", [], [None], ["7"], [[7]], {"7": 7}])
async def test_reply_without_sequence_numbers_is_an_error(numbers: Any) -> None:
    service = Service()
    service.replies["com.microsoft:schedule-message"] = lambda body: (200, None, {"sequence-numbers": numbers})
    transport = service.transport()
    sender = transport.open_sender("orders")
    with pytest.raises(ServiceBusCommunicationError, match="0 sequence numbers came for 1 messages"):
        await sender.schedule(batch_of([ServiceBusMessage("x")]), timeout_s=TIMEOUT_S)
    await transport.close()


async def test_link_that_loses_its_right_leaves_transfers_in_doubt() -> None:
    service = Service()
    service.on_transfer = hold
    transport = service.transport()
    sending = transport.open_sender("orders").send(batch_of([ServiceBusMessage("x")]), timeout_s=TIMEOUT_S)
    await clock.sleep(1)
    service.end.link("orders").detach(AmqpError(UNAUTHORIZED, "the token has expired"))
    service.end.flush()
    with pytest.raises(ServiceBusAuthorizationError) as raised:
        await sending
    assert raised.value.is_in_doubt
    service.on_transfer = lambda delivery: delivery.settle(ACCEPTED)
    await transport.open_sender("orders").send(batch_of([ServiceBusMessage("x")]), timeout_s=TIMEOUT_S)
    await transport.close()


@pytest.mark.promise("client.limits")
@pytest.mark.parametrize("opening", [b"", SASL_HEADER, AMQP_HEADER])
async def test_huge_frame_before_the_open_ends_the_connection_at_once(opening: bytes) -> None:
    """Only the eight bytes of its header are read."""

    class HugeEnd(ServiceEnd):
        def flush(self) -> None:
            if not self.is_deaf:
                self.is_deaf = True
                kind = 1 if opening == SASL_HEADER else 0
                self.sink.on_bytes(opening + struct.pack(">IBBH", 2**31, 2, kind, 0) + bytes(2**16))

    class HugeService(Service):
        async def connect(self, sink: Sink) -> ServiceEnd:
            end = HugeEnd(self, sink)
            self.ends.append(end)
            return end

    transport = HugeService().transport()
    began_at = clock.monotonic()
    with pytest.raises(ServiceBusError) as raised:
        await transport.open_sender("orders").send(batch_of([ServiceBusMessage("x")]), timeout_s=TIMEOUT_S)
    assert not raised.value.is_in_doubt
    assert clock.monotonic() - began_at < 1
    await transport.close()
