from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest

from sbclient import clock
from sbclient.broker.faults import Operation
from sbclient.errors import MessagingEntityNotFoundError
from sbclient.message import ServiceBusMessage
from sbclient.rules.envelope import SESSION_ID
from sbclient.rules.syphon_reason import SyphonReason
from sbclient.testing import Fault, FaultKind, MemoryPair
from sbclient.worker.dry_run import DryRun, dry_run
from sbclient.worker.inspection import ACCEPTS, sides_of
from tests.client.scene import BACKLOG, QUEUE, diverted, make_queue, options
from tests.worker.scene import make_backlog


async def looked(
    pair: MemoryPair, *, queues: list[str] | None = None, are_chosen: bool = False, **pairing: Any
) -> DryRun:
    async with pair.client(options(provision="none", **pairing)) as client:
        sides = sides_of(client.pair, "", "", {})
        return await dry_run(client, queues or BACKLOG, are_chosen=are_chosen, entity=None, sides=sides)


async def test_dry_run_reports_messages_by_queue_and_destination_and_moves_none(pair: MemoryPair) -> None:
    await make_queue(pair, "visits")
    await make_backlog(pair, *range(7))
    await make_backlog(pair, *range(3), queue="visits")
    pair.secondary.inject(Fault(FaultKind.DOWN, operations=[Operation.RECEIVE, Operation.SETTLE, Operation.SEND]))
    pair.primary.inject(Fault(FaultKind.DOWN, operations=[Operation.SEND]))
    found = await looked(pair)
    assert (found.would_move, found.would_stay, found.is_complete) == (10, 0, True)
    assert found.answers == {QUEUE: ACCEPTS, "visits": ACCEPTS}
    assert sum(view.waiting for view in found.queues) == 10
    assert "would move 10, would leave 0; nothing was moved" in found.lines()
    assert found.content()["destinations"] == {QUEUE: ACCEPTS, "visits": ACCEPTS}
    pair.secondary.heal()
    left = await diverted(pair)
    assert len(left) == 10
    assert {message.delivery_count for message in left} == {0}


SENT_BY_HAND: Final[dict[SyphonReason, dict[str, Any]]] = {
    SyphonReason.DESTINATION_NOT_ALLOWED: {"x-ms-path": "missing"},
    SyphonReason.DESTINATION_ILLEGAL: {"x-ms-path": BACKLOG[1]},
    SyphonReason.REFUSED: {"x-ms-path": "visits"},
    SyphonReason.PROPERTY_MALFORMED: {"x-ms-path": QUEUE, "x-ms-timetolive": "soon"},
    SyphonReason.TTL_EXPIRED: {"x-ms-path": QUEUE, "x-ms-timetolive": "PT5S"},
    SyphonReason.DESTINATION_MISSING: {},
}
"""A message that each reason fits to, with one of the options or destinations below."""
ROOT: Final = Path(__file__).parents[2]
NOT_FORESEEN: Final = {SyphonReason.TOO_LARGE, SyphonReason.NOT_FOUND}
ALLOWED: Final[list[list[str] | None]] = [None, ["missing", QUEUE], ["VISITS"], ["eu/*"]]
DESTINATIONS: Final[list[dict[str, Any]]] = [
    {},
    {"requires_session": True},
    {"enable_partitioning": True},
    {"requires_duplicate_detection": True},
]


def test_every_reason_is_given_and_foreseen_or_known_not_to_be() -> None:
    assert SENT_BY_HAND.keys() | NOT_FORESEEN == set(SyphonReason), (
        "try it here; worker/inspection.py foresees reasons, and a send to a healthy primary refuses what it can know"
    )
    product = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "sbclient").rglob("*.py"))
    assert not [one for one in SyphonReason if f"SyphonReason.{one.name}" not in product], "no message gets it"


@pytest.mark.parametrize("destination", DESTINATIONS, ids=str)
@pytest.mark.parametrize("allowed", ALLOWED)
@pytest.mark.parametrize("mode", ["remaining", "restart"])
async def test_dry_run_predicts_what_the_run_does(
    pair: MemoryPair, allowed: list[str] | None, destination: dict[str, Any], mode: str
) -> None:
    await make_queue(pair, "visits", **destination)
    await make_backlog(pair, 1)
    async with pair.unpaired_client(secondary=True) as client, client.get_queue_sender(BACKLOG[0]) as sender:
        for number, properties in enumerate(SENT_BY_HAND.values()):
            for session in ("s", None):
                named = properties if session is None else {SESSION_ID: session, **properties}
                one = ServiceBusMessage("m", application_properties=named, message_id=f"{number} {session}")
                await sender.send_messages(one)
    await clock.sleep(5.0)
    chosen: dict[str, Any] = {"syphon_destinations": allowed, "backlog_time_to_live": mode}
    found = await looked(pair, **chosen)
    async with pair.client(options(**chosen)) as client:
        report = await client.run_syphon(until="empty")
    assert (found.would_move, found.would_dead_letter) == (report.drained, report.dead_lettered)
    assert found.would_stay == report.parked
    assert found.would_move + sum(found.would_dead_letter.values()) + found.would_stay == 1 + 2 * len(SENT_BY_HAND)
    assert not found.is_complete
    assert found.answers.get("missing", "MessagingEntityNotFoundError").startswith("MessagingEntityNotFoundError")


async def test_a_missing_queue_is_reported(pair: MemoryPair) -> None:
    await make_backlog(pair, backlog_queue_count=3)
    found = await looked(pair)
    assert [view.queue for view in found.queues if not view.is_present] == BACKLOG[3:]
    assert not found.is_complete
    assert f"{BACKLOG[3]}  does not exist" in found.lines()
    assert (await looked(pair, queues=BACKLOG[:3], are_chosen=True)).is_complete
    with pytest.raises(MessagingEntityNotFoundError):
        await looked(pair, queues=BACKLOG[2:4], are_chosen=True)
