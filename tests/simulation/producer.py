"""The application that sends: each message when it is due, again if it was not accepted, until it has tried enough."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import Final

from sbclient import clock
from sbclient.client.client import ServiceBusClient
from sbclient.client.sender import ServiceBusSender
from sbclient.errors import BacklogUnavailableError, MessageSizeExceededError, ServiceBusError
from sbclient.message import ServiceBusMessage
from tests.simulation.history import GAVE_UP, History, Outcome, Submission, TransactionStory, Try, reported_outcome
from tests.simulation.plan import Lane
from tests.simulation.program import Program
from tests.simulation.traffic import Unit

_ROWS: Final = ("single", "list", "batch")
"""Units of which each message can be a row."""

_OWN_MISTAKES: Final = ("MessageSizeExceededError", "InvalidOperationError")


class Producer:
    """One program that sends; what it still has to send outlives its deaths.

    Args:
        units: all that it sends.
        epoch: when the run begins.
        is_stored: whether a message with some uid is, or was, stored in either namespace.
        gives_up: whether it waits for some of its sends only for a while.
        sends_bursts: whether it sends what is due at one time without waiting in between.
        writes_tasks: whether it writes what is due as the rows of a task of Spark, where it can.
    """

    def __init__(
        self,
        units: Sequence[Unit],
        history: History,
        epoch: float,
        is_stored: Callable[[str], bool],
        *,
        gives_up: bool = False,
        sends_bursts: bool = False,
        writes_tasks: bool = False,
    ) -> None:
        self._gives_up = gives_up
        self._writes_tasks = writes_tasks
        self._sends_bursts = sends_bursts
        self._history = history
        self._is_stored = is_stored
        self._epoch = epoch
        self._lines: dict[tuple[str, int], deque[Unit]] = {}
        for unit in units:
            self._lines.setdefault((unit.lane.name, unit.sender), deque()).append(unit)
        self.client: ServiceBusClient | None = None
        self.client_name = ""

    @property
    def is_done(self) -> bool:
        return not any(self._lines.values())

    async def run(self, program: Program) -> None:
        """One life: send what is left, then stay until it is ended, so that its failovers can be watched."""
        async with program.client(paired=True) as client:
            self.client = client
            name = self.client_name = program.client_name
            senders: dict[str, ServiceBusSender] = {}
            try:
                async with asyncio.TaskGroup() as group:
                    for (lane_name, number), line in self._lines.items():
                        if line:
                            lane = line[0].lane
                            sender = senders.get(lane_name)
                            if sender is None or number % 2:
                                get = client.get_topic_sender if lane.kind == "topic" else client.get_queue_sender
                                # of a lane with transactions the client looks it up
                                is_looked_up = lane.is_partitioned or lane.kind == "transactional"
                                partitioned = None if is_looked_up else False
                                sender = senders[lane_name] = get(lane_name, partitioned=partitioned)
                            random = Random(program.random.getrandbits(64))
                            if self._writes_tasks and lane.kind in ("plain", "keyed", "topic"):
                                group.create_task(self._write_all(name, client, sender, line, random))
                            else:
                                group.create_task(self._send_all(name, client, sender, line, random))
                await asyncio.Event().wait()
            finally:
                self._history.pair_events[name] = client.pair.events()
                self._history.ended_at[name] = self._history.now()
                entities = client.pair.status().entities.values()
                self._history.diverted_reported[name] = sum(entity.diverted for entity in entities)

    async def _send_all(
        self, name: str, client: ServiceBusClient, sender: ServiceBusSender, line: deque[Unit], random: Random
    ) -> None:
        while line:
            await clock.sleep(max(0.0, self._epoch + line[0].due_s - clock.true_now()))
            due = [unit for unit in line if self._epoch + unit.due_s <= clock.true_now()]
            if not self._sends_bursts or len(due) == 1:
                await self._send_unit(name, client, sender, line[0], random)
                line.popleft()
                continue
            async with asyncio.TaskGroup() as group:
                for unit in due:
                    own = Random(random.getrandbits(64))
                    sending = group.create_task(self._send_unit(name, client, sender, unit, own))
                    sending.add_done_callback(partial(_take_out, line, unit))

    async def _write_all(
        self, name: str, client: ServiceBusClient, sender: ServiceBusSender, line: deque[Unit], random: Random
    ) -> None:
        """Write tasks, each with all that is due: a task that fails is tried again as a whole, as Spark does."""
        while line:
            await clock.sleep(max(0.0, self._epoch + line[0].due_s - clock.true_now()))
            task: list[Unit] = []
            while line and self._epoch + line[0].due_s <= clock.true_now() and line[0].kind in _ROWS:
                task.append(line.popleft())
            if not task:
                await self._send_unit(name, client, sender, line[0], random)
                line.popleft()
                continue
            try:
                for _ in range(1 + task[0].tries_left):
                    if await self._write(name, client, sender, task):
                        break
                    await clock.sleep(random.uniform(0.2, 8.0))
            except asyncio.CancelledError:
                line.extendleft(reversed(task))  # the next life writes them
                raise

    async def _write(self, name: str, client: ServiceBusClient, sender: ServiceBusSender, task: list[Unit]) -> bool:
        """Write one task; whether it has succeeded."""
        submissions = [submission for unit in task for submission in unit.submissions]
        tries = [Try(self._history.now(), name) for _ in submissions]
        first = len(self._history.attempts)
        for submission, one in zip(submissions, tries, strict=True):
            submission.tries.append(one)
        outcome, error = Outcome.DOUBT, ""
        try:
            sent = await write_task(client, sender, task[0].lane, [one.message for one in submissions])
            outcome = Outcome.OK
            if sent != len(submissions):
                self._history.violated("I17", f"a task of {len(submissions)} rows has reported {sent} as sent")
        except ServiceBusError as failure:
            error = type(failure).__name__
            self._history.refused(failure)
        finally:
            attempts = range(first, len(self._history.attempts))
            for one in tries:
                one.end, one.outcome, one.error, one.attempts = self._history.now(), outcome, error, attempts
            uids = ",".join(submission.uid for submission in submissions)
            self._history.note(name, "task", uids, outcome, error)
        for unit in task if outcome is Outcome.OK else ():
            self._witness(unit)
        return outcome is Outcome.OK

    async def _send_unit(
        self, name: str, client: ServiceBusClient, sender: ServiceBusSender, unit: Unit, random: Random
    ) -> None:
        while unit.tries_left >= 0:
            unit.tries_left -= 1
            if await self._try(name, client, sender, unit, self._patience_s(random)):
                if unit.numbers and unit.cancels:
                    await self._take_back(sender, unit, random)
                if not unit.repeats:
                    break
                unit.repeats -= 1
                unit.tries_left += 1
                pauses_s = (0.0, 3.0, 30.0) if unit.lane.window_s is None else (8.0, 12.0, 16.0)
                await clock.sleep(random.choice(pauses_s))
            else:
                await clock.sleep(random.uniform(0.2, 8.0))

    def _patience_s(self, random: Random) -> float | None:
        """How long a send is waited for; None = until it ends by itself."""
        return patience_s(random) if self._gives_up else None

    async def _try(
        self,
        name: str,
        client: ServiceBusClient,
        sender: ServiceBusSender,
        unit: Unit,
        waits_s: float | None,
    ) -> bool:
        """Send a unit once; whether it was accepted, or will never be."""
        tries = [Try(self._history.now(), name) for _ in unit.submissions]
        first = len(self._history.attempts)
        for submission, one in zip(unit.submissions, tries, strict=True):
            submission.tries.append(one)
        outcome, error = Outcome.DOUBT, ""
        try:
            async with clock.timeout(waits_s):
                if unit.kind == "transaction":
                    outcome = await self._transact(client, sender, unit.submissions, rolls_back=unit.rolls_back)
                else:
                    await self._hand_over(sender, unit)
                    outcome = Outcome.OK
        except TimeoutError:
            error = GAVE_UP
        except ServiceBusError as failure:
            outcome, error = reported_outcome(failure), type(failure).__name__
            self._history.refused(failure)
            self._judge_size(unit, failure)
            if isinstance(failure, BacklogUnavailableError) and not failure.causes:
                self._history.violated(
                    "I16", f"{unit.submissions[0].uid} was refused for the backlog, which was not asked"
                )
        finally:
            attempts = range(first, len(self._history.attempts))
            for one in tries:
                one.end, one.outcome, one.error, one.attempts = self._history.now(), outcome, error, attempts
            uids = ",".join(submission.uid for submission in unit.submissions)
            self._history.note(name, unit.kind, uids, outcome, error)
        if outcome is Outcome.OK:
            self._witness(unit)
        return outcome is Outcome.OK or unit.rolls_back or error in _OWN_MISTAKES

    async def _hand_over(self, sender: ServiceBusSender, unit: Unit) -> None:
        messages = [submission.message for submission in unit.submissions]
        if unit.schedule is not None:
            for message in messages:
                message.scheduled_enqueue_time_utc = unit.schedule
            unit.numbers = await sender.schedule_messages(messages, unit.schedule)
        elif unit.kind == "batch":
            batch = await sender.create_message_batch()
            for message in messages:
                batch.add_message(message)
            await sender.send_messages(batch)
        else:
            await sender.send_messages(messages if len(messages) > 1 else messages[0])

    async def _transact(
        self, client: ServiceBusClient, sender: ServiceBusSender, submissions: Sequence[Submission], *, rolls_back: bool
    ) -> Outcome:
        """Send submissions in one transaction; until the commit is asked for nothing is in doubt."""
        history = self._history
        story = TransactionStory(
            next(history.numbers), tuple(submission.uid for submission in submissions), Outcome.REFUSED
        )
        history.transactions[story.number] = story
        transaction = client.transaction()
        try:
            async with transaction:
                for submission in submissions:
                    await sender.send_messages(submission.message, transaction=transaction)
                if rolls_back:
                    await transaction.rollback()
                else:
                    story.fate = Outcome.DOUBT
            if not rolls_back:
                story.fate = Outcome.OK
        except ServiceBusError as error:
            history.refused(error)
            if story.fate is Outcome.DOUBT:
                story.fate = reported_outcome(error)
        return story.fate

    async def _take_back(self, sender: ServiceBusSender, unit: Unit, random: Random) -> None:
        await clock.sleep(random.choice((0.0, 2.0, 20.0)))
        for submission in unit.submissions:
            submission.cancelled = Outcome.DOUBT
        try:
            await sender.cancel_scheduled_messages(unit.numbers)
        except ServiceBusError as error:
            self._history.refused(error)
            for submission in unit.submissions:
                submission.cancelled = reported_outcome(error)
        else:
            for submission in unit.submissions:
                submission.cancelled = Outcome.OK

    def _judge_size(self, unit: Unit, failure: ServiceBusError) -> None:
        """What fits is never refused for its size; only one that grows too large for the backlog may be."""
        reserves = self.client is not None and self.client.pair.state.options.reserve_backlog_headroom
        edge = unit.submissions[0].edge
        fits = not edge or (edge in ("below", "fits") and reserves)
        if isinstance(failure, MessageSizeExceededError) and fits:
            self._history.violated("I18", f"{unit.submissions[0].uid} fits and was refused: {failure}")

    def _witness(self, unit: Unit) -> None:
        """What was acknowledged must be stored by now, or must have been."""
        for submission in unit.submissions:
            if not (unit.rolls_back or submission.cancelled or self._is_stored(submission.uid)):
                self._history.violated("I2", f"{submission.uid} was acknowledged and is stored nowhere")


async def write_task(
    client: ServiceBusClient, sender: ServiceBusSender, lane: Lane, messages: Sequence[ServiceBusMessage]
) -> int:
    """Write messages as the rows of one task of Spark, without Spark; return how many it reports as sent."""
    # Imported here: pyspark takes two seconds, and few runs have tasks.
    from sbclient_spark.options import Destination
    from sbclient_spark.write.options import write_options
    from sbclient_spark.write.partition_writer import PartitionWriter
    from sbclient_spark.write.reports import TaskReport
    from sbclient_spark.write.row_errors import BadRecords
    from tests.spark.encoding import encoded_row, encoded_rows

    async def mixes_keys(destination: Destination) -> bool:
        return not lane.is_partitioned

    pair = {"connectionString": "memory://contoso", "secondaryConnectionString": "memory://contoso-backup"}
    report = TaskReport(partition=0)
    writer = PartitionWriter(
        client,
        lambda _: sender,
        write_options({**pair, "topic" if lane.kind == "topic" else "queue": lane.name}),
        mixes_keys=mixes_keys,
        report=report,
        bad_records=BadRecords(None, "part-0"),
    )
    rows = [encoded_row(position, message) for position, message in enumerate(messages)]
    await writer.offer([encoded_rows(Destination(lane.name), rows)])
    await writer.finish()
    return report.sent


def _take_out(line: deque[Unit], unit: Unit, sending: asyncio.Task[None]) -> None:
    if not sending.cancelled():
        line.remove(unit)


def patience_s(random: Random) -> float | None:
    """Return after how long an application cancels a call, or None for never."""
    if random.random() < 0.7:
        return None
    return random.choice((0.0, 0.01, 0.1, 1.0, 6.0)) * random.random()
