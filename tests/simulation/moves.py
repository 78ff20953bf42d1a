# ruff: noqa: T201 - a command line prints
"""Transactions over several entities while connections are lost: `python -m tests.simulation.moves --seeds 0:100`.

Movers receive from one queue, complete each message and send it to two others, in one transaction. At the end each
message is either in the first queue or once in both of the others, despite network faults.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from random import Random
from typing import Final

from sbclient import clock
from sbclient.amqp import encode_message
from sbclient.broker.faults import Call, Operation
from sbclient.client.client import ServiceBusClient
from sbclient.client.receiver import ServiceBusReceiver
from sbclient.client.sender import ServiceBusSender
from sbclient.entities import EntityAddress, EntityKind, QueueProperties
from sbclient.errors import ServiceBusError
from sbclient.hosting.host import BrokerHost
from sbclient.message import ServiceBusMessage, ServiceBusReceivedMessage
from sbclient.testing import MemoryNamespace, MemoryPair, VirtualLoop
from sbclient.transport.amqp.transport import AmqpTransport
from sbclient.transport.memory.transport import MemoryTransport
from tests.simulation.census import uids_in
from tests.simulation.history import History, Outcome, reported_outcome, uid_of
from tests.simulation.network import Network
from tests.simulation.operator import Operator
from tests.simulation.plan import draw_wire_plan
from tests.simulation.program import Signer
from tests.simulation.weather import Incident

SOURCE: Final = "source"
TARGETS: Final = ("left", "right")
MESSAGES: Final = 25
MOVERS: Final = 2
LOCK_S: Final = 5.0
QUIET_S: Final = 600.0
SHARE_ROLLED_BACK: Final = 0.2


@dataclass(slots=True)
class Moves:
    """What became of the transactions of a run.

    Attributes:
        outcomes: of the transactions of each message, as reported to its mover; a rollback is a refusal.
        wrong: what must not be.
    """

    outcomes: dict[str, list[Outcome]] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)

    @property
    def counts(self) -> Counter[Outcome]:
        return Counter(outcome for each in self.outcomes.values() for outcome in each)


def run_moves(seed: int) -> Moves:
    """Run a seed."""
    moves = Moves()
    with asyncio.Runner(loop_factory=lambda: VirtualLoop(horizon_s=20_000.0, epoch=1_700_000_000.0)) as runner:
        runner.run(_run(seed, moves))
    return moves


async def _run(seed: int, moves: Moves) -> None:
    random = Random(f"moves {seed}")
    plan = draw_wire_plan(seed)
    line = plan.network
    assert line is not None
    incidents = [replace(one, path=None) for one in plan.incidents if one.side == "primary" and one.what != "delete"]
    share = random.choice((0.02, 0.1))
    incidents.append(Incident(kind="cuts", what="cuts", at_s=0.0, span_s=plan.traffic_s, probability=share))
    plan = replace(plan, lanes=(), deaths=(), incidents=tuple(incidents))
    host, other = (MemoryNamespace(name, random=random) for name in ("one", "two"))
    network = Network(host, line, Random(random.getrandbits(64)))
    operator = Operator(plan, MemoryPair(host, other, random), History(), {"primary": network})
    call = Call(Operation.MANAGE, clock.true_now())
    for name in (SOURCE, *TARGETS):
        properties = QueueProperties(name, lock_duration=timedelta(seconds=LOCK_S), max_delivery_count=1_000)
        host.namespace.management.create(call, EntityAddress(EntityKind.QUEUE, (name,)), properties)
    for number in range(MESSAGES):
        uid = f"move-{number}"
        moves.outcomes[uid] = []
        host.namespace.send(
            Call(Operation.SEND, clock.true_now()), SOURCE, [encode_message(ServiceBusMessage(f"{uid}|"))]
        )
    for incident in incidents:
        at_s = max(0.0, incident.at_s)
        clock.call_later(at_s, partial(operator.begin, incident))
        clock.call_later(at_s + incident.span_s, partial(operator.end, incident))
    movers = [
        asyncio.ensure_future(_move_all(host, network, Random(random.getrandbits(64)), moves, plan.traffic_s))
        for _ in range(MOVERS)
    ]
    await clock.sleep(plan.traffic_s)
    operator.end_all()
    ends_at = clock.true_now() + QUIET_S
    while any(uids_in(host, SOURCE).values()) and clock.true_now() < ends_at:
        await clock.sleep(3.0)
    for mover in movers:
        mover.cancel()
    await asyncio.gather(*movers, return_exceptions=True)
    await network.close()
    await clock.sleep(LOCK_S + 130.0)  # transactions that were left open end
    if any(uids_in(host, SOURCE).values()):
        moves.wrong.append(f"{QUIET_S:g} quiet seconds were not enough to move everything")
    _check(host, moves)


async def _move_all(host: BrokerHost, network: Network, random: Random, moves: Moves, traffic_s: float) -> None:
    """Move messages with one client after another."""
    spreads_until = clock.true_now() + traffic_s
    while True:
        transport = AmqpTransport(
            "one",
            "one",
            lambda sink: network.connect(sink, lambda: True),
            Signer(network),
            random=Random(random.getrandbits(64)),
            management=lambda: MemoryTransport(host),
            is_cross_entity=True,
        )
        client = ServiceBusClient(transport=transport, random=random, timeout=8.0, retry_total=0)
        senders = [client.get_queue_sender(name) for name in TARGETS]
        try:
            async with client, client.get_queue_receiver(SOURCE, max_wait_time=5.0) as receiver:
                for _ in range(6):
                    for message in await receiver.receive_messages(2, max_wait_time=5.0):
                        await clock.sleep(random.random() * (4.0 if clock.true_now() < spreads_until else 0.1))
                        rolls_back = random.random() < SHARE_ROLLED_BACK
                        await _move(client, receiver, senders, message, moves, rolls_back=rolls_back)
        except ServiceBusError:
            await clock.sleep(random.uniform(0.2, 3.0))


async def _move(
    client: ServiceBusClient,
    receiver: ServiceBusReceiver,
    senders: Sequence[ServiceBusSender],
    message: ServiceBusReceivedMessage,
    moves: Moves,
    *,
    rolls_back: bool,
) -> None:
    """Move one message in a transaction; until the commit is asked for nothing is in doubt."""
    outcome = Outcome.REFUSED
    try:
        async with client.transaction() as transaction:
            await receiver.complete_message(message, transaction=transaction)
            for sender in senders:
                await sender.send_messages(ServiceBusMessage(bytes(message)), transaction=transaction)
            if rolls_back:
                await transaction.rollback()
            else:
                outcome = Outcome.DOUBT
        if not rolls_back:
            outcome = Outcome.OK
    except ServiceBusError as error:
        if outcome is Outcome.DOUBT:
            outcome = reported_outcome(error)
    finally:
        moves.outcomes[uid_of(message)].append(outcome)


def _check(host: BrokerHost, moves: Moves) -> None:
    places = [uids_in(host, name) for name in (SOURCE, *TARGETS)]
    for uid, outcomes in moves.outcomes.items():
        found = tuple(place[uid] for place in places)
        if found not in ((1, 0, 0), (0, 1, 1)):
            moves.wrong.append(f"{uid} is {found} times in {SOURCE}, {TARGETS[0]} and {TARGETS[1]}: {outcomes}")
        elif Outcome.OK in outcomes and found[0]:
            moves.wrong.append(f"{uid} was moved for certain and is still in {SOURCE}")
        elif not found[0] and set(outcomes) == {Outcome.REFUSED}:
            moves.wrong.append(f"{uid} was moved, and every transaction was refused or rolled back")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run seeds and print how many transactions there were; 1 if any was torn apart."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.moves", description=__doc__)
    parser.add_argument("--seeds", default="0:100")
    first, _, last = parser.parse_args(arguments).seeds.partition(":")
    total, wrong = Counter[Outcome](), 0
    for seed in range(int(first), int(last or int(first) + 1)):
        moves = run_moves(seed)
        total += moves.counts
        wrong += len(moves.wrong)
        for text in moves.wrong:
            print(f"seed {seed}: {text}")
    summary = ", ".join(f"{total[outcome]} {outcome}" for outcome in Outcome)
    print(f"{total.total()} transactions over three queues: {summary}; {wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
