"""Receives from one entity, sub-queue or session through the public API of azure-servicebus.

1. Calls of the SDK run one at a time. A receive call lasts at most 1 s, so that other calls wait no longer than that.
2. The next call returns the messages that a cancelled call received, if their locks have not expired. `close` abandons
   the rest.
3. In receive-and-delete mode a receive call asks for one message, because a message that arrives after the last call is
   lost when the link closes. In a session it also asks for one, because the SDK releases messages that arrive between
   two receive calls, and later ones would overtake them.
4. A link without messages or answers for 4 minutes is replaced, because the SDK does not report a dead connection.
5. A session is accepted once. Its lock is lost with its link.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import nullcontext
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from sbclient import clock
from sbclient.delivery import ServiceBusReceiveMode, SessionChoice, Settlement, SettleMode
from sbclient.errors import (
    InvalidOperationError,
    MessageNotFoundError,
    OperationTimeoutError,
    ServiceBusConnectionError,
    ServiceBusError,
    SessionLockLostError,
)
from sbclient.errors import TransactionNotSupportedError as NotSupported
from sbclient.message import ServiceBusReceivedMessage
from sbclient.tasks import Move
from sbclient.telemetry.log import get_logger
from sbclient.transport.base import ReceiverLink, TransactionLink, link_closed, not_locked, without_session
from sbclient.transport.sdk.link import LinkDiscardedError, SdkLink, call_any
from sbclient.transport.sdk.message import SdkReceivedMessage, received

if TYPE_CHECKING:
    from sbclient.transport.sdk.transport import SdkTransport

log = get_logger(__name__)

R = TypeVar("R")

SLICE_S: Final = 1.0
"""Longest receive call of the SDK."""

SLICE_GRACE_S: Final = 15.0
"""Time that a receive call gets beyond that, for example to open the connection, before the link is discarded."""

SILENCE_S: Final = 240.0
"""Time without messages or answers after which a link is replaced."""

ACCEPT_GRACE_S: Final = 2.0
"""Time that accepting a session gets beyond its timeout, because the service itself ends the wait for a session."""

ABANDON_S: Final = 5.0
"""Timeout for abandoning one message while a receiver closes."""

_LEAST_WAIT_S: Final = 0.001
"""The SDK rejects a wait of 0."""


class SdkReceiver(ReceiverLink):
    """A receiver of one entity, sub-queue or session."""

    def __init__(
        self,
        owner: SdkTransport,
        path: str,
        session: SessionChoice,
        mode: ServiceBusReceiveMode,
        prefetch_count: int,
    ) -> None:
        self._owner = owner
        self._path = path
        self._session = session
        self._mode = mode
        self._has_locks = mode is ServiceBusReceiveMode.PEEK_LOCK
        self._prefetch_count = prefetch_count if self._has_locks else 0
        self._link: SdkLink[Any] | None = None
        self._sdk: Any = None
        self._leftovers: deque[SdkReceivedMessage] = deque()
        self._receiving: asyncio.Task[Any] | None = None
        self._heard_at = 0.0
        self._was_accepted = False
        self._session_id: str | None = None
        self._is_closed = False

    def leave_loop(self, move: Move) -> None:
        """Use a new receiver of the SDK, because the event loop of this one has ended.

        Messages that the service has deleted on receipt are returned by the next calls, in a forked process by those of
        its parent.
        """
        if self._link is not None:
            self._link.abandon(move)
        self._link = self._sdk = self._receiving = None
        if self._has_locks or move is Move.FORKED:
            self._leftovers.clear()

    @property
    def session_id(self) -> str | None:
        return self._session_id

    @property
    def session_locked_until_utc(self) -> datetime | None:
        session = getattr(self._sdk, "session", None)
        return None if session is None or self._session_id is None else session.locked_until_utc

    async def open(self, *, timeout_s: float) -> None:
        if self._link is not None and self._link.is_open:
            return
        grace_s = 0.0 if self._session is None else ACCEPT_GRACE_S
        link = self._usable_link(wait_s=timeout_s)
        try:
            await link.call(_nothing, doing="open", timeout_s=timeout_s + grace_s)
        except LinkDiscardedError:
            raise ServiceBusConnectionError(f"open {self._path!r}: the connection was lost") from None
        finally:
            if link.is_gone and not self._was_accepted:
                self._owner.forget(self)

    def _usable_link(self, wait_s: float | None = None) -> SdkLink[Any]:
        """Return the link, or a new one if it was discarded.

        Raises:
            SessionLockLostError: the discarded link held a session.
        """
        self._check_open()
        if self._link is not None and not self._link.is_gone:
            return self._link
        if self._was_accepted:
            raise SessionLockLostError(
                f"the connection that held session {self._session_id!r} of {self._path!r} is lost: accept the session "
                "again"
            )
        sdk = self._owner.sdk_receiver(self._path, self._session, self._mode, self._prefetch_count, wait_s)
        self._owner.keep(self)
        self._link = SdkLink(sdk, repr(self._path), self._owner.tasks, prepare=self._opened, place=self._owner.place)
        return self._link

    def _check_open(self) -> None:
        if self._is_closed:
            raise link_closed(repr(self._path))

    async def _opened(self, sdk: Any) -> None:
        self._sdk = sdk
        self._heard_at = clock.monotonic()
        if self._session is not None:
            self._session_id = sdk.session.session_id
            if not isinstance(self._session_id, str):
                raise ServiceBusConnectionError(f"the service accepted no session of {self._path!r}: try again")
            self._was_accepted = True

    # -- receiving -----------------------------------------------------------------------------------------------

    async def receive(self, *, max_message_count: int, max_wait_time_s: float) -> list[ServiceBusReceivedMessage]:
        deadline = clock.monotonic() + max_wait_time_s
        if self._session is not None:
            await self.open(timeout_s=max_wait_time_s)
        while True:
            if leftovers := self._take_leftovers(max_message_count):
                return [*leftovers]
            left_s = max(deadline - clock.monotonic(), 0.0)
            try:
                messages = await self._receive_once(max_message_count, left_s)
            except LinkDiscardedError:
                continue
            if messages or clock.monotonic() >= deadline:
                return messages

    def _take_leftovers(self, count: int) -> list[SdkReceivedMessage]:
        """Return messages of cancelled calls whose locks have not expired."""
        now = datetime.fromtimestamp(clock.now(), tz=UTC)
        taken: list[SdkReceivedMessage] = []
        while self._leftovers and len(taken) < count:
            message = self._leftovers.popleft()
            if message.locked_until_utc is None or message.locked_until_utc > now:
                taken.append(message)
        return taken

    async def _receive_once(self, max_message_count: int, left_s: float) -> list[ServiceBusReceivedMessage]:
        """Return the messages of one receive call of the SDK, which lasts at most 1 s."""
        link = self._usable_link()
        await link.acquire("receive from", left_s + SLICE_GRACE_S)
        if self._is_silent(link):  # checked when no other call runs, which `discard` would end
            link.discard()
            raise LinkDiscardedError(repr(self._path))
        if leftovers := self._take_leftovers(max_message_count):
            link.release()
            return [*leftovers]
        slice_s = min(left_s, SLICE_S)
        task = link.start(lambda sdk: self._receive_from(sdk, max_message_count, slice_s), doing="receive from")
        self._receiving = task
        try:
            late = await clock.wait({task}, slice_s + SLICE_GRACE_S)
        except asyncio.CancelledError:
            task.add_done_callback(self._take_back)
            raise
        finally:
            if self._receiving is task and task.done():
                self._receiving = None
        if late:
            link.discard(task)
            raise OperationTimeoutError(f"receive from {self._path!r}: no answer within {slice_s + SLICE_GRACE_S:g} s")
        return [*task.result()]

    async def _receive_from(self, sdk: Any, max_message_count: int, slice_s: float) -> list[SdkReceivedMessage]:
        count = max_message_count if self._has_locks and self._session is None else 1
        given = await sdk.receive_messages(count, max(slice_s, _LEAST_WAIT_S))
        if given:
            self._heard_at = clock.monotonic()
        return self._read(given, is_locked=self._has_locks)

    def _read(self, given: Sequence[Any], *, is_locked: bool) -> list[SdkReceivedMessage]:
        has_session = self._session is not None
        read = [received(each, is_locked=is_locked, has_session=has_session) for each in given]
        return [message for message in read if message is not None]

    def _is_silent(self, link: SdkLink[Any]) -> bool:
        return self._session is None and link.is_open and clock.monotonic() - self._heard_at > SILENCE_S

    def _take_back(self, task: asyncio.Task[list[SdkReceivedMessage]]) -> None:
        if self._receiving is task:
            self._receiving = None
        if not task.cancelled() and task.exception() is None:
            self._leftovers.extend(task.result())

    # -- peeking and deferral -------------------------------------------------------------------------------------

    async def peek(
        self, *, max_message_count: int, sequence_number: int, timeout_s: float
    ) -> list[ServiceBusReceivedMessage]:
        async def peek(sdk: Any) -> list[SdkReceivedMessage]:
            given = await sdk.peek_messages(
                max_message_count, sequence_number=max(sequence_number, 1), timeout=timeout_s
            )
            return self._read(given, is_locked=False)

        return [*await self._call(peek, doing="peek", timeout_s=timeout_s)]

    async def receive_deferred(
        self, sequence_numbers: Sequence[int], *, timeout_s: float
    ) -> list[ServiceBusReceivedMessage]:
        async def receive(sdk: Any) -> list[SdkReceivedMessage]:
            given = await sdk.receive_deferred_messages(list(sequence_numbers), timeout=timeout_s)
            return self._read(given, is_locked=self._has_locks)

        messages = await self._call(receive, doing="receive deferred messages from", timeout_s=timeout_s)
        if not messages:
            raise MessageNotFoundError(
                f"{self._path!r} has no deferred message with the number {', '.join(map(str, sequence_numbers))}"
            )
        return [*messages]

    # -- settling and locks --------------------------------------------------------------------------------------

    async def settle(
        self,
        message: ServiceBusReceivedMessage,
        settlement: Settlement,
        *,
        timeout_s: float,
        transaction: TransactionLink | None = None,
    ) -> None:
        if transaction is not None:
            raise NotSupported(
                f"settling a message of {self._path!r} cannot be part of a transaction over azure-servicebus, only "
                "sending can: settle it after the commit, or use transport='amqp'"
            )
        locked = self._locked(message)

        async def settle(sdk: Any) -> None:
            match settlement.mode:
                case SettleMode.COMPLETE:
                    await sdk.complete_message(locked)
                case SettleMode.ABANDON:
                    await sdk.abandon_message(locked)
                case SettleMode.DEFER:
                    await sdk.defer_message(locked)
                case SettleMode.DEAD_LETTER:
                    reason, description = settlement.reason, settlement.error_description
                    await sdk.dead_letter_message(locked, reason=reason, error_description=description)

        await self._call(settle, doing=f"{settlement.mode} a message of", timeout_s=timeout_s)

    async def settle_together(
        self, messages: Sequence[ServiceBusReceivedMessage], settlement: Settlement, *, timeout_s: float
    ) -> list[ServiceBusReceivedMessage]:
        return []

    async def renew_lock(self, message: ServiceBusReceivedMessage, *, timeout_s: float) -> datetime:
        locked = self._locked(message)

        async def renew(sdk: Any) -> datetime:
            until: datetime = await sdk.renew_message_lock(locked, timeout=timeout_s)
            return until

        return await self._call(renew, doing="renew the lock of a message of", timeout_s=timeout_s)

    def _locked(self, message: ServiceBusReceivedMessage) -> Any:
        """Return the SDK's object for a message that can be settled."""
        if message.lock_token is None:
            raise not_locked(message, self._path)
        if not isinstance(message, SdkReceivedMessage):
            raise InvalidOperationError(
                f"message {message.sequence_number} was not received from {self._path} by this client: settle it with "
                "the client that received it"
            )
        return message.sdk

    # -- the session ---------------------------------------------------------------------------------------------

    async def renew_session_lock(self, *, timeout_s: float) -> datetime:
        async def renew(session: Any) -> datetime:
            until: datetime = await session.renew_lock(timeout=timeout_s)
            return until

        return await self._in_session(renew, doing="renew the session lock of", timeout_s=timeout_s)

    async def get_session_state(self, *, timeout_s: float) -> bytes | None:
        async def get_state(session: Any) -> bytes | None:
            state = await session.get_state(timeout=timeout_s)
            return None if state is None else bytes(state)

        return await self._in_session(get_state, doing="get the session state of", timeout_s=timeout_s)

    async def set_session_state(self, state: bytes | None, *, timeout_s: float) -> None:
        async def set_state(session: Any) -> None:
            await session.set_state(state, timeout=timeout_s)

        await self._in_session(set_state, doing="set the session state of", timeout_s=timeout_s)

    async def _in_session(self, work: Callable[[Any], Awaitable[R]], *, doing: str, timeout_s: float) -> R:
        if self._session is None:
            raise without_session(self._path)
        return await self._call(lambda sdk: work(sdk.session), doing=doing, timeout_s=timeout_s)

    async def _call(self, work: Callable[[Any], Awaitable[R]], *, doing: str, timeout_s: float) -> R:
        """Run `work` with the SDK's receiver."""
        answer = await call_any(
            lambda: nullcontext(self._usable_link()), work, doing=doing, subject=repr(self._path), timeout_s=timeout_s
        )
        self._heard_at = clock.monotonic()
        return answer

    async def close(self) -> None:
        """Abandon the messages that no call returned, and close the link.

        A second call finishes what a cancelled first one did not; until then the transport keeps the link.
        """
        self._is_closed = True
        task, link = self._receiving, self._link
        try:
            await self._end_receiving(task, link)
        except asyncio.CancelledError:
            if link is not None:
                link.discard(task)  # without another call the session would stay locked
            raise
        if link is not None:
            await link.close()
        self._link = None  # a second call may come in another event loop
        self._owner.forget(self)

    async def _end_receiving(self, task: asyncio.Task[Any] | None, link: SdkLink[Any] | None) -> None:
        """Wait for the running receive call, and abandon the messages that no call returned."""
        if task is not None and not task.done():
            await clock.wait({task}, SLICE_S + 1.0)
        if link is None or not self._has_locks:
            return
        while self._leftovers and not link.is_gone:
            locked = self._leftovers.popleft().sdk
            try:
                await link.call(partial(_abandon, locked), doing="abandon a message of", timeout_s=ABANDON_S)
            except (LinkDiscardedError, ServiceBusError) as error:
                log.info(
                    "sdk.not_given_back",
                    "cannot release a message of {path!r}: {error}",
                    path=self._path,
                    error=error,
                )
                return


async def _nothing(sdk: Any) -> None:
    """Only open the link."""


async def _abandon(locked: Any, sdk: Any) -> None:
    await sdk.abandon_message(locked)
