"""Defects that the simulation found and that were fixed: the seeds that find each bug if it is put back, and
what no seed of today finds again. A bug of a checker says so. Most were found before there were named corners.

Each of the others is a planted bug, too, unless hardly any seed finds it. Which seed finds it changes whenever what a
seed draws changes; `python -m tests.simulation.mutants` tells the new one.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from sbclient import clock
from sbclient.message import ServiceBusMessage
from sbclient.options import PairedNamespaceOptions
from sbclient.testing import Fault, FaultKind, Operation, memory_pair
from tests.simulation.plan import draw_plan
from tests.simulation.run import run_plan, run_seed


@pytest.mark.parametrize(
    ("seed", "once"),
    [
        (0, "a wait too short for a float of seconds ended at the moment it began, for ever"),
        (1, "a diversion in doubt was reported as a refusal"),
        (15, "a refusal of a link that was opened anew hid that the stale one had left it in doubt"),
        (30, "a later refusal hid that an earlier try was in doubt"),
        (33, "a secondary that was silent took all the time there was, and the primary was not asked"),
        (39, "a look through the fragments of a backlog queue broke off when one of them was lost"),
        (100, "a front end delivered cached messages that had expired"),
        (117, "a life did not shrink while the ordered syphon waited for a busy destination"),
        (148, "messages that shared a transfer were not held to the size of a single one"),
        (220, "a refusal of one message hid that the shared transfer before it was in doubt"),
        (
            299,
            "a session whose lock was shorter than a busy or slow server takes was moved by two workers at once",
        ),
        (447044343, "the checker of failovers did not count a link that took all the time of its send to open"),
        (1000101984, "the rate of a destination did not hold after a wait for the total rate"),
        (1000121897, "a worker sent a message of a session while another one, without the lock, was still sending it"),
        (1000518145, "messages of a refused transfer were sent alone at once, whatever the rate"),
        (1000523227, "a parked message was sent although its lock had expired before the answer to its receive"),
        (1000532339, "the checker of graces counted a copy that the syphon received after its attempt"),
        (1000704231, "an answer that took 30 s counted as 30 s in which the entity was missing"),
        (1000826935, "a drain ended for good if parked messages took all the room of a queue during a scan"),
        (
            2225924333,
            "the checker did not know that the entity of a session was deleted before the answer",
        ),
        (3700015287, "the checker took a success and a failure at one moment of a backlog queue for that order"),
        (
            3700017397,
            "the checker did not see a failover that ended while its message, too large to divert, was sent again",
        ),
        (600001726, "credit was granted on a link of which the attach had just ended the session"),
    ],
)
def test_pinned_seeds_pass(seed: int, once: str) -> None:
    assert not run_plan(draw_plan(seed, has_named=False)).violations, once


@pytest.mark.parametrize(
    ("seed", "once"),
    [
        (5100000835, "the checker of counts allowed only one message whose answer a killed client did not hear"),
        (5100005467, "the checker of quarantines took a success and a failure at one moment for that order"),
        (
            5100046011,
            "the checker of graces counted a timeout of a request that was sent before the entity was missing",
        ),
        (5300005420, "a syphon that ended started a send, did not wait for it and released what it had sent"),
        (5100015601, "a copy that was accepted and delivered again was sent again from its earlier delivery"),
    ],
)
def test_pinned_seeds_of_all_corners_pass(seed: int, once: str) -> None:
    """They were found before syphons redirected messages, so that theirs do not."""
    plan = draw_plan(seed)
    options = replace(plan.options, receive_from="primary", redirect_after=None, redirect_sessions=False)
    assert not run_plan(replace(plan, options=options, elsewhere=())).violations, once


@pytest.mark.parametrize(
    ("corner", "seed", "once"),
    [
        ("fragments_hang", 3600000016, "of a timeout just below 16 s a quarter was kept, also after a short wait"),
        ("redirects", 447, "the busy answer to a probe began an outage, for which messages were redirected"),
        ("full", 3600000777, "the checker of graces did not wait for the answers to sends that had left together"),
        ("worker", 3700007525, "the checker of graces did not know that a resumed worker begins anew"),
        ("worker", 3600000007, "a worker that had ended failed to read its credentials again"),
    ],
)
def test_pinned_seeds_of_named_corners_pass(corner: str, seed: int, once: str) -> None:
    assert not run_seed(seed, only=[corner]).violations, once


async def test_a_syphon_does_not_end_while_a_message_it_has_fetched_is_being_dead_lettered() -> None:
    pair = memory_pair(seed=1)
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
