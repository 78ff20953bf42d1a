"""The way to the backlog: seal messages, choose a queue of the secondary, try others if it fails."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from sbclient.errors import (
    BacklogUnavailableError,
    InvalidOperationError,
    MessageSizeExceededError,
    OperationTimeoutError,
    ServiceBusError,
    ServiceBusServerBusyError,
)
from sbclient.message import ServiceBusMessage
from sbclient.options import SERVER_BUSY_PAUSE
from sbclient.pairing.state import PairedEntity, PairState
from sbclient.rules.backlog import (
    BacklogChoice,
    native_session_id_of,
    session_backlog_queue_of,
)
from sbclient.rules.envelope import seal
from sbclient.rules.failover import FailoverState
from sbclient.rules.size import batch_size, encoded_size
from sbclient.telemetry import metrics, tracing
from sbclient.transport.base import SenderLink

_LEAST_TRY_S = 2.0


def reserve_s(timeout_s: float) -> float:
    """How much of a caller's timeout is kept for the diversion: a quarter, at least 2 s where there are 8."""
    return max(timeout_s / 4, 2.0 if timeout_s >= 8 else 0.0)


class Diversion:
    """One sender's way to the backlog: it draws a queue at its first diversion and keeps it while it works."""

    def __init__(self, pair: PairState, entity: PairedEntity) -> None:
        self._pair = pair
        self._entity = entity
        self._choice: BacklogChoice | None = None
        self._links: dict[str, _SharedLink] = {}
        self._where = {metrics.DESTINATION: entity.path, **metrics.server(pair.secondary.namespace)}

    async def send(self, messages: Sequence[ServiceBusMessage], *, deadline: float) -> None:
        """Send messages, meant for the entity, to the backlog.

        They go as one transfer to one queue; with `ordering="session"` those with a session go, session by session, to
        that session's own queue and no other.

        Raises:
            BacklogUnavailableError: no queue took them; it names what each one answered.
            MessageSizeExceededError: they do not fit a backlog queue.
        """
        ordered: dict[str, list[ServiceBusMessage]] = defaultdict(list)
        unordered: list[ServiceBusMessage] = []
        path = self._entity.path
        for message in messages:
            if self.is_ordered(message):
                native = native_session_id_of(path, message.session_id or "")
                queue = session_backlog_queue_of(self._pair.session_backlog_queues, native)
                ordered[queue].append(seal(message, path, native_session_id=native))
            else:
                unordered.append(seal(message, path))
        transfers: list[tuple[list[str] | None, list[ServiceBusMessage]]] = [
            ([queue], sealed) for queue, sealed in ordered.items()
        ]
        if unordered:
            transfers.append((None, unordered))
        for number, (queues, sealed) in enumerate(transfers):
            try:
                sending = self._send_to(queues, sealed, deadline)
                clock = self._pair.clock
                await tracing.carrying(tracing.DIVERT, sealed, self._where, clock, sending, answer=tracing.QUEUE)
            except ServiceBusError as error:
                error.is_in_doubt = error.is_in_doubt or number > 0  # those before it were accepted
                raise

    def is_ordered(self, message: ServiceBusMessage) -> bool:
        """Whether a message goes to its session's own queue; scheduled messages have no place in an order."""
        return (
            self._pair.options.ordering == "session"
            and message.session_id is not None
            and message.scheduled_enqueue_time_utc is None
        )

    async def _send_to(self, queues: list[str] | None, sealed: list[ServiceBusMessage], deadline: float) -> str:
        """Send one transfer to the only queue allowed, or to one that this sender may choose; returns which."""
        self._check_size(sealed)
        causes: dict[str, Exception] = {}
        is_last = False
        try:
            while not is_last and (queue := self._next(queues, causes)) is not None:
                now = self._pair.clock.monotonic()
                is_last = queues is None and self._pair.quarantine.is_in(queue, now)
                remaining_s = deadline - now
                if remaining_s <= 0:
                    causes[queue] = untried = OperationTimeoutError("no time was left to try it")
                    untried.is_in_doubt = False
                    break
                timeout_s = remaining_s if queues else max(min(remaining_s, _LEAST_TRY_S), remaining_s / 2)
                link = self._link(queue)
                try:
                    async with link as sender:
                        await sender.send(sealed, timeout_s=timeout_s)
                except ServiceBusServerBusyError as error:
                    pause_s = SERVER_BUSY_PAUSE.total_seconds()
                    if deadline - self._pair.clock.monotonic() > pause_s:
                        await self._pair.clock.sleep(pause_s)
                        is_last = False
                    else:
                        causes[queue] = error
                except (InvalidOperationError, MessageSizeExceededError) as error:
                    error.is_in_doubt = _is_in_doubt(causes)
                    raise
                except ServiceBusError as error:
                    causes[queue] = error
                    await self._drop(queue, link)
                    self._pair.queue_failed(queue, error)
                else:
                    self._accepted(queue, len(sealed))
                    return queue
            raise self._refusal(causes)
        finally:
            del causes  # the errors in it lead back here, by their tracebacks

    def _accepted(self, queue: str, count: int) -> None:
        self._pair.queue_succeeded(queue)
        self._entity.diverted += count
        metrics.add(metrics.DIVERTED, count, self._entity.attributes)

    def _refusal(self, causes: Mapping[str, Exception]) -> BacklogUnavailableError:
        why = {
            FailoverState.FAILED_OVER: "is failed over",
            FailoverState.SUSPECT: "cannot be reached",
            FailoverState.HEALTHY: "has earlier messages of this session in the backlog",
        }[self._entity.failover.state]
        verdict = "whether it was accepted is in doubt" if _is_in_doubt(causes) else "it was not accepted"
        refusal = BacklogUnavailableError(
            f"{self._entity.path!r} {why}, and no backlog queue of {self._pair.secondary.namespace} took "
            f"the message: {verdict}, send it again later",
            causes,
        )
        refusal.is_in_doubt = _is_in_doubt(causes)
        return refusal

    def _next(self, queues: list[str] | None, causes: dict[str, Exception]) -> str | None:
        if queues is not None:
            return next((queue for queue in queues if queue not in causes), None)
        if self._choice is None:
            self._choice = BacklogChoice(self._pair.backlog_queues, self._pair.quarantine, self._pair.random)
        return self._choice.pick(self._pair.clock.monotonic(), tried=causes)

    def _check_size(self, sealed: list[ServiceBusMessage]) -> None:
        limits = self._pair.backlog_limits
        if limits is None:
            return
        size = encoded_size(sealed[0]) if len(sealed) == 1 else batch_size(sealed)
        limit = limits.max_message_size_bytes if len(sealed) == 1 else limits.max_batch_size_bytes
        if size > limit:
            raise MessageSizeExceededError(
                f"a message for {self._entity.path!r} takes {size} bytes in the backlog, {limit} are allowed: "
                "send less at once, or leave reserve_backlog_headroom on to hear of it while the primary is healthy"
            )

    def _link(self, queue: str) -> _SharedLink:
        link = self._links.get(queue)
        if link is None:
            link = self._links[queue] = _SharedLink(self._pair.secondary.open_sender(queue))
        return link

    async def _drop(self, queue: str, link: _SharedLink) -> None:
        """Use a link no more that has failed; the next message for its queue gets a new one."""
        if self._links.get(queue) is link:
            del self._links[queue]
        await link.drop()

    async def close(self) -> None:
        for queue, link in list(self._links.items()):
            await self._drop(queue, link)


class _SharedLink:
    """A link that transfers of several keys use at once: one that was dropped is closed when the last of them is done.

    Closed earlier, it would fail those that wait in it for their turn, or have left and wait for their answer.
    """

    def __init__(self, link: SenderLink) -> None:
        self._link = link
        self._uses = 0
        self._is_dropped = False

    async def __aenter__(self) -> SenderLink:
        self._uses += 1
        return self._link

    async def __aexit__(self, *_: object) -> None:
        self._uses -= 1
        await self._close_if_unused()

    async def drop(self) -> None:
        self._is_dropped = True
        await self._close_if_unused()

    async def _close_if_unused(self) -> None:
        if self._is_dropped and not self._uses:
            await self._link.close()


def _is_in_doubt(causes: Mapping[str, Exception]) -> bool:
    return any(isinstance(cause, ServiceBusError) and cause.is_in_doubt for cause in causes.values())
