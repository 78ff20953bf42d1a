"""A link on which a client receives: the broker sends messages while there is credit, and settles them by outcome.

Laws:

1. The broker takes a message only when there is credit for it.
2. The delivery tag is the lock token in the byte order of .NET, from which clients compute the token. It is empty for
   a message that is deleted when it is sent.
3. The broker confirms an outcome, settled and with the same outcome, after it has taken effect. In a transaction it
   confirms the outcome unsettled, and the commit settles. It answers an outcome that it refuses with a rejected outcome
   and an error.
4. One link of a client at a time takes messages, so that a client with many links does not block the others.
5. When the link ends, messages stay locked until their locks expire. A session is released at once, with its messages.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Final
from uuid import UUID

from sbclient import clock
from sbclient.amqp import (
    DispositionReceived,
    DispositionsReceived,
    EndpointClosedError,
    OutgoingDelivery,
    OutgoingLink,
    Rejected,
    TransactionalState,
    servicebus,
)
from sbclient.amqp.states import DeliveryState, is_terminal
from sbclient.amqp.types import Described, Long
from sbclient.broker.entry import Selector
from sbclient.broker.faults import Call, Operation
from sbclient.broker.session import SessionLock
from sbclient.delivery import ServiceBusReceiveMode, SessionChoice, Settlement, SettleMode
from sbclient.emulator.amqp.delivery import EncodedDelivery, encode_entry, tag_of
from sbclient.emulator.amqp.peer import OPERATION_TIMEOUT_S, LinkHandler, Peer
from sbclient.emulator.amqp.settling import confirmation_of, settlement_of
from sbclient.entities import AccessRights
from sbclient.errors import InvalidOperationError, ServiceBusAuthorizationError, ServiceBusError, SessionLockLostError
from sbclient.hosting.host import Performed
from sbclient.rules.entity_path import canonical

LONGEST_WAIT_S: Final = 60.0
"""The longest wait of one receive. A next one follows, so that one lost answer does not stop the link."""

MAX_TAKEN: Final = 100
MAX_TAKEN_BYTES: Final = 2**20
"""The most that one receive takes, and so the most that is in flight to a slow client."""

LOST_SESSION_S: Final = 1.0
"""How long a link stays after the end of its session's lock. A client that waits for exactly as long as the lock lasts
is not detached in between. Source: seen; the duration is our choice."""

FIRST_GUESS_BYTES: Final = 2**16
"""The expected size of a message until the link has sent one."""


class ReceiverLink(LinkHandler):
    """The broker's end of a link on which a client receives.

    Args:
        peer: the connection.
        link: as requested.
        path: of the queue, subscription or sub-queue.
        session: the session to receive from; None for an entity without sessions.
        mode: whether messages are deleted when they are sent.
        timeout_s: how long the broker waits for an available session.
        selector: receives only messages that it matches.
    """

    def __init__(
        self,
        peer: Peer,
        link: OutgoingLink,
        path: str,
        *,
        session: SessionChoice,
        mode: ServiceBusReceiveMode,
        timeout_s: float,
        selector: Selector | None = None,
    ) -> None:
        self.entity_path = path
        self._peer = peer
        self._link = link
        self._path = path
        self._session = session
        self._mode = mode
        self._timeout_s = timeout_s
        self._selector = selector
        self._lock: SessionLock | None = None
        self._opening: asyncio.Task[None] | None = None
        self._pump: asyncio.Task[None] | None = None
        self._is_draining = False
        self._watch: asyncio.Task[None] | None = None
        self._wanted = 0
        self._usual_bytes = FIRST_GUESS_BYTES

    # ------------------------------------------------------------------ open and end

    def open(self) -> None:
        """Accept the link, or refuse it with an error, perhaps after waiting for a session."""
        self._opening = self._peer.tasks.start(self._open(), name="amqp open receiver")

    async def _open(self) -> None:
        try:
            self._peer.check_detach_fault(self._path)
            self.check_rights()
            self._peer.check_via(self._link, self._path, receives=True)
            if self._session is None:
                await self._peer.perform(
                    Operation.OPEN,
                    self._path,
                    lambda call: self._peer.host.namespace.open_receiver(call, self._path, with_session=False),
                    timeout_s=OPERATION_TIMEOUT_S,
                )
            else:
                self._lock = await self._peer.host.accept_session(
                    self._path, self._session, timeout_s=self._timeout_s, front_end=self._peer.front_end
                )
        except ServiceBusError as error:
            self._peer.refuse(self._link, error)
        else:
            self._accept()
            self._peer.flush()

    def _accept(self) -> None:
        lock, link = self._lock, self._link
        if link.is_over:
            self.on_over()
            return
        requested = link.remote.source if link.remote is not None else None
        assert requested is not None  # a link without a source is refused before
        filters = requested.filter or {}
        if lock is None:  # a filter that is not applied is not echoed
            is_echoed = not filters or self._is_selective
            link.accept(source=None if is_echoed else requested._replace(filter=None))
            return
        self._peer.sessions[link.name] = canonical(self._path), lock
        wanted, granted = filters.get(servicebus.SESSION_FILTER), lock.session_id
        # Go clients decode described values only, the SDK for Python plain ones.
        answer = Described(wanted.descriptor, granted) if isinstance(wanted, Described) else granted
        source = requested._replace(filter={servicebus.SESSION_FILTER: answer})
        link.accept(
            source=source,
            properties={servicebus.LINK_LOCKED_UNTIL: Long(servicebus.ticks_of_timestamp(lock.locked_until))},
        )
        self._watch = self._peer.tasks.start(self._watch_lock(lock), name="amqp session lock")

    async def _watch_lock(self, lock: SessionLock) -> None:
        """Detach the link some time after the end of its session's lock, with or without credit (seen)."""
        while (left_s := lock.locked_until - clock.now()) > 0:
            await clock.sleep(left_s)
        await clock.sleep(LOST_SESSION_S)
        self._peer.detach(
            self._link,
            SessionLockLostError(
                "The session lock has expired on the MessageSession. Accept a new MessageSession. It was the lock on "
                f"session {lock.session_id!r} of {self._path}"
            ),
        )

    @property
    def _is_selective(self) -> bool:
        """Whether a selector of the client is applied."""
        return self._selector is not None

    def check_rights(self) -> None:
        """Receiving needs Listen."""
        self._peer.check_right(self._path, AccessRights.LISTEN)

    def on_over(self) -> None:
        """Stop taking messages, and release the session after the settlements that came before."""
        for task in (self._opening, self._pump, self._watch):
            if task is not None:
                task.cancel()
        if self._lock is not None:
            self._peer.start(self._release_session(self._lock), name="amqp release session")

    async def _release_session(self, lock: SessionLock) -> None:
        await clock.step()  # every settlement that came before waits as long
        self._lock = None
        if self._peer.sessions.get(self._link.name, (None, None))[1] is lock:  # not of a later link of that name
            del self._peer.sessions[self._link.name]
        self._peer.at_once(
            Operation.SESSION, lambda call: self._peer.host.namespace.release_session(call, self._path, lock)
        )

    # ------------------------------------------------------------------ messages

    def on_credit(self, *, drain: bool) -> None:
        """Send while there is credit; with `drain`, send what is available now and then use up the credit."""
        credit = self._link.credit
        if drain or self._is_draining or credit < self._wanted:
            self._stop()
        self._is_draining = drain
        if drain:
            self._pump = self._peer.tasks.start(self._drain(), name="amqp drain")
        elif credit and (self._pump is None or self._pump.done()):
            self._pump = self._peer.tasks.start(self._send_all(), name="amqp receive")

    def _stop(self) -> None:
        if self._pump is not None:
            self._pump.cancel()
            self._pump = None
        self._wanted = 0

    async def _send_all(self) -> None:
        await self._peer.delivery_slot()
        while (credit := self._link.credit) > 0 and await self._send(credit, LONGEST_WAIT_S) is not None:
            await self._peer.drained()
            await self._peer.delivery_slot()

    async def _drain(self) -> None:
        await self._peer.delivery_slot()
        while (credit := self._link.credit) > 0 and await self._send(credit, 0.0):
            await self._peer.drained()
            await self._peer.delivery_slot()
        self._link.drained()
        self._peer.flush()

    async def _send(self, credit: int, wait_s: float) -> int | None:
        """Take messages and send them; returns how many, None if the link has ended. A cancelled call takes none."""
        self._wanted = wanted = min(credit, MAX_TAKEN, max(1, MAX_TAKEN_BYTES // self._usual_bytes))
        self._peer.waiting_count += 1
        try:
            taken = await self._peer.host.receive(
                self._path,
                max_message_count=wanted,
                max_wait_time_s=wait_s,
                mode=self._mode,
                lock=self._lock,
                front_end=self._peer.front_end,
                check=self.check_rights,
                selector=self._selector,
            )
        except ServiceBusAuthorizationError as error:
            self._peer.expire(self._link, error)
            return None
        except ServiceBusError as error:
            if isinstance(error, SessionLockLostError):
                await clock.sleep(LOST_SESSION_S)
            self._peer.detach(self._link, error)
            return None
        finally:
            self._peer.waiting_count -= 1
        self._wanted = 0
        deliveries = [encode_entry(entry, lock=self._lock) for entry in taken]
        for position, each in enumerate(deliveries):
            try:
                self._send_one(each)
            except EndpointClosedError:  # also when the message before was too much for the client's session window
                self._release([unsent.token for unsent in deliveries[position:] if unsent.token is not None])
                self._peer.flush()
                return None
        return len(deliveries)

    def _release(self, tokens: Sequence[UUID]) -> None:
        """Put messages back as if they had never been delivered."""
        namespace = self._peer.host.namespace
        self._peer.at_once(Operation.RECEIVE, lambda call: namespace.release(call, self._path, tokens))

    def _send_one(self, delivery: EncodedDelivery) -> None:
        """Send a message, for which there was credit when it was taken: less credit stops the task that takes."""
        self._usual_bytes = max(len(delivery.payload), (self._usual_bytes + len(delivery.payload)) // 2)
        if self._mode is ServiceBusReceiveMode.RECEIVE_AND_DELETE or delivery.token is None:
            self._link.send(delivery.payload, tag=b"", settled=True, needs_credit=False)
        else:
            sent = self._link.send(delivery.payload, tag=tag_of(delivery.token), needs_credit=False)
            sent.context = delivery.token

    # ------------------------------------------------------------------ outcomes

    def on_disposition(self, event: DispositionReceived) -> None:
        """Settle a message by the outcome that the client has sent."""
        delivery = event.delivery
        assert isinstance(delivery, OutgoingDelivery)  # the engine gives a sending link no others
        if not event.settled and not is_terminal(event.state):
            return
        if isinstance(event.state, TransactionalState):
            work = self._settle_in_transaction([delivery], event.state, is_settled=event.settled)
            self._peer.start(work, name="amqp settle")
        else:
            self._settle(delivery, event.state)

    def on_dispositions(self, event: DispositionsReceived) -> None:
        """Settle several messages by one outcome. Each has its own result, as if each had its own disposition."""
        deliveries, state = event.deliveries, event.state
        if not event.settled and not is_terminal(state):
            return
        if isinstance(state, TransactionalState):
            work = self._settle_in_transaction(deliveries, state, is_settled=event.settled)
            self._peer.start(work, name="amqp settle")
        elif not self._settle_together(deliveries, state):
            for delivery in deliveries:
                self._settle(delivery, state)

    async def _settle_in_transaction(
        self, deliveries: Sequence[OutgoingDelivery], state: TransactionalState, *, is_settled: bool
    ) -> None:
        """Settle in order with the requests to the coordinator, which are tasks too."""
        for delivery in deliveries:
            self._settle(delivery, state)
            if not is_settled:
                continue
            declared = self._peer.transactions.get(state.txn_id)
            if declared is None:  # its control link has ended in the same step
                self._abandon(delivery.context)
            else:
                declared.on_rollback.append(partial(self._abandon, delivery.context))

    def _abandon(self, token: UUID) -> None:
        namespace, abandoned = self._peer.host.namespace, Settlement(SettleMode.ABANDON)
        with suppress(ServiceBusError):  # its lock has ended
            self._peer.at_once(
                Operation.SETTLE, lambda call: namespace.settle(call, self._path, [token], abandoned, lock=self._lock)
            )

    def _settle_together(self, deliveries: Sequence[OutgoingDelivery], state: DeliveryState | None) -> bool:
        """Settle messages by one request; False, with no effect, if each must be settled by itself.

        Faults affect each message by itself, and so does a refusal of the whole request.
        """
        namespace, path = self._peer.host.namespace, self._path
        if namespace.faults.injected or self._peer.context.wire_faults.active(clock.now()):
            return False
        tokens = [delivery.context for delivery in deliveries]
        lost: Mapping[UUID, ServiceBusError] = {}
        try:
            settlement = settlement_of(state)
            if settlement is None:
                self._release(tokens)
            else:
                lost = self._peer.perform_now(
                    Operation.SETTLE,
                    path,
                    lambda call: namespace.settle_each(call, path, tokens, settlement, lock=self._lock),
                ).result()
        except ServiceBusError:
            return False
        settled = [delivery for delivery in deliveries if delivery.context not in lost] if lost else deliveries
        self._link.settle_many(settled, confirmation_of(state), settled=True)
        for delivery in deliveries if lost else ():
            if delivery.context in lost:
                self._reject(delivery, lost[delivery.context])
        self._peer.flush()
        return True

    def _settle(self, delivery: OutgoingDelivery, state: DeliveryState | None) -> None:
        try:
            performed = self._take_effect(delivery, state)
            if performed is not None and not performed.answer_after_s:
                performed.result()
        except ServiceBusError as error:
            self._reject(delivery, error)
        else:
            if performed is not None and performed.answer_after_s:
                self._peer.start(self._confirm_later(delivery, state, performed), name="amqp settle")
            else:
                self._confirm(delivery, state)

    async def _confirm_later(
        self, delivery: OutgoingDelivery, state: DeliveryState | None, performed: Performed[None]
    ) -> None:
        try:
            await self._peer.host.answered(performed, timeout_s=OPERATION_TIMEOUT_S)
        except ServiceBusError as error:
            self._reject(delivery, error)
        else:
            self._confirm(delivery, state)

    def _confirm(self, delivery: OutgoingDelivery, state: DeliveryState | None) -> None:
        if not self._peer.context.wire_faults.drops_acknowledgement(self._path, clock.now()):
            delivery.settle(confirmation_of(state), settled=not isinstance(state, TransactionalState))
        self._peer.flush()

    def _reject(self, delivery: OutgoingDelivery, error: ServiceBusError) -> None:
        delivery.settle(Rejected(self._peer.report(error)))
        self._peer.flush()

    def _take_effect(self, delivery: OutgoingDelivery, state: DeliveryState | None) -> Performed[None] | None:
        """Settle a message; None if it is released, which no fault affects."""
        namespace, token = self._peer.host.namespace, delivery.context
        outcome, declared, transaction = state, None, None
        if isinstance(state, TransactionalState):
            outcome, declared = state.outcome, self._peer.declared(state.txn_id)
            transaction = declared.transaction
        settlement = settlement_of(outcome)
        if settlement is None:
            if transaction is not None:
                raise InvalidOperationError(
                    f"a message of {self._path} cannot be released in a transaction: abandon it"
                )
            self._release([token])
            return None

        def settle(call: Call) -> None:
            namespace.settle(call, self._path, [token], settlement, lock=self._lock, transaction=transaction)
            if declared is not None:
                declared.add(delivery, confirmation_of(state))

        return self._peer.perform_now(Operation.SETTLE, self._path, settle)
