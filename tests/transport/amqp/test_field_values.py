"""Each field of what a service sends, with the edges of its type and with values of other types.

Nothing but errors of this package reaches the caller, and nothing reaches the exception handler of the event loop.
The tests try a sample, and `FIELD_VALUES_STRIDE=1` all of them.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any, Final
from uuid import UUID

import pytest

from sbclient import NEXT_AVAILABLE_SESSION, ServiceBusMessage, clock
from sbclient.amqp.types import longs, timestamps
from sbclient.delivery import Settlement, SettleMode
from sbclient.errors import ServiceBusError
from sbclient.transport.amqp.connection import Sink
from sbclient.transport.amqp.transport import AmqpTransport
from tests.fuzz.field_values import frames_of, variants
from tests.payloads import batch_of, payload_of
from tests.transport.amqp.service import Service, ServiceEnd

STRIDE: Final = int(os.environ.get("FIELD_VALUES_STRIDE", "997"))
TIMEOUT_S: Final = 5.0


class ChangingService(Service):
    """Replaces one frame that it sends.

    Attributes:
        sent: its frames, until one is replaced.
        place: the number of the frame to replace; -1 = none.
        replacement: what is sent instead.
    """

    def __init__(self, place: int = -1, replacement: bytes = b"") -> None:
        super().__init__()
        self.sent: list[bytes] = []
        self.place = place
        self.replacement = replacement
        peeked = {"message": payload_of(ServiceBusMessage("x"))}
        self.replies |= {
            "com.microsoft:peek-message": lambda body: (200, None, {"messages": [peeked]}),
            "com.microsoft:schedule-message": lambda body: (200, None, {"sequence-numbers": longs([7])}),
            "com.microsoft:cancel-scheduled-message": lambda body: (200, None, None),
            "com.microsoft:renew-lock": lambda body: (200, None, {"expirations": timestamps([later()])}),
            "com.microsoft:renew-session-lock": lambda body: (200, None, {"expiration": later()}),
            "com.microsoft:get-session-state": lambda body: (200, None, {"session-state": b"x"}),
            "com.microsoft:get-message-sessions": lambda body: (200, None, {"sessions-ids": ["a"], "skip": 1}),
            "com.microsoft:receive-by-sequence-number": lambda body: (
                200,
                None,
                {"messages": [{**peeked, "lock-token": UUID(int=9)}]},
            ),
        }

    async def connect(self, sink: Sink) -> ServiceEnd:
        end = ChangingEnd(self, sink)
        self.ends.append(end)
        return end


class ChangingEnd(ServiceEnd):
    def flush(self) -> None:
        service: ChangingService = self.service  # type: ignore[assignment]  # made by that service
        for frame in frames_of(self.engine.bytes_to_send(now=clock.monotonic())):
            if len(service.sent) == service.place:
                frame = service.replacement
            service.sent.append(frame)
            if not self.is_closed:
                self.sink.on_bytes(frame)


def later() -> datetime:
    return datetime.fromtimestamp(clock.now() + 60, UTC)


def calls_of(transport: AmqpTransport, service: Service) -> list[Callable[[], Awaitable[object]]]:
    """Calls that make the service send every kind of frame."""
    sender, receiver = transport.open_sender("orders"), transport.open_receiver("orders", prefetch_count=2)
    session = transport.open_receiver("sessions", session=NEXT_AVAILABLE_SESSION)

    async def receive() -> None:
        message = ServiceBusMessage(
            "x", application_properties={"a": 1}, message_id="m", subject="s", content_type="c", correlation_id="i"
        )
        service.stored += [message, ServiceBusMessage("y")]
        for received in await receiver.receive(max_message_count=2, max_wait_time_s=TIMEOUT_S):
            repr(received), str(received), received.application_properties, received.raw_amqp_message
            for name in dir(type(received)):
                if not name.startswith("_") and not callable(getattr(type(received), name)):
                    getattr(received, name)
            await receiver.renew_lock(received, timeout_s=TIMEOUT_S)
            await receiver.settle(received, Settlement(SettleMode.COMPLETE), timeout_s=TIMEOUT_S)

    async def accept() -> None:
        await session.open(timeout_s=TIMEOUT_S)
        repr((session.session_id, session.session_locked_until_utc))
        await session.renew_session_lock(timeout_s=TIMEOUT_S)
        await session.get_session_state(timeout_s=TIMEOUT_S)
        await session.close()

    async def transact() -> None:
        transaction = await transport.begin_transaction(timeout_s=TIMEOUT_S)
        await sender.send(batch_of([ServiceBusMessage("x")]), timeout_s=TIMEOUT_S, transaction=transaction)
        await transaction.commit(timeout_s=TIMEOUT_S)

    return [
        lambda: sender.send(batch_of([ServiceBusMessage("x")]), timeout_s=TIMEOUT_S),
        receive,
        lambda: receiver.peek(max_message_count=1, sequence_number=1, timeout_s=TIMEOUT_S),
        lambda: receiver.receive_deferred([7], timeout_s=TIMEOUT_S),
        lambda: sender.schedule(batch_of([ServiceBusMessage("later")]), timeout_s=TIMEOUT_S),
        lambda: sender.cancel_scheduled([7], timeout_s=TIMEOUT_S),
        lambda: transport.list_sessions("sessions", state_updated_after=None, timeout_s=TIMEOUT_S),
        accept,
        transact,
    ]


async def run(service: ChangingService, *, is_good: bool = False) -> None:
    """Make all calls; each ends with a result or an error of this package."""
    transport = service.transport()
    try:
        for call in calls_of(transport, service):
            try:
                await call()
            except ServiceBusError:
                assert not is_good
    finally:
        await transport.close()


async def good_frames() -> list[bytes]:
    service = ChangingService()
    await run(service, is_good=True)
    return service.sent


@pytest.mark.promise("client.fields")
async def test_no_value_in_a_field_reaches_the_event_loop_or_the_caller(
    record_property: Callable[[str, object], None],
) -> None:
    unexpected: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unexpected.append(context))
    frames = await good_frames()
    places, count = set(), 0
    for number, (at, place, changed) in enumerate(
        (at, place, changed) for at, frame in enumerate(frames) for place, changed in variants(frame)
    ):
        places.add((at, place))
        if number % STRIDE and place != "0x12/1/13/1":  # the end of a session lock
            continue
        count += 1
        where = f"value {number} at {place} of frame {at}, instead of {frames[at].hex()}"
        try:
            await run(ChangingService(at, changed))
        except BaseException as error:
            error.add_note(f"{where}: {changed.hex()}")
            raise
        await clock.sleep(0)
        assert not unexpected, (where, changed.hex(), unexpected)
    assert len(places) > 300
    record_property("attacks", count)
    record_property("bytes", sum(map(len, frames)))


@pytest.mark.promise("client.fields")
@pytest.mark.parametrize("kind", [0x10, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x18, 0x40, 0x44])
async def test_every_performative_is_among_the_frames(kind: int) -> None:
    frames = await good_frames()
    assert any(frame[8:11] == bytes((0, 0x53, kind)) for frame in frames)
