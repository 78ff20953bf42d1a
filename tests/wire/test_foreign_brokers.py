"""The AMQP transport against foreign brokers: Apache Qpid Broker-J and RabbitMQ, where they are installed.

`.ci/proofs brokers` fetches Broker-J; RabbitMQ comes from Debian's package `rabbitmq-server`. The tests replace what
only Service Bus has: the node for tokens, and lock tokens as delivery tags. Broker-J answers a settlement in a
transaction only after the discharge, and Service Bus before it, so the transactions here only send. The plugin of
RabbitMQ has neither transactions nor settlements that the broker confirms, so there the tests receive and delete.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from random import Random
from typing import NamedTuple
from uuid import UUID

import pytest
import pytest_asyncio

from sbclient import ServiceBusMessage
from sbclient.amqp import IncomingDelivery
from sbclient.delivery import ServiceBusReceiveMode, Settlement, SettleMode
from sbclient.message import ServiceBusReceivedMessage
from sbclient.rules.connection_string import parse_connection_string
from sbclient.transport.amqp import received
from sbclient.transport.amqp.tokens import Tokens
from sbclient.transport.amqp.transport import AmqpTransport, open_amqp_transport
from sbclient.transport.base import ReceiverLink, Transport
from tests.payloads import batch_of
from tests.wire import rabbitmq
from tests.wire.broker_j.running import installed, running
from tests.wire.maven import NotInstalledError

pytestmark = pytest.mark.real_time

WAIT_S = 20.0
COMPLETE = Settlement(SettleMode.COMPLETE)


class Broker(NamedTuple):
    """A running broker.

    Attributes:
        prefix: before the name of a queue in its address.
    """

    name: str
    port: int
    prefix: str


@pytest.fixture(scope="module", params=["broker-j", "rabbitmq"])
def broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    if request.param == "rabbitmq":
        with rabbitmq.running() as found:
            if found is None:
                pytest.skip("RabbitMQ is not installed")
            yield Broker(request.param, found.port, "/queue/")
        return
    try:
        jars = installed(may_fetch=False)
    except NotInstalledError as error:
        pytest.skip(str(error))
    with running(jars) as port:
        yield Broker(request.param, port, "")


@pytest_asyncio.fixture
async def transport(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[AmqpTransport]:
    async def ensure(self: Tokens, path: str) -> None:
        """Put no token: the broker has no `$cbs`."""

    def token_of(delivery: IncomingDelivery) -> UUID:
        return UUID(bytes=bytes(delivery.tag).rjust(16, b"0")[-16:])

    def management() -> Transport:
        raise AssertionError("the broker has no management")

    monkeypatch.setattr(Tokens, "ensure", ensure)
    monkeypatch.setattr(received, "token_of", token_of)
    connection = parse_connection_string(
        f"Endpoint=sb://127.0.0.1:{broker.port};SharedAccessKeyName=k;SharedAccessKey=a2V5;UseDevelopmentEmulator=true;"
    )
    transport = open_amqp_transport(connection, random=Random(1), management=management)
    yield transport
    await transport.close()


DELETING = ServiceBusReceiveMode.RECEIVE_AND_DELETE


def receiver_of(
    transport: AmqpTransport, path: str, mode: ServiceBusReceiveMode = ServiceBusReceiveMode.PEEK_LOCK
) -> ReceiverLink:
    return transport.open_receiver(path, session=None, receive_mode=mode, prefetch_count=0)


def locking(broker: Broker) -> None:
    """Skip the test if the broker does not confirm settlements."""
    if broker.name == "rabbitmq":
        pytest.skip("RabbitMQ does not confirm settlements")


async def taken(receiver: ReceiverLink, count: int) -> list[ServiceBusReceivedMessage]:
    messages: list[ServiceBusReceivedMessage] = []
    while len(messages) < count:
        some = await receiver.receive(max_message_count=count - len(messages), max_wait_time_s=WAIT_S)
        assert some, f"only {len(messages)} of {count} messages arrived"
        messages += some
    return messages


async def test_concurrent_sends_arrive_with_their_properties(transport: AmqpTransport, broker: Broker) -> None:
    sender = transport.open_sender(broker.prefix + "properties")
    await asyncio.gather(
        *(
            sender.send(
                batch_of(
                    [ServiceBusMessage(f"body {n}", message_id=str(n), subject="s", application_properties={"n": n})]
                ),
                timeout_s=WAIT_S,
            )
            for n in range(200)
        )
    )
    messages = await taken(receiver_of(transport, broker.prefix + "properties", DELETING), 200)
    assert {str(message) for message in messages} == {f"body {n}" for n in range(200)}
    assert all(message.application_properties == {"n": int(message.message_id or -1)} for message in messages)
    assert {message.subject for message in messages} == {"s"}


async def test_concurrent_settlements_remove_messages(transport: AmqpTransport, broker: Broker) -> None:
    locking(broker)
    sender = transport.open_sender("settled")
    await asyncio.gather(*(sender.send(batch_of([ServiceBusMessage(str(n))]), timeout_s=WAIT_S) for n in range(100)))
    receiver = receiver_of(transport, "settled")
    messages = await taken(receiver, 100)
    await asyncio.gather(*(receiver.settle(message, COMPLETE, timeout_s=WAIT_S) for message in messages))
    assert await receiver.receive(max_message_count=1, max_wait_time_s=0.5) == []


async def test_message_larger_than_a_frame_arrives_whole(transport: AmqpTransport, broker: Broker) -> None:
    body = bytes(range(256)) * 4096
    await transport.open_sender(broker.prefix + "large").send(batch_of([ServiceBusMessage(body)]), timeout_s=WAIT_S)
    (message,) = await taken(receiver_of(transport, broker.prefix + "large", DELETING), 1)
    assert b"".join(message.body) == body


async def test_abandoned_message_is_delivered_again(transport: AmqpTransport, broker: Broker) -> None:
    locking(broker)
    await transport.open_sender(broker.prefix + "abandoned").send(
        batch_of([ServiceBusMessage("again")]), timeout_s=WAIT_S
    )
    receiver = receiver_of(transport, broker.prefix + "abandoned")
    (first,) = await taken(receiver, 1)
    await receiver.settle(first, Settlement(SettleMode.ABANDON), timeout_s=WAIT_S)
    (second,) = await taken(receiver, 1)
    assert second.delivery_count == (first.delivery_count or 0) + 1
    await receiver.settle(second, COMPLETE, timeout_s=WAIT_S)


async def test_receive_and_delete_leaves_nothing(transport: AmqpTransport, broker: Broker) -> None:
    if broker.name == "rabbitmq":
        pytest.skip("RabbitMQ sometimes resets the connection when a link with credit is closed")
    sender = transport.open_sender(broker.prefix + "deleted")
    await asyncio.gather(*(sender.send(batch_of([ServiceBusMessage("x")]), timeout_s=WAIT_S) for _ in range(5)))
    receiver = receiver_of(transport, broker.prefix + "deleted", DELETING)
    assert len(await taken(receiver, 5)) == 5
    await receiver.close()
    assert (
        await receiver_of(transport, broker.prefix + "deleted", DELETING).receive(
            max_message_count=1, max_wait_time_s=0.5
        )
        == []
    )


async def test_transaction_stores_all_of_its_messages_or_none(transport: AmqpTransport, broker: Broker) -> None:
    if broker.name == "rabbitmq":
        pytest.skip("RabbitMQ has no transactions over AMQP 1.0")
    sender = transport.open_sender(broker.prefix + "transactions")
    receiver = receiver_of(transport, broker.prefix + "transactions")
    for is_committed in (False, True):
        transaction = await transport.begin_transaction(timeout_s=WAIT_S)
        for n in range(3):
            await sender.send(
                batch_of([ServiceBusMessage(f"{is_committed} {n}")]), timeout_s=WAIT_S, transaction=transaction
            )
        assert await receiver.receive(max_message_count=1, max_wait_time_s=0.5) == []
        await (transaction.commit if is_committed else transaction.rollback)(timeout_s=WAIT_S)
    assert sorted(map(str, await taken(receiver, 3))) == ["True 0", "True 1", "True 2"]


async def test_send_after_a_lost_connection_opens_another(transport: AmqpTransport, broker: Broker) -> None:
    sender = transport.open_sender(broker.prefix + "reconnected")
    await sender.send(batch_of([ServiceBusMessage("before")]), timeout_s=WAIT_S)
    connection = await transport.connection_for(broker.prefix + "reconnected")
    connection.on_lost(ConnectionResetError("cut by the test"))
    await sender.send(batch_of([ServiceBusMessage("after")]), timeout_s=WAIT_S)
    assert sorted(map(str, await taken(receiver_of(transport, broker.prefix + "reconnected", DELETING), 2))) == [
        "after",
        "before",
    ]
