"""Receives from one entity, sub-queue or session through azure-servicebus.

Laws:
1. While nobody needs it otherwise, a receive call is in the SDK's receiver. Settling and renewing interrupt it: it
   comes back at once with what it has, they have their turn, and it goes on.
2. A caller that goes away interrupts it too. What it then brings is given back as undelivered, or, where that is not
   possible (a session, or messages deleted as they are handed over), kept for the next call.
3. Where messages are deleted as they are handed over, no credit is left behind with the service: what it sent on it
   would be lost with the link.
4. A link that was silent for long is opened anew: nothing else would tell it from a dead one.
5. A session is accepted once. When its link is lost, so is its lock.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from functools import partial
from typing import Any, Final, Protocol, TypeVar

from sbclient.clock import Clock
from sbclient.delivery import ServiceBusReceiveMode, SessionChoice, Settlement
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
from sbclient.tasks import OwnedTasks
from sbclient.telemetry.log import get_logger
from sbclient.transport.base import ReceiverLink, TransactionLink
from sbclient.transport.sdk.errors import Place
from sbclient.transport.sdk.link import GivenUpError, SdkLink
from sbclient.transport.sdk.payload import Tap, is_known_sdk
from sbclient.transport.sdk.received import AzureReceivedMessage, received
from sbclient.transport.sdk.settling import Settlements

log = get_logger(__name__)

R = TypeVar("R")

SLICE_S: Final = 60.0
"""How long one receive call of the SDK lasts at most, where it can be interrupted."""

BLIND_SLICE_S: Final = 1.0
"""The same where it cannot, so that others have their turn in time."""

SLICE_GRACE_S: Final = 15.0
"""How much longer it may take, to open the connection for example, before it counts as hanging."""

SILENCE_S: Final = 240.0
ACCEPT_GRACE_S: Final = 2.0
"""The service ends the wait for a session by itself; only if it does not, do we."""

GIVE_BACK_S: Final = 5.0

_TAKES_NEXT: Final = 0.001
"""What the SDK is given to wait where no time is left: it refuses 0."""


class Owner(Protocol):
    """What a link needs of its transport."""

    clock: Clock
    tasks: OwnedTasks

    @property
    def place(self) -> Place:
        """The namespace, for errors."""

    def sdk_receiver(
        self, path: str, session: SessionChoice, mode: ServiceBusReceiveMode, prefetch_count: int, wait_s: float | None
    ) -> Any:
        """A new receiver of the SDK."""

    def forget(self, link: Any) -> None:
        """The link was closed."""


class AzureReceiver(ReceiverLink):
    """Receives from one entity, sub-queue or session."""

    def __init__(
        self,
        owner: Owner,
        path: str,
        session: SessionChoice,
        mode: ServiceBusReceiveMode,
        prefetch_count: int,
    ) -> None:
        self._owner = owner
        self._clock = owner.clock
        self._path = path
        self._session = session
        self._mode = mode
        self._is_locking = mode is ServiceBusReceiveMode.PEEK_LOCK
        self._prefetch_count = prefetch_count if self._is_locking else 0
        self._keeps_all = session is not None or not self._is_locking or prefetch_count > 0
        self._link: SdkLink[Any] | None = None
        self._tap: Tap | None = None
        self._sdk: Any = None
        self._returned: deque[AzureReceivedMessage] = deque()
        self._receiving: asyncio.Task[Any] | None = None
        self._settlements = Settlements(path, self._call, lambda: self._tap, clock=owner.clock, tasks=owner.tasks)
        self._giving_back: set[asyncio.Task[None]] = set()
        self._heard_at = 0.0
        self._was_accepted = False
        self._session_id: str | None = None
        self._is_closed = False

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
        except GivenUpError:
            raise ServiceBusConnectionError(f"open {self._path!r}: the connection was lost meanwhile") from None

    def _usable_link(self, wait_s: float | None = None) -> SdkLink[Any]:
        """The link, made anew if it was lost.

        Raises:
            SessionLockLostError: it was a session's.
        """
        self._check_open()
        if self._link is not None and not self._link.is_gone:
            return self._link
        if self._was_accepted:
            raise SessionLockLostError(
                f"the connection that held session {self._session_id!r} of {self._path!r} is lost, and the lock with "
                "it: accept the session again"
            )
        sdk = self._owner.sdk_receiver(self._path, self._session, self._mode, self._prefetch_count, wait_s)
        self._tap = None
        self._link = SdkLink(
            sdk, repr(self._path), self._clock, self._owner.tasks, prepare=self._opened, place=self._owner.place
        )
        return self._link

    def _check_open(self) -> None:
        if self._is_closed:
            raise InvalidOperationError(f"the link to {self._path} was closed: open a new one")

    def _opened(self, sdk: Any) -> None:
        self._sdk = sdk
        self._heard_at = self._clock.monotonic()
        if is_known_sdk():
            self._tap = Tap(sdk, keeps_all=self._keeps_all)
        if self._session is not None:
            self._session_id = sdk.session.session_id
            if not isinstance(self._session_id, str):
                raise ServiceBusConnectionError(f"the service accepted no session of {self._path!r}: try again")
            self._was_accepted = True

    # -- receiving -----------------------------------------------------------------------------------------------

    async def receive(self, *, max_message_count: int, max_wait_time_s: float) -> list[ServiceBusReceivedMessage]:
        deadline = self._clock.monotonic() + max_wait_time_s
        if self._session is not None:
            await self.open(timeout_s=max_wait_time_s)
        while True:
            if self._returned:
                return [self._returned.popleft() for _ in range(min(max_message_count, len(self._returned)))]
            left_s = max(deadline - self._clock.monotonic(), 0.0)
            try:
                messages = await self._receive_once(max_message_count, left_s)
            except GivenUpError:
                continue
            if messages or self._clock.monotonic() >= deadline:
                return messages

    async def _receive_once(self, max_message_count: int, left_s: float) -> list[ServiceBusReceivedMessage]:
        """One receive call of the SDK: until a message comes, the time is over or somebody else wants a turn."""
        self._drop_silent_link()
        link = self._usable_link()
        await link.turn("receive from", left_s + SLICE_GRACE_S)
        if self._returned:
            link.pass_turn()
            return []
        slice_s = min(left_s, SLICE_S if is_known_sdk() else BLIND_SLICE_S)
        task = link.start(lambda sdk: self._receive_from(sdk, link, max_message_count, slice_s), doing="receive from")
        self._receiving = task
        try:
            late = await self._clock.wait({task}, slice_s + SLICE_GRACE_S)
        except asyncio.CancelledError:
            self._interrupt(task)
            raise
        finally:
            if self._receiving is task and task.done():
                self._receiving = None
        if late:
            link.give_up(task)
            raise OperationTimeoutError(f"receive from {self._path!r}: the SDK hung for {slice_s + SLICE_GRACE_S:g} s")
        messages = task.result()
        return [*messages]

    async def _receive_from(
        self, sdk: Any, link: SdkLink[Any], max_message_count: int, slice_s: float
    ) -> list[AzureReceivedMessage]:
        tap = self._tap
        if tap is None:
            # Credit that is left over cannot be taken back: what comes on it would be deleted and lost with the link.
            count = max_message_count if self._is_locking else 1
            given = await sdk.receive_messages(count, max(slice_s, _TAKES_NEXT))
        else:
            tap.is_receiving = True
            tap.is_pausing = bool(link.calls)
            # With fewer than asked for at hand the SDK would keep them to itself until more come or the time is over.
            count = min(max_message_count, tap.arrived or max_message_count)
            try:
                given = await sdk.receive_messages(count, max(slice_s, _TAKES_NEXT))
                if not self._is_locking and len(given) < max_message_count and tap.has_credit:
                    given += await tap.drain()
            finally:
                tap.is_pausing = False
                tap.is_receiving = bool(link.calls) and not given
        if given:
            self._heard_at = self._clock.monotonic()
        return self._read(given, is_locked=self._is_locking)

    def _read(self, given: Sequence[Any], *, is_locked: bool) -> list[AzureReceivedMessage]:
        read = [
            received(
                each,
                is_wrapped=self._tap is not None,
                is_locked=is_locked,
                has_session=self._session is not None,
            )
            for each in given
        ]
        return [message for message in read if message is not None]

    def _drop_silent_link(self) -> None:
        link = self._link
        if link is None or self._session is not None or link.calls or not link.is_open:
            return
        if self._clock.monotonic() - self._heard_at > SILENCE_S:
            link.give_up()

    def _interrupt(self, task: asyncio.Task[list[AzureReceivedMessage]]) -> None:
        """The caller has gone: let the call come back soon, and give back what it brings."""
        self._pause()
        if task.done():
            self._take_back(task)
        else:
            task.add_done_callback(self._take_back)

    def _pause(self) -> None:
        """Let the receive call that is in the SDK come back at once."""
        if self._tap is not None:
            self._tap.pause()

    def _take_back(self, task: asyncio.Task[list[AzureReceivedMessage]]) -> None:
        if self._receiving is task:
            self._receiving = None
        if task.cancelled() or task.exception() is not None:
            return
        messages = task.result()
        if self._session is not None or not self._is_locking:
            self._returned.extend(messages)
        elif messages and not self._owner.tasks.is_closed:
            giving = self._owner.tasks.start(self._give_back(messages), name=f"give back to {self._path}")
            self._giving_back.add(giving)
            giving.add_done_callback(self._giving_back.discard)

    async def _give_back(self, messages: Sequence[AzureReceivedMessage]) -> None:
        """Undo the delivery of messages that nobody was handed."""
        for message in messages:
            link = self._link
            if link is None or link.is_gone:
                return
            try:
                await link.call(partial(self._release, message), doing="give back to", timeout_s=GIVE_BACK_S)
            except (GivenUpError, ServiceBusError) as error:
                log.info(
                    "azure.not_given_back",
                    "cannot release a message of {path!r}: {error}",
                    path=self._path,
                    error=error,
                )
                return

    async def _release(self, message: AzureReceivedMessage, sdk: Any) -> None:
        if self._tap is not None:
            await self._tap.release(message.sdk)
        else:
            await sdk.abandon_message(message.sdk)

    # -- looking and fetching ------------------------------------------------------------------------------------

    async def peek(
        self, *, max_message_count: int, sequence_number: int, timeout_s: float
    ) -> list[ServiceBusReceivedMessage]:
        async def look(sdk: Any) -> list[AzureReceivedMessage]:
            given = await sdk.peek_messages(
                max_message_count, sequence_number=max(sequence_number, 1), timeout=timeout_s
            )
            return self._read(given, is_locked=False)

        return [*await self._call(look, doing="peek", timeout_s=timeout_s)]

    async def receive_deferred(
        self, sequence_numbers: Sequence[int], *, timeout_s: float
    ) -> list[ServiceBusReceivedMessage]:
        async def fetch(sdk: Any) -> list[AzureReceivedMessage]:
            given = await sdk.receive_deferred_messages(list(sequence_numbers), timeout=timeout_s)
            return self._read(given, is_locked=self._is_locking)

        messages = await self._call(fetch, doing="receive deferred messages from", timeout_s=timeout_s)
        if not messages:
            raise MessageNotFoundError(
                f"{self._path!r} has no deferred message numbered {', '.join(map(str, sequence_numbers))}"
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
                "sending can: settle it after the commit"
            )
        locked = self._locked(message)
        self._check_open()
        await self._settlements.settle(locked, settlement, timeout_s=timeout_s)

    async def renew_lock(self, message: ServiceBusReceivedMessage, *, timeout_s: float) -> datetime:
        locked = self._locked(message)

        async def renew(sdk: Any) -> datetime:
            until: datetime = await sdk.renew_message_lock(locked, timeout=timeout_s)
            return until

        return await self._call(renew, doing="renew the lock of a message of", timeout_s=timeout_s)

    def _locked(self, message: ServiceBusReceivedMessage) -> Any:
        """The SDK's side of a message that can be settled."""
        if message.lock_token is None:
            raise InvalidOperationError(
                f"message {message.sequence_number} of {self._path} is not held: it was peeked, or deleted when it was "
                "received"
            )
        if not isinstance(message, AzureReceivedMessage):
            raise InvalidOperationError(
                f"message {message.sequence_number} was not received from {self._path} by this client: settle it where "
                "it came from"
            )
        return message.sdk

    # -- the session ---------------------------------------------------------------------------------------------

    async def renew_session_lock(self, *, timeout_s: float) -> datetime:
        async def renew(session: Any) -> datetime:
            until: datetime = await session.renew_lock(timeout=timeout_s)
            return until

        return await self._in_session(renew, doing="renew the session lock of", timeout_s=timeout_s)

    async def get_session_state(self, *, timeout_s: float) -> bytes | None:
        async def get(session: Any) -> bytes | None:
            state = await session.get_state(timeout=timeout_s)
            return None if state is None else bytes(state)

        return await self._in_session(get, doing="get the session state of", timeout_s=timeout_s)

    async def set_session_state(self, state: bytes | None, *, timeout_s: float) -> None:
        async def put(session: Any) -> None:
            await session.set_state(state, timeout=timeout_s)

        await self._in_session(put, doing="set the session state of", timeout_s=timeout_s)

    async def _in_session(self, work: Callable[[Any], Awaitable[R]], *, doing: str, timeout_s: float) -> R:
        if self._session is None:
            raise InvalidOperationError(
                f"the receiver of {self._path} has no session: open it with a session_id or NEXT_AVAILABLE_SESSION"
            )
        return await self._call(lambda sdk: work(sdk.session), doing=doing, timeout_s=timeout_s)

    async def _call(self, work: Callable[[Any], Awaitable[R]], *, doing: str, timeout_s: float) -> R:
        """Do `work` with the SDK's receiver, interrupting a receive call that is in it."""
        deadline = self._clock.monotonic() + timeout_s
        while True:
            left_s = deadline - self._clock.monotonic()
            if left_s <= 0:
                raise OperationTimeoutError(f"{doing} {self._path!r}: the time was over before anything was sent")
            link = self._usable_link()
            if self._receiving is not None:
                self._pause()
            try:
                answer = await link.call(work, doing=doing, timeout_s=left_s)
            except GivenUpError:
                continue
            self._heard_at = self._clock.monotonic()
            return answer

    async def close(self) -> None:
        """Give back what nobody was handed, and end the connection. A second call finishes what a first one, that was
        cancelled, did not; until then the transport remembers the link."""
        self._is_closed = True
        task, link = self._receiving, self._link
        try:
            await self._end_receiving(task, link)
        except asyncio.CancelledError:
            if link is not None:
                link.give_up(task)  # nobody may call again, and a session would stay locked
            raise
        if link is not None:
            await link.close()
        self._owner.forget(self)

    async def _end_receiving(self, task: asyncio.Task[Any] | None, link: SdkLink[Any] | None) -> None:
        """Let the receive call that is under way come back, and give back what it and earlier ones brought."""
        if task is not None and not task.done():
            self._pause()
            await self._clock.wait({task}, BLIND_SLICE_S + 1.0)
        if link is None:
            return
        if self._returned and self._is_locking and not link.is_gone:
            messages = list(self._returned)
            self._returned.clear()
            await self._give_back(messages)
        await self._clock.wait(self._giving_back, GIVE_BACK_S)


async def _nothing(sdk: Any) -> None:
    """Opening is enough."""
