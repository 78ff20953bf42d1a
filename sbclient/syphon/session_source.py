"""A session-enabled backlog queue: its sessions are drained concurrently, the messages of each session in order.

The session lock keeps competing syphons, and the producer, from overtaking each other. A session whose destination
refuses is released unchanged and tried later. Its messages are not deferred, since that would change their order.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final, Literal
from weakref import WeakValueDictionary

from sbclient.delivery import NEXT_AVAILABLE_SESSION, SessionChoice, Settlement, SettleMode
from sbclient.errors import (
    InvalidOperationError,
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
from sbclient.rules.envelope import PATH, MalformedEnvelopeError, Unsealed, unseal
from sbclient.rules.ping import is_ping
from sbclient.rules.refusal import FIRST_PAUSE_S, LONGEST_PAUSE_S, OngoingError
from sbclient.rules.size import encoded_size
from sbclient.syphon.budget import SyphonBudget
from sbclient.syphon.destination import FORGET_AFTER_S
from sbclient.syphon.forwarder import MISSING, Forwarder, rejection_reason
from sbclient.syphon.session_backoff import TRY_S, SessionBackoff
from sbclient.syphon.session_picker import SessionPicker
from sbclient.syphon.status import RECOVERED, UNAVAILABLE, PollRecord, QueueStatus
from sbclient.tasks import OwnedTasks
from sbclient.telemetry.log import get_logger
from sbclient.transport.base import ReceiverLink, SenderLink

log = get_logger(__name__)

WORKERS: Final = 4
SESSION_MESSAGES: Final = 20
MORE_WAIT_S: Final = 0.5
"""How long to wait for the first message of a session, and for more of them if the transport cannot tell that there are
none."""

RENEW_BELOW_S: Final = 30.0
LINKS_KEPT: Final = 100
RENEWAL_CHECK_S: Final = 10.0
"""Longest time between two checks of the session lock while a message waits for the rate limit or is sent."""

MIN_RENEWAL_CHECK_S: Final = 0.5
"""Shortest time between two checks, however short the lock is: each renewal is a request."""


class SessionSource:
    """The sessions of one backlog queue, drained by a few concurrent workers.

    Attributes:
        queue: its name.

    Args:
        until: as for `Syphon`.
        shut_down_s: how long running transfers may take at the end.
    """

    def __init__(
        self,
        pair: PairState,
        queue: str,
        forwarder: Forwarder,
        budget: SyphonBudget,
        *,
        until: Literal["empty"] | None,
        shut_down_s: float,
    ) -> None:
        self._pair = pair
        self._clock = pair.clock
        self._forwarder = forwarder
        self._budget = budget
        self._is_until_empty = until == "empty"
        self._shut_down_s = shut_down_s
        self._window = budget.window()
        self._polls = PollRecord(queue, pair.clock)
        self._links: OrderedDict[str, tuple[SenderLink, float]] = OrderedDict()
        self._backoff = SessionBackoff(pair.clock)
        self._picker = SessionPicker(
            pair.clock, pair.random, self._backoff, self._list_sessions, is_until_empty=self._is_until_empty
        )
        self._tasks = OwnedTasks(on_failure=lambda _: None)  # the task that starts one handles its failure
        self._forwarding: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self.queue = queue

    async def run(self) -> None:
        """Drain until cancelled, or until no session is left that can be forwarded."""
        workers = OwnedTasks(on_failure=lambda _: None)
        try:
            await asyncio.gather(*(workers.start(self._work(), name=f"syphon {self.queue}") for _ in range(WORKERS)))
        finally:
            await workers.close()
            await self._tasks.close()
            await asyncio.gather(*(link.close() for link, _ in self._links.values()))

    def status(self) -> QueueStatus:
        """Return the status of the queue."""
        return self._polls.status(in_flight=self._window.count)

    def refusing(self) -> dict[str, OngoingError]:
        """Return the errors of the destinations that refuse messages, by path."""
        return self._backoff.errors

    async def _work(self) -> None:
        """Drain one session after the other."""
        failures = 0
        while True:
            try:
                await self._close_idle_links()
                session = await self._picker.next()
                if session is None or not await self._visit(session, self._budget.poll_after(failures)):
                    return
                failures = 0
            except ServiceBusError as error:
                if self._is_until_empty and isinstance(error, MessagingEntityNotFoundError):
                    return  # a queue that does not exist is empty
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

    async def _visit(self, session: SessionChoice, poll_s: float) -> bool:
        """Accept a session and drain it; return whether there may be another one."""
        link = self._pair.secondary.open_receiver(self.queue, session=session)
        try:
            if await self._accept(link, session, poll_s):
                with self._picker.visiting(link.session_id or ""):
                    await self._drain(link)
            elif session is NEXT_AVAILABLE_SESSION and self._is_until_empty:
                return await self._has_sessions()
            return True
        finally:
            await link.close()

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

    async def _list_sessions(self) -> Sequence[str]:
        """Return the sessions with messages, also those that other receivers hold, and those with only a state."""
        return await self._pair.secondary.list_sessions(self.queue, state_updated_after=None, timeout_s=TRY_S)

    # -- one session ---------------------------------------------------------------------------------------------

    async def _drain(self, link: ReceiverLink) -> None:
        """Forward the messages of an accepted session until its destination refuses."""
        is_empty = False
        while not is_empty:
            count = max(1, min(SESSION_MESSAGES, self._window.room // WORKERS))  # each worker has a share of the room
            with self._polls.polling():
                messages = await link.receive(max_message_count=count, max_wait_time_s=MORE_WAIT_S)
            is_empty = not messages or (len(messages) < count and link.is_drained)
            sizes = [encoded_size(message) for message in messages]
            for size in sizes:
                self._window.add(size)
            try:
                for message in messages:
                    await self._wait_for_rate(link, message)
                    transfer = self._tasks.start(self._forward(link, message), name=f"syphon {self.queue}")
                    try:
                        while await self._clock.wait([transfer], self._check_in_s(link)):
                            await self._renew_lock(link)
                    except (asyncio.CancelledError, ServiceBusError):
                        await self._clock.wait([transfer], self._shut_down_s)  # the primary may have the message
                        raise
                    if not transfer.result():
                        return
            finally:
                for size in sizes:
                    self._window.remove(size)

    async def _wait_for_rate(self, link: ReceiverLink, message: ServiceBusReceivedMessage) -> None:
        """Wait until the rate limit allows one more message, and renew the session lock meanwhile."""
        if not self._budget.rates.is_limited:
            return
        path = message.application_properties.get(PATH)
        taking = self._budget.rates.take(path if isinstance(path, str) else "", 1)
        wait = self._tasks.start(taking, name=f"rate limit of {self.queue}")
        while await self._clock.wait([wait], self._check_in_s(link)):
            await self._renew_lock(link)

    def _check_in_s(self, link: ReceiverLink) -> float:
        """Return the time until the next check of the session lock, which may be short if the user made the queue."""
        until = link.session_locked_until_utc
        if until is None:
            return RENEWAL_CHECK_S
        return min(RENEWAL_CHECK_S, max((until.timestamp() - self._clock.now()) / 2, MIN_RENEWAL_CHECK_S))

    async def _renew_lock(self, link: ReceiverLink) -> None:
        """Renew the session lock if it expires soon.

        Raises:
            SessionLockLostError: it has expired, so another receiver may have the messages.
        """
        until = link.session_locked_until_utc
        if until is None or until.timestamp() - self._clock.now() < RENEW_BELOW_S:
            await link.renew_session_lock(timeout_s=TRY_S)

    async def _forward(self, link: ReceiverLink, message: ServiceBusReceivedMessage) -> bool:
        """Forward one message; return whether it is settled. If not, its destination refuses and the session rests.

        A worker that has lost the session lock may still be sending a message, also this one. Wait for it: the primary
        may accept the message, or an earlier one.
        """
        async with self._forwarding.setdefault(link.session_id or "", asyncio.Lock()):
            return await self._forward_alone(link, message)

    async def _forward_alone(self, link: ReceiverLink, message: ServiceBusReceivedMessage) -> bool:
        if is_ping(message) or self._pair.accepted.has(self.queue, message):
            await self._complete(link, message)
            return True
        await self._renew_lock(link)
        try:
            options = self._pair.options
            unsealed = unseal(
                message,
                now=self._clock.now(),
                time_to_live_mode=options.backlog_time_to_live,
                allowed=options.syphon_destinations,
            )
            while (is_settled := await self._send(link, message, unsealed)) is None:
                await self._clock.sleep(SERVER_BUSY_PAUSE.total_seconds())
                await self._renew_lock(link)
            return is_settled
        except MalformedEnvelopeError as error:
            await self._dead_letter(link, message, error.reason, error.description)
            return True

    async def _send(self, link: ReceiverLink, message: ServiceBusReceivedMessage, unsealed: Unsealed) -> bool | None:
        """Send one message if its destination may be tried now; return as `_forward`, or None if it is busy.

        Raises:
            MalformedEnvelopeError: the message has expired.
        """
        path, session_id = unsealed.destination, link.session_id or ""
        content = unsealed.message_at(self._clock.now())
        if not self._backoff.may_try(path, session_id):
            self._rest(session_id, path)
            return False
        asked_at = self._clock.monotonic()
        try:
            sender = await self._sender(path)
            await self._forwarder.send(sender, path, [content], TRY_S)
        except ServiceBusServerBusyError:
            self._backoff.interrupt(path)
            return None
        except ServiceBusError as error:
            return await self._failed(link, message, path, error, asked_at)
        self._pair.accepted.add(self.queue, message)
        self._answered(path)
        await self._complete(link, message)
        return True

    async def _failed(
        self, link: ReceiverLink, message: ServiceBusReceivedMessage, path: str, error: ServiceBusError, asked_at: float
    ) -> bool:
        """Dead-letter a message that can never be sent, or let its session rest; return whether it is settled."""
        reason = rejection_reason(error)
        if reason is not None:
            self._answered(path)
            await self._dead_letter(link, message, reason, str(error))
            return True
        if self._backoff.refused(path, error, asked_at):
            self._pair.record("syphon.destination_unavailable", UNAVAILABLE, path, level=logging.WARNING, error=error)
        if self._backoff.is_missing_for(path, self._pair.options.missing_entity_grace.total_seconds()):
            await self._dead_letter(link, message, MISSING, str(error))
            self._backoff.given_up(path)
            return True
        self._rest(link.session_id or "", path)
        return False

    def _answered(self, path: str) -> None:
        self._picker.changed()
        if self._backoff.answered(path):
            self._pair.record("syphon.destination_recovered", RECOVERED, path)
            self._picker.recovered()

    def _rest(self, session_id: str, path: str) -> None:
        if self._backoff.rest(session_id, path):
            self._picker.changed()

    async def _complete(self, link: ReceiverLink, message: ServiceBusReceivedMessage) -> None:
        """Complete a message that the primary has; if that fails, the copy stays known, so it is not sent again."""
        await link.settle(message, Settlement(SettleMode.COMPLETE), timeout_s=TRY_S)
        self._pair.accepted.discard(self.queue, message)

    async def _dead_letter(
        self, link: ReceiverLink, message: ServiceBusReceivedMessage, reason: str, description: str
    ) -> None:
        await self._forwarder.dead_letter(link, message, reason, description, queue=self.queue, path=self.queue)

    # -- links to destinations -----------------------------------------------------------------------------------

    async def _sender(self, path: str) -> SenderLink:
        link, _ = self._links.get(path) or (self._pair.primary.open_sender(path), 0.0)
        self._links[path] = link, self._clock.monotonic()
        self._links.move_to_end(path)
        if len(self._links) > LINKS_KEPT:
            await self._links.popitem(last=False)[1][0].close()
        return link

    async def _close_idle_links(self) -> None:
        """Close the links that have not been used for a while."""
        before = self._clock.monotonic() - FORGET_AFTER_S
        while self._links and next(iter(self._links.values()))[1] <= before:
            await self._links.popitem(last=False)[1][0].close()
