"""The links of a watched wire: what they carry is written down, and what is wrong at that very moment noted at once."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Final

from sbclient.amqp import EncodedBatch, EncodedMessage
from sbclient.delivery import SenderLimits, Settlement, SettleMode
from sbclient.entities import EntityAddress, RuleProperties
from sbclient.errors import ServiceBusConnectionError, ServiceBusError
from sbclient.message import ServiceBusReceivedMessage
from sbclient.rules.ping import is_ping
from sbclient.transport.base import ReceiverLink, SenderLink, TransactionLink
from tests.simulation.history import (
    Attempt,
    Handed,
    Outcome,
    SessionHold,
    Settled,
    copy_of,
    uid_of,
)

if TYPE_CHECKING:
    from tests.simulation.wire import Wire

GRAIN_S: Final = 1e-4
"""Moments in messages are whole microseconds."""

REPEATED_SETTLE_SHARE: Final = 0.05


class WiredTransaction:
    """A transaction that is watched. `number` names it in the history; `settled` is what is settled in it."""

    def __init__(self, wire: Wire, inner: TransactionLink) -> None:
        self._wire = wire
        self.inner = inner
        self.number = next(wire.history.numbers)
        self.settled: list[tuple[Handed, Settled]] = []

    def via_to(self, path: str) -> str | None:
        return self.inner.via_to(path)

    async def commit(self, *, timeout_s: float) -> None:
        outcome = Outcome.DOUBT
        for handed, settled in self.settled:
            handed.ended_at, handed.how = self._wire.history.now(), f"{settled.mode} in a transaction"
        try:
            await self._wire.call(lambda: self.inner.commit(timeout_s=timeout_s))
            outcome = Outcome.OK
        except ServiceBusError as error:
            outcome = self._wire.outcome_of(error)
            raise
        finally:
            for handed, settled in self.settled:
                settled.outcome, settled.end = outcome, self._wire.history.now()
                handed.is_final = outcome is Outcome.OK and settled.mode in _FINAL
            self._wire.history.note(self._wire.life.name, "commit", outcome)

    async def rollback(self, *, timeout_s: float) -> None:
        for _, settled in self.settled:
            settled.outcome, settled.end = Outcome.REFUSED, self._wire.history.now()
        await self._wire.call(lambda: self.inner.rollback(timeout_s=timeout_s))

    async def create_rule(self, address: EntityAddress, rule: RuleProperties, *, timeout_s: float) -> None:
        await self._wire.call(lambda: self.inner.create_rule(address, rule, timeout_s=timeout_s))

    async def delete_rule(self, address: EntityAddress, *, timeout_s: float) -> None:
        await self._wire.call(lambda: self.inner.delete_rule(address, timeout_s=timeout_s))


_FINAL = (SettleMode.COMPLETE, SettleMode.DEAD_LETTER)


def _bare(transaction: TransactionLink | None) -> TransactionLink | None:
    return transaction.inner if isinstance(transaction, WiredTransaction) else transaction


class WiredSender:
    """A sender link that is watched."""

    def __init__(self, wire: Wire, inner: SenderLink, path: str) -> None:
        self._wire = wire
        self._inner = inner
        self._path = path
        self._is_cut = False

    @property
    def is_open(self) -> bool:
        return self._inner.is_open and not self._is_cut

    async def open(self, *, timeout_s: float) -> None:
        with self._watched("open", (), timeout_s):
            await self._wire.call(lambda: self._inner.open(timeout_s=timeout_s))

    async def limits(self, *, timeout_s: float) -> SenderLimits:
        with self._watched("limits", (), timeout_s):
            return await self._wire.call(lambda: self._inner.limits(timeout_s=timeout_s))

    @property
    def known_limits(self) -> SenderLimits | None:
        return self._inner.known_limits

    def send(
        self, batch: EncodedBatch, *, timeout_s: float, transaction: TransactionLink | None = None
    ) -> asyncio.Future[None]:
        return asyncio.ensure_future(self._send(batch, timeout_s, transaction))

    async def _send(self, batch: EncodedBatch, timeout_s: float, transaction: TransactionLink | None) -> None:
        what = "ping" if any(map(is_ping, batch)) else "send"
        with self._watched(what, batch.messages, timeout_s, transaction):
            await self._wire.call(
                lambda: self._inner.send(batch, timeout_s=timeout_s, transaction=_bare(transaction)),
                is_send=what == "send",
            )

    async def schedule(
        self, batch: EncodedBatch, *, timeout_s: float, transaction: TransactionLink | None = None
    ) -> list[int]:
        with self._watched("schedule", batch.messages, timeout_s, transaction):
            return await self._wire.call(
                lambda: self._inner.schedule(batch, timeout_s=timeout_s, transaction=_bare(transaction))
            )

    async def cancel_scheduled(self, sequence_numbers: Sequence[int], *, timeout_s: float) -> None:
        await self._wire.call(lambda: self._inner.cancel_scheduled(sequence_numbers, timeout_s=timeout_s))

    async def close(self) -> None:
        await self._inner.close()

    def _watched(
        self,
        what: str,
        messages: Sequence[EncodedMessage],
        timeout_s: float,
        transaction: TransactionLink | None = None,
    ) -> _Watch:
        first = messages[0] if messages else None
        attempt = Attempt(
            len(self._wire.history.attempts),
            self._wire.life.name,
            self._wire.side,
            what,
            self._path,
            tuple(map(uid_of, messages)) if what != "ping" else (),
            tuple(message.message_id for message in messages),
            (first.session_id, first.partition_key) if first is not None else (None, None),
            self._wire.history.now(),
            timeout_s,
            transaction.number if isinstance(transaction, WiredTransaction) else None,
        )
        self._wire.history.attempts.append(attempt)
        return _Watch(self, attempt)

    def _ended(self, attempt: Attempt, error: BaseException | None) -> None:
        if error is None:
            attempt.outcome = Outcome.OK
            self._is_cut = False
        elif isinstance(error, ServiceBusError):
            attempt.outcome, attempt.error = self._wire.outcome_of(error), type(error)
            self._is_cut = isinstance(error, ServiceBusConnectionError) and not self._wire.is_remote
        wire, history = self._wire, self._wire.history
        attempt.end = history.now()
        failed = "" if attempt.error is None else attempt.error.__name__
        uids = ",".join(attempt.uids)
        history.note(wire.life.name, wire.side, attempt.what, self._path, uids, attempt.outcome, failed)


class _Watch:
    """While one attempt to send is on its way."""

    __slots__ = ("_attempt", "_sender")

    def __init__(self, sender: WiredSender, attempt: Attempt) -> None:
        self._sender = sender
        self._attempt = attempt

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._sender._ended(self._attempt, error)


class WiredReceiver:
    """A receiver link that is watched."""

    def __init__(self, wire: Wire, inner: ReceiverLink, path: str, *, has_session: bool, fetches_ahead: bool) -> None:
        self._fetches_ahead = fetches_ahead
        self._wire = wire
        self._inner = inner
        self._path = path
        self._has_session = has_session
        self._number = next(wire.history.numbers)
        self._hold: SessionHold | None = None
        self._handed: list[Handed] = []
        self._on_their_way: list[ServiceBusReceivedMessage] = []

    @property
    def session_id(self) -> str | None:
        return self._inner.session_id

    @property
    def session_locked_until_utc(self) -> datetime | None:
        return self._inner.session_locked_until_utc

    async def open(self, *, timeout_s: float) -> None:
        begun_at = self._wire.history.now()
        await self._wire.call(lambda: self._inner.open(timeout_s=timeout_s))
        self._note_session(begun_at)

    async def receive(self, *, max_message_count: int, max_wait_time_s: float) -> list[ServiceBusReceivedMessage]:
        """What is on its way to a caller that is cancelled waits for the next one, as with the AMQP transport."""
        messages, self._on_their_way = self._on_their_way, []

        async def work() -> list[ServiceBusReceivedMessage]:
            begun_at = self._wire.history.now()
            messages[:] = await self._inner.receive(
                max_message_count=max_message_count, max_wait_time_s=max_wait_time_s
            )
            self._note_session(begun_at)
            self._take(messages, is_deferred=False)
            return messages

        try:
            return messages or await self._wire.call(work)
        except asyncio.CancelledError:
            self._on_their_way = messages
            raise

    def fetch_ahead(self, count: int, total: int) -> None:
        self._inner.fetch_ahead(count, total)

    @property
    def is_open(self) -> bool:
        return self._inner.is_open

    @property
    def is_drained(self) -> bool:
        return self._inner.is_drained

    async def peek(
        self, *, max_message_count: int, sequence_number: int, timeout_s: float
    ) -> list[ServiceBusReceivedMessage]:
        return await self._wire.call(
            lambda: self._inner.peek(
                max_message_count=max_message_count, sequence_number=sequence_number, timeout_s=timeout_s
            )
        )

    async def receive_deferred(
        self, sequence_numbers: Sequence[int], *, timeout_s: float
    ) -> list[ServiceBusReceivedMessage]:
        async def work() -> list[ServiceBusReceivedMessage]:
            messages = await self._inner.receive_deferred(sequence_numbers, timeout_s=timeout_s)
            self._take(messages, is_deferred=True)
            return messages

        return await self._wire.call(work)

    async def settle_together(
        self, messages: Sequence[ServiceBusReceivedMessage], settlement: Settlement, *, timeout_s: float
    ) -> list[ServiceBusReceivedMessage]:
        return []  # each settlement is recorded by itself

    async def settle(
        self,
        message: ServiceBusReceivedMessage,
        settlement: Settlement,
        *,
        timeout_s: float,
        transaction: TransactionLink | None = None,
    ) -> None:
        wire, history = self._wire, self._wire.history
        handed = history.holder(wire.side, message.lock_token)
        number = transaction.number if isinstance(transaction, WiredTransaction) else None
        settled = Settled(settlement.mode, history.now(), number, settlement.reason)
        # The answer to an earlier attempt, made in time, may arrive as that to this one.
        may_be_done = handed is not None and any(
            one.mode is settled.mode and one.transaction is None and one.outcome is Outcome.DOUBT
            for one in handed.settles
        )
        is_stale = handed is not None and not may_be_done and settled.begin >= self._over_at(handed) + GRAIN_S

        async def work() -> None:
            await self._inner.settle(message, settlement, timeout_s=timeout_s, transaction=_bare(transaction))
            settled.outcome = Outcome.OK

        try:
            if handed is not None:
                handed.settles.append(settled)
            if transaction is None and handed is not None:
                handed.ended_at = min(handed.ended_at, history.now())
            await wire.call(work)
        except ServiceBusError as error:
            settled.outcome = self._wire.outcome_of(error)
            raise
        finally:
            settled.end = history.now()
            history.note(wire.life.name, wire.side, settlement.mode, self._path, _name(handed), settled.outcome)
            if handed is not None and transaction is None:
                self._end(handed, settled)
        if is_stale:
            history.violated("I13", f"a token of {self._path} settled {_name(handed)} after its lock had ended")
        if isinstance(transaction, WiredTransaction) and handed is not None:
            transaction.settled.append((handed, settled))
            settled.outcome = Outcome.DOUBT
        elif handed is not None and wire.random.random() < REPEATED_SETTLE_SHARE:
            await self._settle_again(message, handed)

    async def _settle_again(self, message: ServiceBusReceivedMessage, handed: Handed) -> None:
        """What is settled cannot be settled again with the same token."""
        try:
            await self._inner.settle(message, Settlement(SettleMode.COMPLETE), timeout_s=1.0)
        except ServiceBusError:
            return
        self._wire.history.violated("I13", f"a used token of {self._path} settled {_name(handed)} a second time")

    async def renew_lock(self, message: ServiceBusReceivedMessage, *, timeout_s: float) -> datetime:
        handed = self._wire.history.holder(self._wire.side, message.lock_token)
        return await self._renewed(handed, lambda: self._inner.renew_lock(message, timeout_s=timeout_s))

    async def renew_session_lock(self, *, timeout_s: float) -> datetime:
        return await self._renewed(self._hold, lambda: self._inner.renew_session_lock(timeout_s=timeout_s))

    async def _renewed(self, hold: Handed | SessionHold | None, work: Callable[[], Awaitable[datetime]]) -> datetime:
        before = hold.locked_at_most if hold is not None else math.inf
        if hold is not None:
            hold.locked_at_most = math.inf  # it may be done, and its answer lost
        try:
            until = await self._wire.call(work)
        except ServiceBusError as error:
            if hold is not None and self._wire.outcome_of(error) is Outcome.REFUSED:
                hold.locked_at_most = before
            raise
        if hold is not None:
            hold.locked_until = hold.locked_at_most = until.timestamp()
        return until

    async def get_session_state(self, *, timeout_s: float) -> bytes | None:
        return await self._wire.call(lambda: self._inner.get_session_state(timeout_s=timeout_s))

    async def set_session_state(self, state: bytes | None, *, timeout_s: float) -> None:
        await self._wire.call(lambda: self._inner.set_session_state(state, timeout_s=timeout_s))

    async def close(self) -> None:
        if self._wire.life.is_dead:
            return
        if self._hold is not None:
            self._hold.ended_at = min(self._hold.ended_at, self._wire.history.now())
        await self._inner.close()

    # -- what is seen --------------------------------------------------------------------------------------------

    def _note_session(self, begun_at: float) -> None:
        session_id, until = self._inner.session_id, self._inner.session_locked_until_utc
        if session_id is None or until is None or self._hold is not None:
            return
        wire, history = self._wire, self._wire.history
        now = history.now()
        grant = history.grant_of(wire.side, self._path, session_id, until.timestamp())
        # An answer may be so late that the lock, or the entity, has ended on its way.
        deleted_at = history.deleted_at.get((wire.side, self._path), -math.inf)
        is_over = until.timestamp() <= now or (grant is not None and grant.ended_at <= now) or deleted_at >= begun_at
        for other in reversed([] if is_over else history.session_holds):
            same = other.side == wire.side and other.path == self._path and other.session_id == session_id
            if same and other.ended_at > now and other.locked_until > now + GRAIN_S:
                history.violated("I13", f"session {session_id!r} of {self._path} was given to two receivers at once")
            if same:
                break
        self._hold = SessionHold(
            wire.life.name, self._number, wire.side, self._path, session_id, now, until.timestamp(), until.timestamp()
        )
        if deleted_at >= begun_at:
            self._hold.ended_at = deleted_at
        if grant is not None:
            grant.hold = self._hold
            self._hold.ended_at = min(self._hold.ended_at, grant.ended_at)
        history.session_holds.append(self._hold)
        history.note(wire.life.name, wire.side, "session", self._path, session_id)

    def _take(self, messages: Sequence[ServiceBusReceivedMessage], *, is_deferred: bool) -> None:
        wire, history = self._wire, self._wire.history
        for message in messages:
            if is_ping(message):
                history.violated("I4", f"a ping was handed to a receiver of {self._path}")
                continue
            handed = Handed(
                wire.life.name,
                self._number,
                wire.side,
                self._path,
                copy_of(self._path, message),
                uid_of(message),
                history.now(),
                message.lock_token,
                message,
                is_deferred,
            )
            if message.locked_until_utc is not None:
                handed.locked_until = handed.locked_at_most = message.locked_until_utc.timestamp()
            is_late = handed.locked_until <= handed.at + GRAIN_S or self._has_lost_session()
            handed.is_stale = (self._fetches_ahead and (self._has_session or is_late)) or (wire.is_remote and is_late)
            self._handed.append(handed)
            history.hold(handed)
            history.note(wire.life.name, wire.side, "got", self._path, handed.uid, message.sequence_number)

    def _end(self, handed: Handed, settled: Settled) -> None:
        if settled.outcome is not Outcome.REFUSED:
            handed.how = settled.mode
            handed.is_final = handed.is_final or (settled.outcome is Outcome.OK and settled.mode in _FINAL)
        elif not handed.how:
            handed.ended_at = math.inf

    def _has_lost_session(self) -> bool:
        return self._hold is not None and self._hold.ended_at <= self._wire.history.now()

    def _over_at(self, handed: Handed) -> float:
        """When this receiver has certainly lost its hold, unless a renewal is in doubt."""
        if not self._has_session:
            return handed.locked_at_most
        return self._hold.locked_at_most if self._hold is not None else math.inf


def _name(handed: Handed | None) -> str:
    return "an unknown message" if handed is None else f"{handed.uid or '?'}#{handed.copy[1]}"
