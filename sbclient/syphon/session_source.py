"""A session-enabled backlog queue: its sessions are drained concurrently, the messages of each session in order.

The session lock keeps competing syphons, and the producer, from overtaking each other. A session whose destination
refuses is released unchanged and rests until the destination asks for it. Its messages are not deferred, since that
would change their order.

While no session rests, the service picks: the next available session, in one long poll. With resting sessions it would
offer those again and again. Then the sessions are listed, after pauses of 1 s that double up to 60 s while nothing
changes, and those that do not rest are accepted by name.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import ClassVar, Final, Literal

from sbclient import clock
from sbclient.delivery import NEXT_AVAILABLE_SESSION, SessionChoice
from sbclient.errors import (
    InvalidOperationError,
    OperationTimeoutError,
    ServiceBusError,
    SessionCannotBeLockedError,
)
from sbclient.message import ServiceBusReceivedMessage
from sbclient.pairing.state import PairState
from sbclient.rules.refusal import FIRST_PAUSE_S, LONGEST_PAUSE_S
from sbclient.syphon.budget import SyphonBudget
from sbclient.syphon.destination_table import Destinations
from sbclient.syphon.source import TRIES_UNTIL_EMPTY, InFlight, Source
from sbclient.syphon.status import Progress
from sbclient.tasks import OwnedTasks
from sbclient.telemetry.log import get_logger
from sbclient.transport.base import ReceiverLink

log = get_logger(__name__)

WORKERS: Final = 4
SESSION_MESSAGES: Final = 20
TRY_S: Final = 20.0
"""Longest duration of a request, and of the wait of a destination for one of its resting sessions."""
MORE_WAIT_S: Final = 0.5
"""How long to wait for the first message of a session, and for more of them if the transport cannot tell that there are
none."""
VISITED_PER_LIST: Final = 100
"""Limit of sessions, not known to rest, that are visited before the sessions are listed again."""
RENEW_BELOW_S: Final = 30.0
RENEWAL_CHECK_S: Final = 10.0
"""Longest time between two checks of the session lock while a message waits for the rate limit or is sent."""
MIN_RENEWAL_CHECK_S: Final = 0.5
"""Shortest time between two checks, however short the lock is: each renewal is a request."""


class SessionSource(Source):
    """The sessions of one backlog queue, drained by a few concurrent workers."""

    is_ordered: ClassVar[bool] = True

    def __init__(
        self,
        pair: PairState,
        queue: str,
        destinations: Destinations,
        progress: Progress,
        budget: SyphonBudget,
        *,
        until: Literal["empty"] | None,
    ) -> None:
        super().__init__(pair, queue, progress, budget, until=until)
        self._destinations = destinations
        self._picking = asyncio.Lock()
        self._to_visit: deque[str] = deque()
        self._asked_for: dict[str, asyncio.Event] = {}
        self._visited: set[str] = set()
        self._left_open: list[ReceiverLink] = []
        self._list_at = float("-inf")
        self._pause_s = FIRST_PAUSE_S
        self._has_changed = False
        self._wake = asyncio.Event()

    async def run(self) -> None:
        workers = OwnedTasks(on_failure=lambda _: None)
        try:
            works = [workers.start(self._repeat(self._poll), name=f"syphon {self.queue}") for _ in range(WORKERS)]
            await asyncio.gather(*works)
        finally:
            await workers.close()

    def destination_answered(self, *, has_recovered: bool) -> None:
        if has_recovered:
            self._has_changed = True
            self._list_at = float("-inf")
            self._wake.set()

    # -- which session -------------------------------------------------------------------------------------------

    async def _next(self) -> SessionChoice:
        """Return the session to accept next; None ends a run until empty, since every session left is refused.

        If the sessions cannot be listed, the service picks from time to time, so that no session is delayed for ever.
        """
        async with self._picking:
            while self._destinations.parked_in(self):
                if self._to_visit:
                    session_id = self._to_visit.popleft()
                    if session_id not in self._visited or session_id in self._asked_for:
                        return session_id
                elif self._list_at > clock.monotonic():
                    self._wake.clear()
                    await clock.wait_for(self._wake, self._list_at - clock.monotonic())
                else:
                    try:
                        if not await self._list() and self._is_refused_for_good:
                            return None
                    except InvalidOperationError:  # the transport cannot list sessions
                        return None if self._is_refused_for_good else NEXT_AVAILABLE_SESSION
                    except ServiceBusError:
                        return NEXT_AVAILABLE_SESSION
        return NEXT_AVAILABLE_SESSION

    @property
    def _is_refused_for_good(self) -> bool:
        """Whether a run until empty has tried the destination of each resting session often enough."""
        failures = self._destinations.failures_of_waiting(self)
        return self._is_until_empty and all(each >= TRIES_UNTIL_EMPTY for each in failures)

    async def _list(self) -> int:
        """List the sessions; return how many that do not rest are to be visited, a random sample of them."""
        longest_s = FIRST_PAUSE_S if self._is_until_empty else LONGEST_PAUSE_S
        had_changed, self._has_changed = self._has_changed, False
        self._pause_s = FIRST_PAUSE_S if had_changed else min(2 * self._pause_s, longest_s)
        self._list_at = clock.monotonic() + self._pause_s
        listed = await self._list_sessions()
        present, resting = set(listed), set[int | str]()
        for parked in self._destinations.parked_in(self):
            for gone in [one for one in parked if one not in present]:
                del parked[gone]
            resting.update(parked)
        others = [one for one in listed if one not in resting]
        if len(others) >= VISITED_PER_LIST:
            others = self.pair.random.sample(others, VISITED_PER_LIST)
            if had_changed:
                self._list_at = float("-inf")  # there may be more, and visits are useful now
        self._to_visit.extend(others)
        return len(others)

    async def _list_sessions(self) -> Sequence[str]:
        """Return the sessions with messages, also those that other receivers hold, and those with only a state."""
        return await self.pair.secondary.list_sessions(self.queue, state_updated_after=None, timeout_s=TRY_S)

    async def receive_parked(self, numbers: Sequence[str]) -> list[InFlight]:
        """Let a worker visit a resting session; return when its first message is offered, or the session is gone.

        Raises:
            OperationTimeoutError: no worker was free.
        """
        [session_id] = numbers
        offered = self._asked_for[session_id] = asyncio.Event()
        self._to_visit.appendleft(session_id)
        self._wake.set()
        try:
            if not await clock.wait_for(offered, TRY_S):
                raise OperationTimeoutError(f"session {session_id!r} of {self.queue!r} was not accepted in time")
        finally:
            del self._asked_for[session_id]
        return []

    async def park(self, one: InFlight) -> str | None:
        """Let the session rest; return its id."""
        self._has_changed = self._has_changed or not self._is_resting(one.session_id)
        one.is_parked = True
        self.end(one, None)
        return one.session_id

    # -- one session ---------------------------------------------------------------------------------------------

    async def _poll(self, failures: int) -> bool:
        """Accept a session and drain it; return whether there may be another one."""
        session = await self._next()
        if session is None:
            return False
        link = self.pair.secondary.open_receiver(self.queue, session=session)
        try:
            if await self._accept(link, session, self._budget.poll_after(failures)):
                self._visited.add(link.session_id or "")
                is_delayed = not await self._drain(link)
            else:
                is_delayed = False
                if session is NEXT_AVAILABLE_SESSION and self._is_until_empty:
                    return await self._has_sessions()
        except asyncio.CancelledError:
            self._left_open.append(link)  # the primary may have a message of the session
            raise
        finally:
            self._visited.discard(link.session_id or "")
            self._answer(session)
            if link not in self._left_open:
                await link.close()
        if is_delayed:
            await clock.sleep(FIRST_PAUSE_S)
        return True

    def _answer(self, session: SessionChoice) -> None:
        """Tell the destination that has asked for a session that it was visited."""
        offered = self._asked_for.get(session) if isinstance(session, str) else None
        if offered is not None:
            offered.set()

    async def _accept(self, link: ReceiverLink, session: SessionChoice, poll_s: float) -> bool:
        """Wait for the next available session, or accept one by name; return whether it is accepted."""
        is_next = session is NEXT_AVAILABLE_SESSION
        async with self._budget.poll_slots:
            with self._polls.polling():
                try:
                    await link.open(timeout_s=poll_s if is_next else TRY_S)
                except OperationTimeoutError:
                    if not is_next:
                        raise
                    return False
                except SessionCannotBeLockedError:
                    if is_next:
                        raise
                    return False
        return True

    async def _has_sessions(self) -> bool:
        """Return whether sessions are left that other receivers hold; False if the transport cannot list sessions."""
        try:
            return bool(await self._list_sessions())
        except InvalidOperationError:
            return False

    async def _drain(self, link: ReceiverLink) -> bool:
        """Forward the messages of an accepted session until it is empty or its destination refuses.

        Returns:
            False if it is refused and does not rest, since there is no room to remember it.
        """
        is_empty = False
        while not is_empty:
            count = max(1, min(SESSION_MESSAGES, self.room // WORKERS))  # each worker has a share of the room
            with self._polls.polling():
                messages = await link.receive(max_message_count=count, max_wait_time_s=MORE_WAIT_S)
            is_empty = not messages or (len(messages) < count and link.is_drained)
            if not await self._forward(link, messages):
                return self._is_resting(link.session_id)
        return True

    def _is_resting(self, session_id: str | None) -> bool:
        return any(session_id in parked for parked in self._destinations.parked_in(self))

    async def _forward(self, link: ReceiverLink, messages: Sequence[ServiceBusReceivedMessage]) -> bool:
        """Forward messages one after another; return False if their destination refuses."""
        taken = await self.take(link, messages)
        try:
            while taken:
                await self._renew_lock(link)
                one = taken.pop(0)
                one.ended = asyncio.Event()
                await self._destinations.offer([one])
                self._answer(link.session_id)
                await self._until_ended(one)
                if one.is_parked:
                    return False
                self._has_changed = True
        finally:
            for one in taken:
                self.end(one, None)  # they become available with the session
        return True

    async def _until_ended(self, one: InFlight) -> None:
        """Wait until a message is accepted, settled or parked, and renew the session lock meanwhile; complete it.

        Raises:
            ServiceBusError: the message is not settled, or the lock is lost.
        """
        assert one.ended is not None
        try:
            try:
                while not await clock.wait_for(one.ended, self._check_in_s(one.link)):
                    await self._renew_lock(one.link)
            except ServiceBusError as error:
                self.lose(one, error)
                raise
            if one.is_accepted:
                await one.complete()
            if one.error is not None:
                raise one.error
        finally:
            one.error = None  # it refers to this frame

    # -- locks ---------------------------------------------------------------------------------------------------

    def _check_in_s(self, link: ReceiverLink) -> float:
        """Return the time until the next check of the session lock, which may be short if the user made the queue."""
        until = link.session_locked_until_utc
        if until is None:
            return RENEWAL_CHECK_S
        return min(RENEWAL_CHECK_S, max((until.timestamp() - clock.now()) / 2, MIN_RENEWAL_CHECK_S))

    async def _renew_lock(self, link: ReceiverLink) -> None:
        """Renew the session lock if it expires soon.

        Raises:
            SessionLockLostError: it has expired, so another receiver may have the messages.
        """
        until = link.session_locked_until_utc
        if until is None or until.timestamp() - clock.now() < RENEW_BELOW_S:
            await link.renew_session_lock(timeout_s=TRY_S)

    def lock_left_s(self, one: InFlight, now: float) -> float:
        until = one.link.session_locked_until_utc
        return until.timestamp() - now if until is not None else 0.0

    # -- the end -------------------------------------------------------------------------------------------------

    async def _abandon(self, one: InFlight) -> None:
        """Do nothing: the message becomes available with its session."""

    async def _close_links(self) -> None:
        await asyncio.gather(*(link.close() for link in self._left_open))

    def _unavailable(self, error: ServiceBusError, failures: int) -> None:
        log.info(
            "syphon.session_not_drained",
            "cannot drain a session of {queue!r}: {error}",
            queue=self.queue,
            error=error,
        )
