"""Each field of what a client sends, with the edges of its type and with values of other types.

Nothing reaches the exception handler of the event loop or the log of errors, and the connection ends in order.
The tests try a sample, and `FIELD_VALUES_STRIDE=1` all of them.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from random import Random
from typing import Any, Final
from uuid import UUID

import pytest

from sbclient import clock
from sbclient.amqp import ACCEPTED, RELEASED, Source, TransactionalState
from sbclient.amqp.types import Described, Int, Symbol, longs, uuids
from sbclient.broker.profile import PREM_2021, STD_2021
from sbclient.emulator.amqp.connection import serve_amqp
from sbclient.emulator.context import NamespaceContext
from sbclient.emulator.faults import WireFaults
from sbclient.emulator.sas import AuthorizationMode, Authorizer
from sbclient.entities import EntityKind
from sbclient.hosting.host import BrokerHost
from sbclient.message import ServiceBusMessage
from tests.emulator.amqp.client import Client, connected, create, put, received, wire
from tests.fuzz.field_values import frames_of, variants
from tests.payloads import payload_of

STRIDE: Final = int(os.environ.get("FIELD_VALUES_STRIDE", "997"))


def made_context(profile: Any) -> NamespaceContext:
    """A namespace with a queue, a queue with sessions, and a topic."""
    host = BrokerHost("contoso", random=Random(1), profile=profile)
    create(host, EntityKind.QUEUE, "q")
    create(host, EntityKind.QUEUE, "s", requires_session=True)
    create(host, EntityKind.TOPIC, "t")
    create(host, EntityKind.SUBSCRIPTION, "t", "a")
    put(host, "q", *map(str, range(8)))
    put(host, "s", "x", session_id="one")
    return NamespaceContext(
        host=host, authorizer=Authorizer(AuthorizationMode.NONE), wire_faults=WireFaults(Random(2)), random=Random(3)
    )


async def talk(client: Client) -> None:
    """Send every kind of frame and request that the server knows."""
    message = ServiceBusMessage(
        "x", application_properties={"a": 1}, message_id="m", subject="s", content_type="c", correlation_id="i"
    )
    assert await client.put_token("q") == 202
    sender = await client.sender("q", properties={"com.microsoft:timeout": 1_000})
    await client.send(sender, message)
    await client.send(sender, message, ServiceBusMessage("y", partition_key="k"))
    receiver = await client.receiver("q", credit=4, timeout_s=1.0)
    for state in (ACCEPTED, RELEASED):
        await client.settle(await received(client, receiver), state)
    coordinator = await client.coordinator()
    declared: Any = await client.declare(coordinator)
    await client.send(sender, message, state=TransactionalState(declared.txn_id))
    await client.discharge(coordinator, declared.txn_id)
    session = await client.receiver("s", filters={"com.microsoft:session-filter": None}, credit=1, timeout_s=1.0)
    await received(client, session)
    receiver.detach()
    payload = {"message": payload_of(message), "message-id": "m"}
    expression = {"expression": "a = 1"}
    named = {"session-id": "one"}
    for path, operation, body in (
        ("q", "peek-message", {"from-sequence-number": 1, "message-count": Int(2)}),
        ("q", "schedule-message", {"messages": [payload]}),
        ("q", "cancel-scheduled-message", {"sequence-numbers": longs([4])}),
        ("q", "renew-lock", {"lock-tokens": uuids([UUID(int=1)])}),
        ("q", "update-disposition", {"disposition-status": "completed", "lock-tokens": uuids([UUID(int=1)])}),
        (
            "q",
            "receive-by-sequence-number",
            {"sequence-numbers": longs([1]), "receiver-settle-mode": Int(1), "session-id": "x"},
        ),
        ("q", "batch-delete-messages", {"message-count": Int(1), "enqueued-time-utc": clock.now()}),
        ("s", "get-message-sessions", {"last-updated-time": 0, "skip": Int(0), "top": Int(1)}),
        ("s", "set-session-state", {**named, "session-state": b"x"}),
        ("s", "get-session-state", named),
        ("s", "renew-session-lock", named),
        ("t/Subscriptions/a", "add-rule", {"rule-name": "r", "rule-description": {"sql-filter": expression}}),
        (
            "t/Subscriptions/a",
            "add-rule",
            {
                "rule-name": "c",
                "rule-description": {
                    "correlation-filter": {"label": "x", "properties": {"a": 1}},
                    "sql-rule-action": expression,
                },
            },
        ),
        ("t/Subscriptions/a", "enumerate-rules", {"skip": Int(0), "top": Int(10)}),
        ("t/Subscriptions/a", "remove-rule", {"rule-name": "r"}),
    ):
        await client.ask(path, operation, body)
    selector = Described(Symbol("apache.org:selector-filter:string"), "a = 1")
    selected = client.session.attach_receiver(
        "selected", source=Source(address="q", filter={"jms-selector": selector}), rcv_settle_mode=1
    )
    await client.attached(selected)
    client.session.end()
    await client.close()


async def recorded(profile: Any) -> list[bytes]:
    """The frames of a whole connection."""
    async with connected(made_context(profile)) as client:
        written, write = bytearray(), client.pipe.write

        def record(data: bytes) -> None:
            written.extend(data)
            write(data)

        client.pipe.write = record  # type: ignore[method-assign]
        await talk(client)
    return list(frames_of(bytes(written)))


async def replay(profile: Any, frames: list[bytes]) -> None:
    """Send the frames to a new server, which ends the connection."""
    context = made_context(profile)
    near, far = wire()
    serving = asyncio.ensure_future(serve_amqp(far, context, b""))
    for frame in frames:
        near.write(frame)
        for _ in range(3):
            await clock.sleep(0)
    await clock.sleep(5)
    await near.close()
    await serving


@pytest.mark.promise("emulator.fields")
@pytest.mark.parametrize("profile", [STD_2021, PREM_2021], ids=lambda profile: profile.name)
async def test_no_value_in_a_field_reaches_the_event_loop_or_the_log(
    profile: Any, caplog: pytest.LogCaptureFixture, record_property: Callable[[str, object], None]
) -> None:
    unexpected: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unexpected.append(context))
    frames = await recorded(profile)
    await replay(profile, frames)
    places, count = set(), 0
    for number, (at, place, changed) in enumerate(
        (at, place, changed) for at, frame in enumerate(frames) for place, changed in variants(frame)
    ):
        places.add((at, place))
        if number % STRIDE:
            continue
        count += 1
        where = f"value {number} at {place} of frame {at}: {changed.hex()} instead of {frames[at].hex()}"
        try:
            await replay(profile, [*frames[:at], changed, *frames[at + 1 :]])
        except BaseException as error:
            error.add_note(where)
            raise
        assert not unexpected, (where, unexpected)
        assert not [each for each in caplog.records if each.levelno >= logging.ERROR], (where, caplog.text)
        caplog.clear()
    assert len(places) > 700
    record_property("attacks", count)
    record_property("bytes", sum(map(len, frames)))
