"""The wire between a client and a namespace: it takes time, it is watched, and its client can be killed at any call.

Everything that the client asks goes through to the memory transport; nothing is answered here. What is seen is written
into the history, and what is wrong at that very moment (two holders of one session, a ping handed out, a token that
settles twice) is noted as a violation at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from random import Random
from typing import Final, TypeVar

from sbclient import clock
from sbclient.delivery import ServiceBusReceiveMode, SessionChoice
from sbclient.errors import ServiceBusConnectionError, ServiceBusError
from sbclient.transport.base import Administration, Check, ReceiverLink, SenderLink, TransactionLink, Transport
from tests.simulation.history import History, Outcome, outcome_of, reported_outcome
from tests.simulation.lifeline import Lifeline, RunawayError
from tests.simulation.links import WiredReceiver, WiredSender, WiredTransaction

T = TypeVar("T")

MOST_CALLS: Final = 60_000
"""More calls on the wire than any normal run makes; a client loops without a pause."""


class Wire:
    """A transport that is watched; see the module.

    Args:
        inner: the namespace.
        side: `primary` or `secondary`.
        random: for latency.
        latency_s: the longest that a call takes, on its way there or on its way back.
        is_remote: whether a network is between the client and the namespace, so that the transport knows what is in
            doubt.
    """

    def __init__(
        self,
        inner: Transport,
        side: str,
        history: History,
        life: Lifeline,
        random: Random,
        *,
        latency_s: float,
        is_remote: bool = False,
    ) -> None:
        self.inner = inner
        self.side = side
        self.history = history
        self.life = life
        self.random = random
        self.is_remote = is_remote
        self._latency_s = latency_s

    @property
    def namespace(self) -> str:
        return self.inner.namespace

    @property
    def administration(self) -> Administration:
        return self.inner.administration

    def outcome_of(self, error: ServiceBusError) -> Outcome:
        """How sure a failure is."""
        return reported_outcome(error) if self.is_remote else outcome_of(error)

    async def call(self, work: Callable[[], Awaitable[T]], *, is_send: bool = False) -> T:
        """One request and its answer."""
        life, history = self.life, self.history
        if life.is_dead:
            raise ServiceBusConnectionError(f"the program {life.name} is dead and reaches no namespace")
        history.wire_calls += 1
        if history.wire_calls > MOST_CALLS:
            raise RunawayError(f"more than {MOST_CALLS} calls on the wire")
        is_last = life.is_last_call(is_send=is_send)
        if is_last and not life.dies_after_work:
            await life.die()
        late_s = self.random.uniform(-self._latency_s, self._latency_s) if self._latency_s else 0.0
        if late_s < 0:
            await clock.sleep(-late_s)
        if life.is_dead:
            await asyncio.Event().wait()
        cut = self._cut()
        if cut == "before":
            raise ServiceBusConnectionError(f"the connection to {self.namespace} broke within a frame")
        try:
            answer = await work()
        except ServiceBusError:
            if life.is_dead:
                await life.die()
            raise
        if is_last or life.is_dead:
            await life.die()
        if cut == "after":
            raise ServiceBusConnectionError(f"the connection to {self.namespace} broke before the answer had come")
        if late_s > 0:
            await clock.sleep(late_s)
        return answer

    def _cut(self) -> str:
        """Whether the connection breaks at this call, before the namespace has all of it or after."""
        probability = self.history.cuts.get(self.side, 0.0)
        if not probability or self.random.random() >= probability:
            return ""
        return self.random.choice(("before", "after"))

    def enter_loop(self) -> None:
        self.inner.enter_loop()

    def open_sender(self, entity_path: str, check: Check | None = None) -> SenderLink:
        return WiredSender(self, self.inner.open_sender(entity_path, check), entity_path)

    def open_receiver(
        self,
        entity_path: str,
        *,
        session: SessionChoice = None,
        receive_mode: ServiceBusReceiveMode = ServiceBusReceiveMode.PEEK_LOCK,
        prefetch_count: int = 0,
    ) -> ReceiverLink:
        inner = self.inner.open_receiver(
            entity_path, session=session, receive_mode=receive_mode, prefetch_count=prefetch_count
        )
        return WiredReceiver(
            self, inner, entity_path, has_session=session is not None, fetches_ahead=prefetch_count > 0
        )

    async def begin_transaction(self, *, timeout_s: float, partition_key: str | None = None) -> TransactionLink:
        return WiredTransaction(self, await self.call(lambda: self.inner.begin_transaction(timeout_s=timeout_s)))

    async def list_sessions(
        self, entity_path: str, *, state_updated_after: datetime | None, timeout_s: float
    ) -> Sequence[str]:
        return await self.call(
            lambda: self.inner.list_sessions(entity_path, state_updated_after=state_updated_after, timeout_s=timeout_s)
        )

    async def renew_credential(self) -> None:
        await self.inner.renew_credential()  # it reports no error

    async def close(self) -> None:
        if self.is_remote or not self.life.is_dead:
            await self.inner.close()
