"""The settlements of one incoming link: those of one step of the event loop leave together, as disposition ranges.

Laws:
1. A settlement is done when the service has confirmed it with the same outcome. A rejected outcome with an error is a
   refusal. In a transaction the delivery stays unsettled until the service settles it after the commit; after a
   rollback it can be settled again. A service that settles it at once is tolerated.
2. When the link is lost, settlements that left are in doubt.
3. A delivery has one settlement at a time. A second one is refused at once, and the first goes on.

Source: AMQP 1.0 part 2 section 2.7.6; Service Bus protocol guide.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from sbclient import clock
from sbclient.amqp import (
    ACCEPTED,
    Accepted,
    AmqpError,
    IncomingDelivery,
    IncomingLink,
    Modified,
    Rejected,
    TransactionalState,
    servicebus,
)
from sbclient.amqp.states import DeliveryState, Outcome
from sbclient.delivery import Settlement, SettleMode
from sbclient.errors import InvalidOperationError, ServiceBusError
from sbclient.message import DEAD_LETTER_DESCRIPTION, DEAD_LETTER_REASON
from sbclient.tasks import Deadlines
from sbclient.transport.amqp.links import inner_outcome
from sbclient.transport.amqp.transfers import refusal_of
from sbclient.transport.amqp.waiter import own_error, timeout_error

if TYPE_CHECKING:
    from sbclient.transport.amqp.connection import AmqpConnection

DEADLINES_APART_S: Final = 0.1
"""The deadlines of settlements that share one differ by less."""

_ABANDONED: Final = Modified(delivery_failed=True, undeliverable_here=False)
_DEFERRED: Final = Modified(delivery_failed=True, undeliverable_here=True)


def outcome_of(settlement: Settlement) -> Outcome:
    """The outcome that means a settlement to Service Bus."""
    match settlement.mode:
        case SettleMode.COMPLETE:
            return ACCEPTED
        case SettleMode.ABANDON:
            return _ABANDONED
        case SettleMode.DEFER:
            return _DEFERRED
        case SettleMode.DEAD_LETTER:
            info = {
                DEAD_LETTER_REASON: settlement.reason,
                DEAD_LETTER_DESCRIPTION: settlement.error_description,
            }
            info = {name: text for name, text in info.items() if text}
            return Rejected(AmqpError(servicebus.DEAD_LETTER, None, info))


class _Group:
    """Settlements of one step of the event loop with the same outcome: they leave together, and share a deadline.

    Attributes:
        state: the outcome, or that of a transaction.
        settlement: what the outcome means, None in a transaction.
        deadline, began_at: monotonic seconds.
        doing: the operation and its object, for errors.
        futures: of the deliveries that the service has not confirmed.
        has_left: whether the disposition was written.
    """

    __slots__ = ("_owner", "began_at", "deadline", "doing", "futures", "has_left", "settlement", "state")

    def __init__(
        self,
        owner: Settlements,
        state: DeliveryState,
        settlement: Settlement | None,
        deadline: float,
        began_at: float,
        doing: str,
    ) -> None:
        self._owner = owner
        self.state = state
        self.settlement = settlement
        self.deadline = deadline
        self.began_at = began_at
        self.doing = doing
        self.futures: dict[IncomingDelivery, asyncio.Future[None]] = {}
        self.has_left = False

    def expire(self) -> None:
        """The deadline has passed."""
        self._owner.expired(self)


class LostSettlement(NamedTuple):
    """A settlement whose link was lost before the service confirmed it.

    Attributes:
        delivery: the delivery.
        settlement: None in a transaction.
        deadline: monotonic seconds.
        future: the result of the call.
        error: of the link; in doubt if the settlement left.
    """

    delivery: IncomingDelivery
    settlement: Settlement | None
    deadline: float
    future: asyncio.Future[None]
    error: ServiceBusError


class Settlements:
    """Writes dispositions and takes their confirmations.

    Args:
        link: the engine's.
        wire: the connection.
        deadlines: expires settlements.
        on_lost: takes a settlement whose link is lost, and ends its future.
        suspect: called with the time at which a settlement began that expired.
    """

    def __init__(
        self,
        link: IncomingLink,
        wire: AmqpConnection,
        deadlines: Deadlines,
        on_lost: Callable[[LostSettlement], None],
        suspect: Callable[[float], None],
    ) -> None:
        self._link = link
        self._wire = wire
        self._deadlines = deadlines
        self._on_lost = on_lost
        self._suspect = suspect
        self._waiting: list[_Group] = []
        self._by_state: dict[int, _Group] = {}
        self._unconfirmed: dict[IncomingDelivery, _Group] = {}

    def settle(
        self,
        delivery: IncomingDelivery,
        state: DeliveryState,
        settlement: Settlement | None,
        timeout_s: float,
        doing: str,
    ) -> asyncio.Future[None]:
        """Settle at the end of this step of the event loop; the future ends when the service has confirmed.

        Args:
            state: the outcome, or that of a transaction.
            settlement: what the outcome means, None in a transaction.
            timeout_s: seconds for the call.
            doing: the operation and its object, for errors.
        """
        now = clock.monotonic()
        deadline = now + timeout_s
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        pending = self._unconfirmed.get(delivery)
        if pending is not None and not pending.futures[delivery].done():
            future.set_exception(InvalidOperationError(f"{doing}: another call is settling it: settle it once"))
            return future
        group = self._by_state.get(id(state))
        if group is None or abs(deadline - group.deadline) > DEADLINES_APART_S:
            if not self._waiting:
                loop.call_soon(self.write)
            group = self._by_state[id(state)] = _Group(self, state, settlement, deadline, now, doing)
            self._waiting.append(group)
            self._deadlines.add(group)
        group.futures[delivery] = future
        self._unconfirmed[delivery] = group
        return future

    def write(self) -> None:
        """Write the dispositions of what waits, like states together."""
        waiting, self._waiting = self._waiting, []
        self._by_state.clear()
        for group in waiting:
            together = [delivery for delivery, future in group.futures.items() if not future.done()]
            if not together:
                self._deadlines.remove(group)
                continue
            group.has_left = True
            self._link.settle_many(together, group.state, settled=False)
        self._wire.flush()

    def confirmed(self, deliveries: Sequence[IncomingDelivery], state: DeliveryState | None, *, settled: bool) -> None:
        """The service has stated what became of settlements."""
        if not settled and state is not None and not isinstance(state, TransactionalState):
            self._link.settle_many(deliveries, state, settled=True)
        outcome: Any = state if type(state) is Accepted else inner_outcome(state)
        is_refused = getattr(outcome, "error", None) is not None
        for delivery in deliveries:
            group = self._unconfirmed.pop(delivery, None)
            if group is None:
                continue
            future = group.futures.pop(delivery)
            if not group.futures:
                self._deadlines.remove(group)
            if future.done():
                continue
            is_done = outcome is None and settled
            if is_done or (type(outcome) is type(inner_outcome(group.state)) and not is_refused):
                future.set_result(None)
            else:
                future.set_exception(refusal_of(group.doing, outcome))

    def expired(self, group: _Group) -> None:
        """The deadline of settlements has passed."""
        late = [future for future in group.futures.values() if not future.done()]
        for future in late:
            future.set_exception(timeout_error(group.doing, is_in_doubt=group.has_left))
        if late:
            self._suspect(group.began_at)

    def lost(self, error: ServiceBusError) -> None:
        """The link is over."""
        groups = dict.fromkeys(self._unconfirmed.values())
        self._unconfirmed.clear()
        self._waiting.clear()
        self._by_state.clear()
        for group in groups:
            self._deadlines.remove(group)
            for delivery, future in group.futures.items():
                if not future.done():
                    own = own_error(error, is_in_doubt=group.has_left)
                    self._on_lost(LostSettlement(delivery, group.settlement, group.deadline, future, own))
