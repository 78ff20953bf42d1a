"""One session-enabled backlog queue, as the syphon sees it: each session is brought home in order, one at a time.

The lock of the session is what keeps competing syphons, and the producer, from overtaking each other. A session whose
destination refuses is released as it is and tried later; nothing in it is deferred, since that would change its order.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Sequence
from typing import Final, Literal

from sbclient import metrics, tracing
from sbclient.destination import MISSING, REFUSED, TOO_LARGE
from sbclient.errors import (
    InvalidOperationError,
    MessageSizeExceededError,
    MessagingEntityNotFoundError,
    OperationTimeoutError,
    ServiceBusError,
    ServiceBusServerBusyError,
)
from sbclient.log import get_logger
from sbclient.message import ServiceBusReceivedMessage
from sbclient.options import SERVER_BUSY_PAUSE
from sbclient.pair import Pair
from sbclient.rules.envelope import PATH, MalformedEnvelopeError, unseal
from sbclient.rules.ping import is_ping
from sbclient.rules.size import encoded_size
from sbclient.syphon_share import SyphonShare
from sbclient.syphon_status import PollRecord, QueueStatus, Trouble
from sbclient.tasks import OwnedTasks
from sbclient.transport.base import NEXT_AVAILABLE_SESSION, ReceiverLink, SenderLink, Settlement, SettleMode

log = get_logger(__name__)

WORKERS: Final = 4
SESSION_MESSAGES: Final = 20
MORE_WAIT_S: Final = 0.5
"""How long a session is waited in for more before it is released."""

TRY_S: Final = 20.0
RENEW_BELOW_S: Final = 30.0
FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 60.0
PASS_OVER_PAUSE_S: Final = 0.01
"""Between two sessions whose destination refuses; doubled up to `FIRST_PAUSE_S` while there is nothing else."""

SHUT_DOWN_S: Final = 5.0
LINKS_KEPT: Final = 100
REFUSALS_KEPT: Final = 1_000
"""Destinations that refuse; the one longest untried is forgotten first, and its `missing_entity_grace` begins anew."""

KEEP_EACH_S: Final = 10.0
"""How often the lock of a session is looked at while its next message waits for its turn."""

TRIES_UNTIL_EMPTY: Final = 3

_COMPLETE: Final = Settlement(SettleMode.COMPLETE)


class _Refusal:
    """What is known of a destination that refuses."""

    def __init__(self) -> None:
        self.trouble: Trouble | None = None
        self.failures = 0
        self.retry_at = float("-inf")


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
        pair: Pair,
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
        self._links: OrderedDict[str, SenderLink] = OrderedDict()
        self._refusals: OrderedDict[str, _Refusal] = OrderedDict()
        self._counts: Counter[str] = Counter()
        self._passed: set[str] = set()
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
            await asyncio.gather(*(link.close() for link in self._links.values()))

    def status(self) -> QueueStatus:
        """How it stands now."""
        return self._polls.status(in_hand=self._window.count)

    def refusing(self) -> dict[str, Trouble]:
        """What the destinations that refuse say, by path."""
        return {path: one.trouble for path, one in list(self._refusals.items()) if one.trouble is not None}

    async def _work(self) -> None:
        """Accept one session after the other."""
        failures = passes = 0
        while True:
            link = self._pair.secondary.open_receiver(self.queue, session=NEXT_AVAILABLE_SESSION)
            try:
                pause_s = await self._drain_next(link, self._share.wait_after(failures))
                failures = 0
            except ServiceBusError as error:
                if self._until == "empty" and isinstance(error, MessagingEntityNotFoundError):
                    return  # there is no such queue, so there is nothing in it
                failures += 1
                self._polls.failed(error)
                pause_s = min(FIRST_PAUSE_S * 2 ** min(failures - 1, 16), LONGEST_PAUSE_S)
                log.info("syphon.session_not_drained", queue=self.queue, error=type(error).__name__)
            finally:
                await link.close()
            if pause_s is None:
                return
            passes = passes + 1 if pause_s else 0
            await self._clock.sleep(pause_s if self._until == "empty" else self._longer(pause_s, passes))

    def _longer(self, pause_s: float, passes: int) -> float:
        """The pause after so many sessions in a row that could not be drained."""
        return max(pause_s, min(pause_s * 2.0 ** min(passes, 16), FIRST_PAUSE_S))

    async def _drain_next(self, link: ReceiverLink, wait_s: float) -> float | None:
        """Wait for a session and bring it home; returns the pause before the next one, None if there is none left."""
        is_until_empty = self._until == "empty"
        if not await self._accept(link, wait_s):
            return None if is_until_empty and not await self._sessions() else 0.0
        pause_s = await self._drain(link)
        if is_until_empty and pause_s and await self._is_stuck(link.session_id):
            return None
        return pause_s

    async def _accept(self, link: ReceiverLink, wait_s: float) -> bool:
        """Wait for a session; returns whether there was one."""
        async with self._share.turns:
            with self._polls.asking():
                try:
                    await link.open(timeout_s=wait_s)
                except OperationTimeoutError:
                    return False
        return True

    async def _sessions(self) -> Sequence[str]:
        """The sessions with messages, also those that somebody holds."""
        return await self._pair.secondary.list_sessions(self.queue, state_updated_after=None, timeout_s=TRY_S)

    async def _is_stuck(self, passed_over: str | None) -> bool:
        """Whether every session that is left was looked at, and is for a destination that keeps refusing."""
        self._passed.add(passed_over or "")
        if not self._refusals or any(one.failures < TRIES_UNTIL_EMPTY for one in self._refusals.values()):
            return False
        return self._passed.issuperset(await self._sessions())

    async def _drain(self, link: ReceiverLink) -> float:
        """Bring home what is in an accepted session; returns how long to wait before the next session."""
        while messages := await self._more(link):
            sizes = [encoded_size(message) for message in messages]
            for size in sizes:
                self._window.add(size)
            try:
                for message in messages:
                    await self._wait_for_turn(link, message)
                    await self._keep(link)
                    move = self._moves.start(self._bring_home(link, message), name=f"syphon {self.queue}")
                    try:
                        pause_s = await asyncio.shield(move)
                    except asyncio.CancelledError:
                        await self._clock.wait([move], self._shut_down_s)  # what is on its way arrives
                        raise
                    if pause_s is not None:
                        return pause_s
            finally:
                for size in sizes:
                    self._window.remove(size)
        return 0.0

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
        while await self._clock.wait([turn], KEEP_EACH_S):
            await self._keep(link)

    async def _keep(self, link: ReceiverLink) -> None:
        until = link.session_locked_until_utc
        if until is None or until.timestamp() - self._clock.now() < RENEW_BELOW_S:
            await link.renew_session_lock(timeout_s=TRY_S)

    async def _bring_home(self, link: ReceiverLink, message: ServiceBusReceivedMessage) -> float | None:
        """Move one message; None = done with, otherwise the session is to be released for so many seconds."""
        if is_ping(message) or self._pair.accepted.has(self.queue, message):
            await self._complete(link, message)
            return None
        while True:
            try:
                # Anew for each try: what is left of its life goes on shrinking while the destination is busy.
                path, content = unseal(message, now=self._clock.now(), life=self._pair.options.backlog_time_to_live)
            except MalformedEnvelopeError as error:
                await self._dead_letter(link, message, error.reason, error.description)
                return None
            refusal = self._refusals.get(path)
            if refusal is not None and refusal.retry_at > self._clock.monotonic():
                return PASS_OVER_PAUSE_S
            try:
                sender = await self._sender(path)
                where = {metrics.DESTINATION: path, **self._at_primary}
                sending = sender.send([content], timeout_s=TRY_S)
                await tracing.carrying(tracing.DRAIN, [content], where, self._clock, sending)
            except MessageSizeExceededError as error:
                await self._dead_letter(link, message, TOO_LARGE, str(error))
                return None
            except InvalidOperationError as error:
                await self._dead_letter(link, message, REFUSED, str(error))
                return None
            except ServiceBusServerBusyError:
                await self._keep(link)
                await self._clock.sleep(SERVER_BUSY_PAUSE.total_seconds())
            except ServiceBusError as error:
                if self._is_missing_too_long(path, error):
                    await self._dead_letter(link, message, MISSING, str(error))
                    return None
                return self._refused(path, error)
            else:
                self._pair.accepted.add(self.queue, message)
                self._passed.clear()
                if self._refusals.pop(path, None) is not None:
                    self._pair.record("syphon.destination_recovered", path)
                self.accepted = path, self._clock.monotonic()
                self._counts["drained"] += 1
                metrics.add(metrics.DRAINED, 1, where)
                await self._complete(link, message)
                return None

    def _refused(self, path: str, error: ServiceBusError) -> float:
        refusal = self._refusals.get(path)
        if refusal is None:
            refusal = self._refusals[path] = _Refusal()
            self._pair.record("syphon.destination_unhappy", path, error=type(error).__name__)
            while len(self._refusals) > REFUSALS_KEPT:
                self._refusals.popitem(last=False)
        self._refusals.move_to_end(path)
        refusal.trouble = Trouble.of(error, self._clock.monotonic(), refusal.trouble)
        refusal.failures += 1
        span_s = min(FIRST_PAUSE_S * 2 ** min(refusal.failures - 1, 16), LONGEST_PAUSE_S)
        refusal.retry_at = self._clock.monotonic() + span_s
        return PASS_OVER_PAUSE_S if len(self._refusals) > 1 else span_s

    def _is_missing_too_long(self, path: str, error: ServiceBusError) -> bool:
        refusal = self._refusals.get(path)
        grace_s = self._pair.options.missing_entity_grace.total_seconds()
        now = self._clock.monotonic()
        since_at = refusal.trouble.since_at if refusal is not None and refusal.trouble is not None else now
        return isinstance(error, MessagingEntityNotFoundError) and now - since_at >= grace_s

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
            self._pair.record("syphon.dead_lettered", self.queue, reason=reason, queue=self.queue)

    async def _sender(self, path: str) -> SenderLink:
        link = self._links.get(path)
        if link is None:
            link = self._links[path] = self._pair.primary.open_sender(path)
            if len(self._links) > LINKS_KEPT:
                await self._links.popitem(last=False)[1].close()
        else:
            self._links.move_to_end(path)
        return link
