"""A link on which a client receives: messages go out as long as it grants credit, and are settled as it says.

Laws:

1. A message is taken only when there is credit for it; when the credit is withdrawn nothing more is taken.
2. The delivery tag is the lock token in the byte order of .NET, from which clients compute the token.
3. An outcome is confirmed, settled and with the same outcome, after it has taken effect; a refusal is a rejected
   outcome with an error.
4. However many links of a client receive, one at a time takes messages: see `server.turn`.
5. When the link ends, messages stay locked until their locks end; a session is let go at once, with what was taken
   under it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final
from uuid import UUID

from sbclient.amqp import (
    DispositionReceived,
    IncomingDelivery,
    OutgoingDelivery,
    OutgoingLink,
    Rejected,
    TransactionalState,
)
from sbclient.amqp.states import DeliveryState, is_terminal
from sbclient.amqp.types import Long
from sbclient.broker.faults import Call, Operation
from sbclient.broker.session import SessionLock
from sbclient.delivery import ServiceBusReceiveMode, SessionChoice
from sbclient.emulator.amqp.delivery import Handed, handed_out
from sbclient.emulator.amqp.peer import OPERATION_TIMEOUT_S, Peer
from sbclient.emulator.amqp.settling import confirmation_of, settlement_of
from sbclient.entities import AccessRights
from sbclient.errors import InvalidOperationError, ServiceBusError
from sbclient.rules.entity_path import canonical

SESSION_FILTER: Final = "com.microsoft:session-filter"
LOCKED_UNTIL: Final = "com.microsoft:locked-until-utc"

LONGEST_WAIT_S: Final = 60.0
"""How long one look for messages lasts at most; then the next begins. So one whose answer is lost is not the last."""

MAX_TAKEN: Final = 100
MAX_TAKEN_BYTES: Final = 2**20
"""What is taken in one go: more than that is not under way to a slow client."""

FIRST_GUESS_BYTES: Final = 2**16
"""How large the messages of a link are taken to be until some have been seen."""

_TICKS_AT_1970: Final = 621_355_968_000_000_000
_TICKS_PER_S: Final = 10_000_000


class ClientReceiver:
    """The broker's end of a link on which a client receives.

    Args:
        peer: the connection.
        link: as it was asked for.
        path: of the queue, subscription or sub-queue.
        session: which session is to be received from, None for an entity without sessions.
        mode: whether messages are gone when they are sent.
        timeout_s: how long the broker looks for a free session.
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
    ) -> None:
        self.entity_path = path
        self._peer = peer
        self._link = link
        self._path = path
        self._session = session
        self._mode = mode
        self._timeout_s = timeout_s
        self._lock: SessionLock | None = None
        self._opening: asyncio.Task[None] | None = None
        self._pump: asyncio.Task[None] | None = None
        self._asked_for = 0
        self._sent_count = 0
        self._usual_bytes = FIRST_GUESS_BYTES

    # ------------------------------------------------------------------ open and end

    def open(self) -> None:
        """Let the link stand, or refuse it with the reason, perhaps after waiting for a session."""
        self._opening = self._peer.start_waiting(self._open(), name="amqp open receiver")

    async def _open(self) -> None:
        try:
            self._peer.check_struck(self._path)
            self._peer.check_right(self._path, AccessRights.LISTEN)
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
        if lock is None:
            link.accept()
            return
        self._peer.sessions[link.name] = canonical(self._path), lock
        asked = link.remote.source if link.remote is not None else None
        assert asked is not None  # a link without a source is refused before
        source = asked._replace(filter={**(asked.filter or {}), SESSION_FILTER: lock.session_id})
        link.accept(source=source, properties={LOCKED_UNTIL: Long(ticks_of(lock.locked_until))})

    def on_tokens_changed(self) -> None:
        """Detach when no token allows to listen any more."""
        try:
            self._peer.check_right(self._path, AccessRights.LISTEN)
        except ServiceBusError as error:
            self._peer.detach(self._link, error)

    def on_over(self) -> None:
        """Take nothing more, and let the session go once what the client has settled before is settled."""
        for task in (self._opening, self._pump):
            if task is not None:
                task.cancel()
        if self._lock is not None:
            self._peer.start(self._let_session_go(self._lock), name="amqp release session")

    async def _let_session_go(self, lock: SessionLock) -> None:
        await self._peer.host.clock.sleep(0)  # as long as every settlement waits that came before
        self._lock = None
        self._peer.sessions.pop(self._link.name, None)
        self._peer.at_once(
            Operation.SESSION, lambda call: self._peer.host.namespace.release_session(call, self._path, lock)
        )

    # ------------------------------------------------------------------ messages

    def on_delivery(self, delivery: IncomingDelivery) -> None:
        """Does not happen here: the client receives."""

    def on_credit(self, *, drain: bool) -> None:
        """Send while there is credit; with `drain`, what there is now and then no more."""
        credit = self._link.credit
        if drain or credit < self._asked_for:
            self._stop()
        if drain:
            self._pump = self._peer.start_waiting(self._drain(), name="amqp drain")
        elif credit and (self._pump is None or self._pump.done()):
            self._pump = self._peer.start_waiting(self._send_on(), name="amqp receive")

    def _stop(self) -> None:
        if self._pump is not None:
            self._pump.cancel()
            self._pump = None
        self._asked_for = 0

    async def _send_on(self) -> None:
        await self._peer.turn_to_hand_out()
        while (credit := self._link.credit) > 0 and await self._send(credit, LONGEST_WAIT_S) is not None:
            await self._peer.drained()
            await self._peer.turn_to_hand_out()

    async def _drain(self) -> None:
        await self._peer.turn_to_hand_out()
        while (credit := self._link.credit) > 0 and await self._send(credit, 0.0):
            await self._peer.drained()
            await self._peer.turn_to_hand_out()
        self._link.drained()
        self._peer.flush()

    async def _send(self, credit: int, wait_s: float) -> int | None:
        """Take messages and send them; returns how many, None if the link has ended. No message is taken by who is
        cancelled.
        """
        self._asked_for = wanted = min(credit, MAX_TAKEN, max(1, MAX_TAKEN_BYTES // self._usual_bytes))
        try:
            taken = await self._peer.host.receive(
                self._path,
                max_message_count=wanted,
                max_wait_time_s=wait_s,
                mode=self._mode,
                lock=self._lock,
                front_end=self._peer.front_end,
            )
        except ServiceBusError as error:
            self._peer.detach(self._link, error)
            return None
        self._asked_for = 0
        handed = [handed_out(entry) for entry in taken]
        for position, each in enumerate(handed):
            if self._link.is_over:  # also when the last message was too much for the client's session window
                self._release([unsent.token for unsent in handed[position:] if unsent.token is not None])
                self._peer.flush()
                return None
            self._send_one(each)
        return len(handed)

    def _release(self, tokens: Sequence[UUID]) -> None:
        """Put back what no application has seen."""
        namespace = self._peer.host.namespace
        self._peer.at_once(Operation.RECEIVE, lambda call: namespace.release(call, self._path, tokens))

    def _send_one(self, handed: Handed) -> None:
        self._usual_bytes = max(len(handed.payload), (self._usual_bytes + len(handed.payload)) // 2)
        if self._mode is ServiceBusReceiveMode.RECEIVE_AND_DELETE or handed.token is None:
            self._sent_count += 1
            self._link.send(handed.payload, tag=self._sent_count.to_bytes(8, "big"), settled=True)
        else:
            self._link.send(handed.payload, tag=handed.token.bytes_le)

    # ------------------------------------------------------------------ outcomes

    def on_disposition(self, event: DispositionReceived) -> None:
        """Settle as the client says, and confirm unless it has settled itself."""
        delivery = event.delivery
        assert isinstance(delivery, OutgoingDelivery)  # the engine gives a sending link no others
        if event.settled or is_terminal(event.state):
            self._peer.start(self._settle(delivery, event.state), name="amqp settle")

    async def _settle(self, delivery: OutgoingDelivery, state: DeliveryState | None) -> None:
        outcome, transaction_id = state, None
        if isinstance(state, TransactionalState):
            outcome, transaction_id = state.outcome, state.txn_id
        try:
            await self._take_effect(UUID(bytes_le=delivery.tag), outcome, transaction_id)
        except ServiceBusError as error:
            delivery.settle(Rejected(self._peer.told(error)))
        else:
            if not self._peer.context.wire_faults.drops_acknowledgement(self._path, self._peer.now()):
                delivery.settle(confirmation_of(outcome) if transaction_id is None else state)
        self._peer.flush()

    async def _take_effect(self, token: UUID, outcome: DeliveryState | None, transaction_id: bytes | None) -> None:
        namespace, settlement = self._peer.host.namespace, settlement_of(outcome)
        transaction = None if transaction_id is None else self._peer.transaction(transaction_id)
        if settlement is None:
            if transaction is not None:
                raise InvalidOperationError(
                    f"a message of {self._path} cannot be released in a transaction: abandon it"
                )
            self._release([token])
            return

        def settle(call: Call) -> None:
            namespace.settle(call, self._path, [token], settlement, lock=self._lock, transaction=transaction)

        await self._peer.perform(Operation.SETTLE, self._path, settle, timeout_s=OPERATION_TIMEOUT_S)


def ticks_of(at: float) -> int:
    """A moment in seconds since 1970 as .NET counts it: 100 ns since the year 1."""
    return int(at * _TICKS_PER_S) + _TICKS_AT_1970
