"""The application that receives: it completes, abandons, defers, dead-letters, renews, and lets locks expire."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Final

from sbclient import clock
from sbclient.client.client import ServiceBusClient
from sbclient.client.receiver import ServiceBusReceiver
from sbclient.delivery import NEXT_AVAILABLE_SESSION, ServiceBusReceiveMode
from sbclient.errors import OperationTimeoutError, ServiceBusError
from sbclient.message import ServiceBusReceivedMessage
from tests.simulation.history import Delivery, History, Outcome, StateNote, reported_outcome, uid_of
from tests.simulation.plan import Lane
from tests.simulation.producer import patience_s
from tests.simulation.program import Program

SUBSCRIPTION: Final = "all"
AUDIT: Final = "audit"
"""The subscription whose copies are only counted."""

REASON: Final = "unwanted"
WAIT_S: Final = 60.0
SLOW_S: Final = 4.0
"""A consumer that works this long on a message receives one at a time."""

QUICK_S: Final = 10.0
MOST_PATIENT: Final = 6
"""A consumer that fails repeatedly within `QUICK_S` waits longer each time, up to this many times as long."""

_ACTIONS: Final = ("abandon", "defer", "dead_letter", "late", "renew", "transact", "roll_back", "forget")
_WEIGHTS: Final = (5, 3, 3, 2, 3, 4, 2, 2)


def delivery_path(lane: Lane) -> str:
    """Where a lane's messages come out."""
    return f"{lane.name}/Subscriptions/{SUBSCRIPTION}" if lane.kind == "topic" else lane.name


class Consumer:
    """One program that receives from every lane.

    Args:
        gives_up: whether it waits for some settlements only for a while.

    Attributes:
        is_calm: from now on everything is completed at once.
    """

    def __init__(self, lanes: Sequence[Lane], history: History, *, gives_up: bool = False) -> None:
        self._gives_up = gives_up
        self._lanes = lanes
        self._history = history
        self.is_calm = False

    async def run(self, program: Program) -> None:
        plan = program.plan
        options = replace(plan.options, provision="none") if plan.redirects else None
        async with program.client(paired=plan.redirects, options=options) as client, asyncio.TaskGroup() as group:
            for lane in self._lanes:
                for _ in range(lane.receivers):
                    random = Random(program.random.getrandbits(64))
                    group.create_task(self._receive_on(program.client_name, client, lane, random))

    async def _receive_on(self, name: str, client: ServiceBusClient, lane: Lane, random: Random) -> None:
        failures = 0
        while True:
            begun_at = self._history.now()
            receiver = _receiver(client, lane)
            try:
                async with receiver:
                    await self._consume(name, client, receiver, lane, random)
            except OperationTimeoutError:
                await clock.sleep(0.1)
            except ServiceBusError as error:
                self._history.refused(error)
                failures = failures + 1 if self._history.now() - begun_at < QUICK_S else 1
                await clock.sleep(random.uniform(0.5, 4.0) * min(failures, MOST_PATIENT))

    async def _consume(
        self, name: str, client: ServiceBusClient, receiver: ServiceBusReceiver, lane: Lane, random: Random
    ) -> None:
        if lane.requires_session:
            await self._look_at_state(receiver, lane)
        for number in range(20):
            messages = await receiver.receive_messages(
                max_message_count=1 if lane.work_s >= SLOW_S else random.choice((1, 4, 20)),
                max_wait_time=1.0 if lane.requires_session else WAIT_S,
            )
            if not messages and lane.requires_session:
                return
            for message in messages:
                self.note_delivery(name, lane, message, "queue", message.namespace)
                if not lane.deletes:
                    await self._deal_with(client, receiver, lane, message, random)
            if lane.requires_session and number % 2:
                await self._store_state(receiver, lane, random.randbytes(3))

    def note_delivery(self, name: str, lane: Lane, message: ServiceBusReceivedMessage, origin: str, side: str) -> None:
        history = self._history
        delivery = Delivery(history.now(), name, delivery_path(lane), uid_of(message), message, origin, side)
        history.deliveries.append(delivery)
        history.note(name, "delivered", delivery.path, delivery.uid, message.sequence_number, message.delivery_count)

    async def _deal_with(
        self,
        client: ServiceBusClient,
        receiver: ServiceBusReceiver,
        lane: Lane,
        message: ServiceBusReceivedMessage,
        random: Random,
    ) -> None:
        is_easy = self.is_calm or random.randrange(100) < lane.care
        action = "complete" if is_easy else random.choices(_ACTIONS, _WEIGHTS)[0]
        if lane.work_s and not self.is_calm:
            await clock.sleep(random.random() * lane.work_s)
        waits_s = patience_s(random) if self._gives_up and not self.is_calm else None
        try:
            async with clock.timeout(waits_s):
                await self._do(action, client, receiver, lane, message)
        except TimeoutError:
            if lane.requires_session:
                raise OperationTimeoutError("the application gave up, and its session with it") from None
        except ServiceBusError as error:
            self._history.refused(error)
            if lane.requires_session:
                raise  # the session is lost, or soon will be: everything taken in it comes again

    async def _do(
        self,
        action: str,
        client: ServiceBusClient,
        receiver: ServiceBusReceiver,
        lane: Lane,
        message: ServiceBusReceivedMessage,
    ) -> None:
        if action == "abandon":
            await receiver.abandon_message(message)
        elif action == "defer":
            await receiver.defer_message(message)
        elif action == "dead_letter":
            await receiver.dead_letter_message(message, REASON, "the receiver does not want it")
        elif action == "late" and lane.lock_s < 20:
            await clock.sleep(lane.lock_s + 0.5)
            await receiver.complete_message(message)
        elif action == "renew":
            if receiver.session is not None:
                await receiver.session.renew_lock()
            else:
                await receiver.renew_message_lock(message)
            await clock.sleep(lane.lock_s * 0.7)
            await receiver.complete_message(message)
        elif action in ("transact", "roll_back"):
            transaction = client.transaction(namespace=message.namespace)
            async with transaction:
                await receiver.complete_message(message, transaction=transaction)
                if action == "roll_back":
                    await transaction.rollback()
            if action == "roll_back":
                await receiver.complete_message(message)
        elif action != "forget":
            await receiver.complete_message(message)

    async def _look_at_state(self, receiver: ServiceBusReceiver, lane: Lane) -> None:
        assert receiver.session is not None
        begin = self._history.now()
        state = await receiver.session.get_state()
        self._note_state(receiver, lane, state, begin, Outcome.OK, is_read=True)

    async def _store_state(self, receiver: ServiceBusReceiver, lane: Lane, state: bytes) -> None:
        assert receiver.session is not None
        begin, outcome = self._history.now(), Outcome.DOUBT
        try:
            await receiver.session.set_state(state)
            outcome = Outcome.OK
        except ServiceBusError as error:
            outcome = reported_outcome(error)
            raise
        finally:
            self._note_state(receiver, lane, state, begin, outcome, is_read=False)

    def _note_state(
        self,
        receiver: ServiceBusReceiver,
        lane: Lane,
        state: bytes | None,
        begin: float,
        outcome: Outcome,
        *,
        is_read: bool,
    ) -> None:
        assert receiver.session is not None
        session_id = receiver.session.session_id
        is_elsewhere = receiver._both is not None and receiver._both.at("primary")[1] == "secondary"
        path = f"{lane.name} of the secondary" if is_elsewhere else lane.name
        self._history.states.append(StateNote(self._history.now(), path, session_id, state, is_read, outcome, begin))
        self._history.note("state", lane.name, session_id, state, outcome, is_read)


def _receiver(client: ServiceBusClient, lane: Lane) -> ServiceBusReceiver:
    mode = ServiceBusReceiveMode.RECEIVE_AND_DELETE if lane.deletes else ServiceBusReceiveMode.PEEK_LOCK
    if lane.kind == "topic":
        return client.get_subscription_receiver(
            lane.name, SUBSCRIPTION, receive_mode=mode, prefetch_count=lane.prefetch, max_wait_time=WAIT_S
        )
    return client.get_queue_receiver(
        lane.name,
        session_id=NEXT_AVAILABLE_SESSION if lane.requires_session else None,
        receive_mode=mode,
        prefetch_count=lane.prefetch,
        max_wait_time=WAIT_S,
    )
