"""One session-enabled backlog queue, as the syphon sees it: each session is brought home in order, one at a time.

The lock of the session is what keeps competing syphons, and the producer, from overtaking each other. A session whose
destination refuses is released as it is and tried later; nothing in it is deferred, since that would change its order.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Sequence
from typing import Final, Literal

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
from sbclient.rules.envelope import MalformedEnvelopeError, unseal
from sbclient.rules.ping import is_ping
from sbclient.tasks import OwnedTasks
from sbclient.transport.base import NEXT_AVAILABLE_SESSION, ReceiverLink, SenderLink, Settlement, SettleMode

log = get_logger(__name__)

WORKERS: Final = 4
SESSION_MESSAGES: Final = 20
MORE_WAIT_S: Final = 0.5
"""How long a session is waited in for more before it is released."""

EMPTY_WAIT_S: Final = 0.5
TRY_S: Final = 20.0
RENEW_BELOW_S: Final = 30.0
FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 60.0
PASS_OVER_PAUSE_S: Final = 0.01
"""Between two sessions whose destination refuses; doubled up to `FIRST_PAUSE_S` while there is nothing else."""

SHUT_DOWN_S: Final = 5.0
LINKS_KEPT: Final = 100
ACCEPTED_KEPT: Final = 10_000
TRIES_UNTIL_EMPTY: Final = 3

_COMPLETE: Final = Settlement(SettleMode.COMPLETE)


class _Refusal:
    """What is known of a destination that refuses."""

    def __init__(self, now: float) -> None:
        self.since_at = now
        self.failures = 0
        self.retry_at = now


class SessionSource:
    """The sessions of one backlog queue, drained by a few workers side by side."""

    def __init__(self, pair: Pair, queue: str, *, until: Literal["empty"] | None) -> None:
        self._pair = pair
        self._clock = pair.clock
        self._until = until
        self._links: OrderedDict[str, SenderLink] = OrderedDict()
        self._refusals: dict[str, _Refusal] = {}
        self._accepted: OrderedDict[int, None] = OrderedDict()
        self._counts: Counter[str] = Counter()
        self._passed: set[str] = set()
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
            for link in self._links.values():
                await link.close()

    async def _work(self) -> None:
        """Accept one session after the other."""
        failures = passes = 0
        while True:
            link = self._pair.secondary.open_receiver(self.queue, session=NEXT_AVAILABLE_SESSION)
            try:
                pause_s = await self._drain_next(link)
                failures = 0
            except ServiceBusError as error:
                if self._until == "empty" and isinstance(error, MessagingEntityNotFoundError):
                    return  # there is no such queue, so there is nothing in it
                failures += 1
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

    async def _drain_next(self, link: ReceiverLink) -> float | None:
        """Wait for a session and bring it home; returns the pause before the next one, None if there is none left."""
        is_until_empty = self._until == "empty"
        wait_s = EMPTY_WAIT_S if is_until_empty else self._pair.options.syphon_long_poll.total_seconds()
        try:
            await link.open(timeout_s=wait_s)
        except OperationTimeoutError:
            return None if is_until_empty and not await self._sessions() else 0.0
        pause_s = await self._drain(link)
        if is_until_empty and pause_s and await self._is_stuck(link.session_id):
            return None
        return pause_s

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
        while messages := await link.receive(max_message_count=SESSION_MESSAGES, max_wait_time_s=MORE_WAIT_S):
            for message in messages:
                await self._keep(link)
                move = self._moves.start(self._bring_home(link, message), name=f"syphon {self.queue}")
                try:
                    pause_s = await asyncio.shield(move)
                except asyncio.CancelledError:
                    await self._clock.wait([move], SHUT_DOWN_S)  # what is on its way arrives
                    raise
                if pause_s is not None:
                    return pause_s
        return 0.0

    async def _keep(self, link: ReceiverLink) -> None:
        until = link.session_locked_until_utc
        if until is None or until.timestamp() - self._clock.now() < RENEW_BELOW_S:
            await link.renew_session_lock(timeout_s=TRY_S)

    async def _bring_home(self, link: ReceiverLink, message: ServiceBusReceivedMessage) -> float | None:
        """Move one message; None = done with, otherwise the session is to be released for so many seconds."""
        if is_ping(message) or message.sequence_number in self._accepted:
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
                await sender.send([content], timeout_s=TRY_S)
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
                self._accepted[message.sequence_number] = None
                self._passed.clear()
                if self._refusals.pop(path, None) is not None:
                    self._pair.record("syphon.destination_recovered", path)
                self._counts["drained"] += 1
                await self._complete(link, message)
                return None

    def _refused(self, path: str, error: ServiceBusError) -> float:
        refusal = self._refusals.get(path)
        if refusal is None:
            refusal = self._refusals[path] = _Refusal(self._clock.monotonic())
            self._pair.record("syphon.destination_unhappy", path, error=type(error).__name__)
        refusal.failures += 1
        span_s = min(FIRST_PAUSE_S * 2 ** min(refusal.failures - 1, 16), LONGEST_PAUSE_S)
        refusal.retry_at = self._clock.monotonic() + span_s
        return PASS_OVER_PAUSE_S if len(self._refusals) > 1 else span_s

    def _is_missing_too_long(self, path: str, error: ServiceBusError) -> bool:
        refusal = self._refusals.get(path)
        grace_s = self._pair.options.missing_entity_grace.total_seconds()
        since_at = refusal.since_at if refusal is not None else self._clock.monotonic()
        return isinstance(error, MessagingEntityNotFoundError) and self._clock.monotonic() - since_at >= grace_s

    async def _complete(self, link: ReceiverLink, message: ServiceBusReceivedMessage) -> None:
        """Remove what the primary has; if that fails, the number is kept so that it is not sent again."""
        await link.settle(message, _COMPLETE, timeout_s=TRY_S)
        self._accepted.pop(message.sequence_number, None)
        while len(self._accepted) > ACCEPTED_KEPT:
            self._accepted.popitem(last=False)

    async def _dead_letter(
        self, link: ReceiverLink, message: ServiceBusReceivedMessage, reason: str, description: str
    ) -> None:
        settlement = Settlement(SettleMode.DEAD_LETTER, reason, description[:4096])
        await link.settle(message, settlement, timeout_s=TRY_S)
        self._counts[f"dead_lettered.{reason}"] += 1
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
