"""Our AMQP client with the brokers of other makers: `python -m pytest -n0 -rs tests/wire/foreign_brokers.py`.

They have no tokens, no lock tokens and no management nodes, so this uses the parts of the transport below those.
Not collected with the other tests: `.ci/proofs foreign` runs it. A broker that is not installed is skipped.
"""

from __future__ import annotations

import asyncio
import shutil
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from sbclient import ServiceBusMessage
from sbclient.amqp import (
    ACCEPTED,
    RELEASED,
    ConnectionOptions,
    DispositionReceived,
    IncomingDelivery,
    IncomingLink,
    Modified,
    Sections,
    Source,
)
from sbclient.amqp.performatives import SETTLE_SECOND, SETTLE_UNSETTLED
from sbclient.amqp.states import DeliveryState
from sbclient.clock import Clock
from sbclient.deadlines import Deadlines
from sbclient.errors import ServiceBusError
from sbclient.tasks import OwnedTasks
from sbclient.transport.amqp.connection import AmqpConnection, Sink, Stream
from sbclient.transport.amqp.links import LinkEnd, Wire
from sbclient.transport.amqp.sender import AmqpSender
from sbclient.transport.amqp.settlements import Settlements, Settling
from sbclient.transport.amqp.socket import Endpoint, open_stream
from sbclient.transport.amqp.transactions import AmqpTransaction, Control
from tests.benchmarks.proton import rabbitmq

FILES = Path(__file__).with_name("foreign")
WAIT_S = 20.0
START_S = 60.0


class Incoming(LinkEnd[IncomingLink]):
    """A link on which messages arrive."""

    def __init__(self, wire: Wire, doing: str) -> None:
        super().__init__(wire, doing)
        self.arrived: asyncio.Queue[IncomingDelivery] = asyncio.Queue()

    def start(self, link: IncomingLink) -> None:
        super().start(link)
        self.settlements = Settlements(link, self.wire)

    def on_delivery(self, delivery: IncomingDelivery) -> None:
        self.arrived.put_nowait(delivery)

    def on_disposition(self, event: DispositionReceived) -> None:
        self.settlements.confirmed(event)


class Broker:
    """A connection to a broker, in the role that a transport has for its links."""

    def __init__(self, connection: AmqpConnection, prefix: str) -> None:
        self.connection = connection
        self.prefix = prefix
        self.clock = Clock()
        self.tasks = OwnedTasks()
        self.deadlines = Deadlines(self.clock)
        self._control = Control(
            connection, connection.begin, owns_session=True, tasks=self.tasks, deadlines=self.deadlines
        )

    async def connection_for(self, path: str) -> AmqpConnection:
        return self.connection

    def session_of(self, connection: AmqpConnection) -> tuple[Any, bool]:
        return connection.begin(), True

    async def requests_of(self, path: str, *, deadline: float, connection: Wire | None = None) -> Any:
        raise NotImplementedError

    def forget(self, link: Any) -> None:
        """Nothing is kept."""

    def control_of(self, wire: Wire) -> Control:
        return self._control

    def via_to(self, path: str) -> str | None:
        return None

    def sender(self, queue: str) -> AmqpSender:
        return AmqpSender(self, self.prefix + queue)

    async def receiver(self, queue: str, credit: int) -> Incoming:
        end = Incoming(self.connection, f"attach to {queue!r}")
        end.start(
            self.connection.begin().attach_receiver(
                self.connection.new_link_name(),
                source=Source(address=self.prefix + queue),
                snd_settle_mode=SETTLE_UNSETTLED,
                rcv_settle_mode=SETTLE_SECOND,
            )
        )
        await end.attached()
        end.link.grant(credit)
        self.connection.flush()
        return end

    async def settle(self, end: Incoming, delivery: IncomingDelivery, state: DeliveryState) -> None:
        """Settle a message and wait until the broker has confirmed it."""
        settling = Settling(delivery, state, self.clock.monotonic() + WAIT_S, "settle")
        self.deadlines.add(settling)
        end.settlements.add(settling)
        await settling.future

    async def close(self) -> None:
        await self.tasks.close()
        self.deadlines.close()
        await self.connection.close()


@asynccontextmanager
async def connected(port: int, prefix: str = "") -> AsyncIterator[Broker]:
    async def connect(sink: Sink) -> Stream:
        return await open_stream(Endpoint("127.0.0.1", port, "127.0.0.1"), sink)

    options = ConnectionOptions(container_id="sbclient", hostname="127.0.0.1", channel_max=100)
    connection = AmqpConnection(connect, options, "foreign", Clock())
    await connection.open()
    broker = Broker(connection, prefix)
    try:
        yield broker
    finally:
        await broker.close()


def _body(delivery: IncomingDelivery) -> bytes:
    return b"".join(Sections(delivery.payload).data())


async def _next(end: Incoming) -> IncomingDelivery:
    return await asyncio.wait_for(end.arrived.get(), WAIT_S)


async def exchange(broker: Broker) -> None:
    """Send one message and a pipelined hundred, receive, release, abandon and complete them."""
    sender = broker.sender("orders")
    await sender.send([ServiceBusMessage(b"first", message_id="1", application_properties={"n": 7})], timeout_s=WAIT_S)
    await asyncio.gather(
        *(sender.send([ServiceBusMessage(str(number).encode())], timeout_s=WAIT_S) for number in range(100))
    )
    large = ServiceBusMessage(b"x" * 300_000)
    await sender.send([large], timeout_s=WAIT_S)
    end = await broker.receiver("orders", 102)
    first = await _next(end)
    sections = Sections(first.payload)
    assert (_body(first), sections.properties.message_id) == (b"first", "1")
    assert sections.application_properties["n"] == 7
    deliveries = [await _next(end) for _ in range(101)]
    assert {_body(each) for each in deliveries} == {*(str(number).encode() for number in range(100)), b"x" * 300_000}
    await asyncio.gather(*(broker.settle(end, each, ACCEPTED) for each in deliveries))
    for outcome in (RELEASED, Modified(delivery_failed=True)):
        first.link.settle_many([first], outcome, settled=True)
        end.link.grant(1)
        broker.connection.flush()
        first = await _next(end)
        assert _body(first) == b"first"
    await broker.settle(end, first, ACCEPTED)
    end.release()
    await sender.close()


async def transact(broker: Broker) -> None:
    """Move a message in a transaction that is rolled back, and in one that is committed."""
    orders, invoices = broker.sender("orders"), broker.sender("invoices")
    await orders.send([ServiceBusMessage(b"order")], timeout_s=WAIT_S)
    source, target = await broker.receiver("orders", 1), await broker.receiver("invoices", 10)
    delivery = await _next(source)
    for is_committed in (False, True):
        transaction = AmqpTransaction(broker)
        await invoices.send([ServiceBusMessage(b"invoice")], timeout_s=WAIT_S, transaction=transaction)
        await invoices.send([ServiceBusMessage(b"copy")], timeout_s=WAIT_S, transaction=transaction)
        state = await transaction.state_on(broker.connection, broker.clock.monotonic() + WAIT_S)
        if is_committed:
            await broker.settle(source, delivery, state._replace(outcome=ACCEPTED))
            await transaction.commit(timeout_s=WAIT_S)
        else:
            await transaction.rollback(timeout_s=WAIT_S)
            await asyncio.sleep(0.5)
            assert target.arrived.empty()
    assert [_body(await _next(target)) for _ in range(2)] == [b"invoice", b"copy"]
    source.link.grant(1)
    broker.connection.flush()
    await asyncio.sleep(0.5)
    assert source.arrived.empty()


@pytest.fixture(scope="module")
def artemis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The port of ActiveMQ Artemis, from Maven Central."""
    if shutil.which("mvn") is None or shutil.which("java") is None:
        pytest.skip("ActiveMQ Artemis needs Maven and Java")
    folder = tmp_path_factory.mktemp("artemis")
    copying = ["mvn", "-q", "-B", "-f", str(FILES), "dependency:copy-dependencies", f"-DoutputDirectory={folder}/jars"]
    if subprocess.run(copying, capture_output=True, check=False, cwd=folder).returncode:
        pytest.skip("Maven cannot fetch ActiveMQ Artemis")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    (folder / "broker.xml").write_text((FILES / "broker.xml").read_text().replace("PORT", str(port)))
    command = ["java", "-Xmx256m", "-cp", f"{folder}:{folder}/jars/*"]
    command.append("org.apache.activemq.artemis.core.server.embedded.Main")
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)
    try:
        _wait_for(port, process)
        yield port
    finally:
        process.kill()
        process.wait()


def _wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            assert process.poll() is None, "the broker has ended"
            assert time.monotonic() < deadline, f"the broker does not listen on port {port}"
            time.sleep(0.2)


async def test_artemis_exchanges_messages(artemis: int) -> None:
    async with connected(artemis) as broker:
        await exchange(broker)


async def test_artemis_commits_and_rolls_back(artemis: int) -> None:
    async with connected(artemis) as broker:
        await transact(broker)


async def test_rabbitmq_exchanges_messages() -> None:
    with rabbitmq() as found:
        if found is None:
            pytest.skip("RabbitMQ is not installed")
        async with connected(found.port, "/queue/") as broker:
            await exchange(broker)


async def test_refused_address_has_an_error(artemis: int) -> None:
    async with connected(artemis) as broker:
        with pytest.raises(ServiceBusError):
            await broker.receiver("no-such-type::$sys.", 1)
