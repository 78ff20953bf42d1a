"""After any course of outages a syphon is as one that has drained in peace: nothing is lost, kept or counted."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Collection
from random import Random
from typing import Any, Final

import pytest

from sbclient import clock
from sbclient.errors import MessagingEntityDisabledError, MessagingEntityNotFoundError, ServiceBusQuotaExceededError
from sbclient.message import ServiceBusMessage, ServiceBusReceivedMessage
from sbclient.syphon import destination_table
from sbclient.syphon.budget import InFlightLimit
from sbclient.syphon.queue_source import QueueCounts
from sbclient.syphon.status import PollRecord
from sbclient.syphon.syphon import Syphon
from sbclient.testing import Fault, FaultKind, Operation, memory_pair
from tests.client.scene import BACKLOG, SESSION_BACKLOG, cancel, dead_letters, make_queue, options, taken

QUEUES: Final = ("a", "b")
REFUSALS: Final = (MessagingEntityDisabledError, MessagingEntityNotFoundError, ServiceBusQuotaExceededError)
CLEAR: Final[list[dict[str, Any]]] = [
    {"kind": FaultKind.BUSY},
    {"kind": FaultKind.SLOW, "latency_s": 7.0},
    *({"kind": FaultKind.ERROR, "error": error} for error in REFUSALS),
]
"""Of the primary: what leaves no doubt whether it has a message."""
DOUBTFUL: Final[list[dict[str, Any]]] = [
    {"kind": FaultKind.DOWN},
    {"kind": FaultKind.HANG},
    {"kind": FaultKind.DOWN, "probability": 0.5},
    {"kind": FaultKind.LOSE_ACKNOWLEDGEMENT, "operations": [Operation.SEND]},
]
BACKLOG_FAULTS: Final[list[dict[str, Any]]] = [
    {"kind": kind, "entity_path": queue, "operations": [operation], "count": 2}
    for kind in (FaultKind.ERROR, FaultKind.LOSE_ACKNOWLEDGEMENT, FaultKind.SLOW)
    for queue in (BACKLOG[0], SESSION_BACKLOG[0])
    for operation in (
        *(Operation.PEEK, Operation.RECEIVE, Operation.RECEIVE_DEFERRED),
        Operation.SETTLE,
        Operation.RENEW,
    )
]


TOTALS: Final = {
    "_generation",
    "_rejections",
    "_full_polls",
    "_passed_to",
    "_scanned",
    "_usual_bytes",
    "_to_visit",
    "worker",
}
TIMES: Final = {"_oldest_waiting", "_oldest_parked"}
"""What only counts, or does not matter at rest."""


def whole(syphon: Syphon) -> dict[str, Any]:
    """What a syphon at rest knows of its queues and destinations, without times and totals."""
    table, status = syphon._destinations, syphon.status()
    shapes = [shape(one) for one in table._known.values()]
    return {
        **{one.queue: shape(one) for one in syphon._sources},
        "destinations": [one for number, one in enumerate(shapes) if one not in shapes[:number]],
        "left": table._left,
        "doubts": syphon._progress.doubts,
        "status": (status.refusing, status.redirected, status.is_stalled),
        "parked": syphon.report().parked,
    }


def shape(known: object) -> dict[str, object]:
    shown: dict[str, object] = {}
    for name, value in vars(known).items():
        if isinstance(value, dict):
            shown[name] = sum(len(one) if isinstance(one, Collection) else 1 for one in value.values())
        elif isinstance(value, deque | set | list):
            shown[name] = len(value)
        elif isinstance(value, asyncio.Task):
            shown[name] = None if value.done() else value
        elif isinstance(value, InFlightLimit | QueueCounts | PollRecord):
            shown[name] = shape(value)
        elif value is None or isinstance(value, bool | int):
            shown[name] = value
    return {name: value for name, value in shown.items() if name not in TOTALS | TIMES}


@pytest.mark.parametrize("is_redirected", [False, True])
async def test_a_syphon_forgets_every_outage(monkeypatch: pytest.MonkeyPatch, is_redirected: bool) -> None:
    destinations_kept = destination_table.DESTINATIONS_KEPT
    for seed in range(15):
        monkeypatch.setattr(destination_table, "DESTINATIONS_KEPT", Random(seed).choice([1, destinations_kept]))
        await live(seed, is_redirected=is_redirected)


async def live(seed: int, *, is_redirected: bool) -> None:
    pair, random = memory_pair(seed=seed), Random(seed)
    for name in QUEUES:
        for secondary in (False, True):
            await make_queue(pair, name, secondary=secondary, requires_session=name == "b")
    chosen = options(
        ordering="session",
        backlog_queue_count=1,
        missing_entity_grace=random.choice([100, 86_400]),
        redirect_after=100 if is_redirected else None,
        redirect_sessions=random.random() < 0.5,
    )
    has_doubts, has_backlog_faults = random.random() < 0.5, random.random() < 0.5
    outages = CLEAR + DOUBTFUL * has_doubts
    is_at_once = not has_backlog_faults and destination_table.DESTINATIONS_KEPT > 1  # else a scan finds the last ones
    sent: Counter[str] = Counter()
    found: list[ServiceBusReceivedMessage] = []
    given_up: list[ServiceBusReceivedMessage] = []
    async with pair.client(chosen) as client:
        senders = {name: client.get_queue_sender(name) for name in QUEUES}
        for name in QUEUES:
            client.pair.force_failover(name)

        async def divert() -> None:
            for name in QUEUES:
                session_id = random.choice("xyz") if name == "b" else None
                texts = [f"{name}{sent.total() + number}" for number in range(random.choice([1, 1, 5]))]
                await senders[name].send_messages([ServiceBusMessage(text, session_id=session_id) for text in texts])
                sent.update(texts)

        syphon = Syphon(client.pair)
        running = asyncio.ensure_future(syphon.run())
        at_rest: dict[str, Any] = {}
        for cycle in range(4):
            for _ in range(random.randrange(1, 5) if cycle else 0):
                pair.primary.inject(Fault(**random.choice(outages), entity_path=random.choice([*QUEUES, None])))
                for _ in range(random.randrange(6)):
                    if has_backlog_faults:
                        pair.secondary.inject(Fault(**random.choice(BACKLOG_FAULTS)))
                    await divert()
                    await clock.sleep(random.choice([0.0, 3.0, 90.0]))
                if random.random() < 0.5:
                    pair.primary.heal()
            pair.primary.heal()
            pair.secondary.heal()
            for _ in range(2 if is_at_once else 10):  # the second message goes to the primary again
                await divert()
                await clock.sleep(200.0)
            for name in QUEUES:
                for secondary in (False, True):
                    found += await taken(pair, name, secondary=secondary)
            given_up += await dead_letters(pair, [BACKLOG[0], SESSION_BACKLOG[0]])
            reasons = Counter(one.dead_letter_reason for one in given_up)
            assert reasons == syphon.report().dead_lettered or has_backlog_faults  # an answer may have been lost
            came = Counter(map(str, found + given_up))
            assert came.keys() == sent.keys()
            assert came == sent or has_doubts
            at_rest = at_rest or whole(syphon)
            assert whole(syphon) == at_rest
            assert has_backlog_faults or not len(client.pair.state.accepted)
        await cancel(running)
    for session_id in "xyz":
        numbers = [int(str(one)[1:]) for one in found if one.session_id == session_id]
        assert sorted(numbers) == numbers or has_doubts or chosen.redirect_sessions
