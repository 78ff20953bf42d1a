"""The messages of a run: what is in them, when each is due, and what is sent together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from random import Random
from uuid import UUID

from sbclient.message import ServiceBusMessage
from sbclient.options import BACKLOG_HEADROOM_BYTES
from tests.payloads import size_of
from tests.simulation.history import CANARY, TEXT_ATTRIBUTES, Submission
from tests.simulation.plan import Lane, Plan, UnitKind


@dataclass(slots=True, eq=False)
class Unit:
    """What an application hands over in one call, or in one transaction.

    Attributes:
        number: names it in its run.
        key: all its messages have it.
        sender: which of the lane's senders sends it.
        due_s: after the run began.
        tries_left: how often it is tried again.
        repeats: how often it is sent once more after it was accepted, as a careless application does.
        rolls_back: a transaction that its application gives up by itself.
        cancels: a schedule that its application takes back.
    """

    number: int
    kind: UnitKind
    lane: Lane
    submissions: list[Submission]
    key: int
    sender: int
    due_s: float
    tries_left: int
    repeats: int = 0
    rolls_back: bool = False
    cancels: bool = False
    schedule: datetime | None = None
    numbers: list[int] = field(default_factory=list)


def write_traffic(plan: Plan, lane: Lane, epoch: float, first_unit: int) -> list[Unit]:
    """Everything that is sent to one lane, in order of time."""
    random = Random(f"post {plan.seed} {lane.name}")
    units: list[Unit] = []
    written = 0
    while written < lane.messages:
        kind = _kind(random, plan, lane)
        size = random.randint(2, 4) if kind in ("list", "batch", "transaction") else 1
        key = random.randrange(lane.keys)
        due_s = plan.traffic_s * (written // 4 * 4) / lane.messages * random.choice((1.0, 1.0, 0.97))
        number = first_unit + len(units)
        unit = Unit(
            number,
            kind,
            lane,
            [],
            key,
            sender=key % lane.senders if lane.kind != "plain" else number % lane.senders,
            due_s=due_s,
            tries_left=plan.persistence,
            repeats=(random.randint(1, 2) if lane.window_s is None else 3)
            if lane.kind == "dedup" and random.random() < 0.3
            else 0,
            rolls_back=kind == "transaction" and random.random() < 0.2,
            cancels=kind == "schedule" and random.random() < 0.4,
        )
        if kind == "schedule":
            unit.schedule = _whole_ms(epoch + due_s + random.choice((8.0, 40.0, 150.0)))
        for _ in range(size):
            unit.submissions.append(_submission(random, plan, lane, unit, written, epoch))
            written += 1
        if kind == "edge":
            _to_the_edge(random, plan, unit.submissions[0])
        units.append(unit)
    return units


def _kind(random: Random, plan: Plan, lane: Lane) -> UnitKind:
    if lane.kind == "transactional":
        return "transaction" if random.random() < 0.8 else "single"
    if lane.kind == "dedup":
        return "single"
    if plan.has_edge and random.random() < 0.35:
        return "edge"
    return random.choices(("single", "list", "batch", "schedule"), (76, 10, 8, 6))[0]


def _submission(random: Random, plan: Plan, lane: Lane, unit: Unit, position: int, epoch: float) -> Submission:
    uid = f"{lane.kind}-{position}"
    message = ServiceBusMessage(
        f"{uid}|{CANARY} {random.getrandbits(32)}",
        application_properties=_properties(random, position),
        message_id=f"id-{uid}" if lane.kind == "dedup" or random.random() < 0.5 or "tasks" in plan.kinds else None,
    )
    key = f"{lane.kind[0]}-key-{unit.key}"
    if lane.kind == "session":
        message.session_id = key
        message.partition_key = key if random.random() < 0.3 else None
    elif lane.kind in ("keyed", "transactional") or (lane.kind in ("dedup", "topic") and unit.key % 2):
        message.partition_key = key
    if random.random() < 0.3:
        message.subject, message.correlation_id = "invoice", f"cor-{position}"
        message.content_type, message.to, message.reply_to = "text/plain", "receiver", "sender"
        message.reply_to_session_id = "later"
    if lane.life_s is not None and unit.kind in ("single", "list", "batch") and random.random() < 0.6:
        message.time_to_live = timedelta(seconds=lane.life_s)
    if unit.kind == "single" and random.random() < lane.scheduled_share:
        moment = epoch + unit.due_s + random.choice((1.0, 15.0, 60.0, 150.0))
        message.scheduled_enqueue_time_utc = _whole_ms(moment)
    return Submission(uid, lane.name, lane.name, position, unit.number, message)


def _properties(random: Random, position: int) -> dict[str, object]:
    properties: dict[str, object] = {"position": position}
    if random.random() < 0.3:
        properties |= {
            "text": "ä€😀",
            "small": -(2**31) - position,
            "ratio": 0.1 + position,
            "flag": position % 2 == 0,
            "moment": datetime(2031, 2, 3, 4, 5, 6, 789_000, tzinfo=UTC),
            "uuid": UUID(int=position),
            "nothing": None,
        }
    if random.random() < 0.12:  # names that the rewrite for the backlog uses itself
        properties |= {"x-ms-path": "elsewhere", "x-ms-timetolive": "PT1S", "x-ms-user-x-ms-path": "mine"}
    return properties


def _to_the_edge(random: Random, plan: Plan, submission: Submission) -> None:
    """Make a message as large as it may be, or one byte larger: than what is kept free allows, or than any entity."""
    limit = plan.profile.max_message_size_bytes
    allowed = limit - BACKLOG_HEADROOM_BYTES if plan.options.reserve_backlog_headroom else limit
    sizes = {"below": allowed - 1, "fits": allowed, "over_reserve": allowed + 1, "over_limit": limit + 1}
    submission.edge = random.choice(list(sizes))
    _stretch(submission, sizes[submission.edge])


def _stretch(submission: Submission, size_bytes: int) -> None:
    """Make a message's encoded size exactly so many bytes."""
    message = submission.message
    message.message_id = message.message_id or f"edge-{submission.uid}"
    head = bytes(message)
    for _ in range(4):
        padding = size_bytes - size_of(message) + len(bytes(message)) - len(head)
        message = ServiceBusMessage(head + b"." * padding)
        for name in _COPIED:
            setattr(message, name, getattr(submission.message, name))
    assert size_of(message) == size_bytes
    submission.message = message


_COPIED: Sequence[str] = ("application_properties", *TEXT_ATTRIBUTES)


def _whole_ms(at: float) -> datetime:
    """A scheduled time, which AMQP has in whole milliseconds."""
    return datetime.fromtimestamp(math.floor(at * 1000) / 1000, UTC)
