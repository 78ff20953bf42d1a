"""Receives messages from one queue, subscription, sub-queue or session, and settles them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from datetime import datetime
from functools import partial
from typing import Annotated, Any, Final, Literal, Self, TypeAlias, TypeVar, cast

from sbclient import clock
from sbclient.arguments.checked import checked
from sbclient.arguments.kinds import Count, Reason, Seconds, SequenceNumber, SequenceNumbers, State, whole
from sbclient.client.both_links import BothLinks, marked
from sbclient.client.core import Calls, ClientCore, each_part
from sbclient.client.lock_renewer import AutoLockRenewer
from sbclient.client.transaction import Transaction
from sbclient.delivery import ReceiveMode, ServiceBusReceiveMode, SessionChoice, Settlement, SettleMode
from sbclient.errors import (
    InvalidOperationError,
    MessageAlreadySettled,
    ServiceBusError,
)
from sbclient.message import NamespaceSide, ServiceBusReceivedMessage
from sbclient.rules.ping import is_ping
from sbclient.rules.sequence_number import by_partition
from sbclient.telemetry import tracing
from sbclient.telemetry.log import get_logger
from sbclient.telemetry.operations import Telemetry
from sbclient.transport.base import ReceiverLink

log = get_logger(__name__)

T = TypeVar("T")

DEFAULT_WAIT_S: Final = 60.0
"""The default wait for a first message (source: azure-servicebus)."""


ReceiveFrom: TypeAlias = Literal["primary", "both"]
PrefetchCount: TypeAlias = Annotated[int, whole(0, 50_000)]

_COMPLETE: Final = Settlement(SettleMode.COMPLETE)
_PEEK_LOCK: Final = ServiceBusReceiveMode.PEEK_LOCK  # members of an enumeration are read slowly
_ABANDON: Final = Settlement(SettleMode.ABANDON)


@checked
class ServiceBusSession:
    """The session that a receiver has locked, with its state; available as `receiver.session`."""

    def __init__(self, receiver: ServiceBusReceiver) -> None:
        self._receiver = receiver
        self.auto_renew_error: Exception | None = None

    @property
    def session_id(self) -> str:
        """The session id; available after the receiver has been entered or used."""
        session_id = self._receiver._link.session_id
        if session_id is None:
            raise InvalidOperationError("the session is not accepted yet: use `async with receiver` first")
        return session_id

    @property
    def locked_until_utc(self) -> datetime | None:
        """The end of the lock, unless it is renewed."""
        return self._receiver._link.session_locked_until_utc

    async def renew_lock(self, *, timeout: Seconds | None = None) -> datetime:
        """Renew the lock of the session; return its new end.

        Raises:
            SessionLockLostError: the lock has expired.
        """
        return await self._receiver._run(self._receiver._link.renew_session_lock, timeout)

    async def get_state(self, *, timeout: Seconds | None = None) -> bytes | None:
        """Return the stored state; None if there is none."""
        return await self._receiver._run(self._receiver._link.get_session_state, timeout)

    async def set_state(self, state: State | None, *, timeout: Seconds | None = None) -> None:
        """Store the state; None or an empty one removes it. The state is kept when the session has no more messages.

        Raises:
            SessionLockLostError: the lock has expired; with `is_in_doubt` an earlier try may have stored the state.
        """
        data = cast("bytes | None", state)
        await self._receiver._run(partial(self._receiver._link.set_session_state, data), timeout, changes=True)


def fetch_ahead(receiver: ServiceBusReceiver, count: int, total: int) -> None:
    """Let the service send up to `count` messages ahead of calls that receive `total` messages; not all transports can.

    A message that no call receives is released when the receiver is closed.
    """
    receiver._link.fetch_ahead(count, total)


async def settle_together(
    receiver: ServiceBusReceiver, messages: Sequence[ServiceBusReceivedMessage], settlement: Settlement
) -> None:
    """Try to settle messages of a receiver once, without a task, a retry and a span for each.

    A message whose settlement fails, or whose transport cannot do this, keeps `is_settled` False: settle it alone.
    """
    await receiver._open()
    retry = receiver._core.retry
    timeout_s = retry.attempt_s(retry.options.timeout)
    settled = await receiver._link.settle_together(messages, settlement, timeout_s=timeout_s)
    for message in settled:
        message.is_settled = True
        if receiver.renewals:
            receiver._stop_renewing(message)


@checked
class ServiceBusReceiver:
    """Receives from the primary namespace, or from both of a pair.

    Created by `get_queue_receiver` and `get_subscription_receiver` of a client.
    `async for message in receiver` ends when `max_wait_time` passes without a message.
    """

    def __init__(
        self,
        core: ClientCore,
        path: str,
        *,
        session: SessionChoice = None,
        receive_mode: ReceiveMode = ServiceBusReceiveMode.PEEK_LOCK,
        max_wait_time: Seconds | None = None,
        prefetch_count: PrefetchCount = 0,
        auto_lock_renewer: AutoLockRenewer | None = None,
        receive_from: ReceiveFrom | None = None,
    ) -> None:
        self._mode = ServiceBusReceiveMode(receive_mode)
        if auto_lock_renewer is not None and session is None and self._mode is ServiceBusReceiveMode.RECEIVE_AND_DELETE:
            raise InvalidOperationError(
                "RECEIVE_AND_DELETE has no locks to renew: remove auto_lock_renewer, or use PEEK_LOCK"
            )
        self._core = core
        self._path = path
        self._next_peek = {"primary": 1, "secondary": 1}
        self._settling: set[int] = set()  # the ids of the objects
        self._unreturned: dict[tuple[str, int], ServiceBusReceivedMessage] = {}
        self._max_wait_time = max_wait_time
        self._renewer = auto_lock_renewer
        if receive_from == "both" and core.pair is None:
            raise InvalidOperationError(
                f"receive_from is 'both' for {path!r} and the client has no secondary: open it with secondary="
            )
        pair = core.pair if (receive_from or (core.pair and core.pair.options.receive_from)) == "both" else None
        chosen: Any = {"session": session, "receive_mode": self._mode, "prefetch_count": prefetch_count}
        self._both = None if pair is None else BothLinks(pair, path, **chosen)
        self._link: ReceiverLink = self._both or core.primary.open_receiver(path, **chosen)
        self._settle_once = self._link.settle  # a bound method for each message in flight takes memory and time
        self._session = ServiceBusSession(self) if session is not None else None
        self._is_named_session = isinstance(session, str)
        self._telemetry = Telemetry(core.primary.namespace, path)
        self._opening = asyncio.Lock()
        self.renewals: dict[int, Callable[[], object]] = {}
        self._is_open = False
        self._calls = Calls(f"the receiver of {path!r}")

    @property
    def entity_path(self) -> str:
        """The path of the queue, subscription or sub-queue."""
        return self._path

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._calls.are_over

    @property
    def session(self) -> ServiceBusSession:
        """The session of a session receiver. Other receivers have None, which the type hides, as in the SDK."""
        return self._session  # type: ignore[return-value]

    def leave_loop(self) -> None:
        """Make anew what belonged to an event loop that has ended; for the client."""
        self._opening = asyncio.Lock()
        self._calls.leave_loop()
        self.renewals = {}
        self._is_open = False

    async def __aenter__(self) -> Self:
        await self._open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ServiceBusReceivedMessage:
        while True:
            messages = await self.receive_messages(max_message_count=1, max_wait_time=self._max_wait_time)
            if messages:
                return messages[0]
            if self._max_wait_time is not None:
                raise StopAsyncIteration

    async def close(self) -> None:
        """Release unused messages and the session, and close the link. Safe to call twice."""
        self._core.enter_loop()
        self._calls.end()
        for stop in list(self.renewals.values()):
            stop()
        await self._link.close()

    async def receive_messages(
        self, max_message_count: Count | None = 1, max_wait_time: Seconds | None = None
    ) -> list[ServiceBusReceivedMessage]:
        """Wait for a first message; return it with others that are available, or an empty list if none arrives.

        Args:
            max_message_count: the largest number to return, at least 1; None = 1. A call may return fewer although
                there are more.
            max_wait_time: seconds to wait for the first message; None = the receiver's own, or 60.

        Raises:
            SessionLockLostError: the lock of the session has expired.
            ServiceBusError: the primary namespace does not deliver messages; with `receive_from="both"`, neither does
                the secondary.
        """
        count = 1 if max_message_count is None else max_message_count
        if self._renewer is not None:
            self._renewer.check_open()
        if not self._is_ready():
            await self._open()
        retry = self._core.retry
        began_at = clock.monotonic()
        wait_s = max_wait_time or self._max_wait_time or DEFAULT_WAIT_S
        end_at = began_at + wait_s
        first = self._link.receive(max_message_count=count, max_wait_time_s=wait_s)
        while True:
            deadline = end_at + retry.options.timeout
            messages = await self._calls.run(
                retry.run(self._receive_again, count, end_at, first=first, deadline=deadline)
            )
            if self._both is None:
                self._core.primary_answered()
            if any(map(is_ping, messages)):
                await self._complete_pings(messages)
                messages = [message for message in messages if not is_ping(message)]
            if messages or clock.monotonic() >= end_at:
                if self._renewer is not None:
                    self._renew(self._renewer, messages)
                self._telemetry.received(tracing.RECEIVE, messages, began_at)
                return messages
            first = self._receive_again(count, end_at)

    def _receive_again(
        self, count: int, end_at: float, *, timeout_s: float = 0.0
    ) -> Coroutine[Any, Any, list[ServiceBusReceivedMessage]]:
        """Wait for messages until a time, whatever the timeout of the attempt is."""
        left_s = max(end_at - clock.monotonic(), 0.0)
        return self._link.receive(max_message_count=count, max_wait_time_s=left_s)

    def _check_renewer(self) -> None:
        """Check before anything is locked that a renewer can renew it."""
        if self._renewer is not None:
            self._renewer.check_open()

    def _renew(self, renewer: AutoLockRenewer, messages: Sequence[ServiceBusReceivedMessage]) -> None:
        if self._session is not None:  # its lock is renewed as a whole
            return
        for message in messages:
            renewer.register(self, message)

    async def _complete_pings(self, received: Sequence[ServiceBusReceivedMessage]) -> None:
        """Complete the pings that a broker has delivered; applications never receive pings."""
        if self._mode is ServiceBusReceiveMode.RECEIVE_AND_DELETE:
            return
        for ping in filter(is_ping, received):
            try:
                await self._link.settle(ping, _COMPLETE, timeout_s=self._core.retry.options.timeout)
            except ServiceBusError as error:
                log.info(
                    "receiver.ping_not_completed",
                    "cannot complete a ping on {path!r}: {error}",
                    path=self._path,
                    error=error,
                )

    async def peek_messages(
        self,
        max_message_count: Count = 1,
        *,
        sequence_number: SequenceNumber = 0,
        namespace: NamespaceSide = "primary",
        timeout: Seconds | None = None,
    ) -> list[ServiceBusReceivedMessage]:
        """Return messages without locking them; a call may return fewer although there are more.

        Args:
            sequence_number: where to begin; 0 = after the last message that this receiver has peeked. Repeated calls
                return every message once, on a partitioned entity fragment by fragment, and then an empty list.
            namespace: with `receive_from="both"`, where to look; each has its own numbers.
        """
        await self._open()
        link, namespace = self._at(namespace)
        first = sequence_number or self._next_peek[namespace]
        began_at = clock.monotonic()
        peek = partial(link.peek, max_message_count=max_message_count, sequence_number=first)
        messages = marked(await self._run(peek, timeout, namespace), namespace)
        if messages:
            self._next_peek[namespace] = messages[-1].sequence_number + 1
        self._telemetry.received(tracing.PEEK, messages, began_at, is_consuming=False)
        return messages

    async def receive_deferred_messages(
        self,
        sequence_numbers: SequenceNumbers,
        *,
        namespace: NamespaceSide = "primary",
        timeout: Seconds | None = None,
    ) -> list[ServiceBusReceivedMessage]:
        """Receive deferred messages by their sequence numbers, all of them or none; in the order asked for.

        The service answers for one partition at a time, so each partition gets a request of its own. If one fails, the
        messages of the others are abandoned, which counts a delivery. A receiver that deletes keeps them: the next
        call that asks for their numbers returns them.

        Args:
            namespace: with `receive_from="both"`, where they are: the `namespace` of the message that was deferred.

        Raises:
            MessageNotFoundError: a message is not deferred, or another receiver has locked it.
        """
        numbers = dict.fromkeys(cast("list[int]", sequence_numbers))
        if not numbers:
            return []
        self._check_renewer()
        began_at = clock.monotonic()
        messages = await self._receive_deferred(numbers, timeout, namespace)
        if self._renewer is not None:
            self._renew(self._renewer, messages)
        self._telemetry.received(tracing.RECEIVE_DEFERRED, messages, began_at)
        return messages

    async def _receive_deferred(
        self, numbers: Iterable[int], timeout: float | None, namespace: NamespaceSide
    ) -> list[ServiceBusReceivedMessage]:
        await self._open()
        kept, (link, namespace) = self._unreturned, self._at(namespace)
        answers = {number: kept.pop((namespace, number)) for number in numbers if (namespace, number) in kept}

        async def receive(part: list[int]) -> None:
            received = marked(await self._run(partial(link.receive_deferred, part), timeout, namespace), namespace)
            answers.update({message.sequence_number: message for message in received})

        try:
            await each_part(receive, by_partition(number for number in numbers if number not in answers))
        except BaseException as error:
            if self._mode is ServiceBusReceiveMode.RECEIVE_AND_DELETE:
                kept |= {(namespace, number): message for number, message in answers.items()}
            elif isinstance(error, ServiceBusError):
                timeout_s = self._core.retry.options.timeout
                abandoning = (self._link.settle(one, _ABANDON, timeout_s=timeout_s) for one in answers.values())
                await asyncio.gather(*abandoning, return_exceptions=True)
            raise
        return [answers[number] for number in numbers if number in answers]

    async def complete_message(
        self, message: ServiceBusReceivedMessage, *, transaction: Transaction | None = None
    ) -> None:
        """Remove the message, after it has been processed.

        Args:
            transaction: settle as part of it, as for every settlement.

        Raises:
            MessageLockLostError: the lock has expired, so the message is delivered again; as every settlement.
            MessageAlreadySettled: the message is settled, or another call is settling it; as every settlement.
            TypeError: it is not a received message; as every settlement.
        """
        await self._settle(message, _COMPLETE, transaction)

    async def abandon_message(
        self, message: ServiceBusReceivedMessage, *, transaction: Transaction | None = None
    ) -> None:
        """Release the message now; it is delivered again, with a higher delivery count."""
        await self._settle(message, _ABANDON, transaction)

    async def defer_message(
        self, message: ServiceBusReceivedMessage, *, transaction: Transaction | None = None
    ) -> None:
        """Defer the message; only `receive_deferred_messages` returns it from then on."""
        await self._settle(message, Settlement(SettleMode.DEFER), transaction)

    async def dead_letter_message(
        self,
        message: ServiceBusReceivedMessage,
        reason: Reason | None = None,
        error_description: Reason | None = None,
        *,
        transaction: Transaction | None = None,
    ) -> None:
        """Move the message to the dead-letter queue, with a reason and a description, cut to 4,096 characters each.

        Args:
            reason, error_description: a text, or an exception, whose text is taken; an empty one is None.
        """
        texts = cast("tuple[str | None, str | None]", (reason, error_description))
        await self._settle(message, Settlement(SettleMode.DEAD_LETTER, *texts), transaction)

    async def renew_message_lock(
        self, message: ServiceBusReceivedMessage, *, timeout: Seconds | None = None
    ) -> datetime:
        """Renew the lock of the message; return its new end, also stored as `locked_until_utc` of the message.

        Raises:
            MessageLockLostError: the lock has expired.
            TypeError: this is a session receiver; renew the lock of the session instead.
        """
        if self._session is not None:
            raise TypeError("messages of a session have no lock of their own: use session.renew_lock()")
        self._check_settleable(message)
        message.locked_until_utc = await self._run(partial(self._link.renew_lock, message), timeout)
        return message.locked_until_utc

    def _is_ready(self) -> bool:
        """Return whether the client is open, and this receiver needs no session of its own."""
        is_open = self._core.home.ready is asyncio._get_running_loop() and not self._calls.are_over
        return is_open and self._session is None

    async def _open(self) -> None:
        if self._core.home.ready is not asyncio._get_running_loop():
            await self._core.open()
        if self._calls.are_over:
            raise InvalidOperationError(f"the receiver of {self._path!r} is closed: get a new one from the client")
        if self._session is None or self._is_open:
            return
        async with self._opening:
            if self._is_open:
                return
            self._check_renewer()
            # The transport waits for a session; retries would multiply the wait.
            wait_s = self._max_wait_time if self._max_wait_time is not None and not self._is_named_session else None
            await self._calls.run(self._link.open(timeout_s=wait_s or self._core.retry.options.timeout))
            self._is_open = True
            if self._renewer is not None:
                self._renewer.register(self, self._session)

    async def _settle(
        self, message: ServiceBusReceivedMessage, settlement: Settlement, transaction: Transaction | None
    ) -> None:
        self._check_settleable(message, settlement.mode)
        if not self._is_ready():
            await self._open()
        key = id(message)
        if key in self._settling:
            raise MessageAlreadySettled(
                f"another call is settling message {message.message_id!r} of {self._path!r}: settle each message once"
            )
        if transaction is None:
            retry, settle = self._core.retry, self._settle_once
            timeout_s = retry.options.timeout
            deadline = clock.monotonic() + timeout_s
            first = settle(message, settlement, timeout_s=retry.attempt_s(timeout_s))  # to read the clock once
            settling = retry.run(settle, message, settlement, first=first, deadline=deadline)
        else:
            settling = self._settle_in(transaction, message, settlement)
        self._settling.add(key)
        try:
            await self._telemetry.settling(message, settlement.mode, settling)
        finally:
            self._settling.discard(key)
        message.is_settled = True
        if transaction is None and self.renewals:
            self._stop_renewing(message)

    def _stop_renewing(self, message: ServiceBusReceivedMessage) -> None:
        stop = self.renewals.get(id(message))
        if stop is not None:
            stop()

    async def _settle_in(
        self, transaction: Transaction, message: ServiceBusReceivedMessage, settlement: Settlement
    ) -> None:
        if transaction.namespace != message.namespace:
            raise InvalidOperationError(
                f"message {message.message_id!r} is in the {message.namespace} and the transaction in the "
                f"{transaction.namespace}: begin it with client.transaction(namespace=message.namespace)"
            )
        link = await transaction.link()
        timeout_s = self._core.retry.options.timeout
        with transaction.counting(1):
            await self._link.settle(message, settlement, timeout_s=timeout_s, transaction=link)
        transaction.settled(message, partial(self._stop_renewing, message))

    def _check_settleable(self, message: ServiceBusReceivedMessage, mode: SettleMode | None = None) -> None:
        """Check that a message can be settled, or that its lock can be renewed if `mode` is None."""
        if self._mode is _PEEK_LOCK and not message.is_settled and not message.is_copy:
            return
        operation = "renew_message_lock" if mode is None else f"{mode}_message"
        if self._mode is ServiceBusReceiveMode.RECEIVE_AND_DELETE:
            raise InvalidOperationError(
                f"{operation} is not possible: the receiver of {self._path!r} has no locks; use PEEK_LOCK"
            )
        if message.is_copy:
            raise InvalidOperationError(
                f"{operation} is not possible: message {message.message_id!r} of {self._path!r} was copied or "
                "unpickled, and only the message that was received holds the lock: use that one"
            )
        raise MessageAlreadySettled(f"message {message.message_id!r} of {self._path!r} is already settled")

    def _at(self, namespace: NamespaceSide) -> tuple[ReceiverLink, NamespaceSide]:
        """Return the link to a namespace, and the namespace: that of the session, if there is one.

        Raises:
            InvalidOperationError: this receiver has none to the secondary.
        """
        if self._both is not None:
            return self._both.at(namespace)
        if namespace == "primary":
            return self._link, namespace
        raise InvalidOperationError(
            f"namespace is 'secondary' and the receiver of {self._path!r} uses the primary: get it with "
            "receive_from='both'"
        )

    async def _run(
        self,
        operation: Callable[..., Awaitable[T]],
        timeout: float | None,
        namespace: NamespaceSide = "primary",
        *,
        changes: bool = False,
    ) -> T:
        """Call an operation of the link, and retry it until the timeout."""
        await self._open()
        deadline = clock.monotonic() + (self._core.retry.options.timeout if timeout is None else timeout)
        answer = await self._calls.run(self._core.retry.run(operation, deadline=deadline), changes=changes)
        if namespace == "primary" and self._both is None:
            self._core.primary_answered()
        return answer
