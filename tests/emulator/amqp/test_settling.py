"""What outcomes mean, and how they are confirmed."""

from __future__ import annotations

import pytest

from sbclient.amqp import ACCEPTED, RELEASED, AmqpError, Modified, Rejected, TransactionalState
from sbclient.amqp.states import DeliveryState
from sbclient.delivery import Settlement, SettleMode
from sbclient.emulator.amqp.settling import confirmation_of, settlement_of


@pytest.mark.parametrize(
    ("outcome", "settlement"),
    [
        (ACCEPTED, Settlement(SettleMode.COMPLETE)),
        (Modified(True, False), Settlement(SettleMode.ABANDON)),
        (Modified(None, None), Settlement(SettleMode.ABANDON)),
        (Modified(True, True), Settlement(SettleMode.DEFER)),
        (Modified(None, True), Settlement(SettleMode.DEFER)),
        (Modified(True, False, {"a": 1}), Settlement(SettleMode.ABANDON, properties={"a": 1})),
        (Modified(True, True, {"a": 1}), Settlement(SettleMode.DEFER, properties={"a": 1})),
        (Rejected(AmqpError("x", "y", {"a": 1})), Settlement(SettleMode.DEAD_LETTER, "x", "y", {"a": 1})),
        (Rejected(None), Settlement(SettleMode.DEAD_LETTER)),
        (Rejected(AmqpError("acme:bad", "text")), Settlement(SettleMode.DEAD_LETTER, "acme:bad", "text")),
        (
            Rejected(AmqpError("com.microsoft:dead-letter", "unused", {"DeadLetterReason": "r"})),
            Settlement(SettleMode.DEAD_LETTER, "r"),
        ),
        (
            Rejected(AmqpError("com.microsoft:dead-letter", None, {"DeadLetterErrorDescription": 5})),
            Settlement(SettleMode.DEAD_LETTER, None, None, {"DeadLetterErrorDescription": 5}),
        ),
        (RELEASED, None),
        (None, None),
    ],
)
def test_an_outcome_is_a_settlement(outcome: DeliveryState | None, settlement: Settlement | None) -> None:
    assert settlement_of(outcome) == settlement


@pytest.mark.parametrize(
    ("outcome", "confirmation"),
    [
        (ACCEPTED, ACCEPTED),
        (Modified(True, True), Modified(True, True)),
        (Rejected(AmqpError("com.microsoft:dead-letter")), Rejected(None)),
        (RELEASED, RELEASED),
        (None, RELEASED),
        (TransactionalState(b"1", Rejected(AmqpError("x"))), TransactionalState(b"1", Rejected(None))),
    ],
)
def test_the_confirmation_repeats_the_outcome_without_an_error(
    outcome: DeliveryState | None, confirmation: DeliveryState
) -> None:
    assert confirmation_of(outcome) == confirmation
