"""One session-enabled backlog queue, as the syphon sees it: each session is brought home in order, one at a time.

The lock of the session is what keeps competing syphons, and the producer, from overtaking each other. A session whose
destination refuses is released as it is and tried later; nothing in it is deferred, since that would change its order.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, OrderedDict
from collections.abc import Sequence
from typing import Final, Literal

from sbclient.delivery import NEXT_AVAILABLE_SESSION, SessionChoice, Settlement, SettleMode
from sbclient.errors import (
    InvalidOperationError,
    MessageSizeExceededError,
    MessagingEntityNotFoundError,
    OperationTimeoutError,
    ServiceBusError,
    ServiceBusServerBusyError,
    SessionCannotBeLockedError,
)
from sbclient.message import ServiceBusReceivedMessage
from sbclient.options import SERVER_BUSY_PAUSE
from sbclient.pairing.state import PairState
from sbclient.rules.backoff import backoff_s
from sbclient.rules.envelope import PATH, MalformedEnvelopeError, unseal
from sbclient.rules.ping import is_ping
from sbclient.rules.size import encoded_size
from sbclient.syphon.budget import SyphonShare
from sbclient.syphon.destination import FORGET_AFTER_S, MISSING, REFUSED, TOO_LARGE
from sbclient.syphon.session_backoff import FIRST_PAUSE_S, LONGEST_PAUSE_S, TRY_S, RestingSessions
from sbclient.syphon.session_picker import SessionChooser
from sbclient.syphon.status import DEAD_LETTERED, RECOVERED, UNAVAILABLE, PollRecord, QueueStatus, Trouble
from sbclient.tasks import OwnedTasks
from sbclient.telemetry import metrics, tracing
from sbclient.telemetry.log import get_logger
from sbclient.transport.base import ReceiverLink, SenderLink

log = get_logger(__name__)

WORKERS: Final = 4
SESSION_MESSAGES: Final = 20
MORE_WAIT_S: Final = 0.5
"""How long a session is waited in for more before it is released."""

RENEW_BELOW_S: Final = 30.0
LINKS_KEPT: Final = 100
KEEP_EACH_S: Final = 10.0
"""How often the lock of a session is looked at while its next message waits for its turn, or is on its way."""

LEAST_KEEP_S: Final = 0.5
"""However short the lock is, it is not renewed more often: each renewal is a request."""

_COMPLETE: Final = Settlement(SettleMode.COMPLETE)


class SessionSource:
    """The sessions of one backlog queue, drained by a few workers side by side.

    Args:
        share: its part of the syphon's limits.
        shut_down_s: how long, at the end, what is on its way may take to arrive.

    Attributes:
        accepted: the entity that was the last to accept a message, and when; None = nothing was accepted yet.
    """

    def __init__(
        self,
        pair: PairState,
        queue: str,
        share: SyphonShare,
        *,
        until: Literal["empty"] | None,
        shut_down_s: float,
    ) -> None:
        self._pair = pair
        self._clock = pair.clock
        self._at_primary = metrics.server(pair.primary.namespace)
        self._until = until
        self._share = share
        self._shut_down_s = shut_down_s
        self._paces = share.paces
        self._window = share.window()
        self._polls = PollRecord(queue, pair.clock)
        self._links: OrderedDict[str, tuple[SenderLink, float]] = OrderedDict()
        self._counts: Counter[str] = Counter()
        self._resting = RestingSessions(pair.clock)
        self._chooser = SessionChooser(
            pair.clock, pair.random, self._resting, self._sessions, is_until_empty=until == "empty"
        )
        self.accepted: tuple[str, float] | None = None
        self._moves = OwnedTasks(on_failure=lambda _: None)  # who started one hears of its failure
        self.queue = queue

    async def run(self, counts: Counter[str]) -> None:
        """Drain until cancelled, or until no session is left that can be moved.

        Args:
            counts: gains `drained` and `dead_lettered.<reason>`.
        """
        self._counts = counts
        workers = OwnedTasks(on_failure=lambda _: None)
        try:
            await asyncio.gather(*(workers.start(self._work(), name=f"syphon {self.queue}") for _ in range(WORKERS)))
        finally:
            await workers.close()
            await self._moves.close()
            await asyncio.gather(*(link.close() for link, _ in self._links.values()))

    def status(self) -> QueueStatus:
        """How it stands now."""
        return self._polls.status(in_hand=self._window.count)

    def refusing(self) -> dict[str, Trouble]:
        """What the destinations that refuse say, by path."""
        return self._resting.troubles

    async def _work(self) -> None:
        """Bring home one session after the other."""
        failures = 0
        while True:
            try:
                await self._close_idle_links()
                session = await self._chooser.next()
                if session is None or not await self._visit(session, self._share.wait_after(failures)):
                    return
                failures = 0
            except ServiceBusError as error:
                if self._until == "empty" and isinstance(error, MessagingEntityNotFoundError):
                    return  # there is no such queue, so there is nothing in it
                failures += 1
                self._polls.failed(error)
                log.info(
                    "syphon.session_not_drained",
                    "cannot drain a session of {queue!r}: {error}",
                    queue=self.queue,
                    error=error,
                )
            if failures:
                await self._clock.sleep(backoff_s(failures, first_s=FIRST_PAUSE_S, longest_s=LONGEST_PAUSE_S))

    async def _visit(self, session: SessionChoice, wait_s: float) -> bool:
        """Accept a session and bring it home; returns whether there may be another one."""
        link = self._pair.secondary.open_receiver(self.queue, session=session)
        try:
            if await self._accept(link, session, wait_s):
                with self._chooser.visiting(link.session_id or ""):
                    await self._drain(link)
            elif session is NEXT_AVAILABLE_SESSION and self._until == "empty":
                return bool(await self._sessions())
            return True
        finally:
            await link.close()

    async def _accept(self, link: ReceiverLink, session: SessionChoice, wait_s: float) -> bool:
        """Wait for the next available session, or accept one by name; returns whether there is one to be had."""
        async with self._share.turns:
            with self._polls.asking():
                try:
                    await link.open(timeout_s=wait_s if session is NEXT_AVAILABLE_SESSION else TRY_S)
                except OperationTimeoutError:
                    if session is not NEXT_AVAILABLE_SESSION:
                        raise
                    return False
                except SessionCannotBeLockedError:
                    if session is NEXT_AVAILABLE_SESSION:
                        raise
                    return False
        return True

    async def _sessions(self) -> Sequence[str]:
        """The sessions with messages, also those that somebody holds; and those that have a state only."""
        return await self._pair.secondary.list_sessions(self.queue, state_updated_after=None, timeout_s=TRY_S)

    # -- one session ---------------------------------------------------------------------------------------------

    async def _drain(self, link: ReceiverLink) -> None:
        """Bring home what is in an accepted session, until its destination refuses."""
        while messages := await self._more(link):
            sizes = [encoded_size(message) for message in messages]
            for size in sizes:
                self._window.add(size)
            try:
                for message in messages:
                    await self._wait_for_turn(link, message)
                    move = self._moves.start(self._bring_home(link, message), name=f"syphon {self.queue}")
                    try:
                        while await self._clock.wait([move], self._kept_for_s(link)):
                            await self._keep(link)
                    except (asyncio.CancelledError, ServiceBusError):
                        await self._clock.wait([move], self._shut_down_s)  # what is on its way arrives
                        raise
                    if not move.result():
                        return
            finally:
                for size in sizes:
                    self._window.remove(size)

    async def _more(self, link: ReceiverLink) -> Sequence[ServiceBusReceivedMessage]:
        """The next messages of a session; none if it has no more."""
        with self._polls.asking():
            return await link.receive(max_message_count=self._room, max_wait_time_s=MORE_WAIT_S)

    @property
    def _room(self) -> int:
        """How many messages of a session may be taken: each worker has its share of what there is room for."""
        return max(1, min(SESSION_MESSAGES, self._window.room // WORKERS))

    async def _wait_for_turn(self, link: ReceiverLink, message: ServiceBusReceivedMessage) -> None:
        """Wait until one more message may leave, and keep the session meanwhile."""
        if not self._paces.is_limited:
            return
        path = message.application_properties.get(PATH)
        turn = self._moves.start(self._paces.take(path if isinstance(path, str) else "", 1), name=f"turn {self.queue}")
        while await self._clock.wait([turn], self._kept_for_s(link)):
            await self._keep(link)

    def _kept_for_s(self, link: ReceiverLink) -> float:
        """How long a session needs no look after: its queue may be one that somebody made, with a short lock."""
        until = link.session_locked_until_utc
        if until is None:
            return KEEP_EACH_S
        return min(KEEP_EACH_S, max((until.timestamp() - self._clock.now()) / 2, LEAST_KEEP_S))

    async def _keep(self, link: ReceiverLink) -> None:
        """
        Raises:
            SessionLockLostError: it was lost; somebody else may be moving its messages by now.
        """
        until = link.session_locked_until_utc
        if until is None or until.timestamp() - self._clock.now() < RENEW_BELOW_S:
            await link.renew_session_lock(timeout_s=TRY_S)

    async def _bring_home(self, link: ReceiverLink, message: ServiceBusReceivedMessage) -> bool:
        """Move one message; returns whether it is done with. If not, its destination refuses and the session rests."""
        session_id = link.session_id or ""
        if is_ping(message) or self._pair.accepted.has(self.queue, message):
            await self._complete(link, message)
            return True
        while True:
            await self._keep(link)
            try:
                # Anew for each try: what is left of its life goes on shrinking while the destination is busy.
                path, content = unseal(message, now=self._clock.now(), life=self._pair.options.backlog_time_to_live)
            except MalformedEnvelopeError as error:
                await self._dead_letter(link, message, error.reason, error.description)
                return True
            if not self._resting.may_try(path, session_id):
                self._rest(session_id, path)
                return False
            try:
                sender = await self._sender(path)
                where = {metrics.DESTINATION: path, **self._at_primary}
                sending = sender.send([content], timeout_s=TRY_S)
                await tracing.carrying(tracing.DRAIN, [content], where, self._clock, sending)
            except (MessageSizeExceededError, InvalidOperationError) as error:
                self._answered(path)
                reason = TOO_LARGE if isinstance(error, MessageSizeExceededError) else REFUSED
                await self._dead_letter(link, message, reason, str(error))
                return True
            except ServiceBusServerBusyError:
                await self._clock.sleep(SERVER_BUSY_PAUSE.total_seconds())
            except ServiceBusError as error:
                return await self._refused(link, message, path, error)
            else:
                self._pair.accepted.add(self.queue, message)
                self._answered(path)
                self.accepted = path, self._clock.monotonic()
                self._counts["drained"] += 1
                metrics.add(metrics.DRAINED, 1, where)
                await self._complete(link, message)
                return True

    def _answered(self, path: str) -> None:
        self._chooser.learnt()
        if self._resting.answered(path):
            self._pair.record("syphon.destination_recovered", RECOVERED, path)
            self._chooser.recovered()

    async def _refused(
        self, link: ReceiverLink, message: ServiceBusReceivedMessage, path: str, error: ServiceBusError
    ) -> bool:
        """A destination gave an error; returns whether the message is given up, since the entity is long missing."""
        if self._resting.refused(path, error):
            self._pair.record("syphon.destination_unavailable", UNAVAILABLE, path, level=logging.WARNING, error=error)
        if self._resting.is_missing_for(path, self._pair.options.missing_entity_grace.total_seconds()):
            await self._dead_letter(link, message, MISSING, str(error))
            self._resting.given_up(path)
            return True
        self._rest(link.session_id or "", path)
        return False

    def _rest(self, session_id: str, path: str) -> None:
        if self._resting.rest(session_id, path):
            self._chooser.learnt()

    async def _complete(self, link: ReceiverLink, message: ServiceBusReceivedMessage) -> None:
        """Remove what the primary has; if that fails, the number is kept so that it is not sent again."""
        await link.settle(message, _COMPLETE, timeout_s=TRY_S)
        self._pair.accepted.discard(self.queue, message)

    async def _dead_letter(
        self, link: ReceiverLink, message: ServiceBusReceivedMessage, reason: str, description: str
    ) -> None:
        settlement = Settlement(SettleMode.DEAD_LETTER, reason, description[:4096])
        why = {**self._pair.at_backlog(self.queue), metrics.REASON: reason}
        settling = link.settle(message, settlement, timeout_s=TRY_S)
        await tracing.carrying(tracing.DEAD_LETTER, [message], why, self._clock, settling)
        self._counts[f"dead_lettered.{reason}"] += 1
        metrics.add(metrics.DEAD_LETTERED, 1, why)
        with tracing.within(message):
            self._pair.record("syphon.dead_lettered", DEAD_LETTERED, self.queue, reason=reason, queue=self.queue)

    # -- links to destinations -----------------------------------------------------------------------------------

    async def _sender(self, path: str) -> SenderLink:
        link, _ = self._links.get(path) or (self._pair.primary.open_sender(path), 0.0)
        self._links[path] = link, self._clock.monotonic()
        self._links.move_to_end(path)
        if len(self._links) > LINKS_KEPT:
            await self._links.popitem(last=False)[1][0].close()
        return link

    async def _close_idle_links(self) -> None:
        """Close the links through which nothing was sent for a while."""
        before = self._clock.monotonic() - FORGET_AFTER_S
        while self._links and next(iter(self._links.values()))[1] <= before:
            await self._links.popitem(last=False)[1][0].close()
