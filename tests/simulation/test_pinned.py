"""What the simulation found and what was mended since: the seeds that find each bug if it is put back, and what no seed
of today finds again.

Which seed finds a bug changes whenever what a seed draws changes; `python -m tests.simulation.mutants` tells the new
one.
"""

from __future__ import annotations

from datetime import timedelta

import pytest

from sbclient.clock import VirtualClock
from sbclient.message import ServiceBusMessage
from sbclient.options import PairedNamespaceOptions
from sbclient.testing import Fault, FaultKind, Operation, memory_pair
from tests.simulation.run import run_seed


@pytest.mark.parametrize(
    ("seed", "once"),
    [
        (2, "a wait too short for a float of seconds ended at the moment it began, for ever"),
        (5, "a diversion in doubt was told as a refusal"),
        (39, "a look through the fragments of a backlog queue broke off when one of them was lost"),
        (100, "a front end gave out what it had kept, though its life had ended there"),
        (117, "a life did not shrink while the ordered syphon waited for a busy destination"),
        (126, "messages that shared a transfer were not held to the size of a single one"),
        (864, "a later refusal hid that an earlier try was in doubt"),
        (4337, "a secondary that was silent took all the time there was, and the primary was blamed"),
        (7202, "a refusal of a link that was opened anew hid that the stale one had left it in doubt"),
        (8099, "a program that was told to end while it was being killed lived on"),
        (10503, "a state that was stored though its answer was lost counted as refused when its session was"),
        (13417, "a backlog queue that had failed and was used with success at the very moment counted as resting"),
        (45863, "a message of the vandal, with a body that is no bytes, ended the run"),
        (49873, "a session of an entity that was deleted, and made again, counted as still held"),
        (78921, "a call answered for what an earlier one, which its caller had given up, still left in doubt"),
        (97007, "a message that was fetched ahead, and came just when its lock ended, counted as held"),
        (101068, "a session whose lock was shorter than a busy server's pause was moved by two workers at once"),
    ],
)
def test_what_was_found_once_stays_mended(seed: int, once: str) -> None:
    assert not run_seed(seed).violations, once


async def test_a_syphon_does_not_end_while_a_message_it_has_fetched_is_being_dead_lettered(clock: VirtualClock) -> None:
    pair = memory_pair(clock=clock, seed=1)
    options = PairedNamespaceOptions(backlog_queue_count=1)
    async with pair.client(options) as client, client.get_queue_sender("orders") as sender:
        await client.administration.create_queue("orders")
        client.pair.force_failover("orders")
        await sender.send_messages(ServiceBusMessage("short-lived", time_to_live=timedelta(seconds=20)))
        await sender.send_messages([ServiceBusMessage("lasting") for _ in range(3)])
        pair.primary.inject(Fault(FaultKind.DOWN))
        parked = await client.run_syphon(until="empty")
        assert parked.drained == 0
        await clock.sleep(30)
        pair.primary.heal()
        # The look through the queue is under way when the fetched messages come, and ends before the first is settled.
        for operation, latency_s in ((Operation.PEEK, 2), (Operation.RECEIVE_DEFERRED, 1), (Operation.SETTLE, 10)):
            pair.secondary.inject(Fault(FaultKind.SLOW, operations=[operation], latency_s=latency_s))
        report = await client.run_syphon(until="empty")
    assert report.drained == 3
    assert report.dead_lettered == {"TTLExpiredException": 1}
