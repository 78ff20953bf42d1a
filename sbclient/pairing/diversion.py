"""Sends messages to the backlog: seals them, chooses a backlog queue, and tries other queues if it fails."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final

from sbclient import clock
from sbclient.amqp import EncodedBatch, EncodedMessage
from sbclient.errors import (
    BacklogUnavailableError,
    MessageSizeExceededError,
    OperationTimeoutError,
    ServiceBusError,
    ServiceBusServerBusyError,
    keep_doubt,
    with_doubt,
)
from sbclient.options import SERVER_BUSY_PAUSE
from sbclient.pairing.backlog_links import OF_THE_TRANSFER
from sbclient.pairing.state import PairedEntity, PairState
from sbclient.rules.backlog import BacklogChoice
from sbclient.rules.envelope import seal, seal_all
from sbclient.rules.failover import FailoverState
from sbclient.telemetry import metrics, tracing

FRAGMENT_S: Final = 15.0
"""The longest time that the service needs to store a message without a key on another fragment (documented)."""

BUSY_PAUSE_S: Final = 2.0
"""The longest wait for a busy backlog queue while there are others."""

_LEAST_TRY_S: Final = 2.0


def reserve_s(timeout_s: float) -> float:
    """Return the part of a timeout that is kept for a diversion.

    It is a quarter, and at least 2 s if the timeout is 8 s or more. Above 15.5 s it is at most half of what exceeds the
    15 s that the service may need to store a message on another fragment: of a timeout of 16 s a message may have
    waited some time for its link, or for the transfer of an earlier one.
    """
    if timeout_s > FRAGMENT_S + 0.5:
        return min(timeout_s / 4, (timeout_s - FRAGMENT_S) / 2)
    return max(timeout_s / 4, 2.0 if timeout_s >= 8 else 0.0)


class Attempt:
    """An attempt to send to a backlog queue.

    Attributes:
        queue: the name of the queue.
        answer: ends with its answer; None if it was taken.
    """

    __slots__ = ("answer", "queue")

    def __init__(self, queue: str, answer: asyncio.Future[None]) -> None:
        self.queue = queue
        self.answer: asyncio.Future[None] | None = answer

    def answered(self) -> asyncio.Future[None]:
        """Return the answer, once: the traceback of its error refers to the frame that waits for it."""
        answer, self.answer = self.answer, None
        assert answer is not None
        return answer


class Diversion:
    """The backlog of one sender. It chooses a queue at its first diversion and keeps it until the queue fails."""

    def __init__(self, pair: PairState, entity: PairedEntity) -> None:
        self._pair = pair
        self._entity = entity
        self._choice: BacklogChoice | None = None
        self._where = {metrics.DESTINATION: entity.path, **metrics.server(pair.secondary.namespace)}

    def begin(self, messages: Sequence[EncodedMessage], *, deadline: float) -> Attempt | None:
        """Make the first attempt to send messages without a session order; None if `send` must wait for something.

        Raises:
            MessageSizeExceededError: they are too large for a backlog queue.
        """
        pair, entity = self._pair, self._entity
        now = clock.monotonic()
        remaining_s = deadline - now
        if remaining_s <= 0 or not pair.backlog.provisioned.is_set() or tracing.is_on():
            return None
        if pair.backlog.split_by_key and len({message.partition_key for message in messages}) > 1:
            return None
        queue = (self._choice or self._chosen()).pick(now)
        if queue is None or (pair.quarantine.terms and pair.quarantine.is_in(queue, now)):
            return None
        if not pair.is_primary_reached:
            self._warn_if_never_reached()
        batch = seal_all(messages, entity.path)
        self._check_size(batch)
        return self._attempt(queue, batch, _attempt_s(remaining_s))

    def _attempt(self, queue: str, sealed: EncodedBatch, timeout_s: float) -> Attempt:
        return Attempt(queue, self._pair.backlog_links.send(queue, sealed, timeout_s=timeout_s))

    async def send(
        self,
        messages: Sequence[EncodedMessage],
        *,
        deadline: float,
        first: Attempt | None = None,
    ) -> None:
        """Send messages for the entity to the backlog, as one transfer to one queue.

        With `ordering="session"` the messages of a session go to the queue of that session, and the others separately.

        Args:
            first: the first attempt, which `begin` made.

        Raises:
            BacklogUnavailableError: no queue accepted them; it holds the error of each queue.
            MessageSizeExceededError: they are too large for a backlog queue.
        """
        await self._wait_for_queues(deadline)
        self._warn_if_never_reached()
        # Queue and partition key of each transfer; the queue is None if it is chosen later.
        transfers: dict[tuple[str | None, str | None], list[EncodedMessage]] = defaultdict(list)
        for message in messages:
            session_id = self._entity.ordered_session(message)
            queue = native = None
            if session_id is not None:
                self._entity.sessions.diverted(session_id)
                queue, native = self._entity.backlog_session(session_id)
            key = (native or message.partition_key) if self._pair.backlog.split_by_key else None
            transfers[queue, key].append(seal(message, self._entity.path, native_session_id=native))
        is_partly_accepted = False
        for (queue, _), sealed in transfers.items():
            try:
                sending = self._send_to(queue, EncodedBatch(sealed), deadline, first)
                await tracing.carrying(tracing.DIVERT, sealed, self._where, sending, answer=tracing.QUEUE)
            except ServiceBusError as error:
                keep_doubt(error, is_partly_accepted)
                raise
            first, is_partly_accepted = None, True

    def _warn_if_never_reached(self) -> None:
        if not self._entity.failover.is_forced:
            self._pair.warn_if_never_reached(self._entity.path)

    async def _wait_for_queues(self, deadline: float) -> None:
        """Wait until the backlog queues are provisioned.

        Raises:
            BacklogUnavailableError: the secondary is unavailable.
        """
        backlog = self._pair.backlog
        if backlog.provisioned.is_set():
            return
        try:
            await backlog.wait(deadline - clock.monotonic())
        except BacklogUnavailableError as error:
            raise BacklogUnavailableError(
                f"{self._entity.path!r} {self._state()}, and the backlog queues of {self._pair.secondary.namespace} "
                "are not provisioned: the message was not accepted; send it again later",
                error.causes,
            ) from error.__cause__

    async def _send_to(
        self, only: str | None, sealed: EncodedBatch, deadline: float, attempt: Attempt | None = None
    ) -> str:
        """Send one transfer to the only queue allowed, or with None to a queue of choice; return the queue.

        Args:
            attempt: the first attempt, if that was made.
        """
        self._check_size(sealed)
        causes: dict[str, Exception] = {}
        busy: set[str] = set()
        is_last = False
        try:
            while not is_last:
                if attempt is None:
                    queue = self._next_queue(only, causes)
                    if queue is None:
                        break
                    now = clock.monotonic()
                    is_last = only is None and self._pair.quarantine.is_in(queue, now)
                    remaining_s = deadline - now
                    if remaining_s <= 0:
                        causes[queue] = OperationTimeoutError(
                            "the timeout passed before this queue was tried", is_in_doubt=False
                        )
                        break
                    attempt = self._attempt(queue, sealed, remaining_s if only else _attempt_s(remaining_s))
                tried, attempt = attempt, None
                try:
                    await tried.answered()
                except ServiceBusError as error:
                    if await self._wait_if_busy(
                        tried.queue, error, busy, deadline, is_only=is_last or only is not None
                    ):
                        is_last = False
                    else:
                        self._note(tried.queue, error, causes)
                else:
                    self.accepted(sealed)
                    return tried.queue
            raise self._unavailable(causes)
        finally:
            del causes  # the tracebacks of its errors refer to this frame

    async def _wait_if_busy(
        self, queue: str, error: ServiceBusError, busy: set[str], deadline: float, *, is_only: bool
    ) -> bool:
        """Wait before a busy queue is tried again; return False if it is not busy, or another one is to be tried.

        Args:
            busy: the queues that were waited for.
            is_only: whether there is no other queue, so that the wait is that for a busy namespace.
        """
        if not isinstance(error, ServiceBusServerBusyError) or (queue in busy and not is_only):
            return False
        pause_s = SERVER_BUSY_PAUSE.total_seconds() if is_only else BUSY_PAUSE_S
        if deadline - clock.monotonic() <= pause_s:
            return False
        busy.add(queue)
        await clock.sleep(pause_s)
        return True

    def _note(self, queue: str, error: ServiceBusError, causes: dict[str, Exception]) -> None:
        """Add the error of a queue to the causes; a queue that is still busy is withdrawn.

        Raises:
            InvalidOperationError, MessageSizeExceededError: the error, which every queue would answer.
        """
        if isinstance(error, ServiceBusServerBusyError):
            self._pair.queue_failed(queue, error)
        elif isinstance(error, OF_THE_TRANSFER):
            with_doubt(error, _is_in_doubt(causes))
            try:
                raise error
            finally:
                del error, causes
        causes[queue] = error

    def _next_queue(self, only: str | None, tried: Mapping[str, Exception]) -> str | None:
        if only is not None:
            return None if only in tried else only
        return self._chosen().pick(clock.monotonic(), tried=tried)

    def _chosen(self) -> BacklogChoice:
        if self._choice is None:
            self._choice = BacklogChoice(self._pair.backlog_queues, self._pair.quarantine, self._pair.random)
        return self._choice

    def accepted(self, batch: EncodedBatch) -> None:
        """Count the messages of a transfer that a backlog queue has accepted."""
        count = len(batch)
        self._entity.diverted += count
        metrics.add(metrics.DIVERTED, count, self._entity.attributes)

    def _state(self) -> str:
        return {
            FailoverState.FAILED_OVER: "is failed over",
            FailoverState.SUSPECT: "cannot be reached",
            FailoverState.HEALTHY: "has earlier messages of this session in the backlog",
        }[self._entity.failover.state]

    def _unavailable(self, causes: Mapping[str, Exception]) -> BacklogUnavailableError:
        is_in_doubt = _is_in_doubt(causes)
        result = "whether it was accepted is in doubt" if is_in_doubt else "it was not accepted"
        return BacklogUnavailableError(
            f"{self._entity.path!r} {self._state()}, and no backlog queue of {self._pair.secondary.namespace} accepted "
            f"the message: {result}; send it again later",
            causes,
            is_in_doubt=is_in_doubt,
        )

    def _check_size(self, sealed: EncodedBatch) -> None:
        limits = self._pair.backlog.limits
        if limits is None:
            return
        size_bytes = sealed.size_bytes
        is_single = size_bytes == sealed.largest_bytes
        limit_bytes = limits.max_message_size_bytes if is_single else limits.max_batch_size_bytes
        if size_bytes > limit_bytes:
            raise MessageSizeExceededError(
                f"a message for {self._entity.path!r} takes {size_bytes} bytes in the backlog, {limit_bytes} are "
                "allowed: send less at once, or set reserve_backlog_headroom to get this error while the primary is "
                "healthy"
            )


def _attempt_s(remaining_s: float) -> float:
    """Return the timeout of one attempt if other queues may follow."""
    return max(min(remaining_s, _LEAST_TRY_S), remaining_s / 2)


def _is_in_doubt(causes: Mapping[str, Exception]) -> bool:
    return any(isinstance(cause, ServiceBusError) and cause.is_in_doubt for cause in causes.values())
