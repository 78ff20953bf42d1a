"""A program that receives: `python -m tests.processes.receiving plan.json`. SIGTERM lets it finish what it holds.

Most messages are completed; a few are abandoned, dead-lettered, or kept until their lock has ended, as applications do.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from sbclient import NEXT_AVAILABLE_SESSION, ServiceBusClient, ServiceBusReceivedMessage, clock
from sbclient.client.receiver import ServiceBusReceiver
from sbclient.errors import OperationTimeoutError, ServiceBusError
from tests.processes.bodies import is_whole, uid_of
from tests.processes.plan import Plan
from tests.processes.record import Record

UNWANTED: Final = "unwanted"
"""The reason for which these programs dead-letter a message."""

SUBSCRIPTIONS: Final = "/Subscriptions/"
AT_ONCE: Final = 10
WAIT_S: Final = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivingPlan(Plan):
    """What one process receives.

    Attributes:
        paths: of queues, or of subscriptions.
        workers: receivers for each path.
        abandoned, dead_lettered, kept: shares of what is received.
    """

    paths: list[str]
    has_sessions: bool = False
    workers: int = 2
    abandoned: float = 0.03
    dead_lettered: float = 0.02
    kept: float = 0.01


class Receiving:
    """Receives what a plan says and records every delivery and settlement."""

    def __init__(self, plan: ReceivingPlan) -> None:
        self._plan = plan
        self._record = Record(plan.record)
        self._record.take_log()
        self._is_ending = asyncio.Event()

    async def run(self) -> None:
        plan = self._plan
        for ending in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(ending, self._is_ending.set)
        client = ServiceBusClient.from_connection_string(
            plan.primary, timeout=plan.timeout_s, retry_total=1, retry_backoff_factor=0.3
        )
        async with client:
            self._record.write("ready")
            async with asyncio.TaskGroup() as workers:
                for path in plan.paths:
                    for number in range(plan.workers):
                        workers.create_task(self._work(client, path, Random(f"{plan.seed} {path} {number}")))
        self._record.write("ended")

    async def _work(self, client: ServiceBusClient, path: str, chance: Random) -> None:
        """Open receivers, one after the other, and receive until each ends or fails."""
        while not self._is_ending.is_set():
            receiver = open_receiver(client, path, has_sessions=self._plan.has_sessions)
            try:
                async with receiver:
                    await self._receive(receiver, path, chance)
            except OperationTimeoutError:
                pass  # no session is free
            except ServiceBusError as error:
                self._record.write("not received", path=path, error=type(error).__name__)
                await clock.sleep(0.3)

    async def _receive(self, receiver: ServiceBusReceiver, path: str, chance: Random) -> None:
        while not self._is_ending.is_set():
            messages = await receiver.receive_messages(AT_ONCE, max_wait_time=WAIT_S)
            for message in messages:
                note_delivery(self._record, path, message, "queue")
            for message in messages:
                await self._deal_with(receiver, path, message, chance)
            if receiver.session is not None:
                if not messages:
                    return  # go on with another session
                await receiver.session.renew_lock()

    async def _deal_with(
        self, receiver: ServiceBusReceiver, path: str, message: ServiceBusReceivedMessage, chance: Random
    ) -> None:
        plan, lot = self._plan, chance.random()
        if plan.pause_s:
            await clock.sleep(chance.uniform(0, 2 * plan.pause_s))
        if lot < plan.kept and not plan.has_sessions:
            return  # the lock expires
        if lot < plan.kept + plan.abandoned:
            mode, settle = "abandon", receiver.abandon_message(message)
        elif lot < plan.kept + plan.abandoned + plan.dead_lettered:
            mode, settle = "dead_letter", receiver.dead_letter_message(message, reason=UNWANTED)
        else:
            mode, settle = "complete", receiver.complete_message(message)
        copy = {"path": path, "number": message.sequence_number, "stored_at": message.enqueued_time_utc.timestamp()}
        self._record.write("settling", mode=mode, **copy)
        try:
            await settle
        except ServiceBusError as error:
            outcome = "in doubt" if error.is_in_doubt else "refused"
            self._record.write("settled", mode=mode, outcome=outcome, error=type(error).__name__, **copy)
            if self._plan.has_sessions:
                raise  # later messages of the session must not overtake it
        else:
            self._record.write("settled", mode=mode, outcome="ok", **copy)
            if mode == "abandon" and self._plan.has_sessions:
                raise _GivenBackError("abandoned: the broker redelivers the later messages of the session after it")


class _GivenBackError(ServiceBusError):
    """Releases the session, so that no message overtakes the abandoned one."""


def open_receiver(client: ServiceBusClient, path: str, *, has_sessions: bool, **more: Any) -> ServiceBusReceiver:
    """A receiver for the path of a queue or of a subscription."""
    session = NEXT_AVAILABLE_SESSION if has_sessions else None
    waits: dict[str, Any] = {"max_wait_time": WAIT_S} if has_sessions else {}
    if SUBSCRIPTIONS in path:
        topic, _, subscription = path.partition(SUBSCRIPTIONS)
        return client.get_subscription_receiver(topic, subscription, session_id=session, **waits, **more)
    return client.get_queue_receiver(path, session_id=session, **waits, **more)


def note_delivery(record: Record, path: str, message: ServiceBusReceivedMessage, origin: str) -> None:
    """Record a received message before it is settled.

    Args:
        origin: where it was received: `queue`, `dead letters`, or `backlog dead letters`.
    """
    body = bytes(message)
    record.write(
        "received",
        origin=origin,
        path=path,
        uid=uid_of(body),
        is_whole=is_whole(body),
        number=message.sequence_number,
        stored_at=message.enqueued_time_utc.timestamp(),
        locked_until=message.locked_until_utc.timestamp() if message.locked_until_utc is not None else None,
        message_id=message.message_id,
        session_id=message.session_id,
        partition_key=message.partition_key,
        properties=dict(message.application_properties),
        reason=message.dead_letter_reason,
    )


if __name__ == "__main__":
    asyncio.run(Receiving(ReceivingPlan.read(sys.argv[1])).run())
