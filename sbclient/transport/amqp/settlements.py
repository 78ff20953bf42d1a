"""The settlements of one incoming link: those of one step of the event loop leave together, as disposition ranges.

Laws:
1. A settlement is done when the service has confirmed it with the same outcome. A rejected outcome with an error is a
   refusal. In a transaction the delivery stays unsettled until the service settles it after the commit; after a
   rollback it can be settled again. A service that settles it at once is tolerated.
2. When the link is lost, settlements that left are in doubt.

Source: AMQP 1.0 part 2 section 2.7.6; Service Bus protocol guide.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import chain
from operator import attrgetter
from typing import Any, Final

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
from sbclient.transport.amqp.links import Wire, inner_outcome
from sbclient.transport.amqp.transfers import refusal_of
from sbclient.transport.amqp.waiter import Waiter, own_error

_deliveries_of = attrgetter("deliveries")

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


class Settling(Waiter):
    """A settlement of one or several deliveries that waits for its confirmation.

    Args:
        confirmed: receives the deliveries whose settlement the service has confirmed.

    Attributes:
        has_left: whether its disposition was written.
    """

    __slots__ = ("_confirmed", "_error", "_left", "deliveries", "has_left", "state")

    def __init__(
        self,
        deliveries: Sequence[IncomingDelivery],
        state: DeliveryState,
        deadline: float,
        doing: str,
        confirmed: set[IncomingDelivery] | None = None,
    ) -> None:
        super().__init__(deadline, doing)
        self.deliveries = deliveries
        self.state = state
        self.has_left = False
        self._confirmed = confirmed
        self._left = len(deliveries)
        self._error: ServiceBusError | None = None

    @property
    def is_in_doubt(self) -> bool:
        return self.has_left

    def answered(self, delivery: IncomingDelivery, refusal: ServiceBusError | None) -> None:
        """The service has confirmed or refused the settlement of a delivery."""
        if refusal is not None:
            self._error = self._error or refusal
        elif self._confirmed is not None:
            self._confirmed.add(delivery)
        self._left -= 1
        if self._left:
            return
        if self._error is None:
            self.finish()
        else:
            self.fail(self._error)


class Settlements:
    """Writes dispositions and takes their confirmations.

    Args:
        link: the engine's.
        wire: the connection.
    """

    def __init__(self, link: IncomingLink, wire: Wire) -> None:
        self._link = link
        self._wire = wire
        self._waiting: list[Settling] = []
        self._unconfirmed: dict[IncomingDelivery, Settling] = {}

    def add(self, settling: Settling) -> None:
        """Settle at the end of this step of the event loop."""
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self.write)
        self._waiting.append(settling)

    def write(self) -> None:
        """Write the dispositions of what waits, like states together."""
        waiting, self._waiting = self._waiting, []
        runs: dict[int, list[Settling]] = {}
        for settling in waiting:
            if settling.future.done():
                continue
            shared = settling.state if settling.state in _SHARED else settling
            runs.setdefault(id(shared), []).append(settling)
        for run in runs.values():
            state = run[0].state
            for settling in run:
                settling.has_left = True
                self._unconfirmed.update(dict.fromkeys(settling.deliveries, settling))
            together = list(chain.from_iterable(map(_deliveries_of, run)))
            try:
                self._link.settle_many(together, state, settled=False)
            except Exception as error:  # of these alone: nothing of them has left
                self._refused(run, error)
        self._wire.flush()

    def _refused(self, run: Sequence[Settling], error: Exception) -> None:
        """Fail the settlements whose state cannot be encoded."""
        for settling in run:
            settling.has_left = False
            for delivery in settling.deliveries:
                self._unconfirmed.pop(delivery, None)
            refused = InvalidOperationError(f"{settling.doing}: it cannot be encoded: {error}")
            refused.__cause__ = error
            settling.fail(refused)

    def confirmed(self, deliveries: Sequence[IncomingDelivery], state: DeliveryState | None, *, settled: bool) -> None:
        """The service has stated what became of settlements."""
        if not settled and state is not None and not isinstance(state, TransactionalState):
            self._link.settle_many(deliveries, state, settled=True)
        outcome: Any = state if type(state) is Accepted else inner_outcome(state)
        is_refused = getattr(outcome, "error", None) is not None
        for delivery in deliveries:
            settling = self._unconfirmed.pop(delivery, None)
            if settling is None or settling.future.done():
                continue
            is_done = outcome is None and settled
            if is_done or (type(outcome) is type(inner_outcome(settling.state)) and not is_refused):
                settling.answered(delivery, None)
            else:
                settling.answered(delivery, refusal_of(settling.doing, outcome))

    def lost(self, error: ServiceBusError) -> None:
        """The link is over."""
        unconfirmed = dict.fromkeys([*self._unconfirmed.values(), *self._waiting])
        self._unconfirmed.clear()
        self._waiting.clear()
        for settling in unconfirmed:
            settling.fail(own_error(error, is_in_doubt=settling.has_left))


_SHARED: Final = (ACCEPTED, _ABANDONED, _DEFERRED)
