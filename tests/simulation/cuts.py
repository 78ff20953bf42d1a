# ruff: noqa: T201 - a command line prints
"""A pair over AMQP whose connection is cut after each byte: `python -m tests.simulation.cuts [--stride N]`.

The client sends, diverts, drains the backlog and receives. In each run one connection, to the primary or to the
secondary, breaks after another number of bytes of both directions together. No accepted message may be lost, and none
may be stored that the client knows as refused.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from datetime import timedelta
from random import Random
from typing import Final

from sbclient import clock
from sbclient.broker.faults import Call, Operation
from sbclient.client.client import ServiceBusClient
from sbclient.client.sender import ServiceBusSender
from sbclient.entities import EntityAddress, EntityKind, QueueProperties
from sbclient.errors import ServiceBusError
from sbclient.hosting.host import BrokerHost
from sbclient.message import ServiceBusMessage
from sbclient.options import PairedNamespaceOptions
from sbclient.testing import MemoryNamespace, VirtualLoop
from sbclient.testing.ledger import Ledger
from sbclient.transport.amqp.transport import AmqpTransport
from sbclient.transport.memory.transport import MemoryTransport
from tests.simulation.census import uids_in
from tests.simulation.network import Line, Network
from tests.simulation.program import Signer

QUEUE: Final = "orders"
SIDES: Final = ("primary", "secondary")
LINE: Final = Line(latency_s=0.0, split_share=0.0, buffer_bytes=2**20, token_s=3600.0, max_frame_bytes=2**16)
OPTIONS: Final = PairedNamespaceOptions(
    failover_interval=timedelta(minutes=1), ping_primary_interval=timedelta(seconds=1), backlog_queue_count=1
)


class CutNetwork(Network):
    """A network that cuts one connection, once.

    Attributes:
        passed: the bytes of all connections so far.

    Args:
        after: how many bytes of all connections pass before; None = no cut.
    """

    def __init__(self, host: BrokerHost, after: int | None) -> None:
        super().__init__(host, LINE, Random(1))
        self.passed = 0
        self._after = after

    def cut_at(self, count: int) -> int | None:
        before, self.passed = self.passed, self.passed + count
        return self._after - before if self._after is not None and before <= self._after < self.passed else None


class CutPair:
    """One run; see the module.

    Args:
        side: of the connection that is cut.
        after: as in `CutNetwork`.

    Attributes:
        refused: the messages whose errors say that they were not stored.
    """

    def __init__(self, side: str, after: int | None) -> None:
        self.ledger = Ledger()
        self.refused: set[str] = set()
        self.hosts = {each: MemoryNamespace(each, random=Random(1)) for each in SIDES}
        self.networks = {each: CutNetwork(host, after if each == side else None) for each, host in self.hosts.items()}

    async def run(self) -> None:
        properties = QueueProperties(QUEUE, requires_duplicate_detection=True)
        call = Call(Operation.MANAGE, clock.true_now())
        self.hosts["primary"].namespace.management.create(call, EntityAddress(EntityKind.QUEUE, (QUEUE,)), properties)
        one, other = map(self._transport, SIDES)
        async with (
            ServiceBusClient(transport=one, secondary_transport=other, options=OPTIONS, retry_total=0) as client,
            client.get_queue_sender(QUEUE) as sender,
        ):
            await self._send(sender, ["a"], ["b", "c"])
            client.pair.force_failover(QUEUE)
            await self._send(sender, ["d"], ["e", "f"])
            client.pair.mark_healthy(QUEUE)
            await self._send(sender, ["g"])
            await repeated(lambda: client.run_syphon(until="empty"))
            self.check_stored()
            await repeated(lambda: self._receive(client))
        for network in self.networks.values():
            await network.close()
        assert not self.ledger.lost, self.ledger.lost
        assert not self.ledger.unexpected, self.ledger.unexpected

    def _transport(self, side: str) -> AmqpTransport:
        network = self.networks[side]
        return AmqpTransport(
            side,
            side,
            lambda sink: network.connect(sink, lambda: True),
            Signer(network),
            random=Random(2),
            management=lambda: MemoryTransport(self.hosts[side]),
        )

    async def _send(self, sender: ServiceBusSender, *groups: list[str]) -> None:
        for group in groups:
            messages = [ServiceBusMessage(f"{name}|", message_id=name) for name in group]
            self.ledger.send(*group)
            try:
                await sender.send_messages(messages)
            except ServiceBusError as error:
                if not error.is_in_doubt:
                    self.refused.update(group)
            else:
                self.ledger.accepted.update(group)

    def check_stored(self) -> None:
        """Compare what the primary has with what the calls have reported."""
        stored = Counter({name: count for name, count in uids_in(self.hosts["primary"], QUEUE).items() if count})
        assert set(stored) >= self.ledger.accepted, self.ledger.accepted - set(stored)
        assert not self.refused & set(stored), self.refused & set(stored)
        assert stored.total() == len(stored), stored

    async def _receive(self, client: ServiceBusClient) -> None:
        async with client.get_queue_receiver(QUEUE, max_wait_time=70.0) as receiver:  # longer than a lock
            while messages := await receiver.receive_messages(4):
                for message in messages:
                    self.ledger.deliver(message.message_id)
                    await receiver.complete_message(message)


async def repeated(work: Callable[[], Awaitable[object]]) -> None:
    """Do what one lost connection may interrupt."""
    for _ in range(3):
        try:
            await work()
        except ServiceBusError:
            continue
        return
    await work()


def run_cut(side: str, after: int | None) -> CutPair:
    """Run with one cut, or with none."""
    with asyncio.Runner(loop_factory=lambda: VirtualLoop(horizon_s=20_000.0, epoch=1_700_000_000.0)) as runner:

        async def run() -> CutPair:
            pair = CutPair(side, after)
            await pair.run()
            return pair

        return runner.run(run())


def cuts(stride: int) -> Iterator[tuple[str, int]]:
    """The places of the cuts: each byte that passes in a run without a cut, or each one of several."""
    quiet = run_cut("primary", None)
    assert quiet.ledger.accepted == set("abcdefg")
    for side, network in quiet.networks.items():
        for after in range(0, network.passed, stride):
            yield side, after


def main(arguments: Sequence[str] | None = None) -> int:
    """Cut everywhere, and print what was wrong; 1 if anything was."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.cuts", description=__doc__)
    parser.add_argument("--stride", type=int, default=1, help="cut after each Nth byte only")
    count = wrong = 0
    for side, after in cuts(parser.parse_args(arguments).stride):
        count += 1
        try:
            run_cut(side, after)
        except AssertionError as error:
            wrong += 1
            print(f"{side}, cut after {after} bytes: {error}")
    print(f"{count} cuts, {wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
