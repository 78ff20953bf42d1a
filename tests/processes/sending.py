"""A program that sends: `python -m tests.processes.sending plan.json`. After SIGTERM it finishes the sends in flight.

Messages whose outcome is in doubt are sent again with the same ids until it is certain. Rejected messages are sent
again or given up.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from random import Random
from typing import Any, Final

from sbclient import PairedNamespaceOptions, ServiceBusClient, ServiceBusMessage, clock
from sbclient.client.sender import ServiceBusSender
from sbclient.errors import ServiceBusError
from tests.processes.bodies import body_of
from tests.processes.plan import Plan
from tests.processes.record import Line, Record, lines_of

COLORS: Final = ("red", "green", "blue")
FINISH_S: Final = 60.0
"""How long messages are sent again after SIGTERM."""

GIVEN_UP: Final = 0.3
"""The share of rejected messages that are not sent again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SendingPlan(Plan):
    """What one process sends.

    Attributes:
        uid_prefix: of the ids of its messages; each process has another one.
        secondary: the connection string of the secondary.
        entities: queues, or topics with `is_topic`; each lane sends to one of them, lane 0 to the first.
        keys: the kind of key of a message: "none", "partition" or "session"; each lane has one key.
        lanes: tasks that send at the same time.
        count: the number of messages; 0 = send until SIGTERM.
        least_bytes, most_bytes: how much filler a body has.
        list_share: the share of sends with three messages.
        expiring_share, scheduled_share: the shares of messages with a time to live, or with a scheduled enqueue time.
        pairing: options for `PairedNamespaceOptions`, durations in seconds.
        unfinished: the record of the previous process, whose messages in doubt are sent again; "" = none.
    """

    uid_prefix: str
    secondary: str
    entities: list[str]
    is_topic: bool = False
    keys: str = "none"
    lanes: int = 6
    count: int = 0
    pause_s: float = 0.2
    least_bytes: int = 20
    most_bytes: int = 400
    list_share: float = 0.1
    expiring_share: float = 0.0
    scheduled_share: float = 0.0
    pairing: dict[str, Any]
    unfinished: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedMessage:
    """A message, as it is recorded before each send.

    Attributes:
        key: a session id or partition key; None = none.
        life_s: its time to live; None = unlimited.
        appears_at: its scheduled enqueue time, as a Unix time; None = at once.
    """

    uid: str
    entity: str
    size: int
    color: str
    key: str | None = None
    life_s: float | None = None
    appears_at: float | None = None

    def message(self, keys: str) -> ServiceBusMessage:
        return ServiceBusMessage(
            body_of(self.uid, self.size),
            message_id=self.uid,
            session_id=self.key if keys == "session" else None,
            partition_key=self.key if keys == "partition" else None,
            application_properties={"color": self.color},
            time_to_live=None if self.life_s is None else timedelta(seconds=self.life_s),
            scheduled_enqueue_time_utc=None
            if self.appears_at is None
            else datetime.fromtimestamp(self.appears_at, UTC),
        )


class Sending:
    """Sends what a plan says and records every send."""

    def __init__(self, plan: SendingPlan) -> None:
        self._plan = plan
        self._record = Record(plan.record)
        self._record.take_log()
        self._is_ending = asyncio.Event()
        self._end_at = float("inf")
        self._numbers = iter(range(plan.count)) if plan.count else count()
        self._groups = count(1)

    async def run(self) -> None:
        plan = self._plan
        for ending in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(ending, self._end)
        client = ServiceBusClient.from_connection_string(
            plan.primary,
            secondary=plan.secondary,
            options=_options(plan.pairing),
            timeout=plan.timeout_s,
            retry_total=2,
            retry_backoff_factor=0.3,
        )
        async with client:
            sender_of = client.get_topic_sender if plan.is_topic else client.get_queue_sender
            senders = {entity: sender_of(entity) for entity in plan.entities}
            self._record.write("ready")
            await self._send_unfinished(senders)
            async with asyncio.TaskGroup() as lanes:
                for number in range(plan.lanes):
                    lanes.create_task(self._lane(senders, number))
            self._record.write(
                "ended", diverted=sum(entity.diverted for entity in client.pair.status().entities.values())
            )

    def _end(self) -> None:
        self._is_ending.set()
        self._end_at = min(self._end_at, clock.monotonic() + FINISH_S)

    async def _send_unfinished(self, senders: dict[str, ServiceBusSender]) -> None:
        """Send again what the previous process left in doubt, as a program with an outbox does."""
        for planned in _messages_in_doubt(lines_of(Path(self._plan.unfinished))) if self._plan.unfinished else ():
            await self._send_until_certain(senders[planned[0].entity], planned, Random(planned[0].uid))

    async def _lane(self, senders: dict[str, ServiceBusSender], number: int) -> None:
        plan = self._plan
        chance = Random(f"{plan.seed} {plan.uid_prefix} {number}")
        entity = plan.entities[number % len(plan.entities)]
        key = None if plan.keys == "none" else f"{plan.uid_prefix.split('.')[0]}-{number}"
        while not self._is_ending.is_set():
            planned = self._draw(chance, entity, key)
            if not planned:
                return
            await self._send_until_certain(senders[entity], planned, chance)
            if plan.pause_s:
                await self._pause(chance.uniform(0, 2 * plan.pause_s))

    def _draw(self, chance: Random, entity: str, key: str | None) -> list[PlannedMessage]:
        plan = self._plan
        wanted = 3 if chance.random() < plan.list_share else 1
        planned: list[PlannedMessage] = []
        for _ in range(wanted):
            number = next(self._numbers, None)
            if number is None:
                break
            kind = chance.random()
            is_expiring = kind < plan.expiring_share
            is_scheduled = not is_expiring and kind < plan.expiring_share + plan.scheduled_share
            planned.append(
                PlannedMessage(
                    uid=f"{plan.uid_prefix}-{number}",
                    entity=entity,
                    size=chance.randint(plan.least_bytes, plan.most_bytes),
                    color=chance.choice(COLORS),
                    key=key,
                    life_s=chance.choice([4.0, 15.0]) if is_expiring else None,
                    appears_at=clock.now() + chance.uniform(0.5, 3) if is_scheduled else None,
                )
            )
        return planned

    async def _send_until_certain(
        self, sender: ServiceBusSender, planned: Sequence[PlannedMessage], chance: Random
    ) -> None:
        """Send until the messages are accepted, or give up after a rejection."""
        messages = [one.message(self._plan.keys) for one in planned]
        group = f"{self._plan.uid_prefix}/{next(self._groups)}"
        for number in count(1):
            facts = [{name: value for name, value in asdict(each).items() if value is not None} for each in planned]
            self._record.write("sending", group=group, number=number, messages=facts)
            try:
                await sender.send_messages(messages if len(messages) > 1 else messages[0])
            except ServiceBusError as error:
                outcome = "in doubt" if error.is_in_doubt else "refused"
                self._record.write("sent", group=group, outcome=outcome, error=type(error).__name__)
            else:
                self._record.write("sent", group=group, outcome="ok")
                return
            if (outcome == "refused" and chance.random() < GIVEN_UP) or clock.monotonic() >= self._end_at:
                return
            await clock.sleep(chance.uniform(0.1, 0.5))

    async def _pause(self, span_s: float) -> None:
        try:
            async with clock.timeout(span_s):
                await self._is_ending.wait()
        except TimeoutError:
            pass


def _messages_in_doubt(lines: Iterable[Line]) -> list[list[PlannedMessage]]:
    """Return the groups of messages without a certain outcome, in the order of their last send."""
    unfinished: dict[str, list[PlannedMessage]] = {}
    for line in lines:
        is_certain = line["event"] == "sent" and line["outcome"] != "in doubt"
        if line["event"] == "sending" or is_certain:
            unfinished.pop(line["group"], None)
        if line["event"] == "sending":
            unfinished[line["group"]] = [PlannedMessage(**each) for each in line["messages"]]
    return list(unfinished.values())


def _options(pairing: dict[str, Any]) -> PairedNamespaceOptions:
    options: dict[str, Any] = {}
    for name, value in pairing.items():
        options[name.removesuffix("_s")] = timedelta(seconds=value) if name.endswith("_s") else value
    return PairedNamespaceOptions(**options)


if __name__ == "__main__":
    asyncio.run(Sending(SendingPlan.read(sys.argv[1])).run())
